"""Random numbers by purpose: reproducible, independent of each other, and distributed as said."""

from __future__ import annotations

import numpy as np

from steptime.simulate.effects import no_effects
from steptime.simulate.noise import Noise
from steptime.simulate.scenario import Jitter, Layout, Recording
from tests.simulate.jobs import job

RANKS = np.arange(100_000, dtype=np.uint64)


def test_a_draw_depends_on_its_purpose_and_rank_only() -> None:
    whole = Noise(3).uniform(("kernel", 5), RANKS)
    assert np.array_equal(whole[10:20], Noise(3).uniform(("kernel", 5), RANKS[10:20]))
    assert not np.array_equal(whole, Noise(3).uniform(("kernel", 6), RANKS))
    assert not np.array_equal(whole, Noise(4).uniform(("kernel", 5), RANKS))


def test_distributions() -> None:
    # Tolerances: four standard errors of the mean (1/sqrt(12 n), 1/sqrt(n)) and of the deviation (1/sqrt(2n)).
    uniform = Noise(1).uniform(("u",), RANKS)
    assert 0.0 < uniform.min() < uniform.max() < 1.0
    assert abs(uniform.mean() - 0.5) < 4 * 0.2887 / 316
    normal = Noise(1).normal(("n",), RANKS)
    assert abs(normal.mean()) < 4 / 316
    assert abs(normal.std() - 1.0) < 4 / 447
    factor = np.asarray(Noise(1).factor(0.03, ("f",), RANKS))
    assert abs(np.log(factor).std() - 0.03) < 0.03 * 4 / 447


def test_one_step_in_ten_has_an_outlier_rank() -> None:
    scenario = job(layout=Layout(dp=8), recording=Recording(steps=2000, first_step=10), jitter=Jitter())
    slow = no_effects(scenario).slow
    hit = (slow > 1.0).sum(axis=0)
    assert hit.max() == 1
    # Binomial, p = 0.1, n = 2002: deviation 13.4.
    assert abs(int(hit.sum()) - 200) < 4 * 13.4
    assert (slow > 1.0).any(axis=1).all()  # not always the same rank
