"""One trace file becomes an `EventTable`: decode, intern, turn times into nanoseconds, drop what can't be true.

Memory is bounded: text is read and decoded in pieces (`chunks`), and only the columns stay. If a piece does not decode,
the file is read once more as a whole so that it can be repaired where that changes no number (`repair`), or refused
with line and column.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import msgspec

from steptime.errors import NotATrace, TraceError, UnsupportedDevice
from steptime.trace.assemble import Columns
from steptime.trace.chunks import CHUNK_BYTES, TraceText
from steptime.trace.cleaning import clean
from steptime.trace.decode import decode_events
from steptime.trace.events import DeviceProperties, EventTable, ProcessGroup, TraceMeta
from steptime.trace.source import open_trace

#: Devices whose events have categories of their own, which steptime does not analyse.
_FOREIGN = {"mtia": "MTIA", "hpu": "HPU (Gaudi)", "xpu": "XPU", "privateuse1": "custom device", "glow": "Glow"}

#: The year 2116: a later base is no time.
MAX_BASE_NS = 2**62

_FLAGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


def parse(path: str, size_bytes: int = 0, chunk_bytes: int = CHUNK_BYTES) -> EventTable:
    """Read one trace file.

    Args:
        path: local path or fsspec URL; plain, gzip, zstd or zip.
        size_bytes: size of the file as stored, for the report.
        chunk_bytes: text decoded at a time.

    Raises:
        TraceError: the file can't be read as a trace; the message names file, cause and remedy.
    """
    with _no_gc():
        try:
            with open_trace(path) as stream:
                text = TraceText(stream, path, chunk_bytes)
                columns = _collect(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            text, columns = _repaired(path)
        return _finish(text, columns, size_bytes or text.bytes_read)


@contextmanager
def _no_gc() -> Iterator[None]:
    # Millions of short-lived structs would trigger collections that can't free anything.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _collect(text: Iterable[memoryview]) -> Columns:
    columns = Columns()
    for piece in text:
        columns.add(decode_events(piece))
    return columns


def _repaired(path: str) -> tuple[TraceText, Columns]:
    """Read the file in one piece, mended where that changes no number: also the way for odd but valid files."""
    from steptime.trace.repair import repair

    with open_trace(path) as stream:
        whole = stream.read()
    fixed = repair(whole)
    text = TraceText(BytesIO(fixed.text), path, len(fixed.text) + 1, careful=True)
    try:
        columns = _collect(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _refusal(path, fixed.text) from None
    columns.warnings.extend(fixed.notes)
    return text, columns


def _refusal(path: str, text: bytes) -> TraceError:
    """The one line that says where a file stops being JSON, and why that may be."""
    from steptime.trace.repair import locate

    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = str(error)
        if "truncated" in message:
            return TraceError(f"{path}: the JSON ends early (cut file: was the writer killed?); record it again")
        offset = int(message.rsplit("byte ", 1)[1].rstrip(")")) if "byte " in message else 0
        return TraceError(
            f"{path}: invalid JSON at {locate(text, offset)} ({message}); an older PyTorch writes unescaped quotes "
            "into names with with_stack=True: record without stacks or with a newer version"
        )
    if isinstance(found, dict) and isinstance(found.get("traceEvents"), list):
        try:
            decode_events(msgspec.json.encode(found["traceEvents"]))
        except msgspec.DecodeError as error:
            return TraceError(f"{path}: an event is not what a profiler writes ({error}); export the trace again")
    return NotATrace(f"{path}: no traceEvents in it, so it is not a profiler trace; leave it out")


def _finish(text: TraceText, columns: Columns, size_bytes: int) -> EventTable:
    header = text.header
    foreign = sorted(name for name in columns.categories if name.split("_")[0] in _FOREIGN)
    if foreign and not columns.has_device_rows:
        device = _FOREIGN[foreign[0].split("_")[0]]
        raise UnsupportedDevice(
            f"{text.path}: unsupported device type {device} (event categories {', '.join(foreign)}); "
            "steptime reads CUDA, ROCm and CPU traces"
        )
    if not columns.count:
        raise TraceError(f"{text.path}: no events in it (an idle or empty capture); record while the job is training")
    base_ns = header.get("baseTimeNanoseconds")
    if not isinstance(base_ns, int) or not 0 <= base_ns < MAX_BASE_NS:
        if base_ns is not None:
            columns.warnings.append(
                f"baseTimeNanoseconds {base_ns} is not a time and not used: the clock's base is unknown"
            )
        base_ns = None
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    meta = TraceMeta(
        path=text.path,
        bytes=size_bytes,
        dialect=_dialect(header, columns),
        rank=_int_or_none(info.get("rank")),
        world_size=_int_or_none(info.get("world_size")),
        backend=str(info["backend"]) if "backend" in info else None,
        host=str(header["host_name"]) if "host_name" in header else None,
        base_ns=base_ns,
        devices=_devices(header.get("deviceProperties")),
        flags=frozenset(flag for flag in _FLAGS if header.get(flag)),
        event_count=columns.count,
        reserved_bytes=columns.reserved_bytes,
        allocated_bytes=columns.allocated_bytes,
        groups=_process_groups(info.get("pg_config")),
        warnings=columns.warnings,
        software=_software(header, info),
    )
    return clean(columns.table(meta))


def _int_or_none(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class _GroupConfig(msgspec.Struct):
    """One entry of `pg_config`. On-demand recordings write the ranks as a text."""

    pg_name: str = ""
    pg_desc: str = ""
    ranks: list[int] | str = []


def _process_groups(value: Any) -> list[ProcessGroup]:
    try:
        found = msgspec.convert(value or [], list[_GroupConfig])
        ranks = [one.ranks if isinstance(one.ranks, list) else msgspec.json.decode(one.ranks) for one in found]
        return [
            ProcessGroup(one.pg_name, one.pg_desc, tuple(msgspec.convert(members, list[int])))
            for one, members in zip(found, ranks, strict=True)
            if members
        ]
    except (msgspec.ValidationError, msgspec.DecodeError):
        return []


#: Top-level keys with a version, under what reports call it. Kineto writes no version of PyTorch; jobs may add theirs
#: with ``prof.add_metadata_json("torch_version", ...)``.
_VERSIONS = {
    "cuda_driver_version": "driver",
    "hip_driver_version": "driver",
    "cuda_runtime_version": "cuda",
    "hip_runtime_version": "hip",
    "torch_version": "torch",
    "pytorch_version": "torch",
}


def _software(header: dict[str, Any], info: dict[str, Any]) -> dict[str, str]:
    """Versions by name; CUDA's are numbers, 1000 times the major and 10 times the minor one."""
    given = {name: header[key] for key, name in _VERSIONS.items() if isinstance(header.get(key), (int, str))}
    found = {name: str(value) for name, value in given.items()}
    for key in ("cuda_driver_version", "cuda_runtime_version"):
        value = header.get(key)
        if isinstance(value, int) and value >= 1000:
            found[_VERSIONS[key]] = f"CUDA {value // 1000}.{value % 1000 // 10}"
    return found | ({"nccl": str(info["nccl_version"])} if "nccl_version" in info else {})


def _devices(value: Any) -> list[DeviceProperties]:
    try:
        return msgspec.convert(value or [], list[DeviceProperties])
    except msgspec.ValidationError:
        return []


def _dialect(header: dict[str, Any], columns: Columns) -> str:
    """Name the dialect by the keys that are there (kineto_schema section 9), never by a version."""
    if "Operator" in columns.categories or "Kernel" in columns.categories:
        return "Kineto 2021 (legacy categories)"
    if columns.memory_as_activity:
        return "Kineto, python export"
    parts = ["Kineto"]
    if "roctracer_version" in header or "hip_runtime_version" in header:
        parts.append("ROCm")
    parts.append("nanoseconds" if columns.decimal_times else "microseconds")
    trace_id = str(header.get("trace_id", ""))
    if trace_id.isdigit() and len(trace_id) < 32:
        parts.append("on demand")
    return ", ".join(parts)
