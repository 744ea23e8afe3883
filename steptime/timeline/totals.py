"""Union times by kind of work over a span of device time: what other tools report, to compare with (`crosscheck`)."""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.timeline.intervals import Spans, intersect, subtract, union
from steptime.timeline.links import Activities
from steptime.timeline.work import COMMUNICATION, Work
from steptime.trace.events import Category, EventTable


class Totals(msgspec.Struct, frozen=True):
    """Unions in ns over [start_ns, end_ns): compute (kernels that do not communicate), comm (kernels that do), copy
    (memcpy and memset), each also where no kernel of the other kinds before it ran; busy and idle.
    """

    start_ns: int
    end_ns: int
    compute_ns: int
    comm_ns: int
    comm_exposed_ns: int
    copy_ns: int
    copy_exposed_ns: int
    busy_ns: int

    @property
    def idle_ns(self) -> int:
        """Time without any activity."""
        return self.end_ns - self.start_ns - self.busy_ns


def recording_totals(table: EventTable, work: Activities, labels: Work) -> Totals:
    """Totals from the first to the last activity of a device: the interval of HTA's temporal breakdown."""
    return totals(table, work, labels, int(work.start_ns.min()), int(work.end_ns.max()))


def totals(table: EventTable, work: Activities, labels: Work, start_ns: int, end_ns: int) -> Totals:
    """Totals over [start_ns, end_ns)."""
    inside = Spans(np.array([start_ns], np.int64), np.array([end_ns], np.int64))
    is_kernel = table.category[work.row] == Category.KERNEL
    is_comm = is_kernel & (labels.klass == COMMUNICATION)

    def spans(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Spans:
        whole = union(Spans(work.start_ns[chosen], work.end_ns[chosen]))
        parts, _ = intersect(inside, whole)
        return Spans(parts.start, parts.end)

    compute, comm, copy = spans(is_kernel & ~is_comm), spans(is_comm), spans(~is_kernel)
    exposed = subtract(comm, compute)
    kernels = spans(is_kernel)
    bare_copy = subtract(copy, kernels)
    return Totals(
        start_ns=start_ns,
        end_ns=end_ns,
        compute_ns=compute.total(),
        comm_ns=comm.total(),
        comm_exposed_ns=int((exposed.end - exposed.start).sum()),
        copy_ns=copy.total(),
        copy_exposed_ns=int((bare_copy.end - bare_copy.start).sum()),
        busy_ns=spans(np.ones_like(is_kernel)).total(),
    )
