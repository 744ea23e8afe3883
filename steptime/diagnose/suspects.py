"""What makes a job slow that was not built to be slow: late ranks, host pauses, slow links, and what grew.

How a job is built (its kernels, its bubble, what communication it can hide) costs as much at 3 a.m. as at noon: such
time is a suspect only where a baseline shows that it grew.
"""

from __future__ import annotations

from statistics import median

from msgspec.structs import replace

from steptime.model import Report, StepTime, Straggler
from steptime.model.on_call import LeafChange, Suspect

#: Host leaves that come and go with files, memory, collections and saves, not with the program's text.
ACUTE_LEAVES = (
    "host/data_loader",
    "host/python",
    "host/gc",
    "host/checkpoint",
    "host/allocator",
    "host/compile",
)
#: Kinds of suspects that are late ranks.
LATE = ("straggler", "jitter", "once", "unclear")
#: What a suspect must cost, as a share of the mean step. Clean jobs of the simulator and real ones have jitter of 1 to
#: 2 % in their waits.
LEAST_SHARE = 0.03
#: A rank that is late again and again is already more than clocks and jitter explain: it is left out only where it
#: hardly costs. One late step of several is no reason why a job is slow, unless it was a very long one.
_LEAST_OF_A_KIND = {"straggler": 0.01, "once": 0.1}
#: A mean step that is longer by this share than the baseline's is slower: runs of the same job differ by 1 to 2 %.
SLOWER_SHARE = 0.03
#: A rank has a pause for itself if it pauses this many times as long as the median rank.
_APART = 3.0
#: Waiting for late ranks of whom none is named: worth a suspect from this share on.
_UNNAMED_SHARE = 0.1
_WAIT = "stragglers/wait_for_rank"


def suspects(report: Report, changes: list[LeafChange] | None = None) -> list[Suspect]:
    """What makes this job slow, most costly first; with a baseline, what is new of it first. Empty if nothing does.

    Args:
        report: of the job.
        changes: against a healthy report of it, see `leaf_changes`.
    """
    if report.job.rank_steps <= 0 or report.job.total_ns <= 0:
        return []
    found = [_late(one, report) for one in report.stragglers] + _slow_groups(report)
    found = [one for one in found if one.share >= _LEAST_OF_A_KIND.get(one.kind, LEAST_SHARE)]
    blamed = {one.leaf for one in found if one.leaf is not None}
    for leaf in ACUTE_LEAVES:
        paused = _pause(leaf, report)
        # A late rank's own pause is told with the rank; a pause that costs far more than that is a second thing.
        named_ns = sum(one.cost_ns for one in found if one.leaf == leaf)
        if paused is not None and (leaf not in blamed or paused.cost_ns > 2 * named_ns):
            found.append(paused)
    if not found and _share(report, _WAIT) >= _UNNAMED_SHARE:
        found.append(_everyone(report, _WAIT, "unclear", "not separable"))
    if changes is not None:
        found += _grown(report, changes, {one.leaf for one in found}, bool(found))
        found = [replace(one, new_ns=_new_ns(one, changes)) for one in found]
    return sorted(found, key=lambda one: (-(one.new_ns or 0), -one.cost_ns, one.cause))


def _new_ns(suspect: Suspect, changes: list[LeafChange]) -> int:
    leaf = _WAIT if suspect.kind in LATE else suspect.leaf
    grown = sum(one.after_ns - one.before_ns for one in changes if one.leaf == leaf)
    return min(max(grown, 0), suspect.cost_ns)


def mean_step_ns(report: Report) -> int:
    """The mean rank-step; 0 where none was measured."""
    return round(report.job.total_ns / report.job.rank_steps) if report.job.rank_steps > 0 else 0


def leaf_means_ns(report: Report) -> dict[str, int]:
    """Every leaf of the mean rank-step, ``productive`` among them; slices without leaves under their own id."""
    rank_steps = max(report.job.rank_steps, 1)
    found = {"productive": report.job.productive_ns}
    for part in report.job.slices:
        leaves = {f"{part.id}/{leaf.id}": leaf.ns or 0 for leaf in part.leaves}
        found |= leaves or {part.id: part.ns or 0}
    return {key: round(ns / rank_steps) for key, ns in found.items() if ns}


def leaf_changes(before: Report, after: Report) -> list[LeafChange]:
    """How the leaves of the mean step changed, largest change first; leaves that did not are left out."""
    then, now = leaf_means_ns(before), leaf_means_ns(after)
    found = [LeafChange(leaf=key, before_ns=then.get(key, 0), after_ns=now.get(key, 0)) for key in {**then, **now}]
    moved = [one for one in found if one.before_ns != one.after_ns]
    return sorted(moved, key=lambda one: (-abs(one.after_ns - one.before_ns), one.leaf))


