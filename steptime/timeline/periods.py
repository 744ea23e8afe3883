"""Steps from the kernels alone: the period of the sequence of kernel names.

Only a period that explains the whole recording counts: at least three cycles, and every cycle launches the same kernels
the same number of times. The period of a layer inside a step fails that, because embedding and loss run once.
"""

from __future__ import annotations

import numpy as np

from steptime.timeline.steps import Marks
from steptime.trace.events import I64, Category, EventTable

MIN_CYCLES = 3
#: A cycle shorter than this is a loop inside something, not a step.
MIN_KERNELS = 8
_TRIED = 20


def periodic_marks(table: EventTable, launches: I64) -> Marks | None:
    """Marks at the first launch of each cycle of the busiest stream's kernel names, or None if nothing repeats.

    Args:
        table: one file's events.
        launches: row of the launch of each device activity, -1 if none.
    """
    columns = table.device
    is_kernel = table.category[columns.row] == Category.KERNEL
    if not is_kernel.any():
        return None
    streams, counts = np.unique(columns.stream[is_kernel], return_counts=True)
    mine = np.flatnonzero(is_kernel & (columns.stream == streams[counts.argmax()]))
    mine = mine[np.argsort(table.start_ns[columns.row[mine]], kind="stable")]
    names = table.name[columns.row[mine]]
    found = _period(names)
    if found is None:
        return None
    period, first = found
    heads = np.arange(first, len(names) - period + 1, period)
    launch = launches[mine]
    times = np.where(launch >= 0, table.start_ns[launch], table.start_ns[columns.row[mine]])
    if not (launch >= 0).all():
        times = table.start_ns[columns.row[mine]]
    starts = times[heads]
    stop = heads[-1] + period
    last_end = times[stop] if stop < len(times) else int((table.start_ns + table.dur_ns)[columns.row[mine]].max()) + 1
    ends = np.append(starts[1:], last_end)
    thread = int(table.track[launch[heads[0]]]) if launch[heads[0]] >= 0 else -1
    source = f"the period of the kernel sequence ({period} kernels; no step marks)"
    return Marks(np.arange(len(heads), dtype=np.int64), starts, ends, thread, source)


def _period(names: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[int, int] | None:
    """(period, first index of a whole cycle) of a sequence, or None."""
    values, counts = np.unique(names, return_counts=True)
    rare = values[(counts >= MIN_CYCLES)][np.argsort(counts[counts >= MIN_CYCLES], kind="stable")][:_TRIED]
    tried = {int(np.median(np.diff(np.flatnonzero(names == value)))) for value in rare.tolist()}
    for period in sorted(size for size in tried if size >= MIN_KERNELS):
        cycles = len(names) // period
        if cycles < MIN_CYCLES or not np.array_equal(names[period:], names[:-period]):
            continue
        return period, 0
    return None
