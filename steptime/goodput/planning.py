"""The plan of a job: failures, interval, goodput, and what would change it. In: `PlanAsk`; out: `Plan`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from steptime.errors import UsageError
from steptime.goodput import intervals
from steptime.goodput.failures import MAX_FAILURES
from steptime.goodput.memory import checkpoint_bytes, fit
from steptime.goodput.simulation import Simulated, simulate
from steptime.model.inputs import Tool
from steptime.model.plan import Best, Curve, Fit, Layout, ModelSize, Plan, PlanAsk, Scenario

CURVE_POINTS = 50
#: The curve goes this far to both sides of the expected best interval.
CURVE_REACH = 6.0
_SCENARIO_POINTS = 25
_SCENARIO_REACH = 3.0
#: Gaps of a Weibull shape below this are almost all tiny and a few endless: no system that was measured is like that.
LEAST_SHAPE = 0.3
#: Doubling the GPUs ends here: the largest jobs that anyone plans.
MOST_GPUS = 100_000


@dataclass(frozen=True, slots=True)
class Writing:
    """How a checkpoint is written; None where it was not told.

    pause_s: how long training stands still. size_bytes: of the whole checkpoint; write_bytes_per_s: of the storage, all
    ranks together; copy_bytes_per_s: from one GPU to its host. is_async: written while training goes on.
    """

    pause_s: float | None = None
    size_bytes: float | None = None
    write_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None
    is_async: bool = False

    @property
    def write_s(self) -> float | None:
        """How long the write takes, None if not known."""
        if self.size_bytes is None or self.write_bytes_per_s is None:
            return None
        return self.size_bytes / self.write_bytes_per_s

    def copy_s(self, gpus: int) -> float | None:
        """How long each GPU copies its equal part to its host, None if not known."""
        if self.size_bytes is None or self.copy_bytes_per_s is None:
            return None
        return self.size_bytes / gpus / self.copy_bytes_per_s

    def times(self, gpus: int) -> tuple[float, float]:
        """Pause, and write after the pause, in seconds.

        Raises:
            UsageError: one of them can't be told from what was given.
        """
        if not self.is_async:
            pause = self.pause_s if self.pause_s is not None else self.write_s
            if pause is None:
                raise UsageError(
                    "how long a checkpoint stops training is not known: give --checkpoint-pause, or "
                    "--checkpoint-size (or --model) and --write-bandwidth"
                )
            return pause, 0.0
        pause = self.pause_s if self.pause_s is not None else self.copy_s(gpus)
        if pause is None:
            raise UsageError(
                "how long the copy to host memory stops training is not known: give --checkpoint-pause, or "
                "--copy-bandwidth (or --gpu) with the checkpoint's size"
            )
        if self.write_s is None:
            raise UsageError(
                "--async: until a checkpoint is written, a failure loses it, so its size and --write-bandwidth are "
                "needed: give --checkpoint-size (or --model) and --write-bandwidth"
            )
        return pause, self.write_s


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of the model and the GPUs: for the byte inventory. memory_bytes None: no GPU was named."""

    model: ModelSize
    layout: Layout
    gpu: str = ""
    memory_bytes: int | None = None


