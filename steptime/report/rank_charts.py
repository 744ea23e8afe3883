"""The ranks beside each other: rank by step and rank by part, both ordered by host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from steptime.report import units
from steptime.report.charts import Spec, finished
from steptime.report.colours import OTHER, part_colour
from steptime.report.groups import STRIP_PARTS, RankLine
from steptime.report.ledger import PRODUCTIVE
from steptime.report.names import brief, shorten_all
from steptime.report.own_time import RankRow, farthest

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
#: Up to this many ranks a heatmap has room for numbers.
NUMBERED = 32
#: Rows that a screen still shows at once, and cells that a browser draws without delay.
MAX_ROWS, MAX_CELLS = 96, 4_000
#: Longer and shorter than its peers: red and blue differ in every kind of colour vision, and the darker in print.
LONGER, SHORTER = "#d62839", "#1f7fbf"
_LONGER_DEPTH, _SHORTER_DEPTH = 0.8, 0.5
#: Nearer to its peers than this many percent, a cell is grey: kernels jitter by as much.
_ALIKE, _ALIKE_DEPTH = 1.0, 0.12
#: The mark of a rank that the report names; no label ends with anything from a trace.
NAMED = "▸"
_NUMBERED_COLUMNS = 8
#: Percents at which the colour is full: the least that holds each rank's usual distance, so that one odd step, which
#: is seen anyway, does not make a slow rank pale.
_FULL = (5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0)
_PIXELS, _MOST_PIXELS, _LEAST_PIXELS = 680, 21, 7
_LABEL_PIXELS = 13
_RANKS_TO_A_LINE = 3
_MS = 1_000_000


@dataclass(frozen=True)
class _Axis:
    """The rows of a chart: their labels, those with room to be printed, those that begin a host, and their height."""

    labels: list[str]
    printed: list[str]
    breaks: list[str]
    pixels: int

    @property
    def y(self) -> alt.Y:
        """The channel of the rows, which stand in the field ``rank``."""
        axis = alt.Axis(
            title=None,
            ticks=False,
            domain=False,
            grid=False,
            values=self.printed,
            labelOverlap=False,
            labelPadding=5,
            labelFontWeight=alt.condition(f"slice(datum.value, -1) === '{NAMED}'", alt.value(700), alt.value(400)),
        )
        gap = 0.08 if self.pixels >= 10 else 0.0
        # As the domain of the scale labels are data; as a sort order they would become an expression.
        scale = alt.Scale(domain=self.labels, paddingInner=gap, paddingOuter=gap / 2)
        return alt.Y("rank:N", sort=None, scale=scale, axis=axis)

    def lines(self) -> alt.Chart:
        """A line above each host but the first."""
        values = [{"rank": label} for label in self.breaks]
        drawn: alt.Chart = (
            alt.Chart(alt.InlineData(values=values))
            .mark_rule(strokeOpacity=0.45, stroke="currentColor", strokeWidth=1)
            .encode(y=alt.Y("rank:N", sort=None, scale=alt.Scale(domain=self.labels), bandPosition=0))
        )
        return drawn

    @property
    def height(self) -> int:
        return self.pixels * len(self.labels)


def _axis(rows: Sequence[tuple[str, str | None, bool]]) -> _Axis:
    """Rows given as name, host and whether the report names them; the host is told where it begins."""
    hosts = shorten_all({host for _, host, _ in rows if host is not None}, 16)
    labels, begins, named = [], [], []
    for at, (name, host, is_named) in enumerate(rows):
        first = host is not None and (at == 0 or rows[at - 1][1] != host)
        text = f"{hosts[host]} · {name}" if first and host is not None else name
        labels.append(f"{text} {NAMED}" if is_named else text)
        begins += [at] if at and rows[at - 1][1] != host else []
        named += [at] if is_named else []
    pixels = max(_LEAST_PIXELS, min(_MOST_PIXELS, _PIXELS // max(len(rows), 1)))
    apart = -(-_LABEL_PIXELS // pixels)
    printed: list[int] = []
    for at in (*named, 0, *begins, *range(len(rows))):
        if all(abs(at - other) >= apart for other in printed):
            printed.append(at)
    # Lines between hosts of which few ranks are shown would be all that one sees.
    breaks = [labels[at] for at in begins] if len(begins) * _RANKS_TO_A_LINE <= len(rows) else []
    return _Axis(labels, [labels[at] for at in sorted(printed)], breaks, pixels)


def full_percent(rows: Sequence[RankRow]) -> float:
    """The distance from the peers at which the colour is full."""
    most = max((abs(row.usual_percent) for row in rows), default=0.0)
    return next((full for full in _FULL if most <= full), _FULL[-1])


def own_time_legend(rows: Sequence[RankRow]) -> list[tuple[str, str]]:
    """What the colours say."""
    full = full_percent(rows)
    return [
        (f"own time {full:.0f} % or more above its peers", _shade(LONGER, _LONGER_DEPTH)),
        (f"within {_ALIKE:.0f} % of them", _shade(OTHER, _ALIKE_DEPTH)),
        (f"{full:.0f} % or more below", _shade(SHORTER, _SHORTER_DEPTH)),
    ]


def _shade(colour: str, depth: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{depth:g})"


def own_time(rows: Sequence[RankRow], columns: Sequence[Sequence[int]]) -> Spec | None:
    """Ranks down, steps across: how far each rank's own time is from its peers' in that step.

    columns: the steps of each; of several the one farthest from the peers is shown. Steps in which the report says that
    the rank held up others have a frame. What was not recorded stays empty.
    """
    if len(rows) < 2 or not columns:
        return None
    axis = _axis([(row.name, row.host, row.named) for row in rows])
    heads = [units.ranges(list(steps)) for steps in columns]
    base = _own_time_data(rows, columns, axis.labels, heads).encode(
        x=alt.X(
            "step:N",
            sort=None,
            scale=alt.Scale(domain=heads, paddingInner=0.03 if 8 < len(heads) <= 60 else 0, paddingOuter=0),
            axis=alt.Axis(
                orient="top",
                title="step",
                labelAngle=0,
                labelSeparation=6,
                ticks=False,
                domain=False,
                grid=False,
            ),
        ),
        y=axis.y,
    )
    cells = base.mark_rect().encode(
        fill=alt.Fill("colour:N", scale=None),
        fillOpacity=alt.FillOpacity("depth:Q", scale=None),
        stroke=alt.value("currentColor"),
        strokeWidth=alt.condition("datum.l === 1", alt.value(1.6), alt.value(0)),
        tooltip=[
            alt.Tooltip("who:N", title="rank"),
            alt.Tooltip("n:Q", title="step"),
            alt.Tooltip("said:N", title="own time against its peers"),
            alt.Tooltip("o:Q", title="own time, ms", format=",.3~f"),
            alt.Tooltip("p:Q", title="median of its peers, ms", format=",.3~f"),
            alt.Tooltip("most:N", title="most above its peers in"),
            alt.Tooltip("w:Q", title="waited for others, ms", format=",.3~f"),
            alt.Tooltip("x:Q", title="exposed communication, ms", format=",.3~f"),
            alt.Tooltip("s:Q", title="whole step, ms", format=",.3~f"),
        ],
    )
    layers = [cells]
    if len(rows) <= NUMBERED and len(heads) <= _NUMBERED_COLUMNS:
        layers.append(base.mark_text(fontSize=11).encode(text="round:N"))
    return finished(alt.layer(*layers, axis.lines()).properties(width="container", height=axis.height))


def _own_time_data(
    rows: Sequence[RankRow], columns: Sequence[Sequence[int]], labels: Sequence[str], heads: Sequence[str]
) -> alt.Chart:
    """The cells in columns, which take a third of the room of rows, with what they look like and say."""
    found = [
        (at, column, *one)
        for at, row in enumerate(rows)
        for column, steps in enumerate(columns)
        if (one := farthest(row, steps)) is not None
    ]
    cells = [cell for *_, cell in found]
    leaves = sorted({cell.leaf for cell in cells})
    places = {leaf: at for at, leaf in enumerate(leaves)}
    data: dict[str, list[Any]] = {
        "r": [at for at, *_ in found],
        "c": [column for _, column, *_ in found],
        "n": [number for _, _, number, _ in found],
        "d": [round(cell.percent, 2) for cell in cells],
        "o": [round(cell.own_ns / _MS, 3) for cell in cells],
        "p": [round(cell.peers_ns / _MS, 3) for cell in cells],
        "s": [round(cell.step_ns / _MS, 3) for cell in cells],
        "w": [round(cell.waited_ns / _MS, 3) for cell in cells],
        "x": [round(cell.comm_ns / _MS, 3) for cell in cells],
        "k": [places[cell.leaf] for cell in cells],
        "e": [round(cell.excess_ns / _MS, 3) for cell in cells],
        "l": [int(cell.late) for cell in cells],
    }
    who = _who(rows)
    names = [{"r": at, "rank": label, "who": who[at]} for at, label in enumerate(labels)]
    steps_named = [{"c": at, "step": head} for at, head in enumerate(heads)]
    said = [{"k": at, "leaf": brief("useful work" if leaf == PRODUCTIVE else leaf)} for at, leaf in enumerate(leaves)]
    full = full_percent(rows)
    longer = f"{_LONGER_DEPTH} * min(1, datum.d / {full:g})"
    shorter = f"{_SHORTER_DEPTH} * min(1, -datum.d / {full:g})"
    drawn: alt.Chart = (
        alt.Chart(alt.InlineData(values=[data]))
        .transform_flatten(list(data))
        .transform_lookup("r", alt.LookupData(alt.InlineData(values=names), key="r", fields=["rank", "who"]))
        .transform_lookup("c", alt.LookupData(alt.InlineData(values=steps_named), key="c", fields=["step"]))
        .transform_lookup("k", alt.LookupData(alt.InlineData(values=said), key="k", fields=["leaf"]))
        .transform_calculate(
            colour=f"abs(datum.d) < {_ALIKE} ? '{OTHER}' : datum.d > 0 ? '{LONGER}' : '{SHORTER}'",
            depth=f"abs(datum.d) < {_ALIKE} ? {_ALIKE_DEPTH} : datum.d > 0 ? {longer} : {shorter}",
            said="(datum.d >= 0.05 ? '+' : '') + format(datum.d, '.1f') + ' %'",
            most="datum.e > 0 ? datum.leaf + ', +' + format(datum.e, ',.3~f') + ' ms' : 'nothing'",
            round="abs(datum.d) < 0.5 ? '0' : format(datum.d, '+.0f')",
        )
    )
    return drawn


def _who(rows: Sequence[RankRow]) -> list[str]:
    """Rank, host, device and stage as a hint tells them."""
    return [
        ", ".join(
            [row.name]
            + ([] if row.host is None else [brief(row.host)])
            + ([] if row.device is None else [f"device {row.device}"])
            + ([] if row.stage is None else [f"stage {row.stage}"])
        )
        for row in rows
    ]


def heatmap(lines: Sequence[RankLine], named: frozenset[int] = frozenset()) -> Spec | None:
    """Ranks down, parts of the step across; the deeper the colour, the larger the share of the rank's time.

    Up to `NUMBERED` ranks the cells bear their numbers, more are drawn as thin lines. named: ranks to be marked.
    """
    if len(lines) < 2:
        return None
    used = [part for part in STRIP_PARTS if any(line.parts_ns[part] for line in lines)]
    shares = [[line.parts_ns[part] / (line.total_ns or 1) for part in used] for line in lines]
    most = max((max(row) for row in shares), default=0) or 1
    axis = _axis([(line.name, line.host, line.rank in named) for line in lines])
    hosts = ["not recorded" if line.host is None else brief(line.host) for line in lines]
    values = [
        {
            "rank": label,
            "host": host,
            "part": SHORT[part],
            "colour": part_colour(part),
            "depth": round(0.03 + 0.72 * share / most, 4),
            "points": units.points(share),
            "median": units.time(line.median_ns),
        }
        for label, host, line, row in zip(axis.labels, hosts, lines, shares, strict=True)
        for part, share in zip(used, row, strict=True)
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X(
            "part:N",
            sort=[SHORT[part] for part in used],
            axis=alt.Axis(
                orient="top", title=None, labelAngle=-50, labelOverlap=False, ticks=False, domain=False, grid=False
            ),
        ),
        y=axis.y,
    )
    numbered = len(lines) <= NUMBERED
    cells = base.mark_rect(cornerRadius=2 if numbered else 0).encode(
        color=alt.Color("colour:N", scale=None),
        opacity=alt.Opacity("depth:Q", scale=None),
        tooltip=[
            alt.Tooltip("rank:N", title="rank"),
            alt.Tooltip("host:N", title="host"),
            alt.Tooltip("part:N", title="part"),
            alt.Tooltip("points:N", title="points of its step"),
            alt.Tooltip("median:N", title="median step"),
        ],
    )
    layers = [cells, base.mark_text(fontSize=11).encode(text="points:N")] if numbered else [cells]
    return finished(alt.layer(*layers, axis.lines()).properties(width="container", height=axis.height))
