"""Rates against published tables, torch's incomplete gamma, and the figures of the texts that steptime follows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from steptime.goodput.causes import UNKNOWN, cause_by_id
from steptime.goodput.costs import young_ns
from steptime.goodput.incidents import Incident
from steptime.goodput.rates import poisson_at_most, poisson_interval, rate_of, repeating_hosts, trend_of
from steptime.goodput.reference import reference_runs, uninterrupted_days

HOUR_NS = 3600 * 10**9
#: 95 % limits of a Poisson mean by count, from the usual table (Garwood 1936; Pearson and Hartley, Biometrika Tables
#: for Statisticians I, table 40), to its three decimals.
GARWOOD = {
    0: (0.0, 3.689),
    1: (0.025, 5.572),
    2: (0.242, 7.225),
    3: (0.619, 8.767),
    4: (1.090, 10.242),
    5: (1.623, 11.668),
    10: (4.795, 18.390),
    20: (12.217, 30.888),
    30: (20.241, 42.827),
    50: (37.111, 65.919),
}


@pytest.mark.parametrize("count", GARWOOD)
def test_intervals_are_those_of_the_published_table(count: int) -> None:
    assert poisson_interval(count) == pytest.approx(GARWOOD[count], abs=6e-4)


@pytest.mark.parametrize("count", [1, 7, 419, 20_000])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_limits_are_gamma_quantiles_by_another_library(count: int, confidence: float) -> None:
    """P(N >= n) of mean m is the regularised lower incomplete gamma function P(n, m), which torch has of its own."""
    torch = pytest.importorskip("torch")
    low, high = poisson_interval(count, confidence)
    tail = (1 - confidence) / 2

    def at_least(number: int, mean: float) -> float:
        place = torch.tensor([number, mean], dtype=torch.float64)
        return float(torch.special.gammainc(place[0], place[1]))

    assert at_least(count, low) == pytest.approx(tail, rel=1e-6)
    assert 1 - at_least(count + 1, high) == pytest.approx(tail, rel=1e-6)


def test_no_failure_in_a_time_bounds_the_rate_by_minus_log() -> None:
    """P(N = 0) = exp(-m) = 0.025 gives m = -ln 0.025 = 3.689: 100 h without a failure are at least 27.1 h."""
    rate = rate_of(0, 100.0)
    assert rate.low_h == pytest.approx(100 / -math.log(0.025), rel=1e-9)
    assert (rate.mtbf_h, rate.high_h) == (None, None)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Exact intervals cover at least 95 %: counts drawn from a known mean, 2,000 times."""
    drawn = np.random.default_rng(7).poisson(6.0, 2_000)
    limits = {count: poisson_interval(int(count)) for count in set(drawn.tolist())}
    covered = np.mean([limits[count][0] <= 6.0 <= limits[count][1] for count in drawn.tolist()])
    assert 0.95 <= covered < 0.99


def test_poisson_sums_by_hand() -> None:
    # e^-2 (1 + 2 + 2) = 5 e^-2
    assert poisson_at_most(2, 2.0) == pytest.approx(5 * math.exp(-2), rel=1e-12)
    assert (poisson_at_most(-1, 2.0), poisson_at_most(3, 0.0)) == (0.0, 1.0)


