"""What waits for what in one step of an op-level job, as a graph for the replay.

A node is the end of an op, in the chain of its stream; of a group there is one more, the start of its last member. The
rules are those of the OSDI'25 artifact and have no launch delays: an op starts when the last op that it waits for ends.
"""

from __future__ import annotations

import numpy as np

from steptime.trace.events import I64
from steptime.whatif.graph import Graph
from steptime.whatif.oplevel.job import Job
from steptime.whatif.oplevel.ops import KINDS, Group, Op
from steptime.whatif.oplevel.work import ALONE

#: Both directions: the compute, the send of its result, the receive of its input.
_DIRECTIONS = (
    (Op.FORWARD, Op.FORWARD_SEND, Op.FORWARD_RECV),
    (Op.BACKWARD, Op.BACKWARD_SEND, Op.BACKWARD_RECV),
)


def step_graph(job: Job, group: I64) -> Graph:
    """The graph of one step: nodes 0 to d*k - 1 are the ends of its ops, the rest the meetings of `group` (d*k).

    All times in it are 0: what ops take are the weights of a replay.
    """
    ops = len(group)
    dp_size, slots = job.layout.dp_size, job.slots
    before, after = _within_worker(job)
    offset = np.arange(dp_size)[:, None] * slots
    source, waiting = (offset + before).ravel(), (offset + after).ravel()
    # What a member waits for, its whole group waits for.
    target = np.where(group[waiting] == ALONE, waiting, ops + group[waiting])
    members = np.flatnonzero(group != ALONE)
    source, target = np.r_[source, ops + group[members]], np.r_[target, members]
    begins = np.diff(job.stage * len(Op) + job.stream, prepend=-1) != 0
    meetings = int(group.max()) + 1
    first = np.r_[np.flatnonzero(np.tile(begins, dp_size)), ops + np.arange(meetings + 1)]
    nodes = ops + meetings
    return Graph(
        first=first,
        origin_ns=np.zeros(len(first) - 1, np.int64),
        lag_ns=np.zeros(nodes, np.int64),
        work_ns=np.zeros(nodes, np.int64),
        source=source,
        target=target,
        edge_lag_ns=np.zeros(len(source), np.int64),
        follows=np.zeros(len(source), np.bool_),
    )


def _within_worker(job: Job) -> tuple[I64, I64]:
    """Slots that wait for slots of the same worker: (before, after), int64 [e] each."""
    pairs = [_streams(job)]
    for stage in range(job.layout.pp_size):
        for compute, send, receive in _DIRECTIONS:
            computes, sends, receives = (_of(job, stage, op) for op in (compute, send, receive))
            if len(sends):
                pairs.append((computes, sends))
            if len(receives):
                # No receive is posted more than one ahead.
                pairs += [(receives, computes), (computes[:-1], receives[1:])]
        pairs += [_first_backward(job, stage), _ends(job, stage)]
    return (
        np.concatenate([before for before, _ in pairs]),
        np.concatenate([after for _, after in pairs]),
    )


def _streams(job: Job) -> tuple[I64, I64]:
    """A group waits for what is before each of its members in the member's stream; for ops alone the chain says so."""
    same = np.diff(job.stage * len(Op) + job.stream) == 0
    grouped = np.array([KINDS[op].group is not Group.ALONE for op in Op])[job.op[1:]]
    before = np.flatnonzero(same & grouped)
    return before, before + 1


def _of(job: Job, stage: int, *ops: Op) -> I64:
    """The slots of these types of a stage, by seq."""
    found = np.flatnonzero((job.stage == stage) & np.isin(job.op, ops))
    return found[np.argsort(job.seq[found], kind="stable")]


def _first_backward(job: Job, stage: int) -> tuple[I64, I64]:
    """The first backward messages wait for the compute two places before the first backward."""
    computes = np.flatnonzero((job.stage == stage) & np.isin(job.op, (Op.FORWARD, Op.BACKWARD)))
    at = int(np.argmax(job.op[computes] == Op.BACKWARD))
    messages = _of(job, stage, Op.BACKWARD_SEND, Op.BACKWARD_RECV)
    messages = messages[job.seq[messages] == 0]
    if at < 2:
        messages = messages[:0]
    return np.full(len(messages), computes[at - 2]), messages


def _ends(job: Job, stage: int) -> tuple[I64, I64]:
    """How a step begins and ends: the first forward waits for the parameters, the tail for the last compute.

    First and last are by the times of dp rank 0 in the first step, the reference.
    """
    start_ns, end_ns = job.start_ns[: job.slots, 0], job.end_ns[: job.slots, 0]
    forwards, computes = _of(job, stage, Op.FORWARD), _of(job, stage, Op.FORWARD, Op.BACKWARD)
    gather, scatter, gc = (_of(job, stage, op) for op in (Op.GATHER, Op.REDUCE_SCATTER, Op.GC))
    first = forwards[[np.argmin(start_ns[forwards])]]
    last = computes[[np.argmax(end_ns[computes])]]
    return np.r_[gather, last, gather], np.r_[first, gc, scatter]
