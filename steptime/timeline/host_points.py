"""The host as a line of instants: launches, and calls that waited for the device with their return.

All training threads together are one line: forward and backward hand over to each other.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.timeline.host import ALLOCATOR, CALL_NS, LAUNCH_BOUND, SYNC, HostState
from steptime.timeline.idle import NEAR_NS, call_leaf
from steptime.timeline.intervals import Spans
from steptime.timeline.links import BLOCKING_NS, CLOCK_NOISE_NS, Activities
from steptime.trace.events import I32, I64, Category, EventTable
from steptime.trace.host_calls import host_cause

Mask = NDArray[np.bool_]
I16 = NDArray[np.int16]

#: The training threads as one line of host points; other threads count from 1.
TRAINING = 0
#: A call that waits needs about this long itself.
OWN_CALL_NS = 5_000
#: Launches are held by a full queue only where at least this many are under way (CUDA's own limit is 1,024).
LEAST_QUEUE = 32
#: The queue counts as full from this share of the most that was ever under way, if what freed it ended so close by.
FULL_SHARE, FREED_NS = 0.9, 50_000
#: Calls that wait for all streams of the device.
_WHOLE_DEVICE = ("DeviceSynchronize", "CtxSynchronize", "ContextSynchronize", "ThreadSynchronize", "Free")


class HostPoints(msgspec.Struct, frozen=True):
    """h instants of the host on the device's clock, sorted by thread, then time.

    at_ns int64 [h]; thread int32 [h]: `TRAINING`, or a thread of its own; step int32 [h]: index of the step that the
    host was in, -1 before the first, the number of steps after the last; also int16 [h]: the leaf with which the time
    before the point goes, whatever it was spent on (the launch of a copy for a value that the host asks for), -1.

    What passed since the point before of the same thread, less what a call waited for the device, in p parts: part_of
    int64 [p], index of the point; part_leaf int16 [p]; part_ns int64 [p].

    held int64 [b]: returns of calls that wait for the device; holder int64 [b]: the activity whose end they wait for;
    held_lag_ns int64 [b]: how long after that end at least; held_leaf int16 [b]: what the waiting is charged to.
    """

    at_ns: I64
    thread: I32
    step: I32
    also: I16
    part_of: I64
    part_leaf: I16
    part_ns: I64
    held: I64
    holder: I64
    held_lag_ns: I64
    held_leaf: I16


class _Calls(msgspec.Struct, frozen=True):
    """c calls in order of start: row, start_ns, end_ns int64 [c] on the device's clock; track int32 [c]."""

    row: I64
    start_ns: I64
    end_ns: I64
    track: I32


def host_points(table: EventTable, work: Activities, state: HostState, marks_ns: I64) -> tuple[HostPoints, I64]:
    """Host points of one device, and the point at which each activity was launched (-1: not recorded), int64 [m].

    Args:
        table, work, state: the file and one device's activities.
        marks_ns: boundaries of the steps on the host, on the device's clock, int64 [k+1].
    """
    calls = _calls(table, work, state)
    waiting, holder, leaf = _holders(table, work, state, calls)
    slow, slow_leaf = _slow_launches(table, work, state, calls, waiting)
    returns = np.unique(np.concatenate([waiting, slow]))
    # Of each call its start; of one that waited or was slow, its return as well.
    at = np.concatenate([calls.start_ns, calls.end_ns[returns]])
    call = np.concatenate([np.arange(len(calls.row)), returns])
    back = np.arange(len(at)) >= len(calls.row)
    lines = np.unique(calls.track[~np.isin(calls.track, state.training)])
    thread = np.where(np.isin(calls.track, state.training), TRAINING, np.searchsorted(lines, calls.track) + 1)[call]
    order = np.lexsort((back, at, thread))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return_of = np.full(len(calls.row), -1, np.int64)
    return_of[returns] = place[len(calls.row) :]
    at, thread, call, back = at[order], thread[order].astype(np.int32), call[order], back[order]
    late = work.end_ns[holder] > calls.start_ns[waiting]
    after_ns = calls.end_ns[waiting] - work.end_ns[holder]
    kept = np.zeros(len(calls.row), np.bool_)
    kept[waiting[late]] = True
    charged = np.full(len(calls.row), -1, np.int16)
    charged[waiting] = leaf
    charged[slow] = slow_leaf
    parts = _parts(state, calls, (at, thread, call, back), kept, charged)
    start_of_row = np.full(len(table.start_ns), -1, np.int64)
    start_of_row[calls.row] = place[: len(calls.row)]
    # What a slow call launches starts when it returns.
    start_of_row[calls.row[slow]] = return_of[slow]
    launch = np.where(work.launched, start_of_row[work.launch], -1)
    return (
        HostPoints(
            at_ns=at,
            thread=thread,
            step=(np.searchsorted(marks_ns, at, side="right") - 1).astype(np.int32),
            also=_for_a_value(state, calls)[call],
            part_of=parts[0],
            part_leaf=parts[1],
            part_ns=parts[2],
            held=return_of[waiting],
            holder=holder,
            held_lag_ns=np.where(late, after_ns, np.minimum(after_ns, OWN_CALL_NS)),
            held_leaf=leaf,
        ),
        launch,
    )


