"""A late rank that was itself kept waiting is not the culprit: chains of waits are followed to their origin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, Collectives
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

#: A late rank that spent this share of its lateness waiting for another was kept, not slow.
KEPT_SHARE = 0.5


class WaitTimes:
    """Waits by row on the common clock: how long a row waited between two instants, and what kept it longest.

    row, start_ns, ns, match, late: int64 [w] each, as in `waits.Waits`, start_ns on the common clock.
    """

    def __init__(self, row: I64, start_ns: I64, ns: I64, match: I64, late: I64) -> None:
        order = np.lexsort((start_ns, row))
        self.start, self.ns, self.match, self.late = start_ns[order], ns[order], match[order], late[order]
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
    which ended earlier: chains can't be circles.
    """
    matches = collectives.matches
    origin = np.where(usable, collectives.late, NOBODY)
    if not len(times.ns):
        return origin
    since = _since(collectives, blocking)
    waited = times.between(matches.row, since[matches.match], collectives.arrival_ns)
    is_late = matches.row == collectives.late[matches.match]
    others = _median_of_others(matches.match, matches.first, waited, is_late)
    lateness = collectives.last_ns - _median_of_others(matches.match, matches.first, collectives.arrival_ns, is_late)
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


def _since(collectives: Collectives, blocking: Mask) -> I64:
    """End of the previous blocking match with the same members, int64 [g]; for the first one long ago."""
    matches = collectives.matches
    end = np.maximum.reduceat(collectives.end_ns, matches.first[:-1])
    one = np.where(matches.pair, matches.row[matches.first[:-1]], -1)
    other = np.where(matches.pair, matches.row[matches.first[1:] - 1], -1)
    order = np.lexsort((collectives.last_ns, other, one, matches.group))
    new = np.append(True, np.zeros(len(order) - 1, np.bool_))
    for key in (matches.group, one, other):
        new[1:] |= key[order][1:] != key[order][:-1]
    at = np.arange(len(order))
    began = np.maximum.accumulate(np.where(new, at, 0))
    latest = np.maximum.accumulate(np.where(blocking[order], at, -1))
    before = np.append(-1, latest[:-1])
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
