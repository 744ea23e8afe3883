"""What is said and drawn of a pipeline, against schedules that were laid out and worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from steptime.model import Report
from steptime.model.ranks import Pipeline, PipelineActions
from steptime.report import markdown, terminal
from steptime.report.pipeline_chart import HUES, MAX_STAGES
from steptime.report.pipeline_chart import pipeline as chart
from steptime.report.pipeline_words import filled_shares, pipeline, stages_table
from tests.report.pipelines import interleaved, one_f_one_b, piped, uneven, unsplit
from tests.report.reports import HOSTILE, MS, loader_bound
from tests.report.test_rank_charts import values


@pytest.mark.parametrize("build", [one_f_one_b, uneven, interleaved])
def test_the_schedules_laid_out_by_hand_are_as_long_and_as_empty_as_worked_out(build: Callable[[], Pipeline]) -> None:
    made = build()
    actions = made.actions
    assert actions is not None
    assert made.phase_ns == max(start + dur for start, dur in zip(actions.start_ns, actions.dur_ns, strict=True))
    empty = 1 - sum(actions.dur_ns) / (made.phase_ns * len(made.stages))
    assert made.bubble_share == pytest.approx(empty)


def test_what_is_said_of_even_stages() -> None:
    assert pipeline(piped(one_f_one_b())) == [
        "4 stages of 2 ranks; 8 micro-batches a step, in the order of 1F1B.",
        "Bubble: 27.3 % of the pipelined phase (mean 33.0 ms) was spent waiting; this order with equal stages would "
        "give 27.3 %, the closed form (4-1)/(8+4-1) gives 27.3 %.",
    ]


def test_what_is_said_of_uneven_stages() -> None:
    assert pipeline(piped(uneven()))[1:] == [
        "Bubble: 45.5 % of the pipelined phase (mean 55.0 ms) was spent waiting; this order with equal stages would "
        "give 27.3 %, the closed form (4-1)/(8+4-1) gives 27.3 %.",
        "Stage 2 (ranks 4-5) computes longest: 6.00 ms a micro-batch, forward and backward, 2.00 times the mean of the "
        "other stages.",
    ]


def test_what_is_said_of_an_interleaved_schedule() -> None:
    assert pipeline(piped(interleaved())) == [
        "2 stages of 1 rank, 2 chunks of the model on each; 4 micro-batches a step, in the order of interleaved 1F1B.",
        "Bubble: 11.1 % of the pipelined phase (mean 27.0 ms) was spent waiting; this order with equal stages would "
        "give 11.1 %, the closed form (2-1)/(2×4+2-1) gives 11.1 %.",
    ]


def test_of_two_stages_one_is_the_other() -> None:
    two = msgspec.structs.replace(interleaved(), backward_ns=[4 * MS, 7 * MS])
    assert pipeline(piped(two))[2] == (
        "Stage 1 (rank 1) computes longest: 9.00 ms a micro-batch, forward and backward, 1.50 times the other stage."
    )


def test_what_cannot_be_told_is_said_with_the_reason() -> None:
    assert pipeline(piped(unsplit())) == [
        "2 stages of 2 to 3 ranks; 1 micro-batch a step, in an order of no known schedule.",
        "Bubble: can't tell how much of the pipelined phase was spent waiting.",
        "Can't tell how the bubble splits: rank 5, whose file is not there, is in the second stage.",
    ]


def test_a_job_without_a_pipeline_has_no_such_section() -> None:
    assert pipeline(loader_bound()) == []
    assert "Pipeline" not in terminal.render(loader_bound(), width=100)
    assert "Pipeline" not in markdown.render(loader_bound())


def test_terminal_and_markdown_say_it_in_a_section_of_their_own() -> None:
    shown = piped(uneven())
    text = terminal.render(shown, width=100)
    assert "\nPipeline\n- 4 stages of 2 ranks; 8 micro-batches a step, in the order of 1F1B.\n- Bubble: 45.5 %" in text
    page = markdown.render(shown)
    assert "\n**Pipeline**\n\n- 4 stages of 2 ranks; 8 micro-batches a step, in the order of 1F1B.\n" in page


def test_the_stages_side_by_side() -> None:
    table = stages_table(piped(uneven()), 40)
    assert table is not None
    assert table.head == ["stage", "forward", "backward", "against mean", "filled", "ranks"]
    # The mean of 3, 3, 6 and 3 ms is 3.75; 24 and 48 of 55 ms are filled.
    assert table.rows[1] == ["1", "1.00 ms", "2.00 ms", "−20.0 %", "43.6 %", "2-3"]
    assert table.rows[2] == ["2", "2.00 ms", "4.00 ms", "+60.0 %", "87.3 %", "4-5"]
    unknown = stages_table(piped(unsplit()), 1)
    assert unknown is not None
    assert (unknown.rows, unknown.more) == ([["0", "?", "?", "?", "0-2"]], 1)


def test_passes_that_overlap_fill_their_time_once() -> None:
    actions = PipelineActions(
        step=1,
        ranks=[0],
        stage=[0, 0, 0],
        chunk=[0, 0, 0],
        micro_batch=[0, 1, 2],
        backward=[False] * 3,
        start_ns=[0, 10, 60],
        dur_ns=[40, 20, 40],
    )
    assert filled_shares(actions) == {0: 0.8}


def test_each_pass_is_a_bar_on_its_stage() -> None:
    actions = one_f_one_b().actions
    assert actions is not None
    spec, note = chart(actions)
    assert note == ""
    assert spec is not None
    bars = next(row for row in values(spec) if "m" in row)
    assert len(bars["s"]) == 4 * 8 * 2
    drawn = set(zip(bars["g"], bars["m"], bars["b"], bars["s"], bars["e"], strict=True))
    # The last stage runs the first micro-batch forward in the fourth ms, and backward in the two after it.
    assert {(3, 0, 0, 3, 4), (3, 0, 1, 4, 6), (0, 7, 1, 31, 33)} <= drawn
    shown = [row["stage"] for row in values(spec) if set(row) == {"g", "stage"}]
    assert shown == ["stage 0 · rank 0", "stage 1 · rank 2", "stage 2 · rank 4", "stage 3 · rank 6"]


def _long(stages: int, micro_batches: int) -> PipelineActions:
    """One pass each, in a diagonal."""
    every = [(stage, at) for stage in range(stages) for at in range(micro_batches)]
    return PipelineActions(
        step=1,
        ranks=list(range(stages)),
        stage=[stage for stage, _ in every],
        chunk=[0] * len(every),
        micro_batch=[at for _, at in every],
        backward=[False] * len(every),
        start_ns=[(stage + at) * MS for stage, at in every],
        dur_ns=[MS] * len(every),
    )


@pytest.mark.parametrize(
    ("stages", "micro_batches", "bars", "note"),
    [
        (16, 128, 16 * 128, ""),
        (16, 1_000, 3_000, "3 of 16 stages shown."),
        (2, 9_000, 3_000, "1 of 2 stages shown, with their first 3,000 passes."),
        (100, 2, 96, f"{MAX_STAGES} of 100 stages shown."),
    ],
)
def test_a_long_pipeline_is_drawn_in_part_and_it_is_said(stages: int, micro_batches: int, bars: int, note: str) -> None:
    spec, said = chart(_long(stages, micro_batches))
    assert said == note
    drawn = next(row for row in values(spec) if "m" in row)
    assert len(drawn["s"]) == bars
    assert 0 in drawn["g"]
    if stages > 2:
        assert stages - 1 in drawn["g"]
    assert spec is not None
    assert spec["height"] <= 600


def test_nothing_to_draw() -> None:
    assert chart(_long(0, 0)) == (None, "")


def test_hostile_text_in_a_pipeline_is_printed_as_text() -> None:
    ugly = "".join(HOSTILE)
    shown: Report = piped(msgspec.structs.replace(unsplit(), schedule=ugly, why=ugly))
    for line in pipeline(shown):
        assert line.isprintable()
        assert len(line) < 500


def test_neighbouring_micro_batches_differ_in_colour() -> None:
    assert len(set(HUES)) == len(HUES) >= 6
