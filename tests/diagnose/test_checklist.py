"""The ten checks: each passed, failed and not tellable, with the numbers that decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.diagnose.findings import diagnose
from steptime.model import ChecklistItem, Report
from tests.diagnose.situations import STEPS, collective, one_rank, roof, with_leaf
from tests.report.reports import MS

FIT, MFU, ROOF, CLOCK, OVERLAP, PRECISION, FAILURES, NORMS, ALLOCATOR, BATCH = range(10)
_TWO: dict[str, object] = {"world_size": 2, "ranks_analyzed": 2}
_PRICED: dict[str, object] = {"flops_source": "trace", "reference_dtype": "bf16"}
_LAUNCH = {"host/launch_bound": 20}
_HELD: dict[str, float | None] = {"allocator.reserved_bytes": 64 * 2.0**30, "allocator.allocated_bytes": 40 * 2.0**30}


def _items(report: Report) -> list[ChecklistItem]:
    return diagnose(report).checklist


def test_the_items_are_the_walkthrough_s_in_its_order_and_words(repo: Path) -> None:
    source = repo.parent / "shared" / "seeds" / "004_ff926c56a7422939.txt"
    if not source.exists():
        pytest.skip("the text that the checklist comes from is not beside this checkout")
    lines = source.read_text().split("What do you check before trusting a number?")[-1].splitlines()
    wanted = [line.split(". ")[1] for line in lines if line[:2].strip(".").isdigit()][:10]
    assert [item.item for item in _items(one_rank({}))] == wanted


@pytest.mark.parametrize(
    ("number", "report", "status", "why"),
    [
        (
            FIT,
            one_rank({}, facts=_HELD),
            "cannot tell",
            "byte inventory of parameters, states and activations; the allocator held 64.0 GiB",
        ),
        (
            MFU,
            one_rank({}, of_job={"mfu": 0.41, "hfu": 0.50}),
            "pass",
            "MFU 41.0 %, recompute not counted, HFU 50.0 %; recompute takes 0 %",
        ),
        (
            MFU,
            one_rank({"recompute/recompute": 25}, of_job={"mfu": 0.28}),
            "fail",
            "MFU 28.0 %, recompute not counted; recompute takes 25.0 %",
        ),
        (MFU, one_rank({}), "cannot tell", "MFU is not known"),
        (
            ROOF,
            one_rank({}, roofline=[roof([], 80, headroom_ns=4 * MS)]),
            "pass",
            "spend 1.0 % of the step above their roof, which is known for 80.0 %",
        ),
        (ROOF, one_rank({}, roofline=[roof([], 80)]), "fail", "spend 40.0 % of the step above their roof"),
        (
            ROOF,
            one_rank({}, roofline=[roof([], 80)]),
            "fail",
            "of peak; no attention as separate matmuls, no norms written out, no matmul shapes off the tile",
        ),
        (ROOF, one_rank({}, roofline=[roof(["misaligned"], 20)]), "fail", "matmul shapes off the tile cost 10.0 %"),
        (ROOF, one_rank({}, roofline=[roof([], 10, headroom_ns=0)]), "cannot tell", "known for 10.0 % of kernel time"),
        (ROOF, one_rank({}), "cannot tell", "no roofline"),
        (CLOCK, one_rank({"host/sync": 2}), "pass", "the device is busy computing; host 2.0 %"),
        (
            CLOCK,
            one_rank({"host/sync": 20, "exposed_comm/allreduce": 10}, of_job=_TWO),
            "fail",
            "host is the clock to fix",
        ),
        (
            CLOCK,
            one_rank({"host/sync": 6, "exposed_comm/allreduce": 10}, of_job=_TWO),
            "fail",
            "exposed communication is the clock",
        ),
        (
            CLOCK,
            one_rank({"pipeline_bubble/drain": 22, "exposed_comm/allgather": 12, "host/sync": 6}, of_job=_TWO),
            "fail",
            "the pipeline's bubble is the clock to fix; host 6.0 %, exposed communication 12.0 %, kernels 60.0 %, "
            "the pipeline's bubble 22.0 %",
        ),
        (CLOCK, one_rank({"unexplained/queue_stalled": 62}), "cannot tell", "62.0 % of the step has no evidence"),
        (CLOCK, one_rank(_LAUNCH, of_file={"stacks": True}), "cannot tell", "stacks slow the host"),
        (
            OVERLAP,
            one_rank({"exposed_comm/allreduce": 2}, of_job=_TWO, collectives=[collective("allreduce", 20, 8, 0.1)]),
            "pass",
            "takes 2.0 % of the step; compute hides 90.0 %",
        ),
        (
            OVERLAP,
            one_rank({"exposed_comm/allreduce": 20}, of_job=_TWO, collectives=[collective("allreduce", 20, 8)]),
            "fail",
            "takes 20.0 % of the step; compute hides 0 %",
        ),
        (OVERLAP, one_rank({}), "pass", "one rank"),
        (OVERLAP, one_rank({}, of_job={"world_size": None}), "cannot tell", "no collective"),
        (
            PRECISION,
            one_rank({}, of_job=_PRICED),
            "pass",
            "slower than bf16 lose 0 % of the step; a control run is not in a trace",
        ),
        (PRECISION, one_rank({"kernels/precision": 40}, of_job=_PRICED), "fail", "lose 40.0 % of the step"),
        (PRECISION, one_rank({}), "cannot tell", "FLOPs"),
        (FAILURES, one_rank({}), "cannot tell", "no failure rate and no checkpoint interval"),
        (NORMS, one_rank({}, facts={"norms.per_step": 1.0}), "pass", "computed once a step"),
        (NORMS, one_rank({"kernels/optimizer": 2}, facts={"norms.per_step": 0.0}), "fail", "no gradient norm"),
        (NORMS, one_rank({}, facts={"norms.per_step": 0.0}), "cannot tell", "no optimizer update"),
        (NORMS, one_rank({}), "cannot tell", "do not show"),
        (ALLOCATOR, one_rank({}, facts=_HELD), "fail", "held 1.60 times what tensors used"),
        (ALLOCATOR, one_rank({}, facts=_HELD | {"allocator.reserved_bytes": 44 * 2.0**30}), "pass", "held 1.10 times"),
        (ALLOCATOR, one_rank({"host/allocator": 3}), "fail", "allocator calls cost 3.0 % of the step"),
        (ALLOCATOR, one_rank({}), "cannot tell", "no [memory] events"),
        (BATCH, one_rank({"host/launch_bound": 2}), "pass", "launching costs 2.0 % of the step"),
        (
            BATCH,
            one_rank(_LAUNCH, facts={"kernels.mean_ns": 6_000.0, "job.tokens_per_step": 256.0}),
            "fail",
            "launching costs 20.0 % of the step, the mean kernel takes 6.00 µs, 256 tokens a step",
        ),
        (BATCH, one_rank(_LAUNCH, of_file={"stacks": True}), "cannot tell", "but stacks slow the host"),
        (
            BATCH,
            with_leaf(one_rank(_LAUNCH), "host/launch_bound", detail={"profiler_inflation_ns": 18 * MS * STEPS}),
            "cannot tell",
            "up to 18.0 % may be the profiler's",
        ),
    ],
)
def test_a_check(number: int, report: Report, status: str, why: str) -> None:
    item = _items(report)[number]
    assert (item.status, why in item.why) == (status, True), item.why
