"""Where on the device a kernel must have run whose record is missing: its launch is there, and a hole in its stream.

Beside communication such a hole is no idle time, and what hid the communication can't be seen: without this its time
would pass for exposed communication. How long the kernel took is taken from its like (same op, same shapes).
"""

from __future__ import annotations

import numpy as np

from steptime.timeline.intervals import Spans, covered, union
from steptime.timeline.links import Activities, Threads
from steptime.timeline.work import COMPUTE, Work
from steptime.trace.events import I64, EventTable


def lost_spans(table: EventTable, threads: Threads, work: Activities, labels: Work, lost: I64, shift_ns: int) -> Spans:
    """Disjoint spans on the device's clock in which lost kernels ran, as far as nothing else shows the hole.

    A hole lies between two compute kernels of one stream that were launched before and after the call. What of it is
    idle shows the loss already; the rest of the kernel's usual length is put at the hole's start, where it was queued.

    Args:
        table, threads, work, labels: a file and the labelled activities of one device.
        lost: rows of calls that normally launch device work but whose device events are missing.
        shift_ns: how much the device clock runs behind the host's.
    """
    nothing = Spans(np.empty(0, np.int64), np.empty(0, np.int64))
    compute = np.flatnonzero((labels.klass == COMPUTE) & work.launched)
    if not len(lost) or not len(compute):
        return nothing
    streams, count = np.unique(work.stream[compute], return_counts=True)
    lane = compute[work.stream[compute] == streams[count.argmax()]]
    lane = lane[np.argsort(work.launch_ns[lane], kind="stable")]
    usual = _usual_ns(
        table, work, compute, labels.op[compute], threads.innermost(table.track[lost], table.start_ns[lost])
    )
    after = np.searchsorted(work.launch_ns[lane], table.start_ns[lost] - shift_ns)
    between = np.flatnonzero((after > 0) & (after < len(lane)) & (usual > 0))
    if not len(between):
        return nothing
    holes, which = np.unique(after[between], return_inverse=True)
    took = np.bincount(which.ravel(), usual[between]).astype(np.int64)
    hole = Spans(work.end_ns[lane[holes - 1]], np.maximum(work.start_ns[lane[holes]], work.end_ns[lane[holes - 1]]))
    busy = covered(hole, union(Spans(work.start_ns, work.end_ns)))
    hidden = np.clip(took - (hole.end - hole.start - busy), 0, hole.end - hole.start)
    return union(Spans(hole.start, hole.start + hidden))


def _usual_ns(table: EventTable, work: Activities, compute: I64, op: I64, lost_op: I64) -> I64:
    """Median length of kernels that the like of each lost call's op launched, int64 [lost]; 0 where none is known."""
    shapes_of_row = np.full(len(table.start_ns), -1, np.int64)
    shapes_of_row[table.ops.row] = table.ops.shapes
    rows = np.concatenate([op, lost_op])
    keys = np.stack([np.where(rows >= 0, table.name[rows], -1), np.where(rows >= 0, shapes_of_row[rows], -1)])
    kinds, kind = np.unique(keys, axis=1, return_inverse=True)
    kind = kind.ravel()
    known, wanted = kind[: len(op)], kind[len(op) :]
    took = work.end_ns[compute] - work.start_ns[compute]
    order = np.lexsort((took, known))
    count = np.bincount(known, minlength=kinds.shape[1])
    first = np.cumsum(count) - count
    middle = np.minimum(first + np.maximum(count - 1, 0) // 2, len(order) - 1)
    result: I64 = np.where((count[wanted] > 0) & (lost_op >= 0), took[order][middle[wanted]], 0)
    return result
