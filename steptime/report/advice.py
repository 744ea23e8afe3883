"""Findings and the checklist as lines that the terminal and Markdown share."""

from __future__ import annotations

from typing import NamedTuple

from steptime.model import Finding, Report
from steptime.model.findings import REPLAYED, REPLAYED_BOUND
from steptime.report import units, words
from steptime.report.names import brief

#: More findings than this are read by nobody; the JSON report has all.
SHOWN = 6
_EVIDENCE, _TEXT = 2, 2000
_REPLAYED = (REPLAYED, REPLAYED_BOUND)
_MARKS = {"pass": "ok", "fail": "FAIL", "cannot tell": "?"}


class Advice(NamedTuple):
    """One finding in lines: title, what it costs and could give, evidence, what to do."""

    title: str
    gain: str
    evidence: list[str]
    advice: str


class Check(NamedTuple):
    """One item of the checklist: ``ok``, ``FAIL`` or ``?``, the item, why."""

    mark: str
    item: str
    why: str


def advice(report: Report) -> list[Advice]:
    """The findings to show, in order."""
    return [_advice(finding, report) for finding in report.findings[:SHOWN]]


def more(report: Report) -> str:
    """What is not shown: further findings, and rules that could not be judged."""
    left = len(report.findings) - SHOWN
    notes = [f"{units.plural(left, 'more finding')} in the JSON report"] if left > 0 else []
    if report.not_evaluated:
        notes.append(f"{units.plural(len(report.not_evaluated), 'rule')} not evaluated: their numbers are not known")
    return "; ".join(notes)


def _advice(finding: Finding, report: Report) -> Advice:
    parts = []
    if finding.cost_ns and finding.share is not None:
        cost = units.time(words.per_step_ns(finding.cost_ns, report))
        kind = "concerned, gain not known"
        if finding.step_time_if_fixed_ns is not None:
            kind = "lost" if finding.gain in _REPLAYED else "at most"
        parts.append(f"{units.points(finding.share)} points, {cost} a step {kind}")
    parts += _fixed(finding)
    parts.append(f"confidence {brief(finding.confidence)}")
    evidence = []
    for seen in finding.evidence[:_EVIDENCE]:
        where = f" (rank {seen.rank}, step {seen.step})" if seen.rank is not None and seen.step is not None else ""
        evidence.append(brief(seen.text, 200) + where)
    return Advice(brief(finding.title, 300), ", ".join(parts), evidence, brief(finding.advice, _TEXT))


def _fixed(finding: Finding) -> list[str]:
    """What is left when it is fixed: replayed with the figure by subtraction beside it, or an upper bound."""
    mfu, naive = finding.mfu_if_fixed, finding.naive_mfu_if_fixed
    if finding.gain not in _REPLAYED:
        return [f"MFU up to {units.share(min(mfu, 1.0))}"] if mfu is not None else []
    parts = []
    if finding.step_time_if_fixed_ns is not None:
        best = "at best " if finding.gain == REPLAYED_BOUND else ""
        parts.append(f"fixed: {best}{units.time(finding.step_time_if_fixed_ns)} a step")
    if mfu is not None:
        beside = f" ({units.share(min(naive, 1.0))} by subtraction)" if naive is not None else ""
        parts.append(f"MFU {units.share(min(mfu, 1.0))}{beside}")
    elif finding.naive_step_time_if_fixed_ns is not None:
        parts.append(f"{units.time(finding.naive_step_time_if_fixed_ns)} by subtraction")
    return parts


def checks(report: Report) -> list[Check]:
    """The checklist, in order."""
    return [
        Check(_MARKS.get(item.status, "?"), brief(item.item, 200), brief(item.why, _TEXT)) for item in report.checklist
    ]
