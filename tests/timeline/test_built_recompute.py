"""Forward kernels that run again. Built traces; tables by hand.

The rule (kineto_schema.md, section 5): an op with a sequence number and forward thread 0 inside an
``autograd::engine::evaluate_function`` span; with create_graph only if the same op and shapes ran in this step's
forward. Step k has the device window [100, 1100) + 1000 (k - 1); everything is queued.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.builders import TraceBuilder
from tests.timeline.built import ADD, GEMM, assert_step, report_of, steps_of

SHAPES = [[64, 64], [64, 64]]
NODE = "autograd::engine::evaluate_function: "


class Inner(NamedTuple):
    """The first op inside the backward node: its name, its kernel, its own sequence number (None: grad mode off)."""

    op: str
    kernel: str
    seq: int | None
    shapes: list[list[int]]


def backward_trace(inner: Inner, node: str) -> TraceBuilder:
    """Three steps: a forward GEMM [0, 200), then in one backward node `inner` [200, 400) and a GEMM [405, 1000)."""
    trace = TraceBuilder(extra={"record_shapes": 1})
    for k in range(3):
        host, s = 1000 * k, 1000 * k + 100
        trace.step(k + 1, at=host, for_=1000)
        trace.op("aten::mm", at=host + 8, for_=10, seq=10 * k + 1, shapes=SHAPES)
        trace.kernel(GEMM, at=s, for_=200, launch_at=host + 10)
        trace.op(NODE + node, at=host + 28, for_=40, thread=2, seq=10 * k + 1, fwd_thread=1)
        trace.op(inner.op, at=host + 30, for_=10, thread=2, seq=inner.seq, shapes=inner.shapes)
        trace.kernel(inner.kernel, at=s + 200, for_=200, launch_at=host + 32, thread=2)
        trace.op(NODE + "MmBackward0", at=host + 48, for_=15, thread=2, seq=10 * k + 2, fwd_thread=2)
        trace.op("aten::mm", at=host + 50, for_=10, thread=2, shapes=[[64, 64], [64, 64]])
        trace.kernel(GEMM, at=s + 405, for_=595, launch_at=host + 52, thread=2)
    return trace


def test_checkpointed_forward(tmp_path: Path) -> None:
    inner = Inner("aten::mm", GEMM, seq=1, shapes=SHAPES)
    report = report_of(backward_trace(inner, "CheckpointFunctionBackward"), tmp_path)
    # Forward 200 and backward 595 are matmul, the repeated forward 200, gap 400-405.
    table = {"kernels/matmul": 795_000, "recompute/recompute": 200_000, "host/kernel_gap": 5_000}
    for number in (2, 3):
        assert_step(steps_of(report)[number], 1_000_000, table)


def test_ordinary_backward_is_no_recompute(tmp_path: Path) -> None:
    inner = Inner("aten::mm", GEMM, seq=None, shapes=SHAPES)
    report = report_of(backward_trace(inner, "MmBackward0"), tmp_path)
    # 200 + 200 + 595: grad mode is off inside the node, so no op has a sequence number.
    for number in (2, 3):
        table = {"kernels/matmul": 995_000, "host/kernel_gap": 5_000}
        assert_step(steps_of(report)[number], 1_000_000, table)


def test_create_graph_with_an_op_that_never_ran_forward(tmp_path: Path) -> None:
    inner = Inner("aten::mul", ADD, seq=5, shapes=[[64, 64], []])
    report = report_of(backward_trace(inner, "PowBackward0"), tmp_path)
    # Grad mode is on inside the node, but no aten::mul ran in the forward: 200 memory_bound, 200 + 595 matmul.
    table = {"kernels/matmul": 795_000, "kernels/memory_bound": 200_000, "host/kernel_gap": 5_000}
    for number in (2, 3):
        assert_step(steps_of(report)[number], 1_000_000, table)


def test_create_graph_with_other_shapes(tmp_path: Path) -> None:
    inner = Inner("aten::mm", GEMM, seq=5, shapes=[[64, 8], [8, 64]])
    report = report_of(backward_trace(inner, "MmBackward0"), tmp_path)
    # aten::mm ran in the forward, but with other shapes.
    for number in (2, 3):
        table = {"kernels/matmul": 995_000, "host/kernel_gap": 5_000}
        assert_step(steps_of(report)[number], 1_000_000, table)
