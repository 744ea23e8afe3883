"""What one op costs: floating-point operations and bytes, each None where it cannot be known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from steptime.roofline.signature import Operand, Signature


class OpCost(msgspec.Struct, frozen=True):
    """The cost of one call of an op.

    kind: "matmul", "convolution", "attention" or "memory". direction: "forward" or "backward", by the op's own name.
    model_flops: what the mathematics needs; hardware_flops: what the usual kernel runs. A multiplication and an
    addition are two. read_bytes, write_bytes: traffic to memory when every operand moves once. total_bytes: only where
    the sum is known and the split is not. dtype: the type of the arithmetic ("bf16", "fp16", "fp32", "tf32", "fp64",
    "fp8", "fp4", "int8"). None: not known.
    """

    kind: str
    direction: str
    model_flops: int | None
    hardware_flops: int | None
    read_bytes: int | None
    write_bytes: int | None
    dtype: str | None
    notes: tuple[str, ...] = ()
    total_bytes: int | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes read and written, or None when either is unknown."""
        if self.total_bytes is not None:
            return self.total_bytes
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes


Rule = Callable[[Signature, Sequence[str]], "OpCost | None"]


def total(parts: Iterable[int | None]) -> int | None:
    """Sum of byte counts; None when one of them is unknown."""
    amount = 0
    for part in parts:
        if part is None:
            return None
        amount += part
    return amount


def times(count: int | None, size: int | None) -> int | None:
    """Elements times bytes an element; None when either is unknown."""
    return None if count is None or size is None else count * size


def nbytes(operand: Operand | None) -> int | None:
    """Bytes of an optional tensor argument: 0 when it is absent, None when its type is unknown."""
    return 0 if operand is None else operand.nbytes
