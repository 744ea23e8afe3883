"""Slower kernels and more work apart, on sums worked by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from steptime.ranks.longer import Done, Totals, more_share, work_done
from steptime.simulate import Scenario, simulate
from steptime.taxonomy import LEAF_CODE
from tests.ranks.summaries import rows_of


def _done(calls: dict[str, tuple[float, float]], *, shaped: bool = True, flops: float = 0.0) -> Done:
    totals: Totals = {("aten::mm", name, False): pair for name, pair in calls.items()}
    time_ns = sum(ns for _, ns in calls.values())
    count = sum(count for count, _ in calls.values())
    by_op = {"aten::mm": (flops, 0.0, count, time_ns)} if shaped else {}
    return Done(totals, totals if shaped else {}, by_op, count, flops, 0.0, time_ns)


PEER = {"a": (10.0, 1000.0), "b": (4.0, 400.0)}


@pytest.mark.parametrize(
    ("mine", "share"),
    [
        # Each call takes 1.5 times as long.
        ({"a": (10.0, 1500.0), "b": (4.0, 600.0)}, 0.0),
        # Five calls of `a` more, at the usual length.
        ({"a": (15.0, 1500.0), "b": (4.0, 400.0)}, 1.0),
        # Ten calls 1.5 times as long: 500 slower; five more of these at 150: 750 more; `b` 200 slower.
        ({"a": (15.0, 2250.0), "b": (4.0, 600.0)}, 750 / 1450),
        # `b` has become larger: `a` tells that the rank's pace is the usual one, so all 400 are more work.
        ({"a": (10.0, 1000.0), "c": (4.0, 800.0)}, 1.0),
        # The same at 1.25 times the time: `a` is 250 slower, `c` 1000 - 1000 / 1.25 = 200 slower and 800 - 400 more.
        ({"a": (10.0, 1250.0), "c": (4.0, 1000.0)}, 400 / 850),
        # Less to do, but slower by more: 500 slower with ten calls of `a`, `b` left out.
        ({"a": (10.0, 1500.0)}, -400 / 100),
    ],
)
def test_calls_tell(mine: dict[str, tuple[float, float]], share: float) -> None:
    assert more_share([_done(mine)], [_done(PEER)] * 3) == pytest.approx(share)


def test_calls_of_which_each_rank_has_its_own_are_compared_by_their_time() -> None:
    """Sequences of another length on every rank: what a peer has beside the common calls counts."""
    peers = [_done({"a": (10.0, 1000.0), f"length {at}": (4.0, 400.0)}) for at in range(3)]
    mine = _done({"a": (10.0, 1000.0), "length 9": (4.0, 800.0)})
    assert more_share([mine], peers) == pytest.approx(1.0)
    slow = _done({"a": (10.0, 2000.0), "length 9": (4.0, 800.0)})
    assert more_share([slow], peers) == pytest.approx(0.0)


def test_without_shapes_counts_and_flops_decide_for_all_of_it() -> None:
    peers = [_done(PEER, shaped=False)] * 3
    assert more_share([_done({"a": (10.0, 1500.0), "b": (4.0, 600.0)}, shaped=False)], peers) == 0.0
    assert more_share([_done({"a": (15.0, 1500.0), "b": (4.0, 400.0)}, shaped=False)], peers) == 1.0


@pytest.mark.parametrize(
    ("flops", "share"),
    [
        # 2000 instead of 1000, at twice the work: all of it is more.
        (200.0, 1.0),
        # At 1.7 times the work: a larger call that takes 2000 / 1700 of its time may just run worse.
        (170.0, 1.0),
        # At 1.25 times the work: 250 more; the other 750 are slower.
        (125.0, 0.25),
        (100.0, 0.0),
    ],
)
def test_too_few_equal_calls_tell_no_pace(flops: float, share: float) -> None:
    """A twentieth of the time is equal: whether the rest is slower or more is for the FLOPs to say."""
    peers = [_done({"a": (1.0, 50.0), "b": (4.0, 950.0)}, flops=100.0)] * 3
    mine = _done({"a": (1.0, 100.0), "c": (4.0, 1900.0)}, flops=flops)
    assert more_share([mine], peers) == pytest.approx(share)


def test_ranks_of_one_program_ran_equally_many_kernels(tmp_path: Path) -> None:
    """Those that communication slows down, more of them on one rank than on the other, count once."""
    text = "[recording]\nsteps = 4\n[layout]\ndp = 4\n[jitter]\nkernel = 0.05\n"
    text += "[model]\nlayers = 4\nhidden = 2048\n[batch]\nmicro_batch_size = 8\nseq_len = 2048\n"
    simulate(msgspec.toml.decode(text, type=Scenario), tmp_path, 6)
    rows = rows_of(sorted(tmp_path.glob("rank*.json.gz")))
    slowed = [int((row.timeline.ledger.leaf == LEAF_CODE["kernels/comm_contention"]).sum()) for row in rows]
    assert len(set(slowed)) > 1
    done = [work_done(row, np.array([1, 2, 3])) for row in rows]
    counts = [{key: count for key, (count, _) in one.by_name.items()} for one in done]
    assert counts == [counts[0]] * 4
    assert [one.count for one in done] == [sum(counts[0].values())] * 4
