"""Asking dynolog daemons over real sockets: what is said to them, what is made of their answers and of none.

The daemons are fakes that frame by hand; the traces that they let appear are written here, a few events each.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.capture.attach import AttachRequest, attach
from steptime.capture.dynolog import Failure, Reply, TriggerCall, host_and_port, trigger
from steptime.errors import CaptureError
from tests.capture.fake_dynolog import FakeDynolog

CALL = TriggerCall("A=1\n", 7, [1, 2])


def trace(marks: int, at_ms: int = 0, step_ms: int = 10) -> str:
    """So many optimizer steps, each with an op before it."""
    events = []
    for number in range(marks):
        start = (at_ms + number * step_ms) * 1000.0
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": start - 50, "dur": 10})
        events.append({"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": start, "dur": 5})
    if not marks:
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": at_ms * 1000.0, "dur": 10})
    common = {"pid": 1, "tid": 1}
    return json.dumps({"schemaVersion": 1, "traceEvents": [event | common for event in events]})


def config_of(call: dict[str, str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in call["config"].splitlines())


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_the_request_and_the_answer() -> None:
    with FakeDynolog(pids=[2, 3]) as dynolog:
        assert trigger(("127.0.0.1", dynolog.port), CALL, 5) == Reply([2], [2], 0)
    # The request in dynolog's own source, key by key.
    assert dynolog.calls == [
        {"fn": "setKinetOnDemandRequest", "config": "A=1\n", "job_id": 7, "pids": [1, 2], "process_limit": 1000}
    ]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack("=i", 2) + b"{}",
        struct.pack("=i", 1 << 30),
        struct.pack("=i", 50) + b"cut",
    ],
)
def test_another_answer_is_a_failure(answer: bytes) -> None:
    with FakeDynolog() as dynolog:
        dynolog.answer = answer
        got = trigger(("127.0.0.1", dynolog.port), CALL, 5)
    assert isinstance(got, Failure)
    assert "not dynolog" in got.why


def test_a_daemon_that_says_nothing_does_not_hold_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        got = trigger(("127.0.0.1", silent.getsockname()[1]), CALL, 0.3)
    assert got == Failure("no answer within 0.3 s")
    assert time.monotonic() - begin < 5


def test_nobody_there() -> None:
    assert trigger(("127.0.0.1", closed_port()), CALL, 5) == Failure("Connection refused")
    assert isinstance(trigger(("no-such-host.invalid", 1), CALL, 5), Failure)
    assert isinstance(trigger(("x" * 300, 1), CALL, 5), Failure)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ("gpu1", 1778)),
        ("gpu1:99", ("gpu1", 99)),
        ("[::1]:99", ("::1", 99)),
        ("::1", ("::1", 1778)),
        ("10.0.0.1", ("10.0.0.1", 1778)),
    ],
)
def test_hosts(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text, 1778) == expected


@pytest.mark.parametrize("text", ["", ":99", "gpu1:", "gpu1:x", "gpu1:0", "gpu1:65536", "gpu1:²"])
def test_no_hosts(text: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no host"):
        attach(AttachRequest(out=tmp_path, dynolog=(text,)))


def test_all_processes_of_a_job_on_a_host(tmp_path: Path) -> None:
    with FakeDynolog(pids=[5, 6], writes=[trace(4)]) as dynolog:
        host = f"127.0.0.1:{dynolog.port}"
        got = attach(AttachRequest(out=tmp_path / "out", dynolog=(host,), job=7, trace_dir=tmp_path, with_stacks=True))
    (call,) = dynolog.calls
    assert (call["job_id"], call["pids"]) == (7, [])
    config = config_of(call)
    assert Path(config.pop("ACTIVITIES_LOG_FILE")).parent == tmp_path
    assert config == {
        "PROFILE_START_ITERATION": "0",
        "PROFILE_START_ITERATION_ROUNDUP": "1",
        "ACTIVITIES_ITERATIONS": "4",
        "PROFILE_REPORT_INPUT_SHAPES": "true",
        "PROFILE_WITH_STACK": "true",
    }
    assert [(found.pid, found.host, found.mode) for found in got.captured] == [
        (5, "127.0.0.1", "iterations"),
        (6, "127.0.0.1", "iterations"),
    ]
    assert (got.refused, got.notes) == ([], [])
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]  # Nothing is left where they were written.


def test_many_hosts_of_which_some_do_not_answer(tmp_path: Path) -> None:
    with FakeDynolog(pids=[5], writes=[trace(9)]) as one, FakeDynolog() as knows_none, FakeDynolog() as other:
        other.answer = b"SSH-2.0-OpenSSH_9.6\r\n"
        ports = (one.port, closed_port(), knows_none.port, other.port)
        hosts = tuple(f"127.0.0.1:{port}" for port in ports)
        got = attach(AttachRequest(out=tmp_path / "out", dynolog=hosts, trace_dir=tmp_path, seconds=1.5))
    assert [(found.pid, found.mode) for found in got.captured] == [(5, "duration")]
    refused, unknown, strange = got.refused
    assert "Connection refused" in refused.why
    assert str(ports[1]) in refused.remedy
    assert "knows no such process" in unknown.why
    assert "not dynolog" in strange.why
    assert "several hosts can't agree on steps" in got.notes[0]
    config = config_of(one.calls[0])
    assert config["ACTIVITIES_DURATION_MSECS"] == "1500"
    # One instant for all: after the slowest has heard of it, and has warmed up.
    assert time.time() < int(config["PROFILE_START_TIME"]) / 1000 < time.time() + 30


def test_a_trace_that_stays_on_its_host_is_said_to(tmp_path: Path) -> None:
    with FakeDynolog(pids=[5]) as dynolog:
        host = f"127.0.0.1:{dynolog.port}"
        got = attach(
            AttachRequest(out=tmp_path / "o", dynolog=(host,), trace_dir=tmp_path, timeout_s=1, mode="duration")
        )
    path = Path(config_of(dynolog.calls[0])["ACTIVITIES_LOG_FILE"])
    (refused,) = got.refused
    there = path.with_name(f"{path.stem}_5.json")
    assert str(there) in refused.why
    assert refused.remedy == f"scp 127.0.0.1:{there} {tmp_path / 'o'}/"


def test_half_a_second_instead_of_steps_is_asked_for_again_then_for_a_time(tmp_path: Path) -> None:
    with FakeDynolog(pids=[5], writes=[trace(0), trace(0), trace(2)]) as dynolog:
        host = f"127.0.0.1:{dynolog.port}"
        got = attach(AttachRequest(out=tmp_path / "out", dynolog=(host,), trace_dir=tmp_path, seconds=0.5))
    assert ["ACTIVITIES_ITERATIONS" in call["config"] for call in dynolog.calls] == [True, True, False]
    assert dynolog.calls[1]["pids"] == [5]
    assert [found.mode for found in got.captured] == ["duration"]
    assert got.files[0].read_text() == trace(2)
    assert len(got.notes) == 3
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.fixture
def ranks(sockets: Path) -> Iterator[tuple[Path, list[int]]]:
    """Two ranks of one job by their environment, which in truth sleep; the folder of their daemon's socket."""
    base = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(sockets), "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    running = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | base | {"RANK": rank})
        for rank in ("10", "11")
    ]
    while not all(b"sleep" in Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in running):
        time.sleep(0.01)
    yield sockets, [one.pid for one in running]
    for one in running:
        one.kill()
        one.wait()


