"""What waited for what on one rank: the raw material of a replay."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.timeline.host_points import HostPoints
from steptime.trace.events import I32, I64

_NONE = np.empty(0, np.int32)

Mask = NDArray[np.bool_]


class Parts(msgspec.Struct, frozen=True):
    """What the length of each of m activities consists of besides the rest of its leaf.

    useful_ns: model FLOPs at the reference peak; precision_ns, contention_ns: as in the ledger; all int64 [m].
    """

    useful_ns: I64
    precision_ns: I64
    contention_ns: I64


class Dependencies(msgspec.Struct, frozen=True):
    """m activities of a device, or collectives of a rank without one, in order of start, and what they waited for.

    start_ns, end_ns int64 [m]; stream int64 [m], without a device one number for what a worker had to do in turn; leaf
    int16 [m]; step int32 [m]: index of the step that launched it, -1 unknown;
    boundary bool [m]: whether its end may end its step (see `steps.windows`); launch int64 [m]: its host point, -1 if
    not recorded; call_ns int64 [m]: length of the launch call; instance int64 [m]: index into the row's `Instances`,
    -1 for what is no communication; also int16 [m]: the leaf without which it would not be (a collective of a forward
    pass that runs again), -1.

    before, after int64 [w]: activity `after` starts once `before`, on another stream, has ended. parts: None without
    prices. bounds int64 [k+1]: host points at the boundaries of the steps of a rank without a device, else empty.
    begin_ns int64 [k+1]: the boundaries as measured. noticed bool [m]: whether its end is when the host looked; how
    long before that it really ended is unknown, and nothing was held by it. what int32 [m]: name of each activity, an
    index into `texts`, -1 without one; empty where none was kept.
    """

    start_ns: I64
    end_ns: I64
    stream: I64
    leaf: NDArray[np.int16]
    step: I32
    boundary: Mask
    launch: I64
    call_ns: I64
    instance: I64
    also: NDArray[np.int16]
    before: I64
    after: I64
    parts: Parts
    host: HostPoints
    bounds: I64
    begin_ns: I64
    noticed: Mask
    what: I32 = _NONE
    texts: list[str] = []
