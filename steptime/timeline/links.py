"""Who launched what: device activities joined with their launch call, its thread, and the op around it.

A call is a launch if a device event shares its correlation (no list of names, case A34).
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.timeline.intervals import Spans, holds, union
from steptime.timeline.nesting import Nest
from steptime.trace.events import I32, I64, Category, EventTable

_HOST_OPS = (Category.CPU_OP, Category.ANNOTATION)


class Threads:
    """The call nests of host ops and annotations, one a thread, built when first asked for."""

    def __init__(self, table: EventTable) -> None:
        self.table = table
        rows = table.rows(*_HOST_OPS)
        order = np.argsort(table.track[rows], kind="stable")
        rows = rows[order]
        tracks, first = np.unique(table.track[rows], return_index=True)
        self._rows = dict(zip(tracks.tolist(), np.split(rows, first[1:]), strict=bool(len(tracks))))
        self._nests: dict[int, Nest] = {}

    @property
    def tracks(self) -> list[int]:
        """Tracks that hold host ops or annotations."""
        return list(self._rows)

    def nest(self, track: int) -> Nest:
        """Host ops and annotations of one track; `row` holds `EventTable` rows."""
        if track not in self._nests:
            rows = self._rows.get(track, np.empty(0, np.int64))
            start = self.table.start_ns[rows]
            self._nests[track] = Nest(start, start + self.table.dur_ns[rows], rows)
        return self._nests[track]

    def innermost(self, tracks: I32, times: I64) -> I64:
        """Row of the innermost host op or annotation open on `tracks[i]` at `times[i]`, -1 if none; int64."""
        found = np.full(len(times), -1, np.int64)
        for track in np.unique(tracks).tolist():
            if track in self._rows:
                mine = np.flatnonzero(tracks == track)
                nest = self.nest(track)
                position = nest.innermost(times[mine])
                found[mine] = np.where(position >= 0, nest.row[position], -1)
        return found

    def inside(self, rows: I64, tracks: I32, times: I64) -> NDArray[np.bool_]:
        """Whether instant i lies, on its own track, inside any of the given rows."""
        table, result = self.table, np.zeros(len(times), np.bool_)
        for track in np.unique(table.track[rows]).tolist():
            spans = rows[table.track[rows] == track]
            mine = np.flatnonzero(tracks == track)
            start = table.start_ns[spans]
            result[mine] = holds(union(Spans(start, start + table.dur_ns[spans])), times[mine])
        return result

    def parent(self, rows: I64) -> I64:
        """Row of the host op or annotation that encloses each of `rows` (-1 stays -1), -1 where none does; int64."""
        found = np.full(len(rows), -1, np.int64)
        known = (rows >= 0) & (self.table.category[rows] <= Category.ANNOTATION)
        for track in np.unique(self.table.track[rows[known]]).tolist():
            nest = self.nest(track)
            mine = np.flatnonzero(known & (self.table.track[rows] == track))
            above = nest.parent[nest.position(rows[mine])]
            found[mine] = np.where(above >= 0, nest.row[above], -1)
        return found

    def outermost(self, wanted: NDArray[np.bool_], rows: I64) -> I64:
        """Outermost row that is `wanted` around (and including) each of `rows`, -1 if none; int64."""
        found = self.nearest(wanted, rows)
        while True:
            outer = self.nearest(wanted, self.parent(found))
            if not (outer >= 0).any():
                return found
            found = np.where(outer >= 0, outer, found)

    def enclosing(self, rows: I64) -> NDArray[np.bool_]:
        """Which rows of the table are among `rows` or enclose one of them; bool [n rows of the table]."""
        marked = np.zeros(len(self.table.start_ns), np.bool_)
        rows = np.unique(rows[rows >= 0])
        while len(rows):
            marked[rows] = True
            rows = np.unique(self.parent(rows))
            rows = rows[(rows >= 0)]
            rows = rows[~marked[rows]]
        return marked

    def nearest(self, wanted: NDArray[np.bool_], rows: I64) -> I64:
        """Nearest row that is `wanted`, outwards from (and including) each of `rows` (-1 stays -1); int64.

        Args:
            wanted: bool [n rows of the table].
            rows: rows of host ops or annotations, or -1.
        """
        found = np.full(len(rows), -1, np.int64)
        known = rows >= 0
        for track in np.unique(self.table.track[rows[known]]).tolist():
            nest = self.nest(track)
            mine = np.flatnonzero(known & (self.table.track[rows] == track))
            position = nest.nearest(wanted[nest.row], nest.position(rows[mine]))
            found[mine] = np.where(position >= 0, nest.row[position], -1)
        return found


class Activities(msgspec.Struct, frozen=True):
    """All kernels, copies and memsets of one device, sorted by start (then longest, then lowest stream).

    Arrays of length m. column: index into `EventTable.device` columns; row: into the table; launch: row of the launch
    call, -1 if none was recorded; launch_ns, return_ns: its start and end on the device's clock (int64 min if none);
    thread: track of the launch, -1 if none.
    """

    column: I64
    row: I64
    start_ns: I64
    end_ns: I64
    stream: I64
    launch: I64
    launch_ns: I64
    return_ns: I64
    thread: I32

    @property
    def launched(self) -> NDArray[np.bool_]:
        """Whether the launch was recorded."""
        return self.launch >= 0


def autograd_nodes(table: EventTable) -> I64:
    """Rows of the nodes of backward passes, int64."""
    evaluates = np.array([name.startswith("autograd::engine::evaluate_function") for name in table.names], np.bool_)
    rows = table.ops.row
    result: I64 = rows[evaluates[table.name[rows]]]
    return result


NEVER = np.iinfo(np.int64).min
#: A copy call shorter than this is an ordinary launch.
BLOCKING_NS = 20_000
#: Host and device stamps of one instant differ by about this much.
CLOCK_NOISE_NS = 1_000


def launch_rows(table: EventTable) -> I64:
    """Row of the launch call of each device activity, -1 if none; int64 [m]."""
    calls = table.rows(Category.RUNTIME)
    calls = calls[table.correlation[calls] > 0]
    order = np.argsort(table.correlation[calls], kind="stable")
    calls = calls[order]
    keys = table.correlation[calls]
    wanted = table.correlation[table.device.row]
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[at] == wanted) & (wanted > 0), calls[at], -1)


def clock_shift_ns(table: EventTable, launches: I64) -> int:
    """How much the device clock runs behind the host's, in ns, from kernels that start before their launch (A38).

    A kernel can't start before the call that launches it. The shift is what makes all but the worst 1 % possible; it is
    used for host-device questions only, never for device figures. Source: pytorch/kineto PR 991.
    """
    linked = launches >= 0
    early = table.start_ns[launches[linked]] - table.start_ns[table.device.row[linked]]
    if not len(early):
        return 0
    allowed = len(early) // 100
    return max(int(np.sort(early)[len(early) - 1 - allowed]), 0)


def blocking_copies(table: EventTable, launches: I64, shift_ns: int) -> I64:
    """Rows of asynchronous copy calls that waited for their copy all the same: pageable memory, or to the host.

    A call that returned after its copy had ended blocked the host until the stream was drained, like a synchronisation.
    """
    copies = np.flatnonzero((table.category[table.device.row] == Category.MEMCPY) & (launches >= 0))
    rows, calls = table.device.row[copies], launches[copies]
    kinds = np.array(["DtoH" in name or "Pageable" in name or "DeviceToHost" in name for name in table.names], np.bool_)
    returned = table.start_ns[calls] + table.dur_ns[calls]
    waited = returned + CLOCK_NOISE_NS >= table.start_ns[rows] + table.dur_ns[rows] + shift_ns
    long = table.dur_ns[calls] > BLOCKING_NS
    found: I64 = np.unique(calls[kinds[table.name[rows]] & waited & long])
    return found


def activities(table: EventTable, device: int, launches: I64, shift_ns: int) -> Activities:
    """Activities of one device with their launches."""
    columns = table.device
    mine = np.flatnonzero(columns.device == device)
    row = columns.row[mine]
    start, stream = table.start_ns[row], columns.stream[mine]
    order = np.lexsort((stream, -table.dur_ns[row], start))
    mine, row, launch = mine[order], row[order], launches[mine][order]
    known = launch >= 0
    launch_ns = np.where(known, table.start_ns[launch] - shift_ns, NEVER)
    return Activities(
        column=mine,
        row=row,
        start_ns=start[order],
        end_ns=start[order] + table.dur_ns[row],
        stream=stream[order],
        launch=launch,
        launch_ns=launch_ns,
        return_ns=np.where(known, launch_ns + table.dur_ns[launch], NEVER),
        thread=np.where(known, table.track[launch], -1).astype(np.int32),
    )
