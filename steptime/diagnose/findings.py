"""`diagnose`: every rule against one report. What fires becomes a finding with its evidence and what a fix may give.

A gain is an upper bound: the time that a fix could take away if nothing else then stood in its way. Time is promised
once; specific rules claim before general ones, and larger claims before smaller ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from steptime.diagnose.checklist import checklist
from steptime.diagnose.evidence import evidence_of
from steptime.diagnose.metrics import read_all
from steptime.diagnose.promises import Promises
from steptime.diagnose.reading import Part, Reading, Value
from steptime.diagnose.rules import Rule, builtin_rules, load_rules
from steptime.diagnose.run_reports import RunFacts
from steptime.diagnose.say import time_text
from steptime.model import Evidence, Finding, Report

UPPER_BOUND, NOT_COMPUTED, CANNOT_TELL = "upper bound", "not computed", "cannot tell"

_LEVELS = ("low", "medium", "high")
#: How much of its promised gain a finding counts for in the ranking: a doubtful large gain stands below a sure one of
#: more than half its size.
_WEIGHT = {"high": 1.0, "medium": 0.75, "low": 0.5}
#: A cost whose gain is not computed counts for less still: a fix seldom gives all of it back.
_WEIGHT_OF_COST = 0.3
#: What is left for a finding after others have claimed its time must be this part of the step.
_WORTH_SAYING = 0.005
#: Leaves that profiling with stacks stretches (DESIGN 1.4, rule 5).
_INFLATED = ("host/launch_bound", "host/python")
_NEEDS_ALL_RANKS = ("exposed_comm", "stragglers", "pipeline_bubble")


def diagnose(report: Report, rules_dirs: Sequence[Path] = (), run: RunFacts = RunFacts()) -> Report:  # noqa: B008
    """The report with its findings, the rules that could not be evaluated, and the checklist.

    Args:
        report: any report; what it holds of the three is replaced.
        rules_dirs: folders with more rules.
        run: what reports on the whole run say, for the checklist.

    Raises:
        UsageError: a rule or a folder of rules is not usable; see `load_rules`.
    """
    rules = load_rules(rules_dirs) if rules_dirs else list(builtin_rules())
    reading = Reading(report)
    values = read_all(reading)
    fired, gaps = [], {}
    for rule in rules:
        outcome = rule.outcome(values)
        if outcome.fires:
            fired.append(rule)
        elif outcome.fires is None:
            gaps[rule.id] = outcome.why
    return msgspec.structs.replace(
        report,
        findings=_findings(fired, reading, values),
        not_evaluated=gaps,
        checklist=checklist(reading, values, run),
    )


def _findings(rules: Sequence[Rule], reading: Reading, values: Mapping[str, Value]) -> list[Finding]:
    promises = Promises(reading)
    ranked: list[tuple[float, bool, Finding]] = []
    for rule in sorted(rules, key=lambda rule: (rule.general, -_claim_ns(rule, values), rule.id)):
        confidence, doubts, inflated = _confidence(rule, reading, values)
        parts = _parts(rule, values)
        promised, holders = promises.claim(rule.id, parts)
        got = sum(promised.values())
        if parts and got < min(_WORTH_SAYING * reading.total_ns, sum(part.ns for part in parts)):
            # What more specific findings have left of it is not worth a finding.
            continue
        finding = _finding(rule, reading, values, promised if parts else None, confidence)
        notes = [Evidence(text=doubt) for doubt in doubts]
        if holders:
            wanted = sum(part.ns for part in parts)
            notes.append(_shared(got, wanted, holders, reading))
        finding = msgspec.structs.replace(finding, evidence=[*finding.evidence, *notes])
        ranked.append((_rank(finding), inflated, finding))
    ranked.sort(key=lambda row: (-row[0], row[2].id))
    return _headline([(inflated, finding) for _, inflated, finding in ranked])


def _claim_ns(rule: Rule, values: Mapping[str, Value]) -> int:
    return sum(part.ns for part in _parts(rule, values))


def _parts(rule: Rule, values: Mapping[str, Value]) -> tuple[Part, ...]:
    return values[rule.saves].parts if rule.saves is not None else ()


def _finding(
    rule: Rule, reading: Reading, values: Mapping[str, Value], promised: dict[str, int] | None, confidence: str
) -> Finding:
    got = sum(promised.values()) if promised is not None else None
    cost_ns = got
    if rule.costs is not None and (share := values[rule.costs].number) is not None:
        cost_ns = round(share * reading.total_ns)
    total, job = reading.total_ns, reading.job
    left = total - got if got is not None else 0
    mfu = min(job.mfu * total / left, 1.0) if job.mfu is not None and got and left > 0 else None
    step_ns = round(left / reading.rank_steps) if got and left > 0 and reading.rank_steps else None
    return Finding(
        id=rule.id,
        slice=rule.slice,
        title=rule.title,
        cost_ns=cost_ns,
        share=cost_ns / total if cost_ns is not None and total else None,
        mfu_if_fixed=mfu,
        step_time_if_fixed_ns=step_ns,
        naive_mfu_if_fixed=mfu,
        naive_step_time_if_fixed_ns=step_ns,
        promised=promised or {},
        gain=CANNOT_TELL if rule.cannot_tell else UPPER_BOUND if got else NOT_COMPUTED,
        confidence=confidence,
        evidence=evidence_of(rule, reading, values),
        advice=rule.advice,
    )


def _shared(got: int, wanted: int, holders: list[str], reading: Reading) -> Evidence:
    steps = max(reading.rank_steps, 1)
    rest, whole = time_text((wanted - got) / steps), time_text(wanted / steps)
    return Evidence(text=f"{rest} of its {whole} a step are already promised by {', '.join(holders)}")


def _confidence(rule: Rule, reading: Reading, values: Mapping[str, Value]) -> tuple[str, list[str], bool]:
    """How sure the finding is, why it is less sure than its rule, and whether profiling inflates what it rests on."""
    level = _LEVELS.index(rule.confidence)
    if rule.cannot_tell or (rule.saves is None and rule.costs is None):
        return rule.confidence, [], False
    doubts = []
    leaves = {part.leaf for part in _parts(rule, values)}
    stacks = values["quality.stacks"].number
    unadjusted = not reading.leaves.get("host/profiler_overhead")
    inflated = bool(stacks) and unadjusted and bool(leaves & set(_INFLATED))
    if inflated:
        level = 0
        doubts.append("low confidence: recording stacks slows the host, by how much is not known")
    elif "host/launch_bound" in leaves and unadjusted and _mostly_profiler(values):
        level -= 1
        doubts.append("less sure: recording the ops may have cost half of the launch-bound time or more")
    if reading.edge_only or reading.rank_steps == 1:
        level -= 1
        what = "only edge steps" if reading.edge_only else "one step only"
        doubts.append(f"less sure: it rests on {what}")
    if rule.slice in _NEEDS_ALL_RANKS and (values["ranks.missing"].number or 0) > 0:
        level -= 1
        doubts.append("less sure: with ranks missing, waiting for a late rank can't be told from transfer")
    return _LEVELS[max(level, 0)], doubts, inflated


def _mostly_profiler(values: Mapping[str, Value]) -> bool:
    inflation, launch = values["host.inflation_share"].number, values["share.host.launch_bound"].number
    return inflation is not None and launch is not None and inflation >= launch / 2


def _rank(finding: Finding) -> float:
    """Time without a verdict in full, a gain or a cost by what it counts for; what has no cost comes last."""
    share = finding.share or 0.0
    if finding.gain == NOT_COMPUTED:
        return share * _WEIGHT_OF_COST
    return share if finding.gain == CANNOT_TELL else share * _WEIGHT[finding.confidence]


def _headline(ranked: list[tuple[bool, Finding]]) -> list[Finding]:
    """What profiling inflates is never the first finding while there is another."""
    first = next((at for at, (inflated, _) in enumerate(ranked) if not inflated), 0)
    order = [ranked[first], *ranked[:first], *ranked[first + 1 :]] if ranked else []
    return [finding for _, finding in order]
