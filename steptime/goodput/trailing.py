"""What was usual just before each row: medians over the rows before it, and never a look ahead.

`Usual` of row i is made of rows before i only. Rows that stood out by themselves are left out of what is usual for the
rows after them, so that a spike does not become its own standard; as each is judged when it comes, that looks ahead of
nothing either. A change that stays becomes usual after a while, because not all of its rows stand out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Of a normal distribution, over the median absolute deviation.
_MAD_TO_SIGMA = 1.4826
#: A row that far above the usual is left out of what is usual later.
_STANDS_OUT = 4.0
#: What stands out against a level is left out of the next, better one. Each time, a change must last half a level's
#: rows longer until it is usual; so many times, or until nothing changes.
_PASSES = 8


class Window(NamedTuple):
    """How many rows what is usual rests on: `level` rows for the level, `noise` rows for how far single ones lie off.

    A level lags behind what falls: it is corrected by the median of how far the last `trend` rows lay below theirs, 0
    for no correction. `trend` is more than `level`, so that one sudden step down is no trend.
    The noise is at least `floor`, and at least `share` of the level: logs round, and nobody minds less.
    """

    level: int = 32
    trend: int = 0
    noise: int = 128
    floor: float = 0.0
    share: float = 0.0

    @property
    def first(self) -> int:
        """The first row that can be judged: before it there are too few."""
        return self.level + self.trend + self.noise // 4


class Usual(NamedTuple):
    """By row, float64 (n,): the level, the noise of one row around it, both NaN where too few rows came before."""

    level: Floats
    noise: Floats

    def score(self, values: Floats) -> Floats:
        """How far each row lies above its level, over the noise; 0 where nothing can be said."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num((values - self.level) / self.noise, nan=0.0, posinf=0.0, neginf=0.0)


def usual(values: Floats, window: Window) -> Usual:
    """What was usual before each row of `values` (float64, finite or NaN; NaN rows count for nothing)."""
    known = np.isfinite(values)
    keep = known.copy()
    found = _once(values, keep, window)
    for _ in range(_PASSES - 1):
        before, keep = keep, known & (found.score(values) < _STANDS_OUT)
        if (keep == before).all():
            break
        found = _once(values, keep, window)
    return found


def _once(values: Floats, keep: Bools, window: Window) -> Usual:
    """With the rows of `keep` alone as what is usual."""
    level = _before(values, keep, window.level, window.level)
    if window.trend:
        # Upward there is no correction: a level that lags behind a rise is what shows a spike.
        level = level + np.minimum(_before(values - level, keep, window.trend, window.trend), 0)
    away = np.abs(values - level)
    spread = _before(away, keep, window.noise, window.noise // 4)
    noise = np.maximum(_MAD_TO_SIGMA * spread, np.maximum(window.floor, window.share * np.abs(level)))
    return Usual(np.where(np.isfinite(noise), level, np.nan), noise)


def _before(values: Floats, keep: Bools, width: int, least: int) -> Floats:
    """For each row the median of the last `width` finite values to keep before it, NaN if fewer than `least`."""
    taken = keep & np.isfinite(values)
    medians = trailing_median(values[taken], width, least)
    count = np.concatenate([[0], np.cumsum(taken)[:-1]])
    if not len(medians):
        return np.full(len(values), np.nan)
    found: Floats = np.where(count >= least, medians[np.maximum(count - 1, 0)], np.nan)
    return found


def trailing_median(values: Floats, width: int, least: int | None = None) -> Floats:
    """(n,): the median of each value with the ``width - 1`` before it; of fewer, down to `least`, at the beginning.

    NaN where there are fewer than `least` (default `width`). `values` are finite.
    """
    rolling = pd.Series(values, dtype=np.float64).rolling(width, min_periods=least)
    return rolling.median().to_numpy(dtype=np.float64)
