"""Idle before work that was already queued: never the host's doing (DESIGN 1.4, rule 1). Built traces; tables by hand.

Step k has the device window [100, 1100) + 1000 (k - 1) unless a test says otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import Micros, TraceBuilder
from tests.timeline.built import GEMM, PLAIN, assert_step, launch, plain, report_of, steps_of


@pytest.mark.parametrize(
    ("start", "table"),
    [
        # Idle [1600, start): up to 20 us a gap, then GEMM until 2100.
        (1620, {"kernels/matmul": 980_000, "host/kernel_gap": 20_000}),
        (1620.001, {"kernels/matmul": 979_999, "unexplained/queue_stalled": 20_001}),
    ],
)
def test_twenty_microseconds_are_a_gap_and_one_ns_more_is_not(
    tmp_path: Path, start: Micros, table: dict[str, int]
) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1600)
    trace.op("aten::mm", at=1020, for_=10)
    trace.kernel(GEMM, at=start, for_=480 if start == 1620 else 479.999, launch_at=1022)
    plain(trace, 3, 2000, 2100)
    steps = steps_of(report_of(trace, tmp_path))
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)


@pytest.mark.parametrize(
    ("start", "table"),
    [
        # Idle [1600, 1620): the loader starts at 1605, and its idle time is data_loader.
        (1620, {"kernels/matmul": 980_000, "host/kernel_gap": 5_000, "host/data_loader": 15_000}),
        # One more, and the queue has stalled, whatever the host was doing.
        (1621, {"kernels/matmul": 979_000, "unexplained/queue_stalled": 21_000}),
    ],
)
def test_loader_during_a_gap_and_during_a_stall(tmp_path: Path, start: int, table: dict[str, int]) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1600)
    launch(trace, GEMM, 1022, start, 2100)
    trace.loader(at=1605, for_=300)
    plain(trace, 3, 2000, 2100)
    steps = steps_of(report_of(trace, tmp_path))
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)


def test_stall_while_the_host_sits_in_a_blocking_copy(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100, kernels=3)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1300)
    launch(trace, GEMM, 1022, 1700, 1900)
    trace.op("aten::copy_", at=1038, for_=873)
    trace.copy("DtoH", at=1900, for_=4, pinned=False, launch_at=1040, launch_for=870, call="cudaMemcpy")
    launch(trace, GEMM, 1915, 1925, 2100)
    plain(trace, 3, 2000, 2100, kernels=3)
    steps = steps_of(report_of(trace, tmp_path))
    # [1300, 1700): the GEMM of 1700 was launched by 1027, so it was queued; no dependency is recorded: queue_stalled,
    # although the host sits in cudaMemcpy [1040, 1910) all the while. GEMM to 1900, the copy to 1904. Then the host is
    # late: 1904-1910 inside the blocking copy is sync. 1910-1915 (op tail, hole, op) and the launch call 1915-1920
    # would be launch_bound, but the copy blocked the host for more than 10 while the device was busy: sync by credit.
    # Gap 1920-1925, GEMM to 2100. sync = 6 + 5 + 5, matmul = 200 + 200 + 175.
    table = {
        "kernels/matmul": 575_000,
        "unexplained/queue_stalled": 400_000,
        "host/d2h_copy": 4_000,
        "host/sync": 16_000,
        "host/kernel_gap": 5_000,
    }
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)


def lost_launches(call: str) -> TraceBuilder:
    """Step 2: four GEMMs [1100, 1300), a call at 1060 without work on the device, a fifth GEMM [1700, 2100)."""
    trace = TraceBuilder()
    plain(trace, 1, 0, 100, kernels=6)
    trace.step(2, at=1000, for_=1000)
    for i in range(4):
        launch(trace, GEMM, 1010 + 12 * i, 1100 + 50 * i, 1150 + 50 * i)
    trace.op("aten::mm", at=1058, for_=10)
    trace.runtime(call, at=1060, for_=5)
    launch(trace, GEMM, 1072, 1700, 2100)
    plain(trace, 3, 2000, 2100, kernels=6)
    return trace


def test_lost_kernels_explain_a_stall(tmp_path: Path) -> None:
    steps = steps_of(report_of(lost_launches("cudaLaunchKernel"), tmp_path))
    # [1300, 1700): queued since 1077. Between the launches around it lies a cudaLaunchKernel whose kernel is not in the
    # file, and such calls have kernels: positive evidence. matmul = 200 + 400.
    assert_step(steps[2], 1_000_000, {"kernels/matmul": 600_000, "unexplained/events_missing": 400_000})


@pytest.mark.parametrize(
    ("ends", "begins", "table"),
    [
        # [300, 500) without its kernel of 200, all of it beside the all-reduce.
        (700, 500, {"kernels/matmul": 800_000, "unexplained/events_missing": 200_000}),
        # The hole is 300 long: the all-reduce owns what the lost kernel, queued at its start, leaves.
        (
            700,
            600,
            {"kernels/matmul": 700_000, "unexplained/events_missing": 200_000, "exposed_comm/allreduce": 100_000},
        ),
        # Idle for 50 at its end: that shows the loss as it is, so 150 are left for beside the all-reduce.
        (450, 500, {"kernels/matmul": 800_000, "unexplained/events_missing": 200_000}),
    ],
)
def test_what_hid_communication_and_was_lost_leaves_none_exposed(
    tmp_path: Path, ends: int, begins: int, table: dict[str, int]
) -> None:
    """Steps of two GEMMs with another op's between them; step 2 lacks the record of that one, 200 long elsewhere."""
    trace = TraceBuilder(world_size=2)
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 2, s, s + 300)
        trace.collective("allreduce", at=s + 100, for_=(ends if k == 1 else 700) - 100, launch_at=host + 15)
        if k == 1:
            trace.op("aten::bmm", at=host + 26, for_=10)
            trace.runtime("cudaLaunchKernel", at=host + 28, for_=5)
        else:
            launch(trace, GEMM, host + 28, s + 300, s + 500, op="aten::bmm")
        launch(trace, GEMM, host + 40, s + (begins if k == 1 else 500), s + 1000)
    steps = steps_of(report_of(trace, tmp_path))
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, {"kernels/matmul": 1_000_000})


