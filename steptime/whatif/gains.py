"""What fixing each finding would buy, and all of them one after the other, from replays of the job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.model import Finding, Replay, Report, Rung
from steptime.model.findings import REPLAYED, REPLAYED_BOUND
from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Row
from steptime.whatif.fidelity import modelled_error
from steptime.whatif.fixes import changes_for
from steptime.whatif.job_replay import JobReplay
from steptime.whatif.path_report import with_critical_path
from steptime.whatif.scenario import APART, Change, Scenario, combined

_STALLED = "unexplained/queue_stalled"
#: Above this error of the unchanged replay gains stay bounds (issue: 3 %).
MOST_ERROR = 0.03
#: So many findings are replayed, so many rungs climbed; a rung must take this share of the step.
REPLAYED_FINDINGS, RUNGS, LEAST_RUNG = 12, 5, 0.005


def with_replay(report: Report, job: JobReplay | str, rows: Sequence[Row], alignment: Alignment | None) -> Report:
    """The report with what a replay of the job tells: its critical path, and what fixing its findings would buy.

    Args:
        report: with its findings.
        job: the job, ready to be replayed; or why it can't be.
        rows, alignment: of which it was made.
    """
    if isinstance(job, str):
        return msgspec.structs.replace(report, replay=Replay(why=job))
    replay = Replay(error_share=job.error_share)
    if job.error_share > MOST_ERROR:
        why = f"the replay of the unchanged job is {100 * job.error_share:.1f} % off"
        return msgspec.structs.replace(report, replay=msgspec.structs.replace(replay, why=why))
    report = with_critical_path(report, job.job, job.times, rows, alignment)
    modelled = modelled_error(job)
    replay = msgspec.structs.replace(replay, modelled_error_share=modelled, stalled_share=_stalled_share(report))
    if modelled > MOST_ERROR:
        why = f"{100 * modelled:.1f} % of the steps are delays that nothing recorded explains, and a replay repeats"
        return msgspec.structs.replace(report, replay=msgspec.structs.replace(replay, why=why))
    return _with_gains(msgspec.structs.replace(report, replay=replay), replay, job)


def _stalled_share(report: Report) -> float | None:
    path = report.critical_path
    if path is None or not path.length_ns:
        return None
    return sum(total.ns for total in path.totals if total.leaf == _STALLED) / path.length_ns


def _with_gains(report: Report, replay: Replay, job: JobReplay) -> Report:
    fixes = {}
    for finding in report.findings[:REPLAYED_FINDINGS]:
        if changes := changes_for(finding, report):
            fixes[finding.id] = changes
    scenarios = {name: job.scenario(changes) for name, changes in fixes.items()}
    kept = dict(zip(scenarios, job.lengths_ns(list(scenarios.values())), strict=True))
    findings = [
        _gained(report, one, kept[one.id] / job.step_ns, fixes[one.id]) if one.id in kept else one
        for one in report.findings
    ]
    report = msgspec.structs.replace(report, findings=findings)
    ladder = _ladder(report, job, scenarios, kept)
    return msgspec.structs.replace(report, replay=msgspec.structs.replace(replay, ladder=ladder))


def _gained(report: Report, finding: Finding, left: float, changes: Sequence[Change]) -> Finding:
    """A finding with what a replay of these changes says; left: the step's length over that of the unchanged one."""
    return msgspec.structs.replace(
        finding,
        mfu_if_fixed=_mfu(report, left),
        step_time_if_fixed_ns=round(_step_ns(report) * left),
        gain=REPLAYED_BOUND if _is_bound(changes) else REPLAYED,
    )


def _is_bound(changes: Sequence[Change]) -> bool:
    """Whether no fix reaches it all: a schedule has a bubble of its own, smaller with more micro-batches only."""
    return any(change.kind == APART for change in changes)


def _step_ns(report: Report) -> float:
    return report.job.total_ns / max(report.job.rank_steps, 1)


def _mfu(report: Report, left: float) -> float | None:
    return min(report.job.mfu / left, 1.0) if report.job.mfu is not None and left > 0 else None


def _ladder(report: Report, job: JobReplay, fixes: dict[str, Scenario], alone: dict[str, float]) -> list[Rung]:
    """The best fix, then with it the one that takes most off what is left, and so on.

    Only fixes that buy most alone are tried: a rung costs a replay of each. What no fix reaches is left out.
    """
    cost = {one.id: one.cost_ns for one in report.findings}
    reached = [one.id for one in report.findings if one.gain == REPLAYED]
    tried = sorted(reached, key=lambda one: alone[one])[: RUNGS + 1]
    done: list[str] = []
    rungs: list[Rung] = []
    step_ns, kept = job.step_ns, {one: alone[one] for one in tried}
    while kept and len(rungs) < RUNGS:
        best = min(kept, key=lambda one: kept[one])
        if kept[best] > step_ns - LEAST_RUNG * job.step_ns:
            break
        done.append(best)
        step_ns = kept[best]
        rungs.append(_rung(report, done, step_ns / job.step_ns, [cost[one] for one in done]))
        left = [one for one in tried if one not in done]
        together = [combined([fixes[one] for one in (*done, other)]) for other in left]
        kept = dict(zip(left, job.lengths_ns(together), strict=True))
    return rungs


def _rung(report: Report, done: Sequence[str], left: float, costs: Sequence[int | None]) -> Rung:
    known = [ns for ns in costs if ns is not None]
    naive = (report.job.total_ns - sum(known)) / max(report.job.rank_steps, 1) if len(known) == len(costs) else None
    return Rung(
        findings=list(done),
        step_time_ns=round(_step_ns(report) * left),
        mfu=_mfu(report, left),
        naive_step_time_ns=round(naive) if naive is not None else None,
    )
