"""``steptime diagnose --pid`` on real training processes, which know nothing of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import steptime
from steptime.cli import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or not sys.platform.startswith("linux"),
    reason="needs torch and /proc",
)
_SLEEP_S = 0.05
_JOB = Path(__file__).with_name("slow_loader_job.py")


@contextmanager
def _training(**variables: str) -> Iterator[int]:
    """A process that trains; yields its number."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KINETO")} | variables
    command = [sys.executable, str(_JOB), str(_SLEEP_S), "60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "trains\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def sockets() -> Iterator[str]:
    """A folder for the daemon's socket, with a name short enough for one, so that no other daemon is in the way."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


def test_a_sleeping_loader_is_the_verdict(sockets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _training(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=sockets) as pid:
        words = ["--pid", str(pid), "--traces", str(tmp_path / "traces"), "-o", str(tmp_path / "report.json")]
        assert main(["diagnose", *words, "--timeout", "45"]) == 0
    out, err = capsys.readouterr()
    text = " ".join(out.split())
    assert "of the mean step" in text
    assert "goes to data loader (host/data_loader)." in text
    assert "1. Look at the data loader of rank 0 on host " in text
    assert f"steptime: the traces are in {tmp_path / 'traces'}" in err
    assert " (0)" not in text  # Marks of the optimizer are counted by the recording, not by the job.
    report = steptime.load(tmp_path / "report.json")
    # An on-demand trace has no ProfilerStep marks.
    assert report.job.step_source.startswith("Optimizer.step spans")
    loader = sum(leaf.ns or 0 for part in report.job.slices for leaf in part.leaves if leaf.id == "data_loader")
    # A sleep is never shorter than asked for; how much longer it is, a busy machine decides.
    assert _SLEEP_S * 1e9 <= loader / report.job.rank_steps < 1.5 * _SLEEP_S * 1e9


def test_two_processes_that_tell_no_rank_are_two_reports(
    sockets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": sockets}
    with _training(**ask) as one, _training(**ask) as other:
        words = ["--pid", str(one), "--pid", str(other), "--traces", str(tmp_path)]
        assert main(["diagnose", *words, "--timeout", "45", "--metrics", str(tmp_path / "m.prom")]) == 2
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line.startswith("Job ")] == [
        f"Job pid{pid}.pt.trace.json" for pid in sorted((one, other))
    ]
    assert out.count("goes to") == out.count("1. Look at the data loader of rank 0") == 2
    assert "nothing written for -o and --metrics: these processes tell no rank" in err
    assert not (tmp_path / "m.prom").exists()


def test_a_rank_that_no_process_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Any process may stand for a rank here: its rank and its wish for a daemon are in its environment."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environment = {"KINETO_USE_DAEMON": "1", "RANK": "3"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert main(["diagnose", "--pid", str(process.pid), "--ranks", "0,2"]) == 2
        finally:
            process.kill()
    assert f"none of the processes has a rank of --ranks: {process.pid} is rank 3" in capsys.readouterr().err
    assert main(["diagnose", "--dynolog", "localhost", "--ranks", "0"]) == 2
    assert "--ranks can't choose behind a dynolog daemon" in capsys.readouterr().err


def test_who_cannot_be_traced_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _training() as pid:
        words = ["--pid", str(pid), "--pid", str(1 << 22), "--traces", str(tmp_path), "--timeout", "5"]
        assert main(["diagnose", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"steptime: process {pid} on localhost: it was started without KINETO_USE_DAEMON; start it with" in err
    assert f"steptime: process {1 << 22} on localhost: there is no such process" in err
    assert err.endswith("steptime: nothing was captured; see the reasons above\n")


def test_no_folder_is_left_where_nothing_was_captured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["diagnose", "--pid", str(1 << 22), "-q"]) == 2
    assert "there is no such process" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
