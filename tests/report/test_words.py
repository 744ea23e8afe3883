"""Verdicts, each beside the totals that it is drawn from; the expected sentences were written by hand."""

from __future__ import annotations

import msgspec
import pytest

from steptime.model import Alignment, Input, LeafTotal, RankSteps, Report, SliceTotal, Spread, Straggler
from steptime.report.words import counted, mfu_line, stragglers, verdict
from tests.report.reports import MS, job, nothing_measured, quality, report


def test_a_loader_that_is_the_largest_loss() -> None:
    the_job = job(
        {"kernels/matmul": 400 * MS, "host/data_loader": 240 * MS, "host/python": 60 * MS},
        step_time_ns=Spread(median=178_400_000, p10=1, p90=1),
        device="Tesla V100",
    )
    # 400 of 700 computing; 240 of 700 over four steps.
    assert verdict(report(the_job)) == (
        "Median step 178.4 ms on 1 × Tesla V100: GPU computing 57.1 %, "
        "the largest loss is host/data_loader, 34.3 % of the step (60.0 ms a step)."
    )


@pytest.mark.parametrize(
    ("leaf", "start", "loss"),
    [
        ("host/launch_bound", "Host-bound: median step 100.0 ms on ", "host/launch_bound, 70.0 % of the step"),
        ("exposed_comm/allreduce", "Communication-bound: median step ", "exposed_comm/allreduce, 70.0 % of the step"),
        ("pipeline_bubble/warmup", "Pipeline-bound: median step ", "pipeline_bubble/warmup, 70.0 % of the step"),
        ("stragglers/wait_for_rank", "Straggler-bound: median step ", "stragglers/wait_for_rank, 70.0 % of the step"),
    ],
)
def test_a_slice_larger_than_computing_is_the_bound(leaf: str, start: str, loss: str) -> None:
    text = verdict(report(job({"kernels/matmul": 120 * MS, leaf: 280 * MS})))
    assert text.startswith(start)
    assert f"GPU computing 30.0 %, the largest loss is {loss} (70.0 ms a step)." in text


def test_a_busy_device_is_the_bound() -> None:
    the_job = job({"kernels/matmul": 240 * MS, "kernels/optimizer": 150 * MS, "host/kernel_gap": 10 * MS}, device="X")
    assert verdict(report(the_job)) == (
        "GPU-bound: median step 100.0 ms on 1 × X, the GPU computes 97.5 % of it, "
        "the largest part is kernels/matmul, 60.0 % of the step (60.0 ms a step)."
    )


def test_a_busy_device_that_recomputes() -> None:
    the_job = job({"kernels/matmul": 300 * MS, "recompute/recompute": 100 * MS}, device="X")
    assert verdict(report(the_job)).endswith("(75.0 ms a step); 25.0 % is recompute.")


def test_idle_time_without_a_cause_is_not_given_one() -> None:
    leaves = {"kernels/matmul": 80 * MS, "unexplained/queue_stalled": 300 * MS, "host/kernel_gap": 20 * MS}
    assert verdict(report(job(dict(leaves), device="X"))) == (
        "Can't tell: 75.0 % of the step (75.0 ms a step) has no proven cause, most of it unexplained/queue_stalled: "
        "work was queued, the device did not start it; median step 100.0 ms on 1 × X, GPU computing 20.0 %; "
        "the largest named loss is host/kernel_gap, 5.0 % of the step (5.0 ms a step)."
    ).replace("(5.0 ms", "(5.00 ms")


def test_slow_launches_recorded_with_stacks_are_never_the_headline() -> None:
    leaves = {"kernels/matmul": 100 * MS, "host/launch_bound": 260 * MS, "host/data_loader": 40 * MS}
    stacks = [Input(path="a.json", rank=0, bytes=1, events=1, quality=quality(stacks=True))]
    text = verdict(report(job(dict(leaves), device="X"), inputs=stacks))
    assert text == (
        "Median step 100.0 ms on 1 × X: GPU computing 25.0 %, the largest other loss is host/data_loader, "
        "10.0 % of the step (10.0 ms a step). Can't tell whether host/launch_bound, 65.0 % of the step "
        "(65.0 ms a step), is real: stacks were recorded, which slows the host; "
        "record without stacks, or pass --unprofiled-step-ms."
    )


def test_slow_launches_are_the_headline_once_the_profiler_is_taken_out() -> None:
    leaves = {"kernels/matmul": 100 * MS, "host/launch_bound": 260 * MS, "host/profiler_overhead": 40 * MS}
    stacks = [Input(path="a.json", rank=0, bytes=1, events=1, quality=quality(stacks=True))]
    text = verdict(report(job(dict(leaves)), inputs=stacks))
    assert text.startswith("Host-bound: ")
    assert "the largest loss is host/launch_bound, 65.0 %" in text


def test_communication_that_may_be_a_wait_says_so() -> None:
    leaves: dict[str, int | None] = {"kernels/matmul": 200 * MS, "exposed_comm/allreduce": 200 * MS}
    apart = "these files can't tell the two apart."
    assert verdict(report(job(leaves | {"stragglers/wait_for_rank": None}))).endswith(apart)
    assert not verdict(report(job(leaves | {"stragglers/wait_for_rank": 4}))).endswith(apart)


