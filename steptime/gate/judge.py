"""The verdict: statistics first, threshold second.

**Regressed** (exit 1): the step is slower for certain (one-sided, 1.1 %) and by more than is allowed; or slow steps
have become so much more or slower that it is certain at 0.05 %; or a budget is broken for certain (1.1 % for all
budgets together).

**Cannot tell** (exit 2): the runs can't be compared; or the step is probably slower (1.1 to 10 %), but not for certain;
or a limit of the user's own is exceeded, but not for certain; or a regression of `Settings.detect` (25 %) would not
have been seen and may be there. The verdict names what to do.

**Pass** (exit 0): none of these. It says what size of regression would have been caught (in 90 % of the cases), so
that nothing larger is passed silently.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steptime.errors import EXIT_CANNOT_TELL, EXIT_OK, EXIT_REGRESSED
from steptime.gate.accepted import Accepted, credit_ns
from steptime.gate.baseline import spread_in
from steptime.gate.comparable import mismatches, remarks
from steptime.gate.limits import Name
from steptime.gate.parts import CANNOT_TELL, PASS, REGRESSED, judge_budget, judge_mfu, leaf_means_ns, moved
from steptime.gate.runs import Run
from steptime.gate.settings import DEFAULT_MAX_STEP_TIME, Settings
from steptime.gate.spread import ALPHA, DOUBT, Difference, Spread, difference, spread_of
from steptime.model.gate import Judged, Verdict

EXIT_CODES = {PASS: EXIT_OK, REGRESSED: EXIT_REGRESSED, CANNOT_TELL: EXIT_CANNOT_TELL}
STEP_TIME, SLOW_STEPS = "step time", "slow steps"
#: Error of the second look, at slow steps: small beside `ALPHA`, so that both together keep its promise.
SLOW_ALPHA, SLOW_DOUBT = 0.0005, 0.02
#: Growth of what slow steps add that matters, and the run-to-run sd of it to assume; shares of the usual step.
SLOW_MATTERS, SLOW_ASSUMED = 0.02, 0.01

_ADD_RUNS = "give more runs of the baseline or the candidate, or earlier runs of the job with --history"


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be judged: runs of both sides, earlier runs, and what is accepted on `today`."""

    candidate: Sequence[Run]
    baseline: Sequence[Run]
    history: Sequence[Run]
    accepted: Sequence[Accepted]
    today: datetime.date


def judge(question: Question, settings: Settings) -> Verdict:
    """The verdict. Both sides have at least one run."""
    candidate, baseline = list(question.candidate), list(question.baseline)
    found = mismatches(candidate, baseline, settings.min_steps)
    if found:
        return Verdict(
            status=CANNOT_TELL,
            exit_code=EXIT_CANNOT_TELL,
            reason=f"not comparable: {found[0].reason}",
            remedy=found[0].remedy,
            mismatches=found,
            candidate=[run.shown() for run in candidate if run.grid],
            baseline=[run.shown() for run in baseline if run.grid],
        )
    history, notes = known_spread(question, settings.min_steps)
    after, before = leaf_means_ns(candidate), leaf_means_ns(baseline)
    credit, accepted = credit_ns(question.accepted, question.today, before, after)
    shares = {leaf: ns / after[leaf] for leaf, ns in credit.items() if ns}
    credited = [replace(run, credit=shares) for run in candidate]
    gap = difference([run.usual for run in credited], [run.usual for run in baseline], history)
    judged = [_step_time(gap, credited, baseline, settings), _slow_steps(credited, baseline)]
    # Bonferroni: however many budgets there are, the same job breaks one by chance as seldom as if there were one.
    alpha = ALPHA / max(len(settings.budgets) + (settings.min_mfu is not None), 1)
    judged += [
        judge_budget(name, limit, candidate, baseline, _credit_of(name, candidate, credit), alpha)
        for name, limit in settings.budgets
    ]
    judged += [judge_mfu(settings.min_mfu, candidate, baseline, alpha)] if settings.min_mfu is not None else []
    status = next((one for one in (REGRESSED, CANNOT_TELL) if any(row.status == one for row in judged)), PASS)
    deciding = next((row for row in judged if row.status == status), judged[0])
    return Verdict(
        status=status,
        exit_code=EXIT_CODES[status],
        reason=deciding.why if deciding.name == STEP_TIME else f"{deciding.name}: {deciding.why}",
        remedy=_ADD_RUNS if status == CANNOT_TELL else None,
        judged=judged,
        moved=moved(candidate, baseline),
        accepted=accepted,
        candidate=[run.shown() for run in candidate],
        baseline=[run.shown() for run in baseline],
        run_sd=gap.run_sd,
        degrees=gap.degrees,
        notes=[*notes, *remarks(candidate, baseline)],
    )


