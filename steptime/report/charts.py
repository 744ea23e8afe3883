"""The charts of the HTML report as Vega-Lite specifications, drawn with Altair from what the report holds.

Each function returns a specification ready for JSON, or None where there is nothing to draw: the page then says why.
Text, axes and grids take the colour of the page around them (``currentColor``), so one drawing serves light, dark and
print. Names from traces stand in the data, never in an expression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from steptime.model import Job, OpRoof, StepTimeline
from steptime.report import units
from steptime.report.colours import leaf_colour, part_colour
from steptime.report.groups import STRIP_PARTS, RankLine
from steptime.report.ledger import PRODUCTIVE, WHOLE, Row
from steptime.report.names import shorten_all

Spec = dict[str, Any]

#: The column heads of the heatmap: as short as a phone needs.
SHORT = {
    PRODUCTIVE: "useful",
    "kernels": "kernels",
    "exposed_comm": "comm.",
    "pipeline_bubble": "bubble",
    "recompute": "recompute",
    "stragglers": "straggler",
    "host": "host",
    "unexplained": "unexpl.",
}
#: Which leaf lends its colour to a kind of op.
KIND_LEAVES = {
    "matmul": "kernels/matmul",
    "convolution": "kernels/optimizer",
    "attention": "kernels/attention",
    "memory": "kernels/memory_bound",
}
#: The name of the selection that holds the visible part of a timeline, which the page's buttons move.
ZOOM = "zoom"
#: The facts of a report that hold the memory roofs, in bytes a second.
MEMORY_PEAK = "memory_bytes_per_s"
#: Up to this many ranks a heatmap has room for numbers.
NUMBERED = 32
_NAME_WIDTH = 110
_MS = 1_000_000
_FONT = "system-ui, sans-serif"


def waterfall(rows: Sequence[Row], job: Job) -> Spec | None:
    """From the whole down to what is left: the parts of the step, each beginning where the one before ended."""
    parts = [row for row in rows if not row.is_leaf and (row.ns is None or row.ns > 0)]
    if job.total_ns <= 0 or not parts:
        return None
    # What the fall ends on: useful work, or without FLOPs the kernels, of which useful work is a part.
    rest = next((row for row in parts if row.key in (PRODUCTIVE, "kernels")), None)
    useful = rest is not None and rest.key == PRODUCTIVE
    whole = "100 % of the step at peak" if useful else "100 % of the step"
    values = [_bar(0, whole, "100", (0.0, 100.0), "#7d8590", "everything")]
    top = WHOLE
    for row in [row for row in parts if row is not rest] + [rest] * (rest is not None):
        low = top - row.tenths
        said = f"{row.points} %" if row is rest else f"−{row.points}"
        mean = "" if row.ns is None else units.time(row.ns / max(job.rank_steps, 1))
        text = "can't tell" if row.ns is None else f"{said} · {mean}"
        title = "= MFU, useful work" if row is rest and useful else row.title
        values.append(_bar(len(values), title, text, (low / 10, top / 10), part_colour(row.key), mean))
        values[-1]["solid"] = (top - _gain_tenths(row)) / 10
        top = low
    base = alt.Chart(alt.InlineData(values=values)).encode(y=alt.Y("place:O", axis=None))
    scale = alt.Scale(domain=[0, 100], nice=False)
    axis = alt.Axis(title="points of 100", tickCount=5, grid=True)
    fill = alt.Color("colour:N", scale=None)
    tip = [alt.Tooltip("title:N", title="part"), alt.Tooltip("text:N", title="points")]
    bars = base.mark_bar(size=13, yOffset=9, opacity=0.38).encode(
        x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", color=fill, tooltip=tip
    )
    gains = base.mark_bar(size=13, yOffset=9).encode(x=alt.X("solid:Q", scale=scale), x2="high:Q", color=fill, tooltip=tip)
    left = base.mark_text(align="left", baseline="middle", yOffset=-8, fontSize=12.5, fontWeight=600).encode(
        x=alt.datum(0, scale=scale), text="title:N"
    )
    right = base.mark_text(align="right", baseline="middle", yOffset=-8, fontSize=12.5).encode(
        x=alt.datum(100, scale=scale), text="text:N"
    )
    return _finished(alt.layer(bars, gains, left, right).properties(width="container", height=42 * len(values)))


def _bar(place: int, title: str, text: str, ends: tuple[float, float], colour: str, mean: str) -> dict[str, Any]:
    low, high = ends
    return {
        "place": place,
        "title": title,
        "text": text,
        "low": low,
        "high": high,
        "solid": low,
        "colour": colour,
        "mean": mean,
    }


def _gain_tenths(row: Row) -> float:
    """How much of a row's bar is solid: what can be gained, all of it where that is not known."""
    if row.recoverable_ns is None or not row.ns:
        return row.tenths
    return row.tenths * row.recoverable_ns / row.ns


