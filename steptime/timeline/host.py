"""What a host thread was doing at every instant, as far as its events tell.

Each training thread gets a tiling of time: in every tile the innermost span with a known cause decides; else the
thread is inside ops (or in a hole of less than 100 us between two), or in a longer hole.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.intervals import Pieces, Spans, holds, intersect, subtract, union
from steptime.timeline.links import Threads, autograd_nodes
from steptime.timeline.nesting import Nest
from steptime.trace.events import I32, I64, Category, EventTable
from steptime.trace.host_calls import host_cause

#: Holes between top-level ops that are shorter than this are dispatch cost, longer ones are Python (DESIGN 1.4).
HOLE_NS = 100_000
#: A driver call that returns within this time is ordinary; a longer one was doing something else (DESIGN 1.4).
CALL_NS = 200_000

LAUNCH_BOUND = LEAF_CODE["host/launch_bound"]
PYTHON = LEAF_CODE["host/python"]
SYNC = LEAF_CODE["host/sync"]
ALLOCATOR = LEAF_CODE["host/allocator"]
DATA_LOADER = LEAF_CODE["host/data_loader"]
COMPILE = LEAF_CODE["host/compile"]

#: `host_cause` -> leaf. An op that asks for a sync (`sync_op`) is none by itself: on a CPU tensor it waits for nothing.
#: An optimizer that keeps the device waiting is slow to launch; `what` names it.
CAUSE_LEAF: dict[str, int] = {
    "data_loader": DATA_LOADER,
    "allocator": ALLOCATOR,
    "sync": SYNC,
    "compile": COMPILE,
    "gc": LEAF_CODE["host/gc"],
    "checkpoint": LEAF_CODE["host/checkpoint"],
    "optimizer": LAUNCH_BOUND,
}

_HOST = (Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)


class Tiles(msgspec.Struct, frozen=True):
    """Disjoint tiles of one thread: spans, leaf int16 and deciding row int64 (-1: ops without a known cause)."""

    spans: Spans
    leaf: NDArray[np.int16]
    row: I64


#: A thread that launches this share of the kernels trains, whether or not it holds the step mark.
LAUNCHER_SHARE = 0.25


class HostState:
    """Tilings of the training threads of one file.

    `blocking` are rows of copy calls that waited for their copy (`links.blocking_copies`).
    `launches` are the rows of the launch calls of device activities, -1 for none.
    """

    def __init__(self, table: EventTable, threads: Threads, mark_track: int, launches: I64, blocking: I64) -> None:
        self.table = table
        self.threads = threads
        self.has_ops = bool((table.category == Category.CPU_OP).any())
        causes = [host_cause(name) for name in table.names]
        self.cause_leaf = np.array([CAUSE_LEAF.get(cause or "", -1) for cause in causes], np.int16)
        self.rows = table.rows(*_HOST)
        caused = self.cause_leaf[table.name[self.rows]] >= 0
        self._blocks = np.zeros(len(table.start_ns), np.bool_)
        self._blocks[blocking] = True
        # A long driver call with no known cause (creating a context, say) is still the call's, and is named.
        slow = (table.category[self.rows] == Category.RUNTIME) & (table.dur_ns[self.rows] > CALL_NS)
        self.known = self.rows[caused | slow | self._blocks[self.rows]]
        self.training = self._training_tracks(mark_track, _launchers(table, launches))
        self.launched_ns = np.unique(table.start_ns[launches[launches >= 0]])
        self._tiles: dict[int, Tiles] = {}
        self._bridges: dict[int, Spans] = {}
        self._bridged: Spans | None = None

    def leaf_of(self, rows: I64) -> NDArray[np.int16]:
        """Leaf that each host row causes, -1 where none is known."""
        return np.where(self._blocks[rows], np.int16(SYNC), self.cause_leaf[self.table.name[rows]])

    def _training_tracks(self, mark_track: int, launchers: list[int]) -> list[int]:
        """The thread of the step marks (or the busiest launcher), then those that run autograd nodes or launch."""
        table = self.table
        backward = np.unique(table.track[autograd_nodes(table)]).tolist()
        return list(dict.fromkeys([track for track in [mark_track, *backward, *launchers] if track >= 0]))

    def tiles(self, track: int) -> Tiles:
        """The tiling of one thread; what no tile covers is a long hole between ops."""
        if track not in self._tiles:
            self._tiles[track] = self._build(track)
        return self._tiles[track]

    def _spans(self, rows: I64) -> Spans:
        start = self.table.start_ns[rows]
        return Spans(start, start + self.table.dur_ns[rows])

    @property
    def bridged(self) -> Spans:
        """Ops of all training threads with the short holes between any two, disjoint."""
        if self._bridged is None:
            own = [self._bridged_of(track) for track in self.training]
            empty = [np.empty(0, np.int64)]
            start = np.concatenate([spans.start for spans in own] + empty)
            self._bridged = _bridge(Spans(start, np.concatenate([spans.end for spans in own] + empty)))
        return self._bridged

    def _bridged_of(self, track: int) -> Spans:
        if track not in self._bridges:
            self._bridges[track] = _bridge(self._spans(self._ops(self.table.track[self.rows] == track)))
        return self._bridges[track]

    def _ops(self, chosen: NDArray[np.bool_]) -> I64:
        category = self.table.category[self.rows]
        rows: I64 = self.rows[chosen & (category != Category.PYTHON) & (category != Category.ANNOTATION)]
        return rows

    def _build(self, track: int) -> Tiles:
        table = self.table
        known = self.known[table.track[self.known] == track]
        nest = Nest(*self._spans(known), known)
        bridged = self._bridged_of(track)
        edges = np.unique(np.concatenate([nest.start, nest.end, bridged.start, bridged.end]))
        if not len(edges):
            return Tiles(Spans(edges, edges), np.empty(0, np.int16), edges)
        start, end = edges[:-1], edges[1:]
        position = nest.innermost(start) if len(nest.row) else np.full(len(start), -1, np.int64)
        row = np.where(position >= 0, nest.row[position], -1) if len(nest.row) else position
        leaf = np.where(row >= 0, self.leaf_of(row), np.int16(-1))
        leaf = np.where(leaf >= 0, leaf, np.int16(LAUNCH_BOUND))
        kept = (row >= 0) | holds(bridged, start)
        return Tiles(Spans(start[kept], end[kept]), leaf[kept], row[kept])

    def spent(self, track: int, edges: I64) -> I64:
        """What the host spent on each leaf between ascending `edges`, device idle or not; int64 [edges - 1, leaves].

        `track`: the thread that it is judged by; where that has no open event, the other training threads. Launching
        counts at the usual pace from one launch to the next: a host far ahead of its device is held in single ones.
        """
        steps = Spans(edges[:-1], edges[1:])
        pieces, leaf, _, _ = self.split(steps, np.full(len(steps.start), track, np.int32))
        result = np.zeros((len(steps.start), len(LEAF_CODE)), np.int64)
        np.add.at(result, (pieces.source, leaf), pieces.end - pieces.start)
        result[:, LAUNCH_BOUND] = launch_pace_ns(self.launched_ns, edges)
        return result

    def split(self, spans: Spans, track: I32) -> tuple[Pieces, NDArray[np.int16], I64, I32]:
        """Split device-idle spans by what the host did.

        Args:
            spans: k spans of host time.
            track: int32 [k], the thread that each span is judged by; where it has no open event, the other training
                threads are followed (the hand-over between forward and backward).

        Returns:
            pieces, leaf int16, deciding row int64 (-1: none), and the thread that decided int32 (the judged one for
            holes on all threads, whose leaf is `PYTHON`).
        """
        parts: list[tuple[I64, I64, I64, NDArray[np.int16], I64, I32]] = []
        for judged in np.unique(track).tolist():
            mine = np.flatnonzero(track == judged)
            left = Pieces(spans.start[mine], spans.end[mine], mine)
            order = [judged, *(other for other in self.training if other != judged)]
            for thread in order:
                tiles = self.tiles(thread)
                inside, which = intersect(Spans(left.start, left.end), tiles.spans)
                decided = np.full(len(which), thread, np.int32)
                parts.append(
                    (inside.start, inside.end, left.source[inside.source], tiles.leaf[which], tiles.row[which], decided)
                )
                left = _rest(left, tiles.spans)
            # Between an op of one training thread and an op of the next one: the hand-over.
            between, _ = intersect(Spans(left.start, left.end), self.bridged)
            count = len(between.start)
            parts.append(
                (
                    between.start,
                    between.end,
                    left.source[between.source],
                    np.full(count, LAUNCH_BOUND, np.int16),
                    np.full(count, -1, np.int64),
                    np.full(count, judged, np.int32),
                )
            )
            left = _rest(left, self.bridged)
            holes = len(left.start)
            parts.append(
                (
                    left.start,
                    left.end,
                    left.source,
                    np.full(holes, PYTHON, np.int16),
                    np.full(holes, -1, np.int64),
                    np.full(holes, judged, np.int32),
                )
            )
        empty = np.empty(0, np.int64)
        columns = zip(*parts, strict=True) if parts else [[empty]] * 6
        start, end, source, leaf, row, thread_ = (np.concatenate(column) for column in columns)
        order_ = np.lexsort((start, source))
        pieces = Pieces(start[order_], end[order_], source[order_])
        return pieces, leaf[order_].astype(np.int16), row[order_], thread_[order_].astype(np.int32)


def _bridge(spans: Spans) -> Spans:
    """The union of spans with holes shorter than `HOLE_NS` filled."""
    wide = union(Spans(spans.start, spans.end + HOLE_NS))
    return Spans(wide.start, wide.end - HOLE_NS)


def _rest(left: Pieces, taken: Spans) -> Pieces:
    rest = subtract(Spans(left.start, left.end), taken)
    return Pieces(rest.start, rest.end, left.source[rest.source])


def launch_pace_ns(launched_ns: I64, edges: I64) -> I64:
    """Launches of each step times the median time from one to the next, int64 [edges - 1]; launched_ns: ascending."""
    bounds = np.searchsorted(launched_ns, edges)
    result = np.zeros(len(edges) - 1, np.int64)
    for step, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if high - low > 1:
            result[step] = round(float(np.median(np.diff(launched_ns[low:high]))) * (high - low))
    return result


def _launchers(table: EventTable, launches: I64) -> list[int]:
    """Tracks that launch at least `LAUNCHER_SHARE` of the kernels: a checkpoint writer or pin thread never does."""
    kernels = launches[(table.category[table.device.row] == Category.KERNEL) & (launches >= 0)]
    if not len(kernels):
        return []
    counts = np.bincount(table.track[kernels])
    return np.flatnonzero(counts >= LAUNCHER_SHARE * len(kernels)).tolist()
