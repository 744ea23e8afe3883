"""Bytes of the two protocols through which a trace is asked for, to and from what they mean.

IPC (a process of the job to its daemon): datagrams of ``<Q32s`` (body size, type) and the body. RPC (a client to a
dynolog daemon): frames of a native int32 length and JSON. Layouts: kineto's ``ipcfabric`` and dynolog's
``SimpleJsonServer``, checked against torch 2.13 (tests/capture/recorded.py).

Whatever the bytes, nothing but `WireError` is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

#: A datagram is a few dozen bytes from a process, and a config text of a few hundred to it.
MAX_DATAGRAM_BYTES = 64 << 10
#: A reply lists processes, of which dynolog handles at most 1000 a request.
MAX_FRAME_BYTES = 1 << 20
_MAX_ANCESTORS = 1024

_HEADER = struct.Struct("<Q32s")
_CONTEXT = struct.Struct("<iiq")
_REQUEST = struct.Struct("<iiq")
_COUNT = struct.Struct("<i")
_LENGTH = struct.Struct("=i")

#: Bit of `Request.kinds`: the process would take a trace request now. It is not set while it records one.
ACTIVITIES = 2

T = TypeVar("T")


class WireError(ValueError):
    """The bytes are not a message of the protocol."""


@dataclass(frozen=True)
class Context:
    """A process with a GPU makes itself known."""

    gpu: int
    pid: int
    job: int


@dataclass(frozen=True)
class Request:
    """A process asks for a config. pids: its own, then those of its ancestors."""

    kinds: int
    job: int
    pids: tuple[int, ...]


def split(datagram: bytes) -> tuple[str, bytes]:
    """Type and body of a datagram.

    Raises:
        WireError: it is too long or too short, its size is not its own, or its type is no plain text.
    """
    if len(datagram) > MAX_DATAGRAM_BYTES:
        raise WireError(f"more than {MAX_DATAGRAM_BYTES} bytes")
    if len(datagram) < _HEADER.size:
        raise WireError(f"{len(datagram)} bytes are no header")
    size, name = _HEADER.unpack_from(datagram)
    if size != len(datagram) - _HEADER.size:
        raise WireError(f"says {size} bytes, has {len(datagram) - _HEADER.size}")
    text = name.partition(b"\0")[0]
    if not text.isalnum():
        raise WireError(f"type {text!r}")
    return text.decode("ascii"), datagram[_HEADER.size :]


def decode(datagram: bytes) -> Context | Request:
    """What a process says.

    Raises:
        WireError: it is not one of the two messages that a process sends.
    """
    name, body = split(datagram)
    if name == "ctxt":
        if len(body) != _CONTEXT.size:
            raise WireError(f"a context of {len(body)} bytes")
        return Context(*_CONTEXT.unpack(body))
    if name == "req":
        return _request(body)
    raise WireError(f"type {name!r}")


def _request(body: bytes) -> Request:
    if len(body) < _REQUEST.size:
        raise WireError(f"a request of {len(body)} bytes")
    kinds, count, job = _REQUEST.unpack_from(body)
    if not 1 <= count <= _MAX_ANCESTORS or len(body) != _REQUEST.size + 4 * count:
        raise WireError(f"a request of {len(body)} bytes with {count} processes")
    pids = struct.unpack_from(f"<{count}i", body, _REQUEST.size)
    if pids[0] <= 0:
        raise WireError(f"process number {pids[0]}")
    return Request(kinds, job, pids)


def encode(name: str, body: bytes) -> bytes:
    """A datagram."""
    return _HEADER.pack(len(body), name.encode("ascii")) + body


def context_reply(processes: int) -> bytes:
    """The answer to a `Context`: how many processes the daemon knows on that GPU."""
    return encode("ctxt", _COUNT.pack(processes))


def config_reply(config: str) -> bytes:
    """The answer to a `Request`: a config text, empty if there is none for this process."""
    return encode("req", config.encode("utf-8"))


def frame(message: object) -> bytes:
    """An RPC frame."""
    body = msgspec.json.encode(message)
    return _LENGTH.pack(len(body)) + body


def read_frame(receive: Callable[[int], bytes], kind: type[T]) -> T:
    """The next RPC frame of a connection as `kind`.

    Args:
        receive: gives at most so many bytes, none at the end of the connection, as `socket.recv`.
        kind: what msgspec makes of the JSON.

    Raises:
        WireError: the frame is cut, longer than `MAX_FRAME_BYTES`, or its JSON is not of that kind.
        OSError: as `receive`.
    """
    (length,) = _LENGTH.unpack(_exactly(receive, _LENGTH.size))
    if not 0 <= length <= MAX_FRAME_BYTES:
        raise WireError(f"a frame of {length} bytes")
    body = _exactly(receive, length)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"no answer of the protocol: {error}") from error


def _exactly(receive: Callable[[int], bytes], count: int) -> bytes:
    parts, missing = [], count
    while missing:
        part = receive(min(missing, 1 << 16))
        if not part:
            raise WireError(f"the connection ended {missing} bytes early")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
