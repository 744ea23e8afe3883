"""All ranks together: one clock, waits in their own leaves, and who held up the job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from steptime import model
from steptime.ranks.alignment import Alignment, align
from steptime.ranks.bubble import find_pipeline, slow_messages, split_bubble, through_pipeline
from steptime.ranks.counted import Row
from steptime.ranks.moves import Moved, RowWaits, attribute_waits, plain_moves, with_waits
from steptime.ranks.pipelines import pipeline_report, why_unknown
from steptime.ranks.repaint import repaint
from steptime.ranks.stages import Messages, read_messages
from steptime.ranks.stragglers import Pipes, verdicts, why_unjudged
from steptime.ranks.waits import Waits, find_waits
from steptime.timeline.summary import DeviceTimeline
from steptime.trace.events import I64


class Together(msgspec.Struct, frozen=True):
    """Rows with their waits moved; alignment is None where there was nobody to compare with.

    bubble_unknown: why nobody can say how long pipeline stages waited for each other; None if it is known.
    seen: the matched collectives and the waits in them, None likewise.
    offset_ns and error_ns by rank: how far its clock is ahead of the common one, and how far that may be off; of the
    largest part of the job whose clocks could be compared.
    """

    rows: list[Row]
    alignment: model.Alignment | None
    stragglers: list[model.Straggler]
    offset_ns: dict[int, int]
    error_ns: dict[int, int]
    notes: list[str]
    pipeline: model.Pipeline | None = None
    bubble_unknown: str | None = None
    seen: tuple[Alignment, Waits] | None = None

    @property
    def compared(self) -> Alignment | None:
        """How the ranks' clocks and collectives were brought together, None where there was nobody to compare with."""
        return self.seen[0] if self.seen is not None else None


def together(rows: Sequence[Row], world_size: int | None) -> Together:
    """Align the rows and move what they waited for each other out of exposed communication.

    `world_size`: how many ranks the job has, if known.
    """
    alone = Together(list(rows), None, [], {}, {}, [], bubble_unknown=why_unknown(rows, None, None))
    if len({row.rank for row in rows}) < 2:
        return alone
    alignment = align(rows)
    if not alignment.matched:
        note = "no collective could be matched across the ranks: waits for each other stay in exposed communication"
        return msgspec.structs.replace(alone, notes=[*alignment.notes, note])
    waits = find_waits(rows, alignment)
    messages = read_messages(rows, alignment)
    # In a ring nobody is ahead by design: waiting there is for whoever is late, as in a collective.
    waits = msgspec.structs.replace(waits, sure=waits.sure | messages.ring[waits.match])
    staged = find_pipeline(rows, alignment, messages, waits)
    pipes = None
    if staged is not None:
        waits = through_pipeline(staged, waits)
        split = split_bubble(staged, alignment, waits)
        moves = plain_moves(waits.take(~staged.between)).joined(split)
        pipes = Pipes(staged.stages.stage, slow_messages(staged, alignment, split), moves)
        # That a stage ends last is how a schedule drains, nobody's fault.
        waits = msgspec.structs.replace(waits, alone_ns=np.where(staged.within, waits.alone_ns, 0))
    else:
        moves = plain_moves(waits)
    ranks = np.array([row.rank for row in rows], np.int64)
    moved = [
        msgspec.structs.replace(row, timeline=_moved(row, own, moves.take(moves.row == at), ranks))
        for at, (row, own) in enumerate(zip(rows, attribute_waits(rows, alignment, moves), strict=True))
    ]
    part = alignment.clocks.comparable
    known = np.flatnonzero(part == np.bincount(part).argmax()).tolist()
    return Together(
        rows=moved,
        alignment=model.Alignment(
            matched=alignment.matched,
            unmatched=alignment.unmatched,
            refused=alignment.refused,
            error_ns=int(alignment.error_ns.max()),
            unjudged=why_unjudged(rows, world_size),
        ),
        stragglers=verdicts(rows, alignment, waits, pipes),
        offset_ns={rows[at].rank: int(alignment.offset_ns[at]) for at in known},
        error_ns={rows[at].rank: int(alignment.error_ns[at]) for at in known},
        notes=alignment.notes,
        pipeline=pipeline_report(rows, staged, waits) if staged is not None else None,
        bubble_unknown=why_unknown(rows, staged, _undecided(alignment, messages)),
        seen=(alignment, waits if staged is None else waits.take(~staged.between)),
    )


def _undecided(alignment: Alignment, messages: Messages) -> bool | None:
    """Whether messages are neither a pipeline's nor a ring's; None without any."""
    pair = alignment.collectives.matches.pair
    return bool((pair & ~messages.ring).any()) if pair.any() else None


def _moved(row: Row, waits: RowWaits, moves: Moved, ranks: I64) -> DeviceTimeline:
    timeline = with_waits(row.timeline, waits)
    return msgspec.structs.replace(timeline, pictures=[repaint(one, moves, ranks) for one in timeline.pictures])


def with_ranks(report: model.Report, ranks: Together) -> model.Report:
    """The report with what the comparison of ranks found."""
    rows = [
        msgspec.structs.replace(
            row, clock_offset_ns=ranks.offset_ns.get(row.rank), clock_error_ns=ranks.error_ns.get(row.rank)
        )
        for row in report.ranks
    ]
    return msgspec.structs.replace(
        report, ranks=rows, alignment=ranks.alignment, stragglers=ranks.stragglers, pipeline=ranks.pipeline
    )
