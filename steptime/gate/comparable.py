"""May these runs be compared at all? Each reason against it comes with what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steptime.gate.runs import Run
from steptime.model.gate import Mismatch

#: Relative difference of the FLOPs of a step up to which it is the same model and batch: sequences of several lengths
#: move it by less, one layer or one sample more moves it by more.
SAME_FLOPS = 0.01
#: Share of a file's events that may have been impossible and dropped, and share of the step in lost device events.
DROPPED, LOST = 0.001, 0.01
#: From so many ranks on most of them are more than one.
_RANKS_FOR_MOST = 3

_Check = Callable[[Run, Run], Mismatch | None]


def mismatches(candidate: Sequence[Run], baseline: Sequence[Run], min_steps: int) -> list[Mismatch]:
    """Why the runs can't be judged together, the first reason of each kind; empty if they can."""
    runs = [*baseline, *candidate]
    found = [mismatch for run in runs for mismatch in _quality(run, min_steps)]
    for run in runs[1:]:
        found += [mismatch for check in _CHECKS if (mismatch := check(run, runs[0])) is not None]
    kinds: dict[str, Mismatch] = {}
    for mismatch in found:
        kinds.setdefault(mismatch.kind, mismatch)
    return list(kinds.values())


def remarks(candidate: Sequence[Run], baseline: Sequence[Run]) -> list[str]:
    """What the reader of a verdict should know: what could not be compared, and work that moved between ranks."""
    runs = [*baseline, *candidate]
    found = []
    unknown = [run.name for run in runs if run.report.job.model_flops_per_step is None]
    if unknown and any(_tokens(run) is None for run in runs):
        found.append(
            f"not checked that model and batch are the same: FLOPs of a step unknown in {unknown[0]}; "
            "give --tokens-per-step to analyze, and record shapes"
        )
    for run in candidate:
        other = _ranks_with_other_work(run, baseline[0])
        factors = ", ".join(f"rank {rank} {factor:.2f} times" for rank, factor in list(other.items())[:4])
        found += [f"{run.name}: some ranks have another amount of work than before, {factors}"] if other else []
    return found


def _quality(run: Run, min_steps: int) -> list[Mismatch]:
    found = []
    report, counted = run.report, len(run.grid)
    if counted < min_steps:
        reason = f"{run.name} has {counted} counted {'step' if counted == 1 else 'steps'}, {min_steps} are needed"
        found.append(Mismatch(kind="steps", reason=reason, remedy="record more steps (active= of the schedule)"))
    if counted and all(step.edge for row in run.grid for step in row):
        reason = f"{run.name} has only edge steps, whose true start is not known"
        found.append(Mismatch(kind="edges", reason=reason, remedy="record at least two steps more"))
    for source in report.inputs:
        dropped = sum(source.quality.dropped.values()) if source.quality else 0
        if dropped > DROPPED * source.events:
            reason = f"{run.name}: {dropped:,} of {source.events:,} events of {source.path} were impossible and dropped"
            found.append(Mismatch(kind="dropped", reason=reason, remedy="record again"))
    lost = sum(step.leaves_ns.get("unexplained/events_missing", 0) for row in run.grid for step in row)
    if lost > LOST * max(report.job.total_ns, 1):
        reason = f"{run.name}: the profiler lost device events, {lost / report.job.total_ns:.1%} of the step"
        found.append(Mismatch(kind="lost", reason=reason, remedy="record fewer steps at once, or without stacks"))
    return found


def _device(run: Run, base: Run) -> Mismatch | None:
    return _differs(
        "gpu", "GPU", (run, run.report.job.device or "the CPU"), (base, base.report.job.device or "the CPU")
    )


def _world(run: Run, base: Run) -> Mismatch | None:
    return _differs("world", "world size", (run, run.report.job.world_size), (base, base.report.job.world_size))


def _ranks(run: Run, base: Run) -> Mismatch | None:
    mine, theirs = ({rank.rank for rank in one.report.ranks} for one in (run, base))
    if mine == theirs:
        return None
    fewer, missing = (run, theirs - mine) if theirs - mine else (base, mine - theirs)
    listed = ", ".join(map(str, sorted(missing)[:8]))
    return Mismatch(
        kind="ranks",
        reason=f"ranks missing: {fewer.name} lacks {listed}{', …' if len(missing) > 8 else ''}",
        remedy="give the traces of the same ranks on both sides",
    )


