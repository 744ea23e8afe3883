"""Cut a trace's JSON text into pieces that hold whole events, so that memory stays bounded whatever the file's size.

A cut is made only where one event ends and the next begins. A cut at a wrong place can't go unnoticed: the piece before
it would have unbalanced brackets or an open string and would not decode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from steptime.errors import NotATrace

#: Text read at a time. Decoded events take about as much memory again until they become columns.
CHUNK_BYTES = 16 << 20

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:')
_END = re.compile(rb"\}\s*,?\s*\](?=\s*[,}])")
_EMPTY = re.compile(rb"\s*\]")


class Readable(Protocol):
    """What `TraceText` reads from."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, all that is left if negative, empty at the end."""
        ...


class TraceText:
    """The text of one trace file: iterate to get arrays of events, then read `header`.

    Iterating yields bytes that are a JSON array of whole events each. `header` is complete only after the last piece,
    since some writers put `distributedInfo` behind the events.
    """

    def __init__(self, stream: Readable, path: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.bytes_read = 0
        self._stream = stream
        self._chunk_bytes = chunk_bytes

    def __iter__(self) -> Iterator[bytes]:
        head, text = self._head()
        while True:
            more = self._read()
            if not more:
                break
            cut = _last_boundary(text)
            if cut:
                yield b"[" + text[:cut] + b"]"
                text = text[cut + 1 :]
            text += more
        events, tail = _split_end(text, bare=head is None)
        if events:
            yield b"[" + events.rstrip(b", \n\r\t") + b"]"
        if head is not None:
            self.header = msgspec.json.decode(head + b'"traceEvents":[]' + tail)

    def _read(self) -> bytes:
        more = self._stream.read(self._chunk_bytes)
        self.bytes_read += len(more)
        return more

    def _head(self) -> tuple[bytes | None, bytes]:
        text = self._read()
        if text[:3] == b"\xef\xbb\xbf":
            text = text[3:]
        if text[:64].lstrip()[:1] == b"[":
            return None, text.lstrip()[1:]
        while True:
            found = _KEY.search(text)
            if found:
                return text[: found.start()], text[found.end() :]
            more = self._read()
            if not more:
                raise NotATrace(f"{self.path}: no traceEvents in it, so it is not a profiler trace; leave it out")
            text += more


def _last_boundary(text: bytes) -> int:
    """Offset of the comma after the last event that surely ends in `text`; 0 if there is none."""
    window = 1 << 16
    while True:
        start = max(len(text) - window, 0)
        cut = 0
        for found in _BETWEEN.finditer(text, start):
            cut = found.start(1)
        if cut or start == 0:
            return cut
        window *= 8


def _split_end(text: bytes, bare: bool) -> tuple[bytes, bytes]:
    """Split the last piece at the bracket that closes the array of events: (events, rest of the file).

    Raises:
        msgspec.DecodeError: the array is never closed.
    """
    if bare:
        closed = text.rstrip()
        if not closed.endswith(b"]"):
            raise msgspec.DecodeError("Input data was truncated")
        return closed[:-1], b""
    empty = _EMPTY.match(text)
    if empty:
        return b"", text[empty.end() :]
    # The first bracket after which the rest is the rest of an object: later ones may close other lists of objects
    # (deviceProperties), earlier ones lie inside an event.
    for found in _END.finditer(text):
        tail = text[found.end() :]
        try:
            msgspec.json.decode(b'{"traceEvents":[]' + tail)
        except msgspec.DecodeError:
            continue
        return text[: found.end() - 1], tail
    raise msgspec.DecodeError("Input data was truncated")