def known_spread(question: Question, min_steps: int) -> tuple[Spread, list[str]]:
    """What earlier runs say of the run-to-run spread, and notes on runs that were left out.

    A spread stored in a baseline may rest on the very runs that are given, so it counts only where there is one.
    """
    usable, notes = [], []
    for run in question.history:
        wrong = mismatches([run], question.baseline[:1], min_steps)
        usable += [] if wrong else [run]
        notes += [f"history without {run.name}: {one.reason}" for one in wrong[:1]]
    stored = spread_in(question.baseline[0].report) if len(question.baseline) == 1 else Spread()
    return stored + spread_of([run.usual for run in usable]), notes


def growth_of(name: Name, question: Question) -> tuple[dict[str, int], dict[str, int]]:
    """By how much the leaves of a slice, leaf or finding have grown, and what they had; ns a step."""
    after, before = leaf_means_ns(question.candidate), leaf_means_ns(question.baseline)
    leaves = _leaves_of(name, question.candidate)
    grown = {leaf: after.get(leaf, 0) - before.get(leaf, 0) for leaf in sorted(leaves)}
    grown = {leaf: ns for leaf, ns in grown.items() if ns > 0}
    return grown, {leaf: before.get(leaf, 0) for leaf in grown}


def cannot_tell(reason: str, remedy: str | None = None) -> Verdict:
    """The verdict where nothing could be judged at all: no baseline, or one that can't be read."""
    return Verdict(status=CANNOT_TELL, exit_code=EXIT_CANNOT_TELL, reason=reason, remedy=remedy)


def _step_time(gap: Difference, candidate: Sequence[Run], baseline: Sequence[Run], settings: Settings) -> Judged:
    growth, chance, size = math.expm1(gap.estimate), gap.chance(), math.expm1(gap.detectable)
    promised = settings.max_step_time is not None
    allowed = settings.max_step_time if settings.max_step_time is not None else DEFAULT_MAX_STEP_TIME
    certain, over = chance < ALPHA, growth > allowed
    limits = f"{_percent(math.expm1(gap.low))} to {_percent(math.expm1(gap.high))}"
    measured = f"step time {_percent(growth)} ({limits})"
    caught = f"a regression of {_percent(size)} would have been caught"
    status, why = PASS, f"{measured}; {caught}"
    if certain and over:
        status, why = REGRESSED, measured
    elif over and promised:
        status, why = CANNOT_TELL, f"{measured} is over the limit of {_percent(allowed)}, but not for certain"
    elif over and chance < DOUBT:
        status, why = CANNOT_TELL, f"{measured}, probably slower, but not for certain; only {_percent(size)} is certain"
    elif size > settings.detect and math.expm1(gap.high) > allowed:
        status = CANNOT_TELL
        asked = f"{_percent(settings.detect)} is asked"
        why = f"{measured}; only a regression of {_percent(size)} would have been caught, {asked}"
    elif certain and growth > 0:
        why = f"{measured} is slower, and within the limit of {_percent(allowed)}; {caught}"
    return Judged(
        name=STEP_TIME,
        status=status,
        relative=True,
        baseline=_usual_ns(baseline),
        candidate=_usual_ns(candidate),
        change=growth,
        low=math.expm1(gap.low),
        high=math.expm1(gap.high),
        detectable=size,
        limit=_percent(allowed),
        why=why,
    )


def _slow_steps(candidate: Sequence[Run], baseline: Sequence[Run]) -> Judged:
    """Whether rare slow steps, which the usual step leaves out, add more than before."""
    after, before = [run.slow for run in candidate], [run.slow for run in baseline]
    gap = difference(after, before, assumed=SLOW_ASSUMED)
    chance = gap.chance()
    was, now = (sum(one.value for one in side) / len(side) for side in (before, after))
    status = PASS
    if gap.estimate > SLOW_MATTERS and chance < SLOW_DOUBT:
        status = REGRESSED if chance < SLOW_ALPHA else CANNOT_TELL
    doubt = ", probably more than before, but not for certain" if status == CANNOT_TELL else ""
    return Judged(
        name=SLOW_STEPS,
        status=status,
        unit="share",
        baseline=was,
        candidate=now,
        change=gap.estimate,
        low=gap.low,
        high=gap.high,
        detectable=gap.detectable,
        why=f"they add {_percent(now)} to the usual step, {_percent(was)} in the baseline{doubt}",
    )


def _credit_of(name: Name, candidate: Sequence[Run], credit: dict[str, int]) -> int:
    """What of a slice, leaf or finding is accepted, ns a step: of a finding, the leaves that it counts on."""
    leaves = _leaves_of(name, candidate)
    return sum(ns for leaf, ns in credit.items() if leaf in leaves)


def _leaves_of(name: Name, candidate: Sequence[Run]) -> set[str]:
    leaves = set(name.leaves)
    for run in candidate:
        leaves |= {leaf for found in run.report.findings if found.id == name.id for leaf in found.promised}
    return leaves


def _usual_ns(runs: Sequence[Run]) -> float:
    return math.exp(sum(run.usual.value for run in runs) / len(runs))


def _percent(value: float) -> str:
    """A change in percent with its sign."""
    percent = round(value * 100, 1) + 0.0  # not −0.0
    return f"{percent:+,.1f} %".replace("-", "−")
