"""Metrics on reports written by hand; each expected number is worked out in the comment beside it."""

from __future__ import annotations

import pytest

from steptime.diagnose.metrics import FACTS, METRICS, measure
from steptime.diagnose.reading import Value
from steptime.model import Collective, Kernel, OtherStep, Report, Spread
from tests.diagnose.situations import (
    SITUATIONS,
    STEPS,
    TOTAL,
    cause,
    collective,
    kernel,
    one_rank,
    ranks_of,
    roof,
    with_leaf,
)
from tests.report.reports import MS, REPORTS, nothing_measured


def _value(report: Report, name: str) -> Value:
    return measure(report)[name]


def _number(report: Report, name: str) -> float | None:
    return _value(report, name).number


def test_a_leaf_is_its_share_and_a_slice_the_sum() -> None:
    # 30 + 12 of 100 ms are the host's.
    report = one_rank({"host/data_loader": 30, "host/sync": 12})
    assert _number(report, "share.host.data_loader") == pytest.approx(0.30)
    assert _number(report, "share.host") == pytest.approx(0.42)
    assert _number(report, "share.kernels.matmul") == pytest.approx(0.58)


def test_a_leaf_that_was_looked_for_and_not_found_is_zero() -> None:
    report = one_rank({})
    assert _number(report, "share.host.sync") == 0.0
    assert _number(report, "recoverable.host.sync") == 0.0


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("share.host.gc", "garbage collection leaves no event"),
        ("share.host.checkpoint", "no checkpoint event"),
        ("share.host.profiler_overhead", "--unprofiled-step-ms"),
        ("share.kernels.precision", "FLOPs"),
        ("share.unexplained.capture_skew", "several ranks"),
        ("ranks.compute_ratio", "at least three ranks"),
        ("ranks.host_excess", "at least three ranks"),
        ("job.mfu", "MFU is not known"),
        ("roof.headroom_share", "shapes were not recorded"),
        ("comm.overlap", "no collective"),
        ("comm.overlap.allgather", "no allgather"),
        ("kernels.mean_ns", "lists no kernels"),
    ],
)
def test_what_one_trace_can_not_tell_has_no_number(metric: str, reason: str) -> None:
    value = _value(one_rank({}), metric)
    assert value.number is None
    assert reason in value.why


def test_the_reason_of_an_unknown_slice_is_the_report_s_own() -> None:
    report = with_leaf(REPORTS["loader_bound"](), "stragglers/wait_for_rank", detail={"why": "one rank only"})
    assert _value(report, "share.stragglers.wait_for_rank").why == "one rank only"
    assert _number(report, "share.stragglers") is None


def test_without_steps_nothing_is_known_of_time() -> None:
    values = measure(nothing_measured())
    assert {name for name, value in values.items() if value.number is not None} <= {
        "ranks.analyzed",
        "steps.counted",
        "steps.checkpoints",
    }


def test_what_is_recoverable_is_never_more_than_the_leaf() -> None:
    report = one_rank({"host/sync": 10, "exposed_comm/allreduce": 20}, of_job={"world_size": 2, "ranks_analyzed": 2})
    # 3 ms of the 10 are recoverable; the other leaf's figure is nonsense and is cut.
    report = with_leaf(report, "host/sync", recoverable_ns=3 * MS * STEPS)
    report = with_leaf(report, "exposed_comm/allreduce", recoverable_ns=500 * MS * STEPS)
    assert _number(report, "recoverable.host.sync") == pytest.approx(0.03)
    assert _number(report, "recoverable.exposed_comm.allreduce") == pytest.approx(0.20)


def test_kernels_without_a_roof_are_not_recoverable() -> None:
    value = _value(one_rank({}), "recoverable.kernels.matmul")
    assert value.number is None
    assert "roof" in value.why


def test_named_causes_are_at_least_what_is_listed() -> None:
    listed = [
        cause("host/sync", "cudaStreamSynchronize", 4, "aten::item"),
        cause("host/sync", "cudaEventSynchronize", 3),
    ]
    report = one_rank({"host/sync": 10}, causes=listed)
    assert _number(report, "host.value_sync_share") == pytest.approx(0.04)
    # Nothing matches, and 3 of the leaf's 10 ms are not listed: the answer could be up to 0.03.
    value = _value(report, "host.device_sync_share")
    assert value.number is None
    assert value.why == "the report names the causes of only 70% of host/sync"
    # With all of it listed, zero is a measurement.
    full = one_rank({"host/sync": 7}, causes=listed)
    assert _number(full, "host.device_sync_share") == 0.0
    # 8 occurrences of each of the two in 4 steps.
    assert _number(full, "host.syncs_per_step") == 4


def test_host_counts() -> None:
    causes = [cause("host/allocator", "cudaFree", 3, count=2), cause("host/allocator", "cudaMalloc", 1, count=10)]
    report = one_rank({"host/allocator": 4}, causes=causes)
    assert _number(report, "host.allocator_calls_per_step") == 3  # 12 calls in 4 steps


