"""Replaying the recorded order of a pipeline with other durations, and the schedule that this order is.

The replay keeps who waits for whom and has no transfer: a pass begins when its row's previous one and the one whose
result it needs have ended.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.flow import NONE, Flow
from steptime.ranks.stages import Stages
from steptime.trace.events import I64

Mask = NDArray[np.bool_]
F64 = NDArray[np.float64]

FORWARD, BACKWARD, WEIGHT = 0, 1, 2


class Order(msgspec.Struct, frozen=True):
    """One step of one pipeline: n passes by stage, then launch, and i recorded steps that have just this order.

    stage, needs, kind, piece, micro_batch int64 [n]: needs is the index of the pass whose result is needed, `NONE` if
    none; piece: which part of the model, in the order of the forward pass (of weight gradients `NONE`, as their
    micro_batch). index int64 [i, n]: into the flow; pipeline, column int64 [i]. turns: a valid order to go through.
    pieces, micro_batches: how many.
    """

    stages: int
    stage: I64
    needs: I64
    kind: I64
    piece: I64
    micro_batch: I64
    index: I64
    pipeline: I64
    column: I64
    turns: list[int]
    pieces: int
    micro_batches: int

    @property
    def schedule(self) -> str | None:
        """Which known schedule it is, None if none."""
        if self.pieces > self.stages:
            return "interleaved"
        if (self.kind == WEIGHT).any():
            return "zero-bubble"
        ahead = [self._forwards_before_backward(stage) for stage in range(self.stages)]
        if ahead == [self.micro_batches] * self.stages:
            return "gpipe"
        expected = [min(self.stages - stage, self.micro_batches) for stage in range(self.stages)]
        return "1f1b" if ahead == expected else None

    def _forwards_before_backward(self, stage: int) -> int:
        kinds = self.kind[self.stage == stage]
        backward = np.flatnonzero(kinds != FORWARD)
        return int(backward[0]) if len(backward) else len(kinds)


def order_of(flow: Flow, stages: Stages) -> Order | str:
    """The order that most recorded steps have, or why there is none."""
    stage, pipeline = stages.stage[flow.row], stages.pipeline[flow.row]
    inside = np.flatnonzero(flow.column >= 0)
    order = inside[np.lexsort((inside, stage[inside], pipeline[inside], flow.column[inside]))]
    key = np.stack([flow.column[order], pipeline[order]])
    head = np.flatnonzero(np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0))) if len(order) else order
    counts = np.diff(np.append(head, len(order)))
    if not len(counts):
        return "no step holds passes"
    sizes, times = np.unique(counts, return_counts=True)
    size = int(sizes[times.argmax()])
    chosen = head[counts == size]
    index = order[chosen[:, None] + np.arange(size)]
    place = np.full(len(flow.row) + 1, -2, np.int64)
    needs = np.full(index.shape, NONE, np.int64)
    for at, one in enumerate(index):
        place[one] = np.arange(size)
        known = flow.needs[one]
        needs[at] = np.where(known >= 0, place[known], NONE)
        place[one] = -2
    signs = np.concatenate([needs, stage[index], flow.backward[index], flow.gives[index]], axis=1)
    _, which, often = np.unique(signs, axis=0, return_inverse=True, return_counts=True)
    mine = which.ravel() == often.argmax()
    index, needs = index[mine], needs[mine][0]
    return _labelled(flow, stages, index, needs)


def _labelled(flow: Flow, stages: Stages, index: I64, needs: I64) -> Order | str:
    one = index[0]
    stage, backward, gives = stages.stage[flow.row[one]], flow.backward[one], flow.gives[one]
    if (needs < NONE).any():
        return "messages cross the ends of steps"
    turns = _turns(stage, needs)
    if len(turns) < len(needs):
        return "passes wait for each other in a circle"
    kind = np.where(backward, np.where((needs == NONE) & ~gives, WEIGHT, BACKWARD), FORWARD).astype(np.int64)
    piece, micro_batch = _pieces(kind, needs, turns)
    pieces, begun = int(piece.max()) + 1, int(micro_batch.max()) + 1
    for wanted in (FORWARD, BACKWARD):
        mine = kind == wanted
        per_piece = np.bincount(np.maximum(piece[mine], 0), minlength=pieces)
        if (piece[mine] < 0).any() or len(per_piece) > pieces or (per_piece != begun).any():
            return "passes and messages do not add up to whole micro-batches"
        if (stage[mine] != piece[mine] % stages.count).any():
            return "micro-batches skip stages"
    return Order(
        stages=stages.count,
        stage=stage,
        needs=needs,
        kind=kind,
        piece=piece,
        micro_batch=micro_batch,
        index=index,
        pipeline=stages.pipeline[flow.row[index[:, 0]]],
        column=flow.column[index[:, 0]],
        turns=turns,
        pieces=pieces,
        micro_batches=begun,
    )


def _pieces(kind: I64, needs: I64, turns: list[int]) -> tuple[I64, I64]:
    """Piece of the model and micro-batch of each pass, int64 [n] each: those who need nothing begin new ones."""
    piece, micro_batch = np.full(len(needs), NONE, np.int64), np.full(len(needs), NONE, np.int64)
    begun = 0
    for at in (at for at in turns if kind[at] == FORWARD):
        if needs[at] == NONE:
            piece[at], micro_batch[at] = 0, begun
            begun += 1
        else:
            piece[at], micro_batch[at] = piece[needs[at]] + 1, micro_batch[needs[at]]
    last = int(piece.max())
    # The last piece goes back in the order in which it was reached.
    returned = iter(micro_batch[(kind == FORWARD) & (piece == last)].tolist())
    for at in (at for at in turns if kind[at] == BACKWARD):
        if needs[at] == NONE:
            piece[at], micro_batch[at] = last, next(returned, NONE)
        else:
            piece[at], micro_batch[at] = piece[needs[at]] - 1, micro_batch[needs[at]]
    return piece, micro_batch


def _turns(stage: I64, needs: I64) -> list[int]:
    """Passes so that each comes after what it needs and after the one before it on its stage; fewer: a circle."""
    count = len(needs)
    last = np.append(stage[1:] != stage[:-1], True)
    waiting = [int(need >= 0) + int(at > 0 and stage[at - 1] == stage[at]) for at, need in enumerate(needs.tolist())]
    users: list[list[int]] = [[] for _ in range(count)]
    for at, need in enumerate(needs.tolist()):
        if need >= 0:
            users[need].append(at)
    for at in range(count - 1):
        if not last[at]:
            users[at].append(at + 1)
    ready = [at for at in range(count) if not waiting[at]]
    turns: list[int] = []
    while ready:
        at = ready.pop()
        turns.append(at)
        for user in users[at]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return turns


def idle_ns(order: Order, own_ns: F64) -> F64:
    """How long each stage is idle between the first start and the last end.

    Args:
        order: the order to keep.
        own_ns: of each pass, float64 [k, n] for k replays.

    Returns:
        float64 [k, stages].
    """
    busy = np.stack([own_ns[:, order.stage == stage].sum(axis=1) for stage in range(order.stages)], axis=1)
    result: F64 = phase_ns(order, own_ns)[:, None] - busy
    return result


def phase_ns(order: Order, own_ns: F64) -> F64:
    """From the first start to the last end, float64 [k]; arguments as in `idle_ns`."""
    end = np.zeros_like(own_ns)
    for at in order.turns:
        begin = np.zeros(len(own_ns))
        if at > 0 and order.stage[at - 1] == order.stage[at]:
            begin = end[:, at - 1]
        if order.needs[at] >= 0:
            begin = np.maximum(begin, end[:, order.needs[at]])
        end[:, at] = begin + own_ns[:, at]
    result: F64 = end.max(axis=1)
    return result


def closed_form_share(order: Order) -> float | None:
    """Bubble as a share of the phase with equal stages, ``(p-1) / (v*m + p-1)`` (arXiv:2104.04473, section 2.2).

    None for schedules that fill it (zero-bubble), and for those that are none of the known ones.
    """
    if order.schedule in (None, "zero-bubble"):
        return None
    chunks = order.pieces // order.stages
    return (order.stages - 1) / (chunks * order.micro_batches + order.stages - 1)