def plan(ask: PlanAsk, writing: Writing, tool: Tool, job: Job | None = None) -> Plan:
    """Plan the checkpoints of `ask`, whose pause and write are those of `writing`; the bytes of `job`, if given.

    Raises:
        UsageError: a figure makes no sense, or the job would fail too often to be simulated.
    """
    _check(ask)
    mtbf = ask.mtbf_job_s
    centre = intervals.expected_best(ask.pause_s, mtbf, ask.write_s)
    grid = _grid(ask, CURVE_POINTS, CURVE_REACH)
    if ask.interval_s is not None:
        grid = np.union1d(grid, [max(ask.interval_s, ask.write_s)])
    simulated = simulate(ask, grid.tolist())
    best = simulated.best()
    alike = [float(simulated.interval_s[place]) for place in simulated.like_best()]
    flat = [float(simulated.interval_s[place]) for place in simulated.flat()]
    exact = ask.weibull_shape == 1 and ask.spares is None
    today = None
    if ask.interval_s is not None:
        place = int(np.flatnonzero(simulated.interval_s == max(ask.interval_s, ask.write_s))[0])
        today = simulated.chosen(place)
    chosen = simulated.chosen(best)
    young = intervals.young(ask.pause_s, mtbf)
    sensitivity, cut_short = _sensitivity(ask, chosen.goodput)
    changed, why_not = _writing(ask, writing, chosen.goodput)
    delay = ask.restart_s + ask.write_s
    return Plan(
        tool=tool,
        ask=ask,
        mtbf_job_s=mtbf,
        young_s=young,
        daly_s=intervals.daly(ask.pause_s, mtbf),
        first_order=intervals.first_order(young, ask.pause_s, ask.restart_s, mtbf),
        exact_s=centre if exact else None,
        exact_goodput=intervals.expected_goodput(centre, ask.pause_s, delay, mtbf) if exact else None,
        curve=_curve(simulated, ask),
        best=Best(at=chosen, from_s=alike[0], to_s=alike[1], flat_from_s=flat[0], flat_to_s=flat[1]),
        today=today,
        sensitivity=sensitivity,
        writing=changed,
        checkpoint=None if job is None else checkpoint_bytes(job.model),
        fit=_fit(job),
        notes=[note for note in (*_notes(ask, writing), cut_short, why_not) if note],
        warnings=_warnings(ask, simulated),
    )


def _check(ask: PlanAsk) -> None:
    for what, value, least in (
        ("--gpus", ask.gpus, 1),
        ("--mtbf-gpu", ask.mtbf_gpu_s, 1e-9),
        ("the pause of a checkpoint", ask.pause_s, 1e-9),
        ("--restart", ask.restart_s, 0),
        ("--weibull-shape", ask.weibull_shape, LEAST_SHAPE),
        ("--days", ask.horizon_s, 1),
        ("--runs", ask.runs, 2),
    ):
        if not least <= value < float("inf"):
            raise UsageError(f"{what} = {value:g}: must be at least {least:g}")
    if ask.spares is not None and ask.repair_s <= 0:
        raise UsageError("--spares: how long a failed host is away is needed, too: give --repair HOURS")


