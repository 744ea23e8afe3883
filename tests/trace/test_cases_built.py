"""Public bug reports of kind (a), built by hand: the cases that the shared folder describes without a file.

One good trace of two steps and one change to it per case. In the good trace, per 10 ms step: a copy of 500 us, a GEMM
of 3,000, attention of 2,000, an exposed all-reduce of 2,000 and the optimizer of 1,000; idle 1,500. The device finishes
9,000 us after the mark, so the second window is [9,000, 19,000).
"""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import steptime
from steptime import Options
from steptime.errors import RankError, TraceError, UnsupportedDevice
from steptime.model import Report, StepTime
from steptime.trace.parse import parse
from tests.builders import ORIGIN_NS, TraceBuilder

STEP_US = 10_000
#: Leaves of the second step in us; all idle time is left to the causes' own tests.
BUSY_US = {
    "kernels/matmul": 3000,
    "kernels/attention": 2000,
    "kernels/optimizer": 1000,
    "exposed_comm/allreduce": 2000,
    "host/h2d_copy": 500,
}


def good(
    mark: Callable[[int], str] = "ProfilerStep#{}".format, marked: tuple[int, ...] = (3, 4), **more: object
) -> TraceBuilder:
    builder = TraceBuilder(**more)  # type: ignore[arg-type]
    for number in (3, 4):
        one_step(builder, (number - 3) * STEP_US, mark(number) if number in marked else None)
    return builder


def one_step(builder: TraceBuilder, at: int, name: str | None, call: str = "cudaLaunchKernel") -> TraceBuilder:
    if name is not None:
        builder.annotation(name, at, STEP_US)
    builder.op("aten::copy_", at + 100, 90).copy("HtoD", at + 200, 500, launch_at=at + 120, launch_for=40)
    builder.op("aten::mm", at + 300, 60)
    builder.kernel("nvjet_tst_128x256", at + 1000, 3000, launch_at=at + 320, call=call)
    builder.op("aten::_flash_attention_forward", at + 400, 60)
    builder.kernel("flash_fwd_kernel", at + 4000, 2000, launch_at=at + 420, call=call)
    builder.collective("allreduce", at + 6000, 2000, launch_at=at + 520)
    builder.optimizer(at + 600, 100).op("aten::_fused_adamw_", at + 610, 80)
    return builder.kernel("multi_tensor_apply_kernel", at + 8000, 1000, launch_at=at + 650, call=call)


def analyze(builder: TraceBuilder, folder: Path, **options: object) -> Report:
    return steptime.analyze(str(builder.write(folder / "rank0.json")), Options(**options))  # type: ignore[arg-type]


def busy_us(step: StepTime) -> dict[str, float]:
    step.check()
    return {leaf: step.leaves_ns.get(leaf, 0) / 1000 for leaf in BUSY_US}


def steps(report: Report) -> list[StepTime]:
    (rank,) = report.ranks
    return rank.steps


def unchanged(report: Report) -> None:
    """The figures of the good trace."""
    first, second = steps(report)
    assert (first.dur_ns, second.dur_ns) == (9_000_000, 10_000_000)
    assert (first.edge, second.edge) == (True, False)
    assert first.start_ns == ORIGIN_NS
    for step in (first, second):
        assert busy_us(step) == BUSY_US
        assert set(step.leaves_ns) - set(BUSY_US) <= {
            leaf for leaf in step.leaves_ns if leaf.startswith(("host/", "unex"))
        }


def said(report: Report) -> list[str]:
    return [*report.warnings, *(text for one in report.inputs for text in one.warnings)]


def quality(report: Report) -> tuple[dict[str, int], dict[str, int]]:
    (one,) = report.inputs
    assert one.quality is not None
    return one.quality.dropped, one.quality.clipped


def test_the_good_trace(tmp_path: Path) -> None:
    report = analyze(good(), tmp_path)
    unchanged(report)
    assert quality(report) == ({}, {})
    assert said(report) == [text for text in said(report) if "MFU" in text]


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [("A03", b"\x9f\xff", r"not UTF-8.*byte \d+"), ("A07", b"config.py(0): \x01", r"control character.*byte \d+")],
)
def test_a03_a07_bytes_that_json_forbids(case: str, name: bytes, words: str, tmp_path: Path) -> None:
    text = good().frame("PLACE", 10, 50).dumps()
    path = tmp_path / "rank0.json"
    path.write_bytes(text.replace(b"PLACE", name))
    report = steptime.analyze(str(path))
    unchanged(report)
    found = [text for text in said(report) if re.search(words, text)]
    assert len(found) == 1, case
    # The offset of the first bad byte is the file's own.
    assert int(re.findall(r"byte (\d+)", found[0])[0]) == text.index(b"PLACE") + name.index(
        b"\x01" if b"\x01" in name else b"\x9f"
    )


