"""How much each rank alone cost the others in each step: the numbers on which verdicts rest.

Only the part of a wait after all others had arrived counts, less the clocks' error: had this one rank been as early as
the next, that time would not have been lost. Waits of several collectives in a step add up; so do those of a rank that
kept its neighbours, which then kept others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, Alignment
from steptime.ranks.collectives import numbered
from steptime.ranks.counted import Row
from steptime.ranks.moves import Moved
from steptime.ranks.waits import Exposed, Waits, unrecorded_waits
from steptime.trace.events import I64

F64 = NDArray[np.float64]

#: A rank that passes on this share of what another costs is a link between it and those that wait.
PASSED_ON = 0.1


class Blame(msgspec.Struct, frozen=True):
    """o origins by s steps.

    origins: row indices of each origin (one row, all of a host, or none for a rank that was not recorded). missing: the
    rank that was not recorded, else -1. numbers: capture and step number of each step.
    lost float64 [o, s]: ns that the origin alone cost each other row on average. at int64 [r, s]: index of each step in
    each row's own list, -1 where the row lacks it. dur_ns: usual length of a step. links: for each origin the rows that
    were kept by it and kept others (indices). kept_ns float64 [r, o]: how long each row waited for each origin alone.
    """

    origins: list[tuple[int, ...]]
    missing: list[int]
    numbers: list[tuple[int, int]]
    lost: F64
    at: I64
    dur_ns: float
    links: list[tuple[int, ...]]
    kept_ns: F64


def blame_ranks(
    rows: Sequence[Row],
    alignment: Alignment,
    waits: Waits,
    messages: Moved | None = None,
    stage: I64 | None = None,
) -> Blame:
    """By single rows.

    Args:
        rows, alignment, waits: of the job.
        messages: waits in messages that a slow row explains, see `bubble`.
        stage: of a pipeline, int64 [r], -1 for none; None without one.
    """
    numbers, at = job_steps(rows, alignment)
    chosen = waits.take(~waits.skew & (waits.origin != NOBODY) & ~alignment.collectives.matches.pair[waits.match])
    lost = np.zeros((len(rows), len(numbers)))
    step = column_of(rows, at)[chosen.row, chosen.step]
    inside = step >= 0
    np.add.at(lost, (chosen.origin[inside], step[inside]), chosen.alone_ns[inside])
    if messages is not None:
        step = column_of(rows, at)[messages.row, messages.step]
        inside = step >= 0
        np.add.at(lost, (messages.whom[inside], step[inside]), messages.ns[inside])
    present = max(_present(alignment, len(rows)) - 1, 1)
    lost /= present
    passed = np.zeros((len(rows), len(rows)))
    np.add.at(passed, (chosen.origin, chosen.late), chosen.alone_ns)
    total = passed.sum(axis=1, keepdims=True)
    np.fill_diagonal(passed, 0.0)
    links = [tuple(np.flatnonzero(one).tolist()) for one in (passed > 0) & (passed >= PASSED_ON * total)]
    origins: list[tuple[int, ...]] = [(row,) for row in range(len(rows))]
    absent, theirs = _not_recorded(rows, alignment, at, stage)
    kept = np.zeros((len(rows), len(rows) + len(absent)))
    np.add.at(kept, (chosen.row, chosen.origin), chosen.alone_ns)
    return Blame(
        origins=origins + [()] * len(absent),
        missing=[-1] * len(rows) + absent,
        numbers=numbers,
        lost=np.concatenate([lost, theirs / (present + 1)]),
        at=at,
        dur_ns=_usual(rows),
        links=links + [()] * len(absent),
        kept_ns=kept,
    )


def _not_recorded(rows: Sequence[Row], alignment: Alignment, at: I64, stage: I64 | None) -> tuple[list[int], F64]:
    """Ranks that alone are missing from groups that were late, and ns by step that all rows lost to each in all.

    Not across the stages of a pipeline: who comes last there is how the schedule drains.
    """
    collectives = alignment.collectives
    matches = collectives.matches
    lacking = matches.expected - np.diff(matches.first) == 1
    if stage is not None and matches.count:
        mine, head = stage[matches.row], matches.first[:-1]
        low = np.minimum.reduceat(mine, head)
        lacking &= (low >= 0) & (low == np.maximum.reduceat(mine, head))
    missing = np.full(matches.count, -1, np.int64)
    ranks = {row.rank for row in rows}
    for group, one in enumerate(matches.groups):
        mine = lacking & ~collectives.late_seen & (matches.group == group)
        size = int(matches.expected[mine][0]) if mine.any() else 0
        left = set(one.ranks if one.ranks is not None else range(size if one.size < 0 else 0)) - ranks
        if len(left) == 1:
            missing[mine] = left.pop()
    pieces = unrecorded_waits(rows, alignment)
    named = missing[matches.match[pieces.member]] >= 0
    pieces = Exposed(*(getattr(pieces, name)[named] for name in Exposed.__struct_fields__))
    absent: I64 = np.unique(missing[missing >= 0])
    lost = np.zeros((len(absent), at.shape[1]))
    column = column_of(rows, at)[pieces.row, pieces.step]
    inside = column >= 0
    who = np.searchsorted(absent, missing[matches.match[pieces.member]])
    np.add.at(lost, (who[inside], column[inside]), pieces.ns[inside])
    return absent.tolist(), lost


def blame_hosts(rows: Sequence[Row], alignment: Alignment, waits: Waits) -> Blame | None:
    """By hosts: what all ranks of a host together cost the others; None if the ranks are not on several known hosts."""
    names = [row.file.meta.host or "" for row in rows]
    known = sorted(set(names))
    if len(known) < 2 or "" in known:
        return None
    host = np.array([known.index(name) for name in names], np.int64)
    numbers, at = job_steps(rows, alignment)
    others, all_here = _host_arrivals(alignment, host)
    chosen = waits.take(~waits.skew & (waits.origin != NOBODY) & ~alignment.collectives.matches.pair[waits.match])
    clocks = alignment.clocks
    late_host = host[chosen.late]
    outside = host[chosen.row] != late_host
    chosen, late_host = chosen.take(outside), late_host[outside]
    error = clocks.between(chosen.row, chosen.late)
    begin = np.maximum(chosen.start_ns, clocks.own(chosen.row, others[chosen.match] + error))
    end = np.minimum(chosen.start_ns + chosen.ns, clocks.own(chosen.row, all_here[chosen.match]))
    alone = np.maximum(end - begin, 0)
    lost = np.zeros((len(known), len(numbers)))
    step = column_of(rows, at)[chosen.row, chosen.step]
    inside = step >= 0
    np.add.at(lost, (late_host[inside], step[inside]), alone[inside])
    counts = np.bincount(host, minlength=len(known))
    lost /= np.maximum(len(rows) - counts, 1)[:, None]
    origins = [tuple(np.flatnonzero(host == one).tolist()) for one in range(len(known))]
    none = [-1] * len(known)
    kept = np.zeros((len(rows), len(known)))
    np.add.at(kept, (chosen.row, late_host), alone)
    return Blame(origins, none, numbers, lost, at, _usual(rows), [() for _ in known], kept)


def _host_arrivals(alignment: Alignment, host: I64) -> tuple[I64, I64]:
    """By match: the last arrival on other hosts than the last member's, and the first on that host, int64 [g] each.

    A host as a whole is late only from the one to the other: a single late rank on it is not the host's fault.
    """
    collectives = alignment.collectives
    matches = collectives.matches
    if not matches.count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    foreign = host[matches.row] != host[collectives.late[matches.match]]
    far = np.iinfo(np.int64).max // 2
    others = np.where(foreign, collectives.arrival_ns, -far)
    own = np.where(foreign, far, collectives.arrival_ns)
    head = matches.first[:-1]
    return np.maximum.reduceat(others, head), np.minimum.reduceat(own, head)


def job_steps(rows: Sequence[Row], alignment: Alignment) -> tuple[list[tuple[int, int]], I64]:
    """Steps of the job, and where each row has them: by number, or (numbers that mean nothing) by time."""
    if all(numbered(row) for row in rows):
        numbers = sorted({(row.capture, step.step) for row in rows for step in row.timeline.steps})
        place = {number: at for at, number in enumerate(numbers)}
        at = np.full((len(rows), len(numbers)), -1, np.int64)
        for index, row in enumerate(rows):
            for own, step in enumerate(row.timeline.steps):
                at[index, place[row.capture, step.step]] = own
        return numbers, at
    first: dict[int, int] = {}
    for index, row in enumerate(rows):
        first.setdefault(row.capture, index)
    numbers = [(capture, step.step) for capture, index in sorted(first.items()) for step in rows[index].timeline.steps]
    begins = np.concatenate([_begins(rows, index, alignment) for _, index in sorted(first.items())])
    at = np.full((len(rows), len(numbers)), -1, np.int64)
    of_capture = np.array([capture for capture, _ in numbers], np.int64)
    for index, row in enumerate(rows):
        begun = _begins(rows, index, alignment)
        mine = np.flatnonzero(of_capture == row.capture)
        middle = np.median(np.diff(begun)) / 2 if len(begun) > 1 else np.inf
        nearest = np.abs(begins[mine][:, None] - begun[None, :])
        close = nearest.argmin(1)
        at[index, mine] = np.where(nearest.min(1) <= middle, close, -1)
    return numbers, at


def _begins(rows: Sequence[Row], index: int, alignment: Alignment) -> I64:
    starts = np.array([step.start_ns for step in rows[index].timeline.steps], np.int64)
    return alignment.clocks.common(np.full(len(starts), index, np.int64), starts)


def column_of(rows: Sequence[Row], at: I64) -> I64:
    """The column of each row's own steps, int64 [r, longest + 1]; -1 where there is none (also for step -1)."""
    longest = max((len(row.timeline.steps) for row in rows), default=0)
    column = np.full((len(rows), longest + 1), -1, np.int64)
    row, number = np.nonzero(at >= 0)
    column[row, at[row, number]] = number
    return column


def _present(alignment: Alignment, rows: int) -> int:
    return len(np.unique(alignment.collectives.matches.row)) if rows else 0


def _usual(rows: Sequence[Row]) -> float:
    lengths = [step.dur_ns for row in rows for step in row.timeline.steps if not step.edge]
    lengths = lengths or [step.dur_ns for row in rows for step in row.timeline.steps]
    return float(np.median(lengths)) if lengths else 0.0