def _grid(ask: PlanAsk, points: int, reach: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    centre = intervals.expected_best(ask.pause_s, ask.mtbf_job_s, ask.write_s)
    return np.geomspace(max(centre / reach, ask.write_s), centre * reach, points)


def _curve(simulated: Simulated, ask: PlanAsk) -> Curve:
    overheads = [
        intervals.first_order(tau, ask.pause_s, ask.restart_s, ask.mtbf_job_s).total
        for tau in simulated.interval_s.tolist()
    ]
    # An overhead of x for each unit of work leaves 1/(1 + x) of the time for work.
    return msgspec.structs.replace(simulated.curve(), first_order=[1 / (1 + overhead) for overhead in overheads])


def _scenario(ask: PlanAsk, title: str, base: float) -> Scenario:
    simulated = simulate(ask, _grid(ask, _SCENARIO_POINTS, _SCENARIO_REACH).tolist())
    chosen = simulated.chosen(simulated.best())
    return Scenario(
        title=title,
        gpus=ask.gpus,
        mtbf_job_s=ask.mtbf_job_s,
        pause_s=ask.pause_s,
        restart_s=ask.restart_s,
        write_s=ask.write_s,
        interval_s=chosen.interval_s,
        goodput=chosen.goodput,
        low=chosen.low,
        high=chosen.high,
        gain=chosen.goodput - base,
    )


def _sensitivity(ask: PlanAsk, base: float) -> tuple[list[Scenario], str]:
    """What half the pause, half the restart, and ever more GPUs would do; and where the last had to stop, why."""
    rows = [
        _scenario(msgspec.structs.replace(ask, pause_s=ask.pause_s / 2), "half the pause", base),
        _scenario(msgspec.structs.replace(ask, restart_s=ask.restart_s / 2), "half the restart", base),
    ]
    gpus = ask.gpus
    while gpus < MOST_GPUS:
        gpus = min(gpus * 2, MOST_GPUS)
        more = msgspec.structs.replace(ask, gpus=gpus)
        if ask.horizon_s / more.mtbf_job_s > MAX_FAILURES:
            return rows, f"{gpus:,} GPUs fail every {more.mtbf_job_s:.3g} s: no interval helps, so they are left out"
        rows.append(_scenario(more, f"{gpus:,} GPUs", base))
    return rows, ""


def _writing(ask: PlanAsk, writing: Writing, base: float) -> tuple[list[Scenario], str]:
    """The checkpoint written in its pause, and while training goes on; or why they can't be compared."""
    copy_s, write_s = writing.copy_s(ask.gpus), writing.write_s
    in_pause = write_s if writing.is_async else ask.pause_s
    aside = ask.pause_s if writing.is_async else copy_s
    if write_s is None or in_pause is None:
        return [], "what asynchronous checkpoints change can't be told without the checkpoint's size and bandwidth"
    if aside is None:
        return [], (
            "what asynchronous checkpoints change can't be told without the rate of the copy to host memory "
            "(--copy-bandwidth, or --gpu)"
        )
    sync = msgspec.structs.replace(ask, pause_s=in_pause, write_s=0.0)
    asynchronous = msgspec.structs.replace(ask, pause_s=aside, write_s=write_s)
    return [
        _scenario(sync, "written in the pause", base),
        _scenario(asynchronous, "written while training goes on", base),
    ], ""


def _fit(job: Job | None) -> Fit | None:
    if job is None or job.memory_bytes is None:
        return None
    return fit(job.model, job.layout, job.gpu, job.memory_bytes)


def _notes(ask: PlanAsk, writing: Writing) -> list[str]:
    notes = ["in the rows with more GPUs the pause and the restart stay as they are; in practice both tend to grow"]
    write_s = writing.write_s
    if write_s is not None and writing.pause_s is not None and not writing.is_async:
        notes.append(
            f"the pause is the one given, {ask.pause_s:g} s; size over write bandwidth would be {write_s:.3g} s"
        )
    if writing.copy_bytes_per_s is not None and write_s is not None:
        rate = writing.copy_bytes_per_s / 1e9
        notes.append(
            f"the copy to host memory is taken at {rate:.3g} GB/s a GPU, an equal part of the checkpoint on each; "
            "several GPUs of one host may share that rate"
        )
    if ask.is_async and ask.interval_s is not None and ask.interval_s < ask.write_s:
        notes.append(f"an interval of {ask.interval_s:g} s is shorter than the write, {ask.write_s:.3g} s: that holds")
    return notes


def _warnings(ask: PlanAsk, simulated: Simulated) -> list[str]:
    said = []
    mtbf = ask.mtbf_job_s
    if ask.pause_s + ask.restart_s + ask.write_s > mtbf / 4:
        said.append(
            "pause and restart are not small against the time between failures: Young's and Daly's formulas and the "
            "first-order overhead do not hold; trust the simulation"
        )
    if ask.weibull_shape != 1:
        said.append("Young's and Daly's formulas assume exponential failures, the simulation does not")
    if simulated.failures < 5:
        said.append(
            f"a run of {ask.horizon_s / 86400:g} days has only {simulated.failures:.2g} failures on average: single "
            "runs differ much from the mean, and what a run has not saved at its end counts as kept; --days can be more"
        )
    if simulated.best() in (0, len(simulated.interval_s) - 1) and not ask.is_async:
        said.append("the best interval lies at the end of the curve: there may be a better one beyond")
    return said
