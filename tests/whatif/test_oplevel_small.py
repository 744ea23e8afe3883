"""Small op-level jobs: every quantity by hand, then of random jobs against a recursion; and what the verdict names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from steptime.model.oplevel import Explained, OpLevelReport, Slowdown
from steptime.whatif.oplevel.analysis import analyze_oplevel
from steptime.whatif.oplevel.job import arrange
from steptime.whatif.oplevel.ops import Op
from steptime.whatif.oplevel.read import read
from steptime.whatif.oplevel.work import find_work
from tests.whatif.oplevel_jobs import TINY, Key, Shape, Step, drawn, recorded, run, step_time, tiny, works, write

_MS = 1e6
#: float32 tells times of 0.17 s apart by 15 ns, and a step adds up a dozen of them.
_ABOUT = 2e-4


def _mean_ms(rows: list[Slowdown]) -> dict[str, float]:
    return {row.name: sum(row.step_ns) / len(row.step_ns) / _MS for row in rows}


def test_the_recursion_gives_the_job_worked_out_by_hand() -> None:
    """So that both can be trusted: the one for its numbers, the other for its rules."""
    own = {
        "forward-compute": 10.0,
        "backward-compute": 20.0,
        "forward-send": 2.0,
        "forward-recv": 2.0,
        "backward-send": 2.0,
        "backward-recv": 2.0,
        "params-all-gather": 1.0,
        "gc": 0.0,
        "layernorm-grads-all-reduce": 1.0,
        "embedding-grads-all-reduce": 2.0,
        "grads-reduce-scatter": 3.0,
        "optimizer-clip-main-grad": 1.0,
        "optimizer": 4.0,
    }
    shape = Shape(2, 2, 2)
    slow = {key for key in shape.keys() if key[:2] == (1, 1) and key.optype.endswith("compute")}  # noqa: SIM118
    start, end = run(shape, {key: own[key.optype] * (1 + (key in slow)) for key in shape.keys()})  # noqa: SIM118
    assert {tuple(key): (start[key], end[key]) for key in start} == TINY


def test_a_job_by_hand(tmp_path: Path) -> None:
    """Ideal: forward (6 x 10 + 2 x 20) / 8 = 12.5 ms, backward 25 ms, all else as it is.

    In the ideal step, stage 0 has F 1-13.5, F -26, B 55-80, B 92.5-117.5, and the tail takes 1 + 2 + 3 + 1 + 4 = 11 ms.
    """
    report = analyze_oplevel(write(tmp_path, tiny(), (2, 2)))
    assert (report.steps, report.micro_batches, report.world_size) == ([7, 9], 2, 8)
    assert [ns / _MS for ns in report.recorded_ns] == pytest.approx([166, 171], abs=_ABOUT)
    assert [ns / _MS for ns in report.replayed_ns] == pytest.approx([166, 166], abs=_ABOUT)
    assert report.ideal_ns / _MS == pytest.approx(128.5, abs=_ABOUT)
    assert report.slowdown == pytest.approx(166 / 128.5, rel=1e-6)
    assert report.launch_slowdown == pytest.approx(168.5 / 166, rel=1e-6)
    computes = {"forward-compute": 141.0, "backward-compute": 153.5}
    by_type = _mean_ms(report.by_type)
    assert by_type == pytest.approx(dict.fromkeys(by_type, 128.5) | computes, abs=_ABOUT)
    assert len(by_type) == 11
    assert _mean_ms(report.by_dp_rank) == pytest.approx({"0": 128.5, "1": 166}, abs=_ABOUT)
    assert _mean_ms(report.by_stage) == pytest.approx({"0": 121, "1": 173.5}, abs=_ABOUT)
    assert [(one.dp_rank, one.stage, one.rank) for one in report.worst] == [(1, 1, 6)]
    # Without the slow worker only its stage 0 is faster than ideal: 121 ms, and so it is without the last stage.
    for one, only in ((report.worst_workers, 173.5), (report.last_stage, 173.5)):
        assert one.without_ns / _MS == pytest.approx(121, abs=_ABOUT)
        assert one.only_ns / _MS == pytest.approx(only, abs=_ABOUT)
        assert one.share == pytest.approx(45 / 37.5, rel=1e-5)
        assert one.share_alone == pytest.approx(45 / 37.5, rel=1e-5)
    # Of a stage's two workers the faster one counts; if both are so, all takes 106 ms, as dp rank 0 would by itself.
    assert [ns / _MS for ns in report.unevenness.stage_ns] == pytest.approx([30, 30], abs=_ABOUT)
    assert report.unevenness.workers == pytest.approx((166 - 106) / 37.5, rel=1e-5)
    assert report.unevenness.stages == pytest.approx(0, abs=1e-5)
    assert report.unevenness.micro_batches == pytest.approx(0, abs=1e-5)


def _value(values: list[float], mean: bool) -> float:
    return statistics.mean(values) if mean else statistics.median(values)


def _ideal(steps: Mapping[int, Step]) -> dict[str, float]:
    pooled: dict[str, list[float]] = {}
    for step in steps.values():
        for key, value in step.items():
            pooled.setdefault(key.optype, []).append(value)
    means = ("forward-compute", "backward-compute", "optimizer", "gc")
    return {optype: _value(values, optype in means) for optype, values in pooled.items()}


@pytest.mark.parametrize("seed", range(24))
def test_a_random_job_is_replayed_as_the_recursion_does(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = Shape(*(int(rng.integers(1, high)) for high in (5, 5, 6)))
    # Two dp ranks at least: with one, the job has no data parallelism.
    shape = shape._replace(dp_size=shape.dp_size + 1, eager=seed % 3)
    taken = drawn(shape, 3, seed, 5e-3)
    delays = drawn(shape, 3, seed + 1000, 1e-3)
    report = analyze_oplevel(write(tmp_path, recorded(shape, taken, delays), shape[:2]))
    ideal = _ideal(taken)

    def job_s(keeps: Callable[[Key], bool]) -> float:
        return statistics.mean(
            step_time(shape, {key: value if keeps(key) else ideal[key.optype] for key, value in step.items()})
            for step in taken.values()
        )

    everything, nothing = job_s(lambda _: True), job_s(lambda _: False)
    assert _near(report.slowdown, everything / nothing)
    assert _near(report.ideal_ns / 1e9, nothing)
    recorded_s = [max(run(shape, taken[step], delays[step])[1].values()) for step in taken]
    earliest_s = [min(run(shape, taken[step], delays[step])[0].values()) for step in taken]
    spans = [last - first for last, first in zip(recorded_s, earliest_s, strict=True)]
    assert [ns / 1e9 for ns in report.recorded_ns] == pytest.approx(spans, rel=1e-6)
    merged = {
        "forward-pp-comm": ("forward-send", "forward-recv"),
        "backward-pp-comm": ("backward-send", "backward-recv"),
    }
    parts: list[tuple[Slowdown, Callable[[Key], bool]]] = [
        *((row, partial(_of_types, merged.get(row.name, (row.name,)))) for row in report.by_type),
        *((row, partial(_at, 0, int(row.name))) for row in report.by_dp_rank),
        *((row, partial(_at, 1, int(row.name))) for row in report.by_stage),
    ]
    for row, keeps in parts:
        assert _near(row.slowdown, job_s(keeps) / nothing), row.name
    worst = _worst(shape, report)
    assert [(one.dp_rank, one.stage) for one in report.worst] == worst
    _same(report.worst_workers, job_s(lambda key: key[:2] not in worst), everything, nothing)
    _same(report.last_stage, job_s(lambda key: key.stage != shape.pp_size - 1), everything, nothing)


def _of_types(optypes: tuple[str, ...], key: Key) -> bool:
    return key.optype in optypes


def _at(field: int, number: int, key: Key) -> bool:
    return key[field] == number


def _near(told: float, expected: float) -> bool:
    return abs(told - expected) <= max(1e-6 * abs(expected), 3e-7)


def _worst(shape: Shape, report: OpLevelReport) -> list[tuple[int, int]]:
    dp, pp = ([row.slowdown for row in rows] for rows in (report.by_dp_rank, report.by_stage))
    cells = [(-min(dp[d], pp[p]), p * shape.dp_size + d, (d, p)) for d in range(len(dp)) for p in range(len(pp))]
    return [cell for *_, cell in sorted(cells)][: math.ceil(3 * len(cells) / 100)]


def _same(told: Explained, without: float, everything: float, nothing: float) -> None:
    assert told.without_ns / 1e9 == pytest.approx(without, rel=1e-6, abs=3e-7)
    if everything - nothing > 1e-3:
        assert told.share == pytest.approx((everything - without) / (everything - nothing), rel=1e-3, abs=1e-3)
    if everything <= nothing:
        assert told.share is None


_TAKES = {"forward-compute": 10e-3, "backward-compute": 20e-3, "gc": 0.0}


def _job(folder: Path, shape: Shape, factor: Callable[[Key, int], float]) -> OpLevelReport:
    """A job of eight steps of which each op takes its usual time times a factor."""
    taken = works(shape, 8, lambda key, step: _TAKES.get(key.optype, 0.2e-3) * factor(key, step))
    return analyze_oplevel(write(folder, recorded(shape, taken), shape[:2]))


def _computes(key: Key) -> bool:
    return key.optype.endswith("compute")


def test_an_even_job_has_no_straggler(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    report = _job(tmp_path, Shape(3, 3, 6), lambda *_: float(rng.uniform(0.995, 1.005)))
    assert (report.cause, report.culprits, report.stage, report.why) == ("none", [], None, None)


@pytest.mark.parametrize("dp_size", [2, 3, 4])
@pytest.mark.parametrize(("dp_rank", "stage"), [(0, 0), (1, 0), (1, 1), (0, 2), (1, 2)])
def test_a_slow_worker_is_named_wherever_it_is(dp_size: int, dp_rank: int, stage: int, tmp_path: Path) -> None:
    shape = Shape(dp_size, 3, 6)
    report = _job(tmp_path, shape, lambda key, _: 1.6 if key[:2] == (dp_rank, stage) and _computes(key) else 1.0)
    assert report.cause == "worker"
    assert [(one.dp_rank, one.stage, one.rank) for one in report.culprits] == [
        (dp_rank, stage, (stage * dp_size + dp_rank) * 2)
    ]


@pytest.mark.parametrize("slow", [{(3, 1)}, {(16, 0)}, {(5, 0), (11, 1)}])
def test_nobody_is_named_for_being_among_the_slowest(slow: set[tuple[int, int]], tmp_path: Path) -> None:
    """Of 34 workers, two are the slowest 3 %, be they slow or not; and those two need not be the slow ones.

    Slow are (5, 0) and (11, 1): the lesser of dp rank and stage is as slow for (11, 0) as for either of them.
    """
    report = _job(tmp_path, Shape(17, 2, 3), lambda key, _: 1.6 if key[:2] in slow and _computes(key) else 1.0)
    assert len(report.worst) == 2
    assert report.cause == "worker"
    assert {(one.dp_rank, one.stage) for one in report.culprits} == slow
    assert [one.slowness for one in report.culprits] == pytest.approx([1.6] * len(slow))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_long_stage_is_named_whichever_it_is(stage: int, tmp_path: Path) -> None:
    report = _job(tmp_path, Shape(4, 3, 6), lambda key, _: 1.6 if key.stage == stage and _computes(key) else 1.0)
    assert (report.cause, report.stage, report.culprits) == ("stage", stage, [])


def test_one_dp_rank_does_not_tell_a_stage_from_a_worker(tmp_path: Path) -> None:
    report = _job(tmp_path, Shape(1, 3, 6), lambda key, _: 1.6 if key.stage == 1 and _computes(key) else 1.0)
    assert report.cause == "unclear"
    assert report.why == "stages differ, but with one dp rank a slow worker and a long stage look the same"


def _lengths(key: Key, step: int, more: str = "") -> float:
    """A length for each micro-batch of a dp rank in a step."""
    text = f"{key.dp_rank} {key.seq} {step} {more}".encode()
    return float(np.random.default_rng(list(text)).uniform(0.4, 1.6))


def test_sequences_of_different_lengths_are_named(tmp_path: Path) -> None:
    report = _job(tmp_path, Shape(4, 3, 6), lambda key, step: _lengths(key, step) if _computes(key) else 1.0)
    assert report.cause == "sequence_lengths"
    assert report.unevenness.correlation == pytest.approx(1, abs=1e-3)


def test_computes_that_vary_by_chance_are_not_sequences(tmp_path: Path) -> None:
    """As long and short as the sequences above, but forward and backward of one have nothing in common."""
    report = _job(tmp_path, Shape(4, 3, 6), lambda key, s: _lengths(key, s, str(key)) if _computes(key) else 1.0)
    assert report.cause == "unclear"
    assert report.why is not None
    assert "do not go together" in report.why
    assert abs(report.unevenness.correlation or 0) < 0.5


def test_many_slow_workers_are_all_named(tmp_path: Path) -> None:
    shape = Shape(5, 2, 6)
    report = _job(tmp_path, shape, lambda key, _: 1.6 if key.dp_rank in (1, 3) and _computes(key) else 1.0)
    assert report.cause == "worker"
    assert {(one.dp_rank, one.stage) for one in report.culprits} == {(1, 0), (1, 1), (3, 0), (3, 1)}


def test_slow_messages_are_not_laid_to_computes(tmp_path: Path) -> None:
    """Every fourth message takes long: neither workers, stages nor micro-batches."""
    report = _job(
        tmp_path,
        Shape(4, 3, 6),
        lambda key, step: 400.0 if "send" in key.optype and (key.seq + step) % 4 == 0 else 1.0,
    )
    assert report.cause == "unclear"
    assert report.why is not None
    assert "neither workers, stages nor micro-batches" in report.why


def test_another_order_of_computes_is_said(tmp_path: Path) -> None:
    table = tiny()
    swapped = (table["step"] == 9) & (table["dp_rank"] == 1) & (table["stage"] == 0)
    second = swapped & (table["optype"] == "forward-compute") & (table["seq_id"] == 1)
    table.loc[second, "start_ts"] = np.float32(0.2)
    report = analyze_oplevel(write(tmp_path, table, (2, 2)))
    assert report.reordered == 1


def test_a_job_replayed_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(2, 3, 4)
    path = write(tmp_path, recorded(shape, drawn(shape, 3, 7, 5e-3)), shape[:2])
    whole = analyze_oplevel(path)
    monkeypatch.setattr("steptime.whatif.oplevel.scenarios._AT_ONCE", 1)
    assert analyze_oplevel(path) == whole


def test_a_transfer_that_ends_before_its_last_start(tmp_path: Path) -> None:
    """Up to 10 ms before it stays negative, from there on it is 0 (the artifact's rule)."""
    table = tiny()
    clips = table.index[(table["optype"] == "optimizer-clip-main-grad") & (table["step"] == 7)]
    # All others start at 161 ms.
    for row, end_s in zip(clips[:3], (0.152, 0.1509, 0.1), strict=True):
        table.loc[row, ["start_ts", "duration"]] = np.array([0.09, end_s - 0.09], np.float32)
    job = arrange(read(write(tmp_path, table, (2, 2))))
    taken = find_work(job).traced_ns[np.tile(job.op == Op.CLIP, 2), 0]
    assert sorted(taken.tolist()) == pytest.approx([-9e6, 0, 0, 1e6], abs=50)
