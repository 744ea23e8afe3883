"""The recorded arguments of one op: what `record_shapes` leaves in a trace, read without guessing.

A trace writes, per op, "Input Dims" (a shape for each tensor, a list of shapes for each list of tensors, `[]` for the
rest), "Input type" (C++ type names), and since PyTorch 2.2 "Concrete Inputs" (the values of the other arguments, as
text) and "Input Strides". Arguments stand in the order of the op's schema, keyword-only ones included. Outputs are
never recorded, nor are the dtypes inside a list of tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, TypeGuard

import msgspec

# Bytes an element, by the C++ names that compilers print for the same type. A Float4 element is a packed pair.
ELEMENT_BYTES = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "short": 2,
    "short int": 2,
    "unsigned short": 2,
    "short unsigned int": 2,
    "int": 4,
    "unsigned int": 4,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "unsigned long": 8,
    "long unsigned int": 8,
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<c10::Half>": 4,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "c10::qint32": 4,
}

# `c10::ScalarType` as "Concrete Inputs" writes a dtype argument (torch/headeronly/core/ScalarType.h).
SCALAR_TYPES = {
    0: "unsigned char",
    1: "signed char",
    2: "short",
    3: "int",
    4: "long",
    5: "c10::Half",
    6: "float",
    7: "double",
    9: "c10::complex<float>",
    10: "c10::complex<double>",
    11: "bool",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
    44: "c10::Float8_e8m0fnu",
    45: "c10::Float4_e2m1fn_x2",
}

# Names in "Input type" that are not a tensor's; the capitalised ones are from the 2021 format.
_NOT_TENSORS = frozenset(
    ("", "Scalar", "ScalarList", "TensorList", "GenericList", "Int", "Bool", "Double", "IntList", "Device", "None")
)

_INTEGER = re.compile(r"-?\d+")
_DECODE_ANY = msgspec.json.Decoder(list[Any])
_DECODE_TEXTS = msgspec.json.Decoder(list[str])


class Operand(NamedTuple):
    """A tensor argument: shape, C++ type name ("" when not recorded), and its distinct elements.

    `stored` is less than the product of the shape only where a recorded stride of 0 repeats an element.
    """

    shape: tuple[int, ...]
    dtype: str
    stored: int

    @property
    def numel(self) -> int:
        """Elements that the shape spans."""
        return prod(self.shape)

    @property
    def element_bytes(self) -> int | None:
        """Bytes an element; None when the type is not known."""
        return ELEMENT_BYTES.get(self.dtype)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the distinct elements; None when the type is not known."""
        size = ELEMENT_BYTES.get(self.dtype)
        return None if size is None else size * self.stored


class Signature(msgspec.Struct, frozen=True):
    """One op with its recorded arguments.

    shapes, dtypes, concrete and strides are parallel lists, one entry an argument; dtypes, concrete and strides are
    empty where the trace does not have them. `extra` is the raw text of the arguments that Inductor adds.
    """

    op: str
    shapes: list[Any]
    dtypes: list[str] = msgspec.field(default_factory=list)
    concrete: list[str] = msgspec.field(default_factory=list)
    strides: list[Any] = msgspec.field(default_factory=list)
    extra: str = ""

    @property
    def arity(self) -> int:
        """Number of recorded arguments."""
        return len(self.shapes)

    def dtype(self, index: int) -> str:
        """The recorded type name of an argument; "" when there is none."""
        return self.dtypes[index] if index < len(self.dtypes) else ""

    def tensor(self, index: int) -> Operand | None:
        """The argument as a tensor, or None when it is missing, undefined or something else."""
        if not 0 <= index < len(self.shapes):
            return None
        shape = self.shapes[index]
        dtype = self.dtype(index)
        if self.dtypes:
            if dtype in _NOT_TENSORS:
                return None
        elif not shape:
            # Without types a scalar and a tensor of no dimension look the same.
            return None
        if not _is_shape(shape):
            return None
        return Operand(tuple(shape), dtype, self._stored(index, shape))

    def tensors(self) -> Iterator[Operand]:
        """The tensor arguments, in order."""
        for index in range(len(self.shapes)):
            operand = self.tensor(index)
            if operand is not None:
                yield operand

    def tensor_list(self, index: int) -> list[tuple[int, ...]] | None:
        """Shapes of a list of tensors; None when the argument is none, or its shapes were not recorded."""
        if self.dtype(index) != "TensorList":
            return None
        shapes = self.shapes[index]
        if not isinstance(shapes, list) or not shapes or not all(_is_shape(shape) for shape in shapes):
            return None
        return [tuple(shape) for shape in shapes]

    def text(self, index: int) -> str | None:
        """The concrete value as text ("" for None and for tensors); None when values were not recorded."""
        return self.concrete[index] if 0 <= index < len(self.concrete) else None

    def integer(self, index: int) -> int | None:
        """The concrete value as an integer, else None."""
        text = self.text(index)
        return int(text) if text and _INTEGER.fullmatch(text) else None

    def boolean(self, index: int) -> bool | None:
        """The concrete value as a truth value, else None."""
        return {"True": True, "False": False}.get(self.text(index) or "")

    def integers(self, index: int) -> list[int] | None:
        """The concrete value as a list of integers, else None. A lone integer is a list of one."""
        text = self.text(index)
        if not text:
            return None
        inner = text[1:-1] if text[0] == "[" and text[-1] == "]" else text
        parts = [part.strip() for part in inner.split(",")] if inner.strip() else []
        return [int(part) for part in parts] if all(_INTEGER.fullmatch(part) for part in parts) else None

    def booleans(self, index: int) -> list[bool] | None:
        """The concrete value as a list of truth values, else None."""
        text = self.text(index)
        if not text or text[0] != "[":
            return None
        parts = [part.strip() for part in text[1:-1].split(",")]
        return [part == "True" for part in parts] if all(part in ("True", "False") for part in parts) else None

    def scalar_type(self, index: int) -> str | None:
        """The type name that a dtype argument asks for, else None."""
        number = self.integer(index)
        return None if number is None else SCALAR_TYPES.get(number)

    def _stored(self, index: int, shape: list[int]) -> int:
        strides = self.strides[index] if index < len(self.strides) else None
        if not _is_shape(strides) or len(strides) != len(shape):
            return prod(shape)
        return prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0 or size == 0)


def parse_signature(  # noqa: PLR0913  (one parameter for each recorded argument)
    op: str,
    shapes_json: str,
    types_json: str = "",
    concrete_json: str = "",
    strides_json: str = "",
    extra: str = "",
) -> Signature | None:
    """Read the raw texts of one op's "Input Dims", "Input type", "Concrete Inputs" and "Input Strides".

    None when the shapes are not a JSON list. A list of another length than the shapes is dropped: an argument that
    cannot be placed is not known.
    """
    shapes = _decode(_DECODE_ANY, shapes_json)
    if shapes is None:
        return None
    return Signature(
        op,
        shapes,
        _matching(_decode(_DECODE_TEXTS, types_json), shapes),
        _matching(_decode(_DECODE_TEXTS, concrete_json), shapes),
        _matching(_decode(_DECODE_ANY, strides_json), shapes),
        extra,
    )


def _decode(decoder: msgspec.json.Decoder[list[Any]], text: str) -> list[Any] | None:
    if not text:
        return None
    try:
        return decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def _matching(values: list[Any] | None, shapes: list[Any]) -> list[Any]:
    return values if values is not None and len(values) == len(shapes) else []


def _is_shape(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
