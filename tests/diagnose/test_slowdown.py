"""Since when step times are longer; the series are written by hand or drawn, and the step of the change is ours."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.diagnose.slowdown import slowdown

_MS = 1_000_000


def test_a_step_up_is_dated() -> None:
    # Steps 31 to 70: 100 ms up to step 59, 150 ms from 60 on, so 11 slow steps of 150 ms end at 10 s.
    series = [100 * _MS] * 29 + [150 * _MS] * 11
    found = slowdown([series, series], last_step=70, last_unix_ns=10_000 * _MS)
    assert found is not None
    assert (found.step, found.before_ns, found.after_ns, found.ranks) == (60, 100 * _MS, 150 * _MS, 2)
    assert found.unix_ns == 10_000 * _MS - 11 * 150 * _MS


@pytest.mark.parametrize(
    "series",
    [
        [],
        [100] * 9,
        [100] * 60,
        [150] * 30 + [100] * 30,  # faster
        [100] * 30 + [900] * 4 + [100] * 30,  # a spell that is over
        [100] * 50 + [300],  # one long step
    ],
)
def test_what_is_no_lasting_change(series: list[int]) -> None:
    assert slowdown([[one * _MS for one in series]], last_step=99) is None


def test_jitter_is_no_change() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        series = [int(100 * _MS * factor) for factor in rng.lognormal(0, 0.1, 64)]
        assert slowdown([series], last_step=64) is None


def test_one_rank_s_odd_times_do_not_count() -> None:
    even = [100 * _MS] * 40
    assert slowdown([even, even, [100 * _MS] * 20 + [400 * _MS] * 20], last_step=40) is None
