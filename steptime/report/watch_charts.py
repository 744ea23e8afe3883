"""The charts of a watched log: what was logged over the steps, with its alarms."""

from __future__ import annotations

from typing import Any

import altair as alt

from steptime.model.watch import Series, Watch
from steptime.report import units
from steptime.report.charts import Spec, finished
from steptime.report.colours import PARTS
from steptime.report.ledger import PRODUCTIVE

_LINE, _SPIKE, _ODD, _TARGET = PARTS["kernels"], PARTS["exposed_comm"], PARTS["pipeline_bubble"], PARTS[PRODUCTIVE]
_STRETCH = PARTS["stragglers"]
#: What is marked, by the kind of mark.
LEGEND = {
    "spike": ("spike, at its peak", _SPIKE),
    "odd": ("first row that is no number", _ODD),
    "stretch": ("plateau, or a rate below its usual", _STRETCH),
    "target": ("target", _TARGET),
}


def series(watch: Watch, one: Series) -> tuple[Spec | None, list[tuple[str, str]]]:
    """One quantity over the steps with its marks, and the legend of those that are there.

    On a logarithmic scale where every value is positive, since what matters is a factor; rates from their lowest.
    """
    if len(one.drawn_step) < 2:
        return None, []
    logarithmic = one.what in ("loss", "grad_norm", "update_ratio") and min(one.drawn_value) > 0
    across = alt.X("x:Q", title="step", scale=alt.Scale(nice=False), axis=alt.Axis(grid=True, tickCount=8, format="~s"))
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=False, nice=True)
    up = alt.Y("y:Q", title=one.column, scale=scale, axis=alt.Axis(tickCount=6, format=",~r"))
    values = [
        {"x": step, "y": value, "i": at}
        for at, (step, value) in enumerate(zip(one.drawn_step, one.drawn_value, strict=True))
    ]
    legend: list[tuple[str, str]] = []
    layers: list[Any] = []
    stretches = _stretches(watch, one)
    if stretches:
        legend.append(LEGEND["stretch"])
        layers.append(
            alt.Chart(alt.InlineData(values=stretches))
            .mark_rect(color=_STRETCH, opacity=0.2)
            .encode(x=across, x2="to:Q", tooltip=[alt.Tooltip("said:N", title="stretch")])
        )
    # In the order of the log: after a restart the step goes back.
    line = alt.Chart(alt.InlineData(values=values)).mark_line(color=_LINE, strokeWidth=1.3)
    layers.append(line.encode(x=across, y=up, order="i:Q"))
    odd = [{"x": run.first_step, "said": _odd(run.kind, run.rows)} for run in watch.non_finite if run.what == one.what]
    if odd:
        legend.append(LEGEND["odd"])
        layers.append(
            alt.Chart(alt.InlineData(values=odd))
            .mark_rule(color=_ODD, strokeWidth=1.8)
            .encode(x=across, tooltip=[alt.Tooltip("said:N", title="no number"), alt.Tooltip("x:Q", title="step")])
        )
    if one.what == "loss" and watch.target is not None and (not logarithmic or watch.target.loss > 0):
        legend.append(LEGEND["target"])
        layers.append(
            alt.Chart(alt.InlineData(values=[{"y": watch.target.loss}]))
            .mark_rule(color=_TARGET, strokeDash=[6, 3], strokeWidth=1.6)
            .encode(y=up)
        )
    spikes = _spikes(watch, one)
    if spikes:
        legend.append(LEGEND["spike"])
        tip = [
            alt.Tooltip("alert:N", title="alert at step"),
            alt.Tooltip("x:Q", title="peak at step", format=",d"),
            alt.Tooltip("y:Q", title="peak", format=".4~g"),
            alt.Tooltip("usual:Q", title="usual", format=".4~g"),
            alt.Tooltip("back:N", title="back at step"),
            alt.Tooltip("rewind:N", title="rewind to"),
        ]
        layers.append(
            alt.Chart(alt.InlineData(values=spikes))
            .mark_point(shape="triangle-down", filled=True, size=110, color=_SPIKE, opacity=1, yOffset=-8)
            .encode(x=across, y=up, tooltip=tip)
        )
    height = 280 if one.what == "loss" else 170
    return finished(alt.layer(*layers).properties(width="container", height=height)), legend


def _odd(kind: str, rows: int) -> str:
    return f"{kind}, {units.plural(rows, 'row')}"


def _spikes(watch: Watch, one: Series) -> list[dict[str, Any]]:
    return [
        {
            "x": spike.peak_step,
            "y": spike.peak,
            "usual": spike.usual,
            "alert": units.count(spike.alert_step),
            "back": "not back" if spike.end_step is None else units.count(spike.end_step),
            "rewind": "can't tell" if spike.rewind_step is None else units.count(spike.rewind_step),
        }
        for spike in watch.spikes
        if spike.what == one.what
    ]


def _stretches(watch: Watch, one: Series) -> list[dict[str, Any]]:
    """Plateaus of the loss, drops of a rate."""
    last = watch.last_step
    found = [
        {"x": drop.start_step, "to": drop.end_step or last, "said": f"{units.share(drop.share)} below its usual"}
        for drop in watch.drops
        if drop.what == one.what
    ]
    if one.what == "loss":
        found += [
            {"x": flat.from_step, "to": flat.to_step or last, "said": f"plateau at {flat.loss:.4g}"}
            for flat in watch.plateaus
        ]
    return found
