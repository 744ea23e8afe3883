"""How large a collective's message is, in bytes, as NCCL's own tests count it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.trace.collectives import collective_leaf
from steptime.trace.events import I64, CollectiveArgs

#: Bytes of an element by c10's name of its type (c10/core/ScalarType.h).
_ITEM_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "UInt16": 2,
    "Int": 4,
    "Float": 4,
    "UInt32": 4,
    "Long": 8,
    "Double": 8,
    "UInt64": 8,
    "ComplexHalf": 4,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e8m0fnu": 1,
}


def message_bytes(collectives: Sequence[CollectiveArgs], meta: I64) -> I64:
    """Message size of each communication activity, int64 [n]; -1 where the file does not say or contradicts itself.

    The size is that of NCCL's tests: the output of an all-gather, the input of a reduce-scatter, the tensor otherwise
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).

    Args:
        collectives: the file's metadata.
        meta: int64 [n] into it, -1 without.
    """
    sizes = np.array([*map(_size, collectives), -1], np.int64)[meta]
    # Several kernels of one call move parts of its message: how much each does is not recorded.
    calls: dict[tuple[str, str, int, str], int] = {}
    number = [calls.setdefault((a.group, a.ranks, a.seq, a.name), len(calls)) for a in collectives]
    call = np.array([*number, len(calls)], np.int64)[meta]
    numbered = np.array([*(a.seq >= 0 for a in collectives), False], np.bool_)[meta]
    times = np.bincount(call, minlength=len(calls) + 1)[call] if len(meta) else meta
    return np.where(numbered & (times > 1), -1, sizes)


def _size(args: CollectiveArgs) -> int:
    item = _ITEM_BYTES.get(args.dtype)
    low, high = sorted((args.in_elements, args.out_elements))
    if item is None or low <= 0:
        return -1
    spreads = collective_leaf(args.name) in ("allgather", "reduce_scatter")
    if spreads and high != low * args.group_size:
        return -1
    same = collective_leaf(args.name) in ("allreduce", "broadcast")
    return -1 if same and high != low else high * item