def test_the_llama_3_run() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs.

    54 * 24 h / 419 = 3.093 h for the job, and times 16,384 GPUs 50,677 h for one: 5.78 years of 8,766 h. The texts say
    3.1 h, "roughly 50,000 hours" and "nearly six years". With 419 the normal approximation of the interval is close:
    419 +- 1.96 * sqrt(419) = 379 to 459, so 2.82 to 3.42 h; the exact one is a little above.
    """
    job = rate_of(419, 54 * 24)
    gpu = rate_of(419, 54 * 24 * 16_384)
    assert job.mtbf_h == pytest.approx(3.1, abs=0.05)
    assert gpu.mtbf_h == pytest.approx(50_677, abs=1)
    assert (gpu.mtbf_h or 0) / 8_766 == pytest.approx(5.78, abs=0.01)
    assert [job.low_h, job.high_h] == pytest.approx([2.82, 3.42], abs=0.02)


def test_youngs_interval_of_the_llama_3_run() -> None:
    """sqrt(2 * 33 s * 3.1 h) = sqrt(66 * 11,160) = 858 s = 14.3 min; for 30 s and 3 h sqrt(60 * 10,800) = 805 s."""
    assert young_ns(33e9, 3.1 * HOUR_NS) / 60e9 == pytest.approx(14.3, abs=0.05)
    assert young_ns(30e9, 3.0 * HOUR_NS) / 60e9 == pytest.approx(13.4, abs=0.05)


def test_the_compute_of_llama_3_takes_67_days() -> None:
    """3.8e25 / (400e12 * 16,384) = 5.798e6 s = 67.1 days."""
    assert uninterrupted_days(3.8e25, 400e12, 16_384) == pytest.approx(67.1, abs=0.05)
    llama = next(run for run in reference_runs() if run.id == "llama3_405b")
    assert llama.uninterrupted_days == pytest.approx(67.1, abs=0.05)
    assert all(run.uninterrupted_days is None for run in reference_runs() if run is not llama and run.id != llama.id)


def test_the_cause_shares_of_the_llama_3_table() -> None:
    """72, 35, 19 and 17 of 419 are 17.2, 8.4, 4.5 and 4.1 %, as its table says; but 148 are 35.3 %, not its 30.1 %."""
    llama = next(run for run in reference_runs() if run.id == "llama3_405b")
    counts = {figure.id: (figure.value, figure.text) for figure in llama.causes}
    shares = {name: f"{100 * value / 419:.1f}" for name, (value, _) in counts.items() if value is not None}
    assert shares == {
        "faulty_gpu": "35.3",
        "gpu_hbm": "17.2",
        "network": "8.4",
        "gpu_sram": "4.5",
        "gpu_system_processor": "4.1",
    }
    disagree = [name for name, share in shares.items() if f"{share} %" not in counts[name][1]]
    assert disagree == ["faulty_gpu"]
    assert any("148 are 35.3 %" in note and "30.1 %" in note for note in llama.notes)


def test_every_published_figure_has_a_source_and_is_in_the_texts() -> None:
    for run in reference_runs():
        assert run.figures
        for figure in [*run.figures, *run.causes]:
            assert figure.source
            assert figure.text


def test_laplace_by_hand() -> None:
    """Ten failures in 1,500 h: 5, 40, 43, 175, 389, 712, 747, 795, 1299, 1478.

    Their mean is 568.3, so U = (568.3/1500 - 1/2) * sqrt(120) = -0.121133 * 10.9545 = -1.32696; two-sided 0.1845.
    """
    times = [hour * HOUR_NS for hour in (5, 40, 43, 175, 389, 712, 747, 795, 1299, 1478)]
    trend = trend_of(times, 0, 1_500 * HOUR_NS)
    assert trend.u == pytest.approx(-1.32696, abs=1e-4)
    assert trend.p == pytest.approx(0.1845, abs=2e-4)
    assert (trend.verdict, trend.first_half, trend.second_half) == ("steady", 7, 3)


def test_a_steady_run_is_seldom_called_worse_and_a_worsening_one_often_is() -> None:
    """1,000 runs of 40 failures at a constant rate, and 200 whose rate grows ninefold over the run (t = T sqrt(u))."""
    rng = np.random.default_rng(11)
    steady = [trend_of((rng.random(40) * 1e15).astype(int).tolist(), 0, 10**15).verdict for _ in range(1_000)]
    assert sum(one != "steady" for one in steady) <= 20  # 10 are expected at 1 %; more than 20 has p = 0.002
    growing = [trend_of((np.sqrt(rng.random(40)) * 1e15).astype(int).tolist(), 0, 10**15).verdict for _ in range(200)]
    assert growing.count("worse") >= 180
    assert "better" not in growing


def test_few_failures_have_no_trend() -> None:
    trend = trend_of([1, 2, 3, 4], 0, 10)
    assert (trend.verdict, trend.u, trend.p) == ("cannot tell", None, None)
    assert "too few" in (trend.why or "")


def _on(host: str, count: int, cause: str = "faulty_gpu") -> list[Incident]:
    return [Incident(at, cause_by_id(cause), "", "", host=host) for at in range(count)]


def test_hosts_that_repeat_beside_chance() -> None:
    """Of 6 failures on 100 hosts, 3 on one: 100 * P(Binomial(6, 0.01) >= 3).

    P = 20 * 0.01^3 * 0.99^3 + 15 * 0.01^4 * 0.99^2 + 6 * 0.01^5 * 0.99 + 0.01^6 = 1.9406e-5 + 1.47e-7 + 6e-10.
    """
    everyone = [*_on("a", 3), *_on("b", 2), *_on("c", 1), *_on("d", 4, "maintenance"), Incident(9, UNKNOWN, "", "")]
    first, second = repeating_hosts(everyone, 100)
    assert (first.host, first.count, second.host, second.count) == ("a", 3, "b", 2)
    assert first.chance == pytest.approx(100 * (1.940598e-5 + 1.47015e-7 + 5.95e-10), rel=1e-4)
    assert repeating_hosts(everyone, None)[0].chance is None
