"""The charts of a run: its time as a strip with every interruption, what was lost, and causes as bars."""

from __future__ import annotations

from typing import Any

import altair as alt

from steptime.model.goodput import GoodputReport
from steptime.report import units
from steptime.report.charts import Spec, finished, time_axis, zoom
from steptime.report.colours import PARTS as STEP_PARTS
from steptime.report.ledger import PRODUCTIVE
from steptime.report.names import brief

#: Colours of the parts of a run, from the palette of the step, whose colours stay apart for every eye.
COLOURS = {
    "productive": STEP_PARTS[PRODUCTIVE],
    "detection": STEP_PARTS["pipeline_bubble"],
    "restart": STEP_PARTS["host"],
    "unsplit": STEP_PARTS["stragglers"],
    "planned": STEP_PARTS["recompute"],
    "unknown": STEP_PARTS["unexplained"],
    "checkpoint": STEP_PARTS["kernels"],
    "lost_work": STEP_PARTS["exposed_comm"],
}
TITLES = {"productive": "training"}
#: Groups of causes, the same palette.
_GROUPS = {
    "GPU": STEP_PARTS["exposed_comm"],
    "host": STEP_PARTS["host"],
    "network": STEP_PARTS["recompute"],
    "software": STEP_PARTS["pipeline_bubble"],
    "scheduler": STEP_PARTS["kernels"],
    "training": STEP_PARTS["stragglers"],
    "planned": STEP_PARTS[PRODUCTIVE],
    "unknown": STEP_PARTS["unexplained"],
}
_MOST_SEGMENTS, _MOST_TICKS, _MOST_CAUSES = 5_000, 3_000, 15
#: Segments that can be told apart at the width of a page.
_SEEN = 600


def timeline(report: GoodputReport) -> tuple[Spec | None, int]:
    """The run in time order, a tick for each interruption above it; and how many short segments were left out."""
    columns = report.segments
    length = len(columns.start_ns)
    if not length or report.total_ns is None:
        return None, 0
    longest = sorted(range(length), key=lambda at: (-columns.dur_ns[at], at))[:_MOST_SEGMENTS]
    longest.sort()
    unit, name = _unit(report.total_ns)
    titles = {part.id: part.title for part in report.parts} | TITLES
    segments = [
        {
            "s": columns.start_ns[at] / unit,
            "e": (columns.start_ns[at] + columns.dur_ns[at]) / unit,
            "part": titles[columns.parts[columns.part[at]]],
            "colour": COLOURS[columns.parts[columns.part[at]]],
            "long": units.span(columns.dur_ns[at] / 1e9),
        }
        for at in longest
    ]
    begin = report.start_ns or 0
    ticks = [
        {
            "s": max(one.time_ns - begin, 0) / unit,
            "cause": brief(one.title, 60),
            "host": brief(one.host or "not told", 40),
            "when": units.moment(one.time_ns) if report.dated else units.span((one.time_ns - begin) / 1e9),
        }
        for one in report.interruptions[:_MOST_TICKS]
    ]
    x = time_axis(f"{name} since the run began", report.total_ns / unit)
    strip = (
        alt.Chart(alt.InlineData(values=segments))
        .mark_rect(clip=True)
        .encode(
            x=x,
            x2="e:Q",
            y=alt.value(26),
            y2=alt.value(96),
            fill=alt.Fill("colour:N", scale=None),
            tooltip=[alt.Tooltip("part:N", title="what"), alt.Tooltip("long:N", title="for")],
        )
        .add_params(zoom())
    )
    marks = (
        alt.Chart(alt.InlineData(values=ticks))
        .mark_tick(clip=True, color="currentColor", thickness=1.6, orient="vertical", height=16)
        .encode(
            x=x,
            y=alt.value(12),
            tooltip=[
                alt.Tooltip("cause:N", title="interrupted by"),
                alt.Tooltip("host:N", title="host"),
                alt.Tooltip("when:N", title="at"),
            ],
        )
    )
    layers: list[alt.Chart] = [strip, marks] if ticks else [strip]
    return finished(alt.layer(*layers).properties(width="container", height=100)), columns.dropped + length - len(
        longest
    )


def dense(report: GoodputReport) -> bool:
    """Whether the run has more segments than can be seen side by side."""
    return len(report.segments.start_ns) + report.segments.dropped > _SEEN


