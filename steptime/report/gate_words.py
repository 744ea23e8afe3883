"""A gate's verdict in sentences and rows, which all its renderers share."""

from __future__ import annotations

from steptime.model.diff import Diff
from steptime.model.gate import GatedRun, Judged, Moved, Verdict
from steptime.report import units
from steptime.report.diff_words import causes, first_line, signed
from steptime.report.names import brief, visible

#: Rows of what moved that are worth a screen.
MOVED_ROWS = 8
_NAME_WIDTH = 48
_MARKS = {"pass": "ok", "regressed": "REGRESSED", "cannot tell": "cannot tell"}


def headline(verdict: Verdict) -> str:
    """The first line of every output: the verdict, the reason, and what it comes from."""
    cause = f": {visible(verdict.cause[0])}" if verdict.cause and verdict.status == "regressed" else ""
    return f"{verdict.status}: {brief(verdict.reason, 400)}{cause}"


def cause_lines(diff: Diff) -> list[str]:
    """What changed between the typical runs: the causes for the first line, then the whole change of the mean step."""
    because = causes(diff)
    return [because, first_line(diff)] if because else []


def runs_line(title: str, runs: list[GatedRun]) -> str:
    """One side in one line: how many runs, their steps and usual step times."""
    if not runs:
        return f"{title}: none that could be judged"
    times = [run.usual_ns for run in runs]
    steps = sum(run.steps for run in runs)
    usual = units.time(times[0]) if len(times) == 1 else f"{units.time(min(times))} to {units.time(max(times))}"
    names = ", ".join(brief(run.name, _NAME_WIDTH) for run in runs[:3]) + (", …" if len(runs) > 3 else "")
    return f"{title}: {units.plural(len(runs), 'run')}, {units.plural(steps, 'step')}, usual step {usual} ({names})"


def spread_line(verdict: Verdict) -> str | None:
    """How much runs differ, and how that is known."""
    if verdict.run_sd is None:
        return None
    if verdict.degrees is None:
        return f"Runs are taken to differ by {units.share(verdict.run_sd)} (sd): too few runs to measure it."
    known = units.plural(verdict.degrees, "degree") + " of freedom"
    return f"Runs differ by {units.share(verdict.run_sd)} (sd, {known})."


def judged_rows(verdict: Verdict) -> list[list[str]]:
    """Status, name, baseline, candidate, change, interval, detectable, limit: one row for each thing judged."""
    return [
        [
            _MARKS[row.status],
            brief(row.name, _NAME_WIDTH),
            _value(row.baseline, row.unit),
            _value(row.candidate, row.unit),
            _change(row.change, row) + (" against the limit" if _absolute(row) else ""),
            "" if row.low is None or row.high is None else f"{_change(row.low, row)} to {_change(row.high, row)}",
            _change(row.detectable, row),
            row.limit or "",
        ]
        for row in verdict.judged
    ]


def _absolute(row: Judged) -> bool:
    """Whether it was set against its limit and not against the baseline."""
    return row.change is not None and row.limit is not None and not row.limit.startswith("+")


JUDGED_HEAD = ["", "judged", "baseline", "candidate", "change", "interval", "caught from", "limit"]


def moved_rows(verdict: Verdict, most: int = MOVED_ROWS) -> list[list[str]]:
    """Change, baseline, candidate, name: slices and leaves by their change a step."""
    return [
        [
            _signed(row),
            "?" if row.baseline_ns is None else units.time(row.baseline_ns),
            "?" if row.candidate_ns is None else units.time(row.candidate_ns),
            visible(f"{row.name}: {row.title}" if "/" in row.name else row.name),
        ]
        for row in verdict.moved[:most]
    ]


MOVED_HEAD = ["change a step", "baseline", "candidate", "where"]


def doubts(verdict: Verdict) -> list[str]:
    """Mismatches after the first, with their remedies; acceptances; notes."""
    lines = [f"{row.reason}: {row.remedy}" for row in verdict.mismatches[1:]]
    return [brief(line, 300) for line in [*lines, *verdict.accepted, *verdict.notes]]


def _signed(row: Moved) -> str:
    if row.change_ns is None:
        return "can't tell"
    return signed(row.change_ns)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return units.time(value) if unit == "ns" else f"{value * 100:.1f} %".replace("-", "−")


def _change(value: float | None, row: Judged) -> str:
    if value is None:
        return ""
    if row.relative:
        return units.difference(value)
    if row.unit == "ns":
        return signed(value)
    return f"{value * 100:+.1f} points".replace("-", "−")