def test_ranks_without_a_device() -> None:
    the_job = job({"kernels/matmul": 240 * MS, "host/data_loader": 160 * MS}, device=None)
    ranks = [RankSteps(rank=rank, host=None, device=None, steps=[]) for rank in (0, 1)]
    text = verdict(report(the_job, ranks=ranks))
    assert text.startswith("Median step 100.0 ms on 2 CPU ranks: CPU computing 60.0 %, the largest loss is host/data")


def test_a_device_without_a_name_is_not_given_one() -> None:
    assert " on 1 × unknown GPU: " in verdict(report(job({"kernels/matmul": 2, "host/gc": 2}, device=None)))


def test_one_window_has_no_average() -> None:
    the_job = job(
        {"kernels/matmul": 800 * MS, "host/python": 450 * MS},
        rank_steps=1,
        device="X",
        step_source="the whole recording (no step marks)",
    )
    assert verdict(report(the_job)) == (
        "One window of 1.25 s on 1 × X (no step marks, so no per-step average): GPU computing 64.0 %, "
        "the largest loss is host/python, 36.0 % of the window (450.0 ms)."
    )
    assert counted(report(the_job)) == "One window of 1 rank: the whole recording (no step marks)."


def test_the_largest_gain_outranks_the_largest_time() -> None:
    slices = [
        SliceTotal(
            id="kernels",
            ns=300 * MS,
            share=0.75,
            leaves=[LeafTotal(id="matmul", ns=300 * MS, share=0.75, recoverable_ns=8 * MS)],
        ),
        SliceTotal(
            id="exposed_comm",
            ns=60 * MS,
            share=0.15,
            leaves=[LeafTotal(id="allreduce", ns=60 * MS, share=0.15, recoverable_ns=20 * MS)],
        ),
        SliceTotal(id="host", ns=40 * MS, share=0.1, leaves=[LeafTotal(id="python", ns=40 * MS, share=0.1)]),
    ]
    the_job = job({}, device="X", slices=slices, total_ns=400 * MS, mfu=0.0)
    assert "the largest loss is host/python, 10.0 % of the step (10.0 ms a step)." in verdict(report(the_job))


def test_nothing_measured_is_said() -> None:
    assert verdict(nothing_measured()) == "No step could be measured in 0 files: see the warnings."


@pytest.mark.parametrize(
    ("changes", "warnings", "text"),
    [
        ({}, ["mfu is null: no shapes"], "MFU: can't tell. mfu is null: no shapes"),
        ({}, [], "MFU: can't tell (FLOPs or the device's peak unknown)."),
        (
            {
                "mfu": 0.412,
                "peak_flops": {"bf16": 989.4e12},
                "reference_dtype": "bf16",
                "hfu": 0.5,
                "mfu_by": {"palm": 0.4},
            },
            [],
            "MFU 41.2 % of 989.4 TFLOP/s dense bf16; HFU, which counts recompute, 50.0 %; palm 40.0 %.",
        ),
    ],
)
def test_mfu_or_why_not(changes: dict[str, object], warnings: list[str], text: str) -> None:
    shown: Report = report(job({"kernels/matmul": 5}, rank_steps=4, **changes), warnings=warnings)
    assert mfu_line(shown) == text


def _late(**more: object) -> Straggler:
    fields: dict[str, object] = {
        "kind": "straggler",
        "rank": 5,
        "ranks": [5],
        "host": "node1",
        "cause": "slower kernels",
        "leaf": "kernels/matmul",
        "steps": [11, 12, 13],
        "lost_ns": 9 * MS,
        "share": 0.06,
    }
    return msgspec.convert(fields | more, Straggler)


@pytest.mark.parametrize(
    ("unjudged", "error_ns", "late", "lines"),
    [
        (
            None,
            0,
            [],
            ["No straggler beyond what clocks and jitter explain (64 collective calls matched, on one clock)."],
        ),
        (
            "ranks are missing",
            4_200,
            [],
            ["Can't tell: ranks are missing (64 collective calls matched, clocks within 4.2 µs of each other)."],
        ),
        (
            None,
            0,
            [_late(through=[4])],
            # 9 ms over three steps.
            [
                "rank 5: slower kernels, through rank 4; costs each other rank 3.00 ms a step (6.0 %) in steps 11-13 "
                "(straggler).",
                "64 collective calls matched, on one clock.",
            ],
        ),
        (
            None,
            0,
            [_late(rank=None, ranks=[4, 5, 6, 7]), _late(kind="jitter", rank=None, host=None, ranks=[0, 3])],
            [
                "host node1 (ranks 4-7): slower kernels; costs each other rank 3.00 ms a step (6.0 %) in steps 11-13 "
                "(straggler).",
                "ranks 0, 3: slower kernels; costs each other rank 3.00 ms a step (6.0 %) in steps 11-13 (jitter).",
                "64 collective calls matched, on one clock.",
            ],
        ),
        (None, 0, [_late(recorded=False, steps=[7])], None),
    ],
)
def test_who_held_up_the_others(
    unjudged: str | None, error_ns: int, late: list[Straggler], lines: list[str] | None
) -> None:
    alignment = Alignment(matched=64, unmatched=0, refused=0, error_ns=error_ns, unjudged=unjudged)
    shown = stragglers(msgspec.structs.replace(report(job({})), alignment=alignment, stragglers=late))
    if lines is None:
        assert shown[0].startswith("rank 5 (its file is not there): ")
        assert " in step 7 (" in shown[0]
    else:
        assert shown == lines


def test_one_rank_is_compared_with_nobody() -> None:
    assert stragglers(report(job({}))) == []
