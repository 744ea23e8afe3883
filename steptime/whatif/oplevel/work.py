"""What each op takes by itself: its duration, or its transfer from the start of the last member of its group on.

And the ideal of each type: one value for the whole job, the mean for ops that compute, the median for transfers.
"""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.trace.events import I64
from steptime.whatif.oplevel.job import Job
from steptime.whatif.oplevel.ops import KINDS, Group, Op

#: The group of an op that waits for nobody.
ALONE = -1

#: A transfer that ends before its last member started by this or more is an error of the clocks, and none at all.
_IMPOSSIBLE_NS = -10_000_000

#: A forward message of stage p and a backward message of stage p + 1 cross the same border, that after stage p.
_BORDER = {Op.FORWARD_SEND: 0, Op.FORWARD_RECV: -1, Op.BACKWARD_SEND: -1, Op.BACKWARD_RECV: 0}


class Work(msgspec.Struct, frozen=True):
    """group int64 [d*k], from 0 on or `ALONE`. traced_ns int64 [d*k, s]; ideal_ns int64 [13], by op type."""

    group: I64
    traced_ns: I64
    ideal_ns: I64


def find_work(job: Job) -> Work:
    """The groups of the ops of a step, and what the ops take."""
    group = _groups(job)
    traced_ns = np.where(group[:, None] == ALONE, job.dur_ns, _transfers(job, group))
    return Work(group, traced_ns, _ideals(job, traced_ns))


def _groups(job: Job) -> I64:
    """Ops with one number wait for each other, int64 [d*k]."""
    op = np.tile(job.op, job.layout.dp_size)
    stage, seq = (np.tile(column, job.layout.dp_size) for column in (job.stage, job.seq))
    scope = np.array([list(Group).index(KINDS[kind].group) for kind in Op])[op]
    border: I64 = stage + np.array([_BORDER.get(kind, 0) for kind in Op])[op]
    # Both ends of a message have one name; every other type is a group of its own.
    name = np.array([{Op.FORWARD_RECV: Op.FORWARD_SEND, Op.BACKWARD_RECV: Op.BACKWARD_SEND}.get(k, k) for k in Op])[op]
    dp_rank = job.dp_rank
    place = _choose(scope, {Group.PAIR: border, Group.STAGE: stage})
    replica = _choose(scope, {Group.PAIR: dp_rank, Group.ENDS: dp_rank})
    _, number = np.unique(np.column_stack([name, place, replica, seq]), axis=0, return_inverse=True)
    waits = scope != list(Group).index(Group.ALONE)
    group = np.full(len(op), ALONE, np.int64)
    group[waits] = np.unique(number.ravel()[waits], return_inverse=True)[1]
    return group


def _choose(scope: I64, values: dict[Group, I64]) -> I64:
    """What tells groups of these kinds apart; 0 for all other kinds."""
    return np.select([scope == list(Group).index(group) for group in values], list(values.values()), 0)


def _transfers(job: Job, group: I64) -> I64:
    """From the latest start of each op's group to its own end, int64 [d*k, s]; without meaning for ops alone."""
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=ALONE - 1))
    latest_ns = np.maximum.reduceat(job.start_ns[order], first, axis=0)
    # The first block are the ops alone, if there are any.
    transfer_ns = job.end_ns - latest_ns[np.searchsorted(group[order][first], group)]
    return np.where(transfer_ns <= _IMPOSSIBLE_NS, 0, transfer_ns)


def _ideals(job: Job, traced_ns: I64) -> I64:
    op = np.tile(job.op, job.layout.dp_size)
    ideal_ns = np.zeros(len(Op), np.int64)
    for kind in Op:
        pooled = traced_ns[op == kind]
        if pooled.size:
            ideal_ns[kind] = round(float(np.mean(pooled) if KINDS[kind].ideal == "mean" else np.median(pooled)))
    return ideal_ns