def _calls(table: EventTable, work: Activities, state: HostState) -> _Calls:
    """Launches of the device's activities, and what may wait for it on the training threads."""
    linked = np.flatnonzero(work.launched)
    shift_ns = int((table.start_ns[work.launch[linked[:1]]] - work.launch_ns[linked[:1]]).sum())
    known = state.known[np.isin(table.track[state.known], state.training)]
    leaf = state.leaf_of(known)
    waits = known[(leaf == SYNC) | ((leaf == ALLOCATOR) & (table.dur_ns[known] > BLOCKING_NS))]
    waits = waits[table.category[waits] == Category.RUNTIME]
    row = np.unique(np.concatenate([work.launch[linked], waits]))
    row = row[np.argsort(table.start_ns[row], kind="stable")]
    start = table.start_ns[row] - shift_ns
    return _Calls(row, start, start + table.dur_ns[row], table.track[row])


def _slow_launches(
    table: EventTable, work: Activities, state: HostState, calls: _Calls, waiting: I64
) -> tuple[I64, I16]:
    """Launches that took long without waiting for the device, and what that is charged to: int64 [s], int16 [s]."""
    launched = np.flatnonzero(work.launched)
    rows, first = np.unique(work.launch[launched], return_index=True)
    call = np.searchsorted(calls.row, rows, sorter=(order := np.argsort(calls.row)))
    call = order[call]
    slow = (calls.end_ns[call] - calls.start_ns[call] > CALL_NS) & ~np.isin(call, waiting)
    return call[slow], call_leaf(table, work, launched[first[slow]], state)


def _for_a_value(state: HostState, calls: _Calls) -> I16:
    """`SYNC` for calls that wait, or that an op makes which asks for a value on the host; else -1; int16 [c]."""
    table = state.table
    asks = np.array([host_cause(name) == "sync_op" for name in table.names], np.bool_)
    ops = table.ops.row[asks[table.name[table.ops.row]]]
    waits = state.leaf_of(calls.row) == SYNC
    return np.where(
        waits | state.threads.inside(ops, calls.track, table.start_ns[calls.row]), np.int16(SYNC), np.int16(-1)
    )


def _holders(table: EventTable, work: Activities, state: HostState, calls: _Calls) -> tuple[I64, I64, I16]:
    """Which calls waited for which activities' ends, and to what that is charged: call, holder int64 [b], int16 [b]."""
    leaf = state.leaf_of(calls.row)
    waits = np.flatnonzero((leaf == SYNC) | (leaf == ALLOCATOR))
    found = [_own_copies(work, calls, waits), _drained(table, work, calls, waits), _full_queue(work, calls, leaf)]
    call, holder = (np.concatenate(column) for column in zip(*found, strict=True))
    charged = np.where(leaf[call] >= 0, leaf[call], LAUNCH_BOUND).astype(np.int16)
    return call, holder, charged


def _own_copies(work: Activities, calls: _Calls, waits: I64) -> tuple[I64, I64]:
    """Copies that block: they return once what they launched has ended."""
    launched = np.flatnonzero(work.launched)
    order = launched[np.argsort(work.launch[launched], kind="stable")]
    rows = work.launch[order]
    at = np.searchsorted(rows, calls.row[waits], side="right") - 1
    mine = np.flatnonzero((at >= 0) & (rows[np.maximum(at, 0)] == calls.row[waits])) if len(rows) else at[:0]
    return waits[mine], order[at[mine]] if len(mine) else at[:0]


