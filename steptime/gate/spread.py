"""How much runs of the same job differ, and what a difference between two groups of runs is worth.

The model has two levels: a run's level is the job's plus an effect of that run (the machines it got, the day) plus the
error of its own steps. Runs are the independent unit; steps of one run, and its ranks, are not. With two degrees of
freedom or more (candidate and baseline runs less 2, plus what a history brings) the runs' own spread is used with
Student's t. A bootstrap over runs would not do: three runs have ten distinct resamples, and its intervals are far too
narrow. With less, the spread can't be measured and is assumed (`ASSUMED`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steptime.gate.quantiles import student_quantile, upper_tail
from steptime.gate.robust import Level

#: One-sided error: how often the same job is called slower. 1.1 %, so that of 2,000 pairs the upper 95 % bound stays
#: under 2 %, and +4 % with 3 and 5 runs that differ by 1 % is still caught in 95 % (tests/gate/study.py).
ALPHA = 0.011
#: Between `ALPHA` and this the runs neither show a regression nor rule it out.
DOUBT = 0.10
#: How often a regression of the size called detectable is caught.
POWER = 0.90
#: sd of the run-to-run spread of a step time where it can't be measured: an assumption, and said wherever it is used.
#: It is large for a job on its own machine (1 % is usual), so that one run against one errs to the quiet side.
ASSUMED = 0.03
#: Under this many degrees of freedom the measured spread says nothing: Student's t at 1 degree is 29.
MEASURED_FROM = 2
#: Runs that are equal to the last digit must not make a division by zero.
_LEAST_ERROR = 1e-9


@dataclass(frozen=True, slots=True)
class Spread:
    """Squared deviations of runs from the mean of their own group, and the degrees of freedom in them.

    own: the variance that the runs' own steps explain, mean over the degrees of freedom.
    """

    squares: float = 0.0
    degrees: int = 0
    own: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        degrees = self.degrees + other.degrees
        own = (self.own * self.degrees + other.own * other.degrees) / degrees if degrees else 0.0
        return Spread(self.squares + other.squares, degrees, own)

    @property
    def sd(self) -> float:
        """Run-to-run standard deviation, own error included; 0 without degrees."""
        return math.sqrt(self.squares / self.degrees) if self.degrees else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Candidate less baseline: the estimate, its standard error, degrees of freedom (None: spread assumed).

    run_sd: run-to-run standard deviation that it rests on.
    """

    estimate: float
    error: float
    degrees: int | None
    run_sd: float

    @property
    def low(self) -> float:
        """Lower one-sided limit at `ALPHA`."""
        return self.estimate - student_quantile(1.0 - ALPHA, self.degrees) * self.error

    @property
    def high(self) -> float:
        """Upper one-sided limit at `ALPHA`."""
        return self.estimate + student_quantile(1.0 - ALPHA, self.degrees) * self.error

    @property
    def detectable(self) -> float:
        """The smallest difference that would have been called slower in `POWER` of the cases."""
        return (student_quantile(1.0 - ALPHA, self.degrees) + student_quantile(POWER, self.degrees)) * self.error

    def chance(self, above: float = 0.0) -> float:
        """How often chance alone gives such an estimate or a larger one, if the truth is `above`."""
        return upper_tail((self.estimate - above) / self.error, self.degrees)


def spread_of(runs: Sequence[Level]) -> Spread:
    """The spread within one group of runs of the same job."""
    count = len(runs)
    if count < 2:
        return Spread()
    mean = sum(run.value for run in runs) / count
    own = sum(run.variance for run in runs) / count
    return Spread(sum((run.value - mean) ** 2 for run in runs), count - 1, own)


def difference(
    candidate: Sequence[Level],
    baseline: Sequence[Level],
    history: Spread = Spread(),
    assumed: float = ASSUMED,  # noqa: B008 - frozen
) -> Difference:
    """Compare two groups of runs, each of at least one.

    Args:
        candidate, baseline: the runs' levels, in one unit.
        history: spread of earlier runs of the same job, in the same unit.
        assumed: run-to-run standard deviation to assume where it can't be measured, in the same unit.
    """
    spread = spread_of(candidate) + spread_of(baseline) + history
    between, degrees = _between(spread, assumed)
    variance = sum((between + run.variance) / len(group) ** 2 for group in (candidate, baseline) for run in group)
    return _difference(_mean(candidate) - _mean(baseline), variance, (between, degrees), spread)


def against(
    runs: Sequence[Level],
    number: float,
    others: Spread = Spread(),
    assumed: float = ASSUMED,  # noqa: B008 - frozen
) -> Difference:
    """Compare a group of runs with a number that is exact.

    Args:
        runs: the runs' levels.
        number: in their unit.
        others: spread of other runs of the job, in their unit.
        assumed: as in `difference`.
    """
    spread = spread_of(runs) + others
    between, degrees = _between(spread, assumed)
    variance = sum((between + run.variance) / len(runs) ** 2 for run in runs)
    return _difference(_mean(runs) - number, variance, (between, degrees), spread)


def _between(spread: Spread, assumed: float) -> tuple[float, int | None]:
    """Variance of the run effect, and the degrees of freedom behind it (None: assumed)."""
    if spread.degrees < MEASURED_FROM:
        return max(assumed, spread.sd) ** 2, None
    return max(spread.sd**2 - spread.own, 0.0), spread.degrees


def _difference(estimate: float, variance: float, model: tuple[float, int | None], spread: Spread) -> Difference:
    between, degrees = model
    run_sd = spread.sd if degrees is not None else math.sqrt(between)
    return Difference(estimate, max(math.sqrt(variance), _LEAST_ERROR), degrees, run_sd)


def _mean(runs: Sequence[Level]) -> float:
    return sum(run.value for run in runs) / len(runs)
