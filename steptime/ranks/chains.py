"""A late rank that was itself kept waiting is not the culprit: chains of waits are followed to their origin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, Collectives
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

#: A late rank that spent this share of its lateness waiting for another was kept, not slow.
KEPT_SHARE = 0.5
#: How many meetings before and after are looked at: a backward pass has a bucket for every few layers.
_NEAREST = 16
#: What starts within this time of its predecessor's end had been queued behind it (DESIGN 1.4, `kernel_gap`).
QUEUED_NS = 20_000


class WaitTimes:
    """Waits by row on the common clock: how long a row waited between two instants, and what kept it longest.

    row, start_ns, ns, match, late: int64 [w] each, as in `waits.Waits`, start_ns on the common clock.
    """

    def __init__(self, row: I64, start_ns: I64, ns: I64, match: I64, late: I64) -> None:
        order = np.lexsort((start_ns, row))
        self.row, self.start, self.ns = row[order], start_ns[order], ns[order]
        self.match, self.late = match[order], late[order]
        self.before = np.append(0, np.cumsum(self.ns))
        # One ascending key over all rows: row first, then time.
        self.zero = int(start_ns.min()) if len(start_ns) else 0
        self.width = int(start_ns.max()) - self.zero + 2 if len(start_ns) else 2
        self.key = self.row * self.width + (self.start - self.zero)

    def sides(self) -> list[WaitTimes]:
        """The waits for ranks below, above, and not recorded: peers that do the same wait on the same sides."""
        below = (self.late != NOBODY) & (self.late < self.row)
        above = self.late > self.row
        columns = (self.row, self.start, self.ns, self.match, self.late)
        return [WaitTimes(*(one[side] for one in columns)) for side in (below, above, ~below & ~above)]

    def _at(self, row: I64, time_ns: I64) -> I64:
        inside = np.clip(time_ns - self.zero, 0, self.width - 1)
        return np.searchsorted(self.key, row * self.width + inside).astype(np.int64)

    def between(self, row: I64, start_ns: I64, end_ns: I64) -> I64:
        """Waits that began in [start, end), int64 [n]."""
        low, high = self._at(row, start_ns), self._at(row, end_ns)
        result: I64 = self.before[np.maximum(high, low)] - self.before[low]
        return result

    def longest(self, row: I64, start_ns: I64, end_ns: I64) -> I64:
        """The match of the longest wait for the one that kept each row longest in [start, end), int64 [n]; -1: none."""
        low, high = self._at(row, start_ns), self._at(row, end_ns)
        counts = np.maximum(high - low, 0)
        source = np.repeat(np.arange(len(row)), counts)
        piece = low[source] + np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        result = np.full(len(row), -1, np.int64)
        if not len(piece):
            return result
        which = np.unique(np.stack([source, self.late[piece]]), axis=1, return_inverse=True)[1]
        total = np.bincount(which.ravel(), self.ns[piece])
        order = np.lexsort((self.ns[piece], total[which.ravel()], source))
        last = np.append(source[order][1:] != source[order][:-1], True)
        chosen = order[last]
        result[source[chosen]] = self.match[piece[chosen]]
        return result


def origins(collectives: Collectives, times: WaitTimes, usable: Mask, blocking: Mask) -> tuple[I64, Mask]:
    """Who is at the start of each match's chain of waits, int64 [g]; and where it comes back to itself, bool [g].

    Nobody (`NOBODY`) is at the start of such a circle, nor of a chain that leads to a rank that was not recorded.

    The last member of a match counts as kept if, since the members last met for sure, it waited (exposed) longer
    than its peers' median by `KEPT_SHARE` of its lateness. Then the origin is that of the wait that kept it longest on
    the side where it waited longest beyond its peers: what all of them wait, such as a pipeline's warm-up, kept nobody.
    A run of matches that were queued one behind the other counts as one: what its members wait in it is the lateness,
    not what kept them.
    """
    matches = collectives.matches
    origin = np.where(usable, collectives.late, NOBODY)
    if not len(times.ns):
        return origin, np.zeros(matches.count, np.bool_)
    order, fresh = _in_order(collectives)
    run = _runs(collectives, order, fresh)
    since = _since(collectives, blocking, (order, fresh, run))
    is_late = matches.row == collectives.late[matches.match]

    def beyond_peers(of: WaitTimes) -> I64:
        waited = of.between(matches.row, since[matches.match], collectives.arrival_ns)
        waited = waited - _waited_in_run(collectives, of, run)
        own = np.zeros(matches.count, np.int64)
        own[matches.match[is_late]] = waited[is_late]
        return own - _median_of_others(matches.match, matches.first, waited, is_late)

    arrival = collectives.arrival_ns - _waited_in_run(collectives, times, run)
    lateness = collectives.last_ns - _median_of_others(matches.match, matches.first, arrival, is_late)
    error = np.maximum(collectives.error_ns, 1)
    kept = np.flatnonzero(usable & (lateness > error) & (beyond_peers(times) >= KEPT_SHARE * lateness))
    parent = np.full(matches.count, -1, np.int64)
    sides = times.sides()
    longest = np.stack([of.longest(collectives.late[kept], since[kept], collectives.last_ns[kept]) for of in sides])
    excess = np.where(longest >= 0, np.stack([beyond_peers(of)[kept] for of in sides]), np.iinfo(np.int64).min)
    parent[kept] = longest[excess.argmax(axis=0), np.arange(len(kept))]
    by_message = kept[matches.pair[parent[kept]] & (parent[kept] >= 0)]
    parent[by_message] = _own_meeting(collectives, by_message, parent[by_message], usable, lateness, since)
    return _followed(origin, parent)


def _own_meeting(collectives: Collectives, child: I64, message: I64, usable: Mask, lateness: I64, since: I64) -> I64:
    """Where the sender of a late message was itself late among its own peers, int64 [n]; the message if nowhere.

    Whether it was slow or kept can't be told from the one that waited for its message, only from ranks that do the same
    work. Of the meetings to which the sender came last, the nearest in time that is late enough to explain the child.
    """
    found = message.copy()
    best = collectives.last_ns[child] - since[child]
    meetings = np.flatnonzero(usable & ~collectives.matches.pair)
    order = meetings[np.lexsort((collectives.last_ns[meetings], collectives.late[meetings]))]
    late, last = collectives.late[order], collectives.last_ns[order]
    sender = collectives.late[message]
    low, high = np.searchsorted(late, sender), np.searchsorted(late, sender, side="right")
    zero = int(collectives.last_ns.min())
    width = int(collectives.last_ns.max()) - zero + 1
    at = np.searchsorted(late * width + (last - zero), sender * width + (collectives.last_ns[child] - zero))
    for step in range(-_NEAREST, _NEAREST):
        here = at + step
        inside = np.flatnonzero((here >= low) & (here < high))
        one = order[here[inside]]
        apart = np.abs(collectives.last_ns[one] - collectives.last_ns[child[inside]])
        better = (apart < best[inside]) & (lateness[one] >= KEPT_SHARE * lateness[child[inside]])
        best[inside[better]], found[inside[better]] = apart[better], one[better]
    return found


def _followed(origin: I64, parent: I64) -> tuple[I64, Mask]:
    """Origins at the ends of the chains, and circles: `parent` is the match that kept the late member, -1: none."""
    root = np.where(parent >= 0, parent, np.arange(len(parent)))
    for _ in range(len(parent).bit_length()):
        root = root[root]
    circle = parent[root] >= 0
    return np.where(circle, NOBODY, origin[root]), circle


def _in_order(collectives: Collectives) -> tuple[I64, Mask]:
    """All matches by their members, then time, int64 [g]; and where in that order other members begin, bool [g]."""
    matches = collectives.matches
    one = np.where(matches.pair, matches.row[matches.first[:-1]], -1)
    other = np.where(matches.pair, matches.row[matches.first[1:] - 1], -1)
    order = np.lexsort((collectives.last_ns, other, one, matches.group))
    fresh = np.append(True, np.zeros(len(order) - 1, np.bool_))
    for key in (matches.group, one, other):
        fresh[1:] |= key[order][1:] != key[order][:-1]
    return order, fresh


def _runs(collectives: Collectives, order: I64, fresh: Mask) -> I64:
    """Number of each match's run, int64 [g], ascending in that order.

    A match belongs to the run of the one before if most of its members but the last had it queued behind that one:
    their compute had gone ahead, so the end of the one before did not bring them in step.
    """
    matches = collectives.matches
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    sort = np.lexsort((place[matches.match], matches.row))
    row, at = matches.row[sort], place[matches.match[sort]]
    gap = np.full(len(sort), QUEUED_NS, np.int64)
    follows = (row[1:] == row[:-1]) & (at[1:] == at[:-1] + 1)
    gap[1:][follows] = (matches.start_ns[sort][1:] - matches.end_ns[sort][:-1])[follows]
    queued = np.zeros(len(sort), np.bool_)
    queued[sort] = gap < QUEUED_NS
    early = matches.row != collectives.late[matches.match]
    votes = np.bincount(matches.match, queued & early, minlength=matches.count)
    joined = 2 * votes > np.bincount(matches.match, early, minlength=matches.count)
    result = np.empty(len(order), np.int64)
    result[order] = np.cumsum(fresh | ~joined[order])
    return result


def _waited_in_run(collectives: Collectives, times: WaitTimes, run: I64) -> I64:
    """What each member had waited in earlier matches of the same run, int64 [k]."""
    matches = collectives.matches
    key = matches.row * matches.count + matches.match
    where = np.argsort(key)
    mine = np.searchsorted(key[where], times.row * matches.count + times.match)
    held = np.zeros(len(key), np.int64)
    np.add.at(held, where[mine], times.ns)
    sort = np.lexsort((collectives.last_ns[matches.match], run[matches.match], matches.row))
    before = np.cumsum(held[sort]) - held[sort]
    row, of_run = matches.row[sort], run[matches.match[sort]]
    head = np.append(True, (row[1:] != row[:-1]) | (of_run[1:] != of_run[:-1]))[: len(sort)]
    result = np.empty(len(key), np.int64)
    result[sort] = before - before[head][np.cumsum(head) - 1]
    return result


def _since(collectives: Collectives, blocking: Mask, ordered: tuple[I64, Mask, I64]) -> I64:
    """End of the last blocking match with the same members before the run of each, int64 [g]; else long ago."""
    order, fresh, run = ordered
    matches = collectives.matches
    end = np.maximum.reduceat(collectives.end_ns, matches.first[:-1])
    at = np.arange(len(order))
    began = np.maximum.accumulate(np.where(fresh, at, 0))
    latest = np.append(-1, np.maximum.accumulate(np.where(blocking[order], at, -1))[:-1])
    of_run = run[order]
    head = np.append(True, of_run[1:] != of_run[:-1])[: len(order)]
    before = latest[head][np.cumsum(head) - 1]
    known = before >= began
    result = np.full(matches.count, np.iinfo(np.int64).min // 2, np.int64)
    result[order[known]] = end[order[before[known]]]
    return np.minimum(result, collectives.last_ns)


def _median_of_others(match: I64, first: I64, values: I64, left_out: Mask) -> I64:
    """Lower median of each match's values without those left out (one a match), int64 [g]."""
    order = np.lexsort((values, left_out, match))
    count = np.diff(first) - np.bincount(match[left_out], minlength=len(first) - 1)
    result: I64 = values[order[first[:-1] + np.maximum(count - 1, 0) // 2]]
    return result
