"""How far the hosts' clocks are apart, from the collectives that their ranks did together (DESIGN 2.1).

A collective with barrier semantics ends on all members at about the same instant. So the ends of one collective on two
hosts differ by the distance of their clocks, plus a few microseconds either way; over many collectives a line (offset
and drift) is fitted that minimises the sum of absolute differences, since the tail is heavy. The line is then kept
inside what causality allows: no member ends before all have started.

Everything is linear in the number of activities: the fit solves its equations without ever writing them down.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.clock_fit import Ends, anchored, errors, fit_lines, inside_bounds
from steptime.ranks.collectives import Matches
from steptime.ranks.counted import Row
from steptime.trace.events import I64

F64 = NDArray[np.float64]

#: Ranks of one host whose ends contradict a common clock by more than this, and this often, have clocks of their own.
CONTRADICTION_NS, CONTRADICTION_SHARE = 50_000, 0.1

#: Recordings of one host that begin further apart than this (an hour) and do not meet are not of one job by one clock.
APART_NS = 3_600_000_000_000


class Clocks(msgspec.Struct, frozen=True):
    """The clock of each of r rows.

    clock int64 [r]: rows with equal numbers share a clock; comparable int64 [r]: rows with equal numbers can be
    compared. A row's time t is ``t - offset_ns - drift * (t - start_ns)`` on the common clock, where start_ns int64 [r]
    is on the row's own; offset_ns int64 [r], drift float64 [r]. error_ns int64 [r]: how far the offset may be off,
    0 where all rows share one clock. notes: what is odd about the clocks.
    """

    clock: I64
    comparable: I64
    start_ns: I64
    offset_ns: I64
    drift: F64
    error_ns: I64
    notes: list[str]

    def common(self, row: I64, time_ns: I64) -> I64:
        """Times on the rows' own clocks -> the common clock, int64 [n]."""
        drifted = np.rint(self.drift[row] * (time_ns - self.start_ns[row])).astype(np.int64)
        result: I64 = time_ns - self.offset_ns[row] - drifted
        return result

    def own(self, row: I64, time_ns: I64) -> I64:
        """Times on the common clock -> the rows' own clocks, int64 [n]; to a nanosecond the inverse of `common`."""
        since = time_ns + self.offset_ns[row] - self.start_ns[row]
        drift = self.drift[row] / (1.0 - self.drift[row])
        result: I64 = time_ns + self.offset_ns[row] + np.rint(drift * since).astype(np.int64)
        return result

    def between(self, left: I64, right: I64) -> I64:
        """How far the distance of two rows' times may be off, int64 [n]; 0 on one clock."""
        result: I64 = np.where(
            self.clock[left] == self.clock[right], 0, np.maximum(self.error_ns[left], self.error_ns[right])
        )
        return result


def fit_clocks(rows: Sequence[Row], matches: Matches) -> Clocks:
    """Offset, drift and error of every row's clock against that of the first row it can be compared with."""
    clock, notes = _clocks(rows, matches)
    count = int(clock.max()) + 1 if len(clock) else 0
    start_ns = np.array([row.file.start_ns for row in rows], np.int64)
    members = np.flatnonzero(matches.barrier[matches.match])
    coarse, component = _coarse(matches, clock, members, count)
    links = _links(matches, component[clock[matches.row]])
    if len(links):
        # Stages of a pipeline, say: only messages tell how far their clocks are apart.
        members = np.sort(np.concatenate([members, links]))
        coarse, component = _coarse(matches, clock, members, count)
    ends = _table(matches, clock, members, coarse, count)
    if ends is None:
        none = np.zeros(len(rows), np.int64)
        return Clocks(clock, component[clock], start_ns, coarse[clock], np.zeros(len(rows)), none, notes)
    lines = anchored(inside_bounds(ends, fit_lines(ends)), component)
    error = np.ceil(errors(ends, lines)).astype(np.int64)
    drift = lines.slope[clock] / ends.half_ns
    until_start = (start_ns - coarse[clock] - ends.zero_ns) - ends.middle_ns
    offset = coarse[clock] + np.rint(lines.offset[clock] + drift * until_start).astype(np.int64)
    return Clocks(clock, component[clock], start_ns, offset, drift, error[clock], notes)


def _links(matches: Matches, part: I64) -> I64:
    """Members of messages between parts of the job that share no barrier."""
    if not matches.count:
        return np.empty(0, np.int64)
    head = matches.first[:-1]
    apart = matches.pair & (np.minimum.reduceat(part, head) != np.maximum.reduceat(part, head))
    return np.flatnonzero(apart[matches.match]).astype(np.int64)


def _clocks(rows: Sequence[Row], matches: Matches) -> tuple[I64, list[str]]:
    """Which clock each row has: its host's, where the host has a name and its ranks agree; else its own."""
    names = [row.clock or "" for row in rows]
    wrong = _contradicted(matches, names) | _apart(rows, names)
    keys: dict[str, int] = {}
    clock, notes = [], []
    for at, name in enumerate(names):
        shared = name and name not in wrong
        clock.append(keys.setdefault(name if shared else f"\n{at}", len(keys)))
    for name in sorted(wrong):
        notes.append(f"ranks on host {name} contradict a common clock: each is taken to have its own")
    return np.array(clock, np.int64), notes


