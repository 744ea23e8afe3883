"""Kernels that Inductor wrote in Triton, from the arguments that it records for them.

With bandwidth profiling on, Inductor adds its own `kernel_flop` and `kernel_num_gb`, which are used as they stand.
Otherwise a template product is priced only when its arguments are exactly three matrices that fit together, and a
fused kernel's bytes are its tensor arguments once each: which of them it reads and which it writes is not recorded.
A fused kernel that picks rows or parts of an argument has unknown bytes. Its name lists the ops that it came from, some
of them from the other pass, so the direction is always "forward": only the autograd node around it tells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from steptime.roofline.compute_dtype import compute_dtype
from steptime.roofline.op_cost import OpCost, total
from steptime.roofline.ops_matmul import three_matrices
from steptime.roofline.signature import Signature

_FLOP = re.compile(r"kernel_flop\W+(\d+)")
_GIGABYTES = re.compile(r"kernel_num_gb\W+(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")
_FUSED = re.compile(r"triton_(?:poi|red|per|mix)_")
# Words in a fused kernel's name for ops that touch only a part of an argument, or one argument several times.
_PARTIAL = re.compile(r"embedding|index|gather|scatter|select|slice|split|cat|narrow|unfold|pool|upsample|roll|flip")


def triton(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """The cost of an op named `triton_*`, or None when its arguments do not tell it."""
    operands = list(sig.tensors())
    dtype = compute_dtype(operands[0].dtype, kernels) if operands else None
    moved = _recorded_bytes(sig.extra)
    if sig.op.startswith("triton_tem_"):
        return _template(sig, dtype, moved)
    if not _FUSED.match(sig.op) or not operands:
        return None
    notes: tuple[str, ...] = ("bytes as Inductor counts them",)
    if moved is None:
        if _PARTIAL.search(sig.op):
            return OpCost("memory", "forward", 0, 0, None, None, dtype, ("arguments used in part",))
        moved, notes = total(operand.nbytes for operand in operands), ("every argument once",)
    return OpCost("memory", "forward", 0, 0, None, None, dtype, notes, moved)


def _template(sig: Signature, dtype: str | None, moved: int | None) -> OpCost | None:
    kind = "attention" if "attention" in sig.op else "convolution" if "convolution" in sig.op else "matmul"
    found = _FLOP.search(sig.extra)
    if found:
        flops: int | None = int(found.group(1))
        notes: tuple[str, ...] = ("FLOPs as Inductor counts them",)
    elif kind == "matmul":
        pairs = three_matrices([operand.shape for operand in sig.tensors()])
        flops, notes = None if pairs is None else 2 * pairs, ()
    else:
        return None
    if flops is None:
        return None
    if moved is None and not found:
        moved = total(operand.nbytes for operand in sig.tensors())
    return OpCost(kind, "forward", flops, flops, None, None, dtype, notes, moved)


def _recorded_bytes(extra: str) -> int | None:
    found = _GIGABYTES.search(extra)
    return None if found is None else round(float(found.group(1)) * 1e9)
