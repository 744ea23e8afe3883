"""Convolutions: 2 operations for every pair of a result position and a weight, positions in the padding included.

Forward: 2 · batch · output positions · elements of the weight (input positions when transposed); groups and dilation
are in the weight's shape and the output's size. Each of the two gradients costs as much as the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from steptime.roofline.compute_dtype import compute_dtype
from steptime.roofline.op_cost import OpCost, Rule, nbytes, times, total
from steptime.roofline.signature import ELEMENT_BYTES, Operand, Signature


class _Places(NamedTuple):
    """Where an op's schema has its arguments; -1: not there. `transposed` is a place, or True or False for always."""

    stride: int
    padding: int
    dilation: int = -1
    bias: int = -1
    transposed: int | bool = False
    output_padding: int = -1
    groups: int = -1


_FORWARD = {
    "aten::convolution": _Places(3, 4, 5, 2, 6, 7, 8),
    "aten::_convolution": _Places(3, 4, 5, 2, 6, 7, 8),
    "aten::convolution_overrideable": _Places(3, 4, 5, 2, 6, 7, 8),
    "aten::conv1d": _Places(3, 4, 5, 2),
    "aten::conv2d": _Places(3, 4, 5, 2),
    "aten::conv3d": _Places(3, 4, 5, 2),
    "aten::conv_transpose1d": _Places(3, 4, 7, 2, True, 5, 6),
    "aten::conv_transpose2d": _Places(3, 4, 7, 2, True, 5, 6),
    "aten::conv_transpose3d": _Places(3, 4, 7, 2, True, 5, 6),
    "aten::cudnn_convolution": _Places(3, 2, 4),
    "aten::cudnn_convolution_transpose": _Places(4, 2, 5, -1, True, 3, 6),
    "aten::cudnn_convolution_relu": _Places(3, 4, 5, 2),
    "aten::cudnn_convolution_add_relu": _Places(5, 6, 7, 4),
    "aten::miopen_convolution": _Places(4, 3, 5, 2),
    "aten::miopen_depthwise_convolution": _Places(4, 3, 5, 2),
    "aten::miopen_convolution_transpose": _Places(5, 3, 6, 2, True, 4, 7),
    "aten::mkldnn_convolution": _Places(4, 3, 5, 2),
    "mkldnn::_convolution_pointwise": _Places(4, 3, 5, 2),
    "aten::thnn_conv2d": _Places(4, 5, -1, 3),
    "aten::_slow_conv2d_forward": _Places(4, 5, -1, 3),
    "aten::slow_conv3d": _Places(4, 5, -1, 3),
    "aten::slow_conv_dilated2d": _Places(4, 5, 6, 3),
    "aten::_conv_depthwise2d": _Places(4, 5, 6, 3),
    "aten::conv_depthwise3d": _Places(4, 5, 6, 3),
}


class _Call(NamedTuple):
    """The two inputs of a forward convolution, batched, and whether it is transposed (None: not recorded)."""

    x: Operand
    weight: Operand
    transposed: bool | None


def _call(sig: Signature, places: _Places) -> _Call | None:
    x, weight = sig.tensor(0), sig.tensor(1)
    if x is None or weight is None or len(weight.shape) < 3:
        return None
    if len(x.shape) == len(weight.shape) - 1:
        x = x._replace(shape=(1, *x.shape))
    if len(x.shape) != len(weight.shape):
        return None
    fixed = places.transposed
    return _Call(x, weight, fixed if isinstance(fixed, bool) else sig.boolean(fixed))


def _spread(values: list[int] | None, dims: int) -> list[int] | None:
    if values is None or len(values) not in (1, dims):
        return None
    return values * dims if len(values) == 1 else values


