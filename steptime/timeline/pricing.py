"""What ops cost in FLOPs, bytes and time at the peak: asked of `roofline` through the protocol below.

The timeline owns which kernels belong to which op and how much time each owned; it does not know what a matmul costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.links import Activities, Threads
from steptime.timeline.work import COMPUTE, Work
from steptime.trace.events import ARGUMENT_SEPARATOR, I64, Category, DeviceProperties, EventTable

#: Leaves whose time should have FLOPs: coverage is the share of it that does.
COUNTABLE = (LEAF_CODE["kernels/matmul"], LEAF_CODE["kernels/attention"])
#: Note on a price whose kernels need fewer operations than the formula counts (Winograd, FFT convolutions).
FAST = "fast algorithm"
OPTIMIZER = LEAF_CODE["kernels/optimizer"]
RECOMPUTE = LEAF_CODE["recompute/recompute"]


class OpText(NamedTuple):
    """One distinct op call as recorded: name and the raw "Input Dims", "Input type" and "Concrete Inputs"."""

    op: str
    shapes: str
    types: str
    concrete: str


class Price(msgspec.Struct, frozen=True):
    """What one call of an op costs. None: can't be known.

    kind: ``matmul``, ``convolution``, ``attention`` (these have FLOPs) or ``memory``. ideal_ns: model FLOPs at the
    reference peak; precision_ns: how much longer at the peak of the dtype it ran in. hardware_ns: hardware
    FLOPs at the peak that ideal_ns uses. All 0 without a peak.
    """

    kind: str
    direction: str
    model_flops: int | None
    hardware_flops: int | None
    bytes: int | None
    dtype: str | None
    ideal_ns: int
    precision_ns: int
    hardware_ns: float = 0.0
    notes: tuple[str, ...] = ()


class Pricing(Protocol):
    """Knows prices. Implemented by `roofline.pricing`; crosses processes, so it must pickle."""

    def prices(
        self, device: DeviceProperties | None, calls: Sequence[OpText], kernels: Sequence[Sequence[str]]
    ) -> list[Price | None]:
        """Price each distinct call; `kernels[i]` are the names of the kernels that calls like i launched."""
        ...


class Calls(msgspec.Struct, frozen=True):
    """Which call each activity belongs to.

    call int32 [m] into `texts` and `prices`, -1 if none; op int64 [m]: row of that op, -1 if none; eligible bool [m]:
    whether the activity may hold the op's useful work.
    """

    call: NDArray[np.int32]
    op: I64
    eligible: NDArray[np.bool_]
    texts: list[OpText]
    prices: list[Price]


def price_calls(table: EventTable, work: Activities, labels: Work, threads: Threads, pricing: Pricing) -> Calls:
    """Find the op that each kernel's FLOPs and bytes belong to.

    Nested ops count once: the outermost op that has FLOPs (attention that is decomposed is attention); kernels outside
    such ops belong to the innermost op whose bytes are known.
    """
    texts, call_of_row = _distinct_calls(table, threads, labels.op)
    device = next((d for d in table.meta.devices if d.id == _device_of(table, work)), None)
    first = pricing.prices(device, texts, [()] * len(texts))
    has_flops = np.array([price is not None and price.model_flops is not None for price in first] + [False], np.bool_)
    has_bytes = np.array([price is not None and price.model_flops is None for price in first] + [False], np.bool_)
    flop_row = threads.outermost(has_flops[call_of_row], labels.op)
    other_row = threads.nearest(has_bytes[call_of_row], labels.op)
    # An optimizer has no model FLOPs, whatever its products.
    op = np.where((flop_row >= 0) & (labels.leaf != OPTIMIZER), flop_row, other_row)
    op = np.where(labels.klass == COMPUTE, op, -1)
    call = np.where(op >= 0, call_of_row[op], -1).astype(np.int32)
    names = _kernel_names(table, work, call, len(texts))
    final = [again or before for again, before in zip(pricing.prices(device, texts, names), first, strict=True)]
    known = np.array([price is not None for price in final] + [False], np.bool_)
    renumber = np.cumsum(known) - 1
    call = np.where(known[call], renumber[call], -1).astype(np.int32)
    kept = [(text, price) for text, price in zip(texts, final, strict=True) if price is not None]
    return Calls(
        call=call,
        op=np.where(call >= 0, op, -1),
        eligible=_eligible(op, labels),
        texts=[text for text, _ in kept],
        prices=[price for _, price in kept],
    )


def _device_of(table: EventTable, work: Activities) -> int:
    return int(table.device.device[work.column[0]]) if len(work.column) else -1


def _distinct_calls(table: EventTable, threads: Threads, launching: I64) -> tuple[list[OpText], NDArray[np.int32]]:
    """Distinct calls among the ops that enclose a launch, and the call of each row of the table (-1: none)."""
    ops = table.ops
    encloses = threads.enclosing(launching)
    candidate = np.flatnonzero(encloses[ops.row] & (table.category[ops.row] == Category.CPU_OP))
    keys = np.stack([table.name[ops.row[candidate]], ops.shapes[candidate], ops.arguments[candidate]])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    call_of_row = np.full(len(table.start_ns), -1, np.int32)
    call_of_row[ops.row[candidate]] = which.ravel()
    texts = []
    for name, shapes, arguments in distinct.T.tolist():
        types, _, concrete = table.texts[arguments].partition(ARGUMENT_SEPARATOR)
        texts.append(OpText(table.names[name], _one_line(table.texts[shapes]), types, concrete))
    return texts, call_of_row


def _one_line(shapes: str) -> str:
    """Shapes as Kineto writes them; other writers indent."""
    return "".join(shapes.split()).replace(",", ", ")


def _kernel_names(table: EventTable, work: Activities, call: NDArray[np.int32], count: int) -> list[list[str]]:
    """Names of the kernels of each call."""
    names: list[list[str]] = [[] for _ in range(count)]
    known = np.flatnonzero(call >= 0)
    pairs = np.unique(np.stack([call[known], table.name[work.row[known]]]), axis=1)
    for at, name in pairs.T.tolist():
        names[at].append(table.names[name])
    return names


def _eligible(op: I64, labels: Work) -> NDArray[np.bool_]:
    """Kernels that may hold useful work: the matmul and attention kernels of an op, or all if it has none."""
    own = np.isin(labels.leaf, COUNTABLE)
    with_own = np.unique(op[own & (op >= 0)])
    eligible: NDArray[np.bool_] = (op >= 0) & (labels.leaf != RECOMPUTE) & (own | ~np.isin(op, with_own))
    return eligible
