"""The columns of one trace file: the only place where the schema of recorded events is written.

An `EventTable` holds the complete ("X") activities of one file, in file order, as numpy columns. Times are absolute
int64 nanoseconds (Unix epoch where the file's clock has one). -1 stands for "not in the trace" in every integer
column but times. Values of text are interned: a column holds int32 indices into a list.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]


class Category(IntEnum):
    """What an activity is; the values of `EventTable.category`."""

    OTHER = 0
    CPU_OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    PYTHON = 4
    OVERHEAD = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    SYNC = 9
    WINDOW = 10


#: Joins the raw texts of one op's arguments; JSON text can't hold it unescaped.
ARGUMENT_SEPARATOR = "\x1f"

DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


class Track(msgspec.Struct, frozen=True):
    """A row of the timeline: a host thread or a device stream. pid and tid as text, since some files name them."""

    pid: str
    tid: str


class CollectiveArgs(msgspec.Struct, frozen=True, gc=False):
    """Communication metadata of a host op or a kernel; empty text or -1 where the file has none."""

    name: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    ranks: str = msgspec.field(name="Process Group Ranks", default="")
    dtype: str = ""
    in_elements: int = msgspec.field(name="In msg nelems", default=-1)
    out_elements: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    seq: int = msgspec.field(name="Seq", default=-1)
    rank: int = msgspec.field(name="Rank", default=-1)
    src_rank: int = msgspec.field(name="Src Rank", default=-1)
    dst_rank: int = msgspec.field(name="Dst Rank", default=-1)


class DeviceColumns(msgspec.Struct, frozen=True):
    """Kernels, copies and memsets. All arrays have length m; `row` indexes the `EventTable`, ascending.

    row int64 [m]; device, stream int64 [m]; bytes int64 [m], -1 if not a copy or memset; config int32 [m] into
    `EventTable.texts` (the raw grid and block); collective int32 [m] into `EventTable.collectives`;
    graph int64 [m], the CUDA graph node id, 0 or -1 if not launched by a graph.
    """

    row: I64
    device: I64
    stream: I64
    bytes: I64
    config: I32
    collective: I32
    graph: I64


class OpColumns(msgspec.Struct, frozen=True):
    """Host ops and annotations. All arrays have length p; `row` indexes the `EventTable`, ascending.

    sequence int64 [p], autograd sequence number; forward_thread int64 [p]; shapes int32 [p] into `EventTable.texts`
    (the raw "Input Dims"); arguments int32 [p] into `EventTable.texts` (the raw "Input type" and "Concrete Inputs",
    joined by `ARGUMENT_SEPARATOR`); collective int32 [p] into `EventTable.collectives`.
    """

    row: I64
    sequence: I64
    forward_thread: I64
    shapes: I32
    arguments: I32
    collective: I32


class SyncColumns(msgspec.Struct, frozen=True):
    """`cuda_sync` records. row, stream, wait_on_stream int64 [q]; kind int32 [q] into `EventTable.texts`."""

    row: I64
    stream: I64
    wait_on_stream: I64
    kind: I32


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group that the file says this rank is in; ranks: of the job, in the group's order."""

    name: str
    description: str
    ranks: tuple[int, ...]


class TraceMeta(msgspec.Struct, frozen=True):
    """What the file says about itself. None: the file does not say.

    groups: of `distributedInfo`, empty if it does not list them with their ranks. reserved_bytes, allocated_bytes: most
    that a device's allocator held, and that tensors used, -1 without such events. software: versions that it says.
    """

    path: str
    bytes: int
    dialect: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    base_ns: int | None
    devices: list[DeviceProperties]
    flags: frozenset[str]
    event_count: int
    reserved_bytes: int = -1
    allocated_bytes: int = -1
    groups: list[ProcessGroup] = msgspec.field(default_factory=list)
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    clipped: dict[str, int] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)
    software: dict[str, str] = msgspec.field(default_factory=dict)


class DeviceProperties(msgspec.Struct, frozen=True):
    """One entry of `deviceProperties`; 0 or empty where the file does not say."""

    id: int = 0
    name: str = ""
    memory_bytes: int = msgspec.field(name="totalGlobalMem", default=0)
    multiprocessors: int = msgspec.field(name="numSms", default=0)
    compute_major: int = msgspec.field(name="computeMajor", default=0)
    compute_minor: int = msgspec.field(name="computeMinor", default=0)


class EventTable(msgspec.Struct, frozen=True):
    """All activities of one file. The arrays of the core have length n.

    start_ns, dur_ns int64 [n]; category int8 [n] (`Category`); name int32 [n] into `names`; track int32 [n] into
    `tracks`; correlation int64 [n].
    """

    start_ns: I64
    dur_ns: I64
    category: I8
    name: I32
    track: I32
    correlation: I64
    device: DeviceColumns
    ops: OpColumns
    syncs: SyncColumns
    names: list[str]
    texts: list[str]
    tracks: list[Track]
    collectives: list[CollectiveArgs]
    meta: TraceMeta

    @property
    def end_ns(self) -> I64:
        """End of each activity, int64 [n]."""
        return self.start_ns + self.dur_ns

    def rows(self, *categories: Category) -> I64:
        """Ascending row indices of the given categories."""
        return np.flatnonzero(np.isin(self.category, categories)).astype(np.int64)
