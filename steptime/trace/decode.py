"""Typed decoding of events: JSON text of whole events in, plain Python lists of the few fields that are used out.

Only the fields below are decoded; everything else in an event is skipped by the decoder. Arguments stay raw at first
and are decoded per category, so that Python frames (most of a trace with stacks) cost no argument decoding at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, field

from steptime.trace.events import CollectiveArgs

_NO_RAW = Raw(b"")
_NO_ARGS = Raw(b"{}")
_ZERO = Raw(b"0")


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`. Times stay text until they become exact integers."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: Raw = _ZERO
    dur: Raw = _ZERO
    args: Raw = _NO_ARGS


class OpArgs(msgspec.Struct, gc=False):
    """Arguments of host ops and annotations. `Fwd thread id` 0 with a sequence number marks a forward op."""

    sequence: int = field(name="Sequence number", default=-1)
    forward_thread: int = field(name="Fwd thread id", default=-1)
    shapes: Raw = field(name="Input Dims", default=_NO_RAW)
    types: Raw = field(name="Input type", default=_NO_RAW)
    concrete: Raw = field(name="Concrete Inputs", default=_NO_RAW)
    collective: str = field(name="Collective name", default="")


class RuntimeArgs(msgspec.Struct, gc=False):
    """Arguments of launches and other runtime or driver calls."""

    correlation: int = -1


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments of kernels, copies and memsets."""

    correlation: int = -1
    device: int = -1
    stream: int = -1
    bytes: int = -1
    grid: Raw = _NO_RAW
    block: Raw = _NO_RAW
    graph_node: int = field(name="graph node id", default=-1)
    collective: str = field(name="Collective name", default="")


class SyncArgs(msgspec.Struct, gc=False):
    """Arguments of `cuda_sync` records."""

    correlation: int = -1
    stream: int = -1
    wait_on_stream: int = -1
    kind: str = field(name="cuda_sync_kind", default="")


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of a `[memory]` event: what the allocator of one device holds after it. Device type 1 is CUDA."""

    reserved_bytes: int = field(name="Total Reserved", default=-1)
    allocated_bytes: int = field(name="Total Allocated", default=-1)
    device_type: int = field(name="Device Type", default=0)


Args = TypeVar("Args", OpArgs, RuntimeArgs, DeviceArgs, SyncArgs, CollectiveArgs, MemoryArgs)

_EVENTS = msgspec.json.Decoder(list[Event])
_ARGS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    for kind in (OpArgs, RuntimeArgs, DeviceArgs, SyncArgs, CollectiveArgs, MemoryArgs)
}


def decode_events(text: bytes | bytearray | memoryview) -> list[Event]:
    """Decode a JSON array of events.

    Raises:
        msgspec.DecodeError: the text is not an array of event objects.
    """
    return _EVENTS.decode(text)


def decode_args(raws: Sequence[Raw], kind: type[Args]) -> list[Args]:
    """Decode the arguments of many events of one category at once.

    A field whose type is not the documented one (an id as text, say) is converted where that is exact and else takes
    its default: one odd argument never loses a file.
    """
    if not raws:
        return []
    try:
        return _ARGS[kind].decode(b"[" + b",".join(raws) + b"]")  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        return [_lenient(bytes(raw), kind) for raw in raws]


def _lenient(raw: bytes, kind: type[Args]) -> Args:
    found = msgspec.json.decode(raw)
    found = found if isinstance(found, dict) else {}
    known: dict[str, object] = {}
    for info in msgspec.structs.fields(kind):
        if info.encode_name not in found:
            continue
        value = found[info.encode_name]
        if info.type is Raw:
            known[info.name] = Raw(msgspec.json.encode(value))
        elif info.type is int:
            known[info.name] = _as_int(value)
        else:
            known[info.name] = value if isinstance(value, str) else str(value)
    return kind(**known)  # type: ignore[arg-type]


def _as_int(value: object) -> int:
    """An id as int64; -1 where it is none or does not fit."""
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return int(value) if fits else -1  # type: ignore[call-overload]
