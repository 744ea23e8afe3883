"""Decoded events become columns, piece by piece; the last step joins the pieces into one `EventTable`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import TypeAlias, TypeVar

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from steptime.trace.clock import nanoseconds
from steptime.trace.decode import DeviceArgs, Event, MemoryArgs, OpArgs, RuntimeArgs, SyncArgs, decode_args
from steptime.trace.events import (
    I32,
    I64,
    Category,
    CollectiveArgs,
    DeviceColumns,
    EventTable,
    OpColumns,
    SyncColumns,
    TraceMeta,
    Track,
)

#: Category text -> `Category`. Capitalised names are the 2021 dialect. What is not here is not used.
CATEGORY_OF: dict[str, Category] = {
    "cpu_op": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "cuda_sync": Category.SYNC,
    "Trace": Category.WINDOW,
    "Operator": Category.CPU_OP,
    "Runtime": Category.RUNTIME,
    "Kernel": Category.KERNEL,
    "Memcpy": Category.MEMCPY,
    "Memset": Category.MEMSET,
}


_Int = TypeVar("_Int", np.int8, np.int32, np.int64)
_Key = TypeVar("_Key", bound=Hashable)
_Id: TypeAlias = int | float | str | None


class _Interner(dict[_Key, int]):
    """Maps each new key to the next index. `indices` runs at C speed: no Python code per known key."""

    def __missing__(self, key: _Key) -> int:
        self[key] = index = len(self)
        return index

    def indices(self, keys: Sequence[_Key]) -> I32:
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))


class Columns:
    """Collects events; `table` returns them as an `EventTable`."""

    def __init__(self) -> None:
        self.count = 0
        self.decimal_times = False
        self.memory_as_activity = False
        self.reserved_bytes = self.allocated_bytes = -1
        self.warnings: list[str] = []
        self._rows = 0
        self._categories: _Interner[str] = _Interner()
        self._names: _Interner[str] = _Interner()
        self._tracks: _Interner[tuple[_Id, _Id]] = _Interner()
        self._texts: _Interner[bytes] = _Interner()
        self._collectives: list[CollectiveArgs] = []
        self._pieces: dict[str, list[NDArray[np.generic]]] = {}

    @property
    def categories(self) -> set[str]:
        """Category names seen on activities."""
        return set(self._categories)

    @property
    def has_device_rows(self) -> bool:
        """Whether any kernel, copy or memset was seen."""
        return any(CATEGORY_OF.get(name, Category.OTHER) >= Category.KERNEL for name in self.categories - {"Trace"})

    def add(self, events: list[Event]) -> None:
        """Take the activities out of one piece of the file."""
        self.count += len(events)
        self._add_memory([event.args for event in events if event.name == "[memory]"])
        activities = [event for event in events if event.ph == "X"]
        seen = self._categories.indices([event.cat for event in activities])
        code_of = np.array([CATEGORY_OF.get(name, Category.OTHER) for name in self._categories], np.int8)
        category = code_of[seen] if len(seen) else np.empty(0, np.int8)
        used = np.flatnonzero(category)
        if len(used) < len(activities):
            self.memory_as_activity |= "cpu_instant_event" in self._categories
            activities = [activities[index] for index in used.tolist()]
            category = category[used]
        if not activities:
            return
        starts = [event.ts for event in activities]
        self.decimal_times = self.decimal_times or b"." in bytes(starts[0])
        self._put("start", nanoseconds(starts))
        self._put("dur", nanoseconds([event.dur for event in activities]))
        self._put("category", category)
        self._put("name", self._names.indices([event.name for event in activities]))
        self._put("track", self._tracks.indices([(event.pid, event.tid) for event in activities]))
        self._add_arguments(activities, category)
        self._rows += len(activities)

    def _add_memory(self, raws: list[Raw]) -> None:
        """Keep the most that the allocator held, and that tensors used, on a device."""
        held = [one for one in decode_args(raws, MemoryArgs) if one.device_type == 1]
        if held:
            self.reserved_bytes = max(self.reserved_bytes, *(one.reserved_bytes for one in held), -1)
            self.allocated_bytes = max(self.allocated_bytes, *(one.allocated_bytes for one in held), -1)

    def _put(self, key: str, values: NDArray[np.generic]) -> None:
        self._pieces.setdefault(key, []).append(values)

    def _add_arguments(self, activities: list[Event], category: NDArray[np.int8]) -> None:
        correlation = np.full(len(activities), -1, np.int64)

        def raws(*wanted: Category) -> tuple[I64, list[Raw]]:
            rows = np.flatnonzero(np.isin(category, wanted))
            return rows, [activities[index].args for index in rows.tolist()]

        rows, raw = raws(Category.CPU_OP, Category.ANNOTATION)
        self._add_ops(rows, raw)
        rows, raw = raws(Category.RUNTIME)
        runtime = decode_args(raw, RuntimeArgs)
        correlation[rows] = _ints(runtime, "correlation")
        rows, raw = raws(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
        device = decode_args(raw, DeviceArgs)
        correlation[rows] = _ints(device, "correlation")
        self._add_device(rows, raw, device)
        rows, raw = raws(Category.SYNC)
        syncs = decode_args(raw, SyncArgs)
        correlation[rows] = _ints(syncs, "correlation")
        self._put("sync_row", rows + self._rows)
        self._put("sync_stream", _ints(syncs, "stream"))
        self._put("sync_wait", _ints(syncs, "wait_on_stream"))
        self._put("sync_kind", self._texts.indices([a.kind.encode() for a in syncs]))
        self._put("correlation", correlation)

    def _add_ops(self, rows: I64, raws: list[Raw]) -> None:
        ops = decode_args(raws, OpArgs)
        self._put("op_row", rows + self._rows)
        self._put("op_sequence", _ints(ops, "sequence"))
        self._put("op_forward", _ints(ops, "forward_thread"))
        self._put("op_shapes", self._texts.indices([bytes(a.shapes) for a in ops]))
        arguments = [b"%b\x1f%b" % (a.types, a.concrete) for a in ops]
        self._put("op_arguments", self._texts.indices(arguments))
        self._put("op_collective", self._add_collectives([a.collective for a in ops], raws))

    def _add_device(self, rows: I64, raws: list[Raw], device: list[DeviceArgs]) -> None:
        self._put("dev_row", rows + self._rows)
        self._put("dev_device", _ints(device, "device"))
        self._put("dev_stream", _ints(device, "stream"))
        self._put("dev_bytes", _ints(device, "bytes"))
        self._put("dev_config", self._texts.indices([b"%b|%b" % (a.grid, a.block) for a in device]))
        self._put("dev_graph", _ints(device, "graph_node"))
        self._put("dev_collective", self._add_collectives([a.collective for a in device], raws))

    def _add_collectives(self, names: list[str], raws: list[Raw]) -> I32:
        index = np.full(len(names), -1, np.int32)
        found = [at for at, name in enumerate(names) if name]
        if found:
            base = len(self._collectives)
            self._collectives.extend(decode_args([raws[at] for at in found], CollectiveArgs))
            index[found] = np.arange(base, len(self._collectives))
        return index

    def table(self, meta: TraceMeta) -> EventTable:
        """Join all pieces. Times get the file's `baseTimeNanoseconds` here."""
        join = self._join
        start = join("start", np.int64)
        if meta.base_ns:
            # A stamp near the end of int64 must not wrap into the past; `cleaning` drops it.
            start = np.minimum(start, np.iinfo(np.int64).max - meta.base_ns) + meta.base_ns
        texts = [text.decode("utf-8", "replace") for text in self._texts]
        return EventTable(
            start_ns=start,
            dur_ns=join("dur", np.int64),
            category=join("category", np.int8),
            name=join("name", np.int32),
            track=self._same_tracks(join("track", np.int32)),
            correlation=join("correlation", np.int64),
            device=DeviceColumns(
                row=join("dev_row", np.int64),
                device=join("dev_device", np.int64),
                stream=join("dev_stream", np.int64),
                bytes=join("dev_bytes", np.int64),
                config=join("dev_config", np.int32),
                collective=join("dev_collective", np.int32),
                graph=join("dev_graph", np.int64),
            ),
            ops=OpColumns(
                row=join("op_row", np.int64),
                sequence=join("op_sequence", np.int64),
                forward_thread=join("op_forward", np.int64),
                shapes=join("op_shapes", np.int32),
                arguments=join("op_arguments", np.int32),
                collective=join("op_collective", np.int32),
            ),
            syncs=SyncColumns(
                row=join("sync_row", np.int64),
                stream=join("sync_stream", np.int64),
                wait_on_stream=join("sync_wait", np.int64),
                kind=join("sync_kind", np.int32),
            ),
            names=list(self._names),
            texts=texts,
            tracks=self._track_list,
            collectives=self._collectives,
            meta=meta,
        )

    def _join(self, key: str, dtype: type[_Int]) -> NDArray[_Int]:
        pieces = self._pieces.pop(key, [])
        return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.empty(0, dtype)

    def _same_tracks(self, track: I32) -> I32:
        """Merge tracks that differ only in type: the 2021 dialect writes one thread as text and as a number."""
        merged: _Interner[tuple[str, str]] = _Interner()
        index = merged.indices([(str(pid), str(tid)) for pid, tid in self._tracks])
        self._track_list = [Track(pid, tid) for pid, tid in merged]
        return index[track] if len(track) else track


def _ints(args: Sequence[object], field: str) -> I64:
    """One integer of each; -1 where it does not fit into int64."""
    try:
        return np.fromiter(map(attrgetter(field), args), np.int64, len(args))
    except OverflowError:
        values = [getattr(one, field) for one in args]
        return np.array([value if -(2**63) <= value < 2**63 else -1 for value in values], np.int64)
