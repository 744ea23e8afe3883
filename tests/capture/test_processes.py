"""Which processes can be asked, and what is said of the others: real processes that sleep."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steptime.capture.outcome import Refused
from steptime.capture.processes import Target, find_targets

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="Kineto's daemon protocol is Linux only")

Start = Callable[..., int]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def start() -> Iterator[Start]:
    running = []

    def one(command: list[str] = SLEEPS, **environment: str) -> int:
        base = {key: value for key, value in os.environ.items() if not key.startswith(("KINETO", "SLURM", "RANK"))}
        process = subprocess.Popen(command, env=base | environment, stdout=subprocess.PIPE)
        running.append(process)
        # The environment is the new program's once it runs.
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        return process.pid

    yield one
    for process in running:
        process.kill()
        process.communicate()


def only_refusal(pid: int) -> Refused:
    targets, (refused,) = find_targets([pid], None)
    assert targets == []
    assert refused.pid == pid
    return refused


def test_what_its_environment_tells(start: Start, tmp_path: Path) -> None:
    pid = start(
        KINETO_USE_DAEMON="0",
        KINETO_IPC_SOCKET_DIR="/run/k",
        KINETO_ONDEMAND_TRACE_DIR=str(tmp_path),
        SLURM_JOB_ID="77",
        RANK="3",
        MASTER_ADDR="a",
        MASTER_PORT="1",
    )
    assert find_targets([pid], None) == (
        [Target(pid, pid, os.getuid(), "/run/k", tmp_path, 77, 3, "a:1", 0)],
        [],
    )


def test_the_least_it_needs(start: Start) -> None:
    pid = start(KINETO_USE_DAEMON="")
    assert find_targets([pid, pid], None) == ([Target(pid, pid, os.getuid(), "", Path("/tmp"), 0, None, "", 0)], [])


def test_without_the_variable_it_is_named_with_the_remedy(start: Start) -> None:
    refused = only_refusal(start())
    assert refused.why == "it was started without KINETO_USE_DAEMON"
    assert refused.remedy.startswith("start it with KINETO_USE_DAEMON=1")


def test_a_folder_too_long_for_a_socket(start: Start) -> None:
    assert "too long" in only_refusal(start(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR="/" + "x" * 54)).why
    targets, _ = find_targets([start(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR="/" + "x" * 53)], None)
    assert len(targets) == 1


def test_a_folder_is_kept_as_it_is_spelled(start: Start) -> None:
    targets, _ = find_targets([start(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR="/run//k/")], None)
    assert targets[0].folder == "/run//k/"
    assert "relative" in only_refusal(start(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR="k")).why


def test_a_dead_one_and_one_that_never_was() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while Path(f"/proc/{ended.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    assert only_refusal(ended.pid).why == "it has ended"
    ended.wait()
    assert "no such process" in only_refusal(ended.pid).why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_users_process_is_refused_but_by_root(start: Start) -> None:
    pid = start(KINETO_USE_DAEMON="1")
    code = (
        "import os, sys; from steptime.capture.processes import find_targets; os.setuid(65534);"
        f"targets, (refused,) = find_targets([{pid}], None); print(len(targets), refused.why, refused.remedy)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "0 it belongs to another user run steptime as user 0 or as root\n"
    assert len(find_targets([pid], None)[0]) == 1


def test_a_launcher_stands_for_what_it_started(start: Start) -> None:
    code = "import subprocess,sys,os; child=subprocess.Popen(sys.argv[1:], env=os.environ|{'KINETO_USE_DAEMON':'1'});"
    launcher = start([sys.executable, "-c", code + "print(child.pid, flush=True); child.wait()", *SLEEPS])
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    while not children.read_text().strip():
        time.sleep(0.01)
    (child,) = [int(text) for text in children.read_text().split()]
    while b"sleep" not in Path(f"/proc/{child}/cmdline").read_bytes():
        time.sleep(0.01)
    targets, refused = find_targets([launcher], None)
    os.kill(child, 9)
    assert [(target.pid, target.root) for target in targets] == [(child, launcher)]
    assert refused == []


def test_a_shell_and_a_forked_worker_are_left_out(sockets: Path) -> None:
    # The socket that torch makes, in a process that the shell starts, and a fork of that as a data loader makes it.
    code = (
        "import os, socket, sys, time; one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); one.bind(sys.argv[1]);"
        "worker = os.fork(); worker and print(os.getpid(), worker, flush=True); time.sleep(60)"
    )
    name = f"{sockets}/dynoconfigclient4711"
    command = ["sh", "-c", '"$0" "$@"; true', sys.executable, "-c", code, name]
    with subprocess.Popen(command, env=os.environ | {"KINETO_USE_DAEMON": "1"}, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        trainer, worker = [int(text) for text in shell.stdout.readline().split()]
        found = [find_targets([shell.pid], None), find_targets([trainer], None), find_targets([], name)]
        os.kill(worker, 9)
        os.kill(trainer, 9)
    for (targets, refused), root in zip(found, (shell.pid, trainer, trainer), strict=True):
        assert [(target.pid, target.root, target.folder) for target in targets] == [(trainer, root, str(sockets))]
        assert targets[0].client
        assert refused == []


def test_a_job_by_its_number_or_its_command_line(start: Start) -> None:
    marked = start([*SLEEPS, "name-of-4711"], KINETO_USE_DAEMON="1", SLURM_JOB_ID="987654321")
    other = start(KINETO_USE_DAEMON="1", SLURM_JOB_ID="987654322")
    for job in (987654321, "987654321", "name-of-4711"):
        assert [target.pid for target in find_targets([], job)[0]] == [marked]
    assert [target.pid for target in find_targets([], "987654322")[0]] == [other]


def test_no_process_of_the_job() -> None:
    targets, (refused,) = find_targets([], "no-such-job-4711")
    assert targets == []
    assert refused.pid is None
    assert "no-such-job-4711" in refused.why
