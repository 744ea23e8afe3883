"""A few of the random jobs; `python -m tests.matrix.random_jobs` draws as many as one has time for."""

from __future__ import annotations

import pytest

from tests.matrix.random_jobs import MOST_RANKS, draw, wrong


# The last two: stages whose messages carry no peer; few collectives beside many messages.
@pytest.mark.parametrize("seed", [*range(12), 5061, 5346])
def test_nothing_is_said_that_is_not_so(seed: int) -> None:
    assert wrong(draw(seed)) == []


def test_a_seed_is_a_job() -> None:
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]
    jobs = [draw(seed) for seed in range(200)]
    assert {job.scenario.layout.world for job in jobs} <= set(range(2, MOST_RANKS + 1))
    assert len({job.fault.kind if job.fault is not None else "clean" for job in jobs}) == 12
    assert 0 < sum(job.lost for job in jobs) < 50
