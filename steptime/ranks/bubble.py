"""The bubble of a pipeline: what its stages waited for each other, split by a replay of the recorded order.

What equal stages would wait in the same order is the schedule's own share; what the stages' usual lengths add is
imbalance; what one rank adds that is slower than the same stage of other pipelines is waiting for that rank. The rest,
transfer and variation on the way, is not separable (DESIGN 2.4).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, Alignment
from steptime.ranks.blame import column_of, job_steps
from steptime.ranks.chains import KEPT_SHARE
from steptime.ranks.collectives import global_peers
from steptime.ranks.counted import Row
from steptime.ranks.flow import Flow, flow_of
from steptime.ranks.moves import WAIT, Moved
from steptime.ranks.replay import FORWARD, WEIGHT, Order, idle_ns, order_of, phase_ns
from steptime.ranks.stages import Messages, Stages
from steptime.ranks.waits import Waits
from steptime.taxonomy import LEAF_CODE
from steptime.trace.events import I64

Mask = NDArray[np.bool_]
F64 = NDArray[np.float64]

WARMUP, STEADY, DRAIN, IMBALANCE, UNSPLIT = (
    LEAF_CODE[f"pipeline_bubble/{name}"] for name in ("warmup", "steady", "drain", "stage_imbalance", "unsplit")
)

#: A rank counts as slower than the same stage of other pipelines beyond this share of its stage's time: kernels vary by
#: 2 to 5 %, the median of a step's hundreds by far less.
SLOWER = 0.01


class Staged(msgspec.Struct, frozen=True):
    """A pipeline with its recorded order; why: why no order was found. numbers: capture and number of the s steps.

    between bool [w]: which of the job's waits are between its stages; within bool [w]: which surely are not.
    budget_ns int64 [r, s, 3]: by row and step the schedule's own share, imbalance, and what a slower rank adds, at
    most; slow int64 [r, s]: that rank's row, `NOBODY`; delay_ns int64 [r, s]: how much longer it makes the phase.
    column int64 [r, longest + 1]: see `column_of`. On the common clock, int64 [r, s]: begin_ns, end_ns of the phase of
    the row's pipeline, first_ns, last_ns of the row's own passes.
    """

    stages: Stages
    flow: Flow | None
    order: Order | None
    usual: Usual | None
    why: str | None
    numbers: list[tuple[int, int]]
    between: Mask
    within: Mask
    budget_ns: I64
    slow: I64
    delay_ns: I64
    column: I64
    begin_ns: I64
    first_ns: I64
    last_ns: I64
    end_ns: I64


def find_pipeline(rows: Sequence[Row], alignment: Alignment, messages: Messages, waits: Waits) -> Staged | None:
    """The job's pipeline; None if it has none."""
    stages, lanes = messages.stages, messages.lanes
    if stages is None:
        return None
    numbers, at = job_steps(rows, alignment)
    flow = flow_of(alignment, stages, lanes)
    order: Order | str = "messages skip stages" if flow is None else order_of(flow, stages)
    if _lacks_stages(rows):
        order = "files of stages are missing"
    if isinstance(order, str) and not stages.named and not _lacks_stages(rows):
        # Neither the name nor what the ranks do says that it is one.
        return None
    shape = (len(rows), len(numbers))
    known = order if isinstance(order, Order) else None
    budget, slow = np.zeros((*shape, 3), np.int64), np.full(shape, NOBODY, np.int64)
    delay = np.zeros(shape, np.int64)
    usual = Usual.of(flow, known) if known is not None and flow is not None else None
    if known is not None and flow is not None and usual is not None:
        _budget(flow, known, usual, budget, (slow, delay))
    return Staged(
        stages=stages,
        flow=flow,
        order=known,
        usual=usual,
        why=None if known is not None else str(order),
        numbers=numbers,
        between=_between(alignment, stages, waits),
        within=_within(alignment, stages, waits),
        budget_ns=budget,
        slow=slow,
        delay_ns=delay,
        column=column_of(rows, at),
        **_bounds(flow, stages, shape),
    )


