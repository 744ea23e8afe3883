"""Many simulated runs of one job, at many checkpoint intervals: how much of the time is work that is kept.

Between two failures the job is a clock: up for a while, it saves one interval of work with every interval and pause
that pass, and loses the rest. So a run at one interval is one sum of whole numbers over its failures, and no event is
stepped through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from steptime.errors import UsageError
from steptime.goodput.failures import Floats, Uptimes, draw
from steptime.model.plan import Chosen, Curve, PlanAsk, Split

#: Of the standard normal distribution: 95 % lie within.
Z_95 = 1.959963984540054
#: Goodput that nobody would miss: a tenth of a point.
FLAT = 1e-3
_RUN_PERCENTILES = (5, 95)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Runs at intervals. interval_s: (n,) the work between two pauses. goodput: (runs, n), shares of the horizon.

    checkpoints, checkpoint_share, lost_share: (n,) means over the runs. restart_share, spare_wait_share, failures:
    means, the same for every interval.
    """

    interval_s: Floats
    goodput: Floats
    checkpoints: Floats
    checkpoint_share: Floats
    lost_share: Floats
    restart_share: float
    spare_wait_share: float
    failures: float

    def curve(self) -> Curve:
        """Means with their confidence intervals, and the spread of single runs."""
        mean, half = self._mean()
        low, high = np.percentile(self.goodput, _RUN_PERCENTILES, axis=0)
        return Curve(
            interval_s=self.interval_s.tolist(),
            goodput=mean.tolist(),
            low=(mean - half).tolist(),
            high=(mean + half).tolist(),
            run_low=low.tolist(),
            run_high=high.tolist(),
        )

    def best(self) -> int:
        """The place of the interval with the largest mean goodput."""
        return int(np.argmax(self.goodput.mean(axis=0)))

    def like_best(self) -> tuple[int, int]:
        """The places of the shortest and the longest interval that can't be told from the best one.

        By the difference in each run (the failures are the same), at 95 %.
        """
        best = self.best()
        behind = self.goodput[:, [best]] - self.goodput
        mean = behind.mean(axis=0)
        alike = mean <= Z_95 * _standard_error(behind)
        alike[best] = True
        # Only what is connected to the best: the curve has one top, what lies apart from it is chance.
        apart = np.flatnonzero(~alike)
        before, after = apart[apart < best], apart[apart > best]
        return int(before[-1]) + 1 if len(before) else 0, int(after[0]) - 1 if len(after) else len(alike) - 1

    def flat(self) -> tuple[int, int]:
        """The places of the shortest and the longest interval whose mean is at most `FLAT` below the best."""
        mean = self.goodput.mean(axis=0)
        good = np.flatnonzero(mean >= mean.max() - FLAT)
        return int(good[0]), int(good[-1])

    def chosen(self, at: int) -> Chosen:
        """One interval in full."""
        mean, half = self._mean()
        low, high = np.percentile(self.goodput[:, at], _RUN_PERCENTILES)
        split = Split(
            work=float(mean[at]),
            checkpoint=float(self.checkpoint_share[at]),
            lost=float(self.lost_share[at]),
            restart=self.restart_share,
            spare_wait=self.spare_wait_share,
        )
        return Chosen(
            interval_s=float(self.interval_s[at]),
            goodput=float(mean[at]),
            low=float(mean[at] - half[at]),
            high=float(mean[at] + half[at]),
            run_low=float(low),
            run_high=float(high),
            split=split,
            checkpoints=float(self.checkpoints[at]),
            failures=self.failures,
        )

    def _mean(self) -> tuple[Floats, Floats]:
        return self.goodput.mean(axis=0), Z_95 * _standard_error(self.goodput)


def simulate(ask: PlanAsk, intervals_s: Iterable[float]) -> Simulated:
    """Simulate the runs of `ask` at each of `intervals_s`; an interval shorter than the write of a checkpoint is that.

    Raises:
        UsageError: an interval is not above 0, or the job fails too often to be simulated.
    """
    asked = np.array(list(intervals_s), np.float64)
    if not len(asked) or not (asked > 0).all() or not np.isfinite(asked).all():
        raise UsageError("a checkpoint interval must be a time above 0")
    taus = np.maximum(asked, ask.write_s)
    saved: list[Floats] = []
    sums = np.zeros((3, len(taus)))
    down = np.zeros(3)
    for block in draw(ask):
        work, block_sums = run(block, ask, taus)
        saved.append(work / ask.horizon_s)
        sums += block_sums
        down += [block.restart_s.sum(), block.spare_wait_s.sum(), block.failures.sum()]
    checkpoints, paused, lost = sums / ask.runs
    restart, wait, failures = (down / ask.runs).tolist()
    return Simulated(
        interval_s=taus,
        goodput=np.concatenate(saved),
        checkpoints=checkpoints,
        checkpoint_share=paused / ask.horizon_s,
        lost_share=lost / ask.horizon_s,
        restart_share=restart / ask.horizon_s,
        spare_wait_share=wait / ask.horizon_s,
        failures=failures,
    )


def run(block: Uptimes, ask: PlanAsk, taus: Floats) -> tuple[Floats, Floats]:
    """Work in seconds (runs, intervals), and (3, intervals) sums over runs: checkpoints, their seconds, lost seconds.

    A checkpoint counts from the end of its write on. What is done since the last one when the run ends is not lost.
    """
    work = np.empty((len(block.open_s), len(taus)))
    sums = np.zeros((3, len(taus)))
    # A gap shorter than the write saves nothing; no gap is negative, so nor is a count.
    usable = np.maximum(block.closed_s - ask.write_s, 0)
    closed_total = block.closed_s.sum()
    counts = np.empty_like(usable)
    for at, tau in enumerate(taus.tolist()):
        cycle = tau + ask.pause_s
        np.multiply(usable, 1 / cycle, out=counts)
        np.floor(counts, out=counts)
        whole = counts.sum(axis=1)
        open_whole = np.floor(block.open_s / cycle)
        rest = block.open_s - open_whole * cycle
        work[:, at] = (whole + open_whole) * tau + np.minimum(rest, tau)
        number = (whole + open_whole).sum()
        sums[0, at] = number
        sums[1, at] = number * ask.pause_s + np.maximum(rest - tau, 0).sum()
        sums[2, at] = closed_total - whole.sum() * cycle
    return work, sums


def _standard_error(values: Floats) -> Floats:
    """Of the mean over axis 0; infinite for a single run, of which nothing is known."""
    if len(values) < 2:
        return np.full(values.shape[1], np.inf)
    error: Floats = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return error
