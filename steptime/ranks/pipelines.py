"""What the report says of a pipeline: its stages and schedule, and the bubble beside the closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime import model
from steptime.ranks.bubble import Staged
from steptime.ranks.counted import Row
from steptime.ranks.flow import Flow
from steptime.ranks.replay import BACKWARD, FORWARD, Order, closed_form_share, idle_ns, phase_ns
from steptime.ranks.waits import Waits
from steptime.taxonomy import LEAF_CODE

P2P = LEAF_CODE["exposed_comm/p2p_transfer"]

ONE_RANK = "it needs the files of all stages: one rank shows that it waited, not for whom"
UNDECIDED = (
    "its messages are neither a pipeline's nor a ring's, as far as can be told: waits stand in exposed communication"
)
NAMELESS = "the messages carry no peer: a pipeline can't be told from a ring, and waits stand in exposed communication"


def why_unknown(rows: Sequence[Row], staged: Staged | None, undecided: bool | None) -> str | None:
    """Why nobody can say how long stages waited for each other; None if it is known, also where there is no pipeline.

    undecided: whether matched messages are neither a pipeline's nor a ring's; None where none was matched.
    """
    instances = [row.timeline.instances for row in rows if row.timeline.instances is not None]
    if staged is not None or undecided is False or not any((one.leaf == P2P).any() for one in instances):
        return None
    if undecided:
        return UNDECIDED
    return ONE_RANK if len({row.rank for row in rows}) < 2 else NAMELESS


def pipeline_report(rows: Sequence[Row], staged: Staged, waits: Waits) -> model.Pipeline:
    """The pipeline in the report's words."""
    stages, order, flow, usual = staged.stages, staged.order, staged.flow, staged.usual
    ranks = [
        sorted({rows[at].rank for at in np.flatnonzero(stages.stage == one).tolist()}) for one in range(stages.count)
    ]
    if order is None or flow is None or usual is None:
        return model.Pipeline(
            stages=ranks, schedule=None, chunks=0, micro_batches=0, forward_ns=[], backward_ns=[], why=staged.why
        )
    length = usual.stage_ns[usual.key]
    forward, backward = (
        [int(length[(order.stage == stage) & mine].sum()) // order.micro_batches for stage in range(stages.count)]
        for mine in (order.kind == FORWARD, order.kind != FORWARD)
    )
    waited, phase = _measured(rows, staged, waits)
    even = usual.even_ns(order)
    idle, whole = idle_ns(order, even[None, :])[0], phase_ns(order, even[None, :])[0]
    return model.Pipeline(
        stages=ranks,
        schedule=order.schedule,
        chunks=order.pieces // stages.count,
        micro_batches=order.micro_batches,
        forward_ns=forward,
        backward_ns=backward,
        phase_ns=round(phase) if phase else None,
        bubble_share=waited / phase if phase else None,
        schedule_share=float((idle / whole).mean()),
        closed_form_share=closed_form_share(order),
        actions=_actions(rows, staged, flow, order),
    )


def _measured(rows: Sequence[Row], staged: Staged, waits: Waits) -> tuple[float, float]:
    """Mean wait of a rank and mean length of the phase over the steps whose beginning was recorded, in ns."""
    counts = staged.begin_ns < staged.end_ns
    for at, row in enumerate(rows):
        edges = [own for own, step in enumerate(row.timeline.steps) if step.edge]
        counts[:, np.unique(staged.column[at, edges])] = False
    counts &= (staged.stages.stage >= 0)[:, None]
    between = waits.take(staged.between)
    column = staged.column[between.row, between.step]
    mine = (column >= 0) & counts[between.row, column]
    pairs = int(counts.sum())
    if not pairs:
        return 0.0, 0.0
    return float(between.ns[mine].sum()) / pairs, float((staged.end_ns - staged.begin_ns)[counts].sum()) / pairs


def _actions(rows: Sequence[Row], staged: Staged, flow: Flow, order: Order) -> model.PipelineActions:
    """The step of usual length, drawn."""
    start, end = flow.start_ns[order.index], flow.end_ns[order.index]
    length = end.max(axis=1) - start.min(axis=1)
    at = int(np.argsort(length, kind="stable")[(len(length) - 1) // 2])
    lanes = [int(flow.row[order.index[at]][order.stage == stage][0]) for stage in range(order.stages)]
    chunk = np.where(order.piece >= 0, order.piece // order.stages, 0)
    return model.PipelineActions(
        step=staged.numbers[int(order.column[at])][1],
        ranks=[rows[lane].rank for lane in lanes],
        stage=order.stage.tolist(),
        chunk=chunk.tolist(),
        micro_batch=order.micro_batch.tolist(),
        backward=(order.kind >= BACKWARD).tolist(),
        start_ns=(start[at] - start[at].min()).tolist(),
        dur_ns=(end[at] - start[at]).tolist(),
    )
