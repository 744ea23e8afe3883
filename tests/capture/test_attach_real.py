"""Real training processes, started with KINETO_USE_DAEMON=1 and nothing else, traced from outside.

The truth is the job's own: each sleep of its dataset, measured around the call (`train.py`).
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest

import steptime
from steptime.capture.attach import Attached, AttachRequest, attach
from steptime.capture.wire import Request, decode
from tests.capture.fake_dynolog import FakeDynolog
from tests.capture.recorded import POLL

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="Kineto's daemon protocol is Linux only"),
]

TRAIN = Path(__file__).with_name("train.py")
SLEEP_S, STARTS_IN_S = 0.05, 60


@dataclass(frozen=True)
class Job:
    """A running process. folder: of its daemon's socket; truth: its own notes."""

    process: subprocess.Popen[bytes]
    folder: Path
    truth: Path
    go: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def sleeps(self) -> list[tuple[int, int]]:
        """Start and length of each sleep so far, ns."""
        lines = self.truth.read_text().splitlines()
        return [(int(start), int(ns)) for start, _, ns in (line.partition(" ") for line in lines) if ns]


def start(folder: Path, name: str, daemon: bool = True, waits: bool = False, ends: str = "") -> Job:
    # Asking each second instead of each fifth makes the tests short.
    (folder / "fast").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KINETO_")}
    environment |= {"KINETO_IPC_SOCKET_DIR": f"{folder}{ends}", "KINETO_CONFIG": str(folder / "fast")}
    if daemon:
        environment["KINETO_USE_DAEMON"] = "1"
    truth, go = folder / f"{name}.truth", folder / f"{name}.go"
    command = [sys.executable, str(TRAIN), str(truth), str(SLEEP_S), *([str(go)] if waits else [])]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Job(process, folder, truth, go)


def wait_for(job: Job, lines: int = 1) -> Job:
    """Until it runs: so many lines of its notes."""
    end = time.monotonic() + STARTS_IN_S
    while not job.truth.exists() or len(job.truth.read_text().splitlines()) < lines:
        assert job.process.poll() is None
        assert time.monotonic() < end, "the training process does not start"
        time.sleep(0.05)
    return job


def stop(job: Job) -> None:
    job.process.kill()
    job.process.wait()


@pytest.fixture(scope="module")
def jobs(sockets: Path) -> Iterator[list[Job]]:
    """Two that can be asked, and one that can't, all training."""
    running = [start(sockets, "a"), start(sockets, "b"), start(sockets, "none", daemon=False)]
    try:
        yield [wait_for(job, 3) for job in running]
    finally:
        for job in running:
            stop(job)


def ask(job: Job, out: Path, **options: object) -> Attached:
    return attach(AttachRequest(out=out, pids=(job.pid,), timeout_s=60, **options))  # type: ignore[arg-type]


def check_loader(job: Job, file: Path, least_steps: int) -> None:
    """The sleep is the loader's time in each step, within 10 % of its own measure."""
    report = steptime.analyze([file])
    steps = [step for step in report.ranks[0].steps if not step.edge]
    assert len(steps) >= least_steps
    begin, end = steps[0].start_ns, steps[-1].start_ns + steps[-1].dur_ns
    slept = [ns for at, ns in job.sleeps() if begin <= at < end]
    assert abs(len(slept) - len(steps)) <= 1  # A sleep at the edge may start on the other side of it.
    assert mean(slept) >= SLEEP_S * 1e9
    loader = mean(step.leaves_ns.get("host/data_loader", 0) for step in steps)
    assert loader == pytest.approx(mean(slept), rel=0.10)


