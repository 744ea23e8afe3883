"""Why the device was idle: every idle nanosecond gets a cause, or says that none has evidence (DESIGN 1.4).

For an idle span [a, b) let K be the next activity that a training thread launched, by a call that started at L0 and
returned at L1. If L1 <= a the work was queued and no host activity can be the cause. Otherwise the host was late:
[a, L0) is split by what the thread did, [L0, L1) is the launch call itself, and after L1 the work was queued.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.host import ALLOCATOR, CALL_NS, COMPILE, DATA_LOADER, LAUNCH_BOUND, PYTHON, SYNC, HostState
from steptime.timeline.intervals import Pieces, Spans, covered, first_started, intersect, subtract, union
from steptime.timeline.links import NEVER, Activities
from steptime.trace.events import I32, I64, Category, EventTable

I16 = NDArray[np.int16]

#: A queued kernel normally starts within this time after the one before it.
GAP_NS = 20_000
#: The first node of a CUDA graph may start this long after the work before it; longer is a stall like any other.
GRAPH_NS = 200_000
#: A copy or collective that ends this close to a kernel's start was what the kernel waited for.
NEAR_NS = 5_000

KERNEL_GAP = LEAF_CODE["host/kernel_gap"]
QUEUE_STALLED = LEAF_CODE["unexplained/queue_stalled"]
EVENTS_MISSING = LEAF_CODE["unexplained/events_missing"]
UNEXPLAINED = LEAF_CODE["unexplained/unexplained"]
_WAITABLE = [
    code for code, leaf in enumerate(LEAVES) if leaf.slice == "exposed_comm" or leaf.id in ("h2d_copy", "d2h_copy")
]


class Idle(msgspec.Struct, frozen=True):
    """Attributed idle pieces, disjoint and in time order.

    start_ns, end_ns int64 [k]; leaf int16 [k]; row int64 [k]: the host span or launch that decided, -1 if none;
    thread int32 [k]; reason int8 [k], index into `REASONS`; next int64 [k]: index of the activity that ended the span.
    """

    start_ns: I64
    end_ns: I64
    leaf: NDArray[np.int16]
    row: I64
    thread: I32
    reason: NDArray[np.int8]
    next: I64


#: What a piece rests on, for the report's evidence.
REASONS = (
    "",
    "gap between queued kernels",
    "launch call",
    "slow launch call",
    "first use of the kernel",
    "queued work did not start; nothing recorded explains it",
    "launch of a CUDA graph",
    "launch was not recorded",
    "device events of calls before it were lost",
    "no host ops were recorded",
    "waited for a copy or collective of another thread",
    "queued work did not start; a stream wait was recorded before it",
    "the queue was drained by an earlier sync",
)
_GAP, _CALL, _SLOW, _FIRST_USE, _STALL, _GRAPH, _NO_LAUNCH, _LOST, _NO_OPS, _DEPENDENCY, _WAIT, CREDIT = range(1, 13)


def attribute(table: EventTable, work: Activities, leaf: I16, idle: Spans, state: HostState, lost: I64) -> Idle:
    """Name a cause for each idle span of one device.

    Args:
        table: the file's events.
        work: activities of the device.
        leaf: int16 [m], the leaf of each activity.
        idle: disjoint idle spans inside the windows, each followed by an activity.
        state: what the host threads did.
        lost: rows of calls that normally launch device work but whose device events are missing.
    """
    found = _next_training(work, idle, state.training)
    follower = np.minimum(found, len(work.row) - 1)
    known, last = work.launched[follower], found == len(work.row)
    # After the last activity nothing more was launched: all of it is the host's.
    l0 = np.where(last, idle.end, work.launch_ns[follower])
    l1 = np.where(last, idle.end, work.return_ns[follower])
    host_end = np.where(known | last, np.clip(l0, idle.start, idle.end), idle.start)
    call_end = np.where(known | last, np.clip(l1, idle.start, idle.end), idle.start)
    collector = _Collector(table, work, follower)
    _late_host(collector, Spans(idle.start, host_end), state)
    _launch_call(collector, table, Spans(host_end, call_end), state)
    late = call_end > idle.start
    _queued(collector, table, _loader_gaps(collector, Spans(call_end, idle.end), state), late, leaf, lost)
    return collector.sorted()


def _next_training(work: Activities, idle: Spans, training: list[int]) -> I64:
    """Index of the first activity at or after each span's end that a training thread launched.

    Where the recording has none (or no training thread is known), the next activity at all.
    """
    any_next = np.searchsorted(work.start_ns, idle.end, side="left")
    own = np.flatnonzero(np.isin(work.thread, training) | ~work.launched) if training else np.empty(0, np.int64)
    if not len(own):
        return any_next
    at = np.searchsorted(work.start_ns[own], idle.end, side="left")
    return np.where(at < len(own), own[np.minimum(at, len(own) - 1)], any_next)


class _Collector:
    def __init__(self, table: EventTable, work: Activities, follower: I64) -> None:
        self.work = work
        self.follower = follower
        linked = np.flatnonzero(work.launched)[:1]
        #: How far the device clock was shifted to the host's.
        self.shift_ns = int((table.start_ns[work.launch[linked]] - work.launch_ns[linked]).sum())
        self.columns: list[tuple[I64, I64, I64, I64, I64, I64, I64]] = []

    def put(self, pieces: Pieces, leaf: object, row: object, thread: object, reason: object) -> None:
        """Add pieces; `source` is the idle span's index, the rest scalars or arrays of the pieces' length."""
        count = len(pieces.start)
        spread = [np.broadcast_to(np.asarray(value, np.int64), (count,)) for value in (leaf, row, thread, reason)]
        self.columns.append((pieces.start, pieces.end, *spread, self.follower[pieces.source]))  # type: ignore[arg-type]

    def sorted(self) -> Idle:
        start, end, leaf, row, thread, reason, follower = (
            np.concatenate(column) for column in zip(*self.columns, strict=True)
        )
        order = np.argsort(start, kind="stable")
        return Idle(
            start[order],
            end[order],
            leaf[order].astype(np.int16),
            row[order],
            thread[order].astype(np.int32),
            reason[order].astype(np.int8),
            follower[order],
        )


def _full(spans: Spans) -> Pieces:
    index = np.flatnonzero(spans.end > spans.start)
    return Pieces(spans.start[index], spans.end[index], index)


def _late_host(out: _Collector, late: Spans, state: HostState) -> None:
    """Idle before the launch of the next work began: split by what the launching thread did."""
    work, follower = out.work, out.follower
    pieces = _full(late)
    if not state.has_ops:
        out.put(pieces, UNEXPLAINED, -1, work.thread[follower[pieces.source]], _NO_OPS)
        return
    spans = Spans(pieces.start + out.shift_ns, pieces.end + out.shift_ns)
    parts, leaf, row, thread = state.split(spans, work.thread[follower[pieces.source]])
    moved = Pieces(parts.start - out.shift_ns, parts.end - out.shift_ns, pieces.source[parts.source])
    out.put(moved, leaf, row, thread, 0)


def _launch_call(out: _Collector, table: EventTable, call: Spans, state: HostState) -> None:
    """Idle while the launch call of the next work ran: ordinary up to 200 us, else by what it must have been doing."""
    work, follower = out.work, out.follower
    pieces = _full(call)
    after = follower[pieces.source]
    launch = work.launch[after]
    leaf = call_leaf(table, work, after, state)
    long = table.dur_ns[launch] > CALL_NS
    reason = np.where(long, np.where(leaf == COMPILE, _FIRST_USE, _SLOW), _CALL)
    out.put(pieces, leaf, launch, work.thread[after], reason)


def call_leaf(table: EventTable, work: Activities, after: I64, state: HostState) -> I16:
    """What the time in the launch calls of some activities is charged to, int16 [k].

    Args:
        table, work, state: the file and one device's activities.
        after: indices of launched activities, int64 [k].
    """
    launch = work.launch[after]
    length = table.dur_ns[launch]
    long = length > CALL_NS
    overhead = np.array(["Lazy Function Loading" in name for name in table.names], np.bool_)
    lazy = table.rows(Category.OVERHEAD)
    lazy = lazy[overhead[table.name[lazy]]]
    loading = union(Spans(table.start_ns[lazy], table.start_ns[lazy] + table.dur_ns[lazy]))
    spans = Spans(table.start_ns[launch], table.start_ns[launch] + length)
    first_use = _first_use(table, work)[after] | (covered(spans, loading) > 0)
    leaf = np.where(long & first_use, COMPILE, LAUNCH_BOUND)
    leaf = np.where(long & _holds_allocator(table, spans, table.track[launch], state), ALLOCATOR, leaf)
    return leaf.astype(np.int16)


def _first_use(table: EventTable, work: Activities) -> NDArray[np.bool_]:
    """Whether each activity is the first of its name on the device, by launch."""
    order = np.argsort(work.launch_ns, kind="stable")
    _, first = np.unique(table.name[work.row[order]], return_index=True)
    result = np.zeros(len(work.row), np.bool_)
    result[order[first]] = True
    return result


def _holds_allocator(table: EventTable, spans: Spans, track: I32, state: HostState) -> NDArray[np.bool_]:
    rows = state.known[state.cause_leaf[table.name[state.known]] == ALLOCATOR]
    found = np.zeros(len(spans.start), np.bool_)
    for thread in np.unique(track).tolist():
        mine = track == thread
        own = rows[table.track[rows] == thread]
        calls = union(Spans(table.start_ns[own], table.start_ns[own] + table.dur_ns[own]))
        found[mine] = covered(Spans(spans.start[mine], spans.end[mine]), calls) > 0
    return found


def _loader_gaps(out: _Collector, queued: Spans, state: HostState) -> Pieces:
    """Charge ordinary gaps of the queue's tail to the data loader while the host sits in it; return the rest.

    `data_loader` is the loader time during which the device was idle, so that taking the leaf away leaves the loader's
    own measured share. A longer stall is not the loader's: the work was queued.
    """
    pieces = _full(queued)
    short = np.flatnonzero(pieces.end - pieces.start <= GAP_NS)
    loader = state.known[state.cause_leaf[state.table.name[state.known]] == DATA_LOADER]
    loader = loader[np.isin(state.table.track[loader], state.training)]
    if not len(loader) or not len(short):
        return pieces
    loader = loader[np.argsort(state.table.start_ns[loader], kind="stable")]
    shift = out.shift_ns
    start = state.table.start_ns[loader] - shift
    spans = first_started(Spans(start, start + state.table.dur_ns[loader]))
    inside, which = intersect(Spans(pieces.start[short], pieces.end[short]), Spans(spans.start, spans.end))
    source = pieces.source[short[inside.source]]
    row = loader[spans.source[which]]
    out.put(Pieces(inside.start, inside.end, source), DATA_LOADER, row, state.table.track[row], 0)
    rest = subtract(Spans(pieces.start, pieces.end), Spans(inside.start, inside.end))
    return Pieces(rest.start, rest.end, pieces.source[rest.source])


def _queued(
    out: _Collector, table: EventTable, pieces: Pieces, late: NDArray[np.bool_], leaf_of: I16, lost: I64
) -> None:
    """Idle although the work was queued: never a host leaf but `kernel_gap`.

    `late` says of each idle span whether its next work was launched inside it: then the gap is the time from the return
    of the call to the start on the device, which DESIGN calls a gap whatever its length. Beyond `CALL_NS` that would be
    a cause without evidence, so it is a stall like any other.
    """
    work, follower = out.work, out.follower
    after = follower[pieces.source]
    short = pieces.end - pieces.start <= np.where(late[pieces.source], CALL_NS, GAP_NS)
    awaited = _awaited(work, pieces, after, leaf_of)
    # The first case that holds decides.
    cases = (
        (short, KERNEL_GAP, _GAP),
        (~work.launched[after], UNEXPLAINED, _NO_LAUNCH),
        (_lost_between(table, work, pieces, after, lost), EVENTS_MISSING, _LOST),
        (awaited >= 0, np.where(awaited >= 0, leaf_of[awaited], 0), _DEPENDENCY),
        (_starts_graph(work, after) & (pieces.end - pieces.start <= GRAPH_NS), KERNEL_GAP, _GRAPH),
        (_stream_wait(table, work, after), QUEUE_STALLED, _WAIT),
    )
    conditions = [case[0] for case in cases]
    leaf = np.select(conditions, [case[1] for case in cases], QUEUE_STALLED)
    reason = np.select(conditions, [case[2] for case in cases], _STALL)
    out.put(pieces, leaf, work.launch[after], work.thread[after], reason)


def _awaited(work: Activities, pieces: Pieces, after: I64, leaf_of: I16) -> I64:
    """A copy or collective of another stream that ran until the next training work started; -1 if none.

    Only work of other threads can lie between: the next work of a training thread is `after` itself.
    """
    last = after - 1
    between = (last >= 0) & (work.start_ns[last] >= pieces.end)
    near = np.abs(work.end_ns[last] - work.start_ns[after]) <= NEAR_NS
    other = work.stream[last] != work.stream[after]
    is_copy = np.isin(leaf_of[last], _WAITABLE)
    return np.where(between & near & other & is_copy, last, -1)


def _stream_wait(table: EventTable, work: Activities, after: I64) -> NDArray[np.bool_]:
    """Whether a recorded stream wait stands right before the launch of each activity on its stream."""
    kinds = np.array(["Stream Wait Event" in text for text in table.texts], np.bool_)
    if not len(table.syncs.row) or not kinds.any():
        return np.zeros(len(after), np.bool_)
    waits = np.flatnonzero(kinds[table.syncs.kind])
    result = np.zeros(len(after), np.bool_)
    for stream in np.unique(table.syncs.stream[waits]).tolist():
        times = np.sort(table.start_ns[table.syncs.row[waits[table.syncs.stream[waits] == stream]]])
        own = np.flatnonzero(work.stream == stream)
        launches = np.sort(work.launch_ns[own])
        mine = work.stream[after] == stream
        at = work.launch_ns[after[mine]]
        previous = np.searchsorted(launches, at, side="left") - 1
        since = np.where(previous >= 0, launches[np.maximum(previous, 0)], NEVER)
        result[mine] = np.searchsorted(times, at) > np.searchsorted(times, since)
    return result


def _starts_graph(work: Activities, after: I64) -> NDArray[np.bool_]:
    """Whether an activity is the first of several that one call launched (a CUDA graph)."""
    known = np.flatnonzero(work.launched)
    _, first, counts = np.unique(work.launch[known], return_index=True, return_counts=True)
    result = np.zeros(len(work.row), np.bool_)
    result[known[first[counts > 1]]] = True
    return result[after]


def _lost_between(table: EventTable, work: Activities, pieces: Pieces, after: I64, lost: I64) -> NDArray[np.bool_]:
    """Whether calls whose device events are missing lie between the launch of the work before and after the gap."""
    if not len(lost):
        return np.zeros(len(after), np.bool_)
    times = np.sort(table.start_ns[lost])
    before = np.maximum.accumulate(np.where(work.launched, work.launch_ns, NEVER))
    at = np.searchsorted(work.start_ns, pieces.start, side="left") - 1
    since = np.where(at >= 0, before[np.maximum(at, 0)], NEVER)
    return np.searchsorted(times, since, side="right") < np.searchsorted(times, work.launch_ns[after], side="left")


def credit_syncs(table: EventTable, idle: Idle, window: I64, busy: Spans, shift_ns: int, state: HostState) -> Idle:
    """Charge later launch-bound and Python idle of a step to the syncs that drained the queue (DESIGN 1.4, rule 3).

    A sync's credit is the time it blocked the host while the device was busy; it lasts until the end of the step in
    which the sync returned. Vectorised as a queue (Lindley's recursion): with x = +credit or -idle in time order, what
    is left is S - min(0, running minimum of S), S being the running sum within the step.

    Args:
        table, state: the file and its host state.
        idle: attributed idle, in time order.
        window: ascending boundaries of the steps, int64 [k+1].
        busy: disjoint device-busy spans.
        shift_ns: how much the device clock runs behind the host's.
    """
    calls = state.known[state.leaf_of(state.known) == SYNC]
    calls = calls[np.isin(table.track[calls], state.training) & (table.category[calls] == Category.RUNTIME)]
    start = table.start_ns[calls] - shift_ns
    spans = Spans(start, start + table.dur_ns[calls])
    credit = covered(spans, busy)
    calls, spans, credit = calls[credit > 0], Spans(spans.start[credit > 0], spans.end[credit > 0]), credit[credit > 0]
    owes = np.flatnonzero((idle.leaf == LAUNCH_BOUND) | (idle.leaf == PYTHON))
    if not len(calls) or not len(owes):
        return idle
    when = np.concatenate([spans.end, idle.start_ns[owes]])
    change = np.concatenate([credit, idle.start_ns[owes] - idle.end_ns[owes]])
    is_sync = np.arange(len(when)) < len(calls)
    order = np.lexsort((~is_sync, when))
    step = np.searchsorted(window, when[order], side="right") - 1
    left = _queue(change[order], step)
    before = np.append(0, left[:-1]) * np.append(False, step[1:] == step[:-1])
    paid = np.where(is_sync[order], 0, before - left)
    last_sync = np.maximum.accumulate(np.where(is_sync[order], np.arange(len(order)), -1))
    pays = np.flatnonzero(paid > 0)
    piece = owes[order[pays] - len(calls)]
    source = calls[order[last_sync[pays]]]
    return _recharge(idle, piece, paid[pays], source)


def _queue(change: I64, step: I64) -> I64:
    """What is left of the credit after each entry, starting from zero in each step; int64."""
    running = np.cumsum(change)
    first = np.append(True, step[1:] != step[:-1])
    group = np.cumsum(first) - 1
    offset = (running - change)[first]
    local = running - offset[group]
    # A running minimum per step, done in one pass: each step is moved below everything before it.
    span = np.int64(local.max() - min(int(local.min()), 0) + 1)
    shifted = np.minimum(local, 0) - group * span
    floor = np.minimum.accumulate(shifted) + group * span
    left: I64 = local - np.minimum(floor, 0)
    return left


def _recharge(idle: Idle, piece: I64, paid: I64, source: I64) -> Idle:
    """Split each paid piece: its first `paid` nanoseconds become sync, the rest stays."""
    end = idle.end_ns.copy()
    start = idle.start_ns.copy()
    start[piece] += paid
    keep = end > start
    count = len(piece)
    columns = [
        np.concatenate([idle.start_ns[piece], start[keep]]),
        np.concatenate([idle.start_ns[piece] + paid, end[keep]]),
        np.concatenate([np.full(count, SYNC, np.int16), idle.leaf[keep]]),
        np.concatenate([source, idle.row[keep]]),
        np.concatenate([idle.thread[piece], idle.thread[keep]]),
        np.concatenate([np.full(count, CREDIT, np.int8), idle.reason[keep]]),
        np.concatenate([idle.next[piece], idle.next[keep]]),
    ]
    order = np.argsort(columns[0], kind="stable")
    return Idle(*(column[order] for column in columns))
