"""Named faults of a group of calls that its shapes, launch configuration and kernel names show (DESIGN 4)."""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.model import OpRoof
from steptime.roofline.pricing import MATH_PATH, Roof

#: Tensor cores want dimensions that are multiples of this many elements, by dtype. Source: NVIDIA "Matrix
#: Multiplication Background": 16 bytes on Volta to Turing, 128 bytes on Ampere and later for full efficiency.
ALIGNMENT = {"fp8": 16, "bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4, "int8": 16}
#: A kernel in its last wave uses the device this little or less: the tail costs half a wave or more.
TAIL_SHARE = 0.5
#: More full waves than this hide any tail.
MANY_WAVES = 8
#: Below this share of the roof a fault in shape or launch is worth naming.
SLOW_SHARE = 0.6

#: Kernels that do nothing but move elements into another layout.
_LAYOUT_KERNELS = ("batched_transpose", "void at::native::transpose", "transpose_kernel")


def checks(row: OpRoof, config: str, roof: Roof) -> OpRoof:
    """The row with its faults.

    Args:
        row: a group of calls.
        config: raw grid and block of its longest kernel, ``"[x, y, z]|[x, y, z]"``.
        roof: the device's roof.
    """
    found: list[str] = []
    name = row.kernel.lower()
    slow = row.peak_share is not None and row.peak_share < SLOW_SHARE
    if row.kind == "matmul" and slow and _misaligned(row):
        found.append("misaligned")
    if row.kind in ("matmul", "attention", "convolution") and row.dtype in ("fp32", "tf32") and _has_faster(roof):
        found.append(f"{row.dtype}_where_{roof.dtype}_is_reference")
    if slow and row.kind in ("matmul", "convolution") and _tail_wave(config, roof):
        found.append("wave_quantized")
    if MATH_PATH in row.notes or "scaled_dot_product_attention_math" in row.op:
        found.append("math_attention")
    if name.startswith(_LAYOUT_KERNELS) or "nchwtonhwc" in name or "nhwctonchw" in name or row.op == "aten::contiguous":
        found.append("layout_copy")
    if row.op in ("aten::_to_copy", "aten::to") or (row.op == "aten::copy_" and "copy" in name and _changes_dtype(row)):
        found.append("dtype_copy")
    if row.bound == "launch":
        found.append("tiny_kernels")
    return msgspec.structs.replace(row, checks=found) if found else row


def _has_faster(roof: Roof) -> bool:
    return roof.dtype not in ("fp32", "tf32", "fp64")


def _misaligned(row: OpRoof) -> bool:
    step = ALIGNMENT.get(row.dtype or "")
    if step is None:
        return False
    try:
        shapes = msgspec.json.decode(row.shapes)
    except msgspec.DecodeError:
        return False
    dims = [dim for shape in shapes if isinstance(shape, list) for dim in shape[-2:] if isinstance(dim, int)]
    return any(dim % step and dim > step for dim in dims)


def _changes_dtype(row: OpRoof) -> bool:
    return any(" to " in note for note in row.notes)


def _tail_wave(config: str, roof: Roof) -> bool:
    """Whether the blocks leave most of the device idle in the last of few waves, one block a multiprocessor."""
    if roof.gpu is None or roof.gpu.multiprocessors is None or not roof.gpu.multiprocessors.usable:
        return False
    try:
        grid = msgspec.json.decode(config.partition("|")[0], type=list[int])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    blocks = int(np.prod(grid)) if grid else 0
    waves, tail = divmod(blocks, int(roof.gpu.multiprocessors.usable))
    return 0 < tail <= TAIL_SHARE * roof.gpu.multiprocessors.usable and waves < MANY_WAVES
