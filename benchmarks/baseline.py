"""The yardstick: inflate a file and decode, typed, every field that steptime reads. Nothing else.

The fields are taken from steptime's own structs, so yardstick and reader can't drift apart; but all of an event is
decoded in one pass by one decoder, which is faster than what steptime does (raw arguments first, then by category).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from zlib_ng import zlib_ng

from steptime.trace.decode import DeviceArgs, Event, OpArgs, RuntimeArgs, SyncArgs
from steptime.trace.events import CollectiveArgs

#: zlib's number for "gzip framing, 32 KiB window".
GZIP = 31


def inflate(path: Path) -> bytes:
    """The JSON text of a file, plain or gzip of one member (as Kineto and gzip write it)."""
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    text: bytes = zlib_ng.decompress(content, GZIP)
    return text


def typed_decoder() -> Callable[[bytes], object]:
    """A decoder of whole files into structs with exactly the fields of steptime's structs."""
    arguments: dict[str, tuple[str, Any, Any]] = {}
    for kind in (OpArgs, RuntimeArgs, DeviceArgs, SyncArgs, CollectiveArgs):
        for info in msgspec.structs.fields(kind):
            field = msgspec.field(name=info.encode_name, default=info.default)
            arguments.setdefault(info.encode_name, (f"field_{len(arguments)}", info.type, field))
    args = msgspec.defstruct("Args", list(arguments.values()), gc=False)
    own: list[tuple[str, Any, Any]] = [
        (info.name, info.type, info.default) for info in msgspec.structs.fields(Event) if info.name != "args"
    ]
    event = msgspec.defstruct("Event", [*own, ("args", args | None, None)], gc=False)
    trace = msgspec.defstruct("Trace", [("traceEvents", list[event])])  # type: ignore[valid-type]
    decode: Callable[[bytes], object] = msgspec.json.Decoder(trace).decode
    return decode


def inflate_and_decode(path: Path, decode: Callable[[bytes], object]) -> object:
    """The yardstick itself, without the garbage collector, which could free nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return decode(inflate(path))
    finally:
        if was_on:
            gc.enable()
