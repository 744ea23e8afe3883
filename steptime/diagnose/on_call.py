"""A report for someone on call: what is slow, who and why, since when; what to do now; what to capture next."""

from __future__ import annotations

from steptime.diagnose.first_moves import move, rank_list
from steptime.diagnose.limits import (
    TOO_DARK,
    could_be_new,
    dark_share,
    edge_only,
    hidden_wait,
    leaf_shares,
    measured,
    missing_ranks,
    one_window,
    slower_by,
)
from steptime.diagnose.say import plural
from steptime.diagnose.seen import Seen
from steptime.diagnose.suspects import LATE, LEAST_SHARE, SLOWER_SHARE, leaf_changes, mean_step_ns, suspects
from steptime.diagnose.verdict import since_sentence, what_sentence, who_sentence
from steptime.model import Report
from steptime.model.on_call import CANNOT_TELL, CLEAR, SLOW, Action, Missed, OnCall, Pace, Suspect

#: More suspects than this do not fit into ten minutes.
_ACTED_ON = 3


def on_call(
    report: Report,
    baseline: Report | None = None,
    pace: Pace | None = None,
    missed: tuple[Missed, ...] = (),
    job: str | None = None,
) -> OnCall:
    """The summary of a report.

    Args:
        report: of the job that is said to be slow.
        baseline: of the same job when it was healthy.
        pace: what the step times around the capture say, where a hook kept them.
        missed: processes that could not be traced.
        job: its name.
    """
    unlike = _unlike(baseline, report) if baseline is not None else []
    if unlike or not measured(report):
        baseline = None
    changes = leaf_changes(baseline, report) if baseline is not None else None
    found = suspects(report, changes)
    doubts = [*unlike, *_doubts(report, missed)]
    seen = Seen(report, found, baseline, pace, missed=bool(missed))
    status = _status(seen)
    return OnCall(
        tool=report.tool,
        status=status,
        verdict=[
            what_sentence(seen, status),
            who_sentence(seen, status),
            since_sentence(seen),
        ],
        suspects=found,
        actions=_actions(report, found, status),
        captures=_captures(report, found, status),
        changes=changes,
        doubts=doubts,
        missed=list(missed),
        job=job,
        device=report.job.device,
        world_size=report.job.world_size,
        ranks_analyzed=report.job.ranks_analyzed,
        step_time_ns=report.job.step_time_ns,
        mean_step_ns=mean_step_ns(report),
        baseline_mean_step_ns=mean_step_ns(baseline) if baseline is not None else None,
        mfu=report.job.mfu,
        shares=leaf_shares(report),
        pace=pace,
    )


def _status(seen: Seen) -> str:
    report, found = seen.report, seen.found
    if not measured(report) or edge_only(report):
        return CANNOT_TELL
    if seen.baseline is not None and slower_by(report, seen.baseline) < SLOWER_SHARE:
        return CLEAR
    largest = max((one.share for one in found), default=0.0)
    if dark_share(report) > max(largest, TOO_DARK):
        return CANNOT_TELL
    # A rank that was found late is late whatever the ranks without a file did; a pause of a recorded rank may be small
    # against a wait that looks like communication.
    if not any(one.kind in LATE for one in found) and hidden_wait(report, seen.missed, largest):
        return CANNOT_TELL
    if seen.baseline is not None and not any((one.new_ns or 0) >= LEAST_SHARE * mean_step_ns(report) for one in found):
        return CANNOT_TELL
    if found:
        return SLOW
    # Longer than the baseline's steps, or than the hook's earlier ones, and nothing is enough of it to be named.
    slower = seen.baseline is not None or seen.pace is not None
    return CANNOT_TELL if slower or could_be_new(report) else CLEAR


