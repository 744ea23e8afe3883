"""Prices of single calls against the H100's figures, by hand; which peak counts, and what is said where none does.

Times are ``floor(1e9 F / P)``; see `priced` for those of the 8192 product.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from steptime.errors import UsageError
from steptime.pipeline import Options
from steptime.roofline.pricing import RooflinePricing
from steptime.timeline.pricing import OpText, Price
from steptime.trace.events import DeviceProperties
from tests.builders import Json
from tests.roofline.priced import (
    BF16,
    FP8,
    FP32,
    H100,
    NVJET,
    SGEMM,
    SQUARE,
    SQUARE_BF16,
    SQUARE_FLOPS,
    SQUARE_FP8,
    SQUARE_FP32,
    SQUARE_TF32,
    TF32,
    Run,
    filler,
    job,
    matmul,
)
from tests.timeline.built import report_of, steps_of


def device(name: str = H100, memory: int = 85_027_979_264, count: int = 132, major: int = 9) -> DeviceProperties:
    return DeviceProperties(
        id=0, name=name, memory_bytes=memory, multiprocessors=count, compute_major=major, compute_minor=0
    )


def text(op: str, shapes: Sequence[object], types: Sequence[str], concrete: Sequence[str] = ()) -> OpText:
    return OpText(op, json.dumps(shapes), json.dumps(types), json.dumps(concrete) if concrete else "")


def price(call: OpText, kernels: Sequence[str] = (), pricing: RooflinePricing = RooflinePricing()) -> Price | None:  # noqa: B008 - frozen
    (found,) = pricing.prices(device(), [call], [kernels])
    return found


MM = text("aten::mm", SQUARE, [BF16, BF16])
MM_FP32 = text("aten::mm", SQUARE, [FP32, FP32])
SCALED = text(
    "aten::_scaled_mm",
    [*SQUARE, [], [], [], [], [], []],
    [FP8, FP8, "float", "float", "", "", "Scalar", "Scalar"],
    ["", "", "", "", "", "", "15", "True"],
)


@pytest.mark.parametrize(
    ("call", "kernel", "dtype", "ideal_ns", "precision_ns"),
    [
        (MM, NVJET, "bf16", SQUARE_BF16, 0),
        (MM_FP32, SGEMM, "fp32", SQUARE_BF16, SQUARE_FP32 - SQUARE_BF16),
        (MM_FP32, TF32, "tf32", SQUARE_BF16, SQUARE_TF32 - SQUARE_BF16),
        (SCALED, "nvjet_qqtst_128x256_128x4_1x2_h_bz_TNT", "fp8", SQUARE_FP8, 0),
    ],
)
def test_each_type_at_its_peak(call: OpText, kernel: str, dtype: str, ideal_ns: int, precision_ns: int) -> None:
    found = price(call, [kernel])
    assert found is not None
    assert (found.kind, found.direction, found.dtype) == ("matmul", "forward", dtype)
    assert (found.model_flops, found.hardware_flops) == (SQUARE_FLOPS, SQUARE_FLOPS)
    assert (found.ideal_ns, found.precision_ns) == (ideal_ns, precision_ns)


def test_bytes_of_a_product() -> None:
    found = price(MM, [NVJET])
    assert found is not None
    # Three matrices of 8192^2 in two bytes.
    assert found.bytes == 3 * 8192 * 8192 * 2


def test_an_unknown_type_counts_at_the_reference() -> None:
    found = price(text("aten::mm", SQUARE, []), ["my_gemm"])
    assert found is not None
    assert (found.dtype, found.ideal_ns, found.precision_ns) == (None, SQUARE_BF16, 0)


def test_a_type_without_a_known_peak_counts_at_the_reference() -> None:
    # The table has no FP64 of the H100.
    found = price(text("aten::mm", SQUARE, ["double", "double"]))
    assert found is not None
    assert (found.dtype, found.ideal_ns, found.precision_ns) == ("fp64", SQUARE_BF16, 0)


def test_memory_bound_ops_have_bytes_and_no_ideal() -> None:
    found = price(text("aten::add", [[1024, 1024], [1024, 1024], []], [BF16, BF16, "Scalar"]))
    assert found is not None
    assert (found.kind, found.model_flops, found.hardware_flops) == ("memory", None, None)
    assert (found.bytes, found.ideal_ns, found.precision_ns) == (3 * 2 * 1024 * 1024, 0, 0)


@pytest.mark.parametrize(
    "call", [text("aten::view", [[8], []], [BF16, ""]), text("aten::mm", [], []), OpText("aten::mm", "", "", "")]
)
def test_what_has_no_price(call: OpText) -> None:
    assert price(call) is None


def test_prices_stand_in_the_order_of_the_calls() -> None:
    calls = [text("aten::view", [[8], []], [BF16, ""]), MM, MM_FP32]
    first, second, third = RooflinePricing().prices(device(), calls, [(), [NVJET], [SGEMM]])
    assert first is None
    assert second is not None
    assert third is not None
    assert (second.dtype, third.dtype) == ("bf16", "fp32")


def test_without_a_peak_flops_stay_and_times_are_zero() -> None:
    (found,) = RooflinePricing().prices(device("Some GPU"), [MM_FP32], [[SGEMM]])
    assert found is not None
    assert (found.model_flops, found.ideal_ns, found.precision_ns) == (SQUARE_FLOPS, 0, 0)


def test_the_reference_is_bf16_or_what_the_user_says() -> None:
    roof = RooflinePricing().roof(device())
    assert (roof.dtype, roof.peak) == ("bf16", 989.4e12)
    assert roof.peaks == {
        "bf16": 989.4e12,
        "fp16": 989.4e12,
        "tf32": 494.7e12,
        "fp32": 66.9e12,
        "fp8": 1978.9e12,
        "int8": 1979e12,
    }
    roof = RooflinePricing(dtype="float32").roof(device())
    assert (roof.dtype, roof.peak) == ("fp32", 66.9e12)


def test_before_ampere_it_is_fp16() -> None:
    # Tesla V100-SXM2-32GB: 80 multiprocessors, 125 TFLOP/s FP16 on its tensor cores (NVIDIA V100 data sheet).
    roof = RooflinePricing().roof(device("Tesla V100-SXM2-32GB", 34_089_730_048, 80, 7))
    assert (roof.dtype, roof.peak) == ("fp16", 125e12)


def test_an_unknown_gpu_has_no_peak_and_says_what_to_do() -> None:
    roof = RooflinePricing().roof(device("Built GPU"))
    assert (roof.gpu, roof.peak, roof.peaks) == (None, None, {})
    assert "Built GPU" in roof.why
    assert "--peak 989.4e12:bf16" in roof.why
    assert "--gpu" in roof.why


def test_a_trace_that_does_not_describe_its_gpu() -> None:
    roof = RooflinePricing().roof(None)
    assert roof.peak is None
    assert "--peak" in roof.why
    assert RooflinePricing(gpu="H100 SXM").roof(None).peak == 989.4e12


def test_a_peak_of_the_user_goes_first() -> None:
    roof = RooflinePricing(peaks=("500e12:bf16",)).roof(device())
    assert (roof.peak, roof.source) == (500e12, "--peak")
    # The others stay the table's.
    assert roof.peak_of("fp32") == 66.9e12
    roof = RooflinePricing(peaks=("12.7e12:fp32",)).roof(device("Built GPU"))
    assert (roof.dtype, roof.peak, roof.peaks) == ("fp32", 12.7e12, {"fp32": 12.7e12})


def test_a_reference_without_a_peak_says_which() -> None:
    roof = RooflinePricing(peaks=("12.7e12:fp32",), dtype="bf16").roof(device("Built GPU"))
    assert roof.peak is None
    assert "bf16" in roof.why
    assert "--peak" in roof.why


def test_an_unconfirmed_peak_is_not_used() -> None:
    roof = RooflinePricing().roof(device("Tesla V100-DGXS-32GB", 34_089_730_048, 80, 7))
    assert roof.peak is None
    assert "not confirmed" in roof.why
    assert "--peak" in roof.why


@pytest.mark.parametrize(
    "pricing",
    [
        RooflinePricing(gpu="no such GPU"),
        RooflinePricing(peaks=("989.4:bf16",)),
        RooflinePricing(peaks=("989.4e12",)),
        RooflinePricing(dtype="bf17"),
        RooflinePricing(gpu_table="/no/such/table.toml", gpu="H100 SXM"),
    ],
)
def test_wrong_options_are_refused(pricing: RooflinePricing) -> None:
    with pytest.raises(UsageError):
        pricing.check()


def test_a_table_that_is_missing_is_refused_though_no_gpu_is_named() -> None:
    with pytest.raises(UsageError):
        RooflinePricing(gpu_table="/no/such/table.toml").check()


def test_pricing_crosses_processes() -> None:
    pricing = RooflinePricing(peaks=("500e12:bf16",), dtype="bf16")
    assert pricing.roof(device()).peak == 500e12
    assert pickle.loads(pickle.dumps(pricing)) == pricing


def sliced(memory: int, count: int) -> Json:
    properties: Json = {
        "id": 0,
        "name": f"{H100} MIG 3g.40gb",
        "totalGlobalMem": memory,
        "computeMajor": 9,
        "computeMinor": 0,
        "numSms": count,
    }
    return {"deviceProperties": [properties]}


def test_a_mig_slice_in_a_trace(tmp_path: Path) -> None:
    trace = job(5000, matmul(Run(NVJET, 0, 3000)), filler(3000, 5000), extra=sliced(42_505_273_344, 60))
    report = report_of(trace, tmp_path)
    # 60 of 132 multiprocessors: 449.727 TFLOP/s; 1,099,511,627,776 / 449,727.27 = 2,444,840.9 ns.
    assert report.job.peak_flops is not None
    assert report.job.peak_flops["bf16"] == pytest.approx(449.7272e12, rel=1e-6)
    assert steps_of(report)[2].productive_ns == 2_444_840
    assert any("60 of 132 multiprocessors" in note for note in report.job.mfu_notes)


def test_an_unknown_gpu_keeps_the_whole_split(tmp_path: Path) -> None:
    trace = job(5000, matmul(Run(NVJET, 0, 2000)), filler(2000, 5000), device="Built GPU")
    report = report_of(trace, tmp_path)
    assert report.job.mfu is None
    assert report.job.peak_flops is None
    assert report.job.reference_dtype is None
    (why,) = (text for text in report.warnings if "MFU is not given" in text)
    assert "Built GPU" in why
    assert "--peak" in why
    leaves = {"kernels/matmul": 2_000_000, "kernels/memory_bound": 3_000_000}
    assert (steps_of(report)[2].productive_ns, steps_of(report)[2].leaves_ns) == (0, leaves)
    # The flag that it names mends it.
    mended = report_of(trace, tmp_path, Options(pricing=RooflinePricing(peaks=("989.4e12:bf16",))))
    assert mended.job.mfu == SQUARE_BF16 / 5_000_000
    assert steps_of(mended)[2].leaves_ns == {**leaves, "kernels/matmul": 2_000_000 - SQUARE_BF16}
