"""The critical path of one step across the ranks: ranks down, time across, coloured by slice."""

from __future__ import annotations

import altair as alt

from steptime.model import CriticalPath, StepTimeline
from steptime.report import units
from steptime.report.charts import OnPath, Spec, finished, time_axis, zoom
from steptime.report.colours import part_colour
from steptime.report.names import shorten_all

#: Segments that a browser draws without delay, and rows that a screen shows at once.
MAX_BARS, MAX_ROWS = 2_000, 40
_NAME_WIDTH, _TEXT_WIDTH = 110, 60
_PIXELS, _MOST_PIXELS, _LEAST_PIXELS = 420, 26, 11
_MS = 1_000_000


def in_picture(path: CriticalPath | None, drawn: StepTimeline) -> list[OnPath]:
    """Where the path lies on this rank and device while the step lasts."""
    if path is None:
        return []
    found = []
    for place, leaf, name, own_ns, dur_ns in zip(
        path.place, path.leaf, path.name, path.own_ns, path.dur_ns, strict=True
    ):
        start = own_ns - drawn.step_start_ns
        begin, end = max(start, 0), min(start + dur_ns, drawn.dur_ns)
        of = path.places[place]
        if begin < end and (of.rank, of.device) == (drawn.rank, drawn.device):
            found.append(OnPath(begin, end, path.leaves[leaf], path.names[name]))
    return found


def typical_step(path: CriticalPath) -> int:
    """Index of the step of median length among the path's."""
    by_length = sorted(range(len(path.steps)), key=lambda at: (path.steps[at].dur_ns, at))
    return by_length[len(by_length) // 2]


def across_ranks(path: CriticalPath, at: int, most: int) -> tuple[Spec | None, str]:
    """Step `at` of the path, and what the picture leaves out; None where the path stays on one rank.

    A thin line leads from one rank to the next. At most `most` segments are drawn, the longest.
    """
    mine = [one for one in range(len(path.step)) if path.step[one] == at]
    by_rank: dict[int, int] = {}
    for one in mine:
        rank = path.places[path.place[one]].rank
        by_rank[rank] = by_rank.get(rank, 0) + path.dur_ns[one]
    if len(by_rank) < 2:
        return None, ""
    ranks = sorted(sorted(by_rank, key=lambda rank: -by_rank[rank])[:MAX_ROWS])
    shown = [one for one in mine if path.places[path.place[one]].rank in ranks]
    shown = sorted(sorted(shown, key=lambda one: -path.dur_ns[one])[:most])
    step = path.steps[at]
    labels = {rank: f"rank {rank}" for rank in ranks}
    pixels = max(_LEAST_PIXELS, min(_MOST_PIXELS, _PIXELS // len(ranks)))
    x = time_axis("ms since the step began", step.dur_ns / _MS)
    y = alt.Y(
        "row:N",
        sort=None,
        scale=alt.Scale(domain=list(labels.values()), paddingInner=0.22, paddingOuter=0.1),
        axis=alt.Axis(title=None, ticks=False, domain=False, grid=True),
    )
    jumps = _jumps(path, shown, labels, step.start_ns).encode(x=x, y=y)
    chart = alt.layer(jumps, _bars(path, shown, labels, (x, y)))
    left_out = len(mine) - len(shown)
    note = f"Left out, the shortest: {units.plural(left_out, 'piece')}." if left_out else ""
    return finished(chart.properties(width="container", height=pixels * len(ranks))), note


def _bars(path: CriticalPath, shown: list[int], labels: dict[int, str], axes: tuple[alt.X, alt.Y]) -> alt.Chart:
    start_ns = path.steps[path.step[shown[0]]].start_ns
    names = shorten_all((path.names[path.name[one]] for one in shown), _NAME_WIDTH)
    leaves = shorten_all((path.leaves[path.leaf[one]] for one in shown), _TEXT_WIDTH)
    wheres = shorten_all((path.places[path.place[one]].where for one in shown), _TEXT_WIDTH)
    values = []
    for one in shown:
        leaf, place = path.leaves[path.leaf[one]], path.places[path.place[one]]
        values.append(
            {
                "s": (path.start_ns[one] - start_ns) / _MS,
                "e": (path.start_ns[one] - start_ns + path.dur_ns[one]) / _MS,
                "i": path.dur_ns[one] / 1_000,
                "row": labels[place.rank],
                "where": wheres[place.where],
                "leaf": leaves[leaf],
                "what": names[path.names[path.name[one]]],
                "n": path.nodes[one],
                "colour": part_colour(leaf.partition("/")[0]),
            }
        )
    drawn: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_rect(clip=True, stroke="currentColor", strokeOpacity=0.15, strokeWidth=0.4)
        .encode(
            x=axes[0],
            x2="e:Q",
            y=axes[1],
            fill=alt.Fill("colour:N", scale=None),
            tooltip=[
                alt.Tooltip("row:N", title="rank"),
                alt.Tooltip("where:N", title="where"),
                alt.Tooltip("leaf:N", title="leaf"),
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("n:Q", title="in a row"),
                alt.Tooltip("i:Q", title="µs", format=",.3f"),
                alt.Tooltip("s:Q", title="from ms", format=",.6f"),
            ],
        )
        .add_params(zoom())
    )
    return drawn


def _jumps(path: CriticalPath, shown: list[int], labels: dict[int, str], start_ns: int) -> alt.Chart:
    """Where the path goes from one rank to another."""
    values = []
    for before, after in zip(shown, shown[1:], strict=False):
        source, target = (path.places[path.place[one]].rank for one in (before, after))
        if source != target:
            at = (path.start_ns[after] - start_ns) / _MS
            values.append({"s": at, "row": labels[source], "to": labels[target]})
    drawn: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_rule(clip=True, stroke="currentColor", strokeOpacity=0.5, strokeWidth=1)
        .encode(y2="to:N")
    )
    return drawn
