"""The ops of every step in one order: step for step and dp rank for dp rank, the same slots.

A slot is (op type, seq, stage). Slots stand in the order of the streams that they run on, and that order is the one of
dp rank 0 in the first step, for all steps and dp ranks.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.errors import TraceError
from steptime.trace.events import I64
from steptime.whatif.oplevel.ops import KINDS, Op, has_op, once_a_micro_batch
from steptime.whatif.oplevel.read import Layout, Recording

#: The stream of each op type, within a worker. Both computes share one; the last is the chain that ends the step.
_STREAM = {
    Op.FORWARD: 0,
    Op.BACKWARD: 0,
    Op.FORWARD_SEND: 1,
    Op.FORWARD_RECV: 2,
    Op.BACKWARD_SEND: 3,
    Op.BACKWARD_RECV: 4,
    Op.GATHER: 5,
    Op.GC: 6,
    Op.LAYERNORM: 6,
    Op.EMBEDDING: 6,
    Op.REDUCE_SCATTER: 6,
    Op.CLIP: 6,
    Op.OPTIMIZER: 6,
}
#: The order of the chain that ends a step.
_TAIL = (Op.GC, Op.LAYERNORM, Op.EMBEDDING, Op.REDUCE_SCATTER, Op.CLIP, Op.OPTIMIZER)
#: With more rows missing than are there, the numbers in the file are not what they are taken for.
_MOST_MISSING = 2


class Job(msgspec.Struct, frozen=True):
    """s steps of d dp ranks, each with the same k slots; op i of a step is slot ``i % k`` of dp rank ``i // k``.

    step int64 [s]: the step numbers, ascending. op int8, stage, seq, stream int64 [k]: the slots; those of one stage
    and stream stand together, in the stream's order. start_ns, end_ns, dur_ns int64 [d*k, s]. reordered: how many of
    the s*d*stages worker-steps run their computes in another order than the reference does.
    """

    layout: Layout
    step: I64
    op: NDArray[np.int8]
    stage: I64
    seq: I64
    stream: I64
    start_ns: I64
    end_ns: I64
    dur_ns: I64
    reordered: int

    @property
    def slots(self) -> int:
        """k, the ops of one dp rank in a step."""
        return len(self.op)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches each worker runs in a step."""
        return int(self.seq[self.op == Op.FORWARD].max()) + 1

    @property
    def dp_rank(self) -> I64:
        """The dp rank of each op, int64 [d*k]."""
        return np.repeat(np.arange(self.layout.dp_size), self.slots)


def arrange(recording: Recording) -> Job:
    """Put the rows in order.

    Raises:
        TraceError: a step lacks an op, or has one twice.
    """
    layout = recording.layout
    step, step_at = np.unique(recording.step, return_inverse=True)
    slots = _expected(recording, len(step))
    stage, op, seq = slots.T
    rows = _rows(recording, slots, step_at, len(step))
    # [s, d, k], to begin with in the order of (stage, op, seq)
    start_ns = recording.start_ns[rows]
    order, stream = _in_streams(slots, start_ns[0, 0])
    rows = rows[:, :, order]

    def times(column: I64) -> I64:
        return np.ascontiguousarray(column[rows].reshape(len(step), layout.dp_size * len(op)).T)

    return Job(
        layout=layout,
        step=step,
        op=op[order].astype(np.int8),
        stage=stage[order],
        seq=seq[order],
        stream=stream[order],
        start_ns=times(recording.start_ns),
        end_ns=times(recording.end_ns),
        dur_ns=times(recording.dur_ns),
        reordered=_reordered(start_ns[:, :, order], stage[order], stream[order]),
    )


def _expected(recording: Recording, steps: int) -> I64:
    """The slots that each dp rank must have in each step: stage, op, seq as int64 [k, 3], ascending."""
    layout = recording.layout
    computes = recording.seq[recording.op == Op.FORWARD]
    micro_batches = int(computes.max()) + 1 if len(computes) else 0
    if not micro_batches:
        raise TraceError(f"{recording.path}: holds no {KINDS[Op.FORWARD].name}: this is no recording of training steps")
    if micro_batches * layout.workers * steps > _MOST_MISSING * len(recording.op):
        raise TraceError(
            f"{recording.path}: seq_id of {KINDS[Op.FORWARD].name} goes up to {micro_batches - 1:,} in only "
            f"{len(recording.op):,} rows: it must count the ops of one type, worker and step from 0"
        )
    parts = [
        np.column_stack(
            [np.full(count, stage), np.full(count, int(op)), np.arange(count)],
        )
        for stage in range(layout.pp_size)
        for op in Op
        if has_op(op, stage, layout.pp_size)
        for count in [micro_batches if once_a_micro_batch(op) else 1]
    ]
    return np.concatenate(parts).astype(np.int64)