def _lacks_stages(rows: Sequence[Row]) -> bool:
    """Whether messages go to ranks, or come from ranks, whose files are not here."""
    ranks = [row.rank for row in rows]
    for row in rows:
        instances = row.timeline.instances
        if instances is not None and instances.messages.any():
            group = np.concatenate([instances.group, instances.shared_group]).astype(np.int64)
            peers = global_peers(row, group, np.concatenate([instances.peer, instances.shared_peer]))
            if not np.isin(peers[peers >= 0], ranks).all():
                return True
    return False


def _between(alignment: Alignment, stages: Stages, waits: Waits) -> Mask:
    """Waits for another stage: in a message of the pipeline, or in a collective that spans stages."""
    mine = np.zeros(alignment.collectives.matches.count, np.bool_)
    mine[stages.mail.match] = True
    own, late = stages.stage[waits.row], stages.stage[waits.late]
    pair = alignment.collectives.matches.pair[waits.match]
    crosses = (own >= 0) & (late >= 0) & (own != late) & waits.sure & ~waits.skew
    result: Mask = np.where(pair, mine[waits.match], crosses)
    return result


def _within(alignment: Alignment, stages: Stages, waits: Waits) -> Mask:
    """Waits for a rank of the same stage, or in a message that is none of the pipeline's."""
    mine = np.zeros(alignment.collectives.matches.count, np.bool_)
    mine[stages.mail.match] = True
    own, late = stages.stage[waits.row], stages.stage[waits.late]
    pair = alignment.collectives.matches.pair[waits.match]
    result: Mask = np.where(pair, ~mine[waits.match], (own >= 0) & (own == late))
    return result


def _bounds(flow: Flow | None, stages: Stages, shape: tuple[int, int]) -> dict[str, I64]:
    """On the common clock, int64 [r, s]: start and end of the phase, of each row's own passes; far apart if unknown."""
    far = np.iinfo(np.int64).max
    first, last = np.full(shape, far), np.full(shape, -far)
    if flow is not None:
        inside = np.flatnonzero(flow.column >= 0)
        np.minimum.at(first, (flow.row[inside], flow.column[inside]), flow.start_ns[inside])
        np.maximum.at(last, (flow.row[inside], flow.column[inside]), flow.end_ns[inside])
    begin, end = first.copy(), last.copy()
    for pipeline in range(int(stages.pipeline.max()) + 1):
        members = np.flatnonzero(stages.pipeline == pipeline)
        begin[members], end[members] = first[members].min(axis=0), last[members].max(axis=0)
    return {"begin_ns": begin, "first_ns": first, "last_ns": last, "end_ns": end}


class Usual(msgspec.Struct, frozen=True):
    """Usual lengths of the k kinds of passes of an order: key int64 [n] of each pass.

    stage_ns float64 [k]: of the stage; rank_ns float64 [pipelines, k]: of each pipeline's own rank.
    """

    key: I64
    stage_ns: F64
    rank_ns: F64

    @staticmethod
    def of(flow: Flow, order: Order) -> Usual:
        """Medians over micro-batches and steps; of a stage the lower median over pipelines, who is slow isn't usual."""
        # Weight gradients without a message between them are one pass: each has a length of its own.
        code = np.where(order.kind == WEIGHT, np.arange(len(order.kind)), order.piece)
        _, key = np.unique(np.stack([order.kind, code]), axis=1, return_inverse=True)
        key = key.ravel().astype(np.int64)
        own = flow.own_ns[order.index].astype(np.float64)
        pipelines = np.unique(order.pipeline)
        medians = np.zeros((len(pipelines), int(key.max()) + 1))
        for at, pipeline in enumerate(pipelines.tolist()):
            mine = own[order.pipeline == pipeline]
            for one in range(medians.shape[1]):
                medians[at, one] = np.median(mine[:, key == one])
        return Usual(key, np.quantile(medians, 0.5, axis=0, method="lower"), medians)

    def even_ns(self, order: Order) -> F64:
        """Length of each pass if all stages were equal, float64 [n].

        Where weight gradients have passes of their own, which hold now one, now several, each stage's backward work is
        scaled to the mean instead.
        """
        staged = self.stage_ns[self.key]
        even = staged.copy()
        forward = order.kind == FORWARD
        even[forward] = staged[forward].mean()
        if not (order.kind == WEIGHT).any():
            even[~forward] = staged[~forward].mean()
            return even
        totals = np.array([staged[~forward & (order.stage == stage)].sum() for stage in range(order.stages)])
        even[~forward] *= (totals.mean() / totals)[order.stage[~forward]]
        return even