def _drained(table: EventTable, work: Activities, calls: _Calls, waits: I64) -> tuple[I64, I64]:
    """Synchronisations: what had been launched before, on the streams that they waited for, if it ended in time.

    A call does not say for which stream it waits. For the device: all. Else for the one whose work ended last before
    the return: what it waited for can't have ended later.
    """
    launches = np.unique(work.launch[work.launched])
    waits = waits[~np.isin(calls.row[waits], launches)]
    if not len(waits) or not len(launches):
        return waits[:0], waits[:0]
    latest, ends = [], []
    for stream in np.unique(work.stream[work.launched]).tolist():
        own = np.flatnonzero((work.stream == stream) & work.launched)
        given = np.searchsorted(np.sort(work.launch_ns[own]), calls.start_ns[waits], side="left")
        ended = np.searchsorted(
            np.maximum.accumulate(work.end_ns[own]), calls.end_ns[waits] + CLOCK_NOISE_NS, side="right"
        )
        at = np.minimum(given, ended) - 1
        latest.append(np.where(at >= 0, own[np.maximum(at, 0)], -1))
        ends.append(np.where(at >= 0, work.end_ns[own[np.maximum(at, 0)]], np.iinfo(np.int64).min))
    found, end = np.stack(latest), np.stack(ends)
    whole = np.array([any(part in name for part in _WHOLE_DEVICE) for name in table.names], np.bool_)
    wanted = whole[table.name[calls.row[waits]]][None, :] | (np.arange(len(found))[:, None] == end.argmax(axis=0))
    stream, which = np.nonzero(wanted & (found >= 0))
    return waits[which], found[stream, which]


def _full_queue(work: Activities, calls: _Calls, leaf: I16) -> tuple[I64, I64]:
    """Launches that waited for a place in the queue: they return when an activity that had one ends, or starts.

    A long call that returns with an end was held whatever the queue's length: what held it may be on any stream.
    """
    none = np.empty(0, np.int64)
    is_launch = np.isin(calls.row, work.launch[work.launched]) & (leaf < 0)
    launch = np.flatnonzero(is_launch)
    if not len(launch):
        return none, none
    by_end = np.argsort(work.end_ns, kind="stable")
    launched = np.sort(work.launch_ns[work.launched])
    ended = np.searchsorted(work.end_ns[by_end], calls.end_ns[launch] + CLOCK_NOISE_NS, side="right")
    under_way = np.searchsorted(launched, calls.start_ns[launch]) - ended + np.count_nonzero(~work.launched)
    most = max(int(under_way.max()), LEAST_QUEUE)
    took = calls.end_ns[launch] - calls.start_ns[launch]
    holder = by_end[np.maximum(ended - 1, 0)]
    since = np.where(ended > 0, calls.end_ns[launch] - work.end_ns[holder], FREED_NS + 1)
    full = (since <= FREED_NS) & (under_way >= FULL_SHARE * most) & (took > BLOCKING_NS)
    held = full | ((since <= NEAR_NS) & (took > CALL_NS))
    return launch[held], holder[held]


def _parts(
    state: HostState, calls: _Calls, points: tuple[I64, I32, I64, Mask], kept: Mask, charged: I16
) -> tuple[I64, I16, I64]:
    """What passed before each point by leaf; a call that the device kept needs but little itself.

    kept bool [c]: which calls it kept; charged int16 [c]: what their waiting is charged to.
    """
    at, thread, call, back = points
    begins = np.append(True, thread[1:] != thread[:-1]) if len(at) else np.empty(0, np.bool_)
    since = np.where(begins, at, np.append(at[:1], at[:-1]))
    ahead = np.flatnonzero(~back & (at > since))
    shift_ns = int((state.table.start_ns[calls.row[:1]] - calls.start_ns[:1]).sum())
    spans = Spans(since[ahead] + shift_ns, at[ahead] + shift_ns)
    pieces, leaf, _, _ = state.split(spans, calls.track[call[ahead]])
    own = np.flatnonzero(back)
    own_ns = at[own] - since[own]
    own_ns = np.where(kept[call[own]], np.minimum(own_ns, OWN_CALL_NS), own_ns)
    key = np.stack([ahead[pieces.source], leaf.astype(np.int64)])
    distinct, which = np.unique(key, axis=1, return_inverse=True)
    ns = np.zeros(distinct.shape[1], np.int64)
    np.add.at(ns, which.ravel(), pieces.end - pieces.start)
    return (
        np.concatenate([distinct[0], own]),
        np.concatenate([distinct[1], charged[call[own]]]).astype(np.int16),
        np.concatenate([ns, own_ns]),
    )
