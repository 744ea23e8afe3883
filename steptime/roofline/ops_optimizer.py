"""Optimizers over lists of tensors, fused and foreach: bytes per parameter, 0 FLOPs.

"Input type" says only "TensorList", so the element size comes from the kernel's template argument
(`FusedAdamMathFunctor<float, 4, ...>`, `OpaqueType<4u>`); without a kernel it is unknown, and so are the bytes. The
profiler writes the shapes of lists of up to 30 tensors: the optimizer of a larger model has unknown bytes, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from steptime.roofline.memory_cost import memory
from steptime.roofline.op_cost import OpCost, Rule, times
from steptime.roofline.signature import ELEMENT_BYTES, Signature

_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_ELEMENT = r"(float|double|c10::BFloat16|c10::Half|long|int|short|bool|unsigned char|signed char)\b"
_FUNCTOR = re.compile(rf"(?:Functor|CatArrayBatchedCopy\w*)<{_ELEMENT}")
_COPIED = re.compile(r"\bCopy<([\w:]+), ([\w:]+)>")


def list_element_bytes(kernels: Sequence[str]) -> int | None:
    """Bytes an element of the lists of tensors that these kernels work on; None if unstated or if two disagree."""
    sizes = set()
    for kernel in kernels:
        opaque = _OPAQUE.search(kernel)
        functor = _FUNCTOR.search(kernel)
        if opaque:
            sizes.add(int(opaque.group(1)))
        elif functor:
            sizes.add(ELEMENT_BYTES[functor.group(1)])
    return sizes.pop() if len(sizes) == 1 else None


def _elements(sig: Signature, index: int) -> int | None:
    shapes = sig.tensor_list(index)
    return None if shapes is None else sum(prod(shape) for shape in shapes)


def _fused_adam(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """`_fused_adam[w]_(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, *, lr, ...)`.

    Reads parameter, gradient and both moments, writes all but the gradient; AMSGrad reads and writes a third moment; a
    gradient scale writes the unscaled gradient back. The step counters are FP32 scalars.
    """
    count, steps, largest = _elements(sig, 0), sig.tensor_list(5), _elements(sig, 4)
    if sig.dtype(0) != "TensorList":
        return None
    extra = 0 if largest is None else 1
    scaled = 1 if sig.tensor(13) is not None else 0
    size = list_element_bytes(kernels)
    moved = times(count, size)
    reads = None if moved is None or steps is None else moved * (4 + extra) + 4 * len(steps)
    return memory(sig, reads, times(moved, 3 + extra + scaled), "", _notes(count, size))


def _fused_sgd(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """`_fused_sgd_(params, grads, momenta, *, decay, momentum, lr, dampening, nesterov, maximize, first, scale)`."""
    count, momenta, first = _elements(sig, 0), _elements(sig, 2), sig.boolean(9)
    if sig.dtype(0) != "TensorList":
        return None
    scaled = 1 if sig.tensor(10) is not None else 0
    size = list_element_bytes(kernels)
    moved = times(count, size)
    if momenta is None:
        return memory(sig, times(moved, 2), times(moved, 1 + scaled), "", _notes(count, size))
    # The first step writes the momentum without reading it.
    reads = None if first is None else times(moved, 2 if first else 3)
    return memory(sig, reads, times(moved, 2 + scaled), "", _notes(count, size))


def _notes(count: int | None, size: int | None) -> tuple[str, ...]:
    if count is None:
        return ("shapes of the lists not recorded",)
    return ("element type not recorded",) if size is None else ()


# Ops that do not read what they write, and ops whose result is one value a tensor.
_WRITE_ONLY = ("_foreach_copy_", "_foreach_zero_")
_ONE_VALUE = ("_foreach_norm", "_foreach_max")


def _foreach(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """Any `_foreach_*`: reads its lists, writes a list like the first (in place or new)."""
    name = sig.op.removeprefix("aten::")
    lists = [index for index in range(sig.arity) if sig.dtype(index) == "TensorList"]
    if not lists or lists[0] != 0:
        return None
    counts = [_elements(sig, index) for index in lists]
    if name == "_foreach_copy_":
        return _foreach_copy(sig, kernels, counts)
    size = list_element_bytes(kernels)
    sources = counts[1:] if name in _WRITE_ONLY else counts
    read = None if None in sources else sum(count for count in sources if count is not None)
    written = counts[0]
    if name in _ONE_VALUE:
        written = len(sig.tensor_list(0) or ()) or None
    return memory(sig, times(read, size), times(written, size), "", _notes(counts[0], size))


def _foreach_copy(sig: Signature, kernels: Sequence[str], counts: Sequence[int | None]) -> OpCost:
    """Source and destination may differ in type: the kernel names both, `Copy<to, from>`."""
    found = {match.groups() for kernel in kernels if (match := _COPIED.search(kernel))}
    to, source = found.pop() if len(found) == 1 else ("", "")
    reads = times(counts[-1], ELEMENT_BYTES.get(source))
    return memory(sig, reads, times(counts[0], ELEMENT_BYTES.get(to)), to, _notes(counts[0], ELEMENT_BYTES.get(to)))


_NAMES = (
    "sqrt", "neg", "reciprocal", "zero", "exp", "abs", "sign", "rsqrt", "log", "round", "sigmoid", "tanh", "add", "sub",
    "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow", "lerp", "addcmul", "addcdiv",
)  # fmt: skip

RULES: dict[str, Rule] = {
    "aten::_fused_adam_": _fused_adam,
    "aten::_fused_adamw_": _fused_adam,
    "aten::_fused_sgd_": _fused_sgd,
    **{f"aten::_foreach_{name}{form}": _foreach for name in _NAMES for form in ("", "_")},
    "aten::_foreach_norm": _foreach,
    "aten::_foreach_max": _foreach,
    "aten::_foreach_copy_": _foreach,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _foreach,
}
