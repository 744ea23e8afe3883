"""Jobs that random draws found hard (`tests/matrix/random_jobs.py`), each boiled down to what was wrong of it.

Which rank is struck, whose clock is where and whose file is gone is what each test injects.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import steptime
from steptime.model import Report
from steptime.ranks.alignment import align
from steptime.ranks.collectives import match
from steptime.ranks.sequences import Beat, place
from steptime.simulate import Scenario, Truth, simulate
from tests.ranks.jobs import MS
from tests.ranks.summaries import rows_of


def _simulated(text: str, folder: Path, seed: int) -> Truth:
    return simulate(msgspec.toml.decode(text, type=Scenario), folder, seed)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank*.json.gz"))


def _analyzed(folder: Path) -> Report:
    return steptime.analyze([folder], steptime.pipeline.Options(replay=False))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ahead_us", [-40_000, 150, 2_600])
def test_beyond_lost_records_entries_are_placed_by_the_clock_of_their_host(ahead_us: int, seed: int) -> None:
    """Six steps of 31 all-reduces, 181 us apart: nearer than their ends between hosts scatter. One rank of the other
    host lacks five of them; the rank beside it, on the same clock, has them all.
    """
    random = np.random.default_rng(seed)
    steps = np.repeat(np.arange(6), 31)
    ends = np.cumsum(random.normal(181_000, 6_000, 186) + 8 * MS * np.append(0, np.diff(steps)))
    late = np.minimum(random.lognormal(9.0, 1.1, (3, 186)), 200_000)
    left = np.setdiff1d(np.arange(186), [24, 109, 110, 139, 160])
    ahead_ns = ahead_us * 1_000
    beats = [
        Beat((ends + late[0]).astype(np.int64), steps, clock="host0"),
        Beat((ends + late[1] + ahead_ns).astype(np.int64), steps, clock="host1"),
        Beat((ends + late[2] + ahead_ns).astype(np.int64)[left], steps[left], clock="host1"),
    ]
    whole, mate, holed = (places.tolist() for places in place(beats))
    assert whole == mate == list(range(186))
    known = [(found, true) for found, true in zip(holed, left.tolist(), strict=True) if found >= 0]
    # Two ends in 30 scatter by more than half the way to the next; moved by one, all beyond a hole would be wrong.
    assert sum(found != true for found, true in known) <= 0.07 * len(known)
    assert len(known) >= 0.9 * len(left)


def test_unnamed_collectives_on_several_streams_are_of_several_groups(tmp_path: Path) -> None:
    recording = "[recording]\ndialect = 'integer'\n[model]\nlayers = 2\n[layout]\n"
    _simulated(recording + "dp = 2\ntp = 2\n", tmp_path / "two", 3)
    _simulated(recording + "dp = 4\n", tmp_path / "one", 3)
    two, one = (match(rows_of(_files(tmp_path / name))) for name in ("two", "one"))
    assert (two.count, two.refused > 0) == (0, True)
    assert (one.count > 0, one.refused) == (True, 0)


def test_a_wrong_base_beside_ranks_that_share_no_collective_with_it(tmp_path: Path) -> None:
    """Ranks 2 and 3 are of one host and of two stages: no collective of both says that their clocks differ."""
    _simulated(
        "[recording]\nsteps = 3\n[model]\nlayers = 4\n[layout]\ndp = 3\npp = 2\n[batch]\nmicro_batches = 4\n"
        "[cluster]\ngpus_per_host = 2\n[clocks]\noffset_ms = 5\n"
        "[[fault]]\nkind = 'wrong_base'\nranks = [2]\nsize = 1.0\n",
        tmp_path,
        11,
    )
    alignment = align(rows_of(_files(tmp_path)))
    assert any("host1 contradict" in note for note in alignment.notes)
    apart_s = abs(float(alignment.offset_ns[2] - alignment.offset_ns[3])) / 1e9
    assert apart_s == pytest.approx(7_889_238, abs=1)
    others = np.delete(alignment.offset_ns, 2)
    assert np.abs(others - others[0]).max() <= 10.1 * MS
    assert alignment.error_ns.max() <= 100_000


def test_parts_that_nothing_joins_have_no_common_clock(tmp_path: Path) -> None:
    """Two stages on hosts of their own whose messages carry no peer."""
    _simulated(
        "[recording]\nsteps = 3\np2p_metadata = false\n[model]\nlayers = 4\n[layout]\ndp = 3\npp = 2\n"
        "[batch]\nmicro_batches = 4\n[cluster]\ngpus_per_host = 3\n[clocks]\noffset_ms = 5\n",
        tmp_path,
        12,
    )
    report = _analyzed(tmp_path)
    assert [rank.clock_offset_ns for rank in report.ranks] == [0, 0, 0, None, None, None]
    assert any("2 parts without a common collective" in warning for warning in report.warnings)


def test_who_waits_for_a_slow_rank_is_not_accused_beside_it(tmp_path: Path) -> None:
    """Rank 2 waits for rank 3 in its tensor-parallel pair, and so comes late to its data-parallel one."""
    truth = _simulated(
        "[recording]\nsteps = 6\nstart_spread_us = 8000\n[model]\nlayers = 1\nhidden = 2048\nheads = 16\nffn = 8192\n"
        "vocab = 2048\n[layout]\ndp = 2\ntp = 2\nfsdp = true\nsequence_parallel = true\n"
        "[batch]\nmicro_batches = 2\nmicro_batch_size = 2\n[training]\nrecompute = 'full'\nreshard = false\n"
        "optimizer = 'foreach'\nbroadcast_buffers = true\ndetail = 'full'\n[cluster]\ngpus_per_host = 1\n"
        "[jitter]\nkernel = 0.05\nhost = 0.2\n[clocks]\noffset_ms = 0.2\ndrift_ppm = 20\n"
        "[[fault]]\nkind = 'slow_gpu'\nranks = [3]\nsize = 0.226\n",
        tmp_path,
        744,
    )
    assert truth.culprits == [3]
    named = [one for one in _analyzed(tmp_path).stragglers if one.kind == "straggler"]
    assert [(one.rank, one.cause) for one in named] == [(3, "slower kernels")]


def test_stages_that_wait_for_each_other_accuse_nobody_where_a_file_is_missing(tmp_path: Path) -> None:
    """At the norm's all-reduce over all stages the first comes last, as the schedule drains; rank 0's file is gone."""
    _simulated(
        "[recording]\nsteps = 4\nseq = true\n[model]\nlayers = 6\nhidden = 4096\nheads = 16\nffn = 2048\nvocab = 8192\n"
        "[layout]\ndp = 2\npp = 2\nearly_receives = true\n[batch]\nmicro_batches = 8\nmicro_batch_size = 4\n"
        "[training]\nrecompute = 'selective'\nclip_grad = true\nlog_every = 1\n",
        tmp_path,
        528,
    )
    _files(tmp_path)[0].unlink()
    assert [one for one in _analyzed(tmp_path).stragglers if one.kind == "straggler"] == []
