"""Ranks without a device in a replay: recordings written by hand, of which it is plain what a change brings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from steptime.ranks.counted import Row
from steptime.ranks.together import together
from steptime.taxonomy import LEAF_CODE
from steptime.timeline.dependencies import Dependencies
from steptime.timeline.summary import Request, summarize
from steptime.whatif.graph import Weights
from steptime.whatif.job_graph import JobGraph, job_graph
from steptime.whatif.rank_nodes import EDGE, LAG, WORK
from steptime.whatif.replay import replay
from steptime.whatif.schedule import schedule
from steptime.whatif.step_times import step_lengths
from tests.gloo_recording import WORKER, Recording, group

PAIR = [group("0", "default_pg", 0, 1)]
STEPS = 3
MATMUL = "kernels/matmul"


def ranks(length: int = 7000) -> tuple[Recording, Recording]:
    """Two empty recordings of `STEPS` steps of equal length, us."""
    both = Recording(0, PAIR), Recording(1, PAIR)
    for one in both:
        for step in range(STEPS):
            one.step(step, step * length, (step + 1) * length)
    return both


def rows_of(recordings: tuple[Recording, ...], folder: Path) -> list[Row]:
    files = [summarize(one.table(folder), Request(replayed=True)) for one in recordings]
    return [Row(rank, 0, file, file.devices[0]) for rank, file in enumerate(files)]


def known(row: Row) -> Dependencies:
    assert row.timeline.dependencies is not None
    return row.timeline.dependencies


def graph_of(recordings: tuple[Recording, ...], folder: Path) -> JobGraph:
    rows = rows_of(recordings, folder)
    seen = together(rows, len(rows)).seen
    return job_graph(rows, seen[0] if seen else None)


def steps_us(graph: JobGraph, less_us: dict[tuple[int, str], int] | None = None) -> list[list[float]]:
    """Step times of each rank once so much is taken from each part of a leaf of a rank."""
    changed = [graph.graph.lag_ns.copy(), graph.graph.work_ns.copy(), graph.graph.edge_lag_ns.copy()]
    for (row, leaf), us in (less_us or {}).items():
        mine = (graph.parts.row == row) & (graph.parts.leaf == LEAF_CODE[leaf])
        for kind in (LAG, WORK, EDGE):
            of_kind = mine & (graph.parts.kind == kind) & (graph.parts.ns >= us * 1000)
            changed[kind][graph.parts.index[of_kind]] -= us * 1000
    lag, work, edge = (column[:, None] for column in changed)
    times = replay(graph.graph, schedule(graph.graph), Weights(lag, work, edge))
    lengths = step_lengths(graph.ends, times)[:, 0] / 1000
    result: list[list[float]] = lengths.reshape(len(graph.ends.steps), -1).tolist()
    return result


def all_reduce(one: Recording, at: int, computes: int, end: int, span_end: int | None = None) -> None:
    """Compute, an all-reduce that the thread waits for until `end`, 500 us of compute. The worker takes 10 us to begin.

    computes, end: since `at`; span_end: when the worker's span ends, if not when the thread is back.
    """
    end, span_end = at + end, at + (span_end or end)
    one.op("aten::mm", at, at + computes).asks("allreduce_", at + computes, [[[1000]]])
    one.works("all_reduce", at + computes + 10, span_end, 1000).op("aten::mm", end, end + 500)


@pytest.fixture
def late_rank(tmp_path: Path) -> JobGraph:
    """Rank 0 computes for 2 ms, rank 1 for 5; both are back at 6500, and the step takes 7 ms."""
    first, second = ranks()
    for step in range(STEPS):
        all_reduce(first, step * 7000, 2000, 6500)
        all_reduce(second, step * 7000, 5000, 6500)
    return graph_of((first, second), tmp_path)


def test_unchanged_steps_are_as_measured(late_rank: JobGraph) -> None:
    assert steps_us(late_rank) == [[7000.0] * STEPS] * 2


def test_a_rank_that_others_wait_for_takes_all_with_it(late_rank: JobGraph) -> None:
    # From the last arrival (5010) the transfer takes 1490 us: 2010 + 1490 + 500, once both arrive at 2010.
    assert steps_us(late_rank, {(1, MATMUL): 3000}) == [[4000.0] * STEPS] * 2


def test_a_rank_that_waits_gains_nothing(late_rank: JobGraph) -> None:
    assert steps_us(late_rank, {(0, MATMUL): 1500}) == [[7000.0] * STEPS] * 2


def test_of_a_faster_rank_only_what_the_next_one_lets_through_is_gained(late_rank: JobGraph) -> None:
    # Rank 1 would arrive at 1010, rank 0 arrives at 2010.
    assert steps_us(late_rank, {(1, MATMUL): 4000}) == [[4000.0] * STEPS] * 2


def test_waiting_is_no_time_of_the_thread_itself(late_rank: JobGraph) -> None:
    parts = late_rank.parts
    mine = (parts.row == 0) & (parts.kind == LAG) & (parts.step == 1)
    # 2000 and 500 of compute, 2 in the op that asks.
    assert parts.ns[mine].sum() == 2_502_000


def test_a_worker_that_ends_its_span_late_was_waited_for_all_the_same(tmp_path: Path) -> None:
    first, second = ranks()
    for step in range(STEPS):
        # The thread waits for 4.5 ms and is back at 6500, 800 us before the worker's span ends.
        all_reduce(first, step * 7000, 2000, 6500, 7300 if step < STEPS - 1 else 6990)
        all_reduce(second, step * 7000, 5000, 6500)
    graph = graph_of((first, second), tmp_path)
    assert steps_us(graph) == [[7000.0] * STEPS] * 2
    assert steps_us(graph, {(1, MATMUL): 3000}) == [[4000.0] * STEPS] * 2


def test_communication_that_ends_while_the_thread_computes_holds_it_at_the_end_of_the_step(tmp_path: Path) -> None:
    both = ranks()
    for one in both:
        for step in range(STEPS):
            at = step * 7000
            one.op("aten::mm", at, at + 1000).asks("allreduce_", at + 1000, [[[1000]]])
            one.works("all_reduce", at + 1010, at + 3010, 1000).op("aten::mm", at + 1002, at + 7000)
    graph = graph_of(both, tmp_path)
    assert steps_us(graph) == [[7000.0] * STEPS] * 2
    # 7000 less 5998 of the second product; but the all-reduce ends 2010 us after it was asked for, at 1000.
    parts = graph.parts
    assert sorted(np.unique(parts.ns[parts.leaf == LEAF_CODE[MATMUL]]).tolist()) == [1_000_000, 5_998_000]
    assert steps_us(graph, {(rank, MATMUL): 5998 for rank in (0, 1)})[0][0] == 3010.0


def test_a_message_that_had_come_long_before_holds_nobody(tmp_path: Path) -> None:
    first, second = ranks()
    for step in range(STEPS):
        at = step * 7000
        # Rank 0 posts its receive, computes for 6 ms and is then at once through its wait; rank 1 sends at 1000.
        first.message("recv", 1, (at, at + 2), at + 6020).op("aten::mm", at + 2, at + 6000)
        first.op("aten::mm", at + 6020, at + 6500)
        second.op("aten::mm", at, at + 1000).message("send", 0, (at + 1000, at + 1002), at + 1400)
    rows = rows_of((first, second), tmp_path)
    assert known(rows[0]).noticed.tolist() == [True] * STEPS
    assert known(rows[1]).noticed.tolist() == [False] * STEPS
    graph = graph_of((first, second), tmp_path)
    assert steps_us(graph) == [[7000.0] * STEPS] * 2
    # All 3 ms of compute that go are gained, though the recording has the receive end at 6020: step 0 takes 4000. Then
    # what is sent at 8000 and takes 400 holds rank 0, and 980 us later step 1 ends; so it does from then on.
    assert steps_us(graph, {(0, MATMUL): 3000})[0] == [4000.0, 5380.0, 7000.0]
    # Nearly all compute gone: what is sent at 1000 and takes 400 us, 600 us after that to the end.
    assert steps_us(graph, {(0, MATMUL): 5998})[0][0] == 1400.0 + 980.0


def test_a_message_that_was_waited_for_holds_who_waits(tmp_path: Path) -> None:
    first, second = ranks()
    for step in range(STEPS):
        at = step * 7000
        first.message("recv", 1, (at, at + 2), at + 5000).op("aten::mm", at + 5000, at + 6000)
        second.op("aten::mm", at, at + 4000).message("send", 0, (at + 4000, at + 4002), at + 5000)
    graph = graph_of((first, second), tmp_path)
    assert steps_us(graph) == [[7000.0] * STEPS] * 2
    assert steps_us(graph, {(1, MATMUL): 2500}) == [[4500.0] * STEPS] * 2


def test_only_what_kept_a_worker_is_an_order(tmp_path: Path) -> None:
    one = Recording(0, PAIR).step(0, 0, 9000)
    one.asks("allreduce_", 0, [[[10]]]).works("all_reduce", 10, 1000, 10)
    # Asked for while the first is under way, and taken by the same worker: in turn.
    one.asks("allreduce_", 500, [[[20]]]).works("all_reduce", 1010, 2000, 20)
    # Asked for when the worker was idle: by chance the same one.
    one.asks("allreduce_", 3000, [[[30]]]).works("all_reduce", 3010, 4000, 30)
    stream = known(rows_of((one,), tmp_path)[0]).stream.tolist()
    assert stream[0] == stream[1] != stream[2]


def test_a_single_rank_without_communication(tmp_path: Path) -> None:
    one = Recording(0)
    for step in range(STEPS):
        one.step(step, step * 1000, (step + 1) * 1000).op("aten::mm", step * 1000 + 100, step * 1000 + 700)
    graph = graph_of((one,), tmp_path)
    assert steps_us(graph) == [[1000.0] * STEPS]
    assert steps_us(graph, {(0, MATMUL): 400}) == [[600.0] * STEPS]


def test_a_recording_without_step_marks_is_one_step(tmp_path: Path) -> None:
    graph = graph_of((Recording(0).op("aten::mm", 0, 600).op("aten::relu", 600, 1000),), tmp_path)
    assert steps_us(graph) == [[1000.0]]
    assert steps_us(graph, {(0, MATMUL): 500}) == [[500.0]]


def test_communication_outside_the_steps_does_no_harm(tmp_path: Path) -> None:
    both = Recording(0, PAIR), Recording(1, PAIR)
    for rank, one in enumerate(both):
        one.asks("allreduce_", 0, [[[5]]]).works("all_reduce", 10, 400, 5)
        one.step(0, 1000, 8000).step(1, 8000, 15000)
        for step in range(2):
            all_reduce(one, 1000 + step * 7000, 2000 + rank * 3000, 6500)
        one.asks("allreduce_", 15100, [[[6]]]).works("all_reduce", 15110, 16000, 6)
    graph = graph_of(both, tmp_path)
    assert steps_us(graph) == [[7000.0] * 2] * 2
    assert steps_us(graph, {(1, MATMUL): 3000}) == [[4000.0] * 2] * 2


class Program:
    """Steps of a data-parallel job at random: `STEPS` x (some times compute and an all-reduce, then the optimizer).

    Threads wait for all buckets in turn once the last has been asked for. Run by hand, on the clock of the job, us.
    """

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.buckets = int(draw.integers(1, 5))
        self.compute = draw.integers(300, 4000, (2, STEPS, self.buckets + 1))
        self.transfer = draw.integers(100, 3000, (STEPS, self.buckets))

    def run(self, compute: NDArray[np.int64]) -> tuple[list[list[int]], tuple[Recording, Recording]]:
        """Lengths of the steps of both ranks, and what is recorded of them."""
        both = Recording(0, PAIR), Recording(1, PAIR)
        now, begin = [0, 0], [0, 0]
        lengths: list[list[int]] = [[], []]
        for step in range(STEPS):
            asked = [[0] * self.buckets for _ in both]
            for rank, one in enumerate(both):
                for at, length in enumerate(compute[rank, step, :-1].tolist()):
                    one.op("aten::mm", now[rank], now[rank] + length)
                    now[rank] += length
                    asked[rank][at] = now[rank]
                    one.asks("allreduce_", now[rank], [[[101 + at]]])
                    now[rank] += 2
            for bucket in range(self.buckets):
                end = max(arrivals[bucket] for arrivals in asked) + 10 + int(self.transfer[step, bucket])
                for rank, one in enumerate(both):
                    span = ("user_annotation", "gloo:all_reduce", asked[rank][bucket] + 10, end, WORKER + bucket)
                    one.add(*span, Input_Dims=[[101 + bucket]])
                    now[rank] = max(now[rank], end)
            for rank, one in enumerate(both):
                one.op("aten::relu", now[rank], now[rank] + int(compute[rank, step, -1]))
                now[rank] += int(compute[rank, step, -1])
                one.step(step, begin[rank], now[rank])
                lengths[rank].append(now[rank] - begin[rank])
                begin[rank] = now[rank]
        return lengths, both


@pytest.mark.parametrize("seed", range(20))
def test_random_jobs_replay_as_they_would_have_run(seed: int, tmp_path: Path) -> None:
    program = Program(seed)
    measured, both = program.run(program.compute)
    graph = graph_of(both, tmp_path)
    assert steps_us(graph) == measured
    faster = program.compute.copy()
    faster[1, :, :-1] -= 250
    assert steps_us(graph, {(1, MATMUL): 250}) == program.run(faster)[0]


def test_only_a_replay_asks_for_what_waited(tmp_path: Path) -> None:
    one = Recording(0).step(0, 0, 1000).add("user_annotation", "gloo:barrier", 10, 20, WORKER)
    assert one.timeline(tmp_path).dependencies is None
