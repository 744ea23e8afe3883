"""Useful work taken out of owned time (DESIGN 1.2). Built traces; every table is worked out by hand in its comment.

A step lasts `length` us, its kernels leave no gap, and two of the three steps count. ``ideal = floor(1e9 F / P_ref)``,
``precision = floor(1e9 F / P_d) - ideal``; figures of the 8192 product stand in `priced`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.model import Report
from steptime.pipeline import Options, RooflinePricing
from tests.builders import Json, Micros, TraceBuilder
from tests.roofline.priced import (
    BF16,
    FLASH,
    FP8,
    FP32,
    H100,
    NVJET,
    SGEMM,
    SOFTMAX,
    SPLIT_K,
    SQUARE,
    SQUARE_BF16,
    SQUARE_FLOPS,
    SQUARE_FP8,
    SQUARE_FP32,
    TF32,
    Call,
    Run,
    filler,
    job,
    matmul,
    put,
    three_steps,
)
from tests.timeline.built import report_of, steps_of


def assert_split(report: Report, dur_ns: int, productive_ns: int, leaves_ns: dict[str, int]) -> None:
    """Both counted steps are exactly this."""
    assert productive_ns + sum(leaves_ns.values()) == dur_ns, "the table does not add up"
    for number in (2, 3):
        step = steps_of(report)[number]
        assert (step.dur_ns, step.productive_ns, step.leaves_ns) == (dur_ns, productive_ns, leaves_ns)


def slices_of(report: Report) -> dict[str, int]:
    return {f"{part.id}/{leaf.id}": leaf.ns for part in report.job.slices for leaf in part.leaves if leaf.ns}


def test_a_bf16_product(tmp_path: Path) -> None:
    report = report_of(job(5000, matmul(Run(NVJET, 0, 2000)), filler(2000, 5000)), tmp_path)
    # 2,000,000 owned - 1,111,291 at the peak.
    leaves = {"kernels/matmul": 888_709, "kernels/memory_bound": 3_000_000}
    assert_split(report, 5_000_000, 1_111_291, leaves)
    # Exactly what the ledger holds: 2 x 1,111,291 of 2 x 5,000,000.
    assert report.job.mfu == 2_222_582 / 10_000_000
    assert report.job.productive_ns == 2_222_582
    assert report.job.model_flops_per_step == SQUARE_FLOPS
    assert (report.job.flops_source, report.job.flops_coverage) == ("trace", 1.0)
    assert report.job.above_peak_ns == 0
    assert slices_of(report) == {key: 2 * ns for key, ns in leaves.items()}


def test_fp32_in_a_bf16_run_is_lost_time_and_no_higher_mfu(tmp_path: Path) -> None:
    report = report_of(job(20_000, matmul(Run(SGEMM, 0, 18_000), types=FP32), filler(18_000, 20_000)), tmp_path)
    # At 66.9 TFLOP/s it takes 16,435,151: 1,111,291 are useful, 15,323,860 precision; 18,000,000 - 16,435,151 remain.
    table = {"kernels/matmul": 1_564_849, "kernels/precision": 15_323_860, "kernels/memory_bound": 2_000_000}
    assert_split(report, 20_000_000, 1_111_291, table)
    assert report.job.mfu == 1_111_291 / 20_000_000


def test_tf32_is_told_by_the_kernel(tmp_path: Path) -> None:
    report = report_of(job(4000, matmul(Run(TF32, 0, 3000), types=FP32), filler(3000, 4000)), tmp_path)
    # 2,222,582 at 494.7 TFLOP/s: 1,111,291 useful, 1,111,291 precision.
    table = {"kernels/matmul": 777_418, "kernels/precision": 1_111_291, "kernels/memory_bound": 1_000_000}
    assert_split(report, 4_000_000, 1_111_291, table)


def test_fp32_as_the_reference_has_no_precision_to_lose(tmp_path: Path) -> None:
    trace = job(20_000, matmul(Run(SGEMM, 0, 18_000), types=FP32), filler(18_000, 20_000))
    report = report_of(trace, tmp_path, Options(pricing=RooflinePricing(dtype="fp32")))
    table = {"kernels/matmul": 1_564_849, "kernels/memory_bound": 2_000_000}
    assert_split(report, 20_000_000, SQUARE_FP32, table)
    assert report.job.reference_dtype == "fp32"


def test_bf16_in_an_fp32_run_uses_its_own_peak(tmp_path: Path) -> None:
    trace = job(5000, matmul(Run(NVJET, 0, 2000)), filler(2000, 5000))
    report = report_of(trace, tmp_path, Options(pricing=RooflinePricing(dtype="fp32")))
    # A faster dtype than the reference: 1,111,291 at its own peak, not 16,435,151.
    assert_split(report, 5_000_000, SQUARE_BF16, {"kernels/matmul": 888_709, "kernels/memory_bound": 3_000_000})


def scaled_mm(*runs: Run) -> Call:
    """``aten::_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)``."""
    shapes: list[object] = [*SQUARE, [], [], [], [], [], []]
    types = [FP8, FP8, "float", "float", "", "", "Scalar", "Scalar"]
    return Call("aten::_scaled_mm", shapes, types, runs, ["", "", "", "", "", "", "15", "True"])


def test_fp8_uses_its_own_peak(tmp_path: Path) -> None:
    trace = job(2000, scaled_mm(Run("nvjet_qqtst_128x256_128x4_1x2_h_bz_TNT", 0, 1000)), filler(1000, 2000))
    report = report_of(trace, tmp_path)
    # 555,617 at 1978.9 TFLOP/s; 1,000,000 - 555,617 remain.
    table = {"kernels/matmul": 444_383, "kernels/memory_bound": 1_000_000}
    assert_split(report, 2_000_000, SQUARE_FP8, table)


def test_hfu_without_recompute_is_mfu_whatever_the_dtype(tmp_path: Path) -> None:
    # HFU counts what is recomputed besides (DESIGN 3), and here is nothing: both are 555,617.6 of 2,000,000 ns.
    trace = job(2000, scaled_mm(Run("nvjet_qqtst_128x256_128x4_1x2_h_bz_TNT", 0, 1000)), filler(1000, 2000))
    report = report_of(trace, tmp_path)
    assert report.job.hfu == pytest.approx(SQUARE_FLOPS / 1978.9e12 / 2e-3, rel=1e-9)


def test_what_is_above_the_peak_is_clipped(tmp_path: Path) -> None:
    report = report_of(job(400_000, matmul(Run(NVJET, 0, 1000)), filler(1000, 400_000)), tmp_path)
    # Owned 1,000,000 of an ideal 1,111,291: 111,291 a step do not fit, 0.028 % of 400,000,000. The figure stands.
    assert_split(report, 400_000_000, 1_000_000, {"kernels/memory_bound": 399_000_000})
    assert report.job.above_peak_ns == 222_582
    assert report.job.mfu == 1_000_000 / 400_000_000


@pytest.mark.parametrize(("length", "given"), [(22_200, False), (22_300, True)])
def test_half_a_percent_above_the_peak_is_the_limit(length: int, given: bool, tmp_path: Path) -> None:
    report = report_of(job(length, matmul(Run(NVJET, 0, 1000)), filler(1000, length)), tmp_path)
    # 111,291 clipped is 0.5013 % of 22,200,000 and 0.4991 % of 22,300,000.
    assert (report.job.mfu is not None) == given
    if not given:
        whole = {"kernels/matmul": 1_000_000, "kernels/memory_bound": 1000 * length - 1_000_000}
        assert_split(report, 1000 * length, 0, whole)
        assert report.job.flops_source is None
        assert report.job.hfu is None
        (why,) = (text for text in report.warnings if "MFU is not given" in text)
        assert "0.5%" in why
        assert "aten::mm [[8192, 8192], [8192, 8192]]" in why
        assert "--peak" in why


def test_the_worst_ops_above_the_peak_are_named_first(tmp_path: Path) -> None:
    wide = [[8192, 8192], [8192, 16_384]]
    trace = job(4000, matmul(Run(NVJET, 0, 1000)), matmul(Run(NVJET, 1000, 2000), shapes=wide), filler(2000, 4000))
    (why,) = (text for text in report_of(trace, tmp_path).warnings if "MFU is not given" in text)
    # Clipped are 111,291 and 2,222,582 - 1,000,000.
    assert 0 < why.index("[8192, 16384]") < why.index("[[8192, 8192], [8192, 8192]]")


def test_precision_that_does_not_fit_is_above_the_peak_too(tmp_path: Path) -> None:
    report = report_of(job(20_000, matmul(Run(SGEMM, 0, 10_000), types=FP32), filler(10_000, 20_000)), tmp_path)
    # 110 TFLOP/s is above the FP32 peak of 66.9: 16,435,151 do not fit into 10,000,000. Whatever ran, it was no FP32,
    # and "FLOPs, dtype or peak are wrong": 6,435,151 of 20,000,000 are clipped.
    assert report.job.mfu is None
    assert any("dtype" in text and "aten::mm" in text for text in report.warnings)
    assert_split(report, 20_000_000, 0, {"kernels/matmul": 10_000_000, "kernels/memory_bound": 10_000_000})


def test_a_linear_is_counted_once(tmp_path: Path) -> None:
    weights = [[4096, 8192], [8192, 8192], [8192]]
    inner = Call(
        "aten::addmm",
        [[8192], [4096, 8192], [8192, 8192], [], []],
        [BF16, BF16, BF16, "Scalar", "Scalar"],
        [Run(NVJET, 0, 1500)],
        around=[("aten::linear", weights, [BF16] * 3)],
    )
    report = report_of(job(2000, inner, filler(1500, 2000)), tmp_path)
    # 2 * 4096 * 8192 * 8192 = 549,755,813,888: 555,645.7 ns, once.
    assert_split(report, 2_000_000, 555_645, {"kernels/matmul": 944_355, "kernels/memory_bound": 500_000})
    assert report.job.model_flops_per_step == 549_755_813_888
    assert [(row.op, row.count) for row in report.roofline if row.kind == "matmul"] == [("aten::linear", 2)]


QKV = [[8, 16, 1024, 64]] * 3
SDPA_SHAPES: list[object] = [*QKV, [], [], [], [], []]
SDPA_TYPES = [BF16, BF16, BF16, "", "Scalar", "Scalar", "", "Scalar"]


def sdpa_math() -> TraceBuilder:
    """Causal attention on the math path: bmm, softmax, bmm inside ``scaled_dot_product_attention``, 50 us each."""
    trace = TraceBuilder(device_name=H100)

    def fill(host: Micros, start: Micros) -> None:
        causal: Json = {"Concrete Inputs": ["", "", "", "", "0.", "True", "", "False"]}
        trace.op("aten::scaled_dot_product_attention", host + 10, 50, shapes=SDPA_SHAPES, types=SDPA_TYPES, args=causal)
        math = "aten::_scaled_dot_product_attention_math"
        trace.op(math, host + 11, 48, shapes=SDPA_SHAPES, types=SDPA_TYPES, args=causal)
        types = [BF16, "Scalar", "Scalar"]
        scores = Call("aten::bmm", [[128, 1024, 64], [128, 64, 1024]], [BF16] * 2, [Run(NVJET, 0, 50)])
        softmax = Call("aten::_softmax", [[8, 16, 1024, 1024], [], []], types, [Run(SOFTMAX, 50, 100)])
        values = Call("aten::bmm", [[128, 1024, 1024], [128, 1024, 64]], [BF16] * 2, [Run(NVJET, 100, 150)])
        for at, call in enumerate((scores, softmax, values)):
            put(trace, call, host + 11 + 16 * at, start)
        put(trace, filler(150, 1000), host + 70, start)

    return three_steps(trace, 1000, fill)


def test_decomposed_attention_is_attention(tmp_path: Path) -> None:
    report = report_of(sdpa_math(), tmp_path)
    # Causal: half of 4 * 8 * 16 * 1024^2 * 64 = 17,179,869,184 operations, 17,363.9 ns. The two bmm inside would make
    # twice as much and leave the softmax outside; all three kernels are attention's, 150,000 owned.
    assert_split(report, 1_000_000, 17_363, {"kernels/attention": 132_637, "kernels/memory_bound": 850_000})
    assert report.job.model_flops_per_step == 17_179_869_184


def test_two_kernels_of_one_product_share_its_ideal(tmp_path: Path) -> None:
    report = report_of(job(2000, matmul(Run(NVJET, 0, 1000), Run(SPLIT_K, 1000, 1200)), filler(1200, 2000)), tmp_path)
    # 1,111,291 of 1,200,000, although the first kernel alone owns only 1,000,000.
    assert_split(report, 2_000_000, 1_111_291, {"kernels/matmul": 88_709, "kernels/memory_bound": 800_000})
    assert report.job.above_peak_ns == 0
    (row,) = (row for row in report.roofline if row.kind == "matmul")
    assert (row.count, row.kernels, row.flops) == (2, 4, 2 * SQUARE_FLOPS)


def test_two_calls_of_one_shape_have_an_ideal_each(tmp_path: Path) -> None:
    trace = job(4000, matmul(Run(NVJET, 0, 1500)), matmul(Run(NVJET, 1500, 2700)), filler(2700, 4000))
    # 2 x 1,111,291 of 1,500,000 + 1,200,000.
    table = {"kernels/matmul": 477_418, "kernels/memory_bound": 1_300_000}
    assert_split(report_of(trace, tmp_path), 4_000_000, 2_222_582, table)


def test_a_call_cannot_use_what_another_one_left(tmp_path: Path) -> None:
    trace = job(300_000, matmul(Run(NVJET, 0, 1000)), matmul(Run(NVJET, 1000, 3000)), filler(3000, 300_000))
    report = report_of(trace, tmp_path)
    # min(1,111,291, 1,000,000) + min(1,111,291, 2,000,000); clipped 111,291 of 300,000,000.
    table = {"kernels/matmul": 888_709, "kernels/memory_bound": 297_000_000}
    assert_split(report, 300_000_000, 2_111_291, table)
    assert report.job.above_peak_ns == 222_582


NODE = "autograd::engine::evaluate_function: "


def checkpointed() -> TraceBuilder:
    """A forward product [0, 1500), in the backward the same again [1500, 3000) and a gradient [3000, 4500)."""
    trace = TraceBuilder(device_name=H100)
    for k in range(3):
        host, start = 1000 + 5000 * k, 1100 + 5000 * k
        trace.step(k + 1, at=host, for_=5000)
        types = [BF16, BF16]
        trace.op("aten::mm", at=host + 8, for_=10, seq=10 * k + 1, shapes=SQUARE, types=types)
        trace.kernel(NVJET, at=start, for_=1500, launch_at=host + 10)
        trace.op(NODE + "CheckpointFunctionBackward", at=host + 28, for_=40, thread=2, seq=10 * k + 1, fwd_thread=1)
        trace.op("aten::mm", at=host + 30, for_=10, thread=2, seq=1, shapes=SQUARE, types=types)
        trace.kernel(NVJET, at=start + 1500, for_=1500, launch_at=host + 32, thread=2)
        trace.op(NODE + "MmBackward0", at=host + 48, for_=15, thread=2, seq=10 * k + 2, fwd_thread=2)
        trace.op("aten::mm", at=host + 50, for_=10, thread=2, shapes=SQUARE, types=types)
        trace.kernel(NVJET, at=start + 3000, for_=1500, launch_at=host + 52, thread=2)
        put(trace, filler(4500, 5000), host + 80, start)
    return trace


def test_recomputed_work_counts_in_hfu_only(tmp_path: Path) -> None:
    report = report_of(checkpointed(), tmp_path)
    # Forward and gradient: 2 x 1,111,291 of 2 x 1,500,000. What ran again is not useful: 1,500,000, all recompute.
    table = {
        "kernels/matmul": 777_418,
        "recompute/recompute": 1_500_000,
        "kernels/memory_bound": 500_000,
    }
    assert_split(report, 5_000_000, 2_222_582, table)
    assert report.job.model_flops_per_step == 2 * SQUARE_FLOPS
    assert report.job.mfu == 2_222_582 / 5_000_000
    # Three products in 5 ms at 989.4 TFLOP/s.
    assert report.job.hfu == pytest.approx(3 * SQUARE_FLOPS / (989.4e12 * 5e-3), rel=1e-12)
    rows = {row.recomputed: row for row in report.roofline if row.kind == "matmul"}
    assert (rows[True].count, rows[True].owned_ns) == (2, 3_000_000)
    assert (rows[False].count, rows[False].owned_ns) == (4, 6_000_000)


def contended() -> TraceBuilder:
    """Three products alone [0, 3 x 1500), one that an all-reduce slows down to 2300, an addition up to 8000."""
    trace = TraceBuilder(device_name=H100, world_size=2)

    def fill(host: Micros, start: Micros) -> None:
        for at in range(3):
            put(trace, matmul(Run(NVJET, 1500 * at, 1500 * (at + 1))), host + 12 + 20 * at, start)
        put(trace, matmul(Run(NVJET, 4500, 6800)), host + 80, start)
        trace.collective("allreduce", at=start + 4600, for_=2000, launch_at=host + 102)
        put(trace, filler(6800, 8000), host + 120, start)

    return three_steps(trace, 8000, fill)


#: Alone a product takes 1,500,000; under the all-reduce 800,000 more. 6,800,000 owned in all.
CONTENDED = {"kernels/matmul": 6_000_000, "kernels/comm_contention": 800_000, "kernels/memory_bound": 1_200_000}


def test_contention_comes_after_useful_work(tmp_path: Path) -> None:
    report = report_of(contended(), tmp_path)
    # 4 x 1,111,291 = 4,445,164 useful, 800,000 contention of the 1,188,709 that are left of the slow one.
    assert_split(report, 8_000_000, 4_445_164, {**CONTENDED, "kernels/matmul": 1_554_836})


def test_a_wrong_peak_changes_no_split(tmp_path: Path) -> None:
    # At 100 TFLOP/s each product would need 10,995,116 ns.
    pricing = RooflinePricing(gpu="H100 SXM", peaks=("100e12:bf16",))
    report = report_of(contended(), tmp_path, Options(pricing=pricing))
    assert report.job.mfu is None
    # Without useful work to believe in, contention is deducted from all that is owned.
    assert_split(report, 8_000_000, 0, CONTENDED)


def test_an_optimizers_products_are_no_model_flops(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=H100)

    def fill(host: Micros, start: Micros) -> None:
        put(trace, matmul(Run(NVJET, 0, 1500)), host + 12, start)
        trace.optimizer(at=host + 30, for_=60, cls="Muon")
        put(trace, matmul(Run(NVJET, 1500, 3500)), host + 40, start)
        put(trace, filler(3500, 4000), host + 96, start)

    report = report_of(three_steps(trace, 4000, fill), tmp_path)
    # Muon multiplies matrices: "optimizer ... 0" (DESIGN 1.2), so its 2,000,000 are all its own. 1,500,000 - 1,111,291.
    table = {"kernels/matmul": 388_709, "kernels/optimizer": 2_000_000, "kernels/memory_bound": 500_000}
    assert_split(report, 4_000_000, 1_111_291, table)
    assert report.job.model_flops_per_step == SQUARE_FLOPS


@pytest.mark.parametrize("second_start", [0, 1000])
def test_a_hidden_product_is_not_called_above_the_peak(second_start: int, tmp_path: Path) -> None:
    # The second product takes 1500 us, more than its ideal of 1111. What another stream hides of it says nothing about
    # FLOPs, dtype or peak, whether it is all hidden or two thirds of it are.
    calls = (
        matmul(Run(NVJET, 0, 1500)),
        matmul(Run(NVJET, second_start, second_start + 1500, stream=8)),
        filler(2500, 4000),
    )
    trace = job(4000, *calls) if second_start else job(4000, *calls[:2], filler(1500, 4000))
    report = report_of(trace, tmp_path)
    assert report.job.mfu is not None, report.warnings
    # The first: 1,111,291 of 1,500,000. The second owns [1500, 2500), all useful, or nothing.
    useful = 1_111_291 + (1_000_000 if second_start else 0)
    table = {"kernels/matmul": 388_709, "kernels/memory_bound": 1_500_000 if second_start else 2_500_000}
    assert_split(report, 4_000_000, useful, table)


@pytest.mark.parametrize(("known", "given"), [(979, False), (980, True)])
def test_coverage_of_98_percent_is_needed(known: int, given: bool, tmp_path: Path) -> None:
    small = [[1024, 1024], [1024, 1024]]
    calls = (matmul(Run(NVJET, 0, known), shapes=small), matmul(Run(NVJET, known, 1000), shapes=None))
    trace = job(2000, *calls, filler(1000, 2000))
    report = report_of(trace, tmp_path)
    assert report.job.flops_coverage == known / 1000
    # 2 * 1024^3 = 2,147,483,648 operations: 2,170.4 ns.
    useful = 2170 if given else 0
    assert_split(report, 2_000_000, useful, {"kernels/matmul": 1_000_000 - useful, "kernels/memory_bound": 1_000_000})
    assert report.job.mfu == (2170 / 2_000_000 if given else None)
    if not given:
        (why,) = (text for text in report.warnings if "MFU is not given" in text)
        assert "97.9%" in why
        assert "record_shapes=True" in why


def test_hidden_and_memory_bound_time_is_no_part_of_coverage(tmp_path: Path) -> None:
    # Without shapes: an addition of 1000 us, and a product that another one hides.
    calls = (
        matmul(Run(NVJET, 0, 1500)),
        matmul(Run(NVJET, 100, 1400, stream=8), shapes=None),
        filler(1500, 2500),
    )
    assert report_of(job(2500, *calls), tmp_path).job.flops_coverage == 1.0


def test_a_product_in_the_step_before_is_not_of_this_one(tmp_path: Path) -> None:
    # On a side stream it starts in the next window, [100, 1100): its FLOPs and time belong there, as does its ideal.
    trace = TraceBuilder(device_name=H100)

    def fill(host: Micros, start: Micros) -> None:
        put(trace, filler(0, 100), host + 12, start)
        put(trace, filler(1700, 4000), host + 34, start)
        if start == 1100 + 4000:
            put(trace, matmul(Run(NVJET, 4100, 5600, stream=8)), host + 56, start)

    report = report_of(three_steps(trace, 4000, fill), tmp_path)
    steps = steps_of(report)
    assert [steps[number].productive_ns for number in (1, 2, 3)] == [0, 0, SQUARE_BF16]
    assert steps[3].leaves_ns["kernels/matmul"] == 1_500_000 - SQUARE_BF16


def test_flash_attention_backward_needs_twice_the_forward(tmp_path: Path) -> None:
    # (grad, q, k, v, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, scale)
    heads = [8, 16, 1024, 64]
    shapes: list[object] = [heads, heads, heads, heads, heads, [8, 16, 1024], [], [], [], [], [], [], [], [], []]
    types = [BF16] * 5 + ["float", "", "", "Scalar", "Scalar", "Scalar", "Scalar", "long int", "long int", "Scalar"]
    values = ["", "", "", "", "", "", "", "", "1024", "1024", "0.", "False", "", "", "0.125"]
    op = "aten::_scaled_dot_product_flash_attention_backward"
    call = Call(op, shapes, types, [Run(FLASH.replace("fwd", "bwd"), 0, 200)], values)
    report = report_of(job(1000, call, filler(200, 1000)), tmp_path)
    # Forward 4 * 8 * 16 * 1024^2 * 64 = 34,359,738,368; the backward needs twice that, 69,455.7 ns, and runs 2.5 times.
    assert_split(report, 1_000_000, 69_455, {"kernels/attention": 130_545, "kernels/memory_bound": 800_000})
    assert report.job.hfu == pytest.approx(2.5 * 34_359_738_368 / (989.4e12 * 1e-3), rel=1e-12)
