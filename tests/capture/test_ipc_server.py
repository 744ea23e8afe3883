"""The server, over real sockets: recorded exchanges, whom it answers and with what, hostile senders, its end."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.capture.ipc_server import IpcServer, Order
from tests.capture.recorded import ANCESTORS, ANSWER, BUSY_POLL, CONFIG, CONTEXT, CONTEXT_ANSWER, NOTHING, PID, POLL
from tests.capture.test_wire import FUZZED, spoilt

MINE = os.getuid()


class Process:
    """A socket as a process of a job has it."""

    def __init__(self, folder: Path, name: str = "dynoconfigclient1") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / name))
        self.socket.setblocking(False)
        self.server = str(folder / "dynolog")

    def says(self, datagram: bytes, server: IpcServer) -> bytes | None:
        """Send, let the server work, and read what came back."""
        self.socket.sendto(datagram, self.server)
        server.serve(0)
        try:
            return self.socket.recv(1 << 16)
        except BlockingIOError:
            return None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IpcServer]:
    with IpcServer([str(tmp_path)]) as running:
        assert running.unusable == {}
        yield running


@pytest.fixture
def process(tmp_path: Path, server: IpcServer) -> Iterator[Process]:
    assert server.given == {}
    one = Process(tmp_path)
    yield one
    one.socket.close()


def test_a_recorded_exchange_is_replayed(server: IpcServer, process: Process) -> None:
    assert process.says(CONTEXT, server) == CONTEXT_ANSWER
    assert process.says(POLL, server) == NOTHING
    server.order({PID: Order(CONFIG, MINE)})
    assert process.says(POLL, server) == ANSWER
    assert process.says(BUSY_POLL, server) == NOTHING
    assert process.says(POLL, server) == NOTHING  # Once only.
    assert server.given == {PID: PID}


def test_a_second_order_is_given_again(server: IpcServer, process: Process) -> None:
    for _ in range(2):
        server.order({PID: Order(CONFIG, MINE)})
        assert process.says(POLL, server) == ANSWER


def test_a_busy_process_is_left_alone(server: IpcServer, process: Process) -> None:
    server.order({PID: Order(CONFIG, MINE)})
    assert process.says(BUSY_POLL, server) == NOTHING
    assert (server.given, server.asking) == ({}, {PID})


@pytest.mark.parametrize("wanted", [ANCESTORS[0], ANCESTORS[-1], os.getpid()], ids=["leaf", "root", "kernel"])
def test_an_ancestor_or_the_kernels_number_will_do(server: IpcServer, process: Process, wanted: int) -> None:
    server.order({wanted: Order(CONFIG, MINE)})
    assert process.says(POLL, server) == ANSWER
    assert server.given == {PID: wanted}


def test_another_process_gets_nothing(server: IpcServer, process: Process) -> None:
    server.order({PID + 1: Order(CONFIG, MINE)})
    assert process.says(POLL, server) == NOTHING


def test_another_users_claim_to_be_the_process_gets_nothing(server: IpcServer, process: Process) -> None:
    server.order({PID: Order(CONFIG, MINE + 1)})
    assert process.says(POLL, server) == NOTHING
    assert server.given == {}


def test_two_processes_get_their_own(server: IpcServer, process: Process, tmp_path: Path) -> None:
    other = Process(tmp_path, "dynoconfigclient2")
    server.order({PID: Order(CONFIG, MINE), PID + 1: Order("OTHER=1\n", MINE)})
    poll = POLL.replace(PID.to_bytes(4, "little"), (PID + 1).to_bytes(4, "little"))
    assert other.says(poll, server) is not None
    assert process.says(POLL, server) == ANSWER
    assert server.given == {PID: PID, PID + 1: PID + 1}
    other.socket.close()


def test_hostile_datagrams_leave_it_working(server: IpcServer, process: Process) -> None:
    chance = random.Random(9)
    for number in range(FUZZED):
        process.socket.sendto(spoilt(chance.choice([POLL, CONTEXT]), chance), process.server)
        if number % 5 == 4:
            server.serve(0)
            while True:
                try:
                    process.socket.recv(1 << 16)
                except BlockingIOError:
                    break
    server.order({PID: Order(CONFIG, MINE)})
    assert process.says(POLL, server) == ANSWER


def test_a_sender_that_never_reads_holds_nobody_up(server: IpcServer, process: Process, tmp_path: Path) -> None:
    deaf = Process(tmp_path, "dynoconfigclient-deaf")
    for _ in range(200):
        deaf.socket.sendto(POLL, deaf.server)
        server.serve(0)
    server.order({PID: Order(CONFIG, MINE)})
    assert process.says(POLL, server) == ANSWER
    deaf.socket.close()


def test_a_sender_without_a_name_or_with_files_is_no_danger(server: IpcServer, process: Process) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless:
        nameless.sendto(POLL, process.server)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with Path(os.devnull).open() as file:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, file.fileno().to_bytes(4, sys.byteorder))
            process.socket.sendmsg([POLL], [rights], 0, process.server)
        server.serve(0)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert process.says(POLL, server) is not None


@pytest.mark.parametrize("spelled", ["/", "/.", "/other"])
def test_a_process_that_would_end_itself_over_the_answer_gets_none(
    server: IpcServer, process: Process, tmp_path: Path, spelled: str
) -> None:
    # Torch 2.13 did so (exit 134) when its folder was spelled with a slash more than the daemon's socket.
    (tmp_path / "other").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(f"{tmp_path}{spelled}/dynoconfigclient2")
        other.setblocking(False)
        other.sendto(POLL, process.server)
        server.serve(0)
        with pytest.raises(BlockingIOError):
            other.recv(1 << 16)
    assert server.given == {}
    assert process.says(POLL, server) == NOTHING


def test_its_socket_is_gone_afterwards(tmp_path: Path) -> None:
    with IpcServer([str(tmp_path)]):
        assert (tmp_path / "dynolog").is_socket()
    assert list(tmp_path.iterdir()) == []


def test_a_live_daemon_keeps_its_socket(server: IpcServer, process: Process, tmp_path: Path) -> None:
    with IpcServer([str(tmp_path)]) as second:
        assert second.unusable == {str(tmp_path): None}
    assert process.says(POLL, server) == NOTHING


def test_the_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "dynolog"))
    with IpcServer([str(tmp_path)]) as server:
        assert server.unusable == {}
        process = Process(tmp_path)
        assert process.says(POLL, server) == NOTHING
        process.socket.close()


def test_a_plain_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "dynolog").write_text("mine")
    with IpcServer([str(tmp_path)]) as server:
        assert server.unusable == {str(tmp_path): None}
    assert (tmp_path / "dynolog").read_text() == "mine"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with IpcServer([str(tmp_path / "none")]) as server:
        assert server.unusable == {str(tmp_path / "none"): "No such file or directory"}
