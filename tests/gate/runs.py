"""Runs of a job that never ran: step times drawn from a model whose truth is known, written as reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from steptime.gate.runs import Run
from steptime.model import Job, LeafTotal, RankSteps, Report, SliceTotal, Spread, StepTime, Tool
from steptime.taxonomy import SLICES

F64 = NDArray[np.float64]
MS = 1_000_000

#: The noise of a run: sd and lag-1 correlation of its steps, and how often a step is slow, by 20 to 100 %.
STEP_SD, CORRELATION, SLOW_SHARE, SLOW_BY = 0.005, 0.6, 0.1, (0.2, 1.0)
STEP_NS = 100.0 * MS


def steps_of_a_run(rng: np.random.Generator, run_sd: float, count: int, factor: float = 1.0) -> F64:
    """Step times of one run in ns, float64 [count]: a run effect, an AR(1) process, and one slow step in ten."""
    innovations = rng.normal(0.0, STEP_SD * (1.0 - CORRELATION**2) ** 0.5, count)
    noise = np.empty(count)
    level = rng.normal(0.0, STEP_SD)
    for at in range(count):
        level = CORRELATION * level + innovations[at]
        noise[at] = level
    slow = 1.0 + rng.uniform(*SLOW_BY, count) * (rng.random(count) < SLOW_SHARE)
    steps: F64 = STEP_NS * factor * np.exp(rng.normal(0.0, run_sd) + noise) * slow
    return steps


def report(durations_ns: F64, leaf: str = "kernels/matmul", ranks: int = 1, **job: Any) -> Report:
    """A report whose steps have these lengths, all of it in one leaf, on each of some ranks."""
    return report_of([{leaf: round(float(ns))} for ns in durations_ns], ranks=ranks, **job)


def report_of(steps: list[dict[str, int]], ranks: int = 1, **changes: Any) -> Report:
    """A report of steps given by their leaves, alike on all ranks; `changes` are of the job."""
    rows, start = [], 0
    for number, leaves in enumerate(steps):
        dur_ns = sum(leaves.values())
        rows.append(StepTime(step=number, start_ns=start, dur_ns=dur_ns, leaves_ns=leaves))
        start += dur_ns
    totals: dict[str, int] = {}
    for leaves in steps:
        for leaf, ns in leaves.items():
            totals[leaf] = totals.get(leaf, 0) + ns * ranks
    total_ns = sum(totals.values())
    times = sorted(row.dur_ns for row in rows) or [0]
    job = Job(
        world_size=ranks,
        ranks_analyzed=ranks,
        rank_steps=ranks * len(rows),
        device="NVIDIA H100 80GB HBM3",
        reference_dtype="bf16",
        step_source="ProfilerStep marks",
        steps=list(range(len(rows))),
        step_time_ns=Spread(median=times[len(times) // 2], p10=times[0], p90=times[-1]),
        total_ns=total_ns,
        model_flops_per_step=10**12,
        slices=_slices(totals, total_ns),
    )
    return Report(
        tool=Tool(version="0.1.0"),
        inputs=[],
        job=replace(job, **changes),
        ranks=[RankSteps(rank=rank, host=None, device=0, steps=rows) for rank in range(ranks)],
        causes=[],
        kernels=[],
        collectives=[],
        warnings=[],
    )


def _slices(totals: Mapping[str, int], total_ns: int) -> list[SliceTotal]:
    found = []
    for part in SLICES:
        own = {key.partition("/")[2]: ns for key, ns in totals.items() if key.startswith(f"{part.id}/")}
        leaves = [LeafTotal(id=leaf, ns=ns, share=ns / max(total_ns, 1)) for leaf, ns in own.items()]
        ns = sum(own.values())
        found.append(SliceTotal(id=part.id, ns=ns, share=ns / max(total_ns, 1), leaves=leaves))
    return found


def run(durations_ns: F64, name: str = "run", **job: Any) -> Run:
    """A run with these step times."""
    return Run(name, report(durations_ns, **job))


def drawn(rng: np.random.Generator, runs: int, run_sd: float, count: int, factor: float = 1.0) -> list[Run]:
    """Some runs of one job."""
    return [run(steps_of_a_run(rng, run_sd, count, factor), f"run {at}") for at in range(runs)]
