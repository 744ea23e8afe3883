"""Checkpoint intervals and goodput by formula. All times are in seconds; an interval is the work between two pauses."""

from __future__ import annotations

import math

from steptime.errors import UsageError
from steptime.model.plan import FirstOrder

#: Newton's steps: the equation is smooth and its start lies within a factor of two, five are enough.
_STEPS = 60


def young(pause_s: float, mtbf_s: float) -> float:
    """Young's interval √(2δM), where the first-order overhead is smallest (J. W. Young, CACM 17(9), 1974)."""
    _positive(mtbf_s=mtbf_s)
    return math.sqrt(2 * pause_s * mtbf_s)


def daly(pause_s: float, mtbf_s: float) -> float:
    """Daly's higher-order interval (J. T. Daly, Future Generation Computer Systems 22(3), 2006, equation 37).

    √(2δM)·(1 + √(δ/2M)/3 + (δ/2M)/9) − δ for δ < 2M, else M.
    """
    _positive(mtbf_s=mtbf_s)
    if pause_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = pause_s / (2 * mtbf_s)
    return math.sqrt(2 * pause_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - pause_s


def first_order(interval_s: float, pause_s: float, restart_s: float, mtbf_s: float) -> FirstOrder:
    """The overhead per unit of useful work, δ/τ + (τ/2 + R)/M, in its three parts.

    It takes each failure to hit the middle of an interval and nothing else, so it holds for τ, δ and R well below M.
    """
    _positive(interval_s=interval_s, mtbf_s=mtbf_s)
    return FirstOrder(
        interval_s=interval_s,
        checkpoint=pause_s / interval_s,
        rework=interval_s / 2 / mtbf_s,
        restart=restart_s / mtbf_s,
    )


def expected_goodput(interval_s: float, pause_s: float, delay_s: float, mtbf_s: float) -> float:
    """The share of time that is useful work, exact for exponential failures and a run without end.

    Renewal-reward: between two failures, g apart, the job is down for `delay_s` (restart, and the write of a checkpoint
    that must end before it counts), then saves τ for each whole τ + δ. For exponential g that is
    E⌊(g − R)⁺/(τ + δ)⌋ = exp(−R/M) / (exp((τ + δ)/M) − 1), so the goodput is τ/M times it.
    """
    _positive(interval_s=interval_s, mtbf_s=mtbf_s)
    cycle = (interval_s + pause_s) / mtbf_s
    # exp(−R)/(exp(c) − 1), written so that nothing overflows.
    return interval_s / mtbf_s * math.exp(-delay_s / mtbf_s - cycle) / -math.expm1(-cycle)


def expected_best(pause_s: float, mtbf_s: float, shortest_s: float = 0.0) -> float:
    """The interval at which `expected_goodput` is largest, not below `shortest_s`.

    Where its derivative vanishes, τ/M = 1 − exp(−(τ + δ)/M); the delay shifts the height of the curve, not its top.
    """
    _positive(pause_s=pause_s, mtbf_s=mtbf_s)
    tau = young(pause_s, mtbf_s) / mtbf_s
    pause = pause_s / mtbf_s
    for _ in range(_STEPS):
        decay = math.exp(-(tau + pause))
        tau -= (tau - 1 + decay) / (1 - decay)
        tau = max(tau, 1e-300)
    return max(tau * mtbf_s, shortest_s)


def _positive(**times_s: float) -> None:
    for name, value in times_s.items():
        if not 0 < value < math.inf:
            raise UsageError(f"{name.removesuffix('_s').replace('_', ' ')} of {value:g} s: a time above 0 is needed")
