"""Who is named, and above all who is not. Jobs are made so that the culprit is known (`jobs`)."""

from __future__ import annotations

import time

import numpy as np
import pytest

from steptime.model import Straggler
from steptime.ranks.alignment import align
from steptime.ranks.counted import Row
from steptime.ranks.stragglers import verdicts
from tests.ranks.jobs import MS, Job, run

JOBS, CLEAN_SEED, FAULT_SEED = 200, 7_000, 8_000


def _judge(rows: list[Row]) -> list[Straggler]:
    return verdicts(rows, align(rows))


def _random(seed: int, **changes: object) -> Job:
    """A clean job: jitter of 2 to 5 %, one outlier in ten in every second job, hosts up to 50 ms and 50 ppm apart."""
    random = np.random.default_rng(seed)
    hosts, ranks = int(random.choice([1, 2, 4])), int(random.choice([2, 4, 8]))
    settings: dict[str, object] = {
        "hosts": hosts,
        "ranks_per_host": ranks,
        "tp": int(random.choice([1, 1, 2])),
        "sharded": bool(random.random() < 0.4),
        "steps": int(random.integers(3, 11)),
        "layers": int(random.integers(4, 24)),
        "jitter": float(random.uniform(0.02, 0.05)),
        "outlier": float(random.choice([0.0, 0.1])),
        "ends_ns": 1_500.0,
        "ends_between_ns": 8_000.0,
        "offsets_ns": [int(one) for one in random.integers(-50 * MS, 50 * MS, hosts)],
        "drift": [float(one) for one in random.uniform(-50e-6, 50e-6, hosts)],
        "named_hosts": bool(random.random() < 0.7),
        "seq": bool(random.random() < 0.6),
        "seed": seed,
    }
    return Job(**{**settings, **changes})  # type: ignore[arg-type]


def _named(found: list[Straggler]) -> list[int | None]:
    return [one.rank for one in found if one.kind == "straggler"]


def test_nobody_is_accused_in_200_clean_jobs() -> None:
    accused = {}
    for seed in range(CLEAN_SEED, CLEAN_SEED + JOBS):
        rows = run(_random(seed))
        random = np.random.default_rng(seed)
        if random.random() < 0.4 and len(rows) > 2:
            chosen = random.choice(len(rows), int(random.integers(2, len(rows))), replace=False)
            rows = [rows[at] for at in sorted(chosen.tolist())]
        named = _named(_judge(rows))
        if named:
            accused[seed] = named
    assert accused == {}


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_identical_ranks_have_no_straggler(ranks: int) -> None:
    assert _judge(run(Job(ranks_per_host=ranks, steps=6))) == []


@pytest.mark.parametrize("kind", ["slow", "loader"])
def test_a_rank_20_percent_late_is_named_and_nobody_else_ever(kind: str) -> None:
    """60 random jobs of at least five steps without outliers: rank and cause right in all of them."""
    wrong = {}
    for seed in range(FAULT_SEED, FAULT_SEED + 60):
        job = _random(seed, outlier=0.0, steps=5 + seed % 5)
        culprit = int(np.random.default_rng(seed).integers(job.ranks))
        if kind == "slow":
            job.slow = {culprit: 1.2}
        else:
            job.loader_ns = {(culprit, step): 0.2 * job.layers * job.layer_ns for step in range(job.steps)}
        cause = {"slow": "slower kernels", "loader": "data_loader"}[kind]
        found = _judge(run(job))
        if [(one.kind, one.rank, one.cause) for one in found] != [("straggler", culprit, cause)]:
            wrong[seed] = found
    assert wrong == {}


def test_a_loader_that_stalls_in_every_second_step() -> None:
    stalls = {(2, step): 4.0 * MS for step in range(1, 12, 2)}
    (found,) = _judge(run(Job(ranks_per_host=4, steps=12, jitter=0.03, loader_ns=stalls)))
    assert (found.kind, found.rank, found.cause, found.leaf) == ("straggler", 2, "data_loader", "host/data_loader")
    assert found.steps == [11, 13, 15, 17, 19, 21]
    # 4 ms less the usual 0.02 ms of the others' loader, on each of six steps, give or take the jitter of 8 layers.
    assert found.lost_ns == pytest.approx(6 * 3.98 * MS, rel=0.05)


