"""Reductions, cumulative sums, pooling and upsampling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from steptime.roofline.memory_cost import category, memory, promoted_bytes, reduced_elements
from steptime.roofline.op_cost import OpCost, Rule, times, total
from steptime.roofline.ops_matmul import broadcast
from steptime.roofline.signature import ELEMENT_BYTES, Operand, Signature


def _reduction(dims_index: int, dtype_index: int | None, kind: str) -> Rule:
    """A reduction whose overload over all elements has at most `dims_index + 1` arguments.

    kind: "sum" (integers add up in 64 bits), "same", "bool", "index" (64-bit positions), "pair" (values and positions
    when over a dimension), "two" (two results).
    """

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        x = sig.tensor(0)
        if x is None:
            return None
        out = sig.tensor(sig.arity - 1) if sig.arity > 1 else None
        if out is not None:
            return memory(sig, x.nbytes, out.nbytes, x.dtype)
        left = _left(sig, x, dims_index)
        asked = None if dtype_index is None or sig.arity <= dtype_index else sig.text(dtype_index)
        asked_dtype = sig.scalar_type(dtype_index) if asked and dtype_index is not None else None
        size = ELEMENT_BYTES.get(asked_dtype or "") if asked else _reduced_bytes(sig, x, kind)
        return memory(sig, x.nbytes, times(left, size), x.dtype)

    return rule


def _left(sig: Signature, x: Operand, dims_index: int) -> int | None:
    """Elements of the result; None when the dimensions were not recorded."""
    if sig.arity <= dims_index + 1:
        return 1
    text = sig.text(dims_index)
    if text is None:
        return None
    return 1 if text == "" else reduced_elements(x.shape, sig.integers(dims_index))


def _reduced_bytes(sig: Signature, x: Operand, kind: str) -> int | None:
    if kind == "bool":
        return 1
    if kind == "index":
        return 8
    size = x.element_bytes
    if size is None:
        return None
    if kind == "sum" and (category(x.dtype) or 0) < 2:
        return 8
    if kind == "pair" and sig.arity > 1:
        return size + 8
    return 2 * size if kind == "two" else size


def _extreme(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """`max` and `min`: of all, over a dimension (values and positions), or of two tensors."""
    first, second = sig.tensor(0), sig.tensor(1)
    if first is None or second is None:
        return _reduction(1, None, "pair")(sig, kernels)
    shape = broadcast(first.shape, second.shape)
    if shape is None or sig.arity > 2:
        return None
    writes = times(prod(shape), promoted_bytes((first, second)))
    return memory(sig, total((first.nbytes, second.nbytes)), writes, first.dtype)


def _cumulative(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`cumsum(self, dim, dtype)`: integers add up in 64 bits."""
    x = sig.tensor(0)
    if x is None:
        return None
    asked = sig.scalar_type(2)
    size = ELEMENT_BYTES.get(asked) if asked else _reduced_bytes(sig, x, "sum")
    return memory(sig, x.nbytes, times(x.numel, size), x.dtype)


def _spatial(values: list[int] | None, dims: int, default: int | None = None) -> list[int] | None:
    if values is None:
        return None
    if not values and default is not None:
        return [default] * dims
    return values * dims if len(values) == 1 else values if len(values) == dims else None