def _dtype(run: Run, base: Run) -> Mismatch | None:
    return _differs(
        "dtype", "reference dtype", (run, run.report.job.reference_dtype), (base, base.report.job.reference_dtype)
    )


def _tokens(run: Run) -> float | None:
    return run.report.facts.get("job.tokens_per_step")


def _batch(run: Run, base: Run) -> Mismatch | None:
    mine, theirs = _tokens(run), _tokens(base)
    if mine is None or theirs is None:
        return None
    return _differs("batch", "tokens of a step", (run, f"{mine:,.0f}"), (base, f"{theirs:,.0f}"))


def _model(run: Run, base: Run) -> Mismatch | None:
    mine, theirs = run.report.job.model_flops_per_step, base.report.job.model_flops_per_step
    if not mine or not theirs or abs(mine - theirs) <= SAME_FLOPS * theirs or _ranks_with_other_work(run, base):
        return None
    same_batch = _tokens(run) is not None and _tokens(run) == _tokens(base)
    what = "another model" if same_batch else "another model or batch"
    return Mismatch(
        kind="model",
        reason=f"{what}: a step of {run.name} has {mine / theirs:.3f} times the model FLOPs of {base.name}",
        remedy=_AGAIN,
    )


def _ranks_with_other_work(run: Run, base: Run) -> dict[int, float]:
    """Ranks whose useful work is not the baseline's, as a factor of it, where that of most ranks is; else none.

    Another model or batch changes the work of every rank. Work that is spread unevenly, as by long sequences or popular
    experts on one rank, is a regression of the same job.
    """
    mine, theirs = _work_ns(run), _work_ns(base)
    if len(theirs) < _RANKS_FOR_MOST or mine.keys() != theirs.keys() or not all(theirs.values()):
        return {}
    factors = {rank: mine[rank] / theirs[rank] for rank in theirs}
    other = {rank: factor for rank, factor in factors.items() if abs(factor - 1.0) > SAME_FLOPS}
    return other if 2 * len(other) < len(factors) else {}


def _work_ns(run: Run) -> dict[int, float]:
    """Time of useful work at peak in the mean counted step, by rank: FLOPs over the peak, however long they took."""
    numbers = set(run.report.job.steps)
    found = {}
    for rank in run.report.ranks:
        work = [step.productive_ns for step in rank.steps if step.step in numbers and not step.edge]
        found[rank.rank] = sum(work) / len(work) if work else 0.0
    return found


def _layout(run: Run, base: Run) -> Mismatch | None:
    mine, theirs = run.report.pipeline, base.report.pipeline
    if mine is not None and theirs is not None and mine.stages != theirs.stages:
        return _differs("layout", "pipeline stages", (run, len(mine.stages)), (base, len(theirs.stages)), anyway=True)
    sizes, base_sizes = _groups(run), _groups(base)
    for name in sorted(sizes.keys() & base_sizes.keys()):
        if sizes[name] != base_sizes[name]:
            what = f"size of the groups {name}"
            return _differs("layout", what, (run, _listed(sizes[name])), (base, _listed(base_sizes[name])))
    every, base_every = (set().union(*groups.values()) for groups in (sizes, base_sizes))
    if every - base_every and base_every - every:
        return _differs("layout", "sizes of groups", (run, _listed(every)), (base, _listed(base_every)))
    return None


def _groups(run: Run) -> dict[str, set[int]]:
    """Sizes of the groups that communicated, by name."""
    found: dict[str, set[int]] = {}
    for one in run.report.collectives:
        if one.members is not None:
            found.setdefault(one.group or "", set()).add(one.members)
    return found


def _listed(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _step_source(run: Run, base: Run) -> Mismatch | None:
    return _differs(
        "step source", "what tells the steps", (run, run.report.job.step_source), (base, base.report.job.step_source)
    )


_AGAIN = "gate like with like, or make a new baseline (--update-baseline)"


def _differs(
    kind: str, what: str, mine: tuple[Run, object], theirs: tuple[Run, object], anyway: bool = False
) -> Mismatch | None:
    (run, value), (base, other) = mine, theirs
    if value == other and not anyway:
        return None
    shown, shown_other = ("unknown" if one is None else one for one in (value, other))
    return Mismatch(
        kind=kind, reason=f"another {what}: {shown} in {run.name}, {shown_other} in {base.name}", remedy=_AGAIN
    )


_CHECKS: tuple[_Check, ...] = (_device, _world, _ranks, _dtype, _batch, _model, _layout, _step_source)
