"""The charts of a plan: goodput over the interval, where the time goes, and the bytes of a rank against its memory."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from steptime.model.plan import Chosen, Fit, Plan
from steptime.report import units
from steptime.report.charts import Spec, finished
from steptime.report.colours import PARTS
from steptime.report.ledger import PRODUCTIVE

_LINE, _FORMULA, _TODAY = PARTS["kernels"], PARTS["exposed_comm"], PARTS["pipeline_bubble"]
#: Where the time of a run goes, in the order of the bars: field of `Split`, what it is, colour.
SPLIT = (
    ("work", "work that is kept", PARTS[PRODUCTIVE]),
    ("checkpoint", "checkpoint pauses", PARTS["kernels"]),
    ("lost", "work done again", PARTS["exposed_comm"]),
    ("restart", "restarts", PARTS["host"]),
    ("spare_wait", "waiting for a host", PARTS["pipeline_bubble"]),
)
#: Parts of a rank's memory, by name.
MEMORY = {
    "weights": PARTS[PRODUCTIVE],
    "gradients": PARTS["recompute"],
    "optimizer states": PARTS["kernels"],
    "gathered layers": PARTS["pipeline_bubble"],
    "activations": PARTS["exposed_comm"],
    "layer being recomputed": PARTS["stragglers"],
    "embedding dropout": PARTS["unexplained"],
    "output head": PARTS["host"],
}
CURVE_LEGEND = (
    ("simulated, mean", _LINE),
    ("first-order formula", _FORMULA),
    ("interval today", _TODAY),
)
_GB = 1e9


def curve(plan: Plan) -> Spec:
    """Goodput over the interval between checkpoints, with its best."""
    columns = plan.curve
    values = [
        {
            "x": tau / 60,
            "mean": mean * 100,
            "low": low * 100,
            "high": high * 100,
            "from": single[0] * 100,
            "to": single[1] * 100,
            "formula": formula * 100,
            "tau": units.span(tau),
            "said": f"{units.share(mean)} ({units.points(low)} to {units.points(high)})",
            "runs": f"{units.points(single[0])} to {units.points(single[1])} %",
        }
        for tau, mean, low, high, single, formula in zip(
            columns.interval_s,
            columns.goodput,
            columns.low,
            columns.high,
            zip(columns.run_low, columns.run_high, strict=True),
            columns.first_order,
            strict=True,
        )
    ]
    # The steep ends would press the part that matters together.
    top = max(columns.goodput) * 100
    least = max(min(value["from"] for value in values), top - 40)
    scale = alt.Scale(domain=[max(least - 2, 0), min(top + 4, 100)], nice=False)
    across = alt.X(
        "x:Q",
        title="minutes of work between checkpoints",
        scale=alt.Scale(type="log", domain=[values[0]["x"], values[-1]["x"]], nice=False),
        axis=alt.Axis(grid=True, tickCount=8, format=",~r"),
    )
    tip = [
        alt.Tooltip("tau:N", title="interval"),
        alt.Tooltip("said:N", title="goodput (95 %)"),
        alt.Tooltip("runs:N", title="single runs, 5 to 95 %"),
        alt.Tooltip("formula:Q", title="first-order formula", format=".1f"),
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(x=across)
    layers: list[Any] = [
        base.mark_area(clip=True, opacity=0.18, color=_LINE).encode(
            y=alt.Y("from:Q", title="goodput, % of the time", scale=scale), y2="to:Q"
        ),
        base.mark_area(clip=True, opacity=0.45, color=_LINE).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_line(clip=True, color=_FORMULA, strokeDash=[5, 4], strokeWidth=1.6).encode(
            y=alt.Y("formula:Q", scale=scale)
        ),
        base.mark_line(clip=True, color=_LINE, strokeWidth=2.4).encode(y=alt.Y("mean:Q", scale=scale)),
        base.mark_point(clip=True, opacity=0, size=160, filled=True).encode(
            y=alt.Y("mean:Q", scale=scale), tooltip=tip
        ),
    ]
    ends = (columns.interval_s[0], columns.interval_s[-1])
    marked = [_mark(plan.best.at, "best", ends)]
    if plan.today is not None:
        marked.append(_mark(plan.today, "today", ends))
    for one in marked:
        point = alt.Chart(alt.InlineData(values=[one])).encode(x=across, y=alt.Y("y:Q", scale=scale))
        colour = _TODAY if one["what"] == "today" else "currentColor"
        layers += [
            point.mark_point(filled=True, size=90, color=colour, opacity=1, clip=True),
            point.mark_text(dy=18, fontSize=12, fontWeight=600, align=one["side"]).encode(text="text:N"),
        ]
    return finished(alt.layer(*layers).properties(width="container", height=300))


def _mark(one: Chosen, what: str, ends: tuple[float, float]) -> dict[str, Any]:
    """A point with its text, which near an end of the curve goes the other way."""
    along = math.log(one.interval_s / ends[0]) / math.log(ends[1] / ends[0])
    side = "left" if along < 0.3 else "right" if along > 0.7 else "center"
    text = f"{what} {units.span(one.interval_s)}: {units.share(one.goodput)}"
    return {"x": one.interval_s / 60, "y": one.goodput * 100, "text": text, "what": what, "side": side}


def split(plan: Plan) -> Spec:
    """Where the time of an average run goes, at the best interval and at today's."""
    shown = [("best", plan.best.at), *([] if plan.today is None else [("today", plan.today)])]
    values = []
    for name, one in shown:
        left = 0.0
        for part, title, colour in SPLIT:
            share = getattr(one.split, part)
            if share > 0:
                values.append(
                    {
                        "row": f"{name}, {units.span(one.interval_s)}",
                        "from": left * 100,
                        "to": (left + share) * 100,
                        "part": title,
                        "colour": colour,
                        "said": units.share(share),
                    }
                )
            left += share
    chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(size=26)
        .encode(
            x=alt.X("from:Q", title="% of the time", scale=alt.Scale(domain=[0, 100], nice=False)),
            x2="to:Q",
            y=alt.Y("row:N", sort=None, axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=140)),
            color=alt.Color("colour:N", scale=None),
            tooltip=[alt.Tooltip("part:N", title="part"), alt.Tooltip("said:N", title="share")],
        )
        .properties(width="container", height=44 * len(shown))
    )
    return finished(chart)


