"""Waits, skew and what moves in the ledger: against loops over single collectives, and against hand-made traces."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from steptime.ranks.alignment import align
from steptime.ranks.counted import Row
from steptime.ranks.moves import RowWaits, attribute_waits, with_waits
from steptime.ranks.stragglers import verdicts
from steptime.timeline.instances import Group
from tests.builders import Micros, TraceBuilder
from tests.ranks.jobs import MS, Job, run
from tests.ranks.summaries import rows_of

WAIT, SKEW = "stragglers/wait_for_rank", "unexplained/capture_skew"
GEMM = "ampere_sgemm_128x64_tn"


def _moved(rows: list[Row]) -> list[Row]:
    found = attribute_waits(rows, align(rows))
    return [
        msgspec.structs.replace(row, timeline=with_waits(row.timeline, waits))
        for row, waits in zip(rows, found, strict=True)
    ]


def _culprits(waits: RowWaits) -> dict[int, int]:
    """ns by rank waited for (-1: capture skew)."""
    total: dict[int, int] = {}
    for rank, ns in zip(waits.culprit.tolist(), waits.ns.tolist(), strict=True):
        total[rank] = total.get(rank, 0) + ns
    return total


@pytest.mark.parametrize("seed", range(8))
def test_waits_are_the_exposed_parts_before_the_last_arrival(seed: int) -> None:
    """One clock, one group: a loop over collectives gives each rank's wait by step, to the nanosecond."""
    random = np.random.default_rng(seed)
    job = Job(ranks_per_host=4, steps=4, layers=5, sharded=True, jitter=0.05, ends_ns=1500.0, seed=seed)
    rows = []
    for row in run(job):
        instances = row.timeline.instances
        assert instances is not None
        # Of some collectives only a part in the middle is exposed, as if compute hid the rest.
        start, end = instances.exposed_start.copy(), instances.exposed_end.copy()
        hidden = random.random(len(start)) < 0.5
        length = end - start
        start[hidden] += length[hidden] // 4
        end[hidden] -= length[hidden] // 5
        part = msgspec.structs.replace(instances, exposed_start=start, exposed_end=end)
        rows.append(msgspec.structs.replace(row, timeline=msgspec.structs.replace(row.timeline, instances=part)))
    count = job.steps * (job.layers + 1)
    starts = np.stack([row.timeline.instances.start_ns for row in rows if row.timeline.instances is not None])
    expected = np.zeros((4, job.steps), np.int64)
    skew = np.zeros(4, np.int64)
    for one in range(count):
        last = int(starts[:, one].max())
        for rank, row in enumerate(rows):
            instances = row.timeline.instances
            assert instances is not None
            ns = max(0, min(last, int(instances.exposed_end[one])) - int(instances.exposed_start[one]))
            if one == 0:
                skew[rank] += ns  # nobody has met anybody before
            else:
                expected[rank, one // (job.layers + 1)] += ns
    found = attribute_waits(rows, align(rows))
    for rank, waits in enumerate(found):
        by_step = np.zeros(job.steps, np.int64)
        real = waits.culprit >= 0
        np.add.at(by_step, waits.step[real], waits.ns[real])
        assert by_step.tolist() == expected[rank].tolist()
        assert int(waits.ns[~real].sum()) == skew[rank]


def test_moved_time_leaves_exposed_communication_and_nothing_else_changes() -> None:
    before = run(Job(ranks_per_host=4, tp=2, steps=5, jitter=0.03, slow={3: 1.2}, seed=1))
    after = _moved(before)
    moved = 0
    for old, new in zip(before, after, strict=True):
        for left, right in zip(old.timeline.steps, new.timeline.steps, strict=True):
            right.check()
            taken = right.leaves_ns.get(WAIT, 0) + right.leaves_ns.get(SKEW, 0)
            moved += taken
            others = {key: ns for key, ns in left.leaves_ns.items() if not key.startswith("exposed_comm/")}
            exposed = sum(ns for key, ns in left.leaves_ns.items() if key.startswith("exposed_comm/"))
            rest = sum(ns for key, ns in right.leaves_ns.items() if key.startswith("exposed_comm/"))
            assert exposed - rest == taken
            assert {key: ns for key, ns in right.leaves_ns.items() if key in others} == others
        assert new.timeline.ledger.count.min() >= 0
        names = set(new.timeline.ledger.texts) - set(old.timeline.ledger.texts)
        assert all(name.startswith(("waiting for rank ", "recordings started")) for name in names)
    assert moved > 5 * 4 * MS  # rank 3 is 1.6 ms a step late for each of the others, four steps judged


def test_transfer_is_left_where_it_was() -> None:
    # Rank 1 computes 8 x 0.2 ms longer; the transfer of every all-reduce takes exactly 0.1 ms.
    rows = _moved(run(Job(ranks_per_host=2, steps=4, slow={1: 1.2}, loader_ns={})))
    for step in rows[0].timeline.steps[1:]:
        assert step.leaves_ns["exposed_comm/allreduce"] == 100_000
        # Loader equal, 8 layers of 1 ms and the optimizer's 0.3 ms before it: 1.6 + 0.06 ms later.
        assert step.leaves_ns[WAIT] == pytest.approx(1_660_000, abs=2)
    for step in rows[1].timeline.steps[1:]:
        assert step.leaves_ns["exposed_comm/allreduce"] == 100_000
        assert WAIT not in step.leaves_ns


def test_wait_for_a_rank_that_was_kept_is_for_the_one_that_kept_it() -> None:
    # tp pairs (0,1) and (2,3); 3 is slow, so 2 waits for 3, and both are late for 0 and 1. All name 3.
    rows = run(Job(ranks_per_host=4, tp=2, steps=5, slow={3: 1.3}))
    found = attribute_waits(rows, align(rows))
    assert [max(_culprits(found[rank]).items(), key=lambda item: item[1])[0] for rank in (0, 1, 2)] == [3, 3, 3]
    # In steps in which all have met, nothing is said of rank 2.
    assert all(2 not in _culprits(waits) for waits in found)


@pytest.mark.parametrize("missing", [0, 2])
def test_without_all_members_nothing_moves(missing: int) -> None:
    rows = [row for row in run(Job(ranks_per_host=3, steps=5, slow={1: 1.3})) if row.rank != missing]
    assert all(not len(waits.ns) for waits in attribute_waits(rows, align(rows)))


def test_late_rank_without_a_file_is_not_replaced_by_another() -> None:
    rows = run(Job(ranks_per_host=4, tp=2, steps=6, layers=6, slow={3: 1.3}, jitter=0.01, transfer_ns=0.05 * MS))
    rows = [row for row in rows if row.rank != 3]
    assert all(not straggler.recorded for straggler in verdicts(rows, align(rows)))


def test_recording_that_starts_later_is_capture_skew_and_no_rank() -> None:
    # Rank 2's recording (and first step) begins 7 ms after the others': equal work since.
    rows = run(Job(ranks_per_host=4, steps=4, starts_ns={2: 7.0 * MS}))
    alignment = align(rows)
    found = attribute_waits(rows, alignment)
    for rank in (0, 1, 3):
        assert _culprits(found[rank]) == {-1: 7 * MS}
    assert _culprits(found[2]) == {}
    assert verdicts(rows, alignment) == []


def test_barrier_of_a_new_group_late_in_the_recording_is_no_skew() -> None:
    # Case C20: a checkpoint on rank 0 keeps the others; the group is new, but all ranks had met before.
    rows = run(Job(ranks_per_host=4, steps=4, loader_ns={(0, 2): 900.0 * MS}))
    for at, row in enumerate(rows):
        instances = row.timeline.instances
        assert instances is not None
        group = instances.group.copy()
        group[2] = 3
        new = msgspec.structs.replace(
            instances, group=group, groups=[*instances.groups, Group("9", "save", 4, (0, 1, 2, 3))]
        )
        rows[at] = msgspec.structs.replace(row, timeline=msgspec.structs.replace(row.timeline, instances=new))
    found = attribute_waits(rows, align(rows))
    assert [_culprits(waits).get(0, 0) // MS for waits in found] == [0, 899, 899, 899]


# Traces


def _step(trace: TraceBuilder, number: int, at: Micros, compute: Micros, arrive: Micros, end: Micros) -> None:
    """A step of 10 ms: GEMM for `compute`, then an all-reduce [arrive, end), then 0.2 ms of GEMM; times from `at`."""
    trace.step(number, at=at, for_=9_900)
    trace.op("aten::mm", at=at + 5, for_=20)
    trace.kernel(GEMM, at=at + 20, for_=compute, launch_at=at + 10)
    trace.collective("allreduce", at=at + arrive, for_=end - arrive, launch_at=at + 40, nelems=1 << 20)
    trace.op("aten::mm", at=at + 55, for_=20)
    trace.kernel(GEMM, at=at + end, for_=200, launch_at=at + 60)


def _write(folder: Path, traces: list[TraceBuilder]) -> list[Row]:
    return rows_of([trace.write(folder / f"rank{trace.rank}.json.gz") for trace in traces])


def _leaf_us(row: Row, step: int, key: str) -> float:
    (found,) = [entry for entry in row.timeline.steps if entry.step == step]
    return found.leaves_ns.get(key, 0) / 1000


@pytest.mark.parametrize("clock", [0, -4_000, 4_000])
def test_the_rank_with_the_short_collective_is_the_late_one(tmp_path: Path, clock: int) -> None:
    """Cases B14 (kernels of 2500 and 1000 us that end together) and B16 (rank 1's clock 4 ms off)."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for number in range(4):
        _step(traces[0], number, number * 10_000, 5_000, 5_020, 7_520)
        _step(traces[1], number, number * 10_000 + clock + 4_000, 6_500, 6_520, 7_520)
        # The builder's times start at 0: rank 0 is moved with it, so that only the distance changes.
    traces[1].origin_ns -= 4_000_000
    rows = _write(tmp_path, traces)
    alignment = align(rows)
    assert int(alignment.offset_ns[1] - alignment.offset_ns[0]) == pytest.approx(clock * 1000, abs=1_000)
    (straggler,) = verdicts(rows, alignment)
    assert (straggler.kind, straggler.rank, straggler.cause) == ("straggler", 1, "slower kernels")
    moved = _moved(rows)
    for number in (1, 2, 3):
        assert _leaf_us(moved[0], number, WAIT) == 1_500
        assert _leaf_us(moved[0], number, "exposed_comm/allreduce") == 1_000
        assert _leaf_us(moved[1], number, WAIT) == 0
        assert _leaf_us(moved[1], number, "exposed_comm/allreduce") == 1_000


def test_profilers_that_start_17_s_apart(tmp_path: Path) -> None:
    """Case B15: the first all-gather lasts 17 s on rank 0, since rank 1's recording starts 17 s later."""
    late = 17_000_000
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        begin = late * rank
        trace.step(1, at=begin, for_=late * (1 - rank) + 1_000)
        trace.op("aten::mm", at=begin + 5, for_=20)
        trace.kernel(GEMM, at=begin + 20, for_=500, launch_at=begin + 10)
        start = begin + 520
        trace.collective("_allgather_base", at=start, for_=late + 534 - start, launch_at=begin + 40)
        trace.kernel(GEMM, at=late + 534, for_=100, launch_at=begin + 60)
        for number in (2, 3, 4):
            at = late + number * 1_000
            trace.step(number, at=at, for_=1_000)
            trace.kernel(GEMM, at=at + 20, for_=500, launch_at=at + 10)
            trace.collective("_allgather_base", at=at + 520, for_=14, launch_at=at + 40)
            trace.kernel(GEMM, at=at + 534, for_=100, launch_at=at + 60)
    rows = _write(tmp_path, traces)
    alignment = align(rows)
    found = attribute_waits(rows, alignment)
    assert [_culprits(waits) for waits in found] == [{-1: 17_000_000_000}, {}]
    assert verdicts(rows, alignment) == []
    assert _leaf_us(_moved(rows)[0], 1, SKEW) == 17_000_000
