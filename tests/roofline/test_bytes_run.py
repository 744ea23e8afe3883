"""Bytes against the tensors themselves: ops run under the profiler, and the sizes of their real inputs and results.

This holds the rules for result types and result shapes against what PyTorch really returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.roofline.recorded_ops import one, price, record

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ALL = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _filled(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(tuple(shape), dtype=dtype)


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_nbytes(part) for part in value) if isinstance(value, tuple) else 0


def _check(name: str, operands: Sequence[torch.Tensor], call: Callable[..., Any], folder: Path) -> None:
    result: list[Any] = []
    signature = one(record(lambda: result.append(call(*operands)), folder), f"aten::{name}")
    found = price(signature)
    assert found.read_bytes == sum(_nbytes(operand) for operand in operands)
    assert found.write_bytes == _nbytes(result[0])


PAIRS = [(a, b) for a in ALL for b in (torch.float32, torch.bfloat16, torch.int64, torch.bool)]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_the_type_of_a_sum_of_two_types(first: torch.dtype, second: torch.dtype, tmp_path: Path) -> None:
    _check("add", (_filled((6, 5), first), _filled((5,), second)), torch.add, tmp_path)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_a_tensor_of_no_dimension_promotes_only_to_a_higher_category(
    first: torch.dtype, second: torch.dtype, tmp_path: Path
) -> None:
    _check("add", (_filled((6, 5), first), _filled((), second)), torch.add, tmp_path)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(dtype, number) for dtype in FLOATS for number in (2, 0.5)]
    + [(dtype, 2) for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)],
    ids=str,
)
def test_a_number_does_not_widen_its_tensor(dtype: torch.dtype, number: float, tmp_path: Path) -> None:
    x = _filled((6, 5), dtype)
    found = price(one(record(lambda: x * number, tmp_path), "aten::mul"))
    # The number is recorded as a tensor of no dimension, "double" or "long int".
    assert (found.read_bytes, found.write_bytes) == (_nbytes(x) + 8, _nbytes(x * number))


def test_a_number_that_makes_floats_of_integers_leaves_the_type_open(tmp_path: Path) -> None:
    x = _filled((6, 5), torch.int32)
    assert price(one(record(lambda: x * 0.5, tmp_path), "aten::mul")).write_bytes is None


UNARY = (
    "abs",
    "neg",
    "exp",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "sin",
    "relu",
    "isnan",
    "logical_not",
    "clone",
    "cumsum",
)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    arguments = (0,) if name == "cumsum" else ()
    _check(name, (_filled((7, 9), dtype),), lambda x: getattr(torch, name)(x, *arguments), tmp_path)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", ["eq", "lt", "logical_and", "maximum"])
def test_comparisons(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    operands = (_filled((7, 9), dtype), _filled((7, 1), dtype))
    _check(name, operands, getattr(torch, name), tmp_path)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_selection(dtype: torch.dtype, tmp_path: Path) -> None:
    operands = (_filled((7, 9), torch.bool), _filled((7, 9), dtype), _filled((), torch.float32))
    _check("where", operands, torch.where, tmp_path)
    _check(
        "masked_fill",
        (_filled((7, 9), dtype), _filled((7, 9), torch.bool)),
        lambda x, m: x.masked_fill(m, -1.0),
        tmp_path,
    )


REDUCTIONS: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
    ("sum", lambda x: x.sum()),
    ("sum", lambda x: x.sum(0)),
    ("sum", lambda x: x.sum((0, -1), keepdim=True)),
    ("sum", lambda x: x.sum(1, dtype=torch.float64)),
    ("mean", lambda x: x.mean(-1)),
    ("prod", lambda x: x.prod(1)),
    ("amax", lambda x: x.amax(0)),
    ("max", lambda x: x.max()),
    ("max", lambda x: x.max(1)),
    ("argmax", lambda x: x.argmax(1)),
    ("any", lambda x: x.any(1)),
    ("var", lambda x: x.var(1)),
    ("var_mean", lambda x: torch.var_mean(x, 1)),
    ("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, dim=1)),
    ("logsumexp", lambda x: x.logsumexp(1)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "call"), REDUCTIONS, ids=[f"{n} {c[0]}" for n, c in enumerate(REDUCTIONS)])
def test_reductions(name: str, call: Callable[[torch.Tensor], Any], dtype: torch.dtype, tmp_path: Path) -> None:
    _check(name, (_filled((6, 4, 5), dtype),), call, tmp_path)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
def test_integers_add_up_in_64_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    for name in ("sum", "prod", "cumsum"):
        _check(name, (_filled((6, 5), dtype),), lambda x, name=name: getattr(torch, name)(x, 1), tmp_path)


IMAGES: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
    ("avg_pool2d", lambda x: functional.avg_pool2d(x, 3, 2, 1)),
    ("avg_pool2d", lambda x: functional.avg_pool2d(x, 2)),
    ("avg_pool2d", lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    ("max_pool2d_with_indices", lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True)),
    ("max_pool2d_with_indices", lambda x: functional.max_pool2d(x, (2, 3), ceil_mode=True, return_indices=True)),
    ("max_pool2d_with_indices", lambda x: functional.max_pool2d(x, 2, 3, 0, 2, ceil_mode=True, return_indices=True)),
    ("_adaptive_avg_pool2d", lambda x: functional.adaptive_avg_pool2d(x, (3, 2))),
    ("upsample_nearest2d", lambda x: functional.interpolate(x, (20, 22), mode="nearest")),
    ("upsample_bilinear2d", lambda x: functional.interpolate(x, (20, 22), mode="bilinear")),
    ("constant_pad_nd", lambda x: functional.pad(x, (1, 2, 3, 4))),
    ("repeat", lambda x: x.repeat(2, 1, 1, 3)),
    ("_softmax", lambda x: x.softmax(1)),
    ("_log_softmax", lambda x: x.log_softmax(-1)),
    ("glu", lambda x: functional.glu(x, 1)),
    ("native_dropout", lambda x: torch.native_dropout(x, 0.5, True)),
    ("_to_copy", lambda x: x.to(torch.float64)),
]


@pytest.mark.parametrize(("name", "call"), IMAGES, ids=[f"{n} {c[0]}" for n, c in enumerate(IMAGES)])
def test_images(name: str, call: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    _check(name, (_filled((2, 4, 10, 11), torch.float32),), call, tmp_path)


def test_normalisations(tmp_path: Path) -> None:
    x, vector, planes = _filled((4, 6, 8), torch.float32), _filled((8,), torch.float32), _filled((6,), torch.float32)
    _check(
        "native_layer_norm",
        (x, vector, vector),
        lambda *a: torch.native_layer_norm(a[0], [8], a[1], a[2], 1e-5),
        tmp_path,
    )
    _check(
        "native_group_norm",
        (x, planes, planes),
        lambda a, b, c: torch.native_group_norm(a, b, c, 4, 6, 8, 3, 1e-5),
        tmp_path,
    )
    _check("_fused_rms_norm", (x, vector), lambda *a: torch.ops.aten._fused_rms_norm(a[0], [8], a[1], 1e-5), tmp_path)


def test_gathers(tmp_path: Path) -> None:
    # The rows that an index names are read, so the table counts with the size of the result.
    table, rows = _filled((50, 8), torch.float32), torch.tensor([[1, 2, 3], [4, 5, 6]])
    cases: list[tuple[str, Callable[[], torch.Tensor], torch.Tensor]] = [
        ("embedding", lambda: functional.embedding(rows, table), rows),
        ("index_select", lambda: table.index_select(0, rows[0]), rows[0]),
        ("gather", lambda: table.gather(1, rows), rows),
    ]
    for name, call, index in cases:
        result = call()
        found = price(one(record(call, tmp_path), f"aten::{name}"))
        assert (found.read_bytes, found.write_bytes) == (_nbytes(index) + _nbytes(result), _nbytes(result))


def test_products_and_attention(tmp_path: Path) -> None:
    a, b = _filled((6, 5), torch.bfloat16), _filled((5, 7), torch.bfloat16)
    _check("mm", (a, b), torch.mm, tmp_path)
    _check("conv2d", (_filled((2, 3, 9, 8), torch.float32), _filled((4, 3, 3, 2), torch.float32)),
           lambda x, w: functional.conv2d(x, w, stride=2, padding=1), tmp_path)  # fmt: skip
    q, k = _filled((2, 3, 9, 8), torch.float32), _filled((2, 3, 5, 8), torch.float32)
    _check("scaled_dot_product_attention", (q, k, k), functional.scaled_dot_product_attention, tmp_path)