def _contradicted(matches: Matches, names: Sequence[str]) -> set[str]:
    """Hosts on whose own clock collectives often end before all members have started."""
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    host = np.array([codes[name] for name in names], np.int64)
    members = np.flatnonzero(matches.barrier[matches.match])
    order, head = _runs(matches.match[members], host[matches.row[members]])
    if not len(head):
        return set()
    members = members[order]
    early = np.minimum.reduceat(matches.end_ns[members], head)
    late = np.maximum.reduceat(matches.start_ns[members], head)
    several = np.diff(np.append(head, len(members))) > 1
    of = host[matches.row[members[head]]]
    seen = np.bincount(of[several], minlength=len(codes))
    broken = np.bincount(of[several & (late - early > CONTRADICTION_NS)], minlength=len(codes))
    odd = (broken > CONTRADICTION_SHARE * seen) & (broken >= 2)
    return {name for name, code in codes.items() if name and odd[code]}


def _apart(rows: Sequence[Row], names: Sequence[str]) -> set[str]:
    """Hosts whose ranks were recorded at times that do not meet: one of their files has a wrong base."""
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row, name in zip(rows, names, strict=True):
        if name and row.timeline.steps:
            last = row.timeline.steps[-1]
            spans.setdefault((name, row.capture), []).append((row.file.start_ns, last.start_ns + last.dur_ns))
    return {
        name
        for (name, _), some in spans.items()
        if max(start for start, _ in some) > min(end for _, end in some)
        and max(start for start, _ in some) - min(start for start, _ in some) > APART_NS
    }


def _runs(*keys: I64) -> tuple[I64, I64]:
    """Order that sorts by the keys, and where runs of equal keys begin in it."""
    order = np.lexsort(keys[::-1]).astype(np.int64)
    changed = np.ones(len(order), np.bool_)
    if len(order):
        changed[1:] = False
        for key in keys:
            changed[1:] |= key[order][1:] != key[order][:-1]
    return order, np.flatnonzero(changed).astype(np.int64)


def _coarse(matches: Matches, clock: I64, members: I64, count: int) -> tuple[I64, I64]:
    """A first offset of each clock and the part of the job it can be compared with, int64 [clocks] each.

    Spreads from the first clock over the collectives: exact integers, since clocks may be decades apart.
    """
    coarse = np.zeros(count, np.int64)
    component = np.full(count, -1, np.int64)
    match, of, end = matches.match[members], clock[matches.row[members]], matches.end_ns[members]
    for seed in range(count):
        if component[seed] >= 0:
            continue
        component[seed] = seed
        while True:
            known = component[of] == seed
            common = np.full(matches.count, np.iinfo(np.int64).max, np.int64)
            np.minimum.at(common, match[known], end[known] - coarse[of[known]])
            new = np.flatnonzero((component[of] < 0) & (common[match] != np.iinfo(np.int64).max))
            if not len(new):
                break
            new = new[np.lexsort((end[new] - common[match[new]], of[new]))]
            first = np.flatnonzero(np.append(True, of[new][1:] != of[new][:-1]))
            middle = new[(first + np.append(first[1:], len(new))) // 2]
            coarse[of[middle]] = end[middle] - common[match[middle]]
            component[of[middle]] = seed
    return coarse, component


def _table(matches: Matches, clock: I64, members: I64, coarse: I64, count: int) -> Ends | None:
    """Ends by match and clock; None if no collective spans several clocks."""
    of = clock[matches.row[members]]
    end = matches.end_ns[members] - coarse[of]
    start = matches.start_ns[members] - coarse[of]
    match = matches.match[members]
    order = np.lexsort((end, of, match)).astype(np.int64)
    head = np.flatnonzero(np.append(True, (np.diff(match[order]) != 0) | (np.diff(of[order]) != 0)))[: len(order)]
    stop = np.append(head[1:], len(order))
    shared = np.bincount(match[order[head]], minlength=matches.count)[match[order[head]]] > 1 if len(head) else head > 0
    if not shared.any():
        return None
    zero = int(end.min())
    middle = ((end[order[(head + stop - 1) // 2]] + end[order[(head + stop) // 2]]) // 2 - zero)[shared]
    latest = np.maximum.reduceat(start[order], head)[shared] - zero
    span = float(middle.max() - middle.min())
    half, center = max(span / 2, 1.0), float(middle.max() + middle.min()) / 2
    renumbered = np.unique(match[order[head]][shared], return_inverse=True)[1].ravel().astype(np.int64)
    # One instant for all members: else a drift common to all clocks would seem to bring their ends together.
    instant = (np.bincount(renumbered, middle) / np.bincount(renumbered))[renumbered]
    return Ends(
        match=renumbered,
        clock=of[order[head]][shared],
        end_ns=middle.astype(np.float64),
        least_ns=(end[order[head]][shared] - zero).astype(np.float64),
        latest_ns=latest.astype(np.float64),
        tau=(instant - center) / half,
        firm=matches.barrier[match[order[head]][shared]],
        clocks=count,
        zero_ns=zero,
        middle_ns=center,
        half_ns=half,
    )