def test_a_slow_rank_behind_its_neighbour() -> None:
    (found,) = _judge(run(Job(ranks_per_host=8, tp=2, steps=6, jitter=0.02, slow={5: 1.15})))
    assert (found.rank, found.cause) == (5, "slower kernels")
    assert found.through == [4]


def test_a_slow_host_is_named_as_a_host() -> None:
    slow = dict.fromkeys(range(4, 8), 1.2)
    job = Job(hosts=3, ranks_per_host=4, steps=6, jitter=0.02, slow=slow, offsets_ns=[0, 9 * MS, -5 * MS])
    (found,) = _judge(run(job))
    assert (found.kind, found.rank, found.ranks, found.host) == ("straggler", None, [4, 5, 6, 7], "host1")
    assert found.cause == "slower kernels"


def test_another_rank_in_each_step_is_jitter() -> None:
    pauses = {(step % 4, step): 5.0 * MS for step in range(8)}
    (found,) = _judge(run(Job(ranks_per_host=4, steps=8, jitter=0.02, loader_ns=pauses)))
    assert (found.kind, found.rank, found.ranks) == ("jitter", None, [0, 1, 2, 3])


def test_one_pause_is_an_event_and_no_straggler() -> None:
    (found,) = _judge(run(Job(ranks_per_host=4, steps=8, jitter=0.02, loader_ns={(1, 5): 30.0 * MS})))
    assert (found.kind, found.rank, found.steps, found.cause) == ("once", 1, [15], "data_loader")


def test_one_pause_of_another_rank_does_not_hide_a_straggler() -> None:
    job = Job(ranks_per_host=4, steps=8, jitter=0.02, slow={3: 1.1}, loader_ns={(1, 5): 30.0 * MS})
    assert _named(_judge(run(job))) == [3]


def test_two_stragglers_of_which_one_hides_the_other() -> None:
    # Rank 2's excess beyond rank 1's is all that its own repair would give: the slower one is named first.
    found = _judge(run(Job(ranks_per_host=6, steps=8, jitter=0.02, slow={1: 1.1, 2: 1.3})))
    assert _named(found)[0] == 2
    assert set(_named(found)) <= {1, 2}


@pytest.mark.parametrize("offset_ns", [0, 5 * MS, -20 * MS])
def test_nothing_is_claimed_inside_the_clock_error(offset_ns: int) -> None:
    # Rank 1 is 3 us late in each of two collectives a step; between hosts ends differ by more.
    job = Job(
        hosts=2,
        ranks_per_host=1,
        steps=8,
        layers=1,
        layer_ns=0.5 * MS,
        transfer_ns=0.05 * MS,
        slow={1: 1.006},
        ends_between_ns=8_000.0,
        offsets_ns=[0, offset_ns],
    )
    rows = run(job)
    assert int(align(rows).error_ns.min()) > 3_000
    assert _judge(rows) == []


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("sharded", [True, False])
def test_leaving_out_any_file_does_not_turn_the_verdict(tp: int, sharded: bool) -> None:
    job = Job(
        hosts=2, ranks_per_host=4, tp=tp, sharded=sharded, steps=6, jitter=0.02, slow={5: 1.3}, offsets_ns=[0, 9 * MS]
    )
    rows = run(job)
    assert _named(_judge(rows)) == [5]
    for left_out in range(8):
        found = _judge([row for row in rows if row.rank != left_out])
        if left_out == 5:
            assert set(_named(found)) <= {5}
            assert all(not one.recorded for one in found)
        else:
            assert [(one.rank, one.cause) for one in found] == [(5, "slower kernels")]


def test_time_grows_with_the_ranks_and_no_faster() -> None:
    def seconds(hosts: int) -> float:
        rows = run(Job(hosts=hosts, ranks_per_host=8, steps=4, layers=30, sharded=True, jitter=0.03))
        least = np.inf
        for _ in range(3):
            began = time.process_time()
            _judge(rows)
            least = min(least, time.process_time() - began)
        return float(least)

    # Issue's bound for four times the ranks is 4.4; the clock of a shared machine gets some room.
    assert seconds(16) <= 6.0 * seconds(4)
