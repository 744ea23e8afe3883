"""Names of causes for a reader: what happened, and where in the program.

With stacks the place is the innermost line of user code; without, the op that asked or the enclosing annotation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.timeline.host import LAUNCH_BOUND, PYTHON, SYNC, HostState
from steptime.timeline.idle import CREDIT, REASONS, Idle
from steptime.timeline.labels import NONE, Labels
from steptime.timeline.links import Activities, Threads
from steptime.timeline.nesting import Nest
from steptime.trace.events import I32, I64, Category, EventTable
from steptime.trace.host_calls import host_cause, source_line


class Places:
    """Finds what and where for idle pieces of one file."""

    def __init__(self, table: EventTable, threads: Threads, labels: Labels) -> None:
        self.table = table
        self.threads = threads
        self.labels = labels
        self._asks = np.array([host_cause(name) == "sync_op" for name in table.names], np.bool_)
        frames = table.rows(Category.PYTHON)
        self.has_stacks = bool(len(frames))
        user = np.array([source_line(name) for name in table.names], np.bool_) if len(frames) else np.zeros(0, np.bool_)
        self._frames = frames[user[table.name[frames]]] if len(frames) else frames
        self._nests: dict[int, Nest] = {}

    def _lines(self, thread: I32, times: I64) -> I32:
        """Label of the innermost user line at each instant, `NONE` without one."""
        found = np.full(len(times), -1, np.int64)
        for track in np.unique(thread).tolist():
            if track not in self._nests:
                rows = self._frames[self.table.track[self._frames] == track]
                start = self.table.start_ns[rows]
                self._nests[track] = Nest(start, start + self.table.dur_ns[rows], rows)
            nest = self._nests[track]
            if len(nest.row):
                mine = np.flatnonzero(thread == track)
                position = nest.innermost(times[mine])
                found[mine] = np.where(position >= 0, nest.row[position], -1)
        return self._row_names(found)

    def _row_names(self, rows: I64) -> I32:
        return self.labels.names(self.table.names, np.where(rows >= 0, self.table.name[rows], -1).astype(np.int32))

    def what(self, idle: Idle) -> I32:
        """Label of what each idle piece is: the host span that decided, else the reason."""
        named = np.where(idle.row >= 0, self.table.name[idle.row], -1).astype(np.int32)
        what = self.labels.names(self.table.names, named)
        named_before = what
        reasons = np.array([self.labels.text(text) if text else NONE for text in REASONS], np.int32)
        credit = np.flatnonzero(idle.reason == CREDIT)
        drained = {
            code: self.labels.text(f"{self.labels.texts[code]} drained the queue")
            for code in set(what[credit].tolist())
        }
        host = idle.reason == 0
        what = np.where(host, what, reasons[idle.reason])
        dispatch, python = self.labels.text("dispatching ops"), self.labels.text("Python between ops")
        what = np.where(host & (idle.row < 0), np.where(idle.leaf == PYTHON, python, dispatch), what)
        what[credit] = [drained[code] for code in named_before[credit].tolist()]
        return what.astype(np.int32)

    def where(self, idle: Idle, work: Activities, op: I64, state: HostState, shift_ns: int) -> I32:
        """Label of the place of each idle piece, `NONE` where nothing tells it.

        Args:
            idle: k attributed pieces.
            work: activities of the device.
            op: int64 [m], row of the op that launched each activity.
            state: the file's host state.
            shift_ns: how much the device clock runs behind the host's.
        """
        table = self.table
        times = idle.start_ns + shift_ns
        asked = np.where(idle.row >= 0, self._asking(idle.row), -1)
        follower = op[np.minimum(idle.next, len(op) - 1)]
        annotation = self._annotation(idle.thread, times)
        is_host = np.isin(idle.leaf, state_leaves(state))
        rows = np.where((idle.leaf == LAUNCH_BOUND) & is_host, follower, np.where(idle.leaf == SYNC, asked, annotation))
        rows = np.where(is_host, rows, -1)
        where = self._row_names(rows)
        next_name = self.labels.names(table.names, table.name[work.row[np.minimum(idle.next, len(op) - 1)]])
        where = np.where(is_host, where, next_name)
        if self.has_stacks:
            lines = self._lines(idle.thread, times)
            where = np.where(is_host & (lines != NONE), lines, where)
        # A span that decides need not be named as its own place.
        where = np.where(where == self.what(idle), NONE, where)
        return where.astype(np.int32)

    def at(self, thread: I32, times: I64) -> I32:
        """Label of the user's line at each instant, else of the annotation around it, else `NONE`."""
        where = self._row_names(self._annotation(thread, times))
        if not self.has_stacks:
            return where
        lines = self._lines(thread, times)
        return np.where(lines != NONE, lines, where).astype(np.int32)

    def _asking(self, rows: I64) -> I64:
        """For a sync call: the op that asked for it (`aten::item`), else the innermost op around it, else -1."""
        table = self.table
        around = self.threads.innermost(table.track[rows], table.start_ns[rows])
        around = np.where(around == rows, self._outside(rows), around)
        asks = self._asks[table.name] & (table.category <= Category.ANNOTATION)
        found = self.threads.nearest(asks, around)
        while True:
            outer = self.threads.nearest(asks, self._outside(found))
            better = outer >= 0
            if not better.any():
                break
            found = np.where(better, outer, found)
        is_op = table.category == Category.CPU_OP
        return np.where(found >= 0, found, self.threads.nearest(is_op, around))

    def _outside(self, rows: I64) -> I64:
        return self.threads.parent(rows)

    def _annotation(self, thread: I32, times: I64) -> I64:
        """Innermost annotation that is not a step mark, -1 if none."""
        table = self.table
        plain: NDArray[np.bool_] = np.array([not name.startswith("ProfilerStep#") for name in table.names], np.bool_)
        wanted = (table.category == Category.ANNOTATION) & plain[table.name]
        return self.threads.nearest(wanted, self.threads.innermost(thread, times))


def state_leaves(state: HostState) -> list[int]:
    """Leaf codes that name a host cause with a place in the program."""
    return sorted({int(code) for code in state.cause_leaf.tolist() if code >= 0} | {LAUNCH_BOUND, PYTHON, SYNC})