def heatmap(lines: Sequence[RankLine]) -> Spec | None:
    """Ranks down, parts of the step across; the deeper the colour, the larger the share of the rank's time.

    Up to `NUMBERED` ranks the cells bear their numbers, more are drawn as thin lines.
    """
    if len(lines) < 2:
        return None
    used = [part for part in STRIP_PARTS if any(line.parts_ns[part] for line in lines)]
    shares = {(line.name, part): line.parts_ns[part] / (line.total_ns or 1) for line in lines for part in used}
    most = max(shares.values(), default=0) or 1
    labels = {line.name: f"{line.name} · {units.time(line.median_ns)}" for line in lines}
    values = [
        {
            "rank": labels[line.name],
            "part": SHORT[part],
            "colour": part_colour(part),
            "depth": round(0.03 + 0.72 * shares[line.name, part] / most, 4),
            "points": units.points(shares[line.name, part]),
            "median": units.time(line.median_ns),
        }
        for line in lines
        for part in used
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X(
            "part:N",
            sort=[SHORT[part] for part in used],
            axis=alt.Axis(orient="top", title=None, labelAngle=-40, ticks=False, domain=False, grid=False),
        ),
        y=alt.Y(
            "rank:N",
            sort=list(labels.values()),
            scale=alt.Scale(paddingInner=0.06 if len(lines) <= NUMBERED else 0),
            axis=alt.Axis(title=None, ticks=False, domain=False, grid=False),
        ),
    )
    numbered = len(lines) <= NUMBERED
    cells = base.mark_rect(cornerRadius=2 if numbered else 0).encode(
        color=alt.Color("colour:N", scale=None),
        opacity=alt.Opacity("depth:Q", scale=None),
        tooltip=[
            alt.Tooltip("rank:N", title="rank"),
            alt.Tooltip("part:N", title="part"),
            alt.Tooltip("points:N", title="points of its step"),
            alt.Tooltip("median:N", title="median step"),
        ],
    )
    numbers = base.mark_text(fontSize=11).encode(text="points:N")
    drawn = alt.layer(cells, numbers) if numbered else cells
    return _finished(drawn.properties(width="container", height=(23 if numbered else 6) * len(lines)))


def roofline(ops: Sequence[OpRoof], job: Job, memory_bytes_per_s: float | None) -> Spec | None:
    """Attained FLOP/s over intensity, both logarithmic, under the roofs that are known."""
    placed = [op for op in ops if _positive(op.intensity) and _positive(op.attained_flops)]
    if not placed:
        return None
    values = [
        point | {"intensity": op.intensity, "rate": op.attained_flops}
        for op, point in zip(placed, _points(placed, job), strict=True)
    ]
    intensities = [op.intensity or 1 for op in placed]
    rates = [op.attained_flops or 1 for op in placed]
    dtypes = {op.dtype for op in placed} | {job.reference_dtype}
    peaks = {dtype: peak for dtype, peak in (job.peak_flops or {}).items() if dtype in dtypes and _positive(peak)}
    ridge = [peak / memory_bytes_per_s for peak in peaks.values()] if memory_bytes_per_s else []
    x_ends = _decades([*intensities, *ridge])
    lines = _roofs(peaks, memory_bytes_per_s, x_ends)
    y_ends = _decades([*rates, *(line["rate"] for line in lines if line["rate"] >= min(rates) / 30)])
    x = alt.X(
        "intensity:Q",
        title="FLOP per byte of device memory",
        scale=alt.Scale(type="log", domain=x_ends, nice=False),
        axis=_log_axis(x_ends),
    )
    y = alt.Y(
        "rate:Q",
        title="FLOP/s attained",
        scale=alt.Scale(type="log", domain=y_ends, nice=False),
        axis=_log_axis(y_ends),
    )
    chart = _scatter(values).encode(x=x, y=y)
    if not lines:
        return _finished(chart.properties(width="container", height=340))
    roofs = (
        alt.Chart(alt.InlineData(values=lines))
        .mark_line(color="currentColor", strokeWidth=1.6, clip=True)
        .encode(x=x, y=y, detail="roof:N", strokeDash=alt.StrokeDash("kind:N", scale=_DASHES, legend=None))
    )
    named = (
        alt.Chart(alt.InlineData(values=[line for line in lines if line["label"]]))
        .mark_text(align="right", dy=-8, dx=-2, fontSize=11, clip=False)
        .encode(x=x, y=y, text="label:N")
    )
    return _finished(alt.layer(roofs, chart, named).properties(width="container", height=340))


