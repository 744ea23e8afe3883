"""Rows of the roofline, by hand from the H100's figures: 3350 GB/s, 50 MiB of L2, peaks as in `priced`.

Two steps count, so a row holds each call twice. An addition of two BF16 [8192, 8192] moves 3 x 134,217,728 =
402,653,184 bytes: 120,195.0 ns at 3350 GB/s; the product moves as many.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from steptime.model import OpRoof, Report
from steptime.pipeline import Options, RooflinePricing, analyze
from tests.roofline.priced import (
    BF16,
    FP32,
    NVJET,
    SGEMM,
    SQUARE_FLOPS,
    Call,
    Run,
    add,
    filler,
    job,
    matmul,
)
from tests.timeline.built import ADD, report_of

MOVED = 402_653_184


def row_of(report: Report, op: str) -> OpRoof:
    (row,) = (row for row in report.roofline if row.op == op)
    return row


def rows(tmp_path: Path, call: Call, took: float, op: str, pricing: RooflinePricing | None = None) -> OpRoof:
    """The row of `op` in a job of `call`, whose kernels take `took` us, and 1000 us of something without shapes."""
    trace = job(took + 1000, call, filler(took, took + 1000))
    return row_of(report_of(trace, tmp_path, Options(pricing=pricing or RooflinePricing())), op)


def test_a_product_is_bound_by_compute(tmp_path: Path) -> None:
    row = rows(tmp_path, matmul(Run(NVJET, 0, 2000)), 2000, "aten::mm")
    assert (row.count, row.kernels, row.kernel) == (2, 2, NVJET)
    assert (row.kind, row.direction, row.dtype, row.recomputed) == ("matmul", "forward", "bf16", False)
    assert (row.dur_ns, row.owned_ns) == (4_000_000, 4_000_000)
    assert json.loads(row.shapes) == [[8192, 8192], [8192, 8192]]
    assert (row.flops, row.model_flops, row.bytes) == (2 * SQUARE_FLOPS, 2 * SQUARE_FLOPS, 2 * MOVED)
    # 1,099,511,627,776 / 402,653,184.
    assert row.intensity == pytest.approx(8192 / 3, rel=1e-12)
    assert row.attained_flops == pytest.approx(SQUARE_FLOPS / 2e-3, rel=1e-12)
    assert row.attained_bytes_per_s == pytest.approx(MOVED / 2e-3, rel=1e-12)
    assert row.bound == "compute"
    assert row.peak_share == pytest.approx(1_111_291.3 / 2_000_000, rel=1e-6)
    # The best that anyone published for the H100 in BF16 is 794.5 TFLOP/s: 1,383,903.9 ns.
    assert row.attainable_ns == 2_767_807
    assert row.headroom_ns == 1_232_193
    assert (row.cache_resident, row.checks) == (False, [])


def test_without_a_published_rate_the_peak_is_the_roof(tmp_path: Path) -> None:
    row = rows(tmp_path, matmul(Run(SGEMM, 0, 18_000), types=FP32), 18_000, "aten::mm")
    assert row.dtype == "fp32"
    # 16,435,151.4 of 18,000,000 at its own peak.
    assert row.peak_share == pytest.approx(16_435_151.4 / 18_000_000, rel=1e-6)
    assert (row.attainable_ns, row.headroom_ns) == (32_870_302, 3_129_698)


def test_faster_than_the_achievable_rate_leaves_no_headroom(tmp_path: Path) -> None:
    row = rows(tmp_path, matmul(Run(NVJET, 0, 1200)), 1200, "aten::mm")
    assert (row.attainable_ns, row.headroom_ns) == (2_400_000, 0)
    assert row.peak_share == pytest.approx(1_111_291.3 / 1_200_000, rel=1e-6)


def test_an_addition_is_bound_by_memory(tmp_path: Path) -> None:
    row = rows(tmp_path, add(Run(ADD, 0, 200)), 200, "aten::add")
    assert (row.kind, row.flops, row.model_flops, row.bytes) == ("memory", None, None, 2 * MOVED)
    assert (row.intensity, row.attained_flops) == (None, None)
    assert row.attained_bytes_per_s == pytest.approx(MOVED / 200e-6, rel=1e-12)
    assert row.bound == "memory"
    assert row.peak_share == pytest.approx(120_195.0 / 200_000, rel=1e-5)
    # Well-written kernels reach 92 % of the bandwidth: 130,646.7 ns.
    assert row.attainable_ns == pytest.approx(2 * 130_646.7, abs=1)
    assert row.headroom_ns == pytest.approx(400_000 - 2 * 130_646.7, abs=1)
    assert row.cache_resident is False


def test_a_product_of_one_row_is_bound_by_memory(tmp_path: Path) -> None:
    call = matmul(Run(NVJET, 0, 50), shapes=[[1, 8192], [8192, 8192]])
    row = rows(tmp_path, call, 50, "aten::mm")
    # 2 * 8192^2 operations in 135.7 ns, 134,250,496 bytes in 40,074.8 ns: 0.3 % of the peak, 80 % of the bandwidth.
    assert row.flops == 2 * 134_217_728
    assert row.bytes == 2 * 134_250_496
    assert row.bound == "memory"
    assert row.peak_share == pytest.approx(40_074.8 / 50_000, rel=1e-5)
    assert row.attainable_ns == pytest.approx(2 * 40_074.8 / 0.92, abs=1)


@pytest.mark.parametrize(
    ("took", "share", "cached"), [(110, 1.09268, True), (104, 1.15572, False), (121, 0.99335, False)]
)
def test_faster_than_memory_by_no_more_than_the_cache_holds(
    took: float, share: float, cached: bool, tmp_path: Path
) -> None:
    # 52,428,800 of 402,653,184 bytes may have lain in L2; the rest takes 104,544.6 ns.
    row = rows(tmp_path, add(Run(ADD, 0, took)), took, "aten::add")
    assert row.bound == "memory"
    assert row.peak_share == pytest.approx(share, rel=1e-4)
    assert row.cache_resident == cached
    if cached:
        assert (row.attainable_ns, row.headroom_ns) == (None, None)
    else:
        assert row.attainable_ns is not None


@pytest.mark.parametrize(("rows_", "cached"), [(4266, True), (4267, False)])
def test_bytes_that_fit_in_the_cache(rows_: int, cached: bool, tmp_path: Path) -> None:
    # 3 x 2 x 2048 x 4266 = 52,420,608 of 52,428,800 bytes; one row more is too much.
    row = rows(tmp_path, add(Run(ADD, 0, 30), shape=(rows_, 2048)), 30, "aten::add")
    assert row.cache_resident == cached
    assert (row.headroom_ns is None) == cached


def test_compute_bound_work_is_never_from_the_cache(tmp_path: Path) -> None:
    # Three [2048, 2048] matrices of 25,165,824 bytes in all fit in L2: 17,363.9 ns of compute, 7,512.2 of memory.
    row = rows(tmp_path, matmul(Run(NVJET, 0, 40), shapes=[[2048, 2048], [2048, 2048]]), 40, "aten::mm")
    assert (row.bound, row.cache_resident) == ("compute", False)
    # 17,179,869,184 at 794.5 TFLOP/s: 21,623.5 ns.
    assert row.attainable_ns == pytest.approx(2 * 21_623.5, abs=1)


@pytest.mark.parametrize(("took", "bound"), [(4.9, "launch"), (5.1, "memory")])
def test_a_tiny_kernel_is_bound_by_its_launch(took: float, bound: str, tmp_path: Path) -> None:
    # 24,576 bytes: 7.3 ns.
    row = rows(tmp_path, add(Run(ADD, 0, took), shape=(64, 64)), took, "aten::add")
    assert row.bound == bound
    assert ("tiny_kernels" in row.checks) == (bound == "launch")


def test_a_short_kernel_near_its_roof_is_not_bound_by_its_launch(tmp_path: Path) -> None:
    # 3 x 2 x 1024 x 1500 = 9,216,000 bytes in 2,751 ns, more than half of 4,500.
    row = rows(tmp_path, add(Run(ADD, 0, 4.5), shape=(1500, 1024)), 4.5, "aten::add")
    assert row.bound == "memory"


def test_launch_bound_is_by_kernel_and_not_by_call(tmp_path: Path) -> None:
    # One call of ten kernels of 4 us each.
    call = add(*(Run(ADD, 4 * at, 4 * at + 4) for at in range(7)), shape=(64, 64))
    row = rows(tmp_path, call, 28, "aten::add")
    assert (row.count, row.kernels, row.bound) == (2, 14, "launch")


def test_without_a_roof_only_what_was_attained_is_known(tmp_path: Path) -> None:
    trace = job(3000, matmul(Run(NVJET, 0, 2000)), filler(2000, 3000), device="Built GPU")
    row = row_of(report_of(trace, tmp_path), "aten::mm")
    assert row.attained_flops == pytest.approx(SQUARE_FLOPS / 2e-3, rel=1e-12)
    assert row.intensity == pytest.approx(8192 / 3, rel=1e-12)
    assert (row.bound, row.peak_share, row.attainable_ns, row.headroom_ns) == (None, None, None, None)


def test_only_a_peak_is_known(tmp_path: Path) -> None:
    # The memory's rate is not, so the product is measured against compute, the addition against nothing.
    calls = (matmul(Run(NVJET, 0, 2000)), add(Run(ADD, 2000, 2200)), filler(2200, 3000))
    options = Options(pricing=RooflinePricing(peaks=("500e12:bf16",)))
    report = report_of(job(3000, *calls, device="Built GPU"), tmp_path, options)
    product, addition = row_of(report, "aten::mm"), row_of(report, "aten::add")
    # 1,099,511,627,776 / 500e12 = 2,199,023.3 ns.
    assert (product.bound, addition.bound) == ("compute", None)
    assert product.peak_share == pytest.approx(2_199_023.3 / 2_000_000, rel=1e-6)
    assert (addition.peak_share, addition.attainable_ns) == (None, None)


def test_the_hidden_part_counts_as_length_and_not_as_owned(tmp_path: Path) -> None:
    calls = (add(Run(ADD, 0, 200)), matmul(Run(NVJET, 100, 2100, stream=8)), filler(2100, 5000))
    row = row_of(report_of(job(5000, *calls), tmp_path), "aten::mm")
    assert (row.dur_ns, row.owned_ns) == (4_000_000, 3_800_000)
    # Rates are of the whole length; what may be won is of what it owned: 3,800,000 - 2,767,807.
    assert row.attained_flops == pytest.approx(SQUARE_FLOPS / 2e-3, rel=1e-12)
    assert row.headroom_ns == 1_032_193


def test_rows_are_by_call_and_costliest_first(tmp_path: Path) -> None:
    small = [[1024, 1024], [1024, 1024]]
    calls = (
        matmul(Run(NVJET, 0, 100), shapes=small),
        matmul(Run(NVJET, 100, 150), shapes=small),
        matmul(Run(SGEMM, 150, 450), shapes=small, types=FP32),
        filler(450, 1000),
    )
    report = report_of(job(1000, *calls), tmp_path)
    found = [(row.op, row.dtype, row.count, row.owned_ns) for row in report.roofline]
    assert found == [("aten::mm", "fp32", 2, 600_000), ("aten::mm", "bf16", 4, 300_000)]


def test_shapes_are_one_line_however_the_file_is_written(tmp_path: Path) -> None:
    path = job(3000, matmul(Run(NVJET, 0, 2000)), filler(2000, 3000)).write(tmp_path / "rank0.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))
    row = row_of(analyze(str(path)), "aten::mm")
    assert row.shapes == "[[8192, 8192], [8192, 8192]]"


def test_the_longest_kernel_names_the_row(tmp_path: Path) -> None:
    call = matmul(Run("small_gemm", 0, 100), Run(NVJET, 100, 2000))
    row = rows(tmp_path, call, 2000, "aten::mm")
    assert (row.kernel, row.kernels, row.count) == (NVJET, 4, 2)


def test_bytes_that_are_not_known(tmp_path: Path) -> None:
    # Without types the size of an element is unknown; the product's kernel tells its type, and so its peak.
    call = Call("aten::mm", [[8192, 8192], [8192, 8192]], (), [Run(NVJET, 0, 2000)])
    trace = job(3000, call, filler(2000, 3000))
    for event in trace._events:
        event.args.pop("Input type", None)
    row = row_of(report_of(trace, tmp_path), "aten::mm")
    assert (row.dtype, row.flops, row.bytes, row.intensity) == ("bf16", 2 * SQUARE_FLOPS, None, None)
    assert row.bound == "compute"
    assert row.peak_share == pytest.approx(1_111_291.3 / 2_000_000, rel=1e-6)


def half_causal(causal: str) -> tuple[Sequence[object], Sequence[str], Sequence[str]]:
    heads = [8, 16, 1024, 64]
    types = [BF16, BF16, BF16, "", "Scalar", "Scalar", "", "Scalar"]
    return [heads, heads, heads, [], [], [], [], []], types, ["", "", "", "", "0.", causal, "", "False"]


@pytest.mark.parametrize(
    ("causal", "flops", "notes"), [("True", 17_179_869_184, ["causal"]), ("False", 34_359_738_368, [])]
)
def test_attention_carries_its_notes(causal: str, flops: int, notes: list[str], tmp_path: Path) -> None:
    shapes, types, values = half_causal(causal)
    call = Call("aten::scaled_dot_product_attention", shapes, types, [Run("flash_fwd_kernel", 0, 100)], values)
    row = rows(tmp_path, call, 100, "aten::scaled_dot_product_attention")
    assert (row.kind, row.flops, row.notes) == ("attention", 2 * flops, notes)
