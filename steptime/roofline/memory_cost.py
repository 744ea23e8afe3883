"""What the rules for memory-bound ops share: result types, sizes and the record itself.

Such an op needs no floating-point work that counts as model FLOPs. Its bytes are the traffic when every operand moves
once: what a kernel reads again, or rewrites in a second pass, is overhead that the roofline should show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from steptime.roofline.compute_dtype import compute_dtype
from steptime.roofline.op_cost import OpCost
from steptime.roofline.signature import ELEMENT_BYTES, Operand, Signature

_INTEGERS = (
    "unsigned char", "signed char", "char", "short", "short int", "unsigned short", "short unsigned int", "int",
    "unsigned int", "long", "long int", "long long", "unsigned long", "long unsigned int",
)  # fmt: skip
_CATEGORY = {"bool": 0, **dict.fromkeys(_INTEGERS, 1)}

_NEITHER_HOLDS = ({"c10::Half", "c10::BFloat16"}, {"unsigned char", "signed char"})


def memory(
    sig: Signature, reads: int | None, writes: int | None, dtype: str = "", notes: tuple[str, ...] = ()
) -> OpCost:
    """A memory-bound op that reads and writes so many bytes; `dtype` is the type name of its main operand."""
    direction = "backward" if "backward" in sig.op else "forward"
    return OpCost("memory", direction, 0, 0, reads, writes, compute_dtype(dtype), notes)


def category(dtype: str) -> int | None:
    """0 bool, 1 integer, 2 floating, 3 complex; None: unknown type."""
    if dtype not in ELEMENT_BYTES:
        return None
    return _CATEGORY.get(dtype, 3 if "complex" in dtype else 2)


def scalar_category(text: str | None) -> int | None:
    """The same for a number given as text ("1", "0.5", "True"); None when it was not recorded."""
    if not text:
        return None
    if text in ("True", "False"):
        return 0
    return 1 if text.lstrip("-").isdigit() else 2


def promoted_bytes(operands: Sequence[Operand], scalars: Iterable[str | None] = ()) -> int | None:
    """Bytes an element of the result of an elementwise op, by PyTorch's type promotion; None when not decidable.

    Tensors of no dimension and numbers matter only when their category is higher. A number that turns integers into
    floats gives the default dtype, which a trace does not record; PyTorch hands numbers to some ops as a "double" of no
    dimension, which a trace does not tell from a tensor.
    """
    if not operands or any(category(operand.dtype) is None for operand in operands):
        return None
    by_rank = [operand for operand in operands if operand.shape] or list(operands)
    kind, size = max(_key(operand) for operand in by_rank)
    for operand in operands:
        if _key(operand)[0] > kind:
            if operand.dtype == "double":
                return None
            kind, size = _key(operand)
    if kind < 2:
        size_of_numbers = _widened_by_numbers(kind, size, [scalar_category(text) for text in scalars])
        if size_of_numbers != size:
            return size_of_numbers
    names = {operand.dtype for operand in by_rank if category(operand.dtype) == kind}
    # Two types of one size that neither holds: FP16 with BF16, signed with unsigned bytes.
    return 2 * size if names in _NEITHER_HOLDS else size


def _widened_by_numbers(kind: int, size: int, numbers: Sequence[int | None]) -> int | None:
    """Bytes an element when numbers of these categories meet booleans or integers; None when not decidable."""
    if None in numbers:
        return None
    highest = max((number for number in numbers if number is not None), default=0)
    if highest == 2:
        return None
    return 8 if highest > kind else size


def _key(operand: Operand) -> tuple[int, int]:
    return category(operand.dtype) or 0, operand.element_bytes or 0


def reduced_elements(shape: tuple[int, ...], dims: Sequence[int] | None) -> int | None:
    """Elements that are left after reducing over `dims` (none or empty: over all); None for a wrong dimension."""
    if not dims:
        return 1
    if any(not -len(shape) <= dim < len(shape) for dim in dims):
        return None
    gone = {dim % len(shape) for dim in dims}
    return prod(size for index, size in enumerate(shape) if index not in gone)


def accumulate_bytes(dtype: str) -> int | None:
    """Bytes of the type in which normalisations keep mean and variance: FP32, or FP64 for FP64 input."""
    kind = category(dtype)
    return None if kind != 2 else 8 if dtype == "double" else 4