def _budget(flow: Flow, order: Order, usual: Usual, budget: I64, late: tuple[I64, I64]) -> None:
    """Fill in how much of each row's waits each cause explains at most, and who is slow by how much."""
    slow, delay = late
    key = usual.key
    staged = usual.stage_ns[key]
    even = usual.even_ns(order)
    pipelines = np.unique(order.pipeline)
    excess = np.zeros((len(pipelines), order.stages))
    for stage in range(order.stages):
        mine = order.stage == stage
        more = (usual.rank_ns[:, key] - staged)[:, mine].sum(axis=1)
        excess[:, stage] = np.where(more > SLOWER * staged[mine].sum(), more, 0.0)
    slower = np.where(excess[:, order.stage] > 0, usual.rank_ns[:, key], staged)
    own = np.concatenate([np.stack([even, staged]), slower])
    idle, phase = np.rint(idle_ns(order, own)).astype(np.int64), phase_ns(order, own)
    rows = flow.row[order.index]
    for pipeline, column, one in zip(order.pipeline.tolist(), order.column.tolist(), rows, strict=True):
        at = int(np.searchsorted(pipelines, pipeline))
        lanes = np.unique(np.stack([order.stage, one]), axis=1)[1]
        budget[lanes, column, 0] = idle[0]
        budget[lanes, column, 1] = np.maximum(idle[1] - idle[0], 0)
        budget[lanes, column, 2] = np.maximum(idle[2 + at] - idle[1], 0)
        if excess[at].any():
            slow[lanes, column] = lanes[excess[at].argmax()]
            delay[lanes, column] = round(phase[2 + at] - phase[1])


def through_pipeline(staged: Staged, waits: Waits) -> Waits:
    """The waits, with the slow rank of a pipeline in the place of those of its ranks that it delayed."""
    column = staged.column[waits.row, waits.step]
    known = (column >= 0) & (waits.origin != NOBODY) & ~staged.between
    slow = np.where(known, staged.slow[waits.origin, column], NOBODY)
    delay = np.where(known, staged.delay_ns[waits.origin, column], 0)
    kept = (slow != NOBODY) & (delay >= KEPT_SHARE * waits.ns)
    return msgspec.structs.replace(waits, origin=np.where(kept, slow, waits.origin))