def _silent_about_its_rank() -> TraceBuilder:
    # No collective either: its host op would tell the rank.
    builder = TraceBuilder(distributed_info=False).step(3, 0, STEP_US)
    return builder.op("aten::mm", 10, 50).kernel("nvjet_tst_128x256", 1000, 3000, launch_at=20)


def test_a11_one_file_without_distributed_info_is_rank_0(tmp_path: Path) -> None:
    report = steptime.analyze(str(_silent_about_its_rank().write(tmp_path / "trace.json")))
    assert [rank.rank for rank in report.ranks] == [0]
    assert any("rank 0" in text for text in said(report))


def test_a11_the_user_may_say_the_rank(tmp_path: Path) -> None:
    path = _silent_about_its_rank().write(tmp_path / "trace.json")
    assert [rank.rank for rank in steptime.analyze(str(path), Options(rank=5)).ranks] == [5]


def test_a11_collectives_tell_the_rank(tmp_path: Path) -> None:
    path = good(distributed_info=False, rank=3, world_size=8).write(tmp_path / "trace.json")
    assert [rank.rank for rank in steptime.analyze(str(path)).ranks] == [3]


def _capture(number: int, at: int) -> TraceBuilder:
    builder = TraceBuilder()
    for offset in (0, 1):
        one_step(builder, at + offset * STEP_US, f"ProfilerStep#{number + offset}")
    return builder


def test_a13_captures_of_one_rank_are_not_ranks(tmp_path: Path) -> None:
    _capture(2, 0).write(tmp_path / "job.1764.pt.trace.json")
    _capture(12, 5_000_000).write(tmp_path / "job.1769.pt.trace.json")
    report = steptime.analyze(str(tmp_path))
    (rank,) = report.ranks
    assert [(step.step, step.edge, step.dur_ns) for step in rank.steps] == [
        (2, True, 9_000_000),
        (3, False, 10_000_000),
        (12, True, 9_000_000),
        (13, False, 10_000_000),
    ]
    # Steps 3 and 13 count; the five seconds between the captures are nobody's.
    assert report.job.steps == [3, 13]
    assert report.job.total_ns == 20_000_000
    assert report.job.ranks_analyzed == 1
    for step in rank.steps:
        assert busy_us(step) == BUSY_US


def test_a13_captures_that_overlap_in_time_are_two_files_for_one_rank(tmp_path: Path) -> None:
    _capture(2, 0).write(tmp_path / "a.json")
    _capture(2, 3000).write(tmp_path / "b.json")
    with pytest.raises(RankError, match=r"a\.json.*b\.json"):
        steptime.analyze(str(tmp_path))


def test_a14_without_marks_the_optimizer_spans_tell_the_steps(tmp_path: Path) -> None:
    report = analyze(good(marked=()), tmp_path)
    # One span from the first optimizer call to the second: completion to completion 9,000 to 19,000 us, host 600 to.
    (step,) = steps(report)
    assert "Optimizer.step" in report.job.step_source
    assert "no ProfilerStep" in report.job.step_source
    assert busy_us(step)["kernels/matmul"] <= 2 * BUSY_US["kernels/matmul"]


def test_a14_without_any_marks_the_whole_capture_is_one_window(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100).kernel("nvjet_tst_128x256", 1000, 3000, launch_at=20)
    builder.op("aten::add", 5000, 100).kernel("vectorized_elementwise_kernel", 6000, 500, launch_at=5020)
    report = analyze(builder, tmp_path)
    (step,) = steps(report)
    assert "no step marks" in report.job.step_source
    assert step.dur_ns == 6_500_000
    assert step.leaves_ns["kernels/matmul"] == 3_000_000
    assert report.job.rank_steps == 1


def test_a14_one_mark_over_the_tail(tmp_path: Path) -> None:
    report = analyze(good(marked=(4,)), tmp_path)
    (step,) = steps(report)
    assert (step.step, step.edge) == (4, True)
    # It starts at its host mark, 10,000 us: the work launched before was done at 9,000.
    assert (step.start_ns - ORIGIN_NS, step.dur_ns) == (10_000_000, 9_000_000)
    assert busy_us(step) == BUSY_US
    assert any("edge" in text for text in said(report))


