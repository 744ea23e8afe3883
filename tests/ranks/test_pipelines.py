"""Pipelines: stages, schedule and micro-batches from the messages, and the bubble against closed forms and twins.

The closed form is that of arXiv:2104.04473, section 2.2: (p-1) / (v*m + p-1). A twin is the same seed of the simulator
without the fault: what the fault adds is known without any analysis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steptime
from steptime import model
from steptime.ranks.flow import NONE
from steptime.ranks.pipelines import NAMELESS, ONE_RANK
from steptime.ranks.replay import BACKWARD, FORWARD, Order, closed_form_share, idle_ns
from steptime.simulate import Scenario, simulate
from steptime.simulate.scenario import Batch, Fault, Layout, Model, Recording, Training

#: 8 words: the embedding and the output layer are of no account, so that stages are even.
EVEN = Model(layers=8, hidden=4096, heads=32, ffn=14336, vocab=8)


def _scenario(**changes: Any) -> Scenario:
    tables: dict[str, Any] = {
        "name": "pipeline",
        "seed": 11,
        "model": EVEN,
        "layout": Layout(pp=4),
        "batch": Batch(micro_batches=8, seq_len=4096),
    }
    return Scenario(**(tables | changes))


def _report(folder: Path, **changes: Any) -> steptime.Report:
    simulate(_scenario(**changes), folder)
    return steptime.analyze(folder)


def _pipeline(report: steptime.Report) -> model.Pipeline:
    assert report.pipeline is not None
    return report.pipeline


def _leaves(report: steptime.Report) -> dict[str, float]:
    """Shares of the bubble's leaves."""
    slice_ = next(one for one in report.job.slices if one.id == "pipeline_bubble")
    return {leaf.id: leaf.share or 0.0 for leaf in slice_.leaves}


CLOSED = [
    ("gpipe", 1, 8, 3 / 11),
    ("1f1b", 1, 8, 3 / 11),
    ("1f1b", 1, 16, 3 / 19),
    ("interleaved", 2, 8, 3 / 19),
]


@pytest.mark.parametrize(("schedule", "chunks", "micro_batches", "share"), CLOSED)
def test_even_stages_have_the_bubble_of_the_closed_form(
    schedule: Any, chunks: int, micro_batches: int, share: float, tmp_path: Path
) -> None:
    layout = Layout(pp=4, schedule=schedule, chunks=chunks)
    report = _report(tmp_path, layout=layout, batch=Batch(micro_batches=micro_batches, seq_len=4096))
    found = _pipeline(report)
    assert (found.schedule, found.chunks, found.micro_batches) == (schedule, chunks, micro_batches)
    assert found.stages == [[0], [1], [2], [3]]
    assert found.closed_form_share == pytest.approx(share)
    assert found.schedule_share == pytest.approx(share, abs=0.002)
    assert found.bubble_share == pytest.approx(share, abs=0.01)
    leaves = _leaves(report)
    assert leaves.pop("stage_imbalance", 0.0) < 0.005
    assert leaves.pop("unsplit", 0.0) < 0.01
    assert set(leaves) == {"warmup", "steady", "drain"}


def test_a_zero_bubble_schedule_is_replayed_not_looked_up(tmp_path: Path) -> None:
    found = _pipeline(_report(tmp_path, layout=Layout(pp=4, schedule="zero-bubble")))
    assert (found.schedule, found.micro_batches, found.closed_form_share) == ("zero-bubble", 8, None)
    # ZB-H1 with F = B = W: (p-1)(F+B-W) idle of m(F+B+W) + that (arXiv:2401.10241, table 1).
    assert found.schedule_share == pytest.approx(3 / (3 * 8 + 3), abs=0.03)
    assert found.bubble_share == pytest.approx(found.schedule_share, abs=0.01)


@pytest.mark.parametrize("early", [False, True])
def test_one_micro_batch_after_the_other_through_the_chart(early: bool, tmp_path: Path) -> None:
    layout = Layout(pp=3, tp=2, early_receives=early)
    report = _report(tmp_path, layout=layout, batch=Batch(micro_batches=4, seq_len=4096))
    found = _pipeline(report)
    assert found.stages == [[0, 1], [2, 3], [4, 5]]
    drawn = found.actions
    assert drawn is not None
    assert drawn.step in report.job.steps
    by_stage = {
        stage: [(b, m) for s, b, m in zip(drawn.stage, drawn.backward, drawn.micro_batch, strict=True) if s == stage]
        for stage in range(3)
    }
    # 1F1B by hand: stage s runs 3 - s forwards, then one backward and one forward in turn.
    f, b = False, True
    assert by_stage == {
        0: [(f, 0), (f, 1), (f, 2), (b, 0), (f, 3), (b, 1), (b, 2), (b, 3)],
        1: [(f, 0), (f, 1), (b, 0), (f, 2), (b, 1), (f, 3), (b, 2), (b, 3)],
        2: [(f, 0), (b, 0), (f, 1), (b, 1), (f, 2), (b, 2), (f, 3), (b, 3)],
    }
    begins = {
        (stage, backward, micro_batch): start
        for stage, backward, micro_batch, start in zip(
            drawn.stage, drawn.backward, drawn.micro_batch, drawn.start_ns, strict=True
        )
    }
    assert begins[0, f, 0] == 0
    for micro_batch in range(4):
        order = [begins[s, f, micro_batch] for s in (0, 1, 2)] + [begins[s, b, micro_batch] for s in (2, 1, 0)]
        assert order == sorted(order)


