"""Embeddings, gathers, scatters and concatenations.

A row or element that an index names twice counts twice: the values of an index are not recorded. Zeros that an op
writes first (`aten::zero_` inside it) are that op's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from steptime.roofline.memory_cost import memory
from steptime.roofline.op_cost import OpCost, Rule, nbytes, times, total
from steptime.roofline.ops_optimizer import list_element_bytes
from steptime.roofline.signature import Operand, Signature

_REPEATS = ("repeated indices counted each time",)


def _embedding(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    weight, index = sig.tensor(0), sig.tensor(1)
    if weight is None or index is None or len(weight.shape) != 2:
        return None
    rows = times(index.numel * weight.shape[1], weight.element_bytes)
    return memory(sig, total((index.nbytes, rows)), rows, weight.dtype, _REPEATS)


def _embedding_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`embedding_dense_backward(grad, indices, ...)`: each gradient row is added to its place."""
    grad, index = sig.tensor(0), sig.tensor(1)
    if grad is None or index is None:
        return None
    writes = times(grad.numel, grad.element_bytes)
    return memory(sig, total((grad.nbytes, index.nbytes)), writes, grad.dtype, _REPEATS)


def _embedding_bag(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`embedding_bag(weight, indices, offsets, scale, mode, sparse, per_sample_weights, include_last_offset)`.

    Written is the bag's row; the bookkeeping tensors of the forward are not counted.
    """
    weight, index, offsets = sig.tensor(0), sig.tensor(1), sig.tensor(2)
    if weight is None or index is None or len(weight.shape) != 2:
        return None
    bags: int | None = None
    if offsets is not None and len(offsets.shape) == 1 and sig.boolean(7) is not None:
        bags = offsets.shape[0] - (1 if sig.boolean(7) else 0)
    width = weight.shape[1]
    rows = times(index.numel * width, weight.element_bytes)
    reads = total((index.nbytes, nbytes(offsets), nbytes(sig.tensor(6)), rows))
    writes = times(None if bags is None else bags * width, weight.element_bytes)
    return memory(sig, reads, writes, weight.dtype, _REPEATS)


def _gather(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`gather(self, dim, index)`: as many elements as the index has."""
    source, index = sig.tensor(0), sig.tensor(2)
    if source is None or index is None:
        return None
    moved = times(index.numel, source.element_bytes)
    return memory(sig, total((index.nbytes, moved)), moved, source.dtype, _REPEATS)


def _index_select(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`index_select(self, dim, index)`."""
    source, index = sig.tensor(0), sig.tensor(2)
    if source is None or index is None:
        return None
    dim = 0 if len(source.shape) == 1 else sig.integer(1)
    moved = times(_slices(source, dim, index), source.element_bytes)
    return memory(sig, total((index.nbytes, moved)), moved, source.dtype, _REPEATS)


def _slices(source: Operand, dim: int | None, index: Operand) -> int | None:
    if dim is None or not -len(source.shape) <= dim < len(source.shape):
        return None
    dim %= len(source.shape)
    return prod(source.shape[:dim]) * index.numel * prod(source.shape[dim + 1 :])


def _scatter(adds: bool) -> Rule:
    """`op(self, dim, index, source)` in place: the source's values replace or are added to elements of self."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        target, index, source = sig.tensor(0), sig.tensor(2), sig.tensor(3)
        if target is None or index is None or sig.arity > 5:
            return None
        by_element = sig.op.startswith("aten::scatter")
        count = index.numel if by_element or source is None else source.numel
        moved = times(count, target.element_bytes)
        given = 0 if source is None else times(count, source.element_bytes)
        reads = total((index.nbytes, given, moved if adds else 0))
        return memory(sig, reads, moved, target.dtype, _REPEATS)

    return rule


def _cat(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """`cat(tensors, dim)`: the type of the parts is not recorded, but an out= tensor or the copy kernel shows it."""
    shapes, out = sig.tensor_list(0), sig.tensor(2)
    if sig.dtype(0) != "TensorList":
        return None
    if shapes is None and out is None:
        return memory(sig, None, None, "", ("shapes of the list not recorded",))
    size = out.element_bytes if out is not None else list_element_bytes(kernels)
    count = out.numel if out is not None and shapes is None else sum(prod(shape) for shape in shapes or ())
    moved = times(count, size)
    return memory(sig, moved, moved, out.dtype if out is not None else "")


RULES: dict[str, Rule] = {
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::embedding_bag": _embedding_bag,
    "aten::_embedding_bag": _embedding_bag,
    "aten::_embedding_bag_forward_only": _embedding_bag,
    "aten::gather": _gather,
    "aten::index_select": _index_select,
    "aten::scatter_": _scatter(adds=False),
    "aten::scatter_add_": _scatter(adds=True),
    "aten::index_add_": _scatter(adds=True),
    "aten::index_copy_": _scatter(adds=False),
    "aten::cat": _cat,
    "aten::stack": _cat,
    "aten::concat": _cat,
}