@pytest.mark.parametrize("dur", ["-1", "-1.000", "-10000.000"])
def test_a16_a_host_span_of_negative_length_is_cut_and_counted(dur: str, tmp_path: Path) -> None:
    builder = good().op("aten::mul", 12_000, 777)
    path = tmp_path / "rank0.json"
    path.write_bytes(builder.dumps().replace(b'"dur": 777.000', f'"dur": {dur}'.encode()))
    report = steptime.analyze(str(path))
    unchanged(report)
    assert sum(quality(report)[1].values()) == 1
    assert any("unfinished" in text for text in said(report))
    assert all(ns >= 0 for step in steps(report) for ns in step.leaves_ns.values())


def test_a16_a_kernel_of_negative_length_is_dropped_and_counted(tmp_path: Path) -> None:
    builder = good().kernel("vectorized_elementwise_kernel", 9500, 7.77, launch_at=9400)
    path = tmp_path / "rank0.json"
    path.write_bytes(builder.dumps().replace(b'"dur": 7.770', b'"dur": -1'))
    report = steptime.analyze(str(path))
    unchanged(report)
    assert sum(quality(report)[0].values()) == 1
    assert any("negative" in text for text in said(report))


def test_a22_a_dependent_launch_keeps_both_lengths(tmp_path: Path) -> None:
    # gemm [1000, 4000), the next [3900, 6000) on its stream: union 5,000, sum 5,100.
    builder = TraceBuilder().step(3, 0, 7000)
    builder.op("aten::mm", 10, 50).kernel("nvjet_tst_128x256", 1000, 3000, launch_at=20)
    builder.op("aten::_flash_attention_forward", 70, 50).kernel("flash_fwd_kernel", 3900, 2100, launch_at=80)
    report = analyze(builder, tmp_path)
    (step,) = steps(report)
    assert step.leaves_ns["kernels/matmul"] == 3_000_000
    assert step.leaves_ns["kernels/attention"] == 2_000_000
    assert {kernel.name: (kernel.dur_ns, kernel.owned_ns) for kernel in report.kernels} == {
        "nvjet_tst_128x256": (3_000_000, 3_000_000),
        "flash_fwd_kernel": (2_100_000, 2_000_000),
    }
    assert quality(report) == ({}, {})


@pytest.mark.parametrize(
    ("categories", "device"),
    [
        (("mtia_ccp_events", "mtia_runtime"), "MTIA"),
        (("hpu_op", "hpu_runtime"), "HPU"),
        (("xpu_driver", "xpu_runtime"), "XPU"),
    ],
)
def test_a33_other_devices_are_refused_by_name(categories: tuple[str, str], device: str, tmp_path: Path) -> None:
    work, calls = categories
    text = good().dumps().replace(b'"kernel"', f'"{work}"'.encode()).replace(b'"gpu_memcpy"', f'"{work}"'.encode())
    path = tmp_path / "rank0.json"
    path.write_bytes(text.replace(b'"cuda_runtime"', f'"{calls}"'.encode()))
    with pytest.raises(UnsupportedDevice) as refusal:
        steptime.analyze(str(path))
    for word in (str(path), device, *categories):
        assert word in str(refusal.value)


def test_a33_metadata_at_zero_is_no_part_of_the_span(tmp_path: Path) -> None:
    meta = {"ph": "M", "name": "process_sort_index", "pid": 4000, "tid": 0, "ts": 0, "args": {"sort_index": 1}}
    report = analyze(good().raw(meta), tmp_path)
    unchanged(report)
    assert quality(report) == ({}, {})