def test_what_a_process_says_is_what_was_recorded(jobs: list[Job]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as plain:
        plain.bind(str(jobs[0].folder / "dynolog"))
        plain.settimeout(STARTS_IN_S)
        said = [plain.recv(1 << 16) for _ in range(2)]
    (jobs[0].folder / "dynolog").unlink()
    for datagram in said:
        request = decode(datagram)
        assert isinstance(request, Request)
        assert (request.kinds, request.job, request.pids[1]) == (3, 0, os.getpid())
        assert request.pids[0] in (jobs[0].pid, jobs[1].pid)
        # All but the size and the list of processes is as in the recording.
        assert (datagram[8:44], datagram[48:56]) == (POLL[8:44], POLL[48:56])


def test_iterations_by_one_call_and_again(jobs: list[Job], tmp_path: Path) -> None:
    first = ask(jobs[0], tmp_path, steps=5)
    assert (first.refused, first.notes) == ([], [])
    (trace,) = first.captured
    assert (trace.pid, trace.mode, trace.file.parent) == (jobs[0].pid, "iterations", tmp_path)
    check_loader(jobs[0], trace.file, 5)
    assert len([step for step in steptime.analyze([trace.file]).ranks[0].steps if not step.edge]) == 5
    second = ask(jobs[0], tmp_path, steps=2)
    assert [found.mode for found in second.captured] == ["iterations"]
    assert sorted(tmp_path.iterdir()) == sorted([*first.files, *second.files])


def test_two_processes_at_once_for_a_time_and_one_that_cannot(jobs: list[Job], tmp_path: Path) -> None:
    pids = tuple(job.pid for job in jobs)
    got = attach(AttachRequest(out=tmp_path, pids=pids, mode="duration", seconds=1.0, timeout_s=60))
    assert {trace.pid for trace in got.captured} == set(pids[:2])
    assert {trace.mode for trace in got.captured} == {"duration"}
    spans = []
    for trace in got.captured:
        job = next(job for job in jobs if job.pid == trace.pid)
        check_loader(job, trace.file, 10)  # Of 20 that fit: the machine may be slow.
        steps = steptime.analyze([trace.file]).ranks[0].steps
        spans.append((steps[0].start_ns, steps[-1].start_ns + steps[-1].dur_ns))
        assert spans[-1][1] - spans[-1][0] <= 1.2e9
    assert max(begin for begin, _ in spans) < min(end for _, end in spans)
    (refused,) = got.refused
    assert refused.pid == pids[2]
    assert refused.why == "it was started without KINETO_USE_DAEMON"
    assert "KINETO_USE_DAEMON=1" in refused.remedy


def test_by_a_part_of_the_command_line(jobs: list[Job], tmp_path: Path) -> None:
    got = attach(AttachRequest(out=tmp_path, job=str(jobs[1].truth), steps=2, timeout_s=60))
    assert [trace.pid for trace in got.captured] == [jobs[1].pid]
    assert got.refused == []


def test_where_dynolog_has_the_socket_it_is_asked(jobs: list[Job], tmp_path: Path) -> None:
    with FakeDynolog(jobs[0].folder, [jobs[0].pid]) as dynolog:
        got = ask(jobs[0], tmp_path, steps=2, dynolog_port=dynolog.port)
        (call,) = dynolog.calls
    assert [(trace.pid, trace.mode) for trace in got.captured] == [(jobs[0].pid, "iterations")]
    assert "dynolog was asked" in got.notes[0]
    assert (call["fn"], call["job_id"], call["pids"]) == ("setKinetOnDemandRequest", 0, [jobs[0].pid])
    check_loader(jobs[0], got.files[0], 2)


def test_steps_asked_for_before_the_first_one_are_asked_for_again(sockets: Path, tmp_path: Path) -> None:
    # With the slash, torch ends its process if the daemon's socket is not named with two.
    job = start(sockets, "late", waits=True, ends="/")
    try:
        wait_for(job)
        # It records half a second after five of warm-up; by then it trains. 20 steps do not fit in that.
        training = subprocess.Popen(["sh", "-c", 'sleep 3; : > "$0"', str(job.go)])
        got = ask(job, tmp_path, steps=20)
        training.wait()
        assert job.process.poll() is None
    finally:
        stop(job)
    assert [trace.mode for trace in got.captured] == ["iterations"]
    assert "recorded half a second, not steps" in got.notes[0]
    assert len([step for step in steptime.analyze(got.files).ranks[0].steps if not step.edge]) == 20
