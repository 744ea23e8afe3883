"""The static plan of a job: what each lane's host thread does, in order, before any time is known.

A *lane* is all ranks that run the same program (a pipeline stage); every time in the engine is an array over the ranks
of a lane. Kernels of a lane are numbered; a kernel may wait for others of its lane (stream events) and may be one side
of an exchange, which ties ranks (and lanes) together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
Json = dict[str, object]

COMPUTE_STREAM = 7
COPY_STREAM = 13

MAIN, BACKWARD = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group kind over the whole job, such as all data-parallel groups.

    label int64 [world]: which group of the kind each rank is in; order, starts: ranks sorted by group (stable) and
    where each group begins; size: members of one group; crosses: whether a group spans hosts, bool [groups].
    """

    name: str
    description: str
    label: I64
    order: I64
    starts: I64
    size: int
    crosses: Mask

    def members(self, rank: int) -> list[int]:
        """The ranks of the group that `rank` is in."""
        found: list[int] = self.order[self.label[self.order] == self.label[rank]].tolist()
        return found


def make_group(name: str, description: str, label: I64, hosts: I64) -> Group:
    """A group kind from labels; hosts int64 [world] is the host of each rank."""
    order = np.argsort(label, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(label[order]) != 0))
    low = np.minimum.reduceat(hosts[order], starts)
    high = np.maximum.reduceat(hosts[order], starts)
    size = len(order) // len(starts)
    return Group(name, description, label, order, starts, size, low != high)


@dataclass(slots=True, eq=False)
class Exchange:
    """One collective of every group of a kind, or one message between two lanes.

    kind: ``allreduce``, ``_allgather_base``, ``_reduce_scatter_base``, ``all_to_all``, ``broadcast``, ``ring`` (send to
    the next and receive from the previous member), ``p2p``. sides: how many lanes take part. nbytes: of the full tensor
    (for p2p and ring: of the message). load: float64 [world], what a rank's own transfer is multiplied by.
    pair: p2p only: int64 [world], the other end of each rank. number: its place in the group's sequence.
    """

    kind: str
    group: Group
    nbytes: float
    key: tuple[object, ...]
    sides: int = 1
    load: F64 | None = None
    pair: I64 | None = None
    number: int = 0


@dataclass(slots=True, eq=False)
class Span:
    """A host event: its fixed part. thread: MAIN or BACKWARD; args as Kineto writes them."""

    cat: str
    name: str
    thread: int
    args: Json
    external_id: int | None = None
    correlation: int | None = None


@dataclass(slots=True, eq=False)
class Kernel:
    """A device activity. base_ns: its time at the set efficiencies; leaf: where it belongs if nothing hides it.

    flops: model FLOPs (0 in recomputation); hfu_flops: FLOPs that the hardware does; rate: what dtype computes them.
    load: float64 [lane], what a rank's time (and FLOPs) is multiplied by; present: bool [lane], which ranks have it.
    """

    index: int
    name: str
    stream: int
    base_ns: float
    leaf: str
    step: int
    key: tuple[object, ...]
    waits: tuple[int, ...] = ()
    flops: int = 0
    hfu_flops: int = 0
    rate: str = "bf16"
    exchange: Exchange | None = None
    load: F64 | None = None
    present: Mask | None = None
    category: str = "kernel"
    args: Json = field(default_factory=dict)
    external_id: int | None = None
    correlation: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """A host span begins."""

    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Close:
    """The host span ends."""

    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Host work before the call, the call itself, and the kernel that it starts. op: None if inside an open span.

    call None: the kernel belongs to the call before (a node of a CUDA graph).
    """

    kernel: Kernel
    call: Span | None
    op: Span | None


@dataclass(frozen=True, slots=True, eq=False)
class Pause:
    """The host does something else for a while. ns: scalar or one a rank of the lane; span: None leaves no event.

    Ranks with 0 ns have no event. jitter: sigma of a log-normal factor.
    """

    ns: float | F64
    cause: str
    key: tuple[object, ...]
    span: Span | None = None
    jitter: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Sync:
    """The host waits until a stream (None: the device) is drained. present: which ranks wait, None all."""

    call: Span
    stream: int | None
    present: Mask | None = None
    cause: str = "sync"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """The recording starts (each rank is held for hold_ns first) or stops."""

    on: bool
    hold_ns: I64 | None = None


Instruction = Open | Close | Launch | Pause | Sync | Record


@dataclass(slots=True, eq=False)
class Lane:
    """Ranks that run one program. stage: the pipeline stage."""

    stage: int
    ranks: I64
    program: list[Instruction] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Plan:
    """All lanes of a job, its groups and the hosts of its ranks (int64 [world])."""

    world: int
    hosts: I64
    lanes: list[Lane]
    groups: list[Group]
    first_step: int
    recorded: Sequence[int]
