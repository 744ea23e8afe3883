"""What a synchronisation costs later (DESIGN 1.4, rule 3). Built traces; tables by hand."""

from __future__ import annotations

from pathlib import Path

from tests.builders import Micros, TraceBuilder
from tests.timeline.built import GEMM, PLAIN, assert_step, launch, plain, report_of, steps_of


def item(trace: TraceBuilder, start: Micros, end: Micros) -> None:
    """``tensor.item()`` whose ``cudaStreamSynchronize`` is [start, end); the op is open until end + 1."""
    trace.op("aten::item", at=start - 2, for_=end - start + 3)
    trace.runtime("cudaStreamSynchronize", at=start, for_=end - start)


def test_credit_pays_later_idle_until_it_is_used_up(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100, kernels=3)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1500)
    item(trace, 1110, 1505)
    trace.op("aten::mm", at=1508, for_=22)
    trace.kernel(GEMM, at=1528, for_=72, launch_at=1520)
    trace.op("aten::mm", at=1532, for_=469)
    trace.kernel(GEMM, at=2000, for_=100, launch_at=1990)
    plain(trace, 3, 2000, 2100, kernels=3)
    steps = steps_of(report_of(trace, tmp_path))
    # The sync blocks [1110, 1505) while the device is busy until 1500: credit 390; 1500-1505 inside it is sync.
    # Until the next call 15, the call 5: sync by credit, 370 left. Gap 1525-1528.
    # 1600-1990 inside an op: 370 sync, and 20 launch_bound when the credit is gone; call 5 launch_bound; gap 5.
    # sync = 5 + 15 + 5 + 370, launch_bound = 20 + 5, kernel_gap = 3 + 5, matmul = 400 + 72 + 100.
    table = {
        "kernels/matmul": 572_000,
        "host/sync": 395_000,
        "host/launch_bound": 25_000,
        "host/kernel_gap": 8_000,
    }
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)


def test_credits_add_and_lapse_and_never_pay_for_the_loader(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100, kernels=3)
    trace.step(2, at=1000, for_=1400)
    launch(trace, GEMM, 1010, 1100, 1300)
    item(trace, 1200, 1300)
    trace.op("aten::mm", at=1301, for_=19)
    trace.kernel(GEMM, at=1308, for_=292, launch_at=1302)
    item(trace, 1450, 1600)
    trace.loader(at=1601, for_=300)
    trace.op("aten::mm", at=1901, for_=199)
    trace.kernel(GEMM, at=2100, for_=400, launch_at=2090)
    trace.step(3, at=2400, for_=1000)
    launch(trace, GEMM, 2410, 2500, 2600)
    trace.op("aten::mm", at=2420, for_=225)
    trace.kernel(GEMM, at=2640, for_=60, launch_at=2630)
    launch(trace, GEMM, 2650, 2700, 3500)
    plain(trace, 4, 3400, 3500, kernels=3)
    steps = steps_of(report_of(trace, tmp_path))
    # Both syncs return when the device falls idle, so no idle lies inside them. Credits: 100, then 150 more.
    # Step 2, [1100, 2500): 1300-1302 and the call 1302-1307 by credit (93 left), gap 1. From 1600: op tail 1 by credit
    # (93 + 150 - 1 = 242 left); loader 300, not from credit; op 1901-2090 189 and call 5 by credit (48 left); gap 5.
    # 195 after the second sync is more than its own 150. sync = 7 + 1 + 194, matmul = 200 + 292 + 400.
    table = {
        "kernels/matmul": 892_000,
        "host/sync": 202_000,
        "host/data_loader": 300_000,
        "host/kernel_gap": 6_000,
    }
    assert_step(steps[2], 1_400_000, table)
    # Step 3, [2500, 3500): the 48 have lapsed. 2600-2630 inside an op and call 5: launch_bound; gap 5.
    table = {"kernels/matmul": 960_000, "host/launch_bound": 35_000, "host/kernel_gap": 5_000}
    assert_step(steps[3], 1_000_000, table)


def test_idle_before_the_sync_is_not_its_cost(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100, kernels=3)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1300)
    trace.op("aten::mm", at=1020, for_=294)
    trace.kernel(GEMM, at=1310, for_=290, launch_at=1304)
    trace.op("aten::mm", at=1315, for_=7)
    trace.kernel(GEMM, at=1600, for_=500, launch_at=1316, launch_for=3)
    trace.runtime("cudaEventSynchronize", at=1330, for_=270)
    plain(trace, 3, 2000, 2100, kernels=3)
    steps = steps_of(report_of(trace, tmp_path))
    # 1300-1304 inside an op and the call 1304-1309, gap 1; the sync [1330, 1600) comes later and costs nothing.
    table = {"kernels/matmul": 990_000, "host/launch_bound": 9_000, "host/kernel_gap": 1_000}
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)


def test_python_holes_are_paid_by_credit_too(tmp_path: Path) -> None:
    trace = TraceBuilder()
    plain(trace, 1, 0, 100)
    trace.step(2, at=1000, for_=1000)
    launch(trace, GEMM, 1010, 1100, 1500)
    item(trace, 1110, 1500)
    trace.op("aten::mm", at=1701, for_=20)
    trace.kernel(GEMM, at=1710, for_=390, launch_at=1703)
    plain(trace, 3, 2000, 2100)
    steps = steps_of(report_of(trace, tmp_path))
    # Credit 390. 1500-1501 op tail, a hole of 200 (python), op 2, call 5: 208 sync; gap 2. matmul = 400 + 390.
    table = {"kernels/matmul": 790_000, "host/sync": 208_000, "host/kernel_gap": 2_000}
    assert_step(steps[2], 1_000_000, table)
    assert_step(steps[3], 1_000_000, PLAIN)
