"""A watch that can't work says so once and lets the training be; and one that has nothing to do needs no torch."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from steptime.capture.request import read_step_times
from steptime.capture.watch import Watch, WatchSettings, watch


def train(watched: Watch, steps: int) -> None:
    for _ in range(steps):
        time.sleep(0.002)
        watched.step()


@pytest.mark.parametrize(
    "settings",
    [
        WatchSettings(steps=0),
        WatchSettings(warmup_steps=0),
        WatchSettings(max_seconds=1e9),
        WatchSettings(slower="much"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_no_capture_may_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: WatchSettings
) -> None:
    with watch(tmp_path / "captures", settings) as watched:
        train(watched, 50)
        watched.capture()
    assert watched.number == 50
    (record,) = caplog.records
    assert "the watch does not work" in record.getMessage()
    assert record.getMessage().endswith("training goes on without it")


def test_a_request_that_is_none_is_left_alone_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "request.json").write_text('{"id": "../../elsewhere"}')
    with watch(tmp_path, WatchSettings(automatic=False, poll_s=0.05)) as watched:
        train(watched, 150)
    (record,) = caplog.records
    assert "request.json: not what steptime writes" in record.getMessage()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["request.json", "step_times"]


def test_step_times_are_those_of_the_loop(tmp_path: Path) -> None:
    with watch(tmp_path, WatchSettings(automatic=False, poll_s=0.05), first_step=7) as watched:
        train(watched, 150)
    times = read_step_times(tmp_path)[0]
    assert 7 < times.step <= 157
    # The first interval began when the watch was made; all others hold the two milliseconds of sleep.
    assert len(times.recent_ns) == times.step - 7
    assert min(times.recent_ns) >= 2_000_000


def test_an_idle_watch_imports_nothing_heavy(tmp_path: Path, repo: Path) -> None:
    code = (
        "import sys, time, steptime\n"
        "with steptime.watch(sys.argv[1]) as watch:\n"
        "    for _ in range(10): time.sleep(0.02); watch.step()\n"
        "print(sorted({'numpy', 'pandas', 'click', 'rich', 'torch'} & {*sys.modules}))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "captures")]
    assert subprocess.run(command, cwd=repo, capture_output=True, text=True, check=True).stdout == "[]\n"