def test_compiling_is_split_into_first_uses_and_the_rest() -> None:
    causes = [
        cause("host/compile", "first use of the kernel", 15),
        cause("host/compile", "_compile.compile_inner (dynamo_timed)", 5),
    ]
    report = one_rank({"host/compile": 20}, causes=causes)
    assert _number(report, "host.first_use_share") == pytest.approx(0.15)
    assert _number(report, "host.recompile_share") == pytest.approx(0.05)
    assert _number(report, "host.compile_steps") == 1.0


def test_kernel_lengths_and_names() -> None:
    kernels = [
        Kernel(name="tiny", leaf="kernels/memory_bound", count=30, dur_ns=30 * 2_000, owned_ns=30 * 2_000),
        Kernel(name="volta_sgemm_128x32_nt", leaf="kernels/matmul", count=10, dur_ns=10 * MS, owned_ns=8 * MS),
    ]
    report = one_rank({}, kernels=kernels)
    assert _number(report, "kernels.mean_ns") == pytest.approx((60_000 + 10 * MS) / 40)
    assert _number(report, "kernels.per_step") == 10
    assert _number(report, "kernels.tiny") == 0.75
    assert _number(report, "kernels.fp32_units_share") == pytest.approx(8 * MS / TOTAL)
    counted = one_rank({}, kernels=kernels, facts={"kernels.mean_ns": 7_000.0, "kernels.per_step": 900.0})
    assert (_number(counted, "kernels.mean_ns"), _number(counted, "kernels.per_step")) == (7_000, 900)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("void softmax_warp_forward<float, float, float, 7, false, false>", "kernels.softmax_share"),
        ("void cunn_SoftMaxForward<8, BFloat16, float, BFloat16, SoftMaxForwardEpilogue>", "kernels.softmax_share"),
        ("void nchwToNhwcKernel<__half, __half, float, false, true>", "kernels.transpose_share"),
        ("void at::native::unrolled_elementwise_kernel<direct_copy_kernel>", "kernels.elementwise_share"),
    ],
)
def test_kernels_by_name(name: str, metric: str) -> None:
    report = one_rank({"kernels/memory_bound": 9}, kernels=[kernel("kernels/memory_bound", name, 9)])
    assert _number(report, metric) == pytest.approx(0.09)


@pytest.mark.parametrize(
    "name", ["cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>", "triton_red_0"]
)
def test_a_loss_is_no_attention(name: str) -> None:
    report = one_rank({"kernels/memory_bound": 9}, kernels=[kernel("kernels/memory_bound", name, 9)])
    assert _number(report, "kernels.softmax_share") == 0.0


def test_a_fused_optimizer_is_not_per_tensor() -> None:
    fused = kernel("kernels/optimizer", "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>", 8)
    report = one_rank({"kernels/optimizer": 8}, kernels=[fused])
    assert _number(report, "kernels.per_tensor_optimizer_share") == 0.0


def test_the_overlap_is_what_compute_hides() -> None:
    # 20 ms with 5 exposed, 10 ms all exposed: 15 of 30 are hidden.
    found = [collective("allreduce", 20, 40, exposed=0.25), collective("allgather", 10, 40)]
    report = one_rank({"exposed_comm/allreduce": 5, "exposed_comm/allgather": 10}, collectives=found)
    assert _number(report, "comm.overlap") == pytest.approx(0.5)
    assert _number(report, "comm.overlap.allreduce") == pytest.approx(0.75)
    assert _number(report, "comm.overlap.allgather") == 0.0
    assert _number(report, "comm.per_step") == 20  # 80 in 4 steps
    assert _number(report, "comm.mean_ns") == 120 * MS / 80


def test_small_collectives() -> None:
    small = Collective(kind="allreduce", group="tp", count=100, dur_ns=100 * 40_000, exposed_ns=3 * MS)
    large = Collective(kind="allgather", group="dp", count=4, dur_ns=40 * MS, exposed_ns=40 * MS)
    report = one_rank({"exposed_comm/allreduce": 1, "exposed_comm/allgather": 10}, collectives=[small, large])
    assert _number(report, "comm.small_share") == pytest.approx(3 * MS / TOTAL)


def test_steps() -> None:
    uneven = SITUATIONS["steps-uneven"]
    # 8 steps of 100 ms and 2 of 200: the two exceed the median by 100 ms each, of 1,200 in all.
    assert _number(uneven, "steps.jitter_share") == pytest.approx(200 / 1_200)
    assert _number(uneven, "steps.spread") == 2.0
    few = one_rank({}, of_job={"rank_steps": 2, "step_time_ns": Spread(median=1, p10=1, p90=9)})
    assert _number(few, "steps.spread") is None


def test_other_steps() -> None:
    other = [OtherStep(rank=0, step=step, dur_ns=100 * MS, reason="checkpoint") for step in (20, 30)]
    report = one_rank({}, other_steps=other)
    assert _number(report, "steps.other_share") == pytest.approx(200 / 600)
    assert _number(report, "steps.other_period") == 10
    assert _number(report, "steps.checkpoints") == 2


