"""The rooflines of the HTML report: calls under the roofs of the device, by FLOPs and by bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from steptime.model import Job, OpRoof
from steptime.report import units
from steptime.report.charts import Spec, finished
from steptime.report.colours import leaf_colour
from steptime.report.names import shorten_all

#: Which leaf lends its colour to a kind of op.
KIND_LEAVES = {
    "matmul": "kernels/matmul",
    "convolution": "kernels/optimizer",
    "attention": "kernels/attention",
    "memory": "kernels/memory_bound",
}
#: The facts of a report that hold the memory roofs, in bytes a second.
MEMORY_PEAK = "memory_bytes_per_s"
_NAME_WIDTH = 110


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
    x = alt.X("intensity:Q", title="FLOP per byte of device memory", **_log(x_ends))
    y = alt.Y("rate:Q", title="FLOP/s attained", **_log(y_ends))
    chart = _scatter(values).encode(x=x, y=y)
    if not lines:
        return finished(chart.properties(width="container", height=340))
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
    return finished(alt.layer(roofs, chart, named).properties(width="container", height=340))


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
    roof_rates = [memory_bytes_per_s] if memory_bytes_per_s else []
    y_ends = _decades([*(op.attained_bytes_per_s or 1 for op in placed), *roof_rates])
    x = alt.X("size:Q", title="bytes of one call", **_log(x_ends))
    y = alt.Y("rate:Q", title="bytes/s attained", **_log(y_ends))
    chart = _scatter(values).encode(x=x, y=y)
    if not memory_bytes_per_s:
        return finished(chart.properties(width="container", height=240))
    text = f"memory {memory_bytes_per_s / 1e9:,.0f} GB/s"
    ends = [{"size": at, "rate": memory_bytes_per_s, "label": text if at == x_ends[1] else ""} for at in x_ends]
    roof = alt.Chart(alt.InlineData(values=ends)).encode(x=x, y=y)
    line = roof.mark_line(color="currentColor", strokeWidth=1.6, strokeDash=[6, 3])
    named = roof.mark_text(align="right", dy=-8, dx=-2, fontSize=11).encode(text="label:N")
    return finished(alt.layer(line, chart, named).properties(width="container", height=240))


def _scatter(values: list[dict[str, Any]]) -> alt.Chart:
    fields = ("op", "shapes", "kernel", "time", "bound", "attained", "of_peak", "checks")
    tips = [alt.Tooltip(f"{field}:N", title=field.replace("_", " ")) for field in fields]
    drawn: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_point(filled=True, opacity=0.72, stroke="currentColor", strokeWidth=0.6, clip=True)
        .encode(
            color=alt.Color("colour:N", scale=None),
            size=alt.Size("ns:Q", scale=alt.Scale(type="sqrt", range=[24, 620], domainMin=0), legend=None),
            tooltip=tips,
        )
    )
    return drawn


def _points(ops: Sequence[OpRoof], job: Job) -> list[dict[str, Any]]:
    """What hovering over a call tells, printable and short."""
    names = shorten_all((op.op for op in ops), 60)
    kernels = shorten_all((op.kernel for op in ops), _NAME_WIDTH)
    shapes = shorten_all((op.shapes for op in ops), 90)
    return [
        {
            "op": ", ".join([names[op.op], *backward(op)]),
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


def backward(op: OpRoof) -> list[str]:
    """Only what an op's own name proves: a plain ``aten::mm`` serves the forward and the backward pass."""
    return ["backward"] if op.direction == "backward" else []


def rates(op: OpRoof) -> tuple[str, str]:
    """The attained FLOP/s and GB/s of a call as text; empty where there are none or they are not known."""
    flops = units.rate(op.attained_flops) if op.flops and op.attained_flops is not None else ""
    moved = "" if op.attained_bytes_per_s is None else f"{op.attained_bytes_per_s / 1e9:,.1f} GB/s"
    return flops, moved


def _positive(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _decades(values: Sequence[float]) -> list[float]:
    """Ends of a logarithmic axis: powers of ten around the values, with some room."""
    low, high = math.log10(min(values)), math.log10(max(values))
    return [10.0 ** math.floor(low - 0.1), 10.0 ** math.ceil(high + 0.1)]


def _log(ends: list[float]) -> dict[str, Any]:
    """Scale and axis of a channel from one end to the other."""
    return {"scale": alt.Scale(type="log", domain=ends, nice=False), "axis": _log_axis(ends)}


def _log_axis(ends: list[float]) -> alt.Axis:
    """Ticks at powers of ten only."""
    powers = [10.0**power for power in range(round(math.log10(ends[0])), round(math.log10(ends[1])) + 1)]
    # Below 1 the SI prefix would be milli, which nobody reads as a thousandth here.
    label = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
    return alt.Axis(values=powers, labelExpr=label, grid=True)