def memory(fit: Fit) -> Spec:
    """The bytes of the fullest rank, a bar for each ZeRO stage and kind of recompute, against the GPU's memory."""
    values = []
    for row in fit.table:
        left = 0
        for part in row.parts:
            values.append(
                {
                    "row": f"ZeRO {row.zero}, {row.recompute}",
                    "from": left / _GB,
                    "to": (left + part.bytes) / _GB,
                    "part": part.name,
                    "colour": MEMORY.get(part.name, PARTS["unexplained"]),
                    "said": units.size(part.bytes),
                    "formula": part.formula,
                }
            )
            left += part.bytes
    # A bar many times the memory needs not be seen to its end.
    most = min(max(row.total for row in fit.table), 4 * fit.memory_bytes) / _GB
    scale = alt.Scale(domain=[0, max(most, fit.memory_bytes / _GB) * 1.02], nice=False)
    bars = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(size=15, clip=True)
        .encode(
            x=alt.X("from:Q", title="GB on the fullest rank", scale=scale),
            x2="to:Q",
            y=alt.Y("row:N", sort=None, axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=150)),
            color=alt.Color("colour:N", scale=None),
            tooltip=[
                alt.Tooltip("row:N", title="choice"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("said:N", title="bytes"),
                alt.Tooltip("formula:N", title="how"),
            ],
        )
    )
    limit = alt.Chart(alt.InlineData(values=[{"x": fit.memory_bytes / _GB}])).mark_rule(
        color="currentColor", strokeWidth=1.6, strokeDash=[6, 3]
    )
    rule = limit.encode(x=alt.X("x:Q", scale=scale))
    return finished(alt.layer(bars, rule).properties(width="container", height=23 * len(fit.table)))