def split_bubble(staged: Staged, alignment: Alignment, waits: Waits) -> Moved:
    """Every wait between stages with the leaf that it belongs to; parts of one wait may go to several.

    What no replay explains is a wait for a rank in a collective, also in a message whose sender was itself kept by one;
    else it is `unsplit`.
    """
    waits, position = _positioned(staged, alignment, waits.take(staged.between))
    column = staged.column[waits.row, waits.step]
    key = waits.row * staged.budget_ns.shape[1] + column
    order = np.argsort(key, kind="stable")
    waits, position, column, key = waits.take(order), position[order], column[order], key[order]
    pair = alignment.collectives.matches.pair[waits.match]
    stage = staged.stages.stage[waits.late]
    targets = (
        (position, stage),
        (np.full_like(position, IMBALANCE), stage),
        (np.full_like(position, WAIT), staged.slow[waits.row, column]),
    )
    rest, start = waits.ns, waits.start_ns
    parts: list[Moved] = []
    for at, (leaf, whom) in enumerate(targets):
        most = np.where(column >= 0, staged.budget_ns[waits.row, column, at], 0)
        ns = _shared(rest, key, most)
        parts.append(Moved(waits.row, waits.match, waits.step, waits.leaf, start, ns, leaf, whom))
        rest, start = rest - ns, start + ns
    own = pair & ((waits.origin == waits.late) | (waits.origin == NOBODY))
    last = np.where(own, UNSPLIT, WAIT)
    whom = np.where(own, stage, np.where(waits.circle, waits.late, waits.origin))
    parts.append(Moved(waits.row, waits.match, waits.step, waits.leaf, start, rest, last, whom))
    moved = Moved(*(np.concatenate([getattr(part, name) for part in parts]) for name in Moved.__struct_fields__))
    return moved.take(np.flatnonzero((moved.ns > 0) & (moved.whom != NOBODY)))


def slow_messages(staged: Staged, alignment: Alignment, split: Moved) -> Moved:
    """Waits in messages that a slow rank of the pipeline explains."""
    slow = staged.slow[split.row, staged.column[split.row, split.step]]
    return split.take((split.to == WAIT) & alignment.collectives.matches.pair[split.match] & (split.whom == slow))


def _shared(ns: I64, key: I64, most: I64) -> I64:
    """Shares of the pieces in proportion to their length that sum to `most` in each run of equal keys, or to all.

    Args:
        ns: lengths, int64 [w].
        key, most: of each piece, equal keys have equal `most`; int64 [w].
    """
    if not len(ns):
        return ns
    head = np.flatnonzero(np.append(True, np.diff(key) != 0))
    of = np.cumsum(np.append(True, np.diff(key) != 0)) - 1
    total = np.add.reduceat(ns, head)
    amount = np.minimum(total, most[head])[of].astype(object)
    upto = np.cumsum(ns)
    upto = upto - (upto[head] - ns[head])[of]
    # Products of two lengths do not fit into 64 bits.
    whole = np.maximum(total, 1)[of].astype(object)
    shares = amount * upto.astype(object) // whole - amount * (upto - ns).astype(object) // whole
    result: I64 = shares.astype(np.int64)
    return result


def _positioned(staged: Staged, alignment: Alignment, waits: Waits) -> tuple[Waits, I64]:
    """The waits with their position in the schedule (leaf code); one across the start of a phase is cut there."""
    column = staged.column[waits.row, waits.step]
    known = column >= 0
    begin = np.where(known, staged.begin_ns[waits.row, column], 0)
    start = alignment.clocks.common(waits.row, waits.start_ns)
    across = known & (start < begin) & (begin < start + waits.ns)
    head = np.where(across, begin - start, waits.ns)
    second = waits.take(across)
    second = msgspec.structs.replace(
        second, start_ns=second.start_ns + head[across], ns=second.ns - head[across], alone_ns=second.alone_ns * 0
    )
    names = [name for name in Waits.__struct_fields__ if name not in ("origin_of", "judged")]
    first = msgspec.structs.replace(waits, ns=head)
    both = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in names}
    order = np.lexsort((both["start_ns"], both["row"]))
    waits = msgspec.structs.replace(waits, **{name: values[order] for name, values in both.items()})
    column = staged.column[waits.row, waits.step]
    start = alignment.clocks.common(waits.row, waits.start_ns)
    begin = staged.begin_ns[waits.row, column]
    first_ns, last_ns = staged.first_ns[waits.row, column], staged.last_ns[waits.row, column]
    position = np.where(start >= last_ns, DRAIN, np.where(start >= first_ns, STEADY, WARMUP))
    position = np.where(start < np.minimum(begin, first_ns), DRAIN, position)
    return waits, position.astype(np.int64)
