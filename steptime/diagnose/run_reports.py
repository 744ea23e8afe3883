"""What reports on the whole run say to the checklist: `steptime goodput`, `goodput plan` and `goodput watch` as JSON.

Only what the checks ask for is read, so that a report of another version serves as long as these fields mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from steptime.errors import ReportError
from steptime.model.goodput import GOODPUT_KIND
from steptime.store import kind_of, load_goodput

_PLAN_KIND, _WATCH_KIND = "goodput plan", "goodput watch"
_NORM = "grad_norm"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the whole run; None: no report says so.

    mtbf_h: hours between failures as logs show them; failures: how many. interval_ns: training between two checkpoints;
    young_ns: what Young's formula asks for; plan_ns: what a plan does, for plan_mtbf_h hours between failures.
    norm_logged: whether the run's own log holds the gradient norm; norm_lines: how often; spikes: of it. fit: what the
    byte inventory says, bytes of a rank, bytes of the GPU.
    """

    mtbf_h: float | None = None
    failures: int | None = None
    eta: float | None = None
    interval_ns: float | None = None
    young_ns: float | None = None
    plan_ns: float | None = None
    plan_mtbf_h: float | None = None
    norm_logged: bool | None = None
    norm_lines: int | None = None
    spikes: int | None = None
    fit: tuple[str, int, int] | None = None


class _Ask(msgspec.Struct):
    interval_s: float | None = None


class _At(msgspec.Struct):
    interval_s: float


class _Best(msgspec.Struct):
    at: _At


class _Rank(msgspec.Struct):
    verdict: str
    total: int


class _Fit(msgspec.Struct):
    chosen: _Rank
    memory_bytes: int


class _Plan(msgspec.Struct):
    mtbf_job_s: float
    ask: _Ask
    best: _Best
    fit: _Fit | None = None


class _Series(msgspec.Struct):
    what: str
    rows: int


class _Spike(msgspec.Struct):
    what: str


class _Watch(msgspec.Struct):
    series: list[_Series]
    spikes: list[_Spike]


def read_run_reports(paths: Sequence[str]) -> RunFacts:
    """What these reports say together; where two say the same, the later one holds.

    Raises:
        ReportError: a file can't be read, or is none of the three kinds.
    """
    facts = RunFacts()
    for path in paths:
        kind = kind_of(path)
        if kind == GOODPUT_KIND:
            facts = _of_goodput(facts, path)
        elif kind in (_PLAN_KIND, _WATCH_KIND):
            try:
                data = Path(path).read_bytes()
                if kind == _PLAN_KIND:
                    facts = _of_plan(facts, msgspec.json.decode(data, type=_Plan))
                else:
                    facts = _of_watch(facts, msgspec.json.decode(data, type=_Watch))
            except msgspec.ValidationError as error:
                raise ReportError(f"{path}: edited, or of another version ({error}): write it again") from error
        else:
            raise ReportError(
                f"{path}: not a report of `steptime goodput`: write one with steptime goodput LOG -o FILE"
            )
    return facts


def _of_goodput(facts: RunFacts, path: str) -> RunFacts:
    report = load_goodput(path)
    habit = report.checkpoints
    metrics = [log for log in report.inputs if log.kind.startswith("metrics")]
    logged = _NORM in report.logged
    return replace(
        facts,
        mtbf_h=report.mtbf.mtbf_h if report.mtbf is not None else facts.mtbf_h,
        failures=report.mtbf.failures if report.mtbf is not None else facts.failures,
        eta=report.eta if report.eta is not None else facts.eta,
        interval_ns=habit.interval_ns if habit is not None and habit.interval_ns else facts.interval_ns,
        young_ns=habit.young_ns if habit is not None and habit.young_ns else facts.young_ns,
        norm_logged=logged if metrics else facts.norm_logged,
    )


def _of_plan(facts: RunFacts, plan: _Plan) -> RunFacts:
    asked = plan.ask.interval_s
    return replace(
        facts,
        interval_ns=facts.interval_ns if asked is None else asked * 1e9,
        plan_ns=plan.best.at.interval_s * 1e9,
        plan_mtbf_h=plan.mtbf_job_s / 3600,
        fit=facts.fit if plan.fit is None else (plan.fit.chosen.verdict, plan.fit.chosen.total, plan.fit.memory_bytes),
    )


def _of_watch(facts: RunFacts, watch: _Watch) -> RunFacts:
    rows = next((one.rows for one in watch.series if one.what == _NORM), 0)
    return replace(
        facts,
        norm_logged=rows > 0,
        norm_lines=rows or None,
        spikes=sum(one.what == _NORM for one in watch.spikes),
    )