def test_ranks_that_record_different_steps_are_asked_for_a_common_multiple(
    ranks: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, pids = ranks
    apart = AfterEachOther(folder, pids, [[trace(4), trace(4, at_ms=500)], [trace(4), trace(4, at_ms=20)]])
    with apart as dynolog:
        request = AttachRequest(out=tmp_path, pids=tuple(pids), dynolog_port=dynolog.port, timeout_s=90)
        got = attach(request)
    roundups = [int(config_of(call)["PROFILE_START_ITERATION_ROUNDUP"]) for call in dynolog.calls]
    # Steps of 10 ms; four times the 5.5 s in which all hear of it.
    assert roundups == [1, 2200]
    assert [found.file.name for found in got.captured] == [
        f"rank{rank}_pid{pid}.pt.trace.json" for pid, rank in sorted(zip(pids, (10, 11), strict=True))
    ]
    assert "recorded different steps" in got.notes[1]


def test_a_launcher_among_them_is_no_failure(sockets: Path, tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    environment = os.environ | {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(sockets)}
    launcher = subprocess.Popen([sys.executable, "-c", code], env=environment)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    while not children.read_text().strip():
        time.sleep(0.01)
    child = int(children.read_text())
    while b"subprocess" in Path(f"/proc/{child}/cmdline").read_bytes():
        time.sleep(0.01)
    did_nothing = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]})
    with AfterEachOther(sockets, [launcher.pid, child], [[did_nothing, trace(4)]]) as dynolog:
        got = attach(AttachRequest(out=tmp_path, pids=(launcher.pid,), dynolog_port=dynolog.port))
    os.kill(child, 9)
    launcher.wait()
    assert [(found.pid, found.mode) for found in got.captured] == [(child, "iterations")]
    assert got.refused == []
    assert f"process {launcher.pid} only started others" in got.notes[-1]


class AfterEachOther(FakeDynolog):
    """Each process gets a trace of its own in each round."""

    def __init__(self, folder: Path, pids: list[int], rounds: list[list[str]]) -> None:
        super().__init__(folder, pids)
        self._rounds = rounds

    def _triggered(self, call: dict[str, object]) -> dict[str, object]:
        answer = super()._triggered(call)
        path = Path(config_of(call)["ACTIVITIES_LOG_FILE"])  # type: ignore[arg-type]
        for pid, text in zip(self._pids, self._rounds.pop(0), strict=True):
            path.with_name(f"{path.stem}_{pid}.json").write_text(text)
        return answer


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"pids": (0,)},
        {"pids": (1 << 31,)},
        {"pids": (1,), "steps": 0},
        {"pids": (1,), "steps": 10_000},
        {"pids": (1,), "seconds": float("nan")},
        {"pids": (1,), "seconds": 0.0},
        {"pids": (1,), "timeout_s": 0.0},
        {"pids": (1,), "max_bytes": 0},
        {"dynolog": ("h",), "trace_dir": Path("relative")},
        {"dynolog": ("h",), "trace_dir": Path("/tmp/../etc")},
        {"dynolog": ("h",), "trace_dir": Path("/tmp/a\nPROFILE_WITH_STACK=true")},
        {"dynolog": ("h",), "job": "a-name"},
    ],
)
def test_requests_without_sense(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(CaptureError):
        attach(AttachRequest(out=tmp_path, **wrong))  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="can't be made"):
        attach(AttachRequest(out=tmp_path / "file" / "out", pids=(1,)))
