"""Each named check fires on its fault and stays silent beside it. The limits are derived in the comments.

The H100 has 132 multiprocessors; its reference is BF16.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from steptime.model import OpRoof
from steptime.roofline.checks import checks
from steptime.roofline.pricing import Roof, RooflinePricing
from steptime.trace.events import DeviceProperties
from tests.builders import Json, Micros, TraceBuilder
from tests.roofline.priced import (
    BF16,
    FP32,
    H100,
    NVJET,
    SGEMM,
    SOFTMAX,
    TF32,
    Call,
    Run,
    filler,
    job,
    matmul,
    put,
    three_steps,
)
from tests.timeline.built import report_of

ROOF = RooflinePricing(gpu="H100 SXM").roof(None)
ONE_WAVE = "[132, 1, 1]|[256, 1, 1]"


def row(**fields: object) -> OpRoof:
    """A product at half of its roof, without faults, but for `fields`."""
    plain = OpRoof(
        op="aten::mm",
        shapes="[[4096, 4096], [4096, 4096]]",
        dtype="bf16",
        kind="matmul",
        direction="forward",
        count=1,
        kernels=1,
        kernel=NVJET,
        dur_ns=1_000_000,
        owned_ns=1_000_000,
        flops=1,
        model_flops=1,
        bytes=1,
        bound="compute",
        peak_share=0.5,
    )
    return msgspec.structs.replace(plain, **fields)


def found(one: OpRoof, config: str = ONE_WAVE, roof: Roof = ROOF) -> list[str]:
    return checks(one, config, roof).checks


def test_a_sound_product_has_no_faults() -> None:
    assert found(row()) == []
    assert checks(row(), ONE_WAVE, ROOF) == row()


@pytest.mark.parametrize(
    ("dtype", "shapes", "fires"),
    [
        # Tensor cores want 16 bytes: 8 elements of BF16 and FP16, 16 of FP8, 4 of TF32.
        ("bf16", [[4096, 4100], [4100, 4096]], True),
        ("bf16", [[4096, 4104], [4104, 4096]], False),
        ("fp16", [[4096, 4096], [4096, 50_257]], True),
        ("fp16", [[4096, 4096], [4096, 50_264]], False),
        ("fp8", [[4096, 4104], [4104, 4096]], True),
        ("fp8", [[4096, 4112], [4112, 4096]], False),
        ("tf32", [[4096, 4098], [4098, 4096]], True),
        ("tf32", [[4096, 4100], [4100, 4096]], False),
        # Batches don't matter, and a dimension below the multiple can't be helped by padding in the model.
        ("bf16", [[7, 4096, 64], [7, 64, 4096]], False),
        ("bf16", [[1, 4096], [4096, 4096]], False),
        ("bf16", [[12, 4096], [4096, 4096]], True),
        (None, [[4096, 4100], [4100, 4096]], False),
    ],
)
def test_misaligned(dtype: str | None, shapes: list[list[int]], fires: bool) -> None:
    assert ("misaligned" in found(row(dtype=dtype, shapes=json.dumps(shapes)))) == fires


def test_misaligned_matters_only_where_it_costs() -> None:
    shapes = "[[4096, 4100], [4100, 4096]]"
    assert found(row(shapes=shapes, peak_share=0.59)) == ["misaligned"]
    assert found(row(shapes=shapes, peak_share=0.6)) == []
    assert found(row(shapes=shapes, peak_share=None)) == []
    assert found(row(shapes=shapes, kind="memory")) == []


@pytest.mark.parametrize("kind", ["matmul", "convolution", "attention"])
@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_a_slower_type_than_meant(kind: str, dtype: str) -> None:
    assert found(row(kind=kind, dtype=dtype, peak_share=0.95)) == [f"{dtype}_where_bf16_is_reference"]
    meant = RooflinePricing(gpu="H100 SXM", dtype="fp32").roof(None)
    assert found(row(kind=kind, dtype=dtype, peak_share=0.95), roof=meant) == []


@pytest.mark.parametrize(
    ("dtype", "kind"), [("bf16", "matmul"), ("fp8", "matmul"), ("fp32", "memory"), (None, "matmul")]
)
def test_types_that_are_as_meant(dtype: str | None, kind: str) -> None:
    assert not any("reference" in one for one in found(row(dtype=dtype, kind=kind, peak_share=0.95)))


@pytest.mark.parametrize(
    ("grid", "fires"),
    [
        ([132, 1, 1], False),  # one full wave
        ([133, 1, 1], True),  # one block in the second
        ([11, 18, 1], True),  # 198: half of the second
        ([199, 1, 1], False),  # more than half of it
        ([8, 1, 1], True),  # 8 of 132 in the only one
        ([2, 33, 4], False),  # 264: two full waves
        ([132 * 8 - 131, 1, 1], True),  # one block in the eighth
        ([132 * 8 + 1, 1, 1], False),  # eight full waves hide the ninth
    ],
)
def test_wave_quantization(grid: list[int], fires: bool) -> None:
    config = f"{json.dumps(grid)}|[256, 1, 1]"
    assert ("wave_quantized" in found(row(), config)) == fires


def test_waves_are_counted_only_where_they_matter_and_can_be() -> None:
    tail = "[133, 1, 1]|[256, 1, 1]"
    assert found(row(kind="convolution"), tail) == ["wave_quantized"]
    assert found(row(kind="memory"), tail) == []
    assert found(row(peak_share=0.6), tail) == []
    assert found(row(), "") == []
    assert found(row(), "[]|[]") == []
    unknown = RooflinePricing(peaks=("989.4e12:bf16",)).roof(None)
    assert found(row(), tail, unknown) == []


def test_waves_of_a_slice_are_its_own() -> None:
    # 60 of 132 multiprocessors: 120 blocks are two full waves there, and most of one on the whole part.
    part = DeviceProperties(
        name=f"{H100} MIG 3g.40gb", memory_bytes=42_505_273_344, multiprocessors=60, compute_major=9
    )
    small = RooflinePricing().roof(part)
    assert found(row(), "[120, 1, 1]|[256, 1, 1]", small) == []
    assert found(row(), "[121, 1, 1]|[256, 1, 1]", small) == ["wave_quantized"]


def test_attention_on_the_math_path() -> None:
    math = "aten::_scaled_dot_product_attention_math"
    assert found(row(op=math, kind="attention")) == ["math_attention"]
    flash = "aten::_scaled_dot_product_flash_attention"
    assert found(row(op=flash, kind="attention")) == []


def sdpa(math: bool) -> TraceBuilder:
    """``scaled_dot_product_attention`` over the math path with its parts, or over flash attention."""
    trace = TraceBuilder(device_name=H100)
    heads = [8, 16, 1024, 64]
    shapes: list[object] = [heads, heads, heads, [], [], [], [], []]
    types = [BF16, BF16, BF16, "", "Scalar", "Scalar", "", "Scalar"]
    values: Json = {"Concrete Inputs": ["", "", "", "", "0.", "False", "", "False"]}

    def fill(host: Micros, start: Micros) -> None:
        trace.op("aten::scaled_dot_product_attention", host + 10, 60, shapes=shapes, types=types, args=values)
        inner = "aten::_scaled_dot_product_attention_math" if math else "aten::_scaled_dot_product_flash_attention"
        if math:
            trace.op(inner, host + 11, 58, shapes=shapes, types=types, args=values)
            parts = [("aten::bmm", NVJET), ("aten::_softmax", SOFTMAX), ("aten::bmm", NVJET)]
        else:
            parts = [(inner, "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)")]
        for at, (op, kernel) in enumerate(parts):
            put(trace, Call(op, None, (), [Run(kernel, 50 * at, 50 * at + 50)]), host + 12 + 17 * at, start)
        put(trace, filler(50 * len(parts), 1000), host + 72, start)

    return three_steps(trace, 1000, fill)


@pytest.mark.parametrize("math", [True, False])
def test_the_math_path_is_seen_below_the_op_that_is_counted(math: bool, tmp_path: Path) -> None:
    # PyTorch always records the outer op, and the outermost op is the one that is priced.
    report = report_of(sdpa(math), tmp_path)
    faults = [one for row_ in report.roofline for one in row_.checks]
    assert ("math_attention" in faults) == math


@pytest.mark.parametrize(
    ("op", "kernel", "fires"),
    [
        ("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float, float, float, false>(float*)", True),
        ("aten::cudnn_convolution", "void cudnn::ops::nhwcToNchwKernel<float, float, float, false>(float*)", True),
        ("aten::copy_", "batched_transpose_32x32_dword", True),
        ("aten::contiguous", "direct_copy_kernel_cuda", True),
        ("aten::copy_", "direct_copy_kernel_cuda", False),
        ("aten::cudnn_convolution", "implicit_convolve_sgemm", False),
    ],
)
def test_layout_copies(op: str, kernel: str, fires: bool) -> None:
    assert ("layout_copy" in found(row(op=op, kernel=kernel, kind="memory"))) == fires


def copied(source: str, target: str, op: str = "aten::copy_") -> Call:
    """``target.copy_(source)`` of 8192 x 8192 elements."""
    square = [8192, 8192]
    kernel = (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
    )
    return Call(op, [square, square, []], [target, source, "Scalar"], [Run(kernel, 0, 300)], ["", "", "False"])


@pytest.mark.parametrize(("source", "target", "fires"), [(FP32, BF16, True), (BF16, FP32, True), (BF16, BF16, False)])
def test_copies_that_change_the_type(source: str, target: str, fires: bool, tmp_path: Path) -> None:
    report = report_of(job(1000, copied(source, target), filler(300, 1000)), tmp_path)
    (one,) = report.roofline
    assert one.op == "aten::copy_"
    assert ("dtype_copy" in one.checks) == fires


def test_a_slower_type_is_found_in_a_trace(tmp_path: Path) -> None:
    calls = (
        matmul(Run(SGEMM, 0, 18_000), types=FP32),
        matmul(Run(TF32, 18_000, 21_000), types=FP32, shapes=[[8192, 8192], [8192, 4096]]),
        matmul(Run(NVJET, 21_000, 23_000)),
        filler(23_000, 24_000),
    )
    report = report_of(job(24_000, *calls), tmp_path)
    assert [(one.dtype, one.checks) for one in report.roofline] == [
        ("fp32", ["fp32_where_bf16_is_reference"]),
        ("tf32", ["tf32_where_bf16_is_reference"]),
        ("bf16", []),
    ]


def test_waves_are_counted_in_a_trace(tmp_path: Path) -> None:
    # 144 blocks on 132 multiprocessors, at 1,111,291 of 2,000,000.
    trace = job(3000, matmul(Run(NVJET, 0, 2000, grid=(12, 12, 1))), filler(2000, 3000))
    (one,) = report_of(trace, tmp_path).roofline
    assert one.checks == ["wave_quantized"]


def test_a_product_of_a_padded_vocabulary_is_aligned(tmp_path: Path) -> None:
    def run(vocabulary: int) -> list[str]:
        call = matmul(Run(NVJET, 0, 9000), shapes=[[8192, 4096], [4096, vocabulary]])
        folder = tmp_path / str(vocabulary)
        (one,) = report_of(job(10_000, call, filler(9000, 10_000)), folder).roofline
        return one.checks

    # GPT-2's vocabulary, and the next multiple of 64.
    assert run(50_257) == ["misaligned"]
    assert run(50_304) == []
