"""MFU and rooflines of real traces against figures from elsewhere, and no kernel faster than its GPU.

The small language model (the shared folder's README): 4 layers of width 512, 8 heads, sequences of 256, batch of 4, no
mask, 16,777,216 weights in products, FP32. A step of 1024 tokens is 6 * 16,777,216 * 1024 = 103,079,215,104 operations
in products and 12 * 4 * 512 * 256 * 1024 = 6,442,450,944 in attention. An RTX 3060 does 12.7 TFLOP/s in FP32 (NVIDIA).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from steptime import cli, store
from steptime.model import Report
from steptime.pipeline import ModelAsk, Options, RooflinePricing, analyze
from steptime.roofline.pricing import Roof
from steptime.timeline.labels import Labels
from steptime.timeline.links import Threads, activities, clock_shift_ns, launch_rows
from steptime.timeline.pricing import OpText, Price, price_calls
from steptime.timeline.work import Ops, label
from steptime.trace.parse import parse

TRACES = Path(__file__).parents[2] / "shared" / "public_traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared public traces are not beside this checkout")

PRODUCTS, ATTENTION = 103_079_215_104, 6_442_450_944
SMALL, REPLAYED = "small_lm_rtx3060/trace_04.json.gz", "small_lm_rtx3060/trace_05.json.gz"
FP32 = RooflinePricing(peaks=("12.7e12:fp32",), dtype="fp32")
WEIGHTS = ModelAsk(params="16777216", tokens_per_step=1024)


def path_of(pattern: str) -> Path:
    (path,) = TRACES.glob(pattern)
    return path


@cache
def report_of(name: str, pricing: RooflinePricing = FP32, ask: ModelAsk = ModelAsk()) -> Report:  # noqa: B008 - frozen
    return analyze(str(path_of(name)), Options(pricing=pricing, model=ask))


def leaves_of(report: Report) -> dict[str, int]:
    return {f"{part.id}/{leaf.id}": leaf.ns for part in report.job.slices for leaf in part.leaves if leaf.ns}


def test_flops_of_a_step_are_those_of_the_model() -> None:
    job = report_of(SMALL).job
    assert job.model_flops_per_step == PRODUCTS + ATTENTION
    assert (job.flops_source, job.flops_coverage, job.above_peak_ns) == ("trace", 1.0, 0)
    # Forward and backward in four steps of 22.8 ms each, to a nanosecond a kernel.
    assert job.mfu == pytest.approx((PRODUCTS + ATTENTION) / (job.total_ns / job.rank_steps / 1e9 * 12.7e12), rel=1e-5)
    assert job.mfu == pytest.approx((PRODUCTS + ATTENTION) / (22.8e-3 * 12.7e12), rel=0.01)


def test_trace_and_parameters_agree_but_for_attention() -> None:
    report = report_of(SMALL, ask=WEIGHTS)
    job = report.job
    assert job.mfu is not None
    assert job.mfu_by is not None
    step_s = job.total_ns / job.rank_steps / 1e9
    assert job.mfu_by == pytest.approx({"6n": 6 * 16_777_216 * 1024 / (step_s * 12.7e12)}, rel=1e-12)
    # Exactly the same once attention is left out, but for a nanosecond a kernel.
    assert job.mfu * PRODUCTS / (PRODUCTS + ATTENTION) == pytest.approx(job.mfu_by["6n"], rel=1e-5)
    (why,) = (text for text in report.warnings if "GFLOP" in text)
    for words in ("109.52", "103.08", "the difference is attention"):
        assert words in why


def test_parameters_change_no_split_where_the_trace_is_complete() -> None:
    assert leaves_of(report_of(SMALL, ask=WEIGHTS)) == leaves_of(report_of(SMALL))


def test_a_replayed_graph_has_no_shapes_and_no_mfu() -> None:
    report = report_of(REPLAYED)
    job = report.job
    assert (job.mfu, job.hfu, job.mfu_by, job.flops_source) == (None, None, None, None)
    assert job.productive_ns == 0
    assert job.flops_coverage == 0
    (why,) = (text for text in report.warnings if "MFU is not given" in text)
    for words in ("0.0%", "--model", "--tokens-per-step", "CUDA graphs"):
        assert words in why
    assert sum(leaves_of(report).values()) == job.total_ns


def test_a_replayed_graph_with_parameters() -> None:
    job = report_of(REPLAYED, ask=WEIGHTS).job
    assert (job.flops_source, job.model_flops_per_step) == ("model", PRODUCTS)
    step_s = job.total_ns / job.rank_steps / 1e9
    assert job.mfu_by == pytest.approx({"6n": PRODUCTS / (step_s * 12.7e12)}, rel=1e-12)
    # 103,079,215,104 / 12.7e12 = 8,116,473.6 ns a step.
    assert job.mfu == job.rank_steps * 8_116_473 / job.total_ns
    # The same job without graphs, as the same convention has it: 0.355.
    eager = report_of(SMALL, ask=WEIGHTS).job.mfu_by
    assert eager is not None
    assert job.mfu == pytest.approx(eager["6n"], rel=0.01)
    # Taken from products and attention by owned time, step by step, and from nothing else.
    before, after = leaves_of(report_of(REPLAYED)), leaves_of(report_of(REPLAYED, ask=WEIGHTS))
    changed = {key for key in before if before[key] != after.get(key)}
    assert changed == {"kernels/matmul", "kernels/attention"}
    assert before["kernels/matmul"] / before["kernels/attention"] == pytest.approx(
        after["kernels/matmul"] / after["kernels/attention"], rel=1e-3
    )


def test_against_bf16_the_same_run_is_slower_than_it_could_be() -> None:
    # An RTX 3060's tensor cores do 51.2 TFLOP/s in BF16.
    pricing = RooflinePricing(peaks=("12.7e12:fp32", "51.2e12:bf16"), dtype="bf16")
    job, meant = report_of(SMALL, pricing).job, report_of(SMALL).job
    assert job.mfu is not None
    assert meant.mfu is not None
    assert job.mfu == pytest.approx(meant.mfu * 12.7 / 51.2, rel=1e-4)
    found = leaves_of(report_of(SMALL, pricing))
    # What FP32 needs beyond BF16: 109.52 GFLOP x (1 / 12.7 - 1 / 51.2 TFLOP/s) in each of four steps.
    assert found["kernels/precision"] == pytest.approx(4 * (PRODUCTS + ATTENTION) * (1 / 12.7e3 - 1 / 51.2e3), rel=1e-4)
    # The rest of the split is that of the FP32 run: the dtype moved nothing else.
    rest = {key: ns for key, ns in found.items() if key != "kernels/precision"}
    assert {key: pytest.approx(ns, abs=2000) for key, ns in leaves_of(report_of(SMALL)).items()} == rest


def test_the_command_line_gives_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    options = ["--peak", "12.7e12:fp32", "--dtype", "fp32", "--params", "16777216", "--tokens-per-step", "1024"]
    assert cli.main(["analyze", str(path_of(SMALL)), "-q", "-o", str(out), *options]) == 0
    assert capsys.readouterr().out == ""
    read, expected = store.load(out), report_of(SMALL, ask=WEIGHTS)
    assert read.job == expected.job
    assert read.roofline == expected.roofline
    assert read.facts == expected.facts


def test_what_each_figure_rests_on_is_said() -> None:
    notes = "\n".join(report_of(SMALL, ask=WEIGHTS).job.mfu_notes)
    for words in ("peak 12.7 TFLOP/s dense fp32 (--peak)", "6n: ", "attention not counted", "100.0%"):
        assert words in notes


def test_the_gpu_is_not_guessed() -> None:
    # No RTX 3060 in the table: no MFU, the flag that gives it, and the whole split.
    report = report_of(SMALL, RooflinePricing())
    assert (report.job.mfu, report.job.peak_flops) == (None, None)
    (why,) = (text for text in report.warnings if "MFU is not given" in text)
    assert "RTX 3060" in why
    assert "--peak" in why
    assert sum(leaves_of(report).values()) == report.job.total_ns


def test_checkpointing_makes_hfu_higher_than_mfu() -> None:
    # 4,122 us of kernels run again in three steps (the shared folder's README); none in the small model.
    job = report_of("tracelens/mi300/resnet_act_checkpoint.json.gz", RooflinePricing()).job
    assert job.mfu is not None
    assert job.hfu is not None
    # ResNet with all blocks checkpointed runs the forward again: 4 / 3, less what lies outside the blocks.
    assert 1.2 < job.hfu / job.mfu <= 4 / 3


class Instance(NamedTuple):
    """One call of an op: what it was, its price, and the length of its kernels in ns."""

    text: OpText
    price: Price
    dur_ns: int


def calls_of(name: str, pricing: RooflinePricing) -> list[tuple[Roof, list[Instance]]]:
    """Every priced call of a file, by device."""
    path = path_of(name)
    table = parse(str(path), path.stat().st_size)
    launches, threads = launch_rows(table), Threads(table)
    shift_ns, found = clock_shift_ns(table, launches), []
    for device in np.unique(table.device.device).tolist():
        roof = pricing.roof(next((one for one in table.meta.devices if one.id == device), None))
        work = activities(table, device, launches, shift_ns)
        labels = label(table, work, Ops(table, threads), Labels())
        calls = price_calls(table, work, labels, threads, pricing)
        lengths: dict[int, int] = {}
        kinds: dict[int, int] = {}
        for row in np.flatnonzero(calls.call >= 0).tolist():
            op = int(calls.op[row])
            lengths[op] = lengths.get(op, 0) + int(work.end_ns[row] - work.start_ns[row])
            kinds[op] = int(calls.call[row])
        texts, prices = calls.texts, calls.prices
        found.append((roof, [Instance(texts[kinds[op]], prices[kinds[op]], ns) for op, ns in lengths.items()]))
    return found


V100_DGX = RooflinePricing(peaks=("125e12:fp16", "15.7e12:fp32"))
#: Every trace with shapes whose GPU is known: what is recorded, or what its folder or README says of it.
ROOFED = {
    **{f"dlrm_v100_8ranks/worker{rank}_step_12.*.json.gz": RooflinePricing() for rank in range(8)},
    "hta/negative_queue_length_values_check/*.gz": RooflinePricing(),
    "hta/trace_diff/control/*.gz": RooflinePricing(),
    "hta/triton_example/*.gz": RooflinePricing(),
    "resnet50_dataloader/num_workers_0/worker0.1*.gz": V100_DGX,
    "resnet50_dataloader/num_workers_4/worker0.1*.gz": V100_DGX,
    SMALL: FP32,
    REPLAYED: FP32,
    "tracelens/b200/*.gz": RooflinePricing(),
    "tracelens/h100/Qwen*.gz": RooflinePricing(),
    "tracelens/h100/gaunernst*.gz": RooflinePricing(),
    "tracelens/h100/google*.gz": RooflinePricing(),
    "tracelens/mi300/gaunernst*.gz": RooflinePricing(gpu="MI300X"),
    "tracelens/mi300/resnet_act_checkpoint.json.gz": RooflinePricing(),
    "tracelens/perf_model/normalization/*.gz": RooflinePricing(),
}
OWLV2 = "tracelens/h100/google*.gz"
every_roof = pytest.mark.parametrize("name", ROOFED)


@every_roof
def test_no_call_is_faster_than_its_compute_peak(name: str) -> None:
    for roof, calls in calls_of(name, ROOFED[name]):
        assert roof.gpu is not None
        assert calls
        for call in calls:
            flops, peak = call.price.hardware_flops, roof.peak_of(call.price.dtype)
            if flops and peak:
                assert 1e9 * flops / peak <= 1.02 * call.dur_ns, call


@every_roof
def test_only_what_the_cache_can_hold_is_faster_than_memory(name: str) -> None:
    for roof, calls in calls_of(name, ROOFED[name]):
        assert roof.gpu is not None
        rate = roof.gpu.memory_bytes_per_s
        caches = [one for one in (roof.gpu.l2_bytes, roof.gpu.last_level_cache_bytes) if one is not None]
        held = max((one.usable or 0 for one in caches), default=0)
        if rate is None or rate.usable is None:
            assert "small_lm" in name
            continue
        for call in calls:
            if call.price.bytes is not None:
                assert 1e9 * (call.price.bytes - held) / rate.usable <= 1.02 * call.dur_ns, call


@every_roof
def test_rows_beyond_a_roof_are_marked(name: str) -> None:
    report = report_of(name, ROOFED[name])
    measured = [row for row in report.roofline if row.peak_share is not None]
    # That trace's shapes are of small ops outside its graphs, or of one kernel without bytes or FLOPs.
    assert measured or name in ("hta/triton_example/*.gz", REPLAYED)
    for row in measured:
        assert row.peak_share is not None
        if row.peak_share > 1:
            assert row.cache_resident, row
            assert row.bound == "memory", row
        if row.bound == "compute":
            assert row.peak_share <= 1.02, row
        if row.headroom_ns is not None:
            assert row.attainable_ns is not None
            assert 0 <= row.headroom_ns <= row.owned_ns
            assert 0 <= row.attainable_ns <= row.dur_ns


@every_roof
def test_every_step_adds_up_with_its_useful_work(name: str) -> None:
    report = report_of(name, ROOFED[name])
    for rank in report.ranks:
        for step in rank.steps:
            step.check()
    job = report.job
    assert job.productive_ns + sum(leaves_of(report).values()) == job.total_ns
    if job.mfu is not None:
        assert job.mfu == job.productive_ns / job.total_ns
        assert job.above_peak_ns is not None
        assert job.above_peak_ns <= 0.005 * job.total_ns


def test_some_of_owlv2_comes_from_the_cache() -> None:
    # About 5.6 % of its elementwise time is faster than memory, all of it on 31.9 MB or less: L2 holds 52.4.
    ((roof, calls),) = calls_of(OWLV2, RooflinePricing())
    assert roof.gpu is not None
    names = ("aten::add", "aten::mul", "aten::sigmoid", "aten::copy_", "aten::gelu", "aten::div", "aten::sub")
    elementwise = [call for call in calls if call.text.op in names and call.price.bytes]
    fast = [call for call in elementwise if call.price.bytes and 1e9 * call.price.bytes / 3350e9 > call.dur_ns]
    assert max(call.price.bytes or 0 for call in fast) < 52_428_800
    share = sum(call.dur_ns for call in fast) / sum(call.dur_ns for call in elementwise)
    assert 0.04 < share < 0.07
    # The rows that are faster on the mean are shown as cache-resident.
    rows = [row for row in report_of(OWLV2, RooflinePricing()).roofline if row.peak_share and row.peak_share > 1]
    assert rows
    assert all(row.cache_resident and row.op in names for row in rows)
