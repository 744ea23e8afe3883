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
    report = steptime.load(tmp_path / "report.json")
    # An on-demand trace has no ProfilerStep marks.
    assert report.job.step_source.startswith("Optimizer.step spans")
    loader = sum(leaf.ns or 0 for part in report.job.slices for leaf in part.leaves if leaf.id == "data_loader")
    # A sleep is never shorter than asked for; how much longer it is, a busy machine decides.
    assert _SLEEP_S * 1e9 <= loader / report.job.rank_steps < 1.5 * _SLEEP_S * 1e9


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