def counted_steps(report: Report) -> dict[int, list[StepTime]]:
    """The steps that the job's figures rest on, by rank; several devices of a rank are one list."""
    wanted = set(report.job.steps)
    found: dict[int, list[StepTime]] = {}
    for rank in report.ranks:
        found.setdefault(rank.rank, []).extend(step for step in rank.steps if step.step in wanted)
    return {rank: steps for rank, steps in found.items() if steps}


def host_of(report: Report, ranks: list[int]) -> str | None:
    """The one host of these ranks; None where there are several or it is not recorded."""
    hosts = {rank.host for rank in report.ranks if rank.rank in ranks}
    return hosts.pop() if len(hosts) == 1 else None


def _device_of(report: Report, ranks: list[int]) -> int | None:
    """The device of a single rank that has one."""
    devices = [rank.device for rank in report.ranks if [rank.rank] == ranks]
    return devices[0] if len(devices) == 1 else None


def _share(report: Report, leaf: str) -> float:
    return leaf_means_ns(report).get(leaf, 0) / max(mean_step_ns(report), 1)


def _late(one: Straggler, report: Report) -> Suspect:
    cost = round(one.lost_ns / max(len(report.job.steps), 1))
    steps = sorted(one.steps)
    ranks = sorted({*one.ranks, *([one.rank] if one.rank is not None else [])})
    return Suspect(
        kind=one.kind,
        cause=one.cause,
        leaf=one.leaf,
        ranks=ranks,
        host=one.host or host_of(report, ranks),
        device=_device_of(report, ranks),
        cost_ns=cost,
        share=cost / max(mean_step_ns(report), 1),
        steps=steps,
        since_step=_since(steps, report.job.steps) if one.kind in ("straggler", "unclear") else None,
        recorded=one.recorded,
    )


def _since(struck: list[int], counted: list[int]) -> int | None:
    """The first struck step, if two before it were free of it and all after it were not."""
    if not struck:
        return None
    before = [step for step in counted if step < struck[0]]
    return struck[0] if len(before) > 1 and set(struck) >= {one for one in counted if one >= struck[0]} else None


def _pause(leaf: str, report: Report) -> Suspect | None:
    if _share(report, leaf) < LEAST_SHARE:
        return None
    steps = counted_steps(report)
    each = {rank: sum(one.leaves_ns.get(leaf, 0) for one in own) / len(own) for rank, own in steps.items()}
    usual = median(each.values())
    apart = [rank for rank, ns in each.items() if ns > _APART * usual]
    everywhere = _everyone(report, leaf, "all ranks", leaf.partition("/")[2])
    if not apart or len(each) < 2 or 2 * len(apart) > len(each):
        return everywhere
    if sum(each[rank] for rank in apart) < sum(each.values()) / 2:
        return everywhere
    return Suspect(
        kind="some ranks",
        cause=everywhere.cause,
        leaf=leaf,
        ranks=sorted(apart),
        host=host_of(report, apart),
        cost_ns=everywhere.cost_ns,
        share=everywhere.share,
    )


def _everyone(report: Report, leaf: str, kind: str, cause: str) -> Suspect:
    ns = leaf_means_ns(report).get(leaf, 0)
    share = ns / max(mean_step_ns(report), 1)
    # One rank is not "all ranks" of a job whose others were not recorded.
    only = [rank.rank for rank in report.ranks] if len(report.ranks) == 1 else []
    return Suspect(kind=kind, cause=cause, leaf=leaf, ranks=only, host=host_of(report, only), cost_ns=ns, share=share)


def _slow_groups(report: Report) -> list[Suspect]:
    rank_steps, whole = max(report.job.rank_steps, 1), max(mean_step_ns(report), 1)
    return [
        Suspect(
            kind="group",
            cause="slow link",
            leaf=f"exposed_comm/{collective.kind}",
            ranks=sorted(group.ranks),
            host=group.hosts[0] if len(group.hosts) == 1 else None,
            cost_ns=round(group.lost_ns / rank_steps),
            share=group.lost_ns / rank_steps / whole,
        )
        for collective in report.collectives
        for group in collective.slow_groups
    ]


def _grown(report: Report, changes: list[LeafChange], named: set[str | None], someone: bool) -> list[Suspect]:
    """Leaves that take more of the step than in the baseline, where no suspect above accounts for them."""
    whole = max(mean_step_ns(report), 1)
    found = []
    for one in changes:
        grown_ns = one.after_ns - one.before_ns
        waits = one.leaf == _WAIT and someone
        if grown_ns >= LEAST_SHARE * whole and one.leaf not in named and not waits:
            grown = _everyone(report, one.leaf, "grown", one.leaf.partition("/")[2] or one.leaf)
            found.append(
                Suspect(
                    kind="grown",
                    cause=grown.cause,
                    leaf=one.leaf,
                    ranks=grown.ranks,
                    host=grown.host,
                    cost_ns=grown_ns,
                    share=grown_ns / whole,
                )
            )
    return found
