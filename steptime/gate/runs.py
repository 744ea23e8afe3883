"""A report as the gate sees it: one job step time a step, and the parts of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steptime.gate.robust import Level, slow_steps, usual_step
from steptime.model import RankSteps, Report, StepTime
from steptime.model.gate import GatedRun

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One run of the job. credit: which share of a leaf's time is accepted and taken off each step before judging."""

    name: str
    report: Report
    credit: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def grid(self) -> list[list[StepTime]]:
        """The counted steps in time order, each with one entry a rank (and device)."""
        return _grid(self.report)

    @cached_property
    def whole_ns(self) -> F64:
        """Job step times as measured; float64 [steps].

        The mean over the ranks of a step, not the longest: ranks wait for each other, so their steps have one length
        in the long run, and where one rank's step ends late its next is short. The mean over ranks adds up to the time
        that really passed, and it is what the leaves of the report add up to; the sum of the longest would be more.
        """
        return np.array([sum(step.dur_ns for step in row) / len(row) for row in self.grid])

    @cached_property
    def durations_ns(self) -> F64:
        """Job step times without what is accepted; float64 [steps]."""
        durations = self.whole_ns
        for leaf, share in self.credit.items():
            durations = durations - share * self.part_ns([leaf])
        return durations

    @cached_property
    def usual(self) -> Level:
        """Logarithm of the usual step time."""
        return usual_step(self.durations_ns)

    @cached_property
    def slow(self) -> Level:
        """What slow steps add, as a share of the usual step."""
        return slow_steps(self.durations_ns)

    def part_ns(self, leaves: Sequence[str]) -> F64:
        """Time of some leaves in each step, mean over ranks; float64 [steps]."""
        return np.array(
            [sum(step.leaves_ns.get(leaf, 0) for step in row for leaf in leaves) / len(row) for row in self.grid]
        )

    def shown(self) -> GatedRun:
        """The run in a verdict, as measured."""
        usual_ns = round(float(np.exp(usual_step(self.whole_ns).value)))
        return GatedRun(
            name=self.name, steps=len(self.whole_ns), usual_ns=usual_ns, mean_ns=round(float(self.whole_ns.mean()))
        )


def _grid(report: Report) -> list[list[StepTime]]:
    """Rows of (capture, step) that every rank has counted. Where step numbers begin again, so does a capture."""
    numbers = set(report.job.steps)
    captures: dict[int, list[dict[int, StepTime]]] = {}
    for rank in report.ranks:
        for at, steps in enumerate(_captures(_counted(rank, numbers))):
            captures.setdefault(at, []).append(steps)
    return [
        [steps[number] for steps in ranks]
        for _, ranks in sorted(captures.items())
        for number in sorted(set.intersection(*(set(steps) for steps in ranks)))
    ]


def _captures(steps: Sequence[StepTime]) -> list[dict[int, StepTime]]:
    found: list[dict[int, StepTime]] = [{}]
    last = -1
    for step in steps:
        if step.step <= last:
            found.append({})
        found[-1][step.step] = step
        last = step.step
    return found


def _counted(rank: RankSteps, numbers: set[int]) -> list[StepTime]:
    """As the job's figures count: without edges and other steps where any is left."""
    own = [step for step in rank.steps if step.step in numbers]
    return [step for step in own if step.class_ == "train" and not step.edge] or own
