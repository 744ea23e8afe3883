"""The charts of the HTML report as Vega-Lite specifications, drawn with Altair from what the report holds.

Each function returns a specification ready for JSON, or None where there is nothing to draw: the page then says why.
Text, axes and grids take the colour of the page around them (``currentColor``), so one drawing serves light, dark and
print. Names from traces stand in the data, never in an expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from steptime.model import Job, StepTimeline
from steptime.report import units
from steptime.report.colours import OTHER, PATH, leaf_colour, part_colour
from steptime.report.ledger import PRODUCTIVE, WHOLE, Row
from steptime.report.names import shorten_all

Spec = dict[str, Any]

#: The name of the selection that holds the visible part of a timeline, which the page's buttons move.
ZOOM = "zoom"
#: What the fall ends on, by the row and whether MFU is unknown: short enough to stand beside its figure on a phone.
_REST = {
    (PRODUCTIVE, False): "= MFU, useful work",
    (PRODUCTIVE, True): "= useful work",
    ("kernels", False): "= kernels",
    ("kernels", True): "= kernels, useful work in them",
}
_NAME_WIDTH = 110
_MS = 1_000_000
_FONT = "system-ui, sans-serif"


class OnPath(NamedTuple):
    """A stretch of the path in the picture of a step: times count from that step's start."""

    start_ns: int
    end_ns: int
    leaf: str
    what: str


def waterfall(rows: Sequence[Row], job: Job) -> Spec | None:
    """From the whole down to what is left: the parts of the step, each beginning where the one before ended."""
    parts = [row for row in rows if not row.is_leaf and (row.ns is None or row.ns > 0)]
    if job.total_ns <= 0 or not parts:
        return None
    values = _fall(parts, job)
    base = alt.Chart(alt.InlineData(values=values)).encode(y=alt.Y("place:O", axis=None))
    scale = alt.Scale(domain=[0, 100], nice=False)
    axis = alt.Axis(title="points of 100", tickCount=5, grid=True)
    fill = alt.Color("colour:N", scale=None)
    tip = [alt.Tooltip("title:N", title="part"), alt.Tooltip("text:N", title="points")]
    bars = base.mark_bar(size=13, yOffset=9, opacity=0.38).encode(
        x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", color=fill, tooltip=tip
    )
    gains = base.mark_bar(size=13, yOffset=9).encode(
        x=alt.X("solid:Q", scale=scale), x2="high:Q", color=fill, tooltip=tip
    )
    left = base.mark_text(align="left", baseline="middle", yOffset=-8, fontSize=12.5, fontWeight=600).encode(
        x=alt.datum(0, scale=scale), text="title:N"
    )
    right = base.mark_text(align="right", baseline="middle", yOffset=-8, fontSize=12.5).encode(
        x=alt.datum(100, scale=scale), text="text:N"
    )
    return finished(alt.layer(bars, gains, left, right).properties(width="container", height=42 * len(values)))


def _fall(parts: Sequence[Row], job: Job) -> list[dict[str, Any]]:
    """A bar for the whole and one for each part; what the fall ends on comes last.

    That is useful work, or without FLOPs the kernels, of which useful work is a part.
    """
    rest = [row for row in parts if row.key in (PRODUCTIVE, "kernels")][:1]
    useful = any(row.key == PRODUCTIVE for row in rest)
    bars: list[dict[str, Any]] = [
        {
            "title": "100 % of the step at peak" if useful else "100 % of the step",
            "text": "100",
            "low": 0,
            "high": 100,
            "solid": 0,
            "colour": OTHER,
        }
    ]
    top = WHOLE
    for row in [*(row for row in parts if row not in rest), *rest]:
        low = top - row.tenths
        mean = units.time((row.ns or 0) / max(job.rank_steps, 1))
        points = f"{row.points} %" if row in rest else f"−{row.points}"
        bars.append(
            {
                "title": _REST[row.key, job.mfu is None] if row in rest else row.title,
                "text": "can't tell" if row.ns is None else f"{points} · {mean}",
                "low": low / 10,
                "high": top / 10,
                "solid": (top - _gain_tenths(row)) / 10,
                "colour": part_colour(row.key),
            }
        )
        top = low
    return [bar | {"place": place} for place, bar in enumerate(bars)]


def _gain_tenths(row: Row) -> float:
    """How much of a row's bar is solid: what can be gained, all of it where that is not known."""
    if row.recoverable_ns is None or not row.ns:
        return row.tenths
    return row.tenths * row.recoverable_ns / row.ns


