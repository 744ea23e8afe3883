"""A real job on the CPU, two gloo ranks, with a fault that its own clock measured: does the analysis find it?

The truth is `job.Truth`: the sleep of the dataset and the moment each rank's last gradient was ready, both by
`perf_counter_ns` inside the job. Nothing of it comes from the trace.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

import steptime
from steptime.model import RankSteps, Report, StepTime
from tests.real_run.job import Settings, Truth, run_job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

WAITING, SLOW = 0, 1
TRIES = 4


@dataclass(frozen=True)
class RealRun:
    """One job: what it says of itself, and what steptime says of it."""

    truth: Truth
    report: Report

    def steps(self, rank: int) -> list[StepTime]:
        """The steps of a rank that are counted."""
        return [step for step in self.rank(rank).steps if not step.edge]

    def rank(self, rank: int) -> RankSteps:
        (found,) = [entry for entry in self.report.ranks if entry.rank == rank]
        return found

    def sleep_ns(self, step: int) -> int:
        """What was injected on the slow rank."""
        return self.truth["ranks"][str(SLOW)]["sleep_ns"].get(str(step), 0)

    def late_ns(self, step: int) -> int:
        """How much later than the waiting rank the slow one had its last gradient."""
        return lateness_ns(self.truth, step)


def lateness_ns(truth: Truth, step: int) -> int:
    arrivals = [truth["ranks"][str(rank)]["arrival_ns"][str(step)] for rank in (WAITING, SLOW)]
    return arrivals[SLOW] - arrivals[WAITING]


def sleep_decided_who_waits(truth: Truth) -> bool:
    """Whether the fault, and not other load on the machine, made the slow rank late."""
    sleeps = truth["ranks"][str(SLOW)]["sleep_ns"]
    steps = [step for step in truth["recorded_steps"] if str(step) in sleeps]
    typical = median(sleeps[str(step)] for step in steps)
    return 0.7 * typical <= median(lateness_ns(truth, step) for step in steps) <= 1.6 * typical


def leaf_ns(step: StepTime, key: str) -> int:
    return step.leaves_ns.get(key, 0)


def exposed_ns(step: StepTime) -> int:
    return sum(ns for key, ns in step.leaves_ns.items() if key.startswith("exposed_comm/"))


@pytest.fixture(scope="module", params=["off", "nonreentrant", "reentrant"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    for _ in range(TRIES):
        out: Path = tmp_path_factory.mktemp("job")
        truth = run_job(out, Settings(slow_rank=SLOW, checkpointing=request.param, sleep_ms=60.0))
        if sleep_decided_who_waits(truth):
            paths = [out / f"rank{rank}.pt.trace.json.gz" for rank in (WAITING, SLOW)]
            return RealRun(truth, steptime.analyze(paths))
    pytest.skip(f"the machine is too busy: in {TRIES} jobs the injected sleep did not decide which rank waits")


def test_every_recorded_step_is_there_and_adds_up(run: RealRun) -> None:
    for rank in (WAITING, SLOW):
        steps = run.rank(rank).steps
        assert [step.step for step in steps] == run.truth["recorded_steps"]
        assert len(run.steps(rank)) >= len(steps) - 2
        for step in steps:
            step.check()


def test_loader_leaf_is_the_injected_sleep(run: RealRun) -> None:
    steps = run.steps(SLOW)
    injected = sum(run.sleep_ns(step.step) for step in steps)
    assert injected >= 4 * 20_000_000  # at least four sleeps of 20 ms among the counted steps
    assert sum(leaf_ns(step, "host/data_loader") for step in steps) == pytest.approx(injected, rel=0.10)


def test_loader_leaf_of_each_step_lies_between_sleep_and_the_time_around_next(run: RealRun) -> None:
    for rank in (WAITING, SLOW):
        truth = run.truth["ranks"][str(rank)]
        for step in run.steps(rank):
            slept_ns = truth["sleep_ns"].get(str(step.step), 0)
            around_next_ns = truth["loader_ns"][str(step.step)]
            # 1 %: the profiler converts another clock to the job's.
            assert 0.99 * slept_ns <= leaf_ns(step, "host/data_loader") <= 1.01 * around_next_ns


def test_recompute_only_with_checkpointing(run: RealRun) -> None:
    for rank in (WAITING, SLOW):
        for step in run.rank(rank).steps:
            recompute = leaf_ns(step, "recompute/recompute")
            if run.truth["checkpointing"] == "off":
                assert recompute == 0
            elif not step.edge:
                assert recompute > 0


def waited_ns(step: StepTime) -> int:
    return leaf_ns(step, "stragglers/wait_for_rank") + leaf_ns(step, "unexplained/capture_skew")


def test_the_wait_for_the_slow_rank_stands_apart_from_the_all_reduce(run: RealRun) -> None:
    waiting = {step.step: step for step in run.steps(WAITING)}
    slow = {step.step: step for step in run.steps(SLOW)}
    asleep = [number for number in sorted(waiting.keys() & slow.keys()) if run.sleep_ns(number)]
    injected = median(run.sleep_ns(number) for number in asleep)
    # Both ranks pay the transfer; only one of them pays the wait. While an earlier bucket is on its way, it owns the
    # time in which the last one waits: so the lateness is in both together, and most of it in the wait alone.
    waits = {number: waited_ns(waiting[number]) - waited_ns(slow[number]) for number in asleep}
    paid = {number: waits[number] + exposed_ns(waiting[number]) - exposed_ns(slow[number]) for number in asleep}
    assert abs(median(paid[number] - run.late_ns(number) for number in asleep)) <= 0.25 * injected
    assert 0.5 * injected <= median(waits.values())
    assert median(waits[number] - run.late_ns(number) for number in asleep) <= 0.25 * injected
    for number in asleep:
        keys = {key for key in waiting[number].leaves_ns if key.startswith("exposed_comm/")}
        assert keys == {"exposed_comm/allreduce"}  # the only collective of the job


def test_waiting_rank_does_not_blame_its_loader(run: RealRun) -> None:
    steps = run.steps(WAITING)
    injected = sum(run.sleep_ns(step.step) for step in steps)
    assert sum(leaf_ns(step, "host/data_loader") for step in steps) <= 0.1 * injected


def test_no_gpu_means_no_productive_share(run: RealRun) -> None:
    assert run.report.job.mfu is None
    assert all(step.productive_ns == 0 for rank in run.report.ranks for step in rank.steps)