def _actions(report: Report, found: list[Suspect], status: str) -> list[Action]:
    """What to do about each suspect, then what the findings about the same time advise."""
    if status == CANNOT_TELL and measured(report) and not found and (leaf := could_be_new(report)) is not None:
        cause = leaf.partition("/")[2]
        if_new = Suspect(kind="all ranks", cause=cause, leaf=leaf, ranks=[], host=None, cost_ns=0, share=0.0)
        return [Action(text=f"If that is new: {move(if_new)}", cause=cause)]
    if status != SLOW:
        return []
    acted = found[:_ACTED_ON]
    actions = [Action(text=move(one), ranks=one.ranks, host=one.host, cause=one.cause) for one in acted]
    leaves = {one.leaf for one in acted if one.leaf is not None and one.kind != "straggler"}
    leaves |= {one.leaf for one in acted if one.leaf is not None and one.leaf.startswith("host/")}
    for finding in report.findings:
        if leaves & set(finding.promised) and len(actions) < 2 * _ACTED_ON:
            actions.append(Action(text=f"{finding.title}: {finding.advice}", finding=finding.id))
    return actions


def _captures(report: Report, found: list[Suspect], status: str) -> list[str]:
    """What to record next, where these traces are not enough."""
    wanted = []
    if not measured(report) or edge_only(report):
        wanted.append("Capture at least three whole steps: --steps 5, or a longer --seconds.")
    elif len(report.job.steps) < 2:
        wanted.append("Capture more steps (--steps 5): one step can't tell a habit from chance.")
    unknown = [rank for one in found if not one.recorded for rank in one.ranks]
    missing = missing_ranks(report)
    if unknown:
        ranks = ",".join(map(str, sorted(set(unknown))))
        wanted.append(f"Capture rank {rank_list(unknown)} (--ranks {ranks}): it is late, and it was not recorded.")
    elif missing and report.pipeline is not None and _stage_of(report, found) is not None:
        wanted.append(f"Capture all ranks of stage {_stage_of(report, found)} (--ranks): some were not recorded.")
    elif missing and (status != SLOW or found[0].kind in ("unclear", "grown")):
        wanted.append(
            f"Capture the missing ranks ({rank_list(missing)}) with the others: the late one may be among them."
        )
    if any(one.cause == "python" for one in found) and not _stacks(report):
        wanted.append(
            "Capture with stacks, and with steptime.watch in the loop: garbage collection and checkpoints leave a mark "
            "only there, and the source line needs stacks."
        )
    if measured(report) and dark_share(report) >= TOO_DARK:
        wanted.append("Capture again over more steps, and look at dmesg and the GPU's clocks while it is recorded.")
    return wanted


def _stage_of(report: Report, found: list[Suspect]) -> int | None:
    """The pipeline stage of the first suspect's ranks, from 0."""
    if report.pipeline is None or not found or not found[0].ranks:
        return None
    for stage, ranks in enumerate(report.pipeline.stages):
        if set(found[0].ranks) <= set(ranks):
            return stage
    return None


def _stacks(report: Report) -> bool:
    return any(one.quality is not None and one.quality.stacks for one in report.inputs)


def _doubts(report: Report, missed: tuple[Missed, ...]) -> list[str]:
    """What limits the verdict."""
    doubts: list[str] = []
    missing = missing_ranks(report)
    if missing:
        doubts.append(
            f"{plural(len(missing), 'rank')} of {report.job.world_size} not recorded ({rank_list(missing)}): a late "
            "one among them would show as communication"
        )
    if report.alignment is not None and report.alignment.unjudged is not None:
        doubts.append(f"no rank can be called late: {report.alignment.unjudged}")
    if measured(report) and one_window(report):
        doubts.append("no step is marked in these traces, so the whole recording counts as one")
    if measured(report) and edge_only(report):
        doubts.append("only steps at the edge of the recording were caught")
    doubts += [text for text in report.warnings if text.startswith("skipped:")][:3]
    if missed:
        doubts.append(f"{plural(len(missed), 'process', 'processes')} could not be traced")
    return doubts


def _unlike(baseline: Report, report: Report) -> list[str]:
    """Why the baseline says nothing about this job; empty if it does."""
    if not measured(baseline):
        return ["no step was measured in the baseline, so nothing was compared with it"]
    pairs = (
        ("another device", baseline.job.device, report.job.device),
        ("another number of ranks", baseline.job.world_size, report.job.world_size),
    )
    return [
        f"not compared with the baseline, which is of another job: {what} (then {then or 'not known'}, now "
        f"{now or 'not known'})"
        for what, then, now in pairs
        if then != now
    ]