def _pool(dims: int, with_indices: bool) -> Rule:
    """`(self, kernel, stride, padding, [dilation,] ceil_mode, ...)`: an empty stride is the kernel."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        x = sig.tensor(0)
        if x is None or len(x.shape) < dims + 1:
            return None
        positions = _pooled(sig, x.shape[-dims:], with_indices)
        count = None if positions is None else prod(x.shape[:-dims]) * prod(positions)
        size = None if x.element_bytes is None else x.element_bytes + (8 if with_indices else 0)
        return memory(sig, x.nbytes, times(count, size), x.dtype)

    return rule


def _pooled(sig: Signature, size: Sequence[int], with_dilation: bool) -> list[int] | None:
    dims = len(size)
    kernel = _spatial(sig.integers(1), dims)
    # A missing stride is written as "[]".
    stride = kernel if sig.text(2) == "[]" else _spatial(sig.integers(2), dims)
    padding = _spatial(sig.integers(3), dims)
    dilation = _spatial(sig.integers(4), dims) if with_dilation else [1] * dims
    ceil = sig.boolean(5 if with_dilation else 4)
    if kernel is None or stride is None or padding is None or dilation is None or ceil is None:
        return None
    positions = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        count = (span + (s - 1 if ceil else 0)) // s + 1
        # With ceil_mode the last window must still start inside the input or its left padding.
        positions.append(count - 1 if ceil and (count - 1) * s >= n + p else count)
    return positions


def _pool_backward(index_place: int | None) -> Rule:
    """`(grad, self, ...)`: reads the gradient and the saved positions; of the input only the shape matters."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        grad, x = sig.tensor(0), sig.tensor(1)
        if grad is None or x is None:
            return None
        positions = None if index_place is None else sig.tensor(index_place)
        saved = 0 if index_place is None else (None if positions is None else positions.nbytes)
        return memory(sig, total((grad.nbytes, saved)), times(x.numel, x.element_bytes), x.dtype)

    return rule


def _resize(dims: int) -> Rule:
    """`(self, output_size, ...)`: adaptive pooling and upsampling, result positions given."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        x = sig.tensor(0)
        if x is None or len(x.shape) < dims + 1:
            return None
        size = _spatial(sig.integers(1), dims)
        count = None if size is None else prod(x.shape[:-dims]) * prod(size)
        return memory(sig, x.nbytes, times(count, x.element_bytes), x.dtype)

    return rule


def _upsample_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad, output_size, input_size, ...)`."""
    grad, size = sig.tensor(0), sig.integers(2)
    if grad is None:
        return None
    return memory(sig, grad.nbytes, times(None if size is None else prod(size), grad.element_bytes), grad.dtype)


_UPSAMPLE = (
    ("nearest1d", 1), ("nearest2d", 2), ("nearest3d", 3), ("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2),
    ("trilinear3d", 3),
)  # fmt: skip

RULES: dict[str, Rule] = {
    "aten::sum": _reduction(1, 3, "sum"),
    "aten::mean": _reduction(1, 3, "same"),
    "aten::prod": _reduction(1, 3, "sum"),
    "aten::amax": _reduction(1, None, "same"),
    "aten::amin": _reduction(1, None, "same"),
    "aten::max": _extreme,
    "aten::min": _extreme,
    "aten::any": _reduction(1, None, "bool"),
    "aten::all": _reduction(1, None, "bool"),
    "aten::argmax": _reduction(1, None, "index"),
    "aten::argmin": _reduction(1, None, "index"),
    "aten::var": _reduction(1, None, "same"),
    "aten::std": _reduction(1, None, "same"),
    "aten::var_mean": _reduction(1, None, "two"),
    "aten::std_mean": _reduction(1, None, "two"),
    "aten::linalg_vector_norm": _reduction(2, 4, "same"),
    "aten::norm": _reduction(2, 4, "same"),
    "aten::logsumexp": _reduction(1, None, "same"),
    "aten::cumsum": _cumulative,
    "aten::max_pool2d_with_indices": _pool(2, with_indices=True),
    "aten::max_pool3d_with_indices": _pool(3, with_indices=True),
    "aten::avg_pool2d": _pool(2, with_indices=False),
    "aten::avg_pool3d": _pool(3, with_indices=False),
    "aten::max_pool2d_with_indices_backward": _pool_backward(7),
    "aten::max_pool3d_with_indices_backward": _pool_backward(7),
    "aten::avg_pool2d_backward": _pool_backward(None),
    "aten::avg_pool3d_backward": _pool_backward(None),
    "aten::adaptive_avg_pool2d": _resize(2),
    "aten::_adaptive_avg_pool2d": _resize(2),
    "aten::_adaptive_avg_pool3d": _resize(3),
    "aten::_adaptive_avg_pool2d_backward": _pool_backward(None),
    "aten::_adaptive_avg_pool3d_backward": _pool_backward(None),
    **{f"aten::upsample_{name}": _resize(dims) for name, dims in _UPSAMPLE},
    **{f"aten::upsample_{name}_backward": _upsample_backward for name, _ in _UPSAMPLE},
}
