"""How often the run fails, how sure that is, and whether it changes: exact Poisson intervals and Laplace's test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from steptime.goodput.incidents import Incident
from steptime.model.goodput import HostCount, Rate, Trend

CONFIDENCE = 0.95
#: With fewer failures the normal approximation of Laplace's statistic is not good enough, and no trend could be seen.
TREND_LEAST = 5
#: A trend is called one if chance makes it so rarely: one report in a hundred on a run that does not change.
_TREND_P = 0.01


def poisson_at_most(count: int, mean: float) -> float:
    """P(N <= count) of a Poisson variable of that mean."""
    if count < 0:
        return 0.0
    if mean <= 0:
        return 1.0
    number = np.arange(count + 1, dtype=np.float64)
    logs = number * math.log(mean) - mean - _log_factorials(count)
    top = float(logs.max())
    return float(min(1.0, math.exp(top) * np.exp(logs - top).sum()))


def _log_factorials(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """log(0!), ..., log(count!)."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1, dtype=np.float64)))])


def poisson_interval(count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact limits for the mean of a Poisson variable that was seen as `count` (Garwood 1936).

    The lower limit is the mean for which `count` or more has the probability (1 - confidence) / 2, the upper one that
    for which `count` or fewer has; in terms of chi-square quantiles they are q(a/2; 2n)/2 and q(1-a/2; 2n+2)/2. Solved
    by bisection on the sum itself, to 12 digits.
    """
    tail = (1 - confidence) / 2
    upper = _solve(lambda mean: poisson_at_most(count, mean) - tail, count)
    if count == 0:
        return 0.0, upper
    return _solve(lambda mean: poisson_at_most(count - 1, mean) - (1 - tail), count), upper


def _solve(falling: Callable[[float], float], count: int) -> float:
    """Where a falling function of the mean crosses 0."""
    low, high = 0.0, count + 10 * math.sqrt(count + 1) + 20
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def rate_of(failures: int, exposure_h: float, confidence: float = CONFIDENCE) -> Rate:
    """Mean time between failures over hours of the run, or of all its GPUs, with its exact interval."""
    few, many = poisson_interval(failures, confidence)
    return Rate(
        failures=failures,
        exposure_h=exposure_h,
        mtbf_h=exposure_h / failures if failures else None,
        low_h=exposure_h / many,
        high_h=exposure_h / few if failures else None,
        confidence=confidence,
    )


def trend_of(times_ns: Sequence[int], start_ns: int, end_ns: int) -> Trend:
    """Laplace's test on the times of failures between `start_ns` and `end_ns`.

    Where failures come at a constant rate, n of them are spread evenly over (0, T), so their mean has the expectation
    T/2 and the variance T^2/(12n): U = (mean/T - 1/2) * sqrt(12n) is standard normal. Above 0 they come late: it gets
    worse (Cox and Lewis 1966, section 3.3; MIL-HDBK-189C, 6.1).
    """
    length = end_ns - start_ns
    places = np.array([time - start_ns for time in times_ns], np.float64)
    early = int((places < length / 2).sum())
    late = len(places) - early
    if len(places) < TREND_LEAST:
        why = f"{len(places)} failures are too few to tell a trend; it takes {TREND_LEAST}"
        return Trend(verdict="cannot tell", why=why, first_half=early, second_half=late)
    u = float((places.mean() / length - 0.5) * math.sqrt(12 * len(places)))
    p = math.erfc(abs(u) / math.sqrt(2))
    verdict = "steady" if p >= _TREND_P else ("worse" if u > 0 else "better")
    return Trend(verdict=verdict, u=u, p=p, first_half=early, second_half=late)


def repeating_hosts(incidents: Sequence[Incident], hosts: int | None) -> list[HostCount]:
    """Hosts behind more than one unexpected interruption, the most frequent first.

    chance: with n interruptions spread evenly over `hosts`, some host has k of them with at most the probability
    hosts * P(Binomial(n, 1/hosts) >= k).
    """
    named = [one for one in incidents if one.host and not one.cause.planned]
    counts = Counter(one.host for one in named if one.host)
    return [
        HostCount(
            host=host,
            count=count,
            chance=None if not hosts else min(1.0, hosts * _at_least(count, len(named), 1 / hosts)),
            causes=sorted({one.cause.title for one in named if one.host == host}),
        )
        for host, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if count > 1
    ]


def _at_least(count: int, trials: int, share: float) -> float:
    """P(N >= count) of a binomial variable."""
    if share >= 1:
        return 1.0
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(share)
        + (trials - k) * math.log1p(-share)
        for k in range(count, trials + 1)
    ]
    return min(1.0, math.fsum(math.exp(one) for one in logs))
