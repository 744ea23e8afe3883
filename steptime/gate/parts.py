"""Slices, leaves, findings and MFU of runs, and whether each keeps its budget."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.gate.limits import Limit, Name
from steptime.gate.robust import Level, plain
from steptime.gate.runs import Run
from steptime.gate.spread import ALPHA, against, difference, spread_of
from steptime.model.gate import Judged, Moved
from steptime.taxonomy import LEAVES, SLICES

PASS, REGRESSED, CANNOT_TELL = "pass", "regressed", "cannot tell"
#: Run-to-run sd to assume for a part of the step, as a share of the part: parts vary more than the step they are in.
ASSUMED_PART = 0.10
#: And for MFU, as for the step time.
ASSUMED_MFU = 0.03
#: Growth of a part that is never reported, as a share of the step: +10 % of next to nothing is nothing.
NEGLIGIBLE = 0.001


def leaf_means_ns(runs: Sequence[Run]) -> dict[str, int]:
    """Time a step of each leaf that occurs, mean over ranks, steps and runs."""
    sums: dict[str, float] = {}
    for run in runs:
        weight = 1.0 / (len(runs) * len(run.grid))
        for row in run.grid:
            for step in row:
                for leaf, ns in step.leaves_ns.items():
                    sums[leaf] = sums.get(leaf, 0.0) + ns * weight / len(row)
    return {leaf: round(ns) for leaf, ns in sums.items()}


def moved(candidate: Sequence[Run], baseline: Sequence[Run]) -> list[Moved]:
    """Slices and leaves that differ, the largest change first; those that one side can't tell come last."""
    after, before = leaf_means_ns(candidate), leaf_means_ns(baseline)
    unknown = {name: sides for name in _names() if any(sides := (_untold(baseline, name), _untold(candidate, name)))}
    rows = []
    for name, (title, leaves) in _names().items():
        here, there = unknown.get(name, (False, False))
        was = None if here else sum(before.get(leaf, 0) for leaf in leaves)
        now = None if there else sum(after.get(leaf, 0) for leaf in leaves)
        change = now - was if was is not None and now is not None else None
        if change or (change is None and (was or now)):
            rows.append(Moved(name=name, title=title, baseline_ns=was, candidate_ns=now, change_ns=change))
    return sorted(rows, key=lambda row: (-abs(row.change_ns or 0), row.name.count("/")))


def _names() -> dict[str, tuple[str, tuple[str, ...]]]:
    slices = {part.id: (part.title, tuple(leaf.key for leaf in LEAVES if leaf.slice == part.id)) for part in SLICES}
    return slices | {leaf.key: (leaf.title, (leaf.key,)) for leaf in LEAVES}


def _untold(runs: Sequence[Run], name: str) -> bool:
    """Whether some run can't tell the slice or leaf."""
    slice_id, _, leaf_id = name.partition("/")
    for run in runs:
        for part in run.report.job.slices:
            if part.id == slice_id and not leaf_id and part.ns is None:
                return True
            if part.id == slice_id and any(leaf.id == leaf_id and leaf.ns is None for leaf in part.leaves):
                return True
    return False


