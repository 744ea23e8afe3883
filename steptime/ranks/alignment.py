"""All ranks on one clock: the matched collectives with arrivals and ends that can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.clocks import Clocks, fit_clocks
from steptime.ranks.collectives import Matches, match
from steptime.ranks.counted import Row
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

#: A collective that ends on one member this long before another has started was not matched rightly: device stamps are
#: good to microseconds, and the clocks' own error is added.
IMPOSSIBLE_NS = 20_000
#: A group of which more than this share is impossible is not one group: nothing of it is believed.
IMPOSSIBLE_SHARE = 0.2
#: A transfer may take this many times the fastest of its kind and size before a rank must be missing (DESIGN 2.2).
SLOWEST_TRANSFER = 2

NOBODY = -1


class Collectives(msgspec.Struct, frozen=True):
    """g matched collectives with k members, in columns on the common clock; `matches` has their kinds and groups.

    arrival_ns, end_ns int64 [k]: start and end of each member. Per match, int64 [g]: last_ns, the last arrival, and
    late, the row (index) that arrived then; second_ns: the last arrival of the others; first_end_ns: the first end;
    error_ns: how far a distance between two members may be off at most. comparable bool [g]: all members on clocks that
    can be compared. synchronous bool [g]: nobody ended before the last arrival, as waiting for it implies.
    all_seen bool [g]: all members are among the files; late_seen bool [g]: they are, or the transfer after the last
    recorded arrival is so short that nobody else can have been later. fastest_ns int64 [g]: the shortest instance of
    the same kind and size in the job.
    """

    matches: Matches
    arrival_ns: I64
    end_ns: I64
    last_ns: I64
    late: I64
    second_ns: I64
    first_end_ns: I64
    error_ns: I64
    comparable: Mask
    synchronous: Mask
    all_seen: Mask
    late_seen: Mask
    fastest_ns: I64

    @property
    def transfer_ns(self) -> I64:
        """From the last recorded arrival to the first end, int64 [g]; never negative."""
        result: I64 = np.maximum(self.first_end_ns - self.last_ns, 0)
        return result


class Alignment(msgspec.Struct, frozen=True):
    """r rows on one clock.

    offset_ns int64 [r], drift float64 [r] (ns of a ns) and error_ns int64 [r] are those of `clocks`; the counts are
    communication activities in groups of more than one rank. notes: what a reader must know.
    """

    clocks: Clocks
    collectives: Collectives
    notes: list[str]

    @property
    def offset_ns(self) -> I64:
        """How far each row's clock is ahead of the common one at its recording's start, int64 [r]."""
        return self.clocks.offset_ns

    @property
    def drift(self) -> NDArray[np.float64]:
        """How much faster each row's clock runs, float64 [r]."""
        return self.clocks.drift

    @property
    def error_ns(self) -> I64:
        """How far each offset may be off, int64 [r]."""
        return self.clocks.error_ns

    @property
    def matched(self) -> int:
        """Communication activities whose partners were found."""
        return self.collectives.matches.matched

    @property
    def unmatched(self) -> int:
        """Communication activities without a partner among the files."""
        return self.collectives.matches.unmatched

    @property
    def refused(self) -> int:
        """Communication activities whose partners contradict them."""
        return self.collectives.matches.refused


def align(rows: Sequence[Row]) -> Alignment:
    """Match the collectives of all rows and put their clocks on one."""
    matches = match(rows)
    clocks = fit_clocks(rows, matches)
    bad = _impossible(_on_one_clock(matches, clocks))
    if bad.any():
        matches = matches.without(bad)
        clocks = fit_clocks(rows, matches)
        matches = matches.without(_impossible(_on_one_clock(matches, clocks)))
    collectives = _on_one_clock(matches, clocks)
    notes = list(clocks.notes)
    parts = len(np.unique(clocks.comparable))
    if parts > 1 and matches.count:
        notes.append(
            f"the ranks' clocks fall into {parts} parts without a common collective: not compared with each other"
        )
    return Alignment(clocks, collectives, notes)


def _on_one_clock(matches: Matches, clocks: Clocks) -> Collectives:
    arrival = clocks.common(matches.row, matches.start_ns)
    end = clocks.common(matches.row, matches.end_ns)
    if not matches.count:
        none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
        return Collectives(matches, arrival, end, none, none, none, none, none, no, no, no, no, none)
    head = matches.first[:-1]
    order = np.lexsort((matches.row, arrival, matches.match))
    last, second = order[matches.first[1:] - 1], order[np.maximum(matches.first[1:] - 2, head)]
    first_end = np.minimum.reduceat(end, head)
    part = clocks.comparable[matches.row]
    comparable = np.minimum.reduceat(part, head) == np.maximum.reduceat(part, head)
    error = _errors(matches, clocks)
    synchronous = first_end >= arrival[last] - error - IMPOSSIBLE_NS
    complete = matches.complete
    fastest = _fastest(matches, end - arrival)
    return Collectives(
        matches=matches,
        arrival_ns=arrival,
        end_ns=end,
        last_ns=arrival[last],
        late=matches.row[last],
        second_ns=arrival[second],
        first_end_ns=first_end,
        error_ns=error,
        comparable=comparable,
        synchronous=synchronous,
        all_seen=complete,
        late_seen=complete | (first_end - arrival[last] <= SLOWEST_TRANSFER * fastest),
        fastest_ns=fastest,
    )


def _errors(matches: Matches, clocks: Clocks) -> I64:
    """Largest error between two members, int64 [g]: 0 if all share a clock."""
    head = matches.first[:-1]
    of = clocks.clock[matches.row]
    shared = np.minimum.reduceat(of, head) == np.maximum.reduceat(of, head)
    worst: I64 = np.maximum.reduceat(clocks.error_ns[matches.row], head)
    return np.where(shared, 0, worst)


def _fastest(matches: Matches, length_ns: I64) -> I64:
    """Length of the shortest instance of each match's kind, size and number of members, int64 [g]."""
    key = np.stack([matches.leaf, matches.elements, matches.expected])
    kind = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    fastest = np.full(int(kind.max()) + 1, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(fastest, kind[matches.match], length_ns)
    return fastest[kind]


def _impossible(collectives: Collectives) -> Mask:
    """Matches that end before they start, bool [g], and all of a group and kind in which many do."""
    matches = collectives.matches
    if not matches.count:
        return np.empty(0, np.bool_)
    checked = matches.barrier & collectives.comparable
    bad: Mask = checked & ~collectives.synchronous
    key = np.stack([matches.group, matches.leaf])
    kind = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    share = np.bincount(kind, bad) / np.maximum(np.bincount(kind, checked), 1)
    result: Mask = bad | (matches.barrier & (share > IMPOSSIBLE_SHARE)[kind])
    return result
