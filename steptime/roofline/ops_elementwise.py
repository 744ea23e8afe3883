"""Elementwise ops: copies, arithmetic with broadcasting, activations and their gradients, fills, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from steptime.roofline.memory_cost import category, memory, promoted_bytes
from steptime.roofline.op_cost import OpCost, Rule, nbytes, times, total
from steptime.roofline.ops_matmul import broadcast
from steptime.roofline.signature import ELEMENT_BYTES, Operand, Signature


class _Form(NamedTuple):
    """Number of schema arguments, how many of them decide the result's type, and how.

    result: "promote", "float" (integers become floats) or "bool".
    """

    arity: int
    deciding: int
    result: str


# A name and its number of arguments, defaults included (`add 3/2`: of three, alpha does not decide the type). In-place
# forms (`add_`) keep the type of the first tensor. One argument more is the tensor of `out=`.
_PROMOTE = (
    "abs 1, neg 1, relu 1, relu6 1, sign 1, sgn 1, square 1, round 1, floor 1, ceil 1, trunc 1, frac 1, positive 1, "
    "bitwise_not 1, clamp 3, clip 3, clamp_min 2, clamp_max 2, hardtanh 3, leaky_relu 2, elu 4, celu 2, threshold 3, "
    "nan_to_num 4, tril 2/1, triu 2/1, flip 2, roll 3, hardshrink 2, softshrink 2, hardswish 1, hardsigmoid 1, "
    "add 3/2, sub 3/2, rsub 3/2, mul 2, floor_divide 2, remainder 2, fmod 2, pow 2, maximum 2, minimum 2, fmax 2, "
    "fmin 2, bitwise_and 2, bitwise_or 2, bitwise_xor 2, copysign 2, hypot 2, lerp 3, addcmul 4/3, addcdiv 4/3, "
    "masked_fill 3, sigmoid_backward 2, tanh_backward 2, threshold_backward 3, gelu_backward 3, silu_backward 2, "
    "mish_backward 2, elu_backward 6, leaky_relu_backward 4, hardtanh_backward 4, hardswish_backward 2, "
    "hardsigmoid_backward 2, softplus_backward 4, logit_backward 3, hardshrink_backward 3, softshrink_backward 3, "
    "native_dropout_backward 3, huber_loss_backward 5"
)
_FLOAT = (
    "exp 1, exp2 1, expm1 1, log 1, log2 1, log10 1, log1p 1, sqrt 1, rsqrt 1, reciprocal 1, sin 1, cos 1, tan 1, "
    "asin 1, acos 1, atan 1, sinh 1, cosh 1, tanh 1, sigmoid 1, erf 1, erfc 1, erfinv 1, lgamma 1, digamma 1, "
    "gelu 2, silu 1, mish 1, softplus 3, logit 2, div 3, true_divide 2, atan2 2, xlogy 2, logaddexp 2"
)
_BOOL = (
    "isnan 1, isinf 1, isfinite 1, isposinf 1, isneginf 1, logical_not 1, logical_and 2, logical_or 2, logical_xor 2, "
    "eq 2, ne 2, lt 2, le 2, gt 2, ge 2, less 2, greater 2"
)


def _table(text: str, result: str) -> dict[str, _Form]:
    forms = {}
    for entry in text.split(", "):
        name, counts = entry.split()
        arity, _, deciding = counts.partition("/")
        forms[name] = _Form(int(arity), int(deciding or arity), result)
    return forms


_FORMS = {**_table(_PROMOTE, "promote"), **_table(_FLOAT, "float"), **_table(_BOOL, "bool")}


def _pointwise(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    name = sig.op.removeprefix("aten::")
    in_place = name.endswith("_")
    form = _FORMS[name.rstrip("_") if in_place else name]
    return _elementwise(sig, form, in_place=in_place)


def _elementwise(sig: Signature, form: _Form, *, in_place: bool) -> OpCost | None:
    """Read every tensor, write the broadcast result."""
    if sig.arity > form.arity + 1:
        return None
    out = sig.tensor(form.arity) if sig.arity == form.arity + 1 else None
    operands = [x for x in (sig.tensor(i) for i in range(min(sig.arity, form.arity))) if x is not None]
    shape = _broadcast_all(operands)
    if not operands or shape is None or (sig.arity > form.arity and out is None):
        return None
    target = operands[0] if in_place else out
    if target is not None:
        # An out= tensor may be empty: it is resized.
        if target.numel != prod(shape) and (in_place or target.numel):
            return None
        size = target.element_bytes
    else:
        numbers = [sig.text(i) for i in range(min(sig.arity, form.deciding)) if sig.dtype(i) == "Scalar"]
        size = _result_bytes(form, operands, numbers)
    return memory(sig, total(x.nbytes for x in operands), times(prod(shape), size), operands[0].dtype)


def _broadcast_all(operands: Sequence[Operand]) -> tuple[int, ...] | None:
    shape: tuple[int, ...] | None = ()
    for operand in operands:
        shape = None if shape is None else broadcast(shape, operand.shape)
    return shape


def _result_bytes(form: _Form, operands: Sequence[Operand], numbers: Sequence[str | None]) -> int | None:
    if form.result == "bool":
        return 1
    size = promoted_bytes(operands, numbers)
    if form.result == "float" and all((category(x.dtype) or 0) < 2 for x in operands):
        return None
    return size


def _where(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`where(condition, a, b)`: the condition is read but does not promote."""
    condition = sig.tensor(0)
    chosen = [x for x in (sig.tensor(1), sig.tensor(2)) if x is not None]
    shape = None if condition is None else _broadcast_all([condition, *chosen])
    if condition is None or shape is None or sig.arity != 3:
        return None
    numbers = [sig.text(i) for i in (1, 2) if sig.tensor(i) is None]
    reads = total((condition.nbytes, *(x.nbytes for x in chosen)))
    return memory(sig, reads, times(prod(shape), promoted_bytes(chosen, numbers)), chosen[0].dtype if chosen else "")


