"""A report small enough to commit: what a later gate and diff read of it, and no pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from steptime.gate.accepted import write_at_once
from steptime.gate.runs import Run
from steptime.gate.spread import Spread, spread_of
from steptime.model import Report
from steptime.model.gate import RunSpread
from steptime.store import compact

#: Degrees of freedom of a stored spread never count for more, so that old runs fade while new ones come.
MOST_DEGREES = 30
_FIRST_CAP, _LEAST_CAP = 400, 12


def stored(runs: Sequence[Run], spread: Spread) -> Report:
    """The run in the middle of `runs` by step time, with the spread of all of them and of what came before."""
    middle = typical(runs)
    known = None
    if spread.degrees:
        own_sd = spread.own**0.5
        known = RunSpread(log_sd=spread.sd, degrees=min(spread.degrees, MOST_DEGREES), own_sd=own_sd)
    return msgspec.structs.replace(middle.report, run_spread=known)


def typical(runs: Sequence[Run]) -> Run:
    """The run in the middle by step time."""
    return sorted(runs, key=lambda run: run.usual.value)[len(runs) // 2]


def candidate_spread(candidate: Sequence[Run], baseline: Sequence[Run], history: Sequence[Run]) -> Spread:
    """What is known of the run-to-run spread after this gate.

    One baseline brings the spread that is stored in it; of several, their own counts, which it may rest on.
    """
    known = spread_in(baseline[0].report) if len(baseline) == 1 else spread_of([run.usual for run in baseline])
    return known + spread_of([run.usual for run in history]) + spread_of([run.usual for run in candidate])


def spread_in(report: Report) -> Spread:
    """The spread that a stored baseline brings."""
    known = report.run_spread
    if known is None:
        return Spread()
    return Spread(known.log_sd**2 * known.degrees, known.degrees, known.own_sd**2)


def reduced(report: Report, most_bytes: int) -> tuple[Report, int]:
    """The report without pictures and with lists cut to their costliest rows until its JSON has at most `most_bytes`.

    What steps and slices hold is never cut, so with very many steps it stays larger.

    Returns:
        The report, and its size in bytes.
    """
    pipeline = report.pipeline and msgspec.structs.replace(report.pipeline, actions=None)
    report = msgspec.structs.replace(
        report, timelines=[], critical_path=None, replay=None, checklist=[], pipeline=pipeline
    )
    cap = _FIRST_CAP
    while True:
        cut = _cut(report, cap)
        size = len(compact(cut).encode("utf-8"))
        if size <= most_bytes or cap <= _LEAST_CAP:
            return cut, size
        cap = max(cap * 3 // 4, _LEAST_CAP)


def _cut(report: Report, cap: int) -> Report:
    return msgspec.structs.replace(
        report,
        causes=sorted(report.causes, key=lambda row: -row.ns)[:cap],
        kernels=sorted(report.kernels, key=lambda row: -row.owned_ns)[:cap],
        roofline=sorted(report.roofline, key=lambda row: -row.owned_ns)[:cap],
        other_steps=report.other_steps[:cap],
        warnings=report.warnings[:cap],
        findings=[msgspec.structs.replace(row, evidence=row.evidence[: max(cap // 100, 1)]) for row in report.findings],
    )


def write(report: Report, path: Path, most_bytes: int) -> int:
    """Write the reduced report to `path` at once or not at all; its size in bytes.

    Raises:
        UsageError: it can't be written.
    """
    cut, size = reduced(report, most_bytes)
    write_at_once(path, compact(cut))
    return size
