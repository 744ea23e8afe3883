"""Clocks of hosts, recovered from collectives. The truth is what the job was made with."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from steptime.ranks.alignment import Alignment, align
from steptime.ranks.counted import Row
from steptime.ranks.stragglers import verdicts
from tests.ranks.jobs import MS, Job, run

OFFSETS = [0, 50 * MS, -50 * MS, 37 * MS, -4 * MS, 12 * MS, -26 * MS, 3 * MS]
DRIFT = [0.0, 50e-6, -50e-6, 20e-6, -35e-6, 10e-6, 45e-6, -5e-6]


def _job(**changes: object) -> Job:
    settings: dict[str, object] = {
        "hosts": 8,
        "steps": 5,
        "layers": 12,
        "layer_ns": 2.0 * MS,
        "sharded": True,
        "jitter": 0.03,
        "ends_ns": 1_500.0,
        "ends_between_ns": 8_000.0,
        "offsets_ns": OFFSETS,
        "drift": DRIFT,
    }
    return Job(**{**settings, **changes})  # type: ignore[arg-type]


def _worst_ns(job: Job, rows: list[Row], alignment: Alignment) -> float:
    """Largest distance over the whole job between what two clocks show of one instant, after alignment."""
    instants = np.linspace(0.0, job.steps * job.layers * job.layer_ns, 25)
    common = [
        alignment.clocks.common(np.full(25, at, np.int64), job.clock(row.rank, instants)) for at, row in enumerate(rows)
    ]
    return float(np.abs(np.stack(common) - common[0]).max())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ranks_per_host": 1},
        {"named_hosts": False, "ranks_per_host": 2},
        {"seq": False},
        # One all-reduce a step is all there is.
        {"sharded": False, "steps": 10},
    ],
)
def test_offsets_and_drift_of_eight_hosts_within_20_us(seed: int, changes: dict[str, object]) -> None:
    job = _job(seed=seed, **changes)
    rows = run(job)
    alignment = align(rows)
    assert _worst_ns(job, rows, alignment) <= 20_000
    # The error bar is honest: no clock is further off than three times what is claimed.
    assert _worst_ns(job, rows, alignment) <= 3 * int(alignment.error_ns.max())
    assert alignment.refused == 0


@pytest.mark.parametrize("changes", [{"steps": 3}, {"steps": 5}, {"steps": 10}, {"steps": 10, "hosts": 2}])
def test_the_error_bar_is_honest_where_few_collectives_tell(changes: dict[str, object]) -> None:
    """Three all-reduces whose ends are late by up to 200 us can't fix a line: the bar has to say so."""
    for seed in range(40):
        job = _job(seed=seed, ranks_per_host=1, sharded=False, **changes)
        rows = run(job)
        alignment = align(rows)
        assert _worst_ns(job, rows, alignment) <= 3 * int(alignment.error_ns.max()), seed


def test_offset_is_how_far_the_clock_is_ahead_at_the_start_of_the_recording() -> None:
    alignment = align(run(_job(ends_ns=0.0, ends_between_ns=0.0)))
    found = alignment.offset_ns[::4] - alignment.offset_ns[0]
    assert np.abs(found - np.array(OFFSETS)).max() <= 2_000
    assert np.abs(alignment.drift[::4] - np.array(DRIFT)).max() <= 2e-6


def test_there_and_back_again() -> None:
    alignment = align(run(_job()))
    rows = np.repeat(np.arange(32), 5)
    times = alignment.clocks.start_ns[rows] + np.tile(np.array([-MS, 0, 1, 10 * MS, 777 * MS]), 32)
    assert np.abs(alignment.clocks.own(rows, alignment.clocks.common(rows, times)) - times).max() <= 1


@pytest.mark.parametrize("seed", range(3))
def test_no_collective_ends_before_all_have_started(seed: int) -> None:
    # Transfers of 5 us, less than ends differ: the ends alone would put clocks outside what causality allows.
    collectives = align(run(_job(seed=seed, transfer_ns=5_000.0))).collectives
    first = collectives.matches.first
    for at in range(collectives.matches.count):
        members = slice(int(first[at]), int(first[at + 1]))
        assert collectives.end_ns[members].min() >= collectives.arrival_ns[members].max() - 2_000


def test_ranks_of_one_host_share_its_clock_without_error() -> None:
    alignment = align(run(_job(hosts=1, offsets_ns=[0], drift=[0.0])))
    assert alignment.offset_ns.tolist() == [0, 0, 0, 0]
    assert alignment.error_ns.tolist() == [0, 0, 0, 0]


def test_one_name_for_two_clocks_is_noticed() -> None:
    # Containers that call themselves alike: rank 1's clock is 5 ms ahead, which no common clock can explain.
    job = _job(hosts=2, ranks_per_host=1, offsets_ns=[0, 5 * MS], drift=[0.0, 0.0])
    rows = run(job)
    meta = msgspec.structs.replace(rows[1].file.meta, host="host0")
    rows[1] = msgspec.structs.replace(rows[1], file=msgspec.structs.replace(rows[1].file, meta=meta))
    alignment = align(rows)
    assert abs(int(alignment.offset_ns[1] - alignment.offset_ns[0]) - 5 * MS) <= 20_000
    assert "host0" in alignment.notes[0]


def test_ranks_without_a_common_collective_are_not_compared() -> None:
    job = _job(hosts=2, ranks_per_host=2, tp=2, sharded=False, offsets_ns=[0, 50 * MS], drift=[0.0, 0.0])
    rows = [run(job)[at] for at in (0, 3)]  # neither tp nor dp neighbours
    alignment = align(rows)
    assert alignment.matched == 0
    assert len(set(alignment.clocks.comparable.tolist())) == 2
    assert verdicts(rows, alignment) == []


@pytest.mark.parametrize("rank", [0, 5, 17])
def test_verdict_is_that_of_perfect_clocks(rank: int) -> None:
    skewed = run(_job(slow={rank: 1.2}))
    perfect = run(_job(slow={rank: 1.2}, offsets_ns=[], drift=[]))
    (left,) = verdicts(skewed, align(skewed))
    (right,) = verdicts(perfect, align(perfect))
    assert (left.kind, left.rank, left.cause, left.steps) == (right.kind, right.rank, right.cause, right.steps)
    assert (left.kind, left.rank, left.cause) == ("straggler", rank, "slower kernels")
