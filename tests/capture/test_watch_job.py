"""Real jobs of several gloo ranks: they capture themselves when one becomes slow, and when they are asked to."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import steptime
from steptime.capture.request import Captured, CaptureRequest, captured_files, captures, read_step_times, write_request
from tests.capture.captured import marks
from tests.capture.watched_job import Ended, Settings, run_job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SLOW_RANK, SLOW_AT, SLOW_MS = 2, 60, 60.0
TRIES = 3


def capture_of(folder: Path) -> Captured:
    found = captured_files(folder)
    assert found is not None
    assert found.plan is not None
    return found


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captures of a job in which one rank became slow; a busy machine may have slowed it before, by itself."""
    for _ in range(TRIES):
        out = tmp_path_factory.mktemp("slowed")
        ended = run_job(out, Settings(slow_rank=SLOW_RANK, slow_at=SLOW_AT, slow_ms=SLOW_MS))
        assert ended.codes == [0] * 4, ended.errors
        folder = out / "captures"
        names = captures(folder)
        if names and capture_of(folder).plan.planned_at > SLOW_AT:  # type: ignore[union-attr]
            return folder
    pytest.fail(f"captures: {names}, planned: {[captured_files(folder, name) for name in names]}")


def test_a_job_that_slows_down_captures_itself(slowed: Path) -> None:
    assert len(captures(slowed)) == 1
    found = capture_of(slowed)
    assert found.plan is not None
    assert SLOW_AT < found.plan.first_step <= SLOW_AT + 10
    assert (sorted(found.files), found.failed, found.missing) == ([0, 1, 2, 3], {}, [])
    first = found.plan.first_recorded
    assert [marks(path) for path in found.files.values()] == [[first, first + 1, first + 2]] * 4
    assert [path.name for path in slowed.rglob("*.tmp")] == []


def test_the_capture_names_the_rank_and_the_cause(slowed: Path) -> None:
    report = steptime.analyze([str(slowed / captures(slowed)[0])])
    leaves = {f"{part.id}/{leaf.id}": leaf.ns for part in report.job.slices for leaf in part.leaves}
    assert leaves.get("unexplained/capture_skew", 0) == 0
    worst = max(report.stragglers, key=lambda straggler: straggler.lost_ns)
    assert worst.rank == SLOW_RANK
    assert "data_loader" in worst.cause
    # Three of four ranks wait for what the loader of the fourth sleeps.
    waited_ms = (leaves["stragglers/wait_for_rank"] or 0) / report.job.rank_steps / 1e6
    assert waited_ms == pytest.approx(SLOW_MS * 3 / 4, rel=0.2)


def test_the_ranks_say_how_fast_they_are(slowed: Path) -> None:
    times = read_step_times(slowed)
    assert sorted(times) == [0, 1, 2, 3]
    assert {one.world_size for one in times.values()} == {4}


@pytest.fixture(scope="module")
def bereaved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A job that was asked for 30 steps, and that one rank left in the middle of them."""
    out = tmp_path_factory.mktemp("bereaved")
    folder = out / "captures"
    folder.mkdir()
    request = write_request(folder, CaptureRequest(id="asked-1", steps=30, reason="the test asks"))
    os.utime(request, (0, 0))  # As after a clock jump: what is old is served as well.
    ended = run_job(out, Settings(ranks=3, steps=60, step_ms=50, dying_rank=1, dies_at=25, automatic=0))
    return folder, ended


def test_a_rank_that_dies_does_not_end_the_training_of_the_others(bereaved: tuple[Path, Ended]) -> None:
    folder, ended = bereaved
    assert ended.codes == [0, -9, 0], ended.errors
    assert [(folder.parent / f"done-{rank}.json").exists() for rank in range(3)] == [True, False, True]


def test_what_the_others_captured_is_there_and_analysed(bereaved: tuple[Path, Ended]) -> None:
    folder, ended = bereaved
    found = capture_of(folder)
    assert captures(folder) == ["asked-1"]
    assert found.plan is not None
    assert found.plan.first_step < 25 < found.plan.end, ended.errors
    assert (sorted(found.files), found.missing, found.complete) == ([0, 2], [1], False)
    assert len({tuple(marks(path)) for path in found.files.values()}) == 1
    report = steptime.analyze([str(folder / found.id)])
    assert [rank.rank for rank in report.ranks] == [0, 2]
    assert "rank 1 of world_size 3 has no file (2 of 3 analysed)" in report.warnings
    assert [warning for warning in report.warnings if "skipped" in warning] == []


def test_ranks_without_a_store_agree_through_the_directory(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    write_request(folder, CaptureRequest(id="asked-2", ranks=[1, 7]))
    ended = run_job(tmp_path, Settings(ranks=2, steps=70, step_ms=30, distributed=0, automatic=0))
    assert ended.codes == [0, 0], ended.errors
    found = capture_of(folder)
    assert found.plan is not None
    assert (found.plan.planned_by, found.plan.ranks) == (0, [1])
    first = found.plan.first_recorded
    assert {rank: marks(path) for rank, path in found.files.items()} == {1: [first, first + 1, first + 2]}
