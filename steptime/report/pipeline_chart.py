"""One step of the pipeline: stages down, time across, a bar for each pass of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from steptime.model import PipelineActions
from steptime.report import units
from steptime.report.charts import Spec, finished, time_axis, zoom
from steptime.report.colours import OTHER

#: Bars that a browser draws without delay, and rows that a screen shows at once.
MAX_BARS, MAX_STAGES = 3_000, 48
#: Neighbours differ in every kind of colour vision; micro-batches beyond the last begin again.
HUES = ("#3f7fc1", "#e07b00", "#1f9e77", "#c9407f", "#8a6d3b", "#7a5cc4")
FORWARD_DEPTH, BACKWARD_DEPTH = 0.3, 0.78
_NUMBER_PIXELS = 7
_PIXELS, _MOST_PIXELS, _LEAST_PIXELS = 560, 34, 12
_MS = 1_000_000


def pipeline(actions: PipelineActions, most: int = MAX_BARS) -> tuple[Spec | None, str]:
    """The step in time order, and what the picture leaves out; None where the report holds no pass.

    Where there are more than `most` passes whole stages are left out, evenly, but neither the first nor the last.
    """
    stages, drawn, note = _worth_drawing(actions, most)
    end_ms = max((actions.start_ns[at] + actions.dur_ns[at] for at in drawn), default=0) / _MS
    if end_ms <= 0:
        return None, note
    labels = [_label(actions, stage) for stage in stages]
    pixels = max(_LEAST_PIXELS, min(_MOST_PIXELS, _PIXELS // len(stages)))
    y = alt.Y(
        "stage:N",
        sort=None,
        scale=alt.Scale(domain=labels, paddingInner=0.16, paddingOuter=0.08),
        axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=110),
    )
    x = time_axis("ms since the first forward pass", end_ms)
    idle = (
        alt.Chart(alt.InlineData(values=[{"stage": label, "s": 0, "e": end_ms} for label in labels]))
        .mark_rect(clip=True, fill=OTHER, fillOpacity=0.14)
        .encode(x=x, x2="e:Q", y=y)
    )
    passes = _passes(actions, stages, labels, drawn).encode(y=y)
    # A number stands only in a bar that has room for it, at the width and zoom of the moment.
    room = f"scale('x', datum.e) - scale('x', datum.s) > {_NUMBER_PIXELS} * length(datum.text) + 4"
    numbers = passes.mark_text(fontSize=10.5, clip=True).encode(
        x="middle:Q", text="text:N", opacity=alt.condition(room, alt.value(1), alt.value(0))
    )
    chart = alt.layer(idle, _bars(passes, x), numbers)
    return finished(chart.properties(width="container", height=pixels * len(stages))), note


def _passes(actions: PipelineActions, stages: Sequence[int], labels: Sequence[str], drawn: Sequence[int]) -> alt.Chart:
    """The passes `drawn` in columns, which take a third of the room of rows, with what they look like and say."""
    data: dict[str, Sequence[float]] = {
        "s": [actions.start_ns[at] / _MS for at in drawn],
        "e": [(actions.start_ns[at] + actions.dur_ns[at]) / _MS for at in drawn],
        "g": [actions.stage[at] for at in drawn],
        "m": [actions.micro_batch[at] for at in drawn],
        "c": [actions.chunk[at] for at in drawn],
        "b": [int(actions.backward[at]) for at in drawn],
    }
    rows = [{"g": stage, "stage": label} for stage, label in zip(stages, labels, strict=True)]
    hue = " : ".join(f"datum.m % {len(HUES)} === {at} ? '{hue}'" for at, hue in enumerate(HUES))
    text = "datum.m + '.' + datum.c" if max(data["c"]) > 0 else "'' + datum.m"
    passes: alt.Chart = (
        alt.Chart(alt.InlineData(values=[data]))
        .transform_flatten(list(data))
        .transform_lookup("g", alt.LookupData(alt.InlineData(values=rows), key="g", fields=["stage"]))
        .transform_calculate(
            colour=f"datum.m < 0 ? '{OTHER}' : {hue} : '{OTHER}'",
            what="datum.b ? 'backward' : 'forward'",
            which="datum.m < 0 ? 'not known' : '' + datum.m",
            text=f"datum.m < 0 ? '' : {text}",
            long="datum.e - datum.s",
            middle="(datum.s + datum.e) / 2",
        )
    )
    return passes


def _bars(passes: alt.Chart, x: alt.X) -> alt.Chart:
    drawn: alt.Chart = (
        passes.mark_rect(clip=True, stroke="currentColor", strokeOpacity=0.45, strokeWidth=0.5)
        .encode(
            x=x,
            x2="e:Q",
            fill=alt.Fill("colour:N", scale=None),
            fillOpacity=alt.condition("datum.b === 1", alt.value(BACKWARD_DEPTH), alt.value(FORWARD_DEPTH)),
            tooltip=[
                alt.Tooltip("which:N", title="micro-batch"),
                alt.Tooltip("what:N", title="pass"),
                alt.Tooltip("c:Q", title="chunk"),
                alt.Tooltip("stage:N", title="stage"),
                alt.Tooltip("long:Q", title="ms", format=",.3~f"),
                alt.Tooltip("s:Q", title="from ms", format=",.3~f"),
            ],
        )
        .add_params(zoom())
    )
    return drawn


def _label(actions: PipelineActions, stage: int) -> str:
    rank = f" · rank {actions.ranks[stage]}" if stage < len(actions.ranks) else ""
    return f"stage {stage}{rank}"


def _worth_drawing(actions: PipelineActions, most: int) -> tuple[list[int], list[int], str]:
    """The stages to draw, the places of their passes, and a sentence about what is left out."""
    by_stage: dict[int, list[int]] = {}
    for at, stage in enumerate(actions.stage):
        by_stage.setdefault(stage, []).append(at)
    everyone = sorted(by_stage)
    largest = max((len(of) for of in by_stage.values()), default=1)
    kept = everyone if len(actions.stage) <= most else _evenly(everyone, max(most // largest, 1))
    kept = _evenly(kept, MAX_STAGES)
    places = sorted((at for stage in kept for at in by_stage[stage]), key=lambda at: actions.start_ns[at])
    if kept == everyone and len(places) <= most:
        return kept, places, ""
    note = f"{units.count(len(kept))} of {units.plural(len(everyone), 'stage')} shown"
    if len(places) > most:
        places = places[:most]
        note += f", with their first {units.plural(most, 'pass', 'passes')}"
    return kept, places, f"{note}."


def _evenly(given: Sequence[int], most: int) -> list[int]:
    """At most `most` of the given, the first and (if there is room for two) the last among them."""
    if len(given) <= most:
        return list(given)
    return [given[at * (len(given) - 1) // max(most - 1, 1)] for at in range(most)]
