"""What findings say of the pipeline and of late ranks, against arithmetic by hand."""

from __future__ import annotations

import msgspec
import pytest

from steptime.diagnose.findings import diagnose
from steptime.model import Alignment, Evidence, Pipeline, Report, Straggler
from tests.diagnose.situations import one_rank
from tests.report.reports import MS

_WORLD = {"world_size": 16, "ranks_analyzed": 16}


def _pipeline(stages: int, micro_batches: int, chunks: int, share: float | None) -> Pipeline:
    return Pipeline(
        stages=[[2 * stage, 2 * stage + 1] for stage in range(stages)],
        schedule="1f1b",
        chunks=chunks,
        micro_batches=micro_batches,
        forward_ns=[10 * MS + 2 * MS * (stage == 1) for stage in range(stages)],
        backward_ns=[20 * MS] * stages,
        closed_form_share=share,
    )


def _seen(report: Report, rule: str) -> list[Evidence]:
    return next(finding for finding in diagnose(report).findings if finding.id == rule).evidence


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks", "said"),
    [
        # 1/5; the least m with 1/(m+1) <= 0.1 is 9.
        (2, 4, 1, "(2-1)/(4+2-1) = 20.0 % of the pipelined phase is the schedule's own; 9 would make it 10.0 %"),
        # 3/11; 3/(m+3) <= 0.1 from m = 27 on.
        (4, 8, 1, "(4-1)/(8+4-1) = 27.3 % of the pipelined phase is the schedule's own; 27 would make it 10.0 %"),
        # 3/19; 3/(2m+3) <= 0.1 from 13.5 on, and 16 is the next multiple of four stages: 3/35.
        (4, 8, 2, "(4-1)/(2*8+4-1) = 15.8 % of the pipelined phase is the schedule's own; 16 would make it 8.6 %"),
    ],
)
def test_how_many_micro_batches_would_do(stages: int, micro_batches: int, chunks: int, said: str) -> None:
    share = (stages - 1) / (chunks * micro_batches + stages - 1)
    found = _pipeline(stages, micro_batches, chunks, share)
    texts = [one.text for one in _seen(one_rank({"pipeline_bubble/drain": 20}, pipeline=found), "pipeline-bubble")]
    assert f"{micro_batches} micro-batches over {stages} stages, so {said}" in texts


def test_enough_micro_batches_are_not_to_be_raised() -> None:
    found = _pipeline(2, 16, 1, 1 / 17)
    (text,) = [
        one.text
        for one in _seen(one_rank({"pipeline_bubble/drain": 20}, pipeline=found), "pipeline-bubble")
        if "micro-batches" in one.text
    ]
    assert text.endswith("(2-1)/(16+2-1) = 5.9 % of the pipelined phase is the schedule's own")


def test_a_schedule_without_a_closed_form_is_told_nothing() -> None:
    seen = _seen(one_rank({"pipeline_bubble/drain": 20}, pipeline=_pipeline(4, 8, 1, None)), "pipeline-bubble")
    assert not [one for one in seen if "micro-batches" in one.text]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (2, "stage 1 (ranks 2-3) takes 32.0 ms for a micro-batch, forward and backward, 1.07 times the other stage's"),
        (4, "stage 1 (ranks 2-3) takes 32.0 ms for a micro-batch, forward and backward, 1.07 times the other stages'"),
    ],
)
def test_the_slowest_stage_is_named(stages: int, said: str) -> None:
    report = one_rank({"pipeline_bubble/stage_imbalance": 5}, pipeline=_pipeline(stages, 8, 1, 0.1))
    assert _seen(report, "stage-imbalance")[0].text.startswith(said)


def _job(late: list[Straggler], unjudged: str | None = None) -> Report:
    aligned = Alignment(matched=8, unmatched=0, refused=0, error_ns=0, unjudged=unjudged)
    report = one_rank({"stragglers/wait_for_rank": 10}, of_job=_WORLD)
    return msgspec.structs.replace(report, stragglers=late, alignment=aligned)


def test_late_ranks_are_named_with_their_causes() -> None:
    slow = Straggler(
        kind="straggler",
        rank=0,
        ranks=[0],
        host="node0",
        cause="slower kernels",
        leaf="kernels/matmul",
        steps=[6, 7],
        lost_ns=50 * MS,
        share=0.25,
    )
    loader = msgspec.structs.replace(slow, rank=2, ranks=[2], cause="data_loader", leaf="host/data_loader", steps=[5])
    other = msgspec.structs.replace(slow, kind="jitter", rank=None, ranks=[], host=None, cause="gc", leaf="host/gc")
    seen = _seen(_job([slow, loader, other]), "wait-for-rank")
    assert [one.text for one in seen[:3]] == [
        "rank 0 costs each other rank 25.0 ms a step, in 2 steps: slower kernels (kernels/matmul)",
        "rank 2 costs each other rank 50.0 ms a step, in 1 step: data_loader (host/data_loader)",
        "a different rank each time costs each other rank 25.0 ms a step, in 2 steps: gc (host/gc)",
    ]
    # Rank 0's steps are equal: the first of those in which it was late.
    assert (seen[0].rank, seen[0].step, seen[0].dur_ns) == (0, 6, 100 * MS)
    assert (seen[1].rank, seen[1].step) == (2, None)


def test_nobody_is_named_without_a_verdict() -> None:
    assert _seen(_job([]), "wait-for-rank")[0].text.startswith("nobody is named: no rank is late again and again")
    assert _seen(_job([], "one step only"), "wait-for-rank")[0].text == "nobody is named: one step only"
