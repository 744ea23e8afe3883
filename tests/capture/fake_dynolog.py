"""A dynolog daemon as far as a client sees it: real sockets, framed by hand, sharing no code with steptime.

With a folder it has the IPC socket there and hands the configs of its callers to the real processes that ask. With
`writes` it stands for hosts with processes of their own: it puts the next of those traces where the config says.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any


class FakeDynolog:
    def __init__(self, folder: Path | None = None, pids: Sequence[int] = (), writes: Sequence[str] = ()) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answer: bytes | None = None
        self._pids, self._writes = list(pids), list(writes)
        self._configs: dict[int, str] = {}
        self._over = threading.Event()
        self._path = folder / "dynolog" if folder else None
        self._ipc = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if folder else None
        if self._ipc:
            self._ipc.bind(str(self._path))
            self._ipc.settimeout(0.05)
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._tcp.settimeout(0.05)
        self.port: int = self._tcp.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve_tcp), threading.Thread(target=self._serve_ipc)]

    def __enter__(self) -> FakeDynolog:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._tcp.close()
        if self._ipc and self._path:
            self._ipc.close()
            self._path.unlink()

    def _serve_tcp(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._tcp.accept()
            except TimeoutError:
                continue
            with connection, connection.makefile("rb") as read:
                (length,) = struct.unpack("=i", read.read(4))
                self.calls.append(json.loads(read.read(length)))
                if self.answer is not None:
                    connection.sendall(self.answer)
                    continue
                body = json.dumps(self._triggered(self.calls[-1])).encode()
                connection.sendall(struct.pack("=i", len(body)) + body)

    def _triggered(self, call: dict[str, Any]) -> dict[str, Any]:
        pids = [pid for pid in self._pids if not call["pids"] or pid in call["pids"]]
        self._configs.update(dict.fromkeys(pids, call["config"]))
        if self._writes:
            config = dict(line.split("=", 1) for line in call["config"].splitlines())
            path = Path(config["ACTIVITIES_LOG_FILE"])
            text = self._writes.pop(0) if len(self._writes) > 1 else self._writes[0]
            for pid in pids:
                path.with_name(f"{path.stem}_{pid}.json").write_text(text)
        return {
            "processesMatched": pids,
            "activityProfilersTriggered": pids,
            "activityProfilersBusy": 0,
            "eventProfilersTriggered": [],
            "eventProfilersBusy": 0,
        }

    def _serve_ipc(self) -> None:
        while self._ipc and not self._over.is_set():
            try:
                data, peer = self._ipc.recvfrom(65536)
            except TimeoutError:
                continue
            if data[8:12] == b"req\0":
                kinds, pid = struct.unpack_from("<i12xi", data, 40)
                config = self._configs.pop(pid, "").encode() if kinds & 2 else b""
                self._ipc.sendto(struct.pack("<Q32s", len(config), b"req") + config, peer)