_DASHES = alt.Scale(domain=["compute", "memory"], range=[[1, 0], [6, 3]])


def _roofs(peaks: dict[str, float], memory: float | None, x_ends: list[float]) -> list[dict[str, Any]]:
    """The ends of each roof line: flat for the peak of each dtype, rising with the intensity for the memory."""
    lines: list[dict[str, Any]] = []
    names = shorten_all(peaks, 16)
    for dtype, peak in peaks.items():
        begin = max(peak / memory, x_ends[0]) if memory else x_ends[0]
        label = f"{names[dtype]} {units.rate(peak)}"
        lines += [
            {"roof": dtype, "kind": "compute", "intensity": begin, "rate": peak, "label": ""},
            {"roof": dtype, "kind": "compute", "intensity": x_ends[1], "rate": peak, "label": label},
        ]
    if memory and peaks:
        top = max(peaks.values())
        for at in (x_ends[0], top / memory):
            lines.append({"roof": " memory", "kind": "memory", "intensity": at, "rate": at * memory, "label": ""})
    return lines


def bandwidth(ops: Sequence[OpRoof], job: Job, memory_bytes_per_s: float | None) -> Spec | None:
    """For calls that only move data: attained bytes a second over the bytes of one call."""
    placed = [op for op in ops if not op.flops and _positive(op.bytes) and _positive(op.attained_bytes_per_s)]
    if not placed:
        return None
    values = [
        point | {"size": (op.bytes or 1) / max(op.count, 1), "rate": op.attained_bytes_per_s}
        for op, point in zip(placed, _points(placed, job), strict=True)
    ]
    x_ends = _decades([value["size"] for value in values])
    y_ends = _decades([op.attained_bytes_per_s or 1 for op in placed] + [memory_bytes_per_s] * bool(memory_bytes_per_s))
    x = alt.X(
        "size:Q",
        title="bytes of one call",
        scale=alt.Scale(type="log", domain=x_ends, nice=False),
        axis=_log_axis(x_ends),
    )
    y = alt.Y(
        "rate:Q",
        title="bytes/s attained",
        scale=alt.Scale(type="log", domain=y_ends, nice=False),
        axis=_log_axis(y_ends),
    )
    chart = _scatter(values).encode(x=x, y=y)
    if not memory_bytes_per_s:
        return _finished(chart.properties(width="container", height=240))
    text = f"memory {memory_bytes_per_s / 1e9:,.0f} GB/s"
    ends = [{"size": at, "rate": memory_bytes_per_s, "label": text if at == x_ends[1] else ""} for at in x_ends]
    roof = alt.Chart(alt.InlineData(values=ends)).encode(x=x, y=y)
    line = roof.mark_line(color="currentColor", strokeWidth=1.6, strokeDash=[6, 3])
    named = roof.mark_text(align="right", dy=-8, dx=-2, fontSize=11).encode(text="label:N")
    return _finished(alt.layer(line, chart, named).properties(width="container", height=240))


def _scatter(values: list[dict[str, Any]]) -> alt.Chart:
    fields = ("op", "shapes", "kernel", "time", "bound", "attained", "of_peak", "checks")
    tips = [alt.Tooltip(f"{field}:N", title=field.replace("_", " ")) for field in fields]
    return (
        alt.Chart(alt.InlineData(values=values))
        .mark_point(filled=True, opacity=0.72, stroke="currentColor", strokeWidth=0.6, clip=True)
        .encode(
            color=alt.Color("colour:N", scale=None),
            size=alt.Size("ns:Q", scale=alt.Scale(type="sqrt", range=[24, 620], domainMin=0), legend=None),
            tooltip=tips,
        )
    )


def _points(ops: Sequence[OpRoof], job: Job) -> list[dict[str, Any]]:
    """What hovering over a call tells, printable and short."""
    names = shorten_all((op.op for op in ops), 60)
    kernels = shorten_all((op.kernel for op in ops), _NAME_WIDTH)
    shapes = shorten_all((op.shapes for op in ops), 90)
    return [
        {
            "op": f"{names[op.op]}, {op.direction}",
            "shapes": shapes[op.shapes],
            "kernel": kernels[op.kernel],
            "time": f"{units.time(op.owned_ns / max(job.rank_steps, 1))} a step, {units.count(op.count)} calls",
            "bound": ("L2-resident, " if op.cache_resident else "") + (op.bound or "can't tell"),
            "attained": ", ".join(filter(None, rates(op))) or "can't tell",
            "of_peak": "can't tell" if op.peak_share is None else units.share(op.peak_share),
            "checks": ", ".join(shorten_all(op.checks, 60).values()) or "none",
            "colour": leaf_colour(KIND_LEAVES.get(op.kind, "kernels/other_compute")),
            "ns": op.owned_ns,
        }
        for op in ops
    ]


