"""Pipelines laid out by hand: the order of the passes on each stage as text, played against the links between them."""

from __future__ import annotations

import msgspec

from steptime.model import RankSteps, Report, StepTime
from steptime.model.ranks import Pipeline, PipelineActions
from tests.report.reports import MS, job, report

#: 1F1B on four stages with eight micro-batches, as in the figure of the PipeDream-Flush paper.
ONE_F_ONE_B = (
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
)
#: Interleaved on two stages with two chunks each and four micro-batches, as Megatron-LM orders them.
INTERLEAVED = (
    "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
    "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
)


def play(orders: tuple[str, ...], forward_ms: tuple[int, ...], backward_ms: tuple[int, ...]) -> PipelineActions:
    """The passes in time: each begins when its stage is free and what it needs has arrived, which takes no time."""
    stages = len(orders)
    todo = [order.split() for order in orders]
    chunks = 1 + max(int(name.partition(".")[2] or 0) for order in todo for name in order)
    done: dict[tuple[str, int, int, int], int] = {}
    free = [0] * stages
    columns: dict[str, list[int]] = {"stage": [], "chunk": [], "micro_batch": [], "start_ns": [], "dur_ns": []}
    backward: list[bool] = []
    while any(todo):
        before = len(backward)
        for stage in range(stages):
            if not todo[stage]:
                continue
            name = todo[stage][0]
            kind, micro_batch, chunk = name[0], int(name[1:].partition(".")[0]), int(name.partition(".")[2] or 0)
            piece = chunk * stages + stage
            needs = {
                "F": ("F", micro_batch, piece - 1) if piece else None,
                "B": ("B", micro_batch, piece + 1) if piece + 1 < chunks * stages else ("F", micro_batch, piece),
            }[kind]
            if needs is not None and (*needs, 0) not in done:
                continue
            start = max(free[stage], 0 if needs is None else done[(*needs, 0)])
            dur = (forward_ms if kind == "F" else backward_ms)[stage] * MS
            free[stage] = done[kind, micro_batch, piece, 0] = start + dur
            for column, value in zip(columns, (stage, chunk, micro_batch, start, dur), strict=True):
                columns[column].append(value)
            backward.append(kind == "B")
            todo[stage].pop(0)
        assert len(backward) > before, "the order waits for itself"
    return PipelineActions(step=10, ranks=list(range(stages)), backward=backward, **columns)


def one_f_one_b() -> Pipeline:
    """Four equal stages, eight micro-batches of 1 ms forward and 2 ms backward: eleven rounds, three of them empty."""
    return Pipeline(
        stages=[[0, 1], [2, 3], [4, 5], [6, 7]],
        schedule="1f1b",
        chunks=1,
        micro_batches=8,
        forward_ns=[MS] * 4,
        backward_ns=[2 * MS] * 4,
        phase_ns=33 * MS,
        bubble_share=3 / 11,
        schedule_share=3 / 11,
        closed_form_share=3 / 11,
        actions=msgspec.structs.replace(play(ONE_F_ONE_B, (1,) * 4, (2,) * 4), ranks=[0, 2, 4, 6]),
    )


def uneven() -> Pipeline:
    """The same, but the third stage takes twice as long.

    It begins after 2 ms, waits 1 ms for its first gradient, is then never idle for the rest of its 48 ms, and after it
    the last gradient passes two stages in 4 ms: 55 ms, of which the stages are filled for 24, 24, 48 and 24.
    """
    return msgspec.structs.replace(
        one_f_one_b(),
        forward_ns=[MS, MS, 2 * MS, MS],
        backward_ns=[2 * MS, 2 * MS, 4 * MS, 2 * MS],
        phase_ns=55 * MS,
        bubble_share=1 - 120 / 220,
        actions=play(ONE_F_ONE_B, (1, 1, 2, 1), (2, 2, 4, 2)),
    )


def interleaved() -> Pipeline:
    """Two stages with two chunks each: 1 ms forward, 2 ms backward a chunk, four micro-batches."""
    return Pipeline(
        stages=[[0], [1]],
        schedule="interleaved",
        chunks=2,
        micro_batches=4,
        forward_ns=[2 * MS] * 2,
        backward_ns=[4 * MS] * 2,
        phase_ns=27 * MS,
        bubble_share=1 / 9,
        schedule_share=1 / 9,
        closed_form_share=1 / 9,
        actions=play(INTERLEAVED, (1, 1), (2, 2)),
    )


def unsplit() -> Pipeline:
    """Stages that are known, a bubble that can't be split."""
    return Pipeline(
        stages=[[0, 1, 2], [3, 4]],
        schedule=None,
        chunks=1,
        micro_batches=1,
        forward_ns=[],
        backward_ns=[],
        why="rank 5, whose file is not there, is in the second stage",
    )


def piped(pipeline: Pipeline, slow: int | None = None) -> Report:
    """A report of the ranks of that pipeline: later stages have more work of their own, `slow` a fifth more."""
    ranks = []
    for stage, members in enumerate(pipeline.stages):
        for rank in members:
            own_ns = (60 + 10 * stage) * MS * (6 if rank == slow else 5) // 5
            steps = [
                StepTime(
                    step=step,
                    start_ns=step * 100 * MS,
                    dur_ns=100 * MS,
                    leaves_ns={"kernels/matmul": own_ns, "pipeline_bubble/steady": 100 * MS - own_ns},
                )
                for step in (10, 11)
            ]
            ranks.append(RankSteps(rank=rank, host=f"node{rank // 4}", device=rank % 4, steps=steps))
    total = {"kernels/matmul": 0, "pipeline_bubble/steady": 0}
    for one in ranks:
        for counted in one.steps:
            for key, ns in counted.leaves_ns.items():
                total[key] += ns
    the_job = job(
        dict(total),
        rank_steps=2 * len(ranks),
        world_size=len(ranks),
        ranks_analyzed=len(ranks),
        steps=[10, 11],
        device="NVIDIA H100 80GB HBM3",
    )
    return report(the_job, ranks=ranks, pipeline=pipeline)