def _positions(sig: Signature, places: _Places, call: _Call) -> list[int] | None:
    """The spatial size of the result, or None when the arguments that decide it were not recorded."""
    size, kernel = call.x.shape[2:], call.weight.shape[2:]
    dims = len(size)
    stride = _spread(sig.integers(places.stride), dims)
    dilation = [1] * dims if places.dilation < 0 else _spread(sig.integers(places.dilation), dims)
    if stride is None or dilation is None:
        return None
    # A padding given by name ("same") is not recorded; the `aten::convolution` inside has it as numbers.
    padding = _spread(sig.integers(places.padding), dims)
    if padding is None:
        return None
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if call.transposed:
        extra = _spread(sig.integers(places.output_padding), dims)
        if extra is None:
            return None
        parts = zip(size, stride, padding, reach, extra, strict=True)
        return [(n - 1) * s - 2 * p + r + e + 1 for n, s, p, r, e in parts]
    return [(n + 2 * p - r - 1) // s + 1 for n, s, p, r in zip(size, stride, padding, reach, strict=True)]


def _forward(places: _Places) -> Rule:
    def rule(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
        call = _call(sig, places)
        if call is None:
            return None
        positions = _positions(sig, places, call)
        counted = call.x.shape[2:] if call.transposed else positions
        known = call.transposed is not None and counted is not None
        flops = 2 * call.x.shape[0] * prod(counted or ()) * call.weight.numel if known else None
        reads = total((call.x.nbytes, call.weight.nbytes, nbytes(sig.tensor(places.bias))))
        writes = times(_result_elements(sig, places, call, positions), call.x.element_bytes)
        return _convolution(sig, "forward", flops, (reads, writes), compute_dtype(call.x.dtype, kernels), call)

    return rule


def _result_elements(sig: Signature, places: _Places, call: _Call, positions: list[int] | None) -> int | None:
    if positions is None or call.transposed is None:
        return None
    channels: int | None = call.weight.shape[0]
    if call.transposed:
        groups = sig.integer(places.groups)
        channels = None if groups is None else call.weight.shape[1] * groups
    return times(channels, call.x.shape[0] * prod(positions))


def _convolution(  # noqa: PLR0913  (the parts of one record)
    sig: Signature,
    direction: str,
    flops: int | None,
    moved: tuple[int | None, int | None],
    dtype: str | None,
    call: _Call | None,
) -> OpCost:
    notes: tuple[str, ...] = ()
    if call is not None and call.transposed:
        notes = ("transposed",)
    elif call is not None and call.weight.shape[1] and call.x.shape[1] != call.weight.shape[1]:
        notes = (f"groups {call.x.shape[1] // call.weight.shape[1]}",)
    if any("complex" in name for name in sig.dtypes):
        flops, dtype, notes = None, None, ("complex",)
    if flops is None and not notes:
        notes = ("arguments not recorded",)
    return OpCost("convolution", direction, flops, flops, moved[0], moved[1], dtype, notes)


def _backward(order: tuple[int, int, int], transposed: int | bool, mask_index: int) -> Rule:
    """A gradient op; `order`: places of the result's gradient, the input and the weight. Bias gradients are sums."""

    def rule(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
        grad, x, weight = (sig.tensor(index) for index in order)
        if grad is None or x is None or weight is None or not len(grad.shape) == len(x.shape) == len(weight.shape) > 2:
            return None
        flipped = transposed if isinstance(transposed, bool) else sig.boolean(transposed)
        mask = sig.booleans(mask_index)
        dtype = compute_dtype(grad.dtype, kernels)
        call = _Call(x, weight, flipped)
        if mask is None or len(mask) < 2 or flipped is None:
            return _convolution(sig, "backward", None, (None, None), dtype, call)
        each = 2 * grad.shape[0] * prod((x if flipped else grad).shape[2:]) * weight.numel
        bias_bytes = times(grad.shape[1], ELEMENT_BYTES.get(grad.dtype)) if mask[2:3] == [True] else 0
        reads, writes = [], [bias_bytes]
        if mask[0]:
            reads += [grad.nbytes, weight.nbytes]
            writes.append(times(x.numel, x.element_bytes))
        if mask[1]:
            reads += [grad.nbytes, x.nbytes]
            writes.append(times(weight.numel, weight.element_bytes))
        flops = each * (mask[0] + mask[1])
        return _convolution(sig, "backward", flops, (total(reads), total(writes)), dtype, call)

    return rule


def _data_gradient(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """`*_convolution_backward_input(self_size, grad_output, weight, ...)`; its result has the shape of argument 0."""
    grad, weight = sig.tensor(1), sig.tensor(2)
    if grad is None or weight is None or len(grad.shape) != len(weight.shape) or len(weight.shape) < 3:
        return None
    flops = 2 * grad.shape[0] * prod(grad.shape[2:]) * weight.numel
    size = sig.integers(0)
    writes = times(None if size is None else prod(size), grad.element_bytes)
    moved = (total((grad.nbytes, weight.nbytes)), writes)
    return _convolution(sig, "backward", flops, moved, compute_dtype(grad.dtype, kernels), None)


def _weight_gradient(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """`*_convolution_backward_weight(weight_size, grad_output, self, ...)`: the weight's size is a recorded value."""
    grad, x = sig.tensor(1), sig.tensor(2)
    if grad is None or x is None or len(grad.shape) != len(x.shape) or len(x.shape) < 3:
        return None
    size = sig.integers(0)
    flops = None if size is None else 2 * grad.shape[0] * prod(grad.shape[2:]) * prod(size)
    moved = (total((grad.nbytes, x.nbytes)), times(None if size is None else prod(size), grad.element_bytes))
    return _convolution(sig, "backward", flops, moved, compute_dtype(grad.dtype, kernels), None)


RULES: dict[str, Rule] = {
    **{op: _forward(places) for op, places in _FORWARD.items()},
    "aten::convolution_backward": _backward((0, 1, 2), 7, 10),
    "aten::convolution_backward_overrideable": _backward((0, 1, 2), 7, 10),
    "aten::cudnn_convolution_backward": _backward((1, 0, 2), False, 10),
    "aten::cudnn_convolution_transpose_backward": _backward((1, 0, 2), True, 11),
    "aten::miopen_convolution_backward": _backward((1, 0, 2), False, 9),
    "aten::cudnn_convolution_backward_input": _data_gradient,
    "aten::cudnn_convolution_backward_weight": _weight_gradient,
    "aten::miopen_convolution_backward_input": _data_gradient,
    "aten::miopen_convolution_backward_weight": _weight_gradient,
}
