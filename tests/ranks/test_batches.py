"""Batched sends and receives: one kernel for a message each way, and metadata on the host only.

Two stages, three micro-batches, 1F1B as Megatron runs it: the steady phase sends one result and receives another in a
batch. A forward takes 100 us, a backward 200 us, a transfer 10 us. Worked out by hand:

    stage 0:  F0 0-100   F1 100-200   [waits 200-410]   B0 420-620   F2 620-720   B1 730-930   [930-1030]   B2 1040-1240
    stage 1:  F0 110-210   B0 210-410   F1 420-520   B1 520-720   F2 730-830   B2 830-1030
"""

from __future__ import annotations

from pathlib import Path

import steptime
from steptime.ranks.pipelines import UNDECIDED
from tests.builders import TraceBuilder

PERIOD = 1_500
STEPS = 3


class _Stage:
    """One rank under construction: every launch is 1 us after the one before it."""

    def __init__(self, rank: int, forward_kernel: str) -> None:
        self.trace = TraceBuilder(rank=rank, world_size=2)
        self.forward_kernel = forward_kernel
        self.rank = rank
        self.host = 0.0
        self.zero = 0.0

    def _next(self) -> float:
        self.host += 8
        return self.host

    def begin(self, number: int) -> None:
        self.zero = number * PERIOD
        self.host = self.zero - 200
        self.trace.step(number, at=self.zero - 200, for_=PERIOD)

    def forward(self, at: float) -> None:
        self.trace.kernel(self.forward_kernel, at=self.zero + at, for_=100, launch_at=self._next(), launch_for=2)

    def backward(self, at: float) -> None:
        launch = self._next()
        self.trace.op("autograd::engine::evaluate_function: MmBackward0", at=launch - 1, for_=4)
        self.trace.kernel("gemm", at=self.zero + at, for_=200, launch_at=launch, launch_for=2)

    def batch(self, kinds: str, at: float, end: float) -> None:
        """`kinds`: "send", "recv" or both; registered one by one, then launched as one kernel."""
        for kind in kinds.split():
            args: dict[str, object] = {
                "Collective name": kind,
                "In msg nelems": 1024,
                "Out msg nelems": 1024,
                "Group size": 2,
                "dtype": "Float",
                "Process Group Name": "3",
                "Process Group Description": "undefined",
                "Process Group Ranks": "[0, 1]",
                "Dst Rank" if kind == "send" else "Src Rank": 1 - self.rank,
            }
            self.trace.op("record_param_comms", at=self._next(), for_=2, args=args)
        launch = self._next()
        self.trace.collective("send", self.zero + at, end - at, 20, launch_at=launch, launch_for=2, metadata=False)


def _first(stage: _Stage) -> None:
    stage.forward(0)
    stage.batch("send", 100, 110)
    stage.forward(100)
    stage.batch("send recv", 200, 420)
    stage.backward(420)
    stage.forward(620)
    stage.batch("send recv", 720, 730)
    stage.backward(730)
    stage.batch("recv", 930, 1040)
    stage.backward(1040)


def _last(stage: _Stage) -> None:
    stage.batch("recv", 0, 110)
    stage.forward(110)
    stage.backward(210)
    stage.batch("send recv", 410, 420)
    stage.forward(420)
    stage.backward(520)
    stage.batch("send recv", 720, 730)
    stage.forward(730)
    stage.backward(830)
    stage.batch("send", 1030, 1040)


def _job(folder: Path, first_kernel: str) -> steptime.Report:
    for rank, run in enumerate((_first, _last)):
        stage = _Stage(rank, first_kernel if rank == 0 else "gemm")
        for number in range(1, STEPS + 1):
            stage.begin(number)
            run(stage)
        stage.trace.write(folder / f"rank{rank}.json.gz")
    return steptime.analyze(folder)


def test_a_kernel_of_two_messages_waits_for_the_later_one(tmp_path: Path) -> None:
    report = _job(tmp_path, "embedding")
    found = report.pipeline
    assert found is not None
    assert (found.stages, found.schedule, found.micro_batches) == ([[0], [1]], "1f1b", 3)
    assert (found.forward_ns, found.closed_form_share) == ([100_000, 100_000], 1 / 4)
    # A backward counts from the arrival of what it needs, a forward of stage 0 from the pass before it.
    assert found.backward_ns == [200_000, 200_000]
    first, last = (next(row for row in report.ranks if row.rank == rank) for rank in (0, 1))
    bubble = {f"pipeline_bubble/{leaf}" for leaf in ("warmup", "steady", "drain", "stage_imbalance", "unsplit")}
    for step in first.steps[1:]:
        # 210 us for the first backward, 100 us for the last one, and three transfers of 10 us that nothing hides.
        assert sum(step.leaves_ns.get(leaf, 0) for leaf in bubble) == 310_000
        assert step.leaves_ns["exposed_comm/p2p_transfer"] == 30_000
    for step in last.steps[1:]:
        # 100 us until the first result is there; the time before, while the first stage is between steps, is idle.
        assert sum(step.leaves_ns.get(leaf, 0) for leaf in bubble) == 100_000
        assert step.leaves_ns["exposed_comm/p2p_transfer"] == 10_000 + 10_000 + 10_000 + 10_000


def test_a_chain_of_ranks_that_all_run_the_same_is_not_called_a_pipeline(tmp_path: Path) -> None:
    report = _job(tmp_path, "gemm")
    assert report.pipeline is None
    bubble = next(one for one in report.job.slices if one.id == "pipeline_bubble")
    assert (bubble.ns, bubble.leaves[0].detail) == (None, {"why": UNDECIDED})
