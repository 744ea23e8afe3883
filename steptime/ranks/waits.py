"""Who waited for whom: the exposed part of every collective, cut at the last arrival (DESIGN 2.2).

Exposed time before the last member arrived is a wait, for that member; after it, it is transfer and stays where it is.
A wait at the start of the recordings, before two ranks have ever met, only shows that one was recorded earlier: it is
`capture_skew`. A late rank that was itself kept waiting is not the culprit: the chain is followed to its origin.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, SLOWEST_TRANSFER, Alignment
from steptime.ranks.chains import WaitTimes, origins
from steptime.ranks.counted import Row
from steptime.ranks.meetings import have_met
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

#: Work since the recording's start is equal if it differs by less than this share (8 V100 ranks: 3.0 to 3.9 ms).
EQUAL_WORK = 0.25


class Waits(msgspec.Struct, frozen=True):
    """Every exposed wait of the job: w pieces, ordered by row and time.

    row, match, step, leaf int64 [w]: who waited, in which match, in which of its steps (index), and the leaf its time
    lies in now; start_ns, ns int64 [w]: on the row's own clock; alone_ns int64 [w]: the part that only the last rank
    caused, after all others had arrived, less the clocks' error; late, origin int64 [w]: the row that arrived last, and
    the one at the start of the chain; circle bool [w]: the chain comes back to itself, so that it was a wait for the
    last row, but nobody's fault; skew bool [w]: the recordings' start explains it; sure bool [w]: all members are among
    the files, so that the time may be moved.

    Per match: origin_of int64 [g], `NOBODY` where nobody can be named; judged bool [g]: lateness can be told, and all
    members had met the last one before.
    """

    row: I64
    match: I64
    step: I64
    leaf: I64
    start_ns: I64
    ns: I64
    alone_ns: I64
    late: I64
    origin: I64
    circle: Mask
    skew: Mask
    sure: Mask
    origin_of: I64
    judged: Mask

    def take(self, index: I64 | Mask) -> Waits:
        """Some of the pieces."""
        names = [name for name in self.__struct_fields__ if name not in ("origin_of", "judged")]
        return msgspec.structs.replace(self, **{name: getattr(self, name)[index] for name in names})


def find_waits(rows: Sequence[Row], alignment: Alignment) -> Waits:
    """All exposed waits, moved or not."""
    collectives = alignment.collectives
    matches = collectives.matches
    usable = collectives.comparable & collectives.synchronous & collectives.late_seen & (matches.leaf >= 0)
    pieces, alone_ns = _waited(rows, alignment, usable)
    met = have_met(collectives, usable & matches.barrier, len(rows))
    member = pieces.member
    match = matches.match[member]
    late = collectives.late[match]
    skew = ~met[member] | _started_later(rows, alignment, member, late)
    waits = Waits(
        row=pieces.row,
        match=match,
        step=pieces.step,
        leaf=matches.leaf[match],
        start_ns=pieces.start_ns,
        ns=pieces.ns,
        alone_ns=alone_ns,
        late=late,
        origin=late,
        circle=np.zeros(len(late), np.bool_),
        skew=skew,
        sure=collectives.all_seen[match] & ~matches.pair[match],
        origin_of=np.full(matches.count, NOBODY, np.int64),
        judged=usable & ~matches.pair & (np.bincount(matches.match[~met], minlength=matches.count) == 0),
    )
    blocking = _blocking(rows, alignment)
    origin_of, circle = origins(collectives, _kept(rows, alignment, waits), usable, blocking)
    match = waits.match
    return msgspec.structs.replace(waits, origin=origin_of[match], circle=circle[match], origin_of=origin_of)


class Exposed(msgspec.Struct, frozen=True):
    """Exposed parts of matched collectives; member indexes the members of the matches. All int64 [w]."""

    row: I64
    member: I64
    step: I64
    start_ns: I64
    ns: I64


def exposed_between(rows: Sequence[Row], alignment: Alignment, members: Mask, begin_ns: I64, end_ns: I64) -> Exposed:
    """What of each member's exposed time lies in [begin, end), on the row's own clock, ordered by row and time.

    Args:
        rows, alignment: the job.
        members: which members of the matches, bool [k].
        begin_ns, end_ns: on each member's own clock, int64 [k].
    """
    matches = alignment.collectives.matches
    parts: list[tuple[I64, ...]] = []
    order = np.argsort(matches.row, kind="stable")
    bounds = np.searchsorted(matches.row[order], np.arange(len(rows) + 1))
    for at, row in enumerate(rows):
        mine = order[bounds[at] : bounds[at + 1]]
        mine = mine[members[mine]]
        # A kernel with several messages ends with the last of them.
        mine = mine[np.argsort(end_ns[mine], kind="stable")]
        instances = row.timeline.instances
        if instances is None or not len(mine):
            continue
        member_of = np.full(len(instances.start_ns), -1, np.int64)
        member_of[matches.instance[mine]] = mine
        member = member_of[instances.exposed_of]
        start = np.maximum(instances.exposed_start, begin_ns[member])
        ns = np.minimum(instances.exposed_end, end_ns[member]) - start
        keep = np.flatnonzero((member >= 0) & (ns > 0) & (instances.exposed_step >= 0))
        step = instances.exposed_step[keep].astype(np.int64)
        parts.append((np.full(len(keep), at, np.int64), member[keep], step, start[keep], ns[keep]))
    if not parts:
        return Exposed(*(np.empty(0, np.int64) for _ in Exposed.__struct_fields__))
    return Exposed(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _waited(rows: Sequence[Row], alignment: Alignment, usable: Mask) -> tuple[Exposed, I64]:
    """Exposed time before the last arrival, and how much of each piece came after all others had arrived."""
    collectives, clocks = alignment.collectives, alignment.clocks
    matches = collectives.matches
    match = matches.match
    error = clocks.between(matches.row, collectives.late[match])
    waiting = (
        usable[match]
        & (matches.row != collectives.late[match])
        & (collectives.last_ns[match] - collectives.arrival_ns > error)
    )
    last = clocks.own(matches.row, collectives.last_ns[match])
    second = clocks.own(matches.row, np.minimum(collectives.second_ns[match] + error, collectives.last_ns[match]))
    long_ago = np.full(len(match), np.iinfo(np.int64).min, np.int64)
    pieces = exposed_between(rows, alignment, waiting, long_ago, last)
    end = pieces.start_ns + pieces.ns
    return pieces, np.maximum(end - np.maximum(pieces.start_ns, second[pieces.member]), 0)


def _blocking(rows: Sequence[Row], alignment: Alignment) -> Mask:
    """Which matches held up most of their members to their end, bool [g].

    One whose end compute hides (a bucket of gradients during the backward pass) does not bring its members in step.
    """
    matches = alignment.collectives.matches
    held = np.zeros(len(matches.match), np.int64)
    order = np.argsort(matches.row, kind="stable")
    bounds = np.searchsorted(matches.row[order], np.arange(len(rows) + 1))
    for at, row in enumerate(rows):
        instances = row.timeline.instances
        mine = order[bounds[at] : bounds[at + 1]]
        if instances is None or not len(mine):
            continue
        to_end = np.zeros(len(instances.start_ns), np.bool_)
        to_end[instances.exposed_of[instances.exposed_end >= instances.end_ns[instances.exposed_of]]] = True
        held[mine] = to_end[matches.instance[mine]]
    count = np.diff(matches.first)
    result: Mask = 2 * np.bincount(matches.match, held, minlength=matches.count) > count
    return result


def _kept(rows: Sequence[Row], alignment: Alignment, waits: Waits) -> WaitTimes:
    """All waits by row and time, also those for ranks that were not recorded: whom they kept is not to blame."""
    matches = alignment.collectives.matches
    real = waits.take(~waits.skew)
    absent = unrecorded_waits(rows, alignment)
    row = np.concatenate([real.row, absent.row])
    start_ns = alignment.clocks.common(row, np.concatenate([real.start_ns, absent.start_ns]))
    match = np.concatenate([real.match, matches.match[absent.member]])
    late = np.concatenate([real.late, np.full(len(absent.row), NOBODY, np.int64)])
    return WaitTimes(row, start_ns, np.concatenate([real.ns, absent.ns]), match, late)


def unrecorded_waits(rows: Sequence[Row], alignment: Alignment) -> Exposed:
    """Exposed time in collectives that a rank without a file held up.

    It counts from the last recorded arrival on, beyond what the slowest believable transfer takes.
    """
    collectives, clocks = alignment.collectives, alignment.clocks
    matches = collectives.matches
    suspect = collectives.comparable & matches.barrier & ~collectives.late_seen
    begin = clocks.own(matches.row, (collectives.last_ns + SLOWEST_TRANSFER * collectives.fastest_ns)[matches.match])
    never = np.full(len(begin), np.iinfo(np.int64).max, np.int64)
    return exposed_between(rows, alignment, suspect[matches.match], begin, never)


def _started_later(rows: Sequence[Row], alignment: Alignment, member: I64, late: I64) -> Mask:
    """Whether a wait in the first steps is as long as the late rank's recording began later, with equal work since.

    A profiler that starts holds up its host while the device still has work queued: the hole may show only after the
    first collective.
    """
    collectives = alignment.collectives
    matches = collectives.matches
    count = len(rows)
    began = alignment.clocks.common(
        np.arange(count, dtype=np.int64), np.array([r.file.start_ns for r in rows], np.int64)
    )
    first_window = np.array([r.timeline.steps[0].start_ns + r.timeline.steps[0].dur_ns for r in rows], np.int64)
    row, match = matches.row[member], matches.match[member]
    last, arrival = collectives.last_ns[match], collectives.arrival_ns[member]
    own_work, late_work = arrival - began[row], last - began[late]
    in_first = (matches.start_ns[member] < first_window[row]) & (alignment.clocks.own(late, last) < first_window[late])
    error = alignment.clocks.between(row, late)
    equal = np.abs(late_work - own_work) <= EQUAL_WORK * own_work + error
    result: Mask = in_first & equal & (last - arrival <= (1 + EQUAL_WORK) * (began[late] - began[row]) + error)
    return result