def test_a_call_that_never_has_kernels_is_no_evidence(tmp_path: Path) -> None:
    steps = steps_of(report_of(lost_launches("cudaEventRecord"), tmp_path))
    # The same, but an event record starts nothing on the device.
    assert_step(steps[2], 1_000_000, {"kernels/matmul": 600_000, "unexplained/queue_stalled": 400_000})


@pytest.mark.parametrize(
    ("first", "table"),
    [
        # The first node starts `first` after the window opens: up to 200 us of launch latency, longer a stall.
        # Gaps 2, 3 and 5 between the nodes; GEMMs (300 - first) + 298 + 297 + 95.
        (150, {"kernels/matmul": 840_000, "host/kernel_gap": 160_000}),
        (200, {"kernels/matmul": 790_000, "host/kernel_gap": 210_000}),
        (250, {"kernels/matmul": 740_000, "host/kernel_gap": 10_000, "unexplained/queue_stalled": 250_000}),
    ],
)
def test_graph_whose_first_node_starts_late(tmp_path: Path, first: int, table: dict[str, int]) -> None:
    trace = TraceBuilder()
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        spans = ((first, 300), (302, 600), (603, 900), (905, 1000))
        trace.graph_launch(at=host + 10, for_=20, kernels=[(GEMM, s + at, end - at) for at, end in spans])
    steps = steps_of(report_of(trace, tmp_path))
    for number in (2, 3):
        assert_step(steps[number], 1_000_000, table)


def test_graph_kernels_belong_to_the_step_that_launched_them(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(5):
        host, s = 100 * k, 300 * k + 200
        trace.step(k + 1, at=host, for_=100)
        trace.graph_launch(at=host + 10, for_=20, kernels=[(GEMM, s + 2, 148), (GEMM, s + 150, 150)])
    steps = steps_of(report_of(trace, tmp_path))
    # Host done at 500, device at 1700. Window of step k: [200, 500) + 300 (k - 1), gap 0-2, both nodes of its graph.
    for number in (2, 3, 4, 5):
        assert_step(steps[number], 300_000, {"kernels/matmul": 298_000, "host/kernel_gap": 2_000})
        assert steps[number].start_ns == trace.at_ns(300 * number - 100)
