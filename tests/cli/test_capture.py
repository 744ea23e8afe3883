"""``steptime capture`` and ``diagnose`` on the folder of a real job with the hook: two gloo ranks, one of them slow."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from steptime.capture.request import CapturePlan, CaptureRequest, StepTimes, plan_file
from steptime.cli import main
from steptime.cli.capturing import pace_of
from tests.capture.watched_job import Settings, run_job

_SLOW_RANK, _SLOW_MS = 1, 60.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, threading.Thread]]:
    """The folder of a job that runs, and the thread that waits for its end."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    out = tmp_path_factory.mktemp("job")
    settings = Settings(ranks=2, steps=160, step_ms=20, slow_rank=_SLOW_RANK, slow_at=0, slow_ms=_SLOW_MS, automatic=0)
    thread = threading.Thread(target=run_job, args=(out, settings))
    thread.start()
    folder = out / "captures"
    end = time.monotonic() + 60
    while len(list((folder / "step_times").glob("*.json"))) < settings.ranks and time.monotonic() < end:
        time.sleep(0.1)
    yield folder, thread
    thread.join()


def test_a_running_job_is_asked_and_diagnosed(
    running: tuple[Path, threading.Thread], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, thread = running
    assert main(["diagnose", str(folder), "--steps", "4", "--timeout", "60"]) == 0
    out, err = capsys.readouterr()
    assert f"steptime: asks {folder} for 4 steps of all 2 ranks" in err
    text = " ".join(out.split())
    assert f"Rank {_SLOW_RANK} on host " in text
    assert "is late: its time goes to data loader (host/data_loader)" in text
    assert "on 2 ranks)" in text

    assert main(["capture", str(folder), "--ranks", "1", "--steps", "2", "--timeout", "60", "-q"]) == 0
    (name,) = capsys.readouterr().out.splitlines()
    assert (Path(name).name, Path(name).is_file()) == ("rank-1.pt.trace.json.gz", True)

    # Once the job is over, the latest capture is what there is: of rank 1 alone.
    thread.join()
    assert main(["diagnose", str(folder), "--timeout", "0.5", "-q", "-o", str(folder / "r.json")]) in (0, 2)
    assert '"ranks_analyzed": 1' in (folder / "r.json").read_text()


def test_a_folder_in_which_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", str(tmp_path), "--timeout", "0.3"]) == 2
    assert "no rank took the request up within" in capsys.readouterr().err
    # Its request was withdrawn: a job that starts later must not serve it.
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "step_times").mkdir()
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "holds no capture, and no job answers there" in capsys.readouterr().err
    assert main(["capture", str(tmp_path / "none")]) == 2


def test_a_capture_of_which_nothing_came_is_told_by_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 gave a reason, rank 1 said nothing."""
    monkeypatch.setattr("steptime.capture.request.new_id", lambda _: "asked-1")
    place = plan_file(tmp_path, "asked-1").with_suffix("")
    place.mkdir(parents=True)
    plan = CapturePlan(request=CaptureRequest(id="asked-1"), first_step=3, world_size=2)
    plan_file(tmp_path, "asked-1").write_bytes(msgspec.json.encode(plan))
    (place / "rank-0.json").write_text('{"rank": 0, "reason": "No space left\\u001b[31m"}')
    assert main(["capture", str(tmp_path), "--timeout", "0.3"]) == 2
    err = capsys.readouterr().err
    assert "steptime: rank 0: No space left\\x1b[31m\n" in err
    assert "steptime: rank 1: no trace within 0 s; see whether the process still steps" in err
    assert "no rank left a trace" in err


def test_the_pace_of_ranks_that_wrote_at_different_steps(tmp_path: Path) -> None:
    """Steps 0 to 39 took 100 ms and 40 on 200 ms on both; when they wrote, one ran its step 60, the other 57."""
    ms = 1_000_000

    def told(rank: int, step: int) -> StepTimes:
        return StepTimes(rank=rank, world_size=2, step=step, recent_ns=[100 * ms] * 40 + [200 * ms] * (step - 40))

    pace = pace_of(tmp_path, {0: told(0, 60), 1: told(1, 57)})
    assert pace is not None
    assert (pace.step, pace.before_ns, pace.after_ns, pace.ranks) == (40, 100 * ms, 200 * ms, 2)
    assert pace_of(tmp_path, {}) is None
