"""FLOPs against `torch.utils.flop_counter`: the same ops on the same shapes, run on the CPU.

Each case runs twice, once under the counter and once under the profiler; what the profiler recorded is priced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.roofline.recorded_ops import counted, one, outermost_flops, price, record

Shape = tuple[int, ...]
DTYPES = (torch.float32, torch.bfloat16)
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64", torch.float16: "fp16"}

PRODUCTS: list[tuple[str, Callable[..., torch.Tensor], list[Shape]]] = [
    ("mm", torch.mm, [(64, 32), (32, 48)]),
    ("mm", torch.mm, [(1, 129), (129, 7)]),
    ("addmm", torch.addmm, [(48,), (64, 32), (32, 48)]),
    ("addmm", torch.addmm, [(64, 48), (64, 32), (32, 48)]),
    ("bmm", torch.bmm, [(6, 8, 16), (6, 16, 24)]),
    ("baddbmm", torch.baddbmm, [(6, 8, 24), (6, 8, 16), (6, 16, 24)]),
    ("linear", functional.linear, [(64, 32), (48, 32), (48,)]),
    ("linear", functional.linear, [(4, 16, 32), (48, 32), (48,)]),
    ("linear", functional.linear, [(2, 3, 5, 32), (48, 32)]),
    ("matmul", torch.matmul, [(64, 32), (32, 48)]),
    ("matmul", torch.matmul, [(4, 16, 32), (32, 48)]),
    ("matmul", torch.matmul, [(4, 16, 32), (4, 32, 8)]),
    ("matmul", torch.matmul, [(2, 1, 16, 32), (3, 32, 8)]),
    ("matmul", torch.matmul, [(5, 2, 16, 32), (1, 2, 32, 8)]),
    ("matmul", torch.matmul, [(16, 32), (3, 4, 32, 8)]),
]


def _einsum(equation: str) -> Callable[..., torch.Tensor]:
    def run(*operands: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, *operands)

    return run


EINSUMS: list[tuple[str, Callable[..., torch.Tensor], list[Shape]]] = [
    ("einsum bhqd,bhkd->bhqk", _einsum("bhqd,bhkd->bhqk"), [(2, 3, 8, 16), (2, 3, 10, 16)]),
    ("einsum bij,jk->bik", _einsum("bij,jk->bik"), [(4, 8, 16), (16, 5)]),
    ("einsum ij,kj->ik", _einsum("ij,kj->ik"), [(8, 16), (5, 16)]),
]

Maker = Callable[[], torch.nn.Module]
CONVOLUTIONS: list[tuple[str, Maker, Shape]] = [
    ("1d", lambda: torch.nn.Conv1d(8, 12, 3), (2, 8, 31)),
    ("1d stride dilation", lambda: torch.nn.Conv1d(8, 12, 5, stride=2, padding=3, dilation=2), (2, 8, 40)),
    ("2d", lambda: torch.nn.Conv2d(8, 16, 3, padding=1), (2, 8, 14, 14)),
    ("2d 7x7 stride", lambda: torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False), (2, 3, 32, 32)),
    ("2d 1x1", lambda: torch.nn.Conv2d(16, 8, 1, stride=2, bias=False), (3, 16, 15, 15)),
    ("2d uneven", lambda: torch.nn.Conv2d(4, 8, (1, 5), stride=(1, 2), padding=(0, 2)), (2, 4, 9, 17)),
    ("2d same", lambda: torch.nn.Conv2d(4, 8, 3, padding="same"), (2, 4, 9, 17)),
    ("3d", lambda: torch.nn.Conv3d(3, 6, 3, padding=1), (1, 3, 6, 7, 8)),
    ("transposed 1d", lambda: torch.nn.ConvTranspose1d(8, 4, 4, stride=2), (2, 8, 15)),
    ("transposed 2d", lambda: torch.nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1), (2, 8, 7, 9)),
]
GROUPED: list[tuple[str, Maker, Shape, int]] = [
    ("depthwise", lambda: torch.nn.Conv2d(8, 8, 3, padding=1, groups=8), (2, 8, 14, 14), 8),
    ("groups 2", lambda: torch.nn.Conv2d(8, 12, 3, groups=2), (2, 8, 10, 11), 2),
    ("groups 4 transposed", lambda: torch.nn.ConvTranspose2d(8, 8, 3, groups=4), (2, 8, 6, 5), 4),
]


def _tensors(shapes: list[Shape], dtype: torch.dtype, *, grad: bool) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "forward+backward"])
@pytest.mark.parametrize(
    ("name", "call", "shapes"), [*PRODUCTS, *EINSUMS], ids=[f"{c[0]} {c[2]}" for c in [*PRODUCTS, *EINSUMS]]
)
def test_products_equal_the_counter(  # noqa: PLR0913  (a case)
    name: str, call: Callable[..., torch.Tensor], shapes: list[Shape], dtype: torch.dtype, grad: bool, tmp_path: Path
) -> None:
    operands = _tensors(shapes, dtype, grad=grad)

    def run() -> None:
        out = call(*operands)
        if grad:
            torch.autograd.backward(out, torch.ones_like(out))

    expected = counted(run)
    ops = record(run, tmp_path)
    assert outermost_flops(ops) == expected
    assert expected > 0
    if " " not in name:
        # The named op itself, and not only what it is made of, has the forward's FLOPs and type.
        named = price(one(ops, f"aten::{name}"))
        assert named.model_flops == counted(lambda: call(*operands))
        assert (named.hardware_flops, named.kind, named.dtype) == (named.model_flops, "matmul", NAMES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "forward+backward"])
@pytest.mark.parametrize(("maker", "shape"), [c[1:] for c in CONVOLUTIONS], ids=[c[0] for c in CONVOLUTIONS])
def test_convolutions_equal_the_counter(
    maker: Maker, shape: Shape, dtype: torch.dtype, grad: bool, tmp_path: Path
) -> None:
    layer = maker().to(dtype)
    x = torch.randn(shape, dtype=dtype, requires_grad=grad)

    def run() -> None:
        out = layer(x)
        if grad:
            torch.autograd.backward(out, torch.ones_like(out))

    expected = counted(run)
    assert outermost_flops(record(run, tmp_path)) == expected
    assert expected > 0


@pytest.mark.parametrize(("maker", "shape", "groups"), [c[1:] for c in GROUPED], ids=[c[0] for c in GROUPED])
def test_a_grouped_weight_gradient_costs_what_the_forward_costs(
    maker: Maker, shape: Shape, groups: int, tmp_path: Path
) -> None:
    # Deliberate difference: the counter's weight gradient is `groups` times too large, so that
    # its total is forward + data gradient + groups x weight gradient, each of the three alike.
    layer = maker()
    x = torch.randn(shape, requires_grad=True)

    def run() -> None:
        torch.autograd.backward(layer(x).sum())

    forward = counted(lambda: layer(x))
    assert counted(run) == forward * (2 + groups)
    assert outermost_flops(record(run, tmp_path)) == forward * 3


@pytest.mark.parametrize(("trained", "share"), [("weight", 1), ("input", 1), ("both", 2)])
def test_only_the_gradients_that_are_asked_for_count(trained: str, share: int, tmp_path: Path) -> None:
    layer = torch.nn.Conv2d(4, 8, 3)
    layer.weight.requires_grad_(trained != "input")
    x = torch.randn(2, 4, 9, 9, requires_grad=trained != "weight")
    ops = record(lambda: torch.autograd.backward(layer(x).sum()), tmp_path)
    backward = price(one(ops, "aten::convolution_backward"))
    assert backward.direction == "backward"
    assert backward.model_flops == share * counted(lambda: layer(x))


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8)],
        [(2, 4, 16, 8), (2, 4, 24, 8), (2, 4, 24, 8)],
        [(1, 2, 5, 16), (1, 2, 7, 16), (1, 2, 7, 32)],
        [(3, 16, 8), (3, 16, 8), (3, 16, 8)],
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
def test_attention_that_is_decomposed_equals_the_counter(
    shapes: list[Shape], dtype: torch.dtype, tmp_path: Path
) -> None:
    q, k, v = _tensors(shapes, dtype, grad=False)

    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            functional.scaled_dot_product_attention(q, k, v)

    ops = record(run, tmp_path)
    expected = counted(run)
    assert outermost_flops(ops) == expected
    math = price(one(ops, "aten::_scaled_dot_product_attention_math"))
    assert (math.kind, math.model_flops, math.hardware_flops) == ("attention", expected, expected)


def test_a_causal_mask_needs_half_and_the_math_path_runs_all(tmp_path: Path) -> None:
    # Deliberate difference: the counter does not look at the mask.
    q, k, v = _tensors([(2, 4, 32, 8)] * 3, torch.float32, grad=False)

    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    ops = record(run, tmp_path)
    full = counted(run)
    math = price(one(ops, "aten::_scaled_dot_product_attention_math"))
    assert math.model_flops is not None
    assert (2 * math.model_flops, math.hardware_flops, math.notes) == (full, full, ("causal",))
    assert 2 * outermost_flops(ops) == full


@pytest.mark.parametrize("causal", [False, True])
def test_the_cpu_flash_kernel_forward_and_backward(causal: bool, tmp_path: Path) -> None:
    # The counter has no formula for the CPU's kernels: the expected figure is the math path's, counted.
    q, k, v = _tensors([(2, 4, 32, 8)] * 3, torch.float32, grad=True)

    def attend() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def decomposed() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            attend()

    full = counted(decomposed)
    needed = full // 2 if causal else full
    ops = record(lambda: torch.autograd.backward(attend().sum()), tmp_path)
    forward = price(one(ops, "aten::_scaled_dot_product_flash_attention_for_cpu"))
    backward = price(one(ops, "aten::_scaled_dot_product_flash_attention_for_cpu_backward"))
    assert (forward.model_flops, forward.hardware_flops) == (needed, needed)
    assert (backward.model_flops, backward.direction) == (2 * needed, "backward")
    # Five products where the forward has two.
    assert backward.hardware_flops == needed * 5 // 2
    assert outermost_flops(ops) == 3 * needed


@pytest.mark.parametrize(("shapes", "pairs"), [([(7,), (7,)], 7), ([(5, 7), (7,)], 35), ([(7,), (3, 7, 4)], 84)])
def test_a_product_with_a_vector_counts_two_a_multiply_add(shapes: list[Shape], pairs: int, tmp_path: Path) -> None:
    # Deliberate difference: the counter has no formula for `mv` and `dot`. The pairs are by hand.
    operands = _tensors(shapes, torch.float32, grad=False)
    ops = record(lambda: torch.matmul(*operands), tmp_path)
    assert price(one(ops, "aten::matmul")).model_flops == 2 * pairs
    assert outermost_flops(ops) == 2 * pairs


def test_batches_that_are_summed(tmp_path: Path) -> None:
    # `addbmm` has no formula in the counter; the same product as `bmm` has.
    a, b, c = _tensors([(6, 8, 16), (6, 16, 24), (8, 24)], torch.float32, grad=False)
    ops = record(lambda: torch.addbmm(c, a, b), tmp_path)
    found = price(one(ops, "aten::addbmm"))
    assert found.model_flops == counted(lambda: torch.bmm(a, b))
    assert found.write_bytes == 8 * 24 * 4


def test_integer_products(tmp_path: Path) -> None:
    a = torch.ones(32, 64, dtype=torch.int8)
    b = torch.ones(64, 32, dtype=torch.int8)
    found = price(one(record(lambda: torch._int_mm(a, b), tmp_path), "aten::_int_mm"))
    assert found.model_flops == counted(lambda: torch.mm(a.float(), b.float()))
    # The result is 32-bit.
    assert (found.dtype, found.read_bytes, found.write_bytes) == ("int8", 4096, 4096)


def test_a_training_step_of_a_small_network_counts_each_product_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 7 * 7, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, target = torch.randn(4, 3, 16, 16), torch.arange(4)

    def step() -> None:
        torch.autograd.backward(functional.cross_entropy(model(x), target))
        optimizer.step()
        optimizer.zero_grad()

    assert outermost_flops(record(step, tmp_path)) == counted(step)
