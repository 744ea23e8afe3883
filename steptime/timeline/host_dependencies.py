"""What waited for what on a rank without a device: its training threads as one line, and its communication.

No recording says when a thread waits for communication; it has to be seen. A thread that was idle until a collective
ended, for longer than a hole between two ops or since it asked for it, had waited for it. Of what ended unseen, while
the thread computed, only this is known: the thread had no need to wait. It is waited for where the next wait returns,
or at the end of the step, so that a replay does not run away from it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from steptime.timeline.dependencies import Dependencies, Mask, Parts
from steptime.timeline.host import HOLE_NS
from steptime.timeline.host_messages import HostCalls
from steptime.timeline.host_points import TRAINING, HostPoints
from steptime.timeline.instances import Instances
from steptime.timeline.intervals import Pieces, Spans, cut, first_started, holds, subtract, union
from steptime.timeline.partition import FileContext
from steptime.timeline.passes import step_at
from steptime.trace.events import I32, I64

#: A message that was asked for long ago came while the host looked only if that was for this share of the time: else
#: all that its end tells is when the host looked. An error costs no more than this share.
WAITED_SHARE = 0.05
#: So late a worker may end a span whose end somebody waited for, though never later than the wait is long: a few turns
#: of the scheduler (3 to 4 ms each on Linux).
LATE_NS = 10_000_000
#: The end of a step may come so much before that of the step's communication, as a share of the step: see above.
EARLY_SHARE = 0.1
_LONG_AGO = int(np.iinfo(np.int64).min // 4)


class Spent(NamedTuple):
    """Disjoint time of the training threads with a known leaf: start, end, leaf int64 [n]."""

    start: I64
    end: I64
    leaf: I64


class _Asked(msgspec.Struct, frozen=True):
    """When the threads asked for each of n instances: start_ns, end_ns int64 [n], the same where no op is recorded.

    message bool [n]: whether its end is the return of the thread that waited for it.
    """

    start_ns: I64
    end_ns: I64
    message: Mask


class _Waits(msgspec.Struct, frozen=True):
    """Waits of the training threads, disjoint, in time order: start, end, instance int64 [b]."""

    start: I64
    end: I64
    instance: I64


def host_dependencies(
    context: FileContext, calls: HostCalls, instances: Instances, spent: Spent, bounds: I64
) -> Dependencies:
    """What the rank's communication and its training threads waited for.

    Args:
        context: the file.
        calls, instances: its communication, n each.
        spent: what known causes and ops own.
        bounds: of the steps, int64 [k+1].
    """
    table = context.table
    asked = _asked(context, calls, instances)
    waits = _waits(asked, instances, spent, bounds)
    count = len(asked.start_ns)
    waited = np.isin(np.arange(count), waits.instance)
    noticed = asked.message & ~waited
    told = np.flatnonzero(noticed)
    # At the same instant what asks comes before what returns.
    at = np.concatenate([bounds, asked.start_ns, waits.end, instances.end_ns[told]])
    order = np.argsort(at, kind="stable")
    place = np.empty(len(at), np.int64)
    place[order] = np.arange(len(at))
    at = at[order]
    marks, launch, returns, seen = np.split(place, np.cumsum([len(bounds), count, len(waits.end)]))
    unseen = np.flatnonzero(~waited & ~noticed)
    until = _until(asked.end_ns[unseen], instances.end_ns[unseen], at[returns], bounds)
    place = np.concatenate([returns, marks])
    unseen, until = unseen[until >= 0], place[until[until >= 0]]
    held = np.concatenate([returns, seen, until])
    holder = np.concatenate([waits.instance, told, unseen])
    part_of, part_leaf, part_ns = _parts(context, spent, waits, at)
    none = np.zeros(count, np.int64)
    return Dependencies(
        start_ns=instances.start_ns,
        end_ns=instances.end_ns,
        stream=_in_turn(table.track[calls.row], asked, instances),
        leaf=instances.leaf,
        step=step_at(asked.start_ns, bounds),
        boundary=np.zeros(count, np.bool_),
        launch=launch,
        call_ns=asked.end_ns - asked.start_ns,
        instance=np.arange(count),
        also=np.full(count, -1, np.int16),
        before=np.empty(0, np.int64),
        after=np.empty(0, np.int64),
        parts=Parts(none, none, none),
        host=HostPoints(
            at_ns=at,
            thread=np.full(len(at), TRAINING, np.int32),
            # What passed before the end of a step is that step's.
            step=(np.searchsorted(bounds, at, side="left") - 1).astype(np.int32),
            also=np.full(len(at), -1, np.int16),
            part_of=part_of,
            part_leaf=part_leaf.astype(np.int16),
            part_ns=part_ns,
            held=held,
            holder=holder,
            held_lag_ns=np.minimum(at[held] - instances.end_ns[holder], 0),
            held_leaf=instances.leaf[holder],
        ),
        bounds=marks,
        begin_ns=bounds,
        noticed=noticed,
    )


def _asked(context: FileContext, calls: HostCalls, instances: Instances) -> _Asked:
    table = context.table
    known = calls.call >= 0
    waits_itself = np.isin(table.track[calls.row], context.state.training)
    message = np.array([kind == "p2p_transfer" for kind in calls.kinds], np.bool_)
    return _Asked(
        start_ns=np.where(known, table.start_ns[calls.call], instances.start_ns),
        end_ns=np.where(known, table.end_ns[calls.call], instances.start_ns),
        message=message & waits_itself,
    )


def _waits(asked: _Asked, instances: Instances, spent: Spent, bounds: I64) -> _Waits:
    """Where the training threads did nothing until an instance ended."""
    taken = union(Spans(spent.start, spent.end))
    busy = union(Spans(np.append(taken.start, asked.start_ns), np.append(taken.end, asked.end_ns)))
    did = np.unique(np.concatenate([busy.end, asked.start_ns, bounds]))
    end = instances.end_ns
    start = np.maximum(asked.end_ns, _last(did, end))
    idle = np.flatnonzero((start < end) & ~holds(busy, end - 1))
    idle = idle[np.lexsort((end[idle], start[idle]))]
    owned = first_started(Spans(start[idle], end[idle]))
    of = idle[owned.source]
    # Whoever did nothing since it asked, not even wait for something else, waits for that.
    message = asked.message[of]
    other = np.where(message, _last(owned.end, owned.start), _LONG_AGO)
    at_once = asked.start_ns[of] >= np.maximum(_last(taken.end, owned.end), other)
    enough = np.where(message, WAITED_SHARE * (owned.end - asked.start_ns[of]), 0)
    sure = at_once | (owned.end - owned.start > np.maximum(HOLE_NS, enough))
    # One wait after another, as for the buckets of a gradient.
    sure |= ~message & (_last(owned.end[sure], owned.start) >= _last(did, owned.end))
    waits = _Waits(owned.start[sure], owned.end[sure], of[sure])
    began = np.maximum(_last(did, busy.start - 1), _last(waits.end, busy.start))
    waits = _with_late_ends(waits, asked, instances, Spans(began, busy.start))
    inside = (waits.start >= bounds[0]) & (waits.end <= bounds[-1])
    return _Waits(waits.start[inside], waits.end[inside], waits.instance[inside])


def _with_late_ends(waits: _Waits, asked: _Asked, instances: Instances, idle: Spans) -> _Waits:
    """The waits, and those that ended a little before the end that the recording has.

    A worker wakes who waits and only then ends its span: on a busy machine the thread is back at work before that.

    idle: when the threads did nothing, though no end of theirs explains it, up to when they went on; disjoint.
    """
    workers = np.flatnonzero(~asked.message)
    if not len(workers):
        return waits
    workers = workers[np.argsort(instances.end_ns[workers], kind="stable")]
    after = np.searchsorted(instances.end_ns[workers], idle.end)
    of = workers[np.minimum(after, len(workers) - 1)]
    began = np.maximum(idle.start, asked.end_ns[of])
    length = idle.end - began
    seen_ns = np.zeros(len(asked.message), np.int64)
    seen_ns[waits.instance] = waits.end - waits.start
    late_ns = instances.end_ns[of] - idle.end
    found = np.flatnonzero(
        (after < len(workers)) & (length > np.maximum(HOLE_NS, seen_ns[of])) & (late_ns <= np.minimum(length, LATE_NS))
    )
    found = found[np.lexsort((length[found], of[found]))]
    longest = np.append(of[found][1:] != of[found][:-1], True)[: len(found)]
    found = found[longest]
    # Nobody waits twice for the same: what it did at the recorded end was by chance.
    kept = ~np.isin(waits.instance, of[found])
    start, end, instance = (
        np.append(old[kept], new[found])
        for old, new in ((waits.start, began), (waits.end, idle.end), (waits.instance, of))
    )
    order = np.argsort(end, kind="stable")
    return _Waits(start[order], end[order], instance[order])


def _place(times: I64, before: I64) -> I64:
    """Index of the last of the ascending times at or before each instant, -1 if none is."""
    return np.searchsorted(times, before, side="right") - 1


def _last(times: I64, before: I64) -> I64:
    """The last of the ascending times at or before each instant; `_LONG_AGO` if none is."""
    return np.append(times, _LONG_AGO)[_place(times, before)]


def _until(asked_ns: I64, end_ns: I64, returns_ns: I64, bounds: I64) -> I64:
    """Where the threads had certainly waited for each of some instances that nobody was seen to wait for, int64.

    An index into the ascending returns of waits and, behind them, the bounds of the steps; -1 if neither follows.
    """
    none = np.iinfo(np.int64).max
    at = np.searchsorted(returns_ns, end_ns)
    step = np.clip(np.searchsorted(bounds, end_ns, side="right") - 1, 0, max(len(bounds) - 2, 0))
    early = np.minimum(LATE_NS, EARLY_SHARE * np.diff(bounds)[step]).astype(np.int64)
    mark = np.searchsorted(bounds, np.maximum(asked_ns + 1, end_ns - early))
    by_return, by_mark = np.append(returns_ns, none)[at], np.append(bounds, none)[mark]
    found = np.where(by_return <= by_mark, at, len(returns_ns) + mark)
    return np.where(np.minimum(by_return, by_mark) < none, found, -1)


def _in_turn(track: I32, asked: _Asked, instances: Instances) -> I64:
    """One number for instances that followed each other on a worker: asked for while it was still at the one before.

    Which of several idle workers takes an instance is chance, so that nothing else is an order.
    """
    order = np.lexsort((instances.start_ns, track))
    before, after = order[:-1], order[1:]
    ended = instances.end_ns[before]
    queued = (track[before] == track[after]) & (asked.start_ns[after] < ended) & (ended <= instances.start_ns[after])
    result = np.empty(len(track), np.int64)
    result[order] = np.cumsum(np.append(True, ~queued)[: len(order)]) - 1
    return result


def _parts(context: FileContext, spent: Spent, waits: _Waits, at: I64) -> tuple[I64, I64, I64]:
    """What passed since the point before by leaf, without the waits: point, leaf, ns int64 [p] each."""
    owned = union(Spans(np.append(spent.start, waits.start), np.append(spent.end, waits.end)))
    rest = subtract(Spans(at[:1], at[-1:]), owned)
    training = context.state.training
    track = np.full(len(rest.start), training[0] if training else -1, np.int32)
    pieces, leaf, _, _ = context.state.split(Spans(rest.start, rest.end), track)
    leaf_of = np.append(spent.leaf, leaf.astype(np.int64))
    start, end = np.append(spent.start, pieces.start), np.append(spent.end, pieces.end)
    order = np.argsort(start, kind="stable")
    parts, window = cut(Pieces(start[order], end[order], order), at)
    key = np.stack([window + 1, leaf_of[parts.source]])
    distinct, which = np.unique(key, axis=1, return_inverse=True)
    ns = np.zeros(distinct.shape[1], np.int64)
    np.add.at(ns, which.ravel(), parts.end - parts.start)
    return distinct[0], distinct[1], ns
