"""Whatever befalls the capture directory, the training goes on and the log says what is missing: a real process."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import steptime
from steptime.capture.request import CapturePlan, captured_files, captures
from tests.capture import captured
from tests.capture.faulty_places import STEPS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

CASES = ("full", "readonly", "file", "profiled", "deleted", "long", "big", "signalled", "marked")


@dataclass(frozen=True)
class Ended:
    """heard: what was logged. restored: whether `torch.save` was the original one in the end."""

    folder: Path
    heard: list[str]
    restored: bool

    @property
    def plan(self) -> CapturePlan:
        found = captured_files(self.folder)
        assert found is not None
        assert found.plan is not None
        return found.plan

    @property
    def files(self) -> dict[int, Path]:
        found = captured_files(self.folder)
        return {} if found is None else found.files

    @property
    def failed(self) -> str:
        found = captured_files(self.folder)
        assert found is not None
        assert [*found.failed] == [0]
        return found.failed[0]

    @property
    def text(self) -> str:
        return captured.text(self.files[0])

    @property
    def marks(self) -> list[int]:
        return captured.marks(self.files[0])


@pytest.fixture(scope="module")
def ended(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Each case by name; the process ends well, and in each all steps were done."""
    out = tmp_path_factory.mktemp("places")
    for folder in (out, out.parent, out.parent.parent):  # One case runs as nobody.
        folder.chmod(0o755)
    command = [sys.executable, "-m", "tests.capture.faulty_places", str(out), *CASES]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["heard"].pop() for one in said] == [f"{STEPS} steps"] * len(CASES)
    return {name: Ended(out / name / "captures", **one) for name, one in zip(CASES, said, strict=True)}


def test_nothing_is_left_behind(ended: dict[str, Ended]) -> None:
    assert {name: one.restored for name, one in ended.items()} == dict.fromkeys(CASES, True)
    assert [path for one in ended.values() for path in one.folder.parent.rglob("*.tmp")] == []


def test_a_full_disk(ended: dict[str, Ended]) -> None:
    case = ended["full"]
    (said,) = case.heard
    assert re.search(r"no trace of rank 0 in capture asked-\w+: .*\(is its disk full\?\)$", said)
    assert case.files == {}
    assert case.failed.endswith("(is its disk full?)")


def test_a_directory_that_can_only_be_read(ended: dict[str, Ended]) -> None:
    case = ended["readonly"]
    assert captures(case.folder) == []
    (said,) = case.heard
    assert re.search(r"Permission denied: '.*captures.*': there will be no captures; training goes on$", said)


def test_a_file_in_place_of_the_directory(ended: dict[str, Ended]) -> None:
    case = ended["file"]
    assert case.folder.read_text() == "in the way"
    (said,) = case.heard
    assert re.search(r"exists: '.*captures': there will be no captures; training goes on$", said)


def test_a_directory_that_is_deleted_during_the_capture(ended: dict[str, Ended]) -> None:
    case = ended["deleted"]
    assert not case.folder.exists()
    assert any("no trace of rank 0" in text and "No such file or directory" in text for text in case.heard)


def test_a_job_that_runs_a_profiler_of_its_own_keeps_it(ended: dict[str, Ended]) -> None:
    case = ended["profiled"]
    assert case.files == {}
    assert "torch.profiler did not start" in case.failed
    assert "another profiler is running" in case.heard[0]


def test_a_capture_is_cut_at_its_seconds(ended: dict[str, Ended]) -> None:
    case = ended["long"]
    # The second recorded step took 1.2 s of the one second allowed, and ended the capture with itself.
    assert case.marks == [case.plan.first_recorded, case.plan.first_recorded + 1]
    assert any("it holds 2 of 8 steps, since it took more than 1 s" in text for text in case.heard)
    report = steptime.analyze([str(case.folder)])
    assert report.job.steps == case.marks


def test_a_trace_that_is_too_big_is_not_kept(ended: dict[str, Ended]) -> None:
    case = ended["big"]
    assert case.files == {}
    assert re.fullmatch(r"it is \d+ bytes long, more than the 1000 allowed; record fewer steps", case.failed)
    assert len(case.heard) == 1


def test_a_signal_starts_a_capture(ended: dict[str, Ended]) -> None:
    case = ended["signalled"]
    assert case.heard == []
    assert case.plan.request.reason == "a signal to rank 0"
    assert case.marks == list(range(case.plan.first_recorded, case.plan.end))


def test_collections_and_checkpoints_are_marked(ended: dict[str, Ended]) -> None:
    case = ended["marked"]
    assert case.heard == []
    # Each step collects once by name, and is marked twice as a checkpoint; one more step is recorded without a mark.
    assert len(case.marks) == 8
    assert case.text.count('"steptime::gc"') >= 8
    assert 2 * 8 <= case.text.count('"steptime::checkpoint"') <= 2 * 9
    assert f'"steptime::lead {case.plan.first_recorded - 1}"' in case.text
    report = steptime.analyze([str(case.folder)])
    leaves = {f"{part.id}/{leaf.id}": leaf.ns for part in report.job.slices for leaf in part.leaves}
    # At least the millisecond in which the job slept inside its own mark.
    assert (leaves["host/checkpoint"] or 0) >= 1e6 * report.job.rank_steps
    assert (leaves["host/gc"] or 0) > 0
