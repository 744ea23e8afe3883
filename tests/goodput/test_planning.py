"""A whole plan: what it says of the published job, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from steptime.errors import UsageError
from steptime.goodput.intervals import expected_goodput
from steptime.goodput.planning import Job, Writing, plan
from steptime.model.inputs import Tool
from steptime.model.plan import Layout, ModelSize, Plan, PlanAsk

TOOL = Tool(name="steptime", version="test")
HOUR = 3600.0
LLAMA = PlanAsk(gpus=16_384, mtbf_gpu_s=50_677 * HOUR, pause_s=33, restart_s=600, runs=200)
#: 65.5 TB in 33 s is 2 TB/s: "every GPU writing 4 GB at 2 TB/s".
SIZE, RATE = 16_384 * 4e9, 2e12
COPY = 4e9


def _plan(writing: Writing | None = None, job: Job | None = None, **changed: Any) -> Plan:
    ask = msgspec.structs.replace(LLAMA, **changed)
    return plan(ask, writing or Writing(pause_s=ask.pause_s), TOOL, job)


def test_the_published_job() -> None:
    """M = 50,677 h / 16,384 = 3.093 h; Young 14.3, Daly 13.9 min; goodput 88 %; the first-order overhead by hand:

    33/857 + (857/2 + 600)/11,135 = 3.85 + 3.85 + 5.39 % = 13.1 % of the work, so 1/1.131 = 88.4 % of the time.
    """
    found = _plan()
    assert found.mtbf_job_s / HOUR == pytest.approx(3.093, abs=5e-4)
    assert found.young_s / 60 == pytest.approx(14.29, abs=0.01)
    assert found.daly_s / 60 == pytest.approx(13.92, abs=0.01)
    assert found.exact_s is not None
    assert found.exact_s / 60 == pytest.approx(13.92, abs=0.01)
    assert found.first_order.total == pytest.approx(0.131, abs=5e-4)
    assert found.best.at.goodput == pytest.approx(0.88, abs=0.01)
    assert found.best.flat_from_s <= found.exact_s <= found.best.flat_to_s
    assert found.best.from_s <= found.best.at.interval_s <= found.best.to_s
    assert len(found.curve.interval_s) == 50
    near = min(range(50), key=lambda at: abs(found.curve.interval_s[at] - found.young_s))
    assert found.curve.first_order[near] == pytest.approx(0.884, abs=1e-3)
    assert found.warnings == []


def test_what_would_change_it() -> None:
    """Each row against the expectation of its own figures; gains are differences to the plan as asked."""
    found = _plan(runs=600)
    titles = [row.title for row in found.sensitivity]
    assert titles == ["half the pause", "half the restart", "32,768 GPUs", "65,536 GPUs", "100,000 GPUs"]
    for row in found.sensitivity:
        expected = expected_goodput(row.interval_s, row.pause_s, row.restart_s, row.mtbf_job_s)
        assert row.goodput == pytest.approx(expected, abs=2e-3)
        assert row.gain == pytest.approx(row.goodput - found.best.at.goodput)
        assert row.low < row.goodput < row.high
    half_pause, half_restart, *more = found.sensitivity
    assert (half_pause.pause_s, half_restart.restart_s) == (16.5, 300)
    assert half_pause.gain > 0.01
    assert half_restart.gain > 0.02
    assert [row.goodput for row in more] == sorted((row.goodput for row in more), reverse=True)
    assert [row.gpus for row in more] == [32_768, 65_536, 100_000]


def test_the_gpus_are_not_doubled_beyond_the_largest_job() -> None:
    assert [row.title for row in _plan(gpus=100_000).sensitivity] == ["half the pause", "half the restart"]


def test_what_asynchronous_checkpoints_change() -> None:
    """4 GB a GPU at 4 GB/s to its host: a pause of 1 s in place of 33, and the 33 s of the write in the background."""
    found = _plan(Writing(pause_s=33, size_bytes=SIZE, write_bytes_per_s=RATE, copy_bytes_per_s=COPY))
    in_pause, aside = found.writing
    assert (in_pause.title, aside.title) == ("written in the pause", "written while training goes on")
    assert (in_pause.pause_s, in_pause.write_s) == (33, 0)
    assert (aside.pause_s, aside.write_s) == (1, 32.768)
    assert abs(in_pause.gain) < 1e-3
    # By the expectation: at the best interval 2.4 min, 93.5 % against 87.6 %.
    best = max(expected_goodput(tau, 1, 600 + 32.768, found.mtbf_job_s) for tau in range(60, 600))
    assert aside.goodput == pytest.approx(best, abs=2e-3)
    assert aside.gain > 0.04


def test_asked_for_asynchronous_checkpoints() -> None:
    writing = Writing(size_bytes=SIZE, write_bytes_per_s=RATE, copy_bytes_per_s=COPY, is_async=True)
    assert writing.times(16_384) == (1, 32.768)
    found = _plan(writing, pause_s=1.0, write_s=32.768)
    assert [row.title for row in found.writing] == ["written in the pause", "written while training goes on"]
    assert found.writing[0].pause_s == 32.768
    assert found.writing[0].gain < -0.04
    assert min(found.curve.interval_s) >= 32.768


def test_what_can_not_be_told_of_asynchronous_checkpoints_is_said() -> None:
    bare = _plan()
    assert bare.writing == []
    assert any("can't be told without the checkpoint's size" in note for note in bare.notes)
    without_copy = _plan(Writing(pause_s=33, size_bytes=SIZE, write_bytes_per_s=RATE))
    assert without_copy.writing == []
    assert any("--copy-bandwidth" in note for note in without_copy.notes)


@pytest.mark.parametrize(
    ("writing", "said"),
    [
        (Writing(), "give --checkpoint-pause, or --checkpoint-size"),
        (Writing(size_bytes=1e12), "give --checkpoint-pause, or --checkpoint-size"),
        (Writing(is_async=True), "give --checkpoint-pause, or --copy-bandwidth"),
        (Writing(pause_s=1, is_async=True), "until a checkpoint is written, a failure loses it"),
    ],
)
def test_a_pause_that_can_not_be_told_is_refused(writing: Writing, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        writing.times(8)


def test_the_pause_by_size_and_bandwidth() -> None:
    """6.48 TB at 2 TB/s: 3.24 s."""
    assert Writing(size_bytes=6.48e12, write_bytes_per_s=2e12).times(16_384) == (3.24, 0)


def test_todays_interval_stands_beside_the_best() -> None:
    found = _plan(interval_s=2 * HOUR)
    assert found.today is not None
    assert found.today.interval_s == 2 * HOUR
    assert found.today.goodput == pytest.approx(expected_goodput(2 * HOUR, 33, 600, found.mtbf_job_s), abs=4e-3)
    assert found.today.goodput < found.best.at.goodput - 0.1
    assert 2 * HOUR in found.curve.interval_s


def test_weibull_failures_have_no_exact_answer_and_the_formulas_are_said_to_be_off() -> None:
    found = _plan(weibull_shape=0.7)
    assert (found.exact_s, found.exact_goodput) == (None, None)
    assert any("assume exponential" in text for text in found.warnings)


def test_few_spares_cost_and_many_do_not() -> None:
    """A host away for 2 days at a failure every 3.1 h: 15.5 are away on average, so 5 spares are far too few."""
    few, many = _plan(spares=5, repair_s=48 * HOUR), _plan(spares=100, repair_s=48 * HOUR)
    assert few.best.at.split.spare_wait > 0.3
    assert many.best.at.split.spare_wait == 0
    assert few.exact_s is None


def test_a_job_that_is_down_more_than_up_is_warned_of() -> None:
    found = _plan(restart_s=2 * HOUR)
    assert any("trust the simulation" in text for text in found.warnings)


def test_rare_failures_are_warned_of() -> None:
    assert any("single runs differ" in text for text in _plan(gpus=64, horizon_s=30 * 86_400.0).warnings)


def test_doubling_ends_where_nothing_can_be_simulated() -> None:
    found = _plan(gpus=1000, mtbf_gpu_s=1000 * 300.0, runs=4)
    assert found.sensitivity[-1].gpus < 100_000
    assert any("no interval helps" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gpus": 0}, "--gpus = 0"),
        ({"mtbf_gpu_s": -1.0}, "--mtbf-gpu"),
        ({"pause_s": 0.0}, "pause of a checkpoint"),
        ({"restart_s": float("nan")}, "--restart"),
        ({"weibull_shape": 0.0}, "--weibull-shape"),
        ({"runs": 1}, "--runs"),
        ({"horizon_s": float("inf")}, "--days"),
        ({"spares": 4}, "give --repair"),
    ],
)
def test_figures_that_make_no_sense_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _plan(**changed)


def test_the_bytes_of_a_model_come_with_the_plan() -> None:
    model = ModelSize(name="8B", source="test", parameters=8 * 10**9)
    found = _plan(job=Job(model, Layout(gpus=16_384, zero=3), "H100", 80 * 10**9))
    assert found.checkpoint is not None
    assert found.checkpoint.total == 128 * 10**9
    assert found.fit is not None
    assert found.fit.chosen.verdict == "fits"
    assert _plan(job=Job(model, Layout(gpus=16_384))).fit is None


def test_a_plan_is_json_and_back() -> None:
    found = _plan(interval_s=600.0)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Plan) == found