@pytest.mark.parametrize("call", ["cuLaunchKernelEx", "cudaLaunchKernelExC", "hipExtModuleLaunchKernel", "launch_2031"])
def test_a34_a_call_is_a_launch_whatever_its_name(call: str, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in (3, 4):
        one_step(builder, (number - 3) * STEP_US, f"ProfilerStep#{number}", call=call)
    report = analyze(builder, tmp_path)
    unchanged(report)
    (one,) = report.inputs
    assert one.quality is not None
    assert (one.quality.kernels_without_launches, one.quality.launches_without_kernels) == (0, 0)


def test_a35_python_frames_cost_no_memory_that_grows_with_them(tmp_path: Path) -> None:
    # 60,000 frames, 12 MB: of a file that is nearly all stacks, the reader may keep columns, not text.
    frame = good().frame("train.py(33): step", 10, 50)._complete
    path = tmp_path / "rank0.json"
    text = good().dumps()
    head, tail = text.split(b'"traceEvents": [\n')
    with path.open("wb") as file:
        file.write(head + b'"traceEvents": [\n')
        example = good().frame("train.py(33): step_PLACE_in_a_rather_long_function_name", 10, 50)
        line = frame(example._events[-1])
        for number in range(60_000):
            file.write(line.replace("PLACE", str(number % 500)).encode() + b",\n")
        file.write(tail)
    size = path.stat().st_size
    assert size > 12_000_000
    tracemalloc.start()
    table = parse(str(path))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Columns of a row are at most 49 bytes (DESIGN 8: a 50 MB file fits in 250 MB, a 5 GB one in 4 GB).
    assert len(table.start_ns) > 60_000
    assert kept < 0.5 * size
    assert peak < 1.5 * size
    unchanged(steptime.analyze(str(path)))


def test_a37_an_empty_capture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))
    with pytest.raises(TraceError, match=r"rank0\.json.*no events"):
        steptime.analyze(str(path))


def test_a37_a_launcher_process_is_asked_about(tmp_path: Path) -> None:
    builder = TraceBuilder(devices=0)
    for number in range(5):
        builder.op("aten::empty", number * 100, 10)
    report = analyze(builder, tmp_path)
    assert any("no GPU events and no step marks" in text and "launcher" in text for text in said(report))
    (step,) = steps(report)
    step.check()


def test_a38_kernels_before_their_launch_shift_the_host_only(tmp_path: Path) -> None:
    # The device clock is 800 us behind: the copy begins 720 us before the call that launched it.
    late, early = TraceBuilder(), TraceBuilder()
    for builder, shift in ((late, 0), (early, -800)):
        for number in (3, 4, 5):
            at = (number - 3) * STEP_US + 1000
            builder.annotation(f"ProfilerStep#{number}", at, STEP_US)
            builder.op("aten::copy_", at + 100, 90)
            builder.copy("HtoD", at + 125 + shift, 500, launch_at=at + 120, launch_for=40)
            builder.op("aten::mm", at + 300, 60).kernel(
                "nvjet_tst_128x256", at + 1000 + shift, 3000, launch_at=at + 320
            )
    report = analyze(early, tmp_path)
    reference = analyze(late, tmp_path)
    assert any("clock" in text and "launch" in text for text in said(report))
    assert not any("clock" in text for text in said(reference))
    for step, other in zip(steps(report)[1:], steps(reference)[1:], strict=True):
        assert step.dur_ns == other.dur_ns == 10_000_000
        assert busy_us(step) == busy_us(other)
        # The loop's idle time has the same cause within the 5 us that launches really take.
        python = [one.leaves_ns.get("host/python", 0) for one in (step, other)]
        assert python[0] == pytest.approx(python[1], abs=10_000)


@pytest.mark.parametrize("at", [-3_600_000_000, 3_600_000_000])
def test_a39_a_stray_kernel_is_dropped_and_counted(at: int, tmp_path: Path) -> None:
    builder = good().kernel("nvjet_tst_128x256", at, 100)
    # The recording's own span must not come from the stray.
    lines = builder.dumps().decode().split("\n")
    kept = [line for line in lines if "PyTorch Profiler" not in line and "Record Window End" not in line]
    path = tmp_path / "rank0.json"
    path.write_text("\n".join(kept).replace(",\n]", "\n]"))
    report = steptime.analyze(str(path))
    unchanged(report)
    assert sum(quality(report)[0].values()) == 1
    assert any("outside the recording" in text for text in said(report))


def test_a42_step_marks_with_other_names(tmp_path: Path) -> None:
    report = analyze(good("train_step {}".format), tmp_path, step_marker=r"^train_step \d+$")
    unchanged(report)
    assert [step.step for step in steps(report)] == [3, 4]
    assert "train_step" in report.job.step_source


def test_a42_a_pattern_that_matches_nothing_lists_candidates(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(4):
        builder.annotation(f"train_step {number}", number * 1000, 900)
    builder.kernel("nvjet_tst_128x256", 100, 50, launch_at=20)
    with pytest.raises(TraceError, match=r"rank0\.json.*train_step N"):
        analyze(builder, tmp_path, step_marker="iteration")
