"""The daemon's end of Kineto's IPC: processes ask for a config every few seconds, and the wanted ones get it, once.

A process ends itself (`std::terminate` in kineto's ipcfabric/Endpoint.h) if a message comes from a socket of another
kind or folder than its own, by the letters of its name. So an answer only ever leaves by the socket that was asked, and
goes only to a sender whose name shows that it will take it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from steptime.capture.wire import (
    ACTIVITIES,
    MAX_DATAGRAM_BYTES,
    Context,
    Request,
    WireError,
    config_reply,
    context_reply,
    decode,
)

#: The trailing NUL belongs to the name.
ABSTRACT = b"\0dynolog\0"
_NAME = "dynolog"
_CREDENTIALS = struct.Struct("3i")
#: So many datagrams of one socket are answered before the caller has its turn, so that a flood can't hold it up.
_IN_A_ROW = 256


class _Occupied(Exception):  # noqa: N818
    """Another daemon answers at this address."""


@dataclass(frozen=True)
class Sender:
    """Who sent a datagram, as the kernel vouches for it."""

    pid: int
    uid: int


@dataclass(frozen=True)
class Order:
    """What one process is to be told, if it belongs to this user."""

    config: str
    uid: int


class IpcServer:
    """Listens until it is closed; `serve` must be called again and again, since there is no thread.

    Attributes:
        given: the process that asked, and the wanted one (itself or an ancestor) whose config it got.
        asking: processes that asked since the last order, wanted or not.
        unusable: folders where a socket can't be made, and why; None where a daemon has it.

    Args:
        folders: `KINETO_IPC_SOCKET_DIR` of the processes, "" for those without it (the abstract name).

    """

    def __init__(self, folders: Iterable[str]) -> None:
        self.given: dict[int, int] = {}
        self.asking: set[int] = set()
        self._orders: dict[int, Order] = {}
        self._paths: list[tuple[Path, int]] = []
        self._selector = selectors.DefaultSelector()
        self.unusable: dict[str, str | None] = {}
        for folder in dict.fromkeys(folders):
            try:
                self._listen(folder)
            except _Occupied:
                self.unusable[folder] = None
            except OSError as error:
                self.unusable[folder] = error.strerror or str(error)

    def __enter__(self) -> IpcServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets and take their files away: a process that finds none does not wait for an answer."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        for path, inode in self._paths:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()
        self._paths.clear()

    def order(self, orders: Mapping[int, Order]) -> None:
        """From now on these processes, or their descendants, get these configs. Forgets what was given before."""
        self._orders = dict(orders)
        self.given.clear()
        self.asking.clear()

    def serve(self, seconds: float) -> None:
        """Answer for so long."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            for key, _ in self._selector.select(max(left, 0)):
                if isinstance(key.fileobj, socket.socket):
                    self._drain(key.fileobj, key.data)
            if left <= 0:
                return

    def _listen(self, folder: str) -> None:
        # Letter for letter: a process whose folder ends in a slash ends itself over an answer from a tidier name.
        address: str | bytes = f"{folder}/{_NAME}" if folder else ABSTRACT
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            # Before bind, so that no datagram comes without credentials.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not isinstance(address, str) or not _left_behind(Path(address)):
                    raise _Occupied from error
                Path(address).unlink()
                listener.bind(address)
            if isinstance(address, str):
                self._paths.append((Path(address), Path(address).lstat().st_ino))
                # As kineto's own: anybody may ask, and who asked is known by the credentials.
                Path(address).chmod(0o666)
            self._selector.register(listener, selectors.EVENT_READ, folder)
        except BaseException:
            listener.close()
            raise

    def _drain(self, listener: socket.socket, folder: str) -> None:
        for _ in range(_IN_A_ROW):
            try:
                data, extra, flags, peer = listener.recvmsg(
                    MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT
                )
            except OSError:
                return
            sender = _sender(extra)
            if sender is None or not _may_be_answered(peer, folder) or flags & socket.MSG_TRUNC:
                continue
            try:
                message = decode(data)
            except WireError:
                continue
            self._answer(listener, peer, message, sender)

    def _answer(self, listener: socket.socket, peer: str | bytes, message: Context | Request, sender: Sender) -> None:
        leaf = message.pid if isinstance(message, Context) else message.pids[0]
        wanted = self._wanted(message, sender) if isinstance(message, Request) else None
        if isinstance(message, Context):
            reply = context_reply(1)
        else:
            reply = config_reply(self._orders[wanted].config if wanted is not None else "")
        try:
            listener.sendto(reply, socket.MSG_DONTWAIT, peer)
        except OSError:
            return  # It is gone or does not read; if it lives, it asks again.
        if isinstance(message, Request):
            self.asking.add(leaf)
        if wanted is not None:
            self.given[leaf] = wanted

    def _wanted(self, request: Request, sender: Sender) -> int | None:
        """The wanted process that this one is, or descends from; None if it gets nothing now."""
        leaf = request.pids[0]
        if not request.kinds & ACTIVITIES or leaf in self.given:
            return None
        # The kernel's number first: inside a container a process knows itself by another.
        for pid in (sender.pid, *request.pids):
            order = self._orders.get(pid)
            if order is not None and order.uid == sender.uid:
                return pid
        return None


def _may_be_answered(peer: str | bytes | None, folder: str) -> bool:
    """Whether the sender has a name, of the kind and in the folder, as spelled, of the socket that it wrote to.

    One that reached it by another spelling of the folder would end itself over the answer.
    """
    if not peer:
        return False
    name = os.fsdecode(peer)
    return name.rpartition("/")[0] == folder if folder else name.startswith("\0")


def _sender(extra: list[tuple[int, int, bytes]]) -> Sender | None:
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return Sender(pid, uid)
    return None


def _left_behind(path: Path) -> bool:
    """Whether the socket file belongs to a daemon that is gone. Others' are left alone, but by root."""
    status = path.lstat()
    if not stat.S_ISSOCK(status.st_mode) or os.geteuid() not in (0, status.st_uid):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