def judge_budget(
    name: Name, limit: Limit, candidate: Sequence[Run], baseline: Sequence[Run], credit_ns: int, alpha: float = ALPHA
) -> Judged:
    """Whether a slice, leaf or finding keeps its budget, `credit_ns` of it being accepted.

    It is broken if the estimate is over the limit and that is certain at `alpha`: for a growth, that there is any; for
    an absolute limit, that it is exceeded. Over the limit and not certain is "cannot tell".
    """
    unit = "share" if limit.share and not limit.growth else "ns"
    sides = [_levels(name, runs, unit) for runs in (candidate, baseline)]
    missing = next((side for side in sides if isinstance(side, str)), None)
    if missing is not None and (limit.growth or isinstance(sides[0], str)):
        return Judged(name=name.id, status=CANNOT_TELL, unit=unit, limit=limit.text, why=missing)
    after = sides[0] if not isinstance(sides[0], str) else []
    before = sides[1] if not isinstance(sides[1], str) else []
    now = _mean(after)
    was = _mean(before) if before else None
    if limit.growth:
        assert was is not None
        gap = difference(after, before, assumed=ASSUMED_PART * max(now, was))
        allowed = (limit.value * was if limit.share else limit.value) + credit_ns
        allowed = max(allowed, NEGLIGIBLE * _mean_step_ns(baseline))
        broken, certain = gap.estimate > allowed, gap.chance(float(credit_ns)) < alpha
    else:
        credit = credit_ns / _mean_step_ns(candidate) if unit == "share" else credit_ns
        gap = against(after, limit.value + credit, spread_of(before), ASSUMED_PART * now)
        broken, certain = gap.estimate > 0, gap.chance() < alpha
    status = PASS if not broken else REGRESSED if certain else CANNOT_TELL
    reference = was if limit.growth else limit.value
    why = "" if status != CANNOT_TELL else "over the limit, but not more than runs differ by chance: add runs"
    return Judged(
        name=name.id,
        status=status,
        unit=unit,
        baseline=was,
        candidate=now,
        change=now - reference if reference is not None else None,
        low=gap.low,
        high=gap.high,
        detectable=gap.detectable,
        limit=limit.text,
        why=why
        or (f"{len(after)} against {len(before)} runs" if limit.growth else f"{len(after)} runs against a limit"),
    )


def judge_mfu(least: float, candidate: Sequence[Run], baseline: Sequence[Run], alpha: float = ALPHA) -> Judged:
    """Whether MFU is at least `least`: broken if it is below, and certainly so at `alpha`."""
    text = f"{least:g}"
    shares = [run.report.job.mfu for run in candidate]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        why = "MFU is not known: the report's warnings say what is missing (shapes, --model, --peak)"
        return Judged(name="mfu", status=CANNOT_TELL, unit="mfu", limit=text, why=why)
    before = [share for run in baseline if (share := run.report.job.mfu) is not None]
    now = sum(known) / len(known)
    levels = []
    for share, run in zip(known, candidate, strict=True):
        durations = plain(run.whole_ns)
        levels.append(Level(-share, durations.variance * (share / durations.value) ** 2))
    gap = against(levels, -least, assumed=ASSUMED_MFU * now)
    broken, certain = gap.estimate > 0, gap.chance() < alpha
    return Judged(
        name="mfu",
        status=PASS if not broken else REGRESSED if certain else CANNOT_TELL,
        unit="mfu",
        baseline=sum(before) / len(before) if before else None,
        candidate=now,
        change=now - least,
        low=-gap.high,
        high=-gap.low,
        detectable=gap.detectable,
        limit=text,
        why="below the limit, but not more than runs differ by chance: add runs"
        if broken and not certain
        else f"{len(known)} {'run' if len(known) == 1 else 'runs'} against a limit",
    )


def _levels(name: Name, runs: Sequence[Run], unit: str) -> list[Level] | str:
    """One level a run, in ns a step or as a share of the step, or why it is unknown."""
    levels = []
    for run in runs:
        if name.kind == "finding":
            cost = _finding_ns(name.id, run)
            if isinstance(cost, str):
                return cost
            level = Level(cost, 0.0)
        else:
            if _untold([run], name.id):
                return f"{name.id} can't be told from the traces of {run.name}"
            level = plain(run.part_ns(name.leaves))
        if unit == "share":
            step_ns = _mean_step_ns([run])
            level = Level(level.value / step_ns, level.variance / step_ns**2)
        levels.append(level)
    return levels


def _finding_ns(finding: str, run: Run) -> float | str:
    for found in run.report.findings:
        if found.id == finding:
            if found.cost_ns is None:
                return f"finding {finding} has no cost in {run.name}"
            return found.cost_ns / max(run.report.job.rank_steps, 1)
    if finding in run.report.not_evaluated:
        return f"finding {finding} was not evaluated in {run.name}: {run.report.not_evaluated[finding]}"
    return 0.0


def _mean_step_ns(runs: Sequence[Run]) -> float:
    return sum(float(run.whole_ns.mean()) for run in runs) / len(runs)


def _mean(levels: Sequence[Level]) -> float:
    return sum(level.value for level in levels) / len(levels)
