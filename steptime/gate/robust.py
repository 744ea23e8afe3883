"""One run in two numbers: how long its usual step takes, what rare slow steps add, and how sure both are.

Step times of a run are autocorrelated (a neighbour on the network, the clock of a warm GPU), so single steps must not
be counted as independent. Their uncertainty comes from a circular block bootstrap (Politis and Romano 1992): whole
stretches of steps are drawn again, which keeps what neighbours have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_Statistic = Callable[[F64], F64]

#: Share of the steps that is left out at each end, so that the mean of the middle 30 % is left. Where one step in ten
#: is slow by chance, a recording of 20 steps has eight of them once in 2,400; the mean of the middle half would break
#: at six, once in 90. It is nearly as robust as the median, and surer.
TRIMMED = 0.35
#: Resamples; the error that their number adds to a standard error is 1 / sqrt(2 * 400), 3.5 % of it.
RESAMPLES = 400
#: Between the quartiles of a normal distribution, in standard deviations.
_QUARTILES_APART = 1.349


@dataclass(frozen=True, slots=True)
class Level:
    """A run's level and the variance of that level, by its own steps alone."""

    value: float
    variance: float


def middle_mean(values: F64) -> F64:
    """Mean of the middle 30 % along the last axis, of at least one value; float64."""
    count = values.shape[-1]
    cut = int(count * TRIMMED)
    ordered = np.sort(values, axis=-1)[..., cut : count - cut]
    result: F64 = ordered.mean(axis=-1)
    return result


def resampled(values: F64) -> F64:
    """Circular block bootstrap of `values` [n]; float64 [RESAMPLES, n]. The same values give the same resamples.

    A block has sqrt(n) steps, at least 2: longer than the usual n^(1/3), because with 10 or 20 steps a too short block
    understates the error and nothing corrects it.
    """
    count = len(values)
    length = min(max(2, round(count**0.5)), count)
    blocks = -(-count // length)
    starts = np.random.default_rng(count).integers(0, count, (RESAMPLES, blocks, 1))
    at = (starts + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    drawn: F64 = values[at]
    return drawn


def usual_step(durations_ns: F64) -> Level:
    """Natural logarithm of the usual step time: the middle mean. durations_ns: float64 [n], over 0."""
    return _level(np.log(durations_ns), middle_mean, robust=True)


def slow_steps(durations_ns: F64) -> Level:
    """What slow steps add to the usual one, as a share of it: mean over middle mean, less 1."""
    return _level(durations_ns, lambda values: values.mean(axis=-1) / middle_mean(values) - 1.0)


def plain(values: F64) -> Level:
    """The mean of all values [n]: of a part of a step, which may be absent from most steps."""
    return _level(values, lambda rows: rows.mean(axis=-1))


def _level(values: F64, statistic: _Statistic, robust: bool = False) -> Level:
    count = len(values)
    if count < 2:
        return Level(float(statistic(values)), 0.0)
    again = np.sort(statistic(resampled(values)))
    # From quartiles: a few resamples with so many slow steps that the middle mean breaks must not decide.
    low, high = np.quantile(again, (0.25, 0.75))
    deviation = (high - low) / _QUARTILES_APART if robust else float(np.std(again))
    # A bootstrap of n values has the variance of n - 1 of them.
    return Level(float(statistic(values)), float(deviation) ** 2 * count / (count - 1))
