"""The timeline and the interruptions as the rows of a report."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from steptime.goodput.account import (
    CHECKPOINT,
    DETECTION,
    LOST,
    PARTS,
    PLANNED,
    RESTART,
    UNKNOWN,
    UNSPLIT,
    Timeline,
)
from steptime.goodput.causes import OTHER, Cause
from steptime.goodput.incidents import Incident, RunLog
from steptime.model.goodput import CauseTotal, Interruption, LogInput, LostPart, RunProfile, RunSegments

#: Segments that a report keeps; the shortest of more are left out of the picture, never of the sums.
MOST_SEGMENTS = 20_000
#: Stretches of a run in its profile, for runs whose segments are too many to see.
STRETCHES = 200
TITLES: dict[int, str] = {
    DETECTION: "until the failure was noticed",
    RESTART: "restart",
    UNSPLIT: "down, not split into detection and restart",
    LOST: "work lost and done again",
    CHECKPOINT: "checkpoint pauses",
    PLANNED: "planned stops",
    UNKNOWN: "not known when training went on",
}
_HIDDEN = "these logs can't show it"
Windows = dict[int, tuple[int, int] | None]


def log_rows(logs: Sequence[RunLog]) -> list[LogInput]:
    """One row for each log."""
    return [
        LogInput(
            path=log.path,
            kind=log.kind,
            lines=log.lines,
            bad_lines=log.refused.count,
            bad_examples=list(log.refused.examples),
            duplicates=log.duplicates,
            notes=list(log.notes),
        )
        for log in logs
    ]


def part_rows(
    line: Timeline, total_ns: int | None, lost_unknown: int, struck: int, hidden: Collection[str], saves: bool
) -> list[LostPart]:
    """Every part but training, in the order in which an interruption goes."""
    whys: dict[int, str] = {}
    if lost_unknown:
        whys[LOST] = f"not known for {lost_unknown} of {struck} interruptions"
    if not saves:
        whys[CHECKPOINT] = _HIDDEN if "checkpoint" in hidden else "none is in the log"
    if "detection" in hidden:
        whys[DETECTION] = _HIDDEN
    rows = []
    for code, title in TITLES.items():
        ns = line.total(code)
        rows.append(
            LostPart(id=PARTS[code], title=title, ns=ns, share=ns / total_ns if total_ns else None, why=whys.get(code))
        )
    return rows


def interruption_rows(incidents: Sequence[Incident], line: Timeline, windows: Windows) -> list[Interruption]:
    """One row for each interruption, with its share of every part."""
    spent = {
        code: line.by_owner(code, len(incidents)) for code in (DETECTION, RESTART, UNSPLIT, PLANNED, UNKNOWN, LOST)
    }
    outage_of = {at: number for number, outage in enumerate(line.outages) for at in outage.members}
    return [
        Interruption(
            time_ns=one.time_ns,
            cause=one.cause.id,
            title=_title(one),
            said=one.text,
            planned=one.cause.planned,
            source=one.source,
            host=one.host,
            detected_ns=one.detected_ns,
            resumed_ns=one.resumed_ns,
            outage=outage_of[at],
            detection_ns=int(spent[DETECTION][at]),
            restart_ns=int(spent[RESTART][at]),
            unsplit_ns=int(spent[UNSPLIT][at]),
            planned_ns=int(spent[PLANNED][at]),
            unknown_ns=int(spent[UNKNOWN][at]),
            lost_ns=None if windows.get(at, (0, 0)) is None else int(spent[LOST][at]),
        )
        for at, one in enumerate(incidents)
    ]


def _title(incident: Incident) -> str:
    """The cause's title; in the log's own words where no row of the table fits them."""
    return incident.text.strip() if incident.cause is OTHER else incident.cause.title


def cause_rows(incidents: Sequence[Incident], line: Timeline, windows: Windows) -> list[CauseTotal]:
    """Interruptions by cause, unexpected ones first and the most frequent of them first."""
    rows = interruption_rows(incidents, line, windows)
    groups: dict[tuple[str, str], list[tuple[Cause, Interruption]]] = {}
    for one, row in zip(incidents, rows, strict=True):
        groups.setdefault((row.cause, row.title), []).append((one.cause, row))
    unexpected = sum(not one.cause.planned for one in incidents)
    found = []
    for (key, title), members in groups.items():
        cause = members[0][0]
        mine = [row for _, row in members]
        lost = [row.lost_ns for row in mine]
        found.append(
            CauseTotal(
                id=key,
                title=title,
                group=cause.group,
                planned=cause.planned,
                count=len(mine),
                share=None if cause.planned else len(mine) / unexpected,
                down_ns=sum(row.detection_ns + row.restart_ns + row.unsplit_ns + row.planned_ns for row in mine),
                lost_ns=None if None in lost else sum(ns for ns in lost if ns is not None),
            )
        )
    return sorted(found, key=lambda one: (one.planned, -one.count, -one.down_ns, one.title))


def segment_columns(line: Timeline, start_ns: int) -> RunSegments:
    """The timeline in columns; of too many segments the longest."""
    kept = np.arange(len(line.dur_ns))
    if len(kept) > MOST_SEGMENTS:
        kept = np.sort(np.argsort(-line.dur_ns, kind="stable")[:MOST_SEGMENTS])
    return RunSegments(
        parts=list(PARTS),
        start_ns=(line.start_ns[kept] - start_ns).tolist(),
        dur_ns=line.dur_ns[kept].tolist(),
        part=line.code[kept].tolist(),
        interruption=line.owner[kept].tolist(),
        dropped=len(line.dur_ns) - len(kept),
    )


def profile_of(line: Timeline) -> RunProfile | None:
    """Where the time went in each of `STRETCHES` equal stretches of the run, exact to the nanosecond."""
    if not len(line.dur_ns):
        return None
    begins = line.start_ns - line.start_ns[0]
    total = int(line.dur_ns.sum())
    stretch = -(-total // STRETCHES)
    edges = np.minimum(np.arange(0, total + stretch, stretch), total)
    at = np.searchsorted(begins, edges, side="right") - 1
    ns = []
    for code in range(len(PARTS)):
        mine = np.where(line.code == code, line.dur_ns, 0)
        before = np.concatenate([[0], np.cumsum(mine)])
        spent = before[at] + np.where(line.code[at] == code, edges - begins[at], 0)
        ns.append(np.diff(spent).tolist())
    return RunProfile(parts=list(PARTS), stretch_ns=stretch, ns=ns)
