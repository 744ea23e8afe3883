"""Intervals by formula, against the figures that people carry in their heads."""

from __future__ import annotations

import math

import pytest

from steptime.errors import UsageError
from steptime.goodput.intervals import daly, expected_best, expected_goodput, first_order, young

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def test_llama_3_fails_every_three_hours_and_each_gpu_every_six_years() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs (Llama 3 paper, table 5).

    54 · 24 h / 419 = 1,296 h / 419 = 3.093 h for the job; times 16,384 = 50,677 h for a GPU; over 8,760 h a year = 5.8.
    """
    job_h = 54 * 24 / 419
    assert job_h == pytest.approx(3.1, abs=0.05)
    assert job_h * 16_384 == pytest.approx(50_000, rel=0.02)
    assert job_h * 16_384 / (365 * 24) == pytest.approx(5.8, abs=0.02)


def test_young_for_llama_3() -> None:
    """M = 3.1 h = 11,160 s, δ = 33 s: √(2 · 33 · 11,160) = √736,560 = 858.2 s = 14.3 min, "14 minutes"."""
    assert young(33, 3.1 * HOUR) == pytest.approx(858.2, abs=0.05)
    assert round(young(33, 3.1 * HOUR) / MINUTE) == 14


def test_young_for_three_hours_and_half_a_minute() -> None:
    """M = 3 h = 10,800 s, δ = 30 s: √(2 · 30 · 10,800) = √648,000 = 805.0 s = 13.4 min."""
    assert young(30, 3 * HOUR) / MINUTE == pytest.approx(13.4, abs=0.05)


def test_first_order_overhead_for_three_hours_and_half_a_minute() -> None:
    """At Young's interval both parts are equal: 30/805 = 3.73 % for writing, 402.5/10,800 = 3.73 % for redoing: 7.5 %.

    The text that the figures come from says "roughly 6 %". The formula holds: 6 % would need a pause of 20 s.
    """
    overhead = first_order(young(30, 3 * HOUR), 30, 0, 3 * HOUR)
    assert overhead.checkpoint == pytest.approx(0.03727, abs=5e-5)
    assert overhead.rework == pytest.approx(0.03727, abs=5e-5)
    assert overhead.restart == 0
    assert overhead.total == pytest.approx(0.075, abs=5e-4)


def test_half_the_pause_divides_interval_and_overhead_by_the_square_root_of_two() -> None:
    """ "Halve the pause and both numbers improve": both go with √δ."""
    whole, half = young(30, 3 * HOUR), young(15, 3 * HOUR)
    assert whole / half == pytest.approx(math.sqrt(2))
    assert first_order(whole, 30, 0, 3 * HOUR).total / first_order(half, 15, 0, 3 * HOUR).total == pytest.approx(
        math.sqrt(2)
    )


def test_daly_is_equation_37() -> None:
    """δ = 8, M = 100: √1600 = 40; √(8/200) = 0.2; 40 · (1 + 0.2/3 + 0.04/9) − 8 = 34.8444 (by hand)."""
    assert daly(8, 100) == pytest.approx(34.84444, abs=1e-5)
    assert daly(200, 100) == 100
    assert daly(250, 100) == 100


@pytest.mark.parametrize("pause", [0.01, 1, 33, 300, 2000])
def test_the_expected_best_is_the_top_of_the_curve(pause: float) -> None:
    """Against every interval of a fine grid, a thousandth apart."""
    best = expected_best(pause, 3 * HOUR)
    grid = [best * (1 + step / 1000) for step in range(-400, 401)]
    top = max(grid, key=lambda tau: expected_goodput(tau, pause, 600, 3 * HOUR))
    assert top == pytest.approx(best, rel=1.5e-3)


@pytest.mark.parametrize("pause", [1, 33, 120])
def test_daly_approximates_the_expected_best(pause: float) -> None:
    """Daly's interval is a series for the same optimum; for δ ≪ M they agree within a thousandth, Young's does not."""
    best = expected_best(pause, 3 * HOUR)
    assert daly(pause, 3 * HOUR) == pytest.approx(best, rel=1e-3)
    assert young(pause, 3 * HOUR) > best


def test_the_expectation_by_quadrature() -> None:
    """The closed form against a sum over the density of the gap: τ/M · Σ ⌊(g − R)⁺/(τ + δ)⌋ · e^(−g/M)/M · dg."""
    tau, pause, delay, mtbf = 840.0, 33.0, 600.0, 11_160.0
    step = 0.5
    total = 0.0
    for at in range(int(25 * mtbf / step)):
        gap = (at + 0.5) * step
        total += max(gap - delay, 0) // (tau + pause) * math.exp(-gap / mtbf) * step / mtbf
    assert expected_goodput(tau, pause, delay, mtbf) == pytest.approx(tau / mtbf * total, rel=1e-5)


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="mtbf of 0 s"):
        young(30, 0)
    with pytest.raises(UsageError, match="interval of -1 s"):
        expected_goodput(-1, 30, 0, 100)
