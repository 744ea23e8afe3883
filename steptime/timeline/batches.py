"""Messages of batched sends and receives, whose kernels carry no metadata.

`batch_isend_irecv` registers each send and receive under a `record_param_comms` of its own, and launches their common
kernel after the last of them (pytorch/pytorch#194693): the kernel belongs to all that were registered on its thread
since the kernel before it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.links import Activities
from steptime.timeline.work import Work
from steptime.trace.events import I64, EventTable

_P2P = LEAF_CODE["exposed_comm/p2p_transfer"]


class Batches(msgspec.Struct, frozen=True):
    """q messages that share kernels: activity (index into `Activities`) and meta (into `EventTable.collectives`)."""

    activity: I64
    meta: I64


def batched_messages(table: EventTable, work: Activities, labels: Work) -> Batches:
    """The messages of every kernel that has none of its own, in the order in which they were registered."""
    none = np.empty(0, np.int64)
    bare = np.flatnonzero((labels.leaf == _P2P) & (labels.meta < 0) & work.launched)
    if not len(bare):
        return Batches(none, none)
    peers = np.array([max(args.src_rank, args.dst_rank) for args in table.collectives] + [-1], np.int64)
    ops = table.ops
    registered = np.flatnonzero(peers[ops.collective] >= 0)
    rows = ops.row[registered]
    begin, end = table.start_ns[rows], table.end_ns[rows]
    # A registration that launched a kernel itself is no part of a batch.
    calls = np.sort(table.start_ns[work.launch[work.launched]])
    empty = np.searchsorted(calls, begin) == np.searchsorted(calls, end, side="right")
    rows, end, meta = rows[empty], end[empty], ops.collective[registered][empty].astype(np.int64)
    activity = np.full(len(rows), -1, np.int64)
    for track in np.unique(work.thread[bare]).tolist():
        mine = np.flatnonzero(table.track[rows] == track)
        kernels = bare[work.thread[bare] == track]
        kernels = kernels[np.argsort(table.start_ns[work.launch[kernels]], kind="stable")]
        after = np.searchsorted(table.start_ns[work.launch[kernels]], end[mine])
        activity[mine] = np.append(kernels, -1)[after]
    known = np.flatnonzero(activity >= 0)
    order = known[np.lexsort((end[known], activity[known]))]
    return Batches(activity[order], meta[order])
