"""Where the time of a run went: every nanosecond between its begin and its end has exactly one name.

In: interruptions in order of time, pauses, lost windows. Out: segments that tile the run. What overlaps is settled so:
the interruption that began first owns the time until it is over; being down goes before a pause, a pause before lost
work, and what is none of them was training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.goodput.incidents import Incident

Ints = npt.NDArray[np.int64]

#: Codes of segments. `UNKNOWN`: an interruption is recorded, when it was over is not.
PRODUCTIVE, DETECTION, RESTART, UNSPLIT, PLANNED, UNKNOWN, CHECKPOINT, LOST = range(8)
#: Ids of the parts as the report calls them, by code.
PARTS = ("productive", "detection", "restart", "unsplit", "planned", "unknown", "checkpoint", "lost_work")
DOWN = (DETECTION, RESTART, UNSPLIT, PLANNED)


@dataclass(frozen=True, slots=True)
class Outage:
    """One stretch in which the run was down. members: indices of the interruptions that began in it, the first first.

    ends_ns: for each member, when its own part is over. known: False if the log does not tell when the outage was over,
    and `end_ns` is only the first thing known after it.
    """

    begin_ns: int
    end_ns: int
    members: tuple[int, ...]
    ends_ns: tuple[int, ...]
    known: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """The run as segments: int64 columns in order of time, one entry a segment; they tile the run.

    owner: index of the interruption, -1 where none is behind the segment.
    """

    start_ns: Ints
    dur_ns: Ints
    code: Ints
    owner: Ints
    outages: tuple[Outage, ...]

    def total(self, *codes: int) -> int:
        """Nanoseconds of all segments with one of these codes."""
        return int(self.dur_ns[np.isin(self.code, codes)].sum())

    def by_owner(self, code: int, count: int) -> Ints:
        """Nanoseconds of that code by interruption, int64 of length `count`."""
        mine = (self.code == code) & (self.owner >= 0)
        spent = np.zeros(count, np.int64)
        np.add.at(spent, self.owner[mine], self.dur_ns[mine])
        return spent


def outages(start_ns: int, end_ns: int, incidents: Sequence[Incident]) -> tuple[Outage, ...]:
    """The stretches in which the run was down, from interruptions in order of time; those that overlap are one.

    An interruption with no end runs to the next one or to the end of the run; it is known to be down there only at the
    end, where nothing says that it ever went on.
    """
    found: list[Outage] = []
    for at, incident in enumerate(incidents):
        last = at + 1 == len(incidents)
        over, known = incident.resumed_ns, True
        inside = bool(found) and max(incident.time_ns, start_ns) < found[-1].end_ns
        if over is None:
            # Where training is known to have gone on after an earlier one, it went on after this one, too.
            over = found[-1].end_ns if inside else (end_ns if last else incidents[at + 1].time_ns)
            known = found[-1].known if inside else last
        begin, over = (min(max(ns, start_ns), end_ns) for ns in (incident.time_ns, over))
        if inside:
            before = found.pop()
            found.append(
                Outage(
                    before.begin_ns,
                    max(over, before.end_ns),
                    (*before.members, at),
                    (*before.ends_ns, over),
                    known if over > before.end_ns else before.known,
                )
            )
        else:
            found.append(Outage(begin, over, (at,), (over,), known))
    return tuple(found)


def timeline(
    start_ns: int,
    end_ns: int,
    incidents: Sequence[Incident],
    pauses: Sequence[tuple[int, int]],
    lost: dict[int, tuple[int, int]],
) -> Timeline:
    """Lay out the run from `start_ns` to `end_ns`; lost: (begin, end) of the work lost, by index of interruption."""
    found = outages(start_ns, end_ns, incidents)
    spans: list[tuple[int, int, int, int]] = [(a, b, LOST, at) for at, (a, b) in lost.items()]
    spans += [(a, b, CHECKPOINT, -1) for a, b in pauses]
    for outage in found:
        spans += _down(outage, incidents)
    edges = np.array([(a, b) for a, b, _, _ in spans], np.int64).reshape(-1, 2).clip(start_ns, end_ns)
    grid = np.unique(np.concatenate([edges.ravel(), [start_ns, end_ns]]))
    code = np.full(max(len(grid) - 1, 0), PRODUCTIVE, np.int64)
    owner = np.full(len(code), -1, np.int64)
    places = np.searchsorted(grid, edges)
    for (_, _, kind, who), (first, last) in zip(spans, places, strict=True):
        code[first:last] = kind
        owner[first:last] = who
    return _joined(grid, code, owner, found)


def _down(outage: Outage, incidents: Sequence[Incident]) -> list[tuple[int, int, int, int]]:
    """The parts of one outage: each instant is of the interruption that began first and is not over yet."""
    spans: list[tuple[int, int, int, int]] = []
    cursor = outage.begin_ns
    for at, end_ns in zip(outage.members, outage.ends_ns, strict=True):
        over = max(end_ns, cursor)
        spans += _parts_of(at, incidents[at], cursor, over, known=outage.known or over < outage.end_ns)
        cursor = over
    return spans


def _parts_of(at: int, incident: Incident, begin: int, over: int, *, known: bool) -> list[tuple[int, int, int, int]]:
    detected = incident.detected_ns
    if incident.cause.planned:
        return [(begin, over, PLANNED if known else UNKNOWN, at)]
    if detected is None:
        return [(begin, over, UNSPLIT if known else UNKNOWN, at)]
    noticed = min(max(detected, begin), over)
    return [(begin, noticed, DETECTION, at), (noticed, over, RESTART if known else UNKNOWN, at)]


def _joined(grid: Ints, code: Ints, owner: Ints, found: tuple[Outage, ...]) -> Timeline:
    """Segments of one kind and owner that follow each other become one."""
    if not len(code):
        empty = np.zeros(0, np.int64)
        return Timeline(empty, empty, empty, empty, found)
    fresh = np.concatenate([[True], (code[1:] != code[:-1]) | (owner[1:] != owner[:-1])])
    starts = grid[:-1][fresh]
    return Timeline(starts, np.diff(np.append(starts, grid[-1])), code[fresh], owner[fresh], found)
