"""Drop or cut events that can't be true, and count each: bad stamps must not change a figure in silence.

What is done, with the public reports behind it in `cases/README.md`:

* a device event stamped zero (A01), or far outside the recording (A39): dropped;
* a negative length (A16): a host span still open at the end is cut at the end of the recording, a device event is
  dropped;
* a kernel that spans several later kernels of its own stream (A21): cut where the next one starts. A tail over one
  successor is programmatic dependent launch and stays (A22).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from steptime.errors import TraceError
from steptime.trace.clock import UNKNOWN_NS
from steptime.trace.events import I64, Category, DeviceColumns, EventTable, OpColumns, SyncColumns

#: An event further from the host's events than their whole span plus this is not of this recording.
FAR_NS = 1_000_000_000
#: No capture lasts a day: a host event further away has a corrupt stamp.
DAY_NS = 86_400 * FAR_NS
_LARGEST = 2**62

#: A kernel is an overrun if it covers whole later kernels of its stream and this share of it lies over them.
OVERRUN_SHARE = 0.05


def clean(table: EventTable) -> EventTable:
    """Return the table without impossible events; `dropped`, `clipped` and `warnings` of its meta say what was done."""
    dropped: dict[str, int] = {}
    clipped: dict[str, int] = {}
    is_device = (table.category >= Category.KERNEL) & (table.category <= Category.SYNC)
    zero_ns = table.meta.base_ns or 0
    bad = (table.start_ns == zero_ns) & is_device
    _count(dropped, "device events stamped zero", bad)
    unknown = (table.start_ns == UNKNOWN_NS) | (table.dur_ns == UNKNOWN_NS) & is_device
    _count(dropped, "events without a time", unknown & ~bad)
    bad |= unknown
    negative = (table.dur_ns < 0) & is_device & ~bad
    _count(dropped, "device events of negative length", negative)
    bad |= negative
    low_ns, high_ns = _recording(table, ~bad)
    stray = ~bad & ((table.start_ns < low_ns) | (table.start_ns > high_ns))
    _count(dropped, "events far outside the recording", stray)
    bad |= stray
    if bad.any():
        table = _keep(table, ~bad)
    if not len(table.start_ns):
        raise TraceError(
            f"{table.meta.path}: no event has a believable time ({', '.join(dropped)}); record again or export again"
        )
    # Longer than this can only be wrong, and would wrap when added to a start.
    table = replace(table, dur_ns=np.minimum(table.dur_ns, _LARGEST))
    dur_ns, unfinished = _finish_open_spans(table, high_ns)
    dur_ns, overruns = _cut_overruns(table, dur_ns)
    removed_ns = int((table.dur_ns - dur_ns)[overruns].sum())
    first = table.names[table.name[overruns[0]]][:60] if len(overruns) else ""
    table = replace(table, dur_ns=dur_ns)
    endless = dur_ns > high_ns - table.start_ns
    _count(dropped, "device events that end far outside the recording", endless)
    if endless.any():
        table = _keep(table, ~endless)
    warnings = [f"{count} {what} dropped" for what, count in dropped.items()]
    if unfinished:
        warnings.append(f"{unfinished} host spans without an end (unfinished) cut at the end of the recording")
        clipped["unfinished host spans"] = unfinished
    if len(overruns):
        clipped["overrun kernels"] = len(overruns)
        warnings.append(
            f"{len(overruns)} kernel duration(s) overrun later kernels of their stream (corrupt stamps): "
            f"clipped at the next start, {removed_ns / 1e6:.3f} ms removed, first {first}"
        )
    meta = replace(table.meta, dropped=dropped, clipped=clipped, warnings=[*table.meta.warnings, *warnings])
    return replace(table, meta=meta)


def _count(into: dict[str, int], what: str, mask: NDArray[np.bool_]) -> None:
    count = int(np.count_nonzero(mask))
    if count:
        into[what] = count


def _recording(table: EventTable, good: NDArray[np.bool_]) -> tuple[int, int]:
    """Earliest and latest instant that an event of this recording can have, in ns.

    That is the span of the profiler's own window mark, if at least half of the host events lie in it; else of the host
    events within a day of their median; else of the middle 98 % of all events; widened by itself and `FAR_NS`.
    """
    window = np.flatnonzero(good & (table.category == Category.WINDOW) & (table.dur_ns > 0))
    host = good & (table.category <= Category.OVERHEAD)
    starts = table.start_ns[host]
    if len(window) and len(starts):
        low, length = int(table.start_ns[window[0]]), int(table.dur_ns[window[0]])
        inside = (starts >= low) & (starts - low <= length)
        if 2 * np.count_nonzero(inside) >= len(starts):
            return _widened(low, low + length)
    if len(starts):
        middle = int(np.median(starts))
        near = host & (np.abs(table.start_ns - middle) < DAY_NS) & (table.dur_ns < DAY_NS)
        if near.any():
            ends = table.start_ns[near] + np.maximum(table.dur_ns[near], 0)
            return _widened(int(table.start_ns[near].min()), int(ends.max()))
    if not good.any():
        return 0, 0
    low, high = (int(x) for x in np.percentile(table.start_ns[good], (1, 99), method="nearest"))
    return _widened(low, high)


def _widened(low_ns: int, high_ns: int) -> tuple[int, int]:
    margin = high_ns - low_ns + FAR_NS
    return max(low_ns - margin, -_LARGEST), min(high_ns + margin, _LARGEST)


def _finish_open_spans(table: EventTable, high_ns: int) -> tuple[I64, int]:
    """Host spans without an end, or with one far beyond the recording, end with it: (durations, how many)."""
    on_host = (table.category < Category.KERNEL) | (table.category == Category.WINDOW)
    open_ended = on_host & ((table.dur_ns < 0) | (table.dur_ns > high_ns - table.start_ns))
    count = int(np.count_nonzero(open_ended))
    if not count:
        return table.dur_ns, 0
    closed = table.start_ns[~open_ended] + table.dur_ns[~open_ended]
    end_ns = int(closed.max()) if len(closed) else int(table.start_ns.max())
    return np.where(open_ended, np.maximum(end_ns - table.start_ns, 0), table.dur_ns), count


def _cut_overruns(table: EventTable, dur_ns: I64) -> tuple[I64, I64]:
    """Cut kernels that contain at least two whole later kernels of their own stream: (durations, rows cut)."""
    columns = table.device
    kernel = (table.category[columns.row] == Category.KERNEL) & (columns.graph <= 0)
    rows = columns.row[kernel]
    order = np.lexsort((table.start_ns[rows], columns.stream[kernel], columns.device[kernel]))
    rows = rows[order]
    rows = rows[dur_ns[rows] > 0]
    if len(rows) < 3:
        return dur_ns, np.empty(0, np.int64)
    stream, device = (np.empty(len(table.start_ns), np.int64) for _ in range(2))
    stream[columns.row], device[columns.row] = columns.stream, columns.device
    start, dur = table.start_ns[rows], dur_ns[rows]
    end = start + dur
    same = (stream[rows[2:]] == stream[rows[:-2]]) & (device[rows[2:]] == device[rows[:-2]])
    inside = same & (end[:-2] >= end[1:-1]) & (end[:-2] >= end[2:])
    over = (end[:-2] - start[1:-1]) > OVERRUN_SHARE * dur[:-2]
    found = np.flatnonzero(inside & over)
    if not len(found):
        return dur_ns, np.empty(0, np.int64)
    fixed = dur_ns.copy()
    fixed[rows[found]] = np.maximum(start[found + 1] - start[found], 0)
    return fixed, rows[found]


_Group = TypeVar("_Group", DeviceColumns, OpColumns, SyncColumns)
_CORE = ("start_ns", "dur_ns", "category", "name", "track", "correlation")


def _keep(table: EventTable, keep: NDArray[np.bool_]) -> EventTable:
    """The table with only the rows where `keep` is true; row numbers of all column groups follow."""
    moved = np.cumsum(keep) - 1

    def kept(group: _Group) -> _Group:
        inside = keep[group.row]
        columns = {name: getattr(group, name)[inside] for name in group.__struct_fields__}
        return replace(group, **{**columns, "row": moved[columns["row"]]})

    core = {name: getattr(table, name)[keep] for name in _CORE}
    return replace(table, **core, device=kept(table.device), ops=kept(table.ops), syncs=kept(table.syncs))