def timeline(drawn: StepTimeline, most: int, on_path: Sequence[OnPath] = ()) -> tuple[Spec | None, int]:
    """One step in time order: a row for what owned the device, and one for each stream; and how many were left out.

    on_path: where the critical path lies on this rank, a row of its own above them, not counted.

    At most `most` segments are drawn, the longest; the second value counts the others and those the report lacks.
    """
    length = len(drawn.start_ns)
    longest = sorted(range(length), key=lambda at: (-drawn.segment_ns[at], at))[:most]
    if not longest:
        return None, drawn.dropped + length
    longest.sort(key=lambda at: (drawn.track[at], drawn.start_ns[at]))
    used = sorted({drawn.name[at] for at in longest})
    shown = shorten_all((drawn.names[name] for name in used), _NAME_WIDTH)
    tracks = _row_names(["critical path"] * bool(on_path) + drawn.tracks)
    own = tracks[bool(on_path) :]
    # In columns, which take a third of the room of rows.
    data = alt.InlineData(values=[_columns(drawn, longest)])
    names = alt.InlineData(values=[{"n": name, "what": shown[drawn.names[name]]} for name in used])
    leaves = shorten_all(drawn.leaves, 60)
    keys = alt.InlineData(
        values=[{"k": at, "leaf": leaves[leaf], "colour": leaf_colour(leaf)} for at, leaf in enumerate(drawn.leaves)]
    )
    rows = alt.InlineData(values=[{"t": at, "row": row} for at, row in enumerate(own)])
    x = time_axis("ms since the step began", drawn.dur_ns / _MS)
    y = alt.Y(
        "row:N",
        sort=None,
        # As the domain of the scale names are data; as a sort order they would become an expression.
        scale=alt.Scale(domain=tracks, paddingInner=0.22, paddingOuter=0.1),
        axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=84),
    )
    pieces: alt.Chart = (
        alt.Chart(data)
        .transform_flatten(list(_COLUMNS))
        .transform_lookup("n", alt.LookupData(data=names, key="n", fields=["what"]))
        .transform_lookup("k", alt.LookupData(data=keys, key="k", fields=["leaf", "colour"]))
        .transform_lookup("t", alt.LookupData(data=rows, key="t", fields=["row"]))
        .mark_rect(clip=True, stroke="currentColor", strokeOpacity=0.15, strokeWidth=0.4)
        .encode(
            x=x,
            x2="e:Q",
            y=y,
            fill=alt.Fill("colour:N", scale=None),
            tooltip=[
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("leaf:N", title="leaf"),
                alt.Tooltip("i:Q", title="µs", format=",.3f"),
                alt.Tooltip("s:Q", title="from ms", format=",.6f"),
                alt.Tooltip("row:N", title="row"),
            ],
        )
        .add_params(zoom())
    )
    chart: alt.Chart | alt.LayerChart | alt.FacetChart = pieces
    if on_path:
        longest_first = sorted(on_path, key=lambda one: one.start_ns - one.end_ns)
        chart = pieces + _path(longest_first[:most], tracks[0], (x, y))
    return finished(chart.properties(width="container", height=30 * len(tracks))), drawn.dropped + length - len(longest)


def _path(on_path: Sequence[OnPath], row: str, axes: tuple[alt.X, alt.Y]) -> alt.Chart:
    """Thin bars where the critical path lies, with what it is charged to."""
    names = shorten_all((one.what for one in on_path), _NAME_WIDTH)
    leaves = shorten_all((one.leaf for one in on_path), 60)
    values = [
        {
            "s": one.start_ns / _MS,
            "e": one.end_ns / _MS,
            "i": (one.end_ns - one.start_ns) / 1_000,
            "row": row,
            "what": names[one.what],
            "leaf": leaves[one.leaf],
        }
        for one in on_path
    ]
    drawn: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(clip=True, size=8, fill=PATH)
        .encode(
            x=axes[0],
            x2="e:Q",
            y=axes[1],
            tooltip=[
                alt.Tooltip("row:N", title="on the"),
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("leaf:N", title="leaf"),
                alt.Tooltip("i:Q", title="µs", format=",.3f"),
                alt.Tooltip("s:Q", title="from ms", format=",.6f"),
            ],
        )
    )
    return drawn


#: Start and end in ms, length in µs, then indices of the row, the leaf and the name.
_COLUMNS = ("s", "e", "i", "t", "k", "n")


def _columns(drawn: StepTimeline, at: Sequence[int]) -> dict[str, list[float] | list[int]]:
    """The segments `at` in the columns of `_COLUMNS`."""
    return {
        "s": [drawn.start_ns[one] / _MS for one in at],
        "e": [(drawn.start_ns[one] + drawn.segment_ns[one]) / _MS for one in at],
        "i": [drawn.segment_ns[one] / 1_000 for one in at],
        "t": [drawn.track[one] for one in at],
        "k": [drawn.leaf[one] for one in at],
        "n": [drawn.name[one] for one in at],
    }


def _row_names(tracks: Sequence[str]) -> list[str]:
    """Short names of rows; a number where two rows bear one name, which would be drawn as one."""
    short = shorten_all(tracks, 24)
    return [
        short[track] if tracks.count(track) == 1 else f"{at + 1}: {short[track]}" for at, track in enumerate(tracks)
    ]


def zoom() -> alt.Parameter:
    """What lets the page's buttons, a drag and the wheel move along the time axis."""
    return alt.selection_interval(
        name=ZOOM,
        bind="scales",
        encodings=["x"],
        # A plain wheel scrolls the page.
        zoom="wheel![event.ctrlKey || event.metaKey]",
    )


def time_axis(title: str, end: float) -> alt.X:
    """Time from left to right, from 0 to `end`, for bars that begin at ``s``."""
    return alt.X(
        "s:Q",
        title=title,
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=alt.Axis(grid=True, tickCount=8),
    )


def finished(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> Spec:
    """The chart as a specification, with text and lines in the page's own colour."""
    ink = "currentColor"
    styled = (
        chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
        .configure(background="transparent", font=_FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=ink,
            titleColor=ink,
            tickColor=ink,
            domainColor=ink,
            gridColor=ink,
            gridOpacity=0.13,
            domainOpacity=0.4,
            tickOpacity=0.4,
            labelFontSize=11.5,
            titleFontSize=11.5,
            titleFontWeight="normal",
            labelOverlap="greedy",
        )
        .configure_text(color=ink, fill=ink)
    )
    spec: Spec = styled.to_dict()
    # The page says which language this is; an address has no place in it.
    del spec["$schema"]
    return spec
