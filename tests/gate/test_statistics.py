"""The statistics by themselves. Numbers come from published tables, hand-worked cases and drawn noise."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from steptime.gate.quantiles import student_cdf, student_quantile, upper_tail
from steptime.gate.robust import Level, middle_mean, slow_steps, usual_step
from steptime.gate.spread import ALPHA, ASSUMED, POWER, Spread, against, difference, spread_of

#: Percentage points of Student's t as every table prints them: one-sided 95 %, 99 % and 99.5 %.
TABLE = {
    1: (6.314, 31.821, 63.657),
    2: (2.920, 6.965, 9.925),
    3: (2.353, 4.541, 5.841),
    4: (2.132, 3.747, 4.604),
    5: (2.015, 3.365, 4.032),
    6: (1.943, 3.143, 3.707),
    7: (1.895, 2.998, 3.499),
    10: (1.812, 2.764, 3.169),
    15: (1.753, 2.602, 2.947),
    30: (1.697, 2.457, 2.750),
    120: (1.658, 2.358, 2.617),
}


@pytest.mark.parametrize("degrees", TABLE)
def test_quantiles_of_t_are_those_of_the_tables(degrees: int) -> None:
    found = [student_quantile(probability, degrees) for probability in (0.95, 0.99, 0.995)]
    assert found == pytest.approx(TABLE[degrees], abs=6e-4)
    assert [upper_tail(t, degrees) for t in found] == pytest.approx([0.05, 0.01, 0.005], rel=1e-6)


def test_without_degrees_and_with_very_many_it_is_the_normal_distribution() -> None:
    expected = NormalDist().inv_cdf(0.99)
    assert student_quantile(0.99, None) == pytest.approx(expected)
    assert student_quantile(0.99, 5000) == pytest.approx(expected)
    assert student_quantile(0.99, 1999) == pytest.approx(expected, rel=2e-3)
    assert student_cdf(0.0, 7) == 0.5
    assert student_cdf(-2.998, 7) == pytest.approx(0.01, abs=1e-5)


def test_one_slow_step_in_ten_does_not_move_the_usual_step() -> None:
    even = np.full(20, 100e6)
    hurt = even.copy()
    hurt[[3, 11]] *= 9.0
    assert usual_step(hurt).value == usual_step(even).value == pytest.approx(math.log(100e6))
    assert usual_step(hurt).variance == 0.0
    # By hand: two of twenty steps nine times as long add 2 * 8 / 20 = 0.8 of a step.
    assert slow_steps(hurt).value == pytest.approx(0.8)


def test_the_middle_mean_is_that_of_the_middle() -> None:
    # By hand: 35 % of ten is three at each end, so 4, 5, 6 and 7 are left.
    assert middle_mean(np.arange(1.0, 11.0)) == 5.5
    assert middle_mean(np.array([7.0])) == 7.0


def test_the_bootstrap_finds_the_error_of_autocorrelated_steps() -> None:
    """Against the scatter of many drawn runs, which is what it estimates; steps as if independent would find half."""
    rng = np.random.default_rng(5)
    levels = []
    for _ in range(400):
        noise = np.empty(60)
        state = rng.normal()
        for at in range(60):
            state = 0.6 * state + 0.8 * rng.normal()
            noise[at] = state
        levels.append(usual_step(100e6 * np.exp(0.01 * noise)))
    truth = float(np.std([level.value for level in levels]))
    estimated = math.sqrt(float(np.mean([level.variance for level in levels])))
    assert 0.75 * truth < estimated < 1.1 * truth


def test_the_same_steps_give_the_same_numbers() -> None:
    steps = np.random.default_rng(1).normal(100e6, 1e6, 17)
    assert usual_step(steps) == usual_step(steps.copy())


def test_a_pooled_t_test_by_hand() -> None:
    """Runs without error of their own: candidate 12, 14, 16, baseline 10, 11, 12; pooled variance (8 + 2) / 4 = 2.5."""
    candidate = [Level(value, 0.0) for value in (12.0, 14.0, 16.0)]
    baseline = [Level(value, 0.0) for value in (10.0, 11.0, 12.0)]
    gap = difference(candidate, baseline)
    error = math.sqrt(2.5 * (1 / 3 + 1 / 3))
    assert (gap.estimate, gap.degrees) == (3.0, 4)
    assert gap.error == pytest.approx(error)
    assert gap.low == pytest.approx(3.0 - student_quantile(1 - ALPHA, 4) * error)
    assert gap.high == pytest.approx(3.0 + student_quantile(1 - ALPHA, 4) * error)
    assert gap.detectable == pytest.approx((student_quantile(1 - ALPHA, 4) + student_quantile(POWER, 4)) * error)
    # t = 3 / 1.291 = 2.324 at 4 degrees; a table gives 2.132 for 5 % and 2.776 for 2.5 %.
    assert 0.025 < gap.chance() < 0.05


def test_own_error_is_counted_once() -> None:
    """The runs' scatter holds their own error already: variance 2.5 stays 2.5, split into 1.5 between and 1 within."""
    candidate = [Level(value, 1.0) for value in (12.0, 14.0, 16.0)]
    baseline = [Level(value, 1.0) for value in (10.0, 11.0, 12.0)]
    assert difference(candidate, baseline).error == pytest.approx(math.sqrt(2.5 * 2 / 3))
    # A candidate of one run with a larger error of its own: between 0.5 - 0.25, so 0.25 + 4 and (0.25 + 0.25) / 2.
    few = difference([Level(5.0, 4.0)], [Level(1.0, 0.25), Level(2.0, 0.25)], Spread(0.5, 1, 0.25))
    assert few.degrees == 2
    assert few.error == pytest.approx(math.sqrt(4.25 + 0.25))


def test_too_few_runs_take_the_spread_as_assumed() -> None:
    gap = difference([Level(0.2, 0.0001)], [Level(0.0, 0.0002)])
    assert gap.degrees is None
    assert gap.error == pytest.approx(math.sqrt(2 * ASSUMED**2 + 0.0003))
    # Two runs that differ by 20 % are no reason to believe in 3 %: their sd of 0.1414 is taken as it is.
    wide = difference([Level(0.2, 0.0)], [Level(0.0, 0.0), Level(0.2, 0.0)])
    assert wide.degrees is None
    assert wide.run_sd == pytest.approx(0.2 / math.sqrt(2))


def test_a_history_brings_degrees() -> None:
    history = spread_of([Level(0.01 * (-1) ** at, 0.0) for at in range(20)])
    assert history.degrees == 19
    alone = difference([Level(0.0, 0.0)], [Level(0.01, 0.0), Level(-0.01, 0.0), Level(0.0, 0.0)])
    helped = difference([Level(0.0, 0.0)], [Level(0.01, 0.0), Level(-0.01, 0.0), Level(0.0, 0.0)], history)
    assert (alone.degrees, helped.degrees) == (2, 21)
    assert helped.detectable < 0.6 * alone.detectable


def test_against_a_number_only_the_runs_scatter_counts() -> None:
    runs = [Level(value, 0.0) for value in (9.0, 10.0, 11.0)]
    gap = against(runs, 8.0)
    assert (gap.estimate, gap.degrees) == (2.0, 2)
    assert gap.error == pytest.approx(math.sqrt(1.0 / 3))
