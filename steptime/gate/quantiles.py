"""Quantiles of Student's t distribution, which a gate needs and no library at hand has."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

#: From here on t and the normal distribution differ by less than a thousandth of a quantile.
_NORMAL_FROM = 2000


def student_cdf(t: float, degrees: int) -> float:
    """P(T <= t) with `degrees` (>= 1) degrees of freedom, by the finite sums of Abramowitz and Stegun, 26.7.3 and 4."""
    theta = math.atan2(t, math.sqrt(degrees))
    cos2 = math.cos(theta) ** 2
    if degrees % 2:
        term = math.cos(theta) if degrees > 1 else 0.0
        total = term
        for k in range(3, degrees - 1, 2):
            term *= cos2 * (k - 1) / k
            total += term
        inside = 2.0 / math.pi * (theta + math.sin(theta) * total)
    else:
        term = total = 1.0
        for k in range(2, degrees - 1, 2):
            term *= cos2 * (k - 1) / k
            total += term
        inside = math.sin(theta) * total
    return 0.5 + 0.5 * inside


@cache
def student_quantile(probability: float, degrees: int | None) -> float:
    """The t that P(T <= t) = `probability` (over 0.5, under 1); `degrees` None: the normal distribution's."""
    if degrees is None or degrees >= _NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2.0


def upper_tail(t: float, degrees: int | None) -> float:
    """P(T > t); `degrees` None: the normal distribution."""
    if degrees is None or degrees >= _NORMAL_FROM:
        return NormalDist().cdf(-t)
    return 1.0 - student_cdf(t, degrees)
