from __future__ import annotations

from steptime.model import Input, OtherStep, RankSteps, StepTime
from steptime.report.groups import other_steps, qualities, rank_lines, ranks_text, warnings, worth_a_line
from tests.report.reports import job, quality, ranks_64, report


def _input(rank: int | None, *texts: str, **changes: object) -> Input:
    return Input(
        path=f"/d/r{rank}.json", rank=rank, bytes=1_000, events=10, quality=quality(**changes), warnings=[*texts]
    )


def test_a_warning_of_several_ranks_is_said_once() -> None:
    shown = report(
        job({"kernels/matmul": 1}),
        inputs=[_input(0, "late"), _input(1, "late", "odd"), _input(3, "late")],
        warnings=["about the job", "late", "rank 7: odd", "about the job"],
    )
    assert warnings(shown) == ["about the job", "rank 0-1, 3: late", "rank 1, 7: odd"]


def test_the_warning_printed_elsewhere_is_left_out() -> None:
    shown = report(job({"kernels/matmul": 1}), warnings=["mfu is null", "other"])
    assert warnings(shown, "mfu is null") == ["other"]


def test_a_file_without_a_rank() -> None:
    assert ranks_text([None, 2, 1]) == "rank 1-2 and no rank"
    alone = report(job({"kernels/matmul": 1}), inputs=[_input(None, "odd")])
    assert warnings(alone) == ["odd"]


def test_files_that_can_tell_the_same_share_a_line() -> None:
    lines = qualities(
        [
            _input(0, launches_without_kernels=3),
            _input(1, launches_without_kernels=17),
            _input(2, stacks=True, partial_first_step=True, dropped={"negative duration": 2}, clipped={"counter": 1}),
        ]
    )
    assert lines == [
        "rank 0-1: 2 files, 2.00 kB, 20 events; kineto, clock unix, shapes, no stacks, "
        "3 to 17 launches without kernels",
        "rank 2: r2.json, 1.00 kB, 10 events; kineto, clock unix, shapes, stacks, first step partial, "
        "2 negative duration dropped, 1 counter clipped",
    ]


def test_a_file_whose_quality_is_not_known() -> None:
    assert qualities([Input(path="a.json", rank=0, bytes=5, events=0)]) == [
        "rank 0: a.json, 5 B, 0 events; quality not recorded"
    ]


def test_other_steps_cost_and_period() -> None:
    lines = other_steps(
        [
            *(
                OtherStep(rank=rank, step=step, dur_ns=2_000_000_000, reason="evaluation")
                for rank in (0, 1)
                for step in (100, 200, 300)
            ),
            OtherStep(rank=0, step=50, dur_ns=3_000_000_000, reason="checkpoint"),
            *(OtherStep(rank=0, step=step, dur_ns=1_000, reason="odd") for step in (1, 2, 5)),
        ]
    )
    # 2 s every 100 steps are 20 ms a step.
    assert lines == [
        "evaluation: 3 steps (100, 200, 300) on rank 0-1, 2.00 s each, every 100 steps: 20.0 ms a step",
        "checkpoint: 1 step (50) on rank 0, 3.00 s each, period unknown (seen once)",
        "odd: 3 steps (1-2, 5) on rank 0, 1.0 µs each, every 1 to 3 steps",
    ]


def _step(number: int, dur_ns: int, *, edge: bool = False, class_: str = "train") -> StepTime:
    return StepTime(
        step=number, class_=class_, edge=edge, start_ns=0, dur_ns=dur_ns, leaves_ns={"kernels/matmul": dur_ns}
    )


def test_a_rank_is_shown_by_the_steps_that_count() -> None:
    steps = [_step(4, 900), _step(5, 10), _step(6, 30), _step(7, 700, edge=True), _step(8, 800, class_="other")]
    shown = report(
        job({"kernels/matmul": 40}, steps=[5, 6, 7, 8]),
        ranks=[
            RankSteps(rank=3, host=None, device=1, steps=steps),
            RankSteps(rank=3, host=None, device=0, steps=steps),
        ],
    )
    lines = rank_lines(shown)
    assert [(line.name, line.median_ns, line.total_ns) for line in lines] == [
        ("rank 3 gpu 0", 20, 40),
        ("rank 3 gpu 1", 20, 40),
    ]


def test_an_edge_step_counts_where_there_is_no_other() -> None:
    shown = report(
        job({"kernels/matmul": 40}, steps=[7]),
        ranks=[RankSteps(rank=0, host=None, device=0, steps=[_step(7, 700, edge=True)])],
    )
    assert [line.median_ns for line in rank_lines(shown)] == [700]


def test_the_rank_unlike_the_others_is_kept_and_one_stands_for_the_rest() -> None:
    lines, note = worth_a_line(rank_lines(ranks_64()), 16)
    assert [line.name for line in lines] == ["rank 37", "rank 63"]
    assert note == "62 more ranks like rank 63."


def test_more_unlike_ranks_than_lines_are_counted() -> None:
    ranks = [RankSteps(rank=number, host=None, device=0, steps=[_step(5, 1_000 + 100 * number)]) for number in range(9)]
    lines, note = worth_a_line(rank_lines(report(job({"kernels/matmul": 1}, steps=[5]), ranks=ranks)), 4)
    assert [line.name for line in lines] == ["rank 0", "rank 1", "rank 4", "rank 8"]
    assert note == "5 more ranks not shown, closer to the median than these."
