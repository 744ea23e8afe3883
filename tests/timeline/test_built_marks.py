"""The five sources of steps. Built traces with the same period of 1000; tables by hand."""

from __future__ import annotations

from pathlib import Path

from steptime.model import Report
from steptime.pipeline import Options
from tests.builders import TraceBuilder
from tests.timeline.built import ADAM, ADD, GEMM, assert_step, launch, report_of, steps_of

#: After s: GEMM [0, 500), gap, GEMM [505, 900), gap, Adam [910, 1000). Any window of 1000 holds the same.
TABLE = {"kernels/matmul": 895_000, "kernels/optimizer": 90_000, "host/kernel_gap": 15_000}


def periods(count: int, *, marks: str = "", optimizers: bool = True) -> TraceBuilder:
    """`count` equal periods; host part [1000 k, 1000 k + 60), device part 100 to 1100 after 1000 k."""
    trace = TraceBuilder()
    for k in range(count):
        host, s = 1000 * k, 1000 * k + 100
        if marks:
            trace.annotation(f"{marks}{k + 1}", at=host, for_=1000)
        launch(trace, GEMM, host + 10, s, s + 500)
        launch(trace, GEMM, host + 22, s + 505, s + 900)
        if optimizers:
            trace.optimizer(at=host + 34, for_=20)
        launch(trace, ADAM, host + 40, s + 910, s + 1000, op="aten::_fused_adamw_")
    return trace


def assert_counted(report: Report, count: int) -> None:
    """That many steps count, all with `TABLE`."""
    assert (len(report.job.steps), report.job.rank_steps) == (count, count)
    steps = steps_of(report)
    for number in report.job.steps:
        assert_step(steps[number], 1_000_000, TABLE)


def test_profiler_steps_come_first(tmp_path: Path) -> None:
    report = report_of(periods(4, marks="ProfilerStep#"), tmp_path)
    assert_counted(report, 3)  # 2, 3 and 4; 1 is the edge
    assert report.job.steps == [2, 3, 4]
    assert "ProfilerStep" in report.job.step_source


def test_step_marker(tmp_path: Path) -> None:
    report = report_of(periods(4, marks="train_step "), tmp_path, Options(step_marker=r"train_step \d+"))
    assert_counted(report, 3)
    assert report.job.steps == [2, 3, 4]  # the mark's own number
    assert "train_step" in report.job.step_source
    assert "ProfilerStep" not in report.job.step_source


def test_optimizer_spans_start_to_start(tmp_path: Path) -> None:
    report = report_of(periods(5), tmp_path)
    # Five starts bound four steps; the first is the edge.
    assert_counted(report, 3)
    assert "Optimizer.step" in report.job.step_source


def cycles(count: int) -> TraceBuilder:
    """No marks. After s: six GEMMs [0, 600), an add [600, 890), a GEMM [891, 940), Adam [941, 1000)."""
    trace = TraceBuilder()
    for k in range(count):
        host, s = 1000 * k, 1000 * k + 100
        for i in range(6):
            launch(trace, GEMM, host + 10 + 12 * i, s + 100 * i, s + 100 * i + 100)
        launch(trace, ADD, host + 82, s + 600, s + 890, op="aten::add")
        launch(trace, GEMM, host + 94, s + 891, s + 940)
        launch(trace, ADAM, host + 106, s + 941, s + 1000, op="aten::_fused_adamw_")
    return trace


def test_period_of_the_kernel_names(tmp_path: Path) -> None:
    report = report_of(cycles(5), tmp_path)
    # Five cycles of nine kernels; the first is the edge. GEMM 600 + 49, add 290, Adam 59, gaps 2.
    table = {
        "kernels/matmul": 649_000,
        "kernels/memory_bound": 290_000,
        "kernels/optimizer": 59_000,
        "host/kernel_gap": 2_000,
    }
    steps = steps_of(report)
    assert (len(steps), report.job.rank_steps) == (5, 4)
    for number in report.job.steps:
        assert_step(steps[number], 1_000_000, table)
    assert "period" in report.job.step_source


def test_two_cycles_are_no_period(tmp_path: Path) -> None:
    report = report_of(cycles(2), tmp_path)
    assert len(steps_of(report)) == 1
    assert "whole recording" in report.job.step_source.lower()


def test_whole_recording(tmp_path: Path) -> None:
    trace = TraceBuilder()
    launch(trace, GEMM, 10, 18, 500)
    launch(trace, ADD, 22, 505, 600, op="aten::add")
    report = report_of(trace, tmp_path)
    # No marks, no period. Host events begin at 8; the device ends at 600. 8-10 in the op, 10-15 the launch call,
    # 15-18 gap, GEMM 482, gap 5, add 95.
    (step,) = steps_of(report).values()
    table = {
        "host/launch_bound": 7_000,
        "host/kernel_gap": 8_000,
        "kernels/matmul": 482_000,
        "kernels/memory_bound": 95_000,
    }
    assert_step(step, 592_000, table)
    assert report.job.rank_steps == 1
    assert "whole recording" in report.job.step_source.lower()
