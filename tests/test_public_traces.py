"""Real traces of the shared folder: all run, and those with a published or measured answer give it.

Figures are from that folder's README and the issue that set them as the goal; they were measured there, on the raw
events, without this analyser.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steptime
from steptime import cli
from steptime.errors import UnsupportedDevice
from steptime.model import Report, StepTime
from steptime.report.words import verdict
from steptime.taxonomy import LEAF_CODE
from steptime.timeline.labels import Labels
from steptime.timeline.links import Threads, activities, launch_rows
from steptime.timeline.summary import FileSummary, Request, summarize
from steptime.timeline.work import Ops, label
from steptime.trace.events import Category
from steptime.trace.parse import parse

TRACES = Path(__file__).parents[2] / "shared" / "public_traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared public traces are not beside this checkout")

CURRENT, MICROSECONDS, ROCM = "Kineto, nanoseconds", "Kineto, microseconds", "Kineto, ROCm, nanoseconds"
LEGACY = "Kineto 2021 (legacy categories)"
MTIA = "hta/mtia_inference_trace/mtia_inference_rank_0.json.gz"
#: Every trace -> its dialect, by its own keys: are categories capitalised, times decimal, is there `roctracer_version`.
DIALECTS = {
    **{f"dlrm_v100_8ranks/worker{rank}_step_12.*.json.gz": MICROSECONDS for rank in range(8)},
    "hta/amd_trace/*.gz": CURRENT,
    "hta/cpu_only/*.gz": CURRENT,
    "hta/critical_path/alexnet/*.gz": MICROSECONDS,
    "hta/critical_path/cuda_event_sync/*.gz": MICROSECONDS,
    "hta/nccl_parser_config/*.gz": CURRENT,
    "hta/negative_queue_length_values_check/*.gz": MICROSECONDS,
    "hta/ns_resolution_trace/*.gz": CURRENT,
    "hta/rank_unavailable/*.gz": MICROSECONDS,
    "hta/trace_diff/control/*.gz": MICROSECONDS,
    "hta/trace_filter/sampled_rank-0.json.gz": MICROSECONDS,
    "hta/trace_filter/sampled_rank-1.json.gz": MICROSECONDS,
    "hta/triton_example/*.gz": CURRENT,
    "llama_tp2_rtx4090/llama_trace_4layers0_*.gz": CURRENT,
    "llama_tp2_rtx4090/llama_trace_4layers1_*.gz": CURRENT,
    "resnet50_dataloader/num_workers_0/worker0.1*.gz": LEGACY,
    "resnet50_dataloader/num_workers_0/worker0.pt.*.gz": LEGACY,
    "resnet50_dataloader/num_workers_4/worker0.1*.gz": LEGACY,
    "resnet50_dataloader/num_workers_4/worker0.pt.*.gz": LEGACY,
    "small_lm_rtx3060/trace_04.json.gz": CURRENT,
    "small_lm_rtx3060/trace_05.json.gz": CURRENT,
    "tracelens/b200/*.gz": CURRENT,
    "tracelens/h100/Qwen*.gz": CURRENT,
    "tracelens/h100/gaunernst*.gz": CURRENT,
    "tracelens/h100/google*.gz": CURRENT,
    "tracelens/inference/vllm_decode_full/*.gz": ROCM,
    "tracelens/mi210/gpu_only_trace/*.gz": ROCM,
    "tracelens/mi300/gaunernst*.gz": ROCM,
    "tracelens/mi300/resnet_act_checkpoint.json.gz": ROCM,
    "tracelens/perf_model/normalization/*.gz": ROCM,
    "tracelens/torch_compile_triton/*.gz": ROCM,
}
CHECKPOINTED = "tracelens/mi300/resnet_act_checkpoint.json.gz"
NEGATIVE_QUEUE = "hta/negative_queue_length_values_check/*.gz"
#: A host that explains nothing, and sampled events: here the honest rest may be large.
UNPROVEN = {NEGATIVE_QUEUE, "hta/trace_filter/sampled_rank-0.json.gz", "hta/trace_filter/sampled_rank-1.json.gz"}
HONEST_REST = ("unexplained/unexplained", "unexplained/queue_stalled", "unexplained/events_missing")

every_trace = pytest.mark.parametrize("name", DIALECTS)


def path_of(pattern: str) -> Path:
    (path,) = TRACES.glob(pattern)
    return path


@cache
def report_of(pattern: str) -> Report:
    return steptime.analyze(str(path_of(pattern)))


@cache
def summary_of(pattern: str) -> FileSummary:
    path = path_of(pattern)
    return summarize(parse(str(path), path.stat().st_size), Request())


def events_of(pattern: str) -> list[dict[str, Any]]:
    """The raw events, read without steptime."""
    loaded = json.loads(gzip.decompress(path_of(pattern).read_bytes()))
    events: list[dict[str, Any]] = loaded if isinstance(loaded, list) else loaded["traceEvents"]
    return events


def steps_of(pattern: str) -> dict[int, StepTime]:
    (rank,) = report_of(pattern).ranks
    return {step.step: step for step in rank.steps}


def ms(step: StepTime, *leaves: str) -> float:
    return sum(step.leaves_ns.get(leaf, 0) for leaf in leaves) / 1e6


def test_no_trace_is_left_out() -> None:
    found = {path for path in TRACES.rglob("*.gz") if "bytedance_whatif" not in path.parts}
    assert found == {path_of(pattern) for pattern in [*DIALECTS, MTIA]}


@every_trace
def test_accounts_are_exact(name: str) -> None:
    report = report_of(name)
    assert report.ranks
    for rank in report.ranks:
        assert rank.steps
        for step in rank.steps:
            step.check()
            assert step.dur_ns >= 0
    # The totals of the job are those of the counted steps.
    assert report.job.total_ns == sum(
        step.dur_ns for rank in report.ranks for step in rank.steps if step.step in report.job.steps
    )
    named = sum(part.ns or 0 for part in report.job.slices) + report.job.productive_ns
    assert named == report.job.total_ns > 0
    if report.job.mfu is None:
        assert any("MFU" in text for text in report.warnings)
        assert report.job.productive_ns == 0
    else:
        assert report.job.mfu == report.job.productive_ns / report.job.total_ns


@every_trace
def test_dialects(name: str) -> None:
    (one,) = report_of(name).inputs
    assert one.quality is not None
    assert one.quality.dialect == DIALECTS[name]


@every_trace
def test_idle_time_without_a_cause_is_rare(name: str) -> None:
    report = report_of(name)
    table = parse(str(path_of(name)))
    has_ops = bool((table.category == Category.CPU_OP).any())
    if name in UNPROVEN or "ProfilerStep" not in report.job.step_source or not has_ops:
        assert name in UNPROVEN or not has_ops or not any("ProfilerStep#" in text for text in table.names)
        return
    for rank in report.ranks:
        for step in rank.steps:
            assert ms(step, *HONEST_REST) <= 0.03 * step.dur_ns / 1e6, f"step {step.step}"


def kernel_time(name: str, leaf: str) -> tuple[int, int]:
    """Kernel time of a leaf and of all kernels over the whole file, in ns, on all devices."""
    table = parse(str(path_of(name)))
    launches = launch_rows(table)
    ops = Ops(table, Threads(table))
    wanted = whole = 0
    for device in np.unique(table.device.device).tolist():
        work = activities(table, device, launches, 0)
        is_kernel = table.category[work.row] == Category.KERNEL
        dur_ns = work.end_ns - work.start_ns
        mine = label(table, work, ops, Labels()).leaf == LEAF_CODE[leaf]
        wanted += int(dur_ns[is_kernel & mine].sum())
        whole += int(dur_ns[is_kernel].sum())
    return wanted, whole


@every_trace
def test_few_kernels_are_of_no_family(name: str) -> None:
    other, whole = kernel_time(name, "kernels/other_compute")
    assert other <= 0.05 * whole


@every_trace
def test_recompute_only_where_there_is_checkpointing(name: str) -> None:
    again, _ = kernel_time(name, "recompute/recompute")
    # 4,122.223 us: the kernels under the Python frames `recompute_fn` of that file.
    assert again == (4_122_223 if name == CHECKPOINTED else 0)
    in_steps = sum(
        step.leaves_ns.get("recompute/recompute", 0) for rank in report_of(name).ranks for step in rank.steps
    )
    assert (in_steps > 0) == (name == CHECKPOINTED)


def test_recompute_of_the_steps_is_that_of_the_file() -> None:
    ledger = summary_of(CHECKPOINTED).devices[0].ledger
    rows = ledger.leaf == LEAF_CODE["recompute/recompute"]
    assert int(ledger.dur_ns[rows].sum()) == 4_122_223


def test_windows_of_a_device_two_steps_behind_its_host() -> None:
    steps = steps_of(CHECKPOINTED)
    assert [step.dur_ns / 1e6 for step in steps.values()] == pytest.approx([18.98, 18.98, 18.55], abs=0.005)
    assert [step.edge for step in steps.values()] == [True, False, False]


def test_a_blocked_host_is_no_cause_for_work_that_was_queued() -> None:
    steps = steps_of(NEGATIVE_QUEUE)
    expected = {551: 129.4, 552: 134.8, 553: 127.6, 554: 140.9}
    found = {
        number: ms(steps[number], "unexplained/queue_stalled", "unexplained/events_missing") for number in expected
    }
    assert found == pytest.approx(expected, abs=3)


# The recording holds 3.5 to 4.0 ms of pinned copies a step that ran while nothing else did. They are work of the device
# that was recorded, not a cause named for idle time, which is what this bounds.
@pytest.mark.parametrize("number", [551, 552, 553, 554])
def test_little_idle_time_is_charged_to_that_host(number: int) -> None:
    step = steps_of(NEGATIVE_QUEUE)[number]
    not_idle_or_queued = {"host/kernel_gap", "host/h2d_copy", "host/d2h_copy"}
    host = {leaf: ns / 1e6 for leaf, ns in step.leaves_ns.items() if leaf.startswith("host/")}
    assert sum(took for leaf, took in host.items() if leaf not in not_idle_or_queued) <= 5, host


def test_its_verdict_names_no_cause() -> None:
    said = verdict(report_of(NEGATIVE_QUEUE))
    assert said.startswith("Can't tell")
    assert "queue_stalled" in said


#: Loader time in ms during which the device was idle, steps 5 to 10.
LOADER = {
    "resnet50_dataloader/num_workers_0/worker0.1*.gz": [69.3, 57.7, 61.3, 56.5, 62.7, 48.2],
    "resnet50_dataloader/num_workers_4/worker0.1*.gz": [4.3, 0.0, 0.0, 0.0, 1.4, 1.4],
    "resnet50_dataloader/num_workers_0/worker0.pt.*.gz": [21.4, 50.7, 49.6, 59.3, 51.3, 49.5],
}
NEW_SLOW, NEW_FAST, OLD_SLOW = LOADER
OLD_FAST = "resnet50_dataloader/num_workers_4/worker0.pt.*.gz"


@pytest.mark.parametrize("name", LOADER)
def test_loader_time(name: str) -> None:
    steps = steps_of(name)
    assert list(steps) == [5, 6, 7, 8, 9, 10]
    assert [ms(step, "host/data_loader") for step in steps.values()] == pytest.approx(LOADER[name], abs=0.5)


def test_a_measured_what_if() -> None:
    # Taking the loader out of the slow steps gives what four workers gave in truth.
    slow = [step.dur_ns / 1e6 - ms(step, "host/data_loader") for step in steps_of(NEW_SLOW).values()]
    assert all(117.5 <= round(left, 1) <= 119.5 for left in slow)
    fast = sorted(step.dur_ns / 1e6 for step in steps_of(NEW_FAST).values())[:4]
    assert all(123 <= round(took) <= 127 for took in fast)
    assert slow == pytest.approx([sum(fast) / len(fast)] * len(slow), rel=0.07)


def _left_ms(name: str) -> float:
    """The mean step that the report promises if the loader cost nothing."""
    job = report_of(name).job
    (host,) = (part for part in job.slices if part.id == "host")
    (loader,) = (leaf for leaf in host.leaves if leaf.id == "data_loader")
    assert loader.ns is not None
    assert loader.recoverable_ns is not None
    assert loader.recoverable_ns <= loader.ns
    return (job.total_ns - loader.recoverable_ns) / job.rank_steps / 1e6


def test_the_older_pair_is_no_what_if_and_none_is_promised() -> None:
    # Without its loader about 161 ms remain; the file with workers has 116 ms steps, for other reasons.
    assert _left_ms(OLD_SLOW) == pytest.approx(161, abs=5)
    assert np.median([step.dur_ns / 1e6 for step in steps_of(OLD_FAST).values()]) == pytest.approx(116, abs=1.5)
    assert _left_ms(NEW_SLOW) == pytest.approx(118.5, abs=1)


@pytest.mark.parametrize(
    ("name", "host_ms"), [("small_lm_rtx3060/trace_04.json.gz", 7), ("small_lm_rtx3060/trace_05.json.gz", 2)]
)
def test_device_steps_where_the_host_runs_ahead(name: str, host_ms: float) -> None:
    marks = [
        event
        for event in events_of(name)
        if event.get("cat") == "user_annotation" and re.match(r"ProfilerStep#\d+$", event["name"])
    ]
    assert np.median([event["dur"] for event in marks]) / 1000 == pytest.approx(host_ms, abs=1)
    steps = [step for step in steps_of(name).values() if not step.edge]
    assert len(steps) == len(marks) - 1
    assert np.median([step.dur_ns / 1e6 for step in steps]) == pytest.approx(22.8, abs=0.2)
    assert all(step.dur_ns / 1e6 == pytest.approx(22.8, abs=0.5) for step in steps)
    assert verdict(report_of(name)).startswith("GPU-bound")


def test_kernels_that_a_graph_launched_belong_to_its_step() -> None:
    # Every step launches the same graphs, so every device step holds the same number of kernels.
    name = "small_lm_rtx3060/trace_05.json.gz"
    events = events_of(name)
    graphs = {event["args"]["correlation"] for event in events if event.get("name") == "cudaGraphLaunch"}
    replayed = [event for event in events if event.get("cat") == "kernel" and event["args"]["correlation"] in graphs]
    assert len(replayed) > 4 * len(graphs) > 0
    timeline = summary_of(name).devices[0]
    ledger = timeline.ledger
    counts = np.zeros(len(timeline.steps), np.int64)
    np.add.at(counts, ledger.step, np.where(ledger.dur_ns > 0, ledger.count, 0))
    whole = counts[1:]
    assert whole.min() >= len(replayed) // len(timeline.steps)
    assert whole.max() - whole.min() <= 2


def test_mtia_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(path_of(MTIA))
    with pytest.raises(UnsupportedDevice):
        steptime.analyze(path)
    assert cli.main(["analyze", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for word in (path, "MTIA", "mtia_ccp_events", "mtia_runtime"):
        assert word in err


def test_without_host_ops_only_the_launch_calls_are_the_hosts() -> None:
    # That file has kernels and the calls that launched them, no ops: what the host did between calls is not known.
    (step,) = steps_of("tracelens/mi210/gpu_only_trace/*.gz").values()
    known = {"host/kernel_gap", "host/launch_bound", "host/h2d_copy", "host/d2h_copy"}
    assert {leaf for leaf in step.leaves_ns if leaf.startswith("host/")} <= known
    assert step.leaves_ns["unexplained/unexplained"] > step.leaves_ns["host/launch_bound"]


def test_eight_ranks_together() -> None:
    report = steptime.analyze(str(TRACES / "dlrm_v100_8ranks"))
    assert [rank.rank for rank in report.ranks] == list(range(8))
    assert (report.job.ranks_analyzed, report.job.rank_steps) == (8, 8)
    # All five all-to-alls are SendRecv kernels: the kind comes from the host op.
    (exposed,) = (part for part in report.job.slices if part.id == "exposed_comm")
    assert {leaf.id for leaf in exposed.leaves} == {"all_to_all", "allreduce"}
    assert sum(one.count for one in report.collectives if one.kind == "all_to_all") == 8 * 5
    # No rank is called a straggler from this (rank 7's recording began late).
    assert report.stragglers == []
    assert re.search(r"rank \d|straggler", verdict(report)) is None
