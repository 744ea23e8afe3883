"""Idle because the host was late (DESIGN 1.4, rule 2). Built traces by `late_step`; tables by hand.

Step 2 always holds kernel_gap 2 before its first GEMM, that GEMM [1102, a), and 400 of the second kernel. Where a
comment says "call", it is the launch call; "gap" is what follows it until the kernel starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import Micros, TraceBuilder
from tests.timeline.built import GEMM, NEW_GEMM, PLAIN, assert_step, late_step, report_of, steps_of


@pytest.mark.parametrize(
    ("kernel", "malloc", "leaf"),
    [
        (NEW_GEMM, False, "host/compile"),  # first use of this kernel: lazy load
        (GEMM, False, "host/launch_bound"),  # ran before: a slow driver call
        (GEMM, True, "host/allocator"),  # a cudaMalloc lies inside the call
    ],
)
def test_launch_call_of_300_ms(tmp_path: Path, kernel: str, malloc: bool, leaf: str) -> None:
    trace = TraceBuilder().op("aten::mm", at=1590, for_=300_120)
    if malloc:
        trace.runtime("cudaMalloc", at=1800, for_=200_000)
    late_step(trace, idle=(1600, 301_705), call=(1700, 301_700), kernel=kernel)
    steps = steps_of(report_of(trace, tmp_path))
    # 1600-1700 inside the op: launch_bound 100. The call 300,000. Gap 5. Window [1100, 302105).
    table = {"kernels/matmul": 898_000, "host/kernel_gap": 7_000, "host/launch_bound": 100_000}
    table[leaf] = table.get(leaf, 0) + 300_000_000
    assert_step(steps[2], 301_005_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)


@pytest.mark.parametrize(
    ("kernel", "length", "leaf"),
    [
        (NEW_GEMM, 199, "host/launch_bound"),
        (NEW_GEMM, 200, "host/launch_bound"),
        (NEW_GEMM, 201, "host/compile"),
        (NEW_GEMM, 300, "host/compile"),
        (GEMM, 199, "host/launch_bound"),
        (GEMM, 300, "host/launch_bound"),
    ],
)
def test_launch_call_is_long_above_200_us(tmp_path: Path, kernel: str, length: int, leaf: str) -> None:
    trace = TraceBuilder().op("aten::mm", at=1590, for_=length + 30)
    late_step(trace, idle=(1600, 1613 + length), call=(1610, 1610 + length), kernel=kernel)
    step = steps_of(report_of(trace, tmp_path))[2]
    # 1600-1610 inside the op: launch_bound 10. The call. Gap 3. Window [1100, 2013 + length).
    table = {"kernels/matmul": 898_000, "host/kernel_gap": 5_000, "host/launch_bound": 10_000}
    table[leaf] = table.get(leaf, 0) + 1000 * length
    assert_step(step, 913_000 + 1000 * length, table)


@pytest.mark.parametrize(
    ("before", "after", "table"),
    [
        # Op until 1650 (50), hole of 99, op 6, call 5, gap 3: all launch_bound.
        ((1590, 1650), 1749, {"host/launch_bound": 160_000}),
        # The same with a hole of 150: python.
        ((1590, 1650), 1800, {"host/launch_bound": 61_000, "host/python": 150_000}),
        # A hole of 120 of which the device is idle for the last 60: the hole's own length decides.
        ((1500, 1540), 1660, {"host/launch_bound": 11_000, "host/python": 60_000}),
        # A hole of 99 of which the device is idle for the last 39.
        ((1500, 1540), 1639, {"host/launch_bound": 50_000}),
    ],
)
def test_holes_between_top_level_ops(
    tmp_path: Path, before: tuple[int, int], after: int, table: dict[str, int]
) -> None:
    trace = TraceBuilder().op("aten::view", at=before[0], for_=before[1] - before[0])
    trace.op("aten::mm", at=after, for_=21)
    late_step(trace, idle=(1600, after + 14), call=(after + 6, after + 11))
    step = steps_of(report_of(trace, tmp_path))[2]
    assert_step(step, 1000 * (after - 686), {"kernels/matmul": 898_000, "host/kernel_gap": 5_000} | table)


def test_item_of_a_cpu_tensor_is_no_sync(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::item", at=1590, for_=110).op("aten::_local_scalar_dense", at=1592, for_=106)
    trace.op("aten::mm", at=1702, for_=21)
    late_step(trace, idle=(1600, 1716), call=(1708, 1713))
    step = steps_of(report_of(trace, tmp_path))[2]
    # No call into the runtime inside: an op like any other. Op 100, hole 2, op 6, call 5; gap 3.
    table = {"kernels/matmul": 898_000, "host/kernel_gap": 5_000, "host/launch_bound": 113_000}
    assert_step(step, 1_016_000, table)


def test_idle_inside_a_device_synchronize_is_sync(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::detach", at=1586, for_=10)
    trace.runtime("cudaDeviceSynchronize", at=1600, for_=50).op("aten::mm", at=1652, for_=21)
    late_step(trace, idle=(1600, 1666), call=(1658, 1663))
    step = steps_of(report_of(trace, tmp_path))[2]
    # The call begins when the device is already idle: sync 50 and no credit. Then 2 of a hole of 56 between ops,
    # op 6, call 5: launch_bound 13; gap 3.
    table = {"kernels/matmul": 898_000, "host/kernel_gap": 5_000, "host/sync": 50_000, "host/launch_bound": 13_000}
    assert_step(step, 966_000, table)


def test_item_that_waits_8_ms_for_a_busy_device_costs_its_idle_time_only(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::item", at=1020, for_=8081)
    trace.runtime("cudaStreamSynchronize", at=1022, for_=8078).op("aten::mm", at=9102, for_=21)
    late_step(trace, idle=(9090, 9113), call=(9106, 9111))
    step = steps_of(report_of(trace, tmp_path))[2]
    # Case B38. The host is blocked [1022, 9100), the device busy until 9090: 10 inside the call are sync, and by
    # credit the 6 until the launch call and the 5 of it. Gap 2. matmul = 7988 + 400.
    table = {"kernels/matmul": 8_388_000, "host/kernel_gap": 4_000, "host/sync": 21_000}
    assert_step(step, 8_413_000, table)


@pytest.mark.parametrize("gap", [20, 21, 85])
def test_gap_after_the_launch_call_is_a_gap_of_any_length(tmp_path: Path, gap: int) -> None:
    trace = TraceBuilder().op("aten::mm", at=1590, for_=30)
    late_step(trace, idle=(1600, 1615 + gap), call=(1610, 1615))
    step = steps_of(report_of(trace, tmp_path))[2]
    # Op 10, call 5, then [L1, b) is kernel_gap: rule 2 sets no limit, because the device was idle before the call.
    table = {"kernels/matmul": 898_000, "host/kernel_gap": 2_000 + 1000 * gap, "host/launch_bound": 15_000}
    assert_step(step, 915_000 + 1000 * gap, table)


def test_loader_and_collector(tmp_path: Path) -> None:
    trace = TraceBuilder().loader(at=1550, for_=350, workers=4).annotation("steptime::gc", at=1900, for_=70)
    trace.op("aten::mm", at=1970, for_=26)
    late_step(trace, idle=(1600, 1988), call=(1980, 1985))
    step = steps_of(report_of(trace, tmp_path))[2]
    # Loader 1600-1900, collector 1900-1970, op 10, call 5, gap 3.
    table = {
        "kernels/matmul": 898_000,
        "host/kernel_gap": 5_000,
        "host/data_loader": 300_000,
        "host/gc": 70_000,
        "host/launch_bound": 15_000,
    }
    assert_step(step, 1_288_000, table)


def test_from_the_forward_thread_to_the_autograd_thread(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::linear", at=1540, for_=20, seq=7)
    trace.op("aten::empty", at=1590, for_=120).runtime("cudaMalloc", at=1592, for_=108)
    trace.op("autograd::engine::evaluate_function: MmBackward0", at=1730, for_=170, thread=2, seq=7, fwd_thread=1)
    trace.op("aten::mm", at=1732, for_=163, thread=2).runtime("cudaMalloc", at=1740, for_=50, thread=2)
    late_step(trace, idle=(1600, 1890), call=(1880, 1885), thread=2)
    step = steps_of(report_of(trace, tmp_path))[2]
    # Forward thread: cudaMalloc 1600-1700, op 1700-1710. Hole of 20 between its op and the backward node. Autograd
    # thread: node 1730-1740, cudaMalloc 1740-1790, op 1790-1880, call 5; gap 5.
    # allocator = 100 + 50, launch_bound = 10 + 20 + 10 + 90 + 5.
    table = {
        "kernels/matmul": 898_000,
        "host/kernel_gap": 7_000,
        "host/allocator": 150_000,
        "host/launch_bound": 135_000,
    }
    assert_step(step, 1_190_000, table)


def test_from_the_autograd_thread_back(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::linear", at=1510, for_=20, seq=7)
    trace.op("autograd::engine::evaluate_function: MmBackward0", at=1540, for_=120, thread=2, seq=7, fwd_thread=1)
    trace.runtime("cudaMalloc", at=1550, for_=80, thread=2)
    trace.op("aten::_foreach_add_", at=1690, for_=40)
    late_step(trace, idle=(1600, 1715), call=(1705, 1710))
    step = steps_of(report_of(trace, tmp_path))[2]
    # The forward thread waits, without an event, for the backward. Autograd thread: cudaMalloc 1600-1630, node until
    # 1660. Hole of 30. Forward thread: op 1690-1705, call 5; gap 5.
    # allocator = 30, launch_bound = 30 + 30 + 15 + 5.
    table = {
        "kernels/matmul": 898_000,
        "host/kernel_gap": 7_000,
        "host/allocator": 30_000,
        "host/launch_bound": 80_000,
    }
    assert_step(step, 1_015_000, table)


@pytest.mark.parametrize("clock", [0, -0.3, -800])
def test_device_clock_behind_the_host_clock(tmp_path: Path, clock: Micros) -> None:
    trace = TraceBuilder().loader(at=1550, for_=350).op("aten::mm", at=1900, for_=26)
    late_step(trace, idle=(1600, 1910), call=(1910, 1915), clock=clock)
    steps = steps_of(report_of(trace, tmp_path))
    # Case A38. The quickest kernel starts when its launch call does, so every shift is seen as kernels that start
    # before their calls, and undone: loader 1600-1900, op 10; the GEMM starts at the call's start, so no gap.
    table = {
        "kernels/matmul": 898_000,
        "host/kernel_gap": 2_000,
        "host/data_loader": 300_000,
        "host/launch_bound": 10_000,
    }
    assert_step(steps[2], 1_210_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)