def profile(report: GoodputReport) -> Spec | None:
    """What each stretch of the run went to, as stacked bars that fill the height."""
    found = report.profile
    if found is None or report.total_ns is None:
        return None
    unit, name = _unit(report.total_ns)
    titles = {part.id: part.title for part in report.parts} | TITLES
    order = [part for part in COLOURS if part in found.parts]
    stretches = len(found.ns[0])
    rows = []
    for stretch in range(stretches):
        begin, end = stretch * found.stretch_ns, min((stretch + 1) * found.stretch_ns, report.total_ns)
        low = 0.0
        for part in order:
            ns = found.ns[found.parts.index(part)][stretch]
            if ns:
                high = low + 100 * ns / (end - begin)
                row = {"s": begin / unit, "e": end / unit, "low": low, "high": high}
                said = f"{units.share(ns / (end - begin))} of {units.span((end - begin) / 1e9)}"
                rows.append(row | {"part": titles[part], "colour": COLOURS[part], "much": said})
                low = high
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_rect()
        .encode(
            x=time_axis(f"{name} since the run began", report.total_ns / unit),
            x2="e:Q",
            y=alt.Y(
                "low:Q",
                scale=alt.Scale(domain=[0, 100], nice=False),
                axis=alt.Axis(title="% of the time", tickCount=5),
            ),
            y2="high:Q",
            fill=alt.Fill("colour:N", scale=None),
            tooltip=[alt.Tooltip("part:N", title="what"), alt.Tooltip("much:N", title="how much")],
        )
    )
    return finished(chart.properties(width="container", height=190))


def _unit(total_ns: int) -> tuple[float, str]:
    for ns, name in ((86_400e9, "days"), (3600e9, "hours"), (60e9, "minutes")):
        if total_ns >= 2 * ns:
            return ns, name
    return 1e9, "seconds"


def lost(report: GoodputReport) -> Spec | None:
    """What of the time did not train, a bar for each part."""
    parts = [part for part in report.parts if part.ns > 0 and part.share is not None]
    if not parts:
        return None
    rows = [
        {
            "title": part.title,
            "share": (part.share or 0) * 100,
            "text": f"{units.share(part.share or 0)} · {units.span(part.ns / 1e9)}",
            "colour": COLOURS[part.id],
        }
        for part in sorted(parts, key=lambda part: -part.ns)
    ]
    return _bars(rows, "share", "% of the run's time")


def causes(report: GoodputReport) -> Spec | None:
    """Interruptions by cause, a bar for each of the most frequent ones."""
    if not report.causes:
        return None
    rows = [
        {
            "title": brief(one.title, 60) + (" (planned)" if one.planned else ""),
            "count": one.count,
            "text": f"{one.count:,}" + (f" · {units.share(one.share)}" if one.share is not None else ""),
            "colour": _GROUPS.get(one.group, _GROUPS["unknown"]),
        }
        for one in report.causes[:_MOST_CAUSES]
    ]
    return _bars(rows, "count", "interruptions")


def cause_legend(report: GoodputReport) -> list[tuple[str, str]]:
    """The groups that the bars of causes stand for."""
    shown = {one.group for one in report.causes[:_MOST_CAUSES]}
    return [(name, colour) for name, colour in _GROUPS.items() if name in shown]


def _bars(rows: list[dict[str, Any]], column: str, title: str) -> Spec:
    """Bars under their names, so that long names have room on a phone."""
    values = [row | {"place": place} for place, row in enumerate(rows)]
    base = alt.Chart(alt.InlineData(values=values)).encode(y=alt.Y("place:O", axis=None))
    most = max(row[column] for row in rows)
    scale = alt.Scale(domain=[0, most * 1.02], nice=False)
    bars = base.mark_bar(size=13, yOffset=9).encode(
        x=alt.X(f"{column}:Q", scale=scale, axis=alt.Axis(title=title, tickCount=5, grid=True)),
        color=alt.Color("colour:N", scale=None),
        tooltip=[alt.Tooltip("title:N", title="what"), alt.Tooltip("text:N", title="how much")],
    )
    left = base.mark_text(align="left", baseline="middle", yOffset=-8, fontSize=12.5, fontWeight=600).encode(
        x=alt.datum(0, scale=scale), text="title:N"
    )
    right = base.mark_text(align="right", baseline="middle", yOffset=-8, fontSize=12.5).encode(
        x=alt.datum(most * 1.02, scale=scale), text="text:N"
    )
    return finished(alt.layer(bars, left, right).properties(width="container", height=42 * len(values)))