def _rows(recording: Recording, slots: I64, step_at: I64, steps: int) -> I64:
    """Which row is which slot of which dp rank in which step, int64 [s, d, k]."""
    dp_size, pp_size = recording.layout.dp_size, recording.layout.pp_size
    seqs = max(int(recording.seq.max()), int(slots[:, 2].max())) + 1
    if steps * dp_size * pp_size * len(Op) > np.iinfo(np.int64).max // seqs:
        raise TraceError(f"{recording.path}: seq_id goes up to {seqs - 1:,}; it must count the ops of a step from 0")
    slot_keys = (slots[:, 0] * len(Op) + slots[:, 1]) * seqs + slots[:, 2]
    wanted = (np.arange(steps * dp_size)[:, None] * (pp_size * len(Op) * seqs) + slot_keys).ravel()
    worker = (step_at * dp_size + recording.dp_rank) * pp_size + recording.stage
    keys = (worker * len(Op) + recording.op) * seqs + recording.seq
    order = np.argsort(keys, kind="stable")
    if not np.array_equal(keys[order], wanted):
        _refuse(recording, slots, keys, wanted)
    return order.reshape(steps, dp_size, len(slots))


def _refuse(recording: Recording, slots: I64, keys: I64, wanted: I64) -> None:
    """Say which op is missing, twice there, or too many."""
    missing = np.flatnonzero(~np.isin(wanted, keys))
    if len(missing):
        worker_step, slot = divmod(int(missing[0]), len(slots))
        step, dp_rank = divmod(worker_step, recording.layout.dp_size)
        stage, op, seq = slots[slot].tolist()
        what, number = "is missing", int(np.unique(recording.step)[step])
        many = f"{len(missing):,} ops are missing in all" if len(missing) > 1 else "it is the only one"
    else:
        order = np.argsort(keys, kind="stable")
        twice = order[1:][np.diff(keys[order]) == 0]
        row = int(twice[0]) if len(twice) else int(np.argmax(~np.isin(keys, wanted)))
        what = "is there twice" if len(twice) else "is one more than its step has"
        op, seq, number = int(recording.op[row]), int(recording.seq[row]), int(recording.step[row])
        dp_rank, stage = int(recording.dp_rank[row]), int(recording.stage[row])
        extra = len(keys) - len(wanted)
        many = f"{extra:,} ops are too many in all" if extra > 1 else "it is the only one"
    raise TraceError(
        f"{recording.path}: {KINDS[Op(op)].name} {seq} of dp rank {dp_rank}, stage {stage} {what} in step {number} "
        f"({many}): leave out steps that were not recorded whole"
    )


def _in_streams(slots: I64, start_ns: I64) -> tuple[I64, I64]:
    """The order of the slots by stage, stream and place in the stream, and the stream of each slot; int64 [k] each.

    start_ns int64 [k]: of dp rank 0 in the first step.
    """
    stage, op, seq = slots.T
    stream = np.array([_STREAM[kind] for kind in Op])[op]
    tail = np.array([_TAIL.index(kind) if kind in _TAIL else 0 for kind in Op])[op]
    place = np.where(stream == _STREAM[Op.FORWARD], start_ns, tail)
    return np.lexsort((seq, place, stream, stage)), stream


def _reordered(start_ns: I64, stage: I64, stream: I64) -> int:
    """In how many worker-steps the computes do not start in the order of their slots; start_ns int64 [s, d, k]."""
    compute = np.flatnonzero(stream == _STREAM[Op.FORWARD])
    same_worker = np.diff(stage[compute]) == 0
    back = (np.diff(start_ns[:, :, compute], axis=2) < 0) & same_worker
    first = np.flatnonzero(np.r_[True, ~same_worker])
    # reduceat needs as many columns as computes: the last one starts nothing.
    padded = np.concatenate([back, np.zeros((*back.shape[:2], 1), np.bool_)], axis=2)
    return int(np.logical_or.reduceat(padded, first, axis=2).sum())