def _copy(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`copy_(destination, source)`, with the change of type that their types show."""
    target, source = sig.tensor(0), sig.tensor(1)
    if target is None or source is None or sig.arity > 3:
        return None
    return memory(sig, source.nbytes, target.nbytes, source.dtype, _copy_notes(source.dtype, target.dtype))


def _copy_notes(source: str, target: str) -> tuple[str, ...]:
    return (f"{source} to {target}",) if source != target and source and target else ()


def _to_copy(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`_to_copy(self, *, dtype, ...)`: without a dtype the type stays."""
    source = sig.tensor(0)
    if source is None:
        return None
    kept = sig.dtype(1) == "" and bool(sig.dtypes)
    target = source.dtype if kept else (sig.scalar_type(1) or "")
    writes = times(source.numel, ELEMENT_BYTES.get(target))
    return memory(sig, source.nbytes, writes, source.dtype, _copy_notes(source.dtype, target))


def _clone(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    source = sig.tensor(0)
    if source is None or sig.arity > 2:
        return None
    return memory(sig, source.nbytes, times(source.numel, source.element_bytes), source.dtype)


def _fill(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """Writes its first argument without reading it: fills, zeros and random numbers."""
    target = sig.tensor(0)
    return None if target is None else memory(sig, 0, target.nbytes, target.dtype)


def _repeat(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    source, repeats = sig.tensor(0), sig.integers(1)
    if source is None:
        return None
    count = None if repeats is None else source.numel * prod(repeats)
    return memory(sig, source.nbytes, times(count, source.element_bytes), source.dtype)


def _pad(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`constant_pad_nd(self, pad)`: pairs of paddings from the last dimension on."""
    source, pad = sig.tensor(0), sig.integers(1)
    if source is None:
        return None
    shape = list(source.shape)
    if pad is None or len(pad) % 2 or len(pad) > 2 * len(shape):
        return memory(sig, source.nbytes, None, source.dtype)
    for index in range(0, len(pad), 2):
        shape[-1 - index // 2] += pad[index] + pad[index + 1]
    return memory(sig, source.nbytes, times(prod(shape), source.element_bytes), source.dtype)


def _dropout(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`native_dropout` and `_fused_dropout`: the result, and a mask of one byte an element."""
    x = sig.tensor(0)
    if x is None or (sig.op == "aten::native_dropout" and sig.boolean(2) is False):
        return None
    return memory(sig, x.nbytes, times(x.numel, None if x.element_bytes is None else x.element_bytes + 1), x.dtype)


def _glu(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    x = sig.tensor(0)
    return None if x is None else memory(sig, x.nbytes, times(x.numel // 2, x.element_bytes), x.dtype)


def _glu_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    grad, x = sig.tensor(0), sig.tensor(1)
    if grad is None or x is None:
        return None
    return memory(sig, total((grad.nbytes, x.nbytes)), times(x.numel, x.element_bytes), x.dtype)


def _log_sigmoid(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """Forward: its buffer is empty on a GPU. Backward: gradient and input (the buffer is read if it is not empty)."""
    operands = list(sig.tensors())
    if not operands:
        return None
    backward = "backward" in sig.op
    reads = total(nbytes(x) for x in operands[: 3 if backward else 1])
    return memory(sig, reads, times(operands[0].numel, operands[0].element_bytes), operands[0].dtype)


RULES: dict[str, Rule] = {
    **{f"aten::{name}": _pointwise for name in _FORMS},
    **{f"aten::{name}_": _pointwise for name in _FORMS if "backward" not in name},
    "aten::where": _where,
    "aten::copy_": _copy,
    "aten::_to_copy": _to_copy,
    "aten::clone": _clone,
    "aten::repeat": _repeat,
    "aten::constant_pad_nd": _pad,
    "aten::native_dropout": _dropout,
    "aten::_fused_dropout": _dropout,
    "aten::glu": _glu,
    "aten::glu_backward": _glu_backward,
    "aten::log_sigmoid_forward": _log_sigmoid,
    "aten::log_sigmoid_backward": _log_sigmoid,
    **dict.fromkeys(
        ("aten::fill_", "aten::zero_", "aten::bernoulli_", "aten::uniform_", "aten::normal_", "aten::random_",
         "aten::exponential_", "aten::log_normal_", "aten::geometric_"),
        _fill,
    ),
}  # fmt: skip