def test_what_unequal_stages_add_is_imbalance(tmp_path: Path) -> None:
    fault = Fault(kind="unbalanced_stages", size=1)
    uneven, even = (_report(tmp_path / str(len(f)), fault=f) for f in ([fault], []))
    before, after = (sum(_leaves(one).values()) * one.job.step_time_ns.median for one in (even, uneven))
    added = _leaves(uneven)["stage_imbalance"] * uneven.job.step_time_ns.median
    assert after - before > 0.1 * even.job.step_time_ns.median
    assert added == pytest.approx(after - before, abs=0.02 * uneven.job.step_time_ns.median)
    found = _pipeline(uneven)
    # One of two layers moved from the first to the last stage.
    middle = found.forward_ns[1]
    assert [ns / middle for ns in found.forward_ns] == pytest.approx([1 / 2, 1, 1, 3 / 2], abs=0.02)
    assert uneven.findings[0].id == "stage-imbalance"


def test_one_slow_rank_of_a_stage_is_no_imbalance(tmp_path: Path) -> None:
    report = _report(
        tmp_path,
        layout=Layout(pp=4, dp=2),
        recording=Recording(steps=6),
        fault=[Fault(kind="slow_gpu", ranks=[5], size=0.15)],
    )
    assert [(one.kind, one.ranks, one.cause) for one in report.stragglers] == [("straggler", [5], "slower kernels")]
    leaves = _leaves(report)
    assert leaves.pop("stage_imbalance", 0.0) < 0.005
    assert leaves.pop("unsplit", 0.0) < 0.01
    assert _pipeline(report).closed_form_share == pytest.approx(3 / 11)
    waits = {cause.what for cause in report.causes if cause.leaf == "stragglers/wait_for_rank" and cause.share > 0.005}
    assert waits == {"waiting for rank 5"}


def test_a_collective_across_stages_drains_the_pipeline_and_accuses_nobody(tmp_path: Path) -> None:
    report = _report(tmp_path, training=Training(clip_grad=True), recording=Recording(steps=4))
    assert report.stragglers == []
    assert _pipeline(report).bubble_share == pytest.approx(3 / 11, abs=0.01)
    spans = [cause for cause in report.causes if cause.where == "allreduce (default_pg)" and cause.share > 0.005]
    assert {cause.leaf for cause in spans} == {"pipeline_bubble/drain"}


def test_without_a_stage_nothing_is_split(tmp_path: Path) -> None:
    simulate(_scenario(), tmp_path)
    (tmp_path / "rank3.json.gz").unlink()
    report = steptime.analyze(tmp_path)
    found = _pipeline(report)
    assert found.why == "files of stages are missing"
    assert (found.schedule, found.closed_form_share, found.bubble_share) == (None, None, None)
    assert set(_leaves(report)) == {"unsplit"}


def test_messages_without_peers_are_not_called_anything(tmp_path: Path) -> None:
    report = _report(tmp_path, recording=Recording(p2p_metadata=False))
    assert report.pipeline is None
    slice_ = next(one for one in report.job.slices if one.id == "pipeline_bubble")
    assert (slice_.ns, slice_.leaves[0].detail) == (None, {"why": NAMELESS})


def test_batched_messages_are_known_from_the_host(tmp_path: Path) -> None:
    batched, plain = (
        _report(tmp_path / str(batched), recording=Recording(p2p_batched=batched)) for batched in (True, False)
    )
    assert _pipeline(batched).stages == _pipeline(plain).stages == [[0], [1], [2], [3]]
    assert _pipeline(batched).schedule == "1f1b"
    assert _pipeline(batched).bubble_share == pytest.approx(3 / 11, abs=0.01)


def test_one_rank_cannot_tell(tmp_path: Path) -> None:
    simulate(_scenario(), tmp_path)
    report = steptime.analyze(tmp_path / "rank1.json.gz")
    slice_ = next(one for one in report.job.slices if one.id == "pipeline_bubble")
    assert (slice_.ns, slice_.leaves[0].detail) == (None, {"why": ONE_RANK})


def test_no_messages_no_bubble(tmp_path: Path) -> None:
    report = _report(tmp_path, layout=Layout(dp=4), batch=Batch(seq_len=2048))
    slice_ = next(one for one in report.job.slices if one.id == "pipeline_bubble")
    assert (report.pipeline, slice_.ns) == (None, 0)


def _gpipe(forward: int, backward: int) -> tuple[Order, np.ndarray[Any, np.dtype[np.float64]]]:
    """Two stages, two micro-batches: F0 F1 B0 B1 on each."""
    order = Order(
        stages=2,
        stage=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        needs=np.array([NONE, NONE, 6, 7, 0, 1, NONE, NONE]),
        kind=np.array([FORWARD, FORWARD, BACKWARD, BACKWARD] * 2),
        piece=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        micro_batch=np.array([0, 1, 0, 1] * 2),
        index=np.arange(8)[None, :],
        pipeline=np.zeros(1, np.int64),
        column=np.zeros(1, np.int64),
        turns=[0, 1, 4, 5, 6, 7, 2, 3],
        pieces=2,
        micro_batches=2,
    )
    return order, np.where(order.kind == FORWARD, float(forward), float(backward))


def test_replay_by_hand() -> None:
    order, own = _gpipe(10, 25)
    # Stage 1 starts at 10 and ends at 80; stage 0 has its backwards from 55 to 80 and from 80 to 105.
    assert idle_ns(order, own[None, :]).tolist() == [[105 - 70, 105 - 70]]
    assert order.schedule == "gpipe"
    assert closed_form_share(order) == pytest.approx(1 / 3)
    slow = own.copy()
    slow[4] = 40.0
    # The first forward of stage 1 ends at 50 now: everything after it is 30 later.
    assert idle_ns(order, np.stack([own, slow])).tolist() == [[35, 35], [65, 35]]
