"""A goodput report as a page: every word that the terminal, Markdown and HTML show of it."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.model.goodput import GoodputReport, Interruption, Rate
from steptime.report import goodput_words, units
from steptime.report.names import brief
from steptime.report.panels import Chart, Page, Panel
from steptime.report.plain_table import Table

_MOST_ROWS = 40
_MOST_HOSTS = 10
#: Figures of published runs, as columns: id of the figure, what it is.
_FIGURES = (
    ("gpus", "GPUs"),
    ("days", "length"),
    ("interruptions", "interruptions"),
    ("mtbf", "time between"),
    ("eta", "time effective"),
    ("mfu", "MFU"),
    ("checkpoint_interval", "checkpoint"),
)
_LLAMA = "llama3_405b"


def goodput_page(report: GoodputReport, *, drawn: bool = False, more: Sequence[Panel] = ()) -> Page:
    """The page; `drawn`: with its charts, for which a library must be loaded. more: panels after the checkpoints."""
    return Page(
        title=f"{brief(report.tool.name)}: how much of the time the run trained",
        eyebrow="How much of the time the run trained, and what stopped it",
        verdict=goodput_words.verdict(report),
        figures=goodput_words.figures(report),
        panels=[
            _time(report, drawn),
            _failures(report),
            _causes(report, drawn),
            Panel("trend", "Trend and hosts", lines=goodput_words.trend(report), tables=_hosts(report)),
            Panel("checkpoints", "Checkpoints", lines=goodput_words.checkpoints(report)),
            *more,
            _cost(report),
            _interruptions(report),
            _references(report),
            Panel("doubts", "What these logs can't tell", why=[brief(text, 400) for text in report.cannot_tell]),
            _inputs(report),
        ],
        tool=f"{brief(report.tool.name)} {brief(report.tool.version)}",
    )


def _time(report: GoodputReport, drawn: bool) -> Panel:
    gpus = report.cost.gpus
    rows = []
    if report.productive_ns is not None and report.total_ns:
        title = "training" + (", lost work in it" if report.productive_share is None else "")
        rows.append(_part_row(report.productive_ns, report.productive_ns / report.total_ns, title, gpus))
    for part in report.parts:
        if part.ns == 0 and part.why is None:
            continue
        told = f"{part.title} ({part.why})" if part.why else part.title
        row = _part_row(part.ns, part.share, told, gpus)
        rows.append(["?"] * (len(row) - 1) + row[-1:] if part.ns == 0 else row)
    if report.total_ns:
        rows.append(_part_row(report.total_ns, 1.0, "the whole run", gpus))
    head = ["points", "time", *(["GPU-hours"] if gpus else []), "where the time went"]
    table = Table(head, rows, numbers=len(head) - 1)
    charts = _time_charts(report) if drawn else []
    return Panel(
        "time", "Where the time went", lines=goodput_words.time_lines(report), charts=charts, tables=[("", table)]
    )


def _time_charts(report: GoodputReport) -> list[Chart]:
    # Drawing loads a large library, which the other formats can do without.
    from steptime.report import goodput_charts

    charts = []
    strip, left_out = goodput_charts.timeline(report)
    shown = {report.segments.parts[part] for part in report.segments.part}
    titles = {part.id: part.title for part in report.parts} | goodput_charts.TITLES
    legend = [(titles[part], colour) for part, colour in goodput_charts.COLOURS.items() if part in shown]
    whole = goodput_charts.profile(report) if goodput_charts.dense(report) else None
    if whole is not None:
        caption = "Each stretch of the run by what it went to; the run has too many parts to draw one by one."
        charts.append(Chart("profile", whole, caption, legend, title="The run"))
        legend, strip_title = [], "Part by part"
    else:
        strip_title = "The run"
    if strip is not None:
        caption = "The run in time order; a tick above it is an interruption."
        caption += f" {units.plural(left_out, 'short stretch', 'short stretches')} not drawn." if left_out else ""
        charts.append(Chart("run", strip, caption, legend, steered=True, title=strip_title))
    bars = goodput_charts.lost(report)
    if bars is not None:
        charts.append(Chart("lost", bars, "Time that did not train, by what it went to.", title="What was lost"))
    return charts


def _part_row(ns: int, share: float | None, title: str, gpus: int | None) -> list[str]:
    hours = [f"{ns / 3600e9 * gpus:,.0f}"] if gpus else []
    return ["?" if share is None else units.points(share), units.span(ns / 1e9), *hours, title]


def _failures(report: GoodputReport) -> Panel:
    rows = [
        [goodput_words.hours(rate.mtbf_h), _interval(rate), f"{rate.failures:,}", _exposure(rate), whose]
        for rate, whose in ((report.mtbf, "the run"), (report.mtbf_gpu, "one GPU"))
        if rate is not None
    ]
    head = ["MTBF", "95 % interval", "failures", "over", "of"]
    tables = [("", Table(head, rows, numbers=4))] if rows else []
    return Panel("failures", "How often it fails", lines=goodput_words.failure_lines(report), tables=tables)


def _interval(rate: Rate) -> str:
    low = goodput_words.hours(rate.low_h)
    return f"{low} to {goodput_words.hours(rate.high_h)}" if rate.high_h is not None else f"at least {low}"


def _exposure(rate: Rate) -> str:
    return goodput_words.hours(rate.exposure_h)


def _causes(report: GoodputReport, drawn: bool) -> Panel:
    llama = next((run for run in report.references if run.id == _LLAMA), None)
    published = {figure.id: figure.text for figure in llama.causes} if llama else {}
    rows = [
        [
            f"{one.count:,}",
            units.share(one.share) if one.share is not None else "planned",
            units.span(one.down_ns / 1e9),
            units.span(one.lost_ns / 1e9) if one.lost_ns is not None else "?",
            brief(one.title, 60),
            brief(one.group, 20),
            published.get(one.id, ""),
        ]
        for one in report.causes
    ]
    head = ["count", "share", "down", "work lost", "cause", "of", "Llama 3 405B"]
    charts = _cause_charts(report) if drawn else []
    table = Table(head, rows[:_MOST_ROWS], numbers=4, more=max(len(rows) - _MOST_ROWS, 0))
    return Panel("causes", "Causes", charts=charts, tables=[("", table)] if rows else [])


def _cause_charts(report: GoodputReport) -> list[Chart]:
    from steptime.report import goodput_charts

    spec = goodput_charts.causes(report)
    legend = goodput_charts.cause_legend(report)
    return [] if spec is None else [Chart("causes-bars", spec, "Interruptions by cause.", legend)]


def _hosts(report: GoodputReport) -> list[tuple[str, Table]]:
    rows = [
        [
            f"{one.count:,}",
            "?" if one.chance is None else units.share(one.chance),
            brief(one.host, 40),
            brief(", ".join(one.causes), 100),
        ]
        for one in report.hosts
    ]
    if not rows:
        return []
    more = max(len(rows) - _MOST_HOSTS, 0)
    table = Table(["failed", "by chance", "host", "causes"], rows[:_MOST_HOSTS], numbers=2, more=more)
    return [("Hosts that failed again", table)]


def _cost(report: GoodputReport) -> Panel:
    return Panel("cost", "What was paid for and used", lines=goodput_words.cost_lines(report))


def _interruptions(report: GoodputReport) -> Panel:
    costliest = sorted(report.interruptions, key=lambda one: -_cost_ns(one))[:_MOST_ROWS]
    rows = [
        [
            units.moment(one.time_ns) if report.dated else units.span(one.time_ns / 1e9),
            units.span((_cost_ns(one) - (one.lost_ns or 0)) / 1e9),
            "?" if one.lost_ns is None else units.span(one.lost_ns / 1e9),
            brief(one.title, 40),
            brief(one.host, 30) if one.host else "",
            brief(one.source, 80),
        ]
        for one in sorted(costliest, key=lambda one: one.time_ns)
    ]
    head = ["when (UTC)", "down", "work lost", "cause", "host", "from"]
    title = "Interruptions" if len(rows) == len(report.interruptions) else f"The {len(rows)} costliest interruptions"
    table = Table(head, rows, numbers=3, more=len(report.interruptions) - len(rows))
    return Panel("interruptions", "Interruptions", tables=[(title, table)] if rows else [], folded=len(rows) > 12)


def _cost_ns(one: Interruption) -> int:
    return one.detection_ns + one.restart_ns + one.unsplit_ns + one.planned_ns + one.unknown_ns + (one.lost_ns or 0)


def _references(report: GoodputReport) -> Panel:
    rows = [goodput_words.own_row(report)]
    for run in report.references:
        told = {figure.id: goodput_words.published(figure) for figure in run.figures}
        rows.append([run.name, *(told.get(figure, "not stated") for figure, _ in _FIGURES)])
    lines = [
        f"{run.name}: at the stated rate its FLOPs are {run.uninterrupted_days:.0f} days of compute that nothing stops."
        for run in report.references
        if run.uninterrupted_days is not None
    ]
    lines += [note for run in report.references for note in run.notes]
    sources = [
        f"{run.name}: {brief(figure.text, 80)} ({figure.source})"
        for run in report.references
        for figure in [*run.figures, *run.causes]
    ]
    table = Table(["run", *(title for _, title in _FIGURES)], rows)
    return Panel("references", "Beside published runs", lines=lines, tables=[("", table)], sources=sources)


def _inputs(report: GoodputReport) -> Panel:
    lines, whys = [], []
    for one in report.inputs:
        text = f"{brief(one.path, 90)}: {one.kind}, {units.plural(one.lines, 'line')}"
        text += f", {units.plural(one.duplicates, 'copy', 'copies')} left out" if one.duplicates else ""
        lines.append(text)
        if one.bad_lines:
            whys.append(f"{brief(one.path, 90)}: {units.plural(one.bad_lines, 'line')} could not be used:")
            whys += [brief(example, 220) for example in one.bad_examples]
            more = one.bad_lines - len(one.bad_examples)
            whys += [f"... and {more:,} more"] if more > 0 else []
    return Panel("inputs", "What was read", lines=lines, why=whys, items=[brief(text, 400) for text in report.warnings])
