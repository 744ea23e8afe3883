"""What a stream of decompressed bytes is, told from its head: a profiler trace, or what else.

Only the head is read: 64 KiB, and more (up to `HEAD_LIMIT`) only while a JSON object has not shown `traceEvents` yet,
since tools put their own metadata before it.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

import msgspec

FIRST_READ = 64 << 10
HEAD_LIMIT = 16 << 20

# An escaped quote in front would mean that the word is text inside a string.
_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_PHASE_KEY = re.compile(rb'(?<!\\)"ph"\s*:\s*"')
_REPORT_KEYS = re.compile(rb'"schema_version"\s*:.*"steptime"', re.DOTALL)
_FIRST_KEY = re.compile(rb'\{\s*"((?:[^"\\]|\\.){1,60})"\s*:')
_BOM = b"\xef\xbb\xbf"

# Formats that users confuse with a trace: (offset, bytes found there, what it is).
_FORMATS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PAR1", "a Parquet file"),
    (0, b"SQLite format 3\x00", "an SQLite file (an Nsight Systems export?)"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"\x80\x02", "a Python pickle (a memory snapshot?)"),
    (0, b"\x80\x04", "a Python pickle (a memory snapshot?)"),
    (0, b"\x80\x05", "a Python pickle (a memory snapshot?)"),
    (0, b"\xff\xfe", "UTF-16 text; convert it to UTF-8"),
    (0, b"\xfe\xff", "UTF-16 text; convert it to UTF-8"),
    (257, b"ustar", "a tar archive; unpack it first"),
)


class Readable(Protocol):
    """Anything with `read(n)`: at most n bytes, empty only at the end."""

    def read(self, n: int = -1, /) -> bytes:
        """Return the next bytes."""


class Verdict(msgspec.Struct, frozen=True):
    """What a head is. trace: True or False; None if `HEAD_LIMIT` bytes did not tell. what: a phrase for messages."""

    trace: bool | None
    what: str


_TRACE = Verdict(True, "a profiler trace")


def sniff(stream: Readable) -> Verdict:
    """Read as little of `stream` as tells whether it is a profiler trace."""
    head = stream.read(FIRST_READ)
    whole = len(head) < FIRST_READ
    body = head.removeprefix(_BOM).lstrip()
    if body.startswith(b"["):
        return _sniff_list(body, whole)
    if not body.startswith(b"{"):
        return Verdict(False, _describe_foreign(head))
    size = FIRST_READ
    while not _EVENTS_KEY.search(head):
        if whole or _REPORT_KEYS.search(head[:FIRST_READ]):
            return Verdict(False, _describe_object(head, whole))
        if len(head) >= HEAD_LIMIT:
            return Verdict(None, f"JSON without traceEvents in its first {HEAD_LIMIT >> 20} MiB")
        more = stream.read(size)
        whole = len(more) < size
        head += more
        size = len(head)
    return _TRACE


def _sniff_list(body: bytes, whole: bool) -> Verdict:
    if _PHASE_KEY.search(body) and body[1:].lstrip().startswith(b"{"):
        return _TRACE
    if whole and body[1:].lstrip().startswith(b"]"):
        return Verdict(False, "an empty JSON list")
    return Verdict(False, "a JSON list of something else than trace events")


def _describe_object(head: bytes, whole: bool) -> str:
    if _REPORT_KEYS.search(head):
        return "a steptime report"
    try:
        loaded = json.loads(head) if whole and len(head) <= FIRST_READ else None
    except ValueError:
        loaded = None
    if isinstance(loaded, dict):
        if not loaded:
            return "an empty JSON object"
        keys = ", ".join(str(key)[:40] for key in list(loaded)[:4]) + (", …" if len(loaded) > 4 else "")
        return f"JSON with the keys {keys}"
    first = _FIRST_KEY.search(head)
    return f"JSON that begins with {first[1].decode(errors='replace')}, without traceEvents" if first else "broken JSON"


def _describe_foreign(head: bytes) -> str:
    for offset, magic, what in _FORMATS:
        if head[offset : offset + len(magic)] == magic:
            return what
    sample = head[:1024]
    if b"\x00" in sample:
        return "binary data, not JSON"
    return "text that is not a JSON object or list"
