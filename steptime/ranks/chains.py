"""A late rank that was itself kept waiting is not the culprit: chains of waits are followed to their origin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, Collectives
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

#: A late rank that spent this share of its lateness waiting for another was kept, not slow.
KEPT_SHARE = 0.5
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
        self.key = row[order] * self.width + (self.start - self.zero)

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


def origins(collectives: Collectives, times: WaitTimes, usable: Mask, blocking: Mask) -> I64:
    """Who is at the start of each match's chain of waits, int64 [g].

    The last member of a match counts as kept if, since the members last met for sure, it waited (exposed) longer
    than its peers' median by `KEPT_SHARE` of its lateness. Then the origin is that of the wait that kept it longest,
    which ended earlier: chains can't be circles. A run of matches that were queued one behind the other counts as one:
    what its members wait in it is the lateness, not what kept them.
    """
    matches = collectives.matches
    origin = np.where(usable, collectives.late, NOBODY)
    if not len(times.ns):
        return origin
    order, fresh = _in_order(collectives)
    run = _runs(collectives, order, fresh)
    since = _since(collectives, blocking, (order, fresh, run))
    inside = _waited_in_run(collectives, times, run)
    waited = times.between(matches.row, since[matches.match], collectives.arrival_ns) - inside
    is_late = matches.row == collectives.late[matches.match]
    others = _median_of_others(matches.match, matches.first, waited, is_late)
    arrival = collectives.arrival_ns - inside
    lateness = collectives.last_ns - _median_of_others(matches.match, matches.first, arrival, is_late)
    own = np.zeros(matches.count, np.int64)
    own[matches.match[is_late]] = waited[is_late]
    error = np.maximum(collectives.error_ns, 1)
    kept = np.flatnonzero(usable & (lateness > error) & (own - others >= KEPT_SHARE * lateness))
    parent = np.full(matches.count, -1, np.int64)
    parent[kept] = times.longest(collectives.late[kept], since[kept], collectives.last_ns[kept])
    return _followed(origin, parent)


def _followed(origin: I64, parent: I64) -> I64:
    """Origins at the ends of the chains: `parent` is the earlier match that kept the late member of each, -1: none."""
    root = np.where(parent >= 0, parent, np.arange(len(parent)))
    while True:
        further = root[root]
        if (further == root).all():
            return origin[root]
        root = further


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
