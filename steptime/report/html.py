"""The report as one HTML file that opens from disk: text, tables and charts in the order of the walkthrough.

The page asks no host for anything, and its Content-Security-Policy would not let it: only the two scripts that the file
itself carries may run, told by their hashes. Text from a trace reaches the page escaped by the template; in the charts
it stands in JSON in which no character can end the element around it. Equal reports give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from steptime.model import Report, StepTimeline
from steptime.report import (
    charts,
    groups,
    html_file,
    ladder,
    own_time,
    page_tables,
    pages,
    path_chart,
    path_words,
    pipeline_chart,
    pipeline_words,
    rank_charts,
    roof_charts,
    sections,
    units,
    words,
)
from steptime.report.ledger import ledger
from steptime.report.names import brief
from steptime.report.plain_table import Table

#: A page larger than this is written again with less in it.
MAX_BYTES = 3_000_000
_CONTENTS = (
    ("number", "The number"),
    ("recompute", "Recompute"),
    ("signatures", "Signatures"),
    ("kernels", "Kernels"),
    ("findings", "Findings"),
    ("ranks", "Ranks"),
    ("timeline", "Steps"),
    ("other", "Other steps"),
    ("checklist", "Checklist"),
    ("quality", "Traces"),
    ("definitions", "Definitions"),
)
_RANK_ROWS = 8
_PATH_ROWS = 12
_OWN_TIME = (
    "Own time of each rank in each step, in % above or below the median of its peers: a row that is red throughout is "
    "a slow rank, red here and there is jitter."
)


class Limits(NamedTuple):
    """How much of what may be long the page shows."""

    segments: int
    rows: int
    points: int
    ranks: int


#: Tried in turn until the page is small enough.
_LIMITS = (Limits(5_000, 40, 400, 256), Limits(1_000, 30, 150, 64), Limits(200, 15, 60, 24), Limits(20, 8, 20, 12))


@dataclass(frozen=True)
class DrawnStep:
    """One step in time order, as the page shows it."""

    id: str
    title: str
    caption: str
    legend: list[tuple[str, str]]


def render(report: Report) -> str:
    """Return the report as one HTML page of at most 3 MB, ending in a newline."""
    page = ""
    for limits in _LIMITS:
        page = _page(report, limits)
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def _page(report: Report, limits: Limits) -> str:
    specs, drawn, note = _charts(report, limits)
    rank_specs, ranks = _ranks(report, limits)
    pipeline_specs, pipeline = _pipeline(report, limits)
    path_specs, path = _path(report, limits)
    specs |= rank_specs | pipeline_specs | path_specs
    library, script = html_file.library(), pages.asset("charts.js")
    context = {
        **_head(report),
        **_number(report),
        **_parts(report, specs, limits),
        **ranks,
        **pipeline,
        **path,
        **_rest(report, limits),
        "timelines": drawn,
        "timelines_note": note,
        "no_timelines": "This report holds no step in time order: no step of a train was recorded whole.",
        "specs": specs,
        "specs_json": Markup(html_file.json_text(specs)),
        "style": Markup(pages.asset("style.css")),
        "library": Markup(library),
        "script": Markup(script),
        "policy": pages.policy(library, script),
    }
    text = pages.environment().get_template("report.html.jinja").render(context)
    return text if text.endswith("\n") else f"{text}\n"


def _head(report: Report) -> dict[str, Any]:
    several = len(report.ranks) > 1
    return {
        "title": f"{report.tool.name and brief(report.tool.name)}: where the step time goes",
        "verdict": words.verdict(report),
        "devices": words.devices(report) if report.ranks else "",
        "facts": sections.facts(report),
        "contents": [item for item in _CONTENTS if item[0] != "ranks" or several],
        "several_ranks": several,
        "tool": f"{brief(report.tool.name)} {brief(report.tool.version)}",
        "mean_of": words.mean_of(report),
    }


def _number(report: Report) -> dict[str, Any]:
    known = report.job.mfu is not None
    caption = "Each bar begins where the one above ends; the points add up to 100."
    if any(one.recoverable_ns not in (None, one.ns) for one in report.job.slices):
        caption += " The solid part of a bar can be gained, the pale part lies at the roof."
    return {
        "mfu_line": words.mfu_line(report),
        "mfu_known": known,
        "mfu_warned": words.mfu_warning(report) is not None,
        "counted": words.counted(report) if report.job.rank_steps > 0 else "",
        "number": sections.number(report),
        "mfu_notes": [brief(note, 300) for note in report.job.mfu_notes],
        "conventions": bool(report.job.mfu_by),
        "waterfall_caption": caption,
        "whole_ledger": sections.whole_ledger(report),
    }


def _parts(report: Report, specs: dict[str, charts.Spec], limits: Limits) -> dict[str, Any]:
    peaks, memory = report.job.peak_flops, report.facts.get(roof_charts.MEMORY_PEAK)
    why = ""
    if not report.roofline:
        why = "No operation could be set against a roof: that needs shapes in the trace (record_shapes=True)."
    elif "roofline" not in specs and "bandwidth" not in specs:
        why = "The operations in these traces have neither known FLOPs nor known bytes, so none can be placed."
    elif not peaks or not memory:
        missing = [what for what, known in (("compute", peaks), ("memory", memory)) if not known]
        why = (
            f"The {' and '.join(missing)} peak of this device is not known, so no {' or '.join(missing)} roof is drawn."
        )
    return {
        "recompute": sections.part(report, "recompute"),
        "signatures": [sections.part(report, one) for one in sections.SIGNATURES],
        "collectives": page_tables.collectives_table(report, limits.rows),
        "bandwidth_notes": words.bandwidth_notes(report),
        "stragglers": page_tables.stragglers_table(report, limits.rows),
        "compared": words.stragglers(report)[-1:],
        "kernels": sections.part(report, "kernels"),
        "kinds": page_tables.kinds(report.roofline),
        "roofs": "Solid: compute peaks; dashed: memory." if peaks else "",
        "memory_roof": "Dashed: the memory's peak." if memory else "",
        "roofline_why": why,
        "calls": page_tables.calls_table(report, min(limits.rows, 25)),
        "kernel_names": page_tables.kernels_table(report, min(limits.rows, 20)),
    }


def _rest(report: Report, limits: Limits) -> dict[str, Any]:
    warned, more = sections.other_warnings(report, limits.rows)
    rules = sorted(report.not_evaluated.items())
    empty = "No rule fired." if report.checklist or report.not_evaluated else "No rules were evaluated for this report."
    known = [[brief(name, 80), f"{value:,.6g}"] for name, value in sorted(report.facts.items()) if value is not None]
    return {
        "findings": sections.findings(report, limits.rows),
        "more_findings": max(len(report.findings) - limits.rows, 0),
        "no_findings": empty,
        "ladder": ladder.table(report),
        "replay_trust": ladder.trust(report) if report.findings else "",
        "other_steps": groups.other_steps(report.other_steps)[: limits.rows],
        "checklist": sections.checklist(report, limits.rows),
        "qualities": groups.qualities(report.inputs)[: limits.rows],
        "warnings": warned,
        "more_warnings": more,
        "not_evaluated": [(brief(rule), brief(why, 300)) for rule, why in rules[: limits.rows]],
        "more_rules": max(len(rules) - limits.rows, 0),
        "measured": Table(["number", "value"], known[:200]) if known else None,
    }


def _charts(report: Report, limits: Limits) -> tuple[dict[str, charts.Spec], list[DrawnStep], str]:
    """The specifications by the id of their place on the page, and what is said of each step in time order."""
    job = report.job
    memory = report.facts.get(roof_charts.MEMORY_PEAK)
    costliest = sorted(report.roofline, key=lambda op: -op.owned_ns)[: limits.points]
    found = {
        "waterfall": charts.waterfall(ledger(job), job) if job.rank_steps > 0 and job.total_ns > 0 else None,
        "roofline": roof_charts.roofline(costliest, job, memory),
        "bandwidth": roof_charts.bandwidth(costliest, job, memory),
    }
    drawn = []
    shown = _worth_drawing(report.timelines)
    for place, one in enumerate(shown):
        on_path = path_chart.in_picture(report.critical_path, one)
        spec, left_out = charts.timeline(one, limits.segments, on_path)
        if spec is not None:
            found[f"timeline-{place}"] = spec
            drawn.append(_drawn_step(f"timeline-{place}", one, left_out, report, bool(on_path)))
    more = len(report.timelines) - len(shown)
    note = f"{units.plural(more, 'more step')} in the JSON report and in the Perfetto file." if more > 0 else ""
    return {name: spec for name, spec in found.items() if spec is not None}, drawn, note


def _ranks(report: Report, limits: Limits) -> tuple[dict[str, charts.Spec], dict[str, Any]]:
    """The pictures that set the ranks beside each other, and what is said of them."""
    most = min(limits.ranks, rank_charts.MAX_ROWS)
    compared = own_time.rank_rows(report)
    rows, fewer = own_time.worth_a_row(compared, most)
    columns, binned = own_time.in_columns(rows, rank_charts.MAX_CELLS // max(len(rows), 1))
    everyone = groups.rank_lines(report)
    lines, note = groups.worth_a_line(everyone, most)
    named = "▸ and frames: named under “One rank later than the others”, and when." * any(row.named for row in rows)
    found = {
        "own_time": rank_charts.own_time(rows, columns),
        "heatmap": rank_charts.heatmap(groups.by_host(lines), own_time.named_ranks(report)),
    }
    return {name: spec for name, spec in found.items() if spec is not None}, {
        "own_time_caption": " ".join(filter(None, [_OWN_TIME, named, own_time.peers(report), fewer, binned])),
        # A picture of few steps need not be as wide as the page.
        "own_time_width": 14 + 5 * len(columns) if len(columns) <= 8 else 0,
        "own_time_legend": rank_charts.own_time_legend(rows),
        "own_time_why": own_time.why_not(report),
        "ranks_note": note,
        "odd_ranks": page_tables.ranks_table(report, _RANK_ROWS, {row.name: row.usual_percent for row in compared}),
        "odd_ranks_note": groups.worth_a_line(everyone, _RANK_ROWS)[1],
    }


def _pipeline(report: Report, limits: Limits) -> tuple[dict[str, charts.Spec], dict[str, Any]]:
    """One step of the pipeline as a picture, and what is said of it."""
    actions = None if report.pipeline is None else report.pipeline.actions
    most = min(limits.segments, pipeline_chart.MAX_BARS)
    spec, note = (None, "") if actions is None else pipeline_chart.pipeline(actions, most)
    caption = ""
    if actions is not None and spec is not None:
        caption = (
            f"Step {actions.step} of one pipeline: a bar is one pass of a micro-batch, pale forward, solid backward; "
        )
        caption += "a colour follows one micro-batch, and where a row is grey the stage runs none. "
        caption += "Figures: micro-batch.chunk. " if max(actions.chunk, default=0) > 0 else ""
        caption += "Drag to move, Ctrl + wheel to zoom, double-click for the whole step."
    return {} if spec is None else {"pipeline": spec}, {
        "pipeline_said": pipeline_words.pipeline(report),
        "pipeline_stages": pipeline_words.stages_table(report, limits.rows),
        "pipeline_caption": f"{caption} {note}".strip(),
    }


def _path(report: Report, limits: Limits) -> tuple[dict[str, charts.Spec], dict[str, Any]]:
    """The critical path as a table and, of a typical step, as a picture; and what is said of them."""
    path = report.critical_path
    spec, note, said, caption = None, "", "", ""
    if path is not None and path.totals:
        said = (
            f"Critical path over {path_words.headline(path)}: what each step waited for, one after the other, from the "
            "last rank's end of a step to the next. Shorter work elsewhere shortens no step."
        )
        at = path_chart.typical_step(path)
        spec, note = path_chart.across_ranks(path, at, min(limits.segments, path_chart.MAX_BARS))
        step = path.steps[at]
        caption = f"The critical path of step {step.step}, {units.time(step.dur_ns)}: the rank that it is on, in the "
        caption += "colour of what it is spent on. "
        caption += "Drag to move, Ctrl + wheel to zoom, double-click for the whole step. "
    return {} if spec is None else {"path": spec}, {
        "path_said": said,
        "path_table": path_words.table(report, min(limits.rows, _PATH_ROWS)),
        "path_caption": f"{caption}{note}".strip(),
        "path_legend": [] if path is None else path_words.legend(path),
    }


def _worth_drawing(timelines: list[StepTimeline]) -> list[StepTimeline]:
    """A typical step, and the slowest of all."""
    typical = [one for one in timelines if one.why != "slowest"][:1]
    slowest = sorted((one for one in timelines if one.why == "slowest"), key=lambda one: -one.dur_ns)[:1]
    return typical + slowest


def _drawn_step(place: str, one: StepTimeline, left_out: int, report: Report, on_path: bool) -> DrawnStep:
    device = "" if one.device is None else f", device {one.device}"
    title = f"{brief(one.why).capitalize()} step: step {one.step} of rank {one.rank}{device}, {units.time(one.dur_ns)}"
    caption = "Top row: what each instant is charged to. Below: what ran. "
    if report.alignment is not None:
        caption = "Top row: what each instant is charged to on this rank alone; waits for other ranks and stages show "
        caption += "as the communication they stand in. Below: what ran. "
    if on_path:
        caption = f"Red: on the critical path. {caption.replace('Top row', 'Row below')}"
    elif report.critical_path is not None:
        caption += "The critical path does not touch this rank in this step. "
    caption += "Drag to move, Ctrl + wheel to zoom, double-click for the whole step."
    if left_out:
        caption += f" Left out, too short to be told apart: {units.plural(left_out, 'piece')}."
    return DrawnStep(place, title, caption, sections.legend(one.leaves))
