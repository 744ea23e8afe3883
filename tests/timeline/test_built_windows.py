"""Where steps begin and end, and which are counted. Built traces; tables by hand."""

from __future__ import annotations

from pathlib import Path

from tests.builders import Micros, TraceBuilder
from tests.timeline.built import ADAM, ADD, GEMM, PLAIN, assert_step, launch, plain, report_of, steps_of

NODE = "autograd::engine::evaluate_function: MmBackward0"


def backward(trace: TraceBuilder, kernel: str, host: Micros, start: Micros, end: Micros) -> None:
    """A backward node on thread 2 around the launch call [host, host + 5), and its kernel [start, end)."""
    trace.op(NODE, at=host - 4, for_=14, thread=2, seq=1, fwd_thread=1)
    launch(trace, kernel, host, start, end, thread=2)


def update(trace: TraceBuilder, host: Micros, start: Micros, end: Micros) -> None:
    """An optimizer span around the launch call [host, host + 5), and its kernel [start, end)."""
    trace.optimizer(at=host - 4, for_=14)
    launch(trace, ADAM, host, start, end, op="aten::_fused_adamw_")


def test_first_step_begins_where_earlier_work_ends(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel(GEMM, at=-200, for_=600)  # launched before the recording
    for k in range(3):
        plain(trace, k + 1, 1000 * k, 1000 * k + 400)
    report = report_of(trace, tmp_path)
    # Host start 0, earlier work until 400: window [400, 1400), gap 400-402. An edge step: not in the job's figures.
    steps = steps_of(report)
    assert_step(steps[1], 1_000_000, PLAIN)
    assert steps[1].start_ns == trace.at_ns(400)
    assert [step.edge for step in steps.values()] == [True, False, False]
    assert (report.job.steps, report.job.rank_steps, report.job.total_ns) == ([2, 3], 2, 2_000_000)


def test_work_launched_before_the_first_mark_counts_as_earlier(tmp_path: Path) -> None:
    trace = TraceBuilder()
    launch(trace, GEMM, -30, 100, 400)
    for k in range(3):
        plain(trace, k + 1, 1000 * k, 1000 * k + 400)
    step = steps_of(report_of(trace, tmp_path))[1]
    assert_step(step, 1_000_000, PLAIN)  # as above
    assert step.start_ns == trace.at_ns(400)


def test_first_step_begins_at_its_mark_if_that_is_later(tmp_path: Path) -> None:
    trace = TraceBuilder()
    launch(trace, GEMM, -500, -490, -50)
    for k in range(3):
        plain(trace, k + 1, 1000 * k, 1000 * k + 100)
    step = steps_of(report_of(trace, tmp_path))[1]
    assert (step.start_ns, step.dur_ns, step.edge) == (trace.at_ns(0), 1_100_000, True)  # [0, 1100)


def test_device_two_steps_behind_its_host(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(5):
        host, s = 100 * k, 300 * k + 200
        trace.step(k + 1, at=host, for_=100)
        launch(trace, GEMM, host + 10, s + 5, s + 200)
        launch(trace, GEMM, host + 22, s + 200, s + 300)
    report = report_of(trace, tmp_path)
    # The host is done at 500, the device at 1700. Window of step k: [200, 500) + 300 (k - 1); gap 0-5 after its start.
    for number in (2, 3, 4, 5):
        step = steps_of(report)[number]
        assert_step(step, 300_000, {"kernels/matmul": 295_000, "host/kernel_gap": 5_000})
        assert step.start_ns == trace.at_ns(300 * number - 100)
    assert report.job.steps == [2, 3, 4, 5]


def test_step_without_work_on_the_main_stream(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100)
    trace.step(2, at=1000, for_=1000)
    launch(trace, ADD, 1010, 1102, 1500, stream=8, op="aten::add")
    launch(trace, ADD, 1022, 1500, 2100, stream=9, op="aten::add")
    plain(trace, 3, 2000, 2100)
    steps = steps_of(report_of(trace, tmp_path))
    # Stream 7 has nothing of step 2, so its last activity on any stream closes it: [1100, 2100).
    assert_step(steps[2], 1_000_000, {"kernels/memory_bound": 998_000, "host/kernel_gap": 2_000})
    assert_step(steps[3], 1_000_000, PLAIN)


def test_last_step_with_lost_kernels_is_an_edge(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(3):
        plain(trace, k + 1, 1000 * k, 1000 * k + 100)
    trace.step(4, at=3000, for_=1000)
    launch(trace, GEMM, 3010, 3102, 3200)
    trace.op("aten::mm", at=3020, for_=10)
    trace.runtime("cudaLaunchKernel", at=3022, for_=5)
    report = report_of(trace, tmp_path)
    steps = steps_of(report)
    for number in (2, 3):
        assert_step(steps[number], 1_000_000, PLAIN)
    assert {number: step.edge for number, step in steps.items()} == {1: True, 2: False, 3: False, 4: True}
    assert report.job.steps == [2, 3]


def test_step_whose_last_kernel_is_lost_ends_with_what_it_waited_for(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(4):
        host, s = 500 * k, 1000 * k + 102
        trace.step(k + 1, at=host, for_=500)
        launch(trace, GEMM, host + 10, s, s + 498)
        launch(trace, ADD, host + 22, s + 498, s + 798, stream=8, op="aten::add")
        if k == 1:
            trace.op("aten::_fused_adamw_", at=host + 32, for_=10)
            trace.runtime("cudaLaunchKernel", at=host + 34, for_=5)
        else:
            launch(trace, ADAM, host + 34, s + 798, s + 998, op="aten::_fused_adamw_")
    steps = steps_of(report_of(trace, tmp_path))
    # The second Adam's record is lost. By the main stream's records step 2 would end at 1600; what runs on the other
    # until 1900 is step 2's, too, and done before step 3's first kernel at 2102.
    seen = {"kernels/matmul": 498_000, "kernels/memory_bound": 300_000}
    assert_step(steps[2], 800_000, seen | {"host/kernel_gap": 2_000})
    lost = {"kernels/optimizer": 200_000, "unexplained/events_missing": 202_000}
    assert_step(steps[3], 1_200_000, seen | lost)
    assert_step(steps[4], 1_000_000, seen | {"kernels/optimizer": 200_000, "host/kernel_gap": 2_000})


def test_four_micro_batch_marks_for_one_update(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for m in range(1, 13):
        host, s = 250 * (m - 1), 250 * (m - 1) + 100
        trace.step(m, at=host, for_=250)
        launch(trace, GEMM, host + 10, s, s + 200)
        backward(trace, ADD, host + 30, s + 205, s + 230)
        if m % 4 == 0:
            update(trace, host + 50, s + 232, s + 250)
    report = report_of(trace, tmp_path)
    # Three updates, in marks 4, 8 and 12. B(4) = 750 + 100 + 250 = 1100, so windows [0, 1100), [1100, 2100) and on.
    # Four micro-batches: 4 x 200 GEMM, 4 x 25 add, gaps 4 x 5 between them and 3 x 20 after; then gap 2, Adam 18.
    table = {
        "kernels/matmul": 800_000,
        "kernels/memory_bound": 100_000,
        "kernels/optimizer": 18_000,
        "host/kernel_gap": 82_000,
    }
    steps = list(steps_of(report).values())
    assert [(step.dur_ns, step.edge, step.class_) for step in steps] == [
        (1_100_000, True, "train"),
        (1_000_000, False, "train"),
        (1_000_000, False, "train"),
    ]
    assert_step(steps[1], 1_000_000, table)
    assert_step(steps[2], 1_000_000, table)
    assert [step.step for step in steps] == [4, 8, 12]  # A mark without an update joins the next that has one.
    assert "ProfilerStep" in report.job.step_source
    assert "merged" in report.job.step_source


def test_several_optimizers_in_one_mark_are_one_step(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 10, s, s + 300)
        backward(trace, GEMM, host + 30, s + 300, s + 600)
        update(trace, host + 50, s + 601, s + 700)
        update(trace, host + 70, s + 703, s + 1000)
    report = report_of(trace, tmp_path)
    # Gaps 600-601 and 700-703; Adam 99 + 297.
    table = {"kernels/matmul": 600_000, "kernels/optimizer": 396_000, "host/kernel_gap": 4_000}
    assert list(steps_of(report)) == [1, 2, 3]
    for number in (2, 3):
        assert_step(steps_of(report)[number], 1_000_000, table)


def test_evaluation_and_checkpoint_steps_are_listed_apart(tmp_path: Path) -> None:
    trace = TraceBuilder()
    host, device = 0, 100
    for number in range(1, 10):
        if number == 4:
            trace.step(4, at=host, for_=1000)
            launch(trace, GEMM, host + 10, device + 3, device + 1000)
        elif number == 7:
            trace.step(7, at=host, for_=4900)
            trace.annotation("steptime::checkpoint", at=host + 5, for_=3993)  # [6005, 9998)
            train_work(trace, 9990, 10_007, 11_000)
            host, device = host + 3900, device + 3900
        else:
            trace.step(number, at=host, for_=1000)
            train_work(trace, host, device, device + 1000)
        host, device = host + 1000, device + 1000
    report = report_of(trace, tmp_path)
    steps = steps_of(report)
    assert {number: step.class_ for number, step in steps.items() if step.class_ != "train"} == {4: "other", 7: "other"}
    # Forward 400, backward 500, gap 2, Adam 98, all queued.
    train = {"kernels/matmul": 900_000, "kernels/optimizer": 98_000, "host/kernel_gap": 2_000}
    for number in (2, 3, 5, 6, 8, 9):
        assert_step(steps[number], 1_000_000, train)
    # The evaluation [3100, 4100): gap 3, then one GEMM.
    assert_step(steps[4], 1_000_000, {"kernels/matmul": 997_000, "host/kernel_gap": 3_000})
    # The checkpoint step [6100, 11000): 6100-9998 inside the annotation; 9998-10000 inside the op and 10000-10005 the
    # launch call; gap 10005-10007; GEMMs 393 + 500; gap 2; Adam 98.
    checkpoint = {
        "host/checkpoint": 3_898_000,
        "host/launch_bound": 7_000,
        "host/kernel_gap": 4_000,
        "kernels/matmul": 893_000,
        "kernels/optimizer": 98_000,
    }
    assert_step(steps[7], 4_900_000, checkpoint)
    assert [(other.rank, other.step, other.dur_ns) for other in report.other_steps] == [
        (0, 4, 1_000_000),
        (0, 7, 4_900_000),
    ]
    assert all(other.reason for other in report.other_steps)
    job = report.job
    assert (job.steps, job.rank_steps, job.total_ns) == ([2, 3, 5, 6, 8, 9], 6, 6_000_000)
    assert (job.step_time_ns.median, job.step_time_ns.p10, job.step_time_ns.p90) == (1_000_000, 1_000_000, 1_000_000)
    counted = {leaf.id: leaf.ns for part in job.slices for leaf in part.leaves if leaf.ns}
    assert counted == {"matmul": 5_400_000, "optimizer": 588_000, "kernel_gap": 12_000}  # six times `train`


def train_work(trace: TraceBuilder, host: Micros, start: Micros, end: Micros) -> None:
    """Forward [start, end - 600), backward 500, a gap of 2, and the optimizer until `end`."""
    launch(trace, GEMM, host + 10, start, end - 600)
    backward(trace, GEMM, host + 40, end - 600, end - 100)
    update(trace, host + 60, end - 98, end)


def test_two_devices_in_one_file(tmp_path: Path) -> None:
    trace = TraceBuilder(devices=2)
    for k in range(3):
        t = 1000 * k
        trace.step(k + 1, at=t, for_=1000)
        trace.loader(at=t, for_=200)
        for device, at, end in ((0, 202, 1100), (1, 214, 1060)):
            trace.op("aten::mm", at=t + at - 2, for_=12)
            trace.kernel(GEMM, at=t + at + 8, for_=end - at - 8, launch_at=t + at, device=device)
    report = report_of(trace, tmp_path)
    assert [(row.rank, row.device) for row in report.ranks] == [(0, 0), (0, 1)]
    # Device 0, step 2, [1100, 2100): loader 1100-1200, op and launch call 1200-1207, gap 1207-1210, GEMM 1210-2100.
    # Device 1, step 2, [1060, 2060): the same loader 1060-1200; ops 1200-1214, call 1214-1219, gap 3, GEMM 1222-2060.
    tables = (
        {"host/data_loader": 100_000, "host/launch_bound": 7_000, "host/kernel_gap": 3_000, "kernels/matmul": 890_000},
        {"host/data_loader": 140_000, "host/launch_bound": 19_000, "host/kernel_gap": 3_000, "kernels/matmul": 838_000},
    )
    for device, table in enumerate(tables):
        for number in (2, 3):
            assert_step(steps_of(report, device)[number], 1_000_000, table)


def test_thread_that_writes_a_checkpoint_decides_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100, kernels=3)
    trace.copy("DtoH", at=1090, for_=160, stream=30, launch_at=990, thread=2)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1300)
    trace.copy("DtoH", at=1400, for_=20, stream=30, launch_at=1050, thread=2)
    trace.loader(at=1290, for_=190)
    launch(trace, ADD, 1345, 1350, 1360, stream=30, thread=2, op="aten::clone")
    trace.op("aten::mm", at=1480, for_=26)
    trace.kernel(GEMM, at=1500, for_=600, launch_at=1490)
    trace.copy("DtoH", at=2095, for_=305, stream=30, launch_at=1960, thread=2)
    plain(trace, 3, 2000, 2100, kernels=3)
    steps = steps_of(report_of(trace, tmp_path))
    # Step 2 is [1100, 2100): the copies of the writer [1090, 1250) and [2095, 2400) move neither end. Idle 1300-1350,
    # 1360-1400 and 1420-1480 end with the writer's kernel, its queued copy and the GEMM; the training thread's next
    # kernel is the GEMM each time, and that thread was in the loader until 1480. 1480-1495 op and launch call, gap 5.
    table = {
        "kernels/matmul": 800_000,
        "kernels/memory_bound": 10_000,
        "host/d2h_copy": 20_000,
        "host/data_loader": 150_000,
        "host/launch_bound": 15_000,
        "host/kernel_gap": 5_000,
    }
    assert_step(steps[2], 1_000_000, table)
    assert steps[2].start_ns == trace.at_ns(1100)
    # Step 3 is [2100, 3100): its first 2 belong to the writer's copy, which still runs.
    assert_step(steps[3], 1_000_000, {"kernels/matmul": 998_000, "host/d2h_copy": 2_000})


def test_checkpoint_at_the_end_of_a_mark_is_kept_out_of_the_job(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number, host in ((1, 0), (2, 1000), (3, 2000)):
        trace.step(number, at=host, for_=1000 if number < 3 else 4900)
        train_work(trace, host, host + 100, host + 1100)
    trace.annotation("steptime::checkpoint", at=2900, for_=4000)  # [2900, 6900)
    for number, host, device in ((4, 6900, 7000), (5, 7900, 8000), (6, 8900, 9000)):
        trace.step(number, at=host, for_=1000)
        train_work(trace, host, device, device + 1000)
    report = report_of(trace, tmp_path)
    steps = steps_of(report)
    # The checkpoint is written at the end of mark 3; the device runs dry at B(3) = 3100, so step 4, [3100, 8000), pays:
    # 3100-6900 inside the annotation; the hole of 8 before the op, the op's 2 and the launch call's 5; then the first
    # kernel at 7000, 85 after the call.
    assert steps[4].dur_ns == 4_900_000
    assert steps[4].leaves_ns["host/checkpoint"] == 3_800_000
    assert steps[4].class_ == "other"
    assert 4 in [other.step for other in report.other_steps]
    assert report.job.step_time_ns.p90 == 1_000_000
    assert all(leaf.id != "checkpoint" for part in report.job.slices for leaf in part.leaves)