def rates(op: OpRoof) -> tuple[str, str]:
    """The attained FLOP/s and GB/s of a call as text; empty where there are none or they are not known."""
    flops = units.rate(op.attained_flops) if op.flops and op.attained_flops is not None else ""
    moved = "" if op.attained_bytes_per_s is None else f"{op.attained_bytes_per_s / 1e9:,.1f} GB/s"
    return flops, moved


def timeline(drawn: StepTimeline, most: int) -> tuple[Spec | None, int]:
    """One step in time order: a row for what owned the device, and one for each stream; and how many were left out.

    At most `most` segments are drawn, the longest; the second value counts the others and those the report lacks.
    """
    length = len(drawn.start_ns)
    longest = sorted(range(length), key=lambda at: (-drawn.segment_ns[at], at))[:most]
    if not longest:
        return None, drawn.dropped + length
    longest.sort(key=lambda at: (drawn.track[at], drawn.start_ns[at]))
    used = sorted({drawn.name[at] for at in longest})
    shown = shorten_all((drawn.names[name] for name in used), _NAME_WIDTH)
    tracks = _row_names(drawn.tracks)
    # In columns, which take a third of the room of rows.
    data = alt.InlineData(values=[_columns(drawn, longest)])
    names = alt.InlineData(values=[{"n": name, "what": shown[drawn.names[name]]} for name in used])
    leaves = shorten_all(drawn.leaves, 60)
    keys = alt.InlineData(
        values=[
            {"k": at, "leaf": leaves[leaf], "colour": leaf_colour(leaf)} for at, leaf in enumerate(drawn.leaves)
        ]
    )
    rows = alt.InlineData(values=[{"t": at, "row": row} for at, row in enumerate(tracks)])
    zoom = alt.selection_interval(
        name=ZOOM,
        bind="scales",
        encodings=["x"],
        # A plain wheel scrolls the page.
        zoom="wheel![event.ctrlKey || event.metaKey]",
    )
    chart = (
        alt.Chart(data)
        .transform_flatten(list(_COLUMNS))
        .transform_lookup("n", alt.LookupData(data=names, key="n", fields=["what"]))
        .transform_lookup("k", alt.LookupData(data=keys, key="k", fields=["leaf", "colour"]))
        .transform_lookup("t", alt.LookupData(data=rows, key="t", fields=["row"]))
        .mark_rect(clip=True, strokeWidth=0.5)
        .encode(
            x=alt.X(
                "s:Q",
                title="ms since the step began",
                scale=alt.Scale(domain=[0, drawn.dur_ns / _MS], nice=False),
                axis=alt.Axis(grid=True, tickCount=8),
            ),
            x2="e:Q",
            y=alt.Y("row:N", sort=tracks, axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=84)),
            color=alt.Color("colour:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
            tooltip=[
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("leaf:N", title="leaf"),
                alt.Tooltip("i:Q", title="µs", format=",.3f"),
                alt.Tooltip("s:Q", title="from ms", format=",.6f"),
                alt.Tooltip("row:N", title="row"),
            ],
        )
        .add_params(zoom)
        .properties(width="container", height=30 * len(tracks))
    )
    return _finished(chart), drawn.dropped + length - len(longest)


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
    return [short[track] if tracks.count(track) == 1 else f"{at + 1}: {short[track]}" for at, track in enumerate(tracks)]


def _positive(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _decades(values: Sequence[float]) -> list[float]:
    """Ends of a logarithmic axis: powers of ten around the values, with some room."""
    low, high = math.log10(min(values)), math.log10(max(values))
    return [10.0 ** math.floor(low - 0.1), 10.0 ** math.ceil(high + 0.1)]


def _log_axis(ends: list[float]) -> alt.Axis:
    """Ticks at powers of ten only."""
    powers = [10.0**power for power in range(round(math.log10(ends[0])), round(math.log10(ends[1])) + 1)]
    return alt.Axis(values=powers, format="~s", grid=True)


def _finished(chart: alt.Chart | alt.LayerChart) -> Spec:
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