def test_a_slow_rank_and_a_rank_with_a_busy_host() -> None:
    # Kernels take 84 ms on one rank and 60 on three.
    assert _number(SITUATIONS["slow-rank"], "ranks.compute_ratio") == pytest.approx(84 / 60)
    # The host takes 25 ms on one rank and 1 on three, of steps of 100 ms.
    assert _number(SITUATIONS["one-rank-host"], "ranks.host_excess") == pytest.approx(0.24)


def test_ranks_are_not_compared_on_edge_steps() -> None:
    rows = ranks_of({rank: {"kernels/matmul": 60 + 30 * (rank == 1)} for rank in range(3)}, edge=True)
    value = _value(one_rank({}, ranks=rows), "ranks.compute_ratio")
    assert value.number is None
    assert "edge steps" in value.why


def test_misaligned_matmuls_count_where_they_are_slow_against_aligned_ones() -> None:
    aligned = roof([], 20, peak_share=0.6, shapes="aligned")
    slow = roof(["misaligned"], 10, peak_share=0.3)  # half of what the aligned one attains; headroom 5 ms
    fast = roof(["misaligned"], 10, peak_share=0.55)
    assert _number(one_rank({}, roofline=[aligned, slow, fast]), "roof.misaligned_share") == pytest.approx(0.05)
    assert _number(one_rank({}, roofline=[aligned, fast]), "roof.misaligned_share") == 0.0
    # Without a neighbour of its dtype, half of peak decides.
    other = roof([], 20, peak_share=0.6, dtype="fp32")
    assert _number(one_rank({}, roofline=[other, slow]), "roof.misaligned_share") == pytest.approx(0.05)


def test_roofline_sums() -> None:
    rows = [
        roof([], 20, peak_share=0.5),
        roof([], 10, kind="memory", op="aten::add", peak_share=0.9, headroom_ns=0),
        roof([], 10, kind="attention", headroom_ns=None, attainable_ns=None, peak_share=None),
    ]
    report = one_rank({}, roofline=rows)
    assert _number(report, "roof.headroom_share") == pytest.approx(0.10)  # half of 20 ms
    assert _number(report, "roof.matmul_headroom_share") == pytest.approx(0.10)
    assert _number(report, "roof.memory_headroom_share") == 0.0
    assert _number(report, "roof.attention_headroom_share") is None
    assert _number(report, "roof.known") == pytest.approx(0.30)  # 30 of 100 ms of kernels
    assert _number(report, "roof.matmul_peak_share") == 0.5
    assert _number(report, "roof.top_peak_share") == 0.5


def test_facts_are_metrics_or_have_a_reason() -> None:
    facts: dict[str, float | None] = {fact.name: None for fact in FACTS}
    values = measure(one_rank({}, facts=facts))
    for fact in FACTS:
        if fact.name in METRICS and not fact.name.startswith("kernels."):
            assert values[fact.name].why == fact.why_missing
    given = one_rank({}, facts={"allocator.reserved_bytes": 60e9, "allocator.allocated_bytes": 40e9})
    assert _number(given, "allocator.reserved_ratio") == 1.5
    assert _number(given, "allocator.unused_bytes") == 20e9


def test_the_profiler_s_share() -> None:
    report = with_leaf(
        one_rank({"host/launch_bound": 20}), "host/launch_bound", detail={"profiler_inflation_ns": 8 * MS}
    )
    assert _number(report, "host.inflation_share") == pytest.approx(8 * MS / TOTAL)
    assert _number(one_rank({"host/launch_bound": 20}), "host.inflation_share") is None
    assert _number(one_rank({}), "host.inflation_share") == 0.0


def test_checks_by_name() -> None:
    rows = [roof(["fp32_where_bf16_is_reference"], 10), roof(["tf32_where_bf16_is_reference", "tiny_kernels"], 5)]
    report = one_rank({}, roofline=rows)
    assert _number(report, "roof.slower_precision_share") == pytest.approx(0.15)
    assert _number(report, "roof.tiny_kernels_share") == pytest.approx(0.05)
    # A convolution whose longest kernel is a transpose is no copy, and neither is a fused kernel that transposes.
    rows = [roof(["layout_copy"], 10, kind="convolution"), roof(["layout_copy"], 3, kind="memory")]
    rows.append(roof(["layout_copy"], 7, kind="memory", kernel="triton_poi_fused_add_clone_transpose_3"))
    assert _number(one_rank({}, roofline=rows), "roof.layout_copy_share") == pytest.approx(0.03)


def test_a_norm_is_told_by_its_rsqrt() -> None:
    power = roof([], 4, kind="memory", op="aten::pow")
    assert _number(one_rank({}, roofline=[power]), "roof.unfused_norm_share") == 0.0
    written_out = [power, roof([], 1, kind="memory", op="aten::rsqrt"), roof([], 9, kind="memory", op="aten::mul")]
    assert _number(one_rank({}, roofline=written_out), "roof.unfused_norm_share") == pytest.approx(0.05)
