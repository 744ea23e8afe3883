"""Who owns the busy device. Built traces; every table is worked out by hand in the comment above it.

In this module all work is queued long before it runs and step k has the device window [100, 1100) + 1000 (k - 1).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.timeline.built import ADD, GEMM, NEW_GEMM, assert_step, launch, plain, report_of, steps_of


def test_two_overlapping_gemms_on_two_streams(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 10, s + 3, s + 500)
        launch(trace, NEW_GEMM, host + 22, s + 300, s + 800, stream=8)
        launch(trace, GEMM, host + 34, s + 805, s + 1000)
    report = report_of(trace, tmp_path)
    # Window [0, 1000) after s, closed by stream 7, which has the most compute time (692 against 500).
    # Gap 0-3; the first GEMM owns 3-500, the second what is left of it, 500-800; gap 800-805; the third 805-1000.
    # matmul = 497 + 300 + 195 = 992, kernel_gap = 3 + 5.
    for number in (2, 3):
        step = steps_of(report)[number]
        assert_step(step, 1_000_000, {"kernels/matmul": 992_000, "host/kernel_gap": 8_000})
        assert step.start_ns == trace.at_ns(1000 * number - 900)
    # Over the two counted steps: stream 7 owns all its time, the kernel on stream 8 600 of 1000.
    owned = {kernel.name: (kernel.count, kernel.dur_ns, kernel.owned_ns) for kernel in report.kernels}
    assert owned == {GEMM: (4, 1_384_000, 1_384_000), NEW_GEMM: (2, 1_000_000, 600_000)}


def test_gemm_beside_a_tiny_kernel(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 10, s, s + 800)
        launch(trace, ADD, host + 22, s, s + 2, stream=8, op="aten::add")
        launch(trace, ADD, host + 34, s + 200, s + 202, stream=8, op="aten::add")
        launch(trace, ADD, host + 46, s + 798, s + 806, stream=8, op="aten::add")
        launch(trace, ADD, host + 58, s + 806, s + 812, stream=8, op="aten::add")
        launch(trace, GEMM, host + 70, s + 808, s + 990)
        launch(trace, GEMM, host + 82, s + 990, s + 1000)
        launch(trace, ADD, host + 94, s + 990, s + 1000, stream=8, op="aten::add")
    report = report_of(trace, tmp_path)
    # Same start at 0: the longer GEMM owns. 200-202 lies inside it. The third add owns its tail 800-806, the fourth
    # 806-812 because it started before the GEMM of 808, which owns 812-990. 990-1000: same start and length, so the
    # lower stream (7, the GEMM). matmul = 800 + 178 + 10 = 988, memory_bound = 6 + 6 = 12.
    for number in (2, 3):
        table = {"kernels/matmul": 988_000, "kernels/memory_bound": 12_000}
        assert_step(steps_of(report)[number], 1_000_000, table)


def test_async_copy_to_the_host_that_lasts_three_steps(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(6):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 10, s, s + 600)
        launch(trace, GEMM, host + 22, s + 610, s + 1000)
    trace.copy("DtoH", at=1500, for_=2650, stream=9, launch_at=1040)
    report = report_of(trace, tmp_path)
    # The copy [1500, 4150) is launched in step 2. It closes no window (other stream) and owns only what no kernel
    # does: the gaps [1700, 1710), [2700, 2710) and [3700, 3710) of steps 2 to 4. Step 5's gap [4700, 4710) is after it.
    for number, leaf in {2: "host/d2h_copy", 3: "host/d2h_copy", 4: "host/d2h_copy", 5: "host/kernel_gap"}.items():
        step = steps_of(report)[number]
        assert_step(step, 1_000_000, {"kernels/matmul": 990_000, leaf: 10_000})
        assert step.class_ == "train"


def test_compute_before_communication_before_copies(tmp_path: Path) -> None:
    trace = TraceBuilder(world_size=2)
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 2, s, s + 300)
        trace.collective("allreduce", at=s + 200, for_=300, launch_at=host + 15)
        trace.copy("DtoH", at=s + 400, for_=300, stream=9, launch_at=host + 25)
        trace.copy("HtoD", at=s + 700, for_=200, stream=9, launch_at=host + 35)
        trace.collective("_allgather_base", at=s + 720, for_=160, launch_at=host + 45)
        launch(trace, GEMM, host + 56, s + 760, s + 800)
        launch(trace, NEW_GEMM, host + 68, s + 900, s + 1000)
    report = report_of(trace, tmp_path)
    # 0-300 GEMM, 300-500 all-reduce, 500-700 copy to the host. Then each next one begins inside the former and wins:
    # 700-720 copy from the host, 720-760 all-gather, 760-800 GEMM, 800-880 all-gather, 880-900 copy; 900-1000 GEMM, of
    # another name, so that none of the former has a baseline for contention.
    table = {
        "kernels/matmul": 440_000,
        "exposed_comm/allreduce": 200_000,
        "exposed_comm/allgather": 120_000,
        "host/d2h_copy": 200_000,
        "host/h2d_copy": 40_000,
    }
    for number in (2, 3):
        assert_step(steps_of(report)[number], 1_000_000, table)


def test_each_kind_of_copy(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        launch(trace, GEMM, host + 2, s, s + 400)
        trace.copy("PtoP", at=s + 400, for_=100, stream=9, launch_at=host + 15)
        trace.copy("DtoD", at=s + 500, for_=60, launch_at=host + 25)
        trace.memset(at=s + 560, for_=10, launch_at=host + 35)
        trace.copy("HtoD", at=s + 570, for_=30, stream=9, launch_at=host + 45)
        launch(trace, GEMM, host + 56, s + 600, s + 1000)
    report = report_of(trace, tmp_path)
    # Nothing overlaps: 800 GEMM, 100 between GPUs, 60 + 10 inside the GPU's memory, 30 from the host.
    table = {
        "kernels/matmul": 800_000,
        "kernels/memory_bound": 70_000,
        "exposed_comm/p2p_transfer": 100_000,
        "host/h2d_copy": 30_000,
    }
    for number in (2, 3):
        assert_step(steps_of(report)[number], 1_000_000, table)


def contended(clean: list[int], slowed: int, *, slowed_rows: int = 64) -> TraceBuilder:
    """Steps of 600 whose first GEMM runs alone for each length in `clean`, then twice under an all-reduce.

    After s: the GEMM [0, d); the all-reduce [d, 200), and in the last two steps [0, 200); another GEMM [200, 600).
    The first GEMM is of 64 rows, and of `slowed_rows` in the last two steps.
    """
    trace = TraceBuilder(world_size=2, extra={"record_shapes": 1})
    for k, length in enumerate([*clean, slowed, slowed]):
        host, s = 600 * k, 600 * k + 100
        alone = k < len(clean)
        trace.step(k + 1, at=host, for_=600)
        trace.op("aten::mm", at=host, for_=10, shapes=[[64 if alone else slowed_rows, 64], [64, 64]])
        trace.kernel(NEW_GEMM, at=s, for_=length, launch_at=host + 2)
        begin = length if alone else 0
        trace.collective("allreduce", at=s + begin, for_=200 - begin, launch_at=host + 15)
        launch(trace, GEMM, host + 26, s + 200, s + 600)
    return trace


def test_contention_is_charged_with_three_instances_alone(tmp_path: Path) -> None:
    report = report_of(contended([100, 100, 100], slowed=160), tmp_path)
    # Baseline: the median of three instances alone, 100. Two slowed ones of 160: 320 - 2 x 100 = 120 for the group,
    # above the spread of the baseline (0), so 60 in each of steps 4 and 5: matmul = 100 + 400.
    for number in (2, 3):
        table = {"kernels/matmul": 500_000, "exposed_comm/allreduce": 100_000}
        assert_step(steps_of(report)[number], 600_000, table)
    for number in (4, 5):
        table = {"kernels/matmul": 500_000, "kernels/comm_contention": 60_000, "exposed_comm/allreduce": 40_000}
        assert_step(steps_of(report)[number], 600_000, table)


def test_contention_needs_three_instances_alone(tmp_path: Path) -> None:
    report = report_of(contended([100, 100], slowed=160), tmp_path)
    # Two instances alone are no baseline: all 160 + 400 stay matmul.
    for number in (3, 4):
        assert_step(steps_of(report)[number], 600_000, {"kernels/matmul": 560_000, "exposed_comm/allreduce": 40_000})
    # Both slowed ones lie under communication: 2 x 160 us, and the report says so.
    assert any("not measurable" in warning and "0.32 ms" in warning for warning in report.warnings)


def test_contention_compares_equal_shapes_only(tmp_path: Path) -> None:
    report = report_of(contended([100, 100, 100], slowed=160, slowed_rows=96), tmp_path)
    # The slowed ones have the same name, grid and block, but 96 rows in place of 64: no baseline.
    for number in (4, 5):
        assert_step(steps_of(report)[number], 600_000, {"kernels/matmul": 560_000, "exposed_comm/allreduce": 40_000})


def test_contention_inside_the_noise_is_not_charged(tmp_path: Path) -> None:
    report = report_of(contended([80, 100, 120], slowed=105), tmp_path)
    # The group's excess is 210 - 200 = 10. Two draws from 80, 100, 120 exceed 2 x 100 by 40 in 1 case of 9 and by 20
    # or more in 3 of 9, so the 95th percentile is 40: nothing is charged.
    for number in (4, 5):
        assert_step(steps_of(report)[number], 600_000, {"kernels/matmul": 505_000, "exposed_comm/allreduce": 95_000})


@pytest.mark.parametrize(("length", "charged"), [(110, 0), (160, 50)])
def test_a_step_slower_in_everything_is_no_contention(tmp_path: Path, length: int, charged: int) -> None:
    """Steps 4 and 5: three kernels alone take 220 for 200, so one of 100 under an all-reduce is due to take 110."""
    trace = TraceBuilder(world_size=2)
    host = 0
    for k in range(5):
        alone, s = k < 3, host + 100
        each, own = (200, 100) if alone else (220, length)
        trace.step(k + 1, at=host, for_=300 + 3 * each)
        launch(trace, NEW_GEMM, host + 2, s, s + own)
        begin = own if alone else 0
        trace.collective("allreduce", at=s + begin, for_=300 - begin, launch_at=host + 15)
        for at in range(3):
            launch(trace, GEMM, host + 26 + 12 * at, s + 300 + each * at, s + 300 + each * (at + 1))
        host += 300 + 3 * each
    report = report_of(trace, tmp_path)
    for number in (4, 5):
        table = {"kernels/matmul": length - charged + 660, "kernels/comm_contention": charged}
        table |= {"exposed_comm/allreduce": 300 - length}
        assert_step(steps_of(report)[number], 960_000, {leaf: us * 1000 for leaf, us in table.items() if us})


@pytest.mark.parametrize("dialect", ["integer", "legacy"])
def test_older_dialects_give_the_same_table(tmp_path: Path, dialect: str) -> None:
    trace = TraceBuilder(dialect="integer" if dialect == "integer" else "legacy")
    for k in range(3):
        plain(trace, k + 1, 1000 * k, 1000 * k + 100)
    report = report_of(trace, tmp_path)
    for number in (2, 3):  # Gap 0-2, then GEMMs to 1000.
        table = {"kernels/matmul": 998_000, "host/kernel_gap": 2_000}
        assert_step(steps_of(report)[number], 1_000_000, table)
