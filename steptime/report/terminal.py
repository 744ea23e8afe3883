"""The report as text for a terminal: the verdict, the waterfall, the causes, then what the traces can't tell.

Everything from a trace is printed as plain text: markup and control characters in names do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from steptime.model import Report
from steptime.report import advice, groups, ladder, path_words, pipeline_words, units, words
from steptime.report.ledger import PRODUCTIVE, WHOLE, Row, apportion, ledger
from steptime.report.names import brief, middle, shorten_all
from steptime.report.text_page import TextPage as _Page
from steptime.report.text_page import fitting

_CAUSES = 10
_RANKS = 16
_PATH_ROWS, _PATH_CELLS = 8, 18
_STRIP_CELLS = 20
_STYLES = {
    PRODUCTIVE: "bold green",
    "kernels": "green",
    "exposed_comm": "blue",
    "pipeline_bubble": "magenta",
    "recompute": "cyan",
    "stragglers": "red",
    "host": "yellow",
    "unexplained": "bright_black",
}
#: One letter for each part, so that the strip reads without colour.
_LETTERS = {
    PRODUCTIVE: ("U", "useful"),
    "kernels": ("K", "kernels"),
    "exposed_comm": ("C", "communication"),
    "pipeline_bubble": ("B", "bubble"),
    "recompute": ("R", "recompute"),
    "stragglers": ("S", "stragglers"),
    "host": ("H", "host"),
    "unexplained": ("?", "unexplained"),
}


def render(report: Report, width: int | None = None, color: bool = False) -> str:
    """Return the report as text of at most `width` columns (72 to 140), ending in a newline.

    Args:
        report: what to show.
        width: columns; None takes the width of the terminal, 100 where there is none.
        color: emit ANSI colours; without them the text is plain.
    """
    page = _Page(fitting(width), color)
    _headline(page, report)
    _waterfall(page, report)
    _findings(page, report)
    _causes(page, report)
    _list(page, "Pipeline", pipeline_words.pipeline(report))
    _stragglers(page, report)
    _path(page, report)
    _ranks(page, report)
    _checklist(page, report)
    _list(page, "Other steps (not in the figures above)", groups.other_steps(report.other_steps))
    _list(page, "What the traces hold", groups.qualities(report.inputs))
    _list(page, "Warnings", groups.warnings(report, words.mfu_warning(report)), "yellow")
    return page.text()


def _headline(page: _Page, report: Report) -> None:
    page.line(words.verdict(report), style="bold")
    page.line()
    if report.job.rank_steps > 0:
        page.line(words.counted(report))
    page.line(words.mfu_line(report))
    for note in report.job.mfu_notes:
        page.line(brief(note, 300), "  ", style="dim")


def _waterfall(page: _Page, report: Report) -> None:
    job = report.job
    if job.rank_steps <= 0 or job.total_ns <= 0:
        return
    rows = ledger(job)
    mean_ns = words.per_step_ns(job.total_ns, report)
    scale = units.scale_for(mean_ns)
    recoverable = any(row.recoverable_ns is not None for row in rows)
    titles = max((cell_len(row.title) for row in rows if not row.is_leaf), default=0)
    bar_cells = max(page.width - titles - (30 if recoverable else 20), 1)
    what = "window" if words.is_one_window(report) else "step"
    page.heading(
        f"Where the {what} goes",
        f"  (mean of {words.mean_of(report)}, {units.time(mean_ns)})",
    )
    page.fixed(f"points {scale.unit + '/' + what:>9}{'  can gain' if recoverable else ''}", style="dim")
    for row in rows:
        lead = f"{row.points:>6} {_mean(row.ns, report, scale):>9}"
        if recoverable:
            gain = "" if row.recoverable_ns is None else _mean(row.recoverable_ns, report, scale)
            lead += f" {gain:>9}"
        _waterfall_row(page, row, lead, (titles, bar_cells))
    page.fixed(f" 100.0 {units.scaled(mean_ns, scale):>9}{' ' * 10 if recoverable else ''}  total", style="dim")


def _mean(ns: int | None, report: Report, scale: units.Scale) -> str:
    return "?" if ns is None else units.scaled(words.per_step_ns(ns, report), scale)


def _waterfall_row(page: _Page, row: Row, lead: str, cells: tuple[int, int]) -> None:
    part = row.key.partition("/")[0]
    if row.is_leaf:
        text = row.title if row.ns is not None else f"{row.title}: can't tell ({row.why})"
        page.line(Text.assemble(text, (f" ({row.detail})" if row.detail else "", "dim")), Text(lead + "    ", "dim"))
    elif row.ns is None:
        page.line(Text.assemble(row.title, f": can't tell ({row.why})"), lead + "  ")
    else:
        titles, bar_cells = cells
        title = row.title + " " * (titles - cell_len(row.title))
        page.fixed(Text.assemble(lead, "  ", (title, "bold"), "  ", (_bar(row, bar_cells), _STYLES.get(part, ""))))


def _bar(row: Row, cells: int) -> str:
    """The row's bar, beginning where the row before it ended; what is not zero shows at least as a hairline."""
    first, last = (round(at * cells / WHOLE) for at in (row.start, row.start + row.tenths))
    if first == last:
        return " " * min(first, cells - 1) + "▏" if row.ns else ""
    return " " * first + "█" * (last - first)


def _findings(page: _Page, report: Report) -> None:
    found = advice.advice(report)
    if not found:
        return
    page.heading("What to do", "  (by what it costs; nothing is counted twice)")
    for number, one in enumerate(found, 1):
        lead = f"{number:>2}. "
        page.line(Text.assemble((one.title, "bold"), f" ({one.gain})"), lead)
        page.line(one.advice, "    ")
        for text in one.evidence:
            page.line(text, "    seen: ", style="dim")
    if note := advice.more(report):
        page.line(note, "    ", style="dim")
    _ladder(page, report)


def _ladder(page: _Page, report: Report) -> None:
    steps = ladder.rungs(report)
    if steps:
        page.heading("Fixed one after the other", "  (step time, MFU; in brackets by subtraction)")
    times = max((len(step.step_time) for step in steps), default=0)
    for step in steps:
        lead = Text.assemble("  ", (f"{step.step_time:>{times}}", "bold"), f"  {step.mfu:>6}  ")
        page.line(Text.assemble(step.fix, (f"  ({step.naive})" if step.naive else "", "dim")), lead)
    if trust := ladder.trust(report):
        page.line(trust, style="dim")


def _checklist(page: _Page, report: Report) -> None:
    items = advice.checks(report)
    if not items:
        return
    page.heading("Before you trust the number")
    styles = {"ok": "green", "FAIL": "red", "?": "dim"}
    for check in items:
        page.line(f"{check.item}: {check.why}", Text(f"{check.mark:>4}  ", styles[check.mark]))


def _causes(page: _Page, report: Report) -> None:
    causes = sorted(report.causes, key=lambda cause: -cause.ns)[:_CAUSES]
    if not causes:
        return
    share = sum(cause.ns for cause in causes) / report.job.total_ns if report.job.total_ns else 0
    number = f"{len(causes)} costliest causes" if len(causes) > 1 else "The costliest cause"
    page.heading(number, f"  ({units.share(min(share, 1))} of the time)")
    scale = units.scale_for(words.per_step_ns(report.job.total_ns, report))
    room = page.width - 20
    names = shorten_all((cause.what for cause in causes), page.width - 18)
    evidence = [words.evidence(cause, report) for cause in causes]
    # Places share one width, so that they are told apart over the whole list.
    left = room - max(len(text) for text in evidence) - 5
    places = shorten_all((where for cause in causes if (where := words.place(cause))), left if left >= 24 else room - 3)
    for cause, text in zip(causes, evidence, strict=True):
        lead = f"{units.points(cause.share):>6} {_mean(cause.ns, report, scale):>9}  "
        page.line(Text.assemble((names[cause.what], _STYLES.get(cause.leaf.partition("/")[0], ""))), lead)
        place = f"at {places[where]}" if (where := words.place(cause)) else ""
        if place and len(text) + len(place) + 2 <= room:
            text, place = f"{text}, {place}", ""
        for part in (text, place):
            if part:
                page.line(part, " " * 20, style="dim")


def _stragglers(page: _Page, report: Report) -> None:
    _list(page, "Who held up the others", words.stragglers(report), "red" if report.stragglers else "")


def _path(page: _Page, report: Report) -> None:
    path = report.critical_path
    if path is None or not path.totals:
        return
    page.heading("Critical path", f"  ({path_words.headline(path)}: shorter work elsewhere shortens no step)")
    rows = path_words.rows(path, _PATH_ROWS)
    page.fixed(f"points {path_words.scale(path).unit + '/step':>9}", style="dim")
    columns = [row.who for row in rows], [row.where for row in rows]
    who, where = (min(max(map(cell_len, column)), _PATH_CELLS) for column in columns)
    for row in rows:
        lead = f"{row.points:>6} {row.mean:>9}  {set_cell_size(row.who, who)}  {set_cell_size(row.where, where)}  "
        page.line(Text(row.leaf, _STYLES.get(row.part, "")), lead)


def _ranks(page: _Page, report: Report) -> None:
    everyone = groups.rank_lines(report)
    if len(everyone) < 2:
        return
    lines, note = groups.worth_a_line(everyone, _RANKS)
    used = [part for part in groups.STRIP_PARTS if any(line.parts_ns[part] for line in everyone)]
    what = "window" if words.is_one_window(report) else "step"
    page.heading("Ranks", f"  (median {what}, where it goes, largest leaves in points)")
    page.line(", ".join(f"{_LETTERS[part][0]} {_LETTERS[part][1]}" for part in used), style="dim")
    names = max(len(line.name) for line in lines)
    for line in lines:
        lead = Text(f"{line.name:<{names}} {units.time(line.median_ns):>9}  ")
        for part, cells in zip(used, apportion([line.parts_ns[part] for part in used], _STRIP_CELLS), strict=True):
            lead.append(_LETTERS[part][0] * cells, _STYLES[part])
        lead.append("  ")
        page.line(_largest_leaves(line, page.width - lead.cell_len), lead)
    if note:
        page.line(note, style="dim")


def _largest_leaves(line: groups.RankLine, width: int) -> str:
    """The three largest leaves, or as many as fit."""
    shown: list[str] = []
    for key, ns in sorted(line.leaves_ns.items(), key=lambda item: -item[1])[:3]:
        leaf = brief(key.partition("/")[2] or key)
        shown.append(f"{leaf} {units.points(ns / (line.total_ns or 1))}")
        if shown[1:] and len(", ".join(shown)) > width:
            shown.pop()
            break
    return middle(", ".join(shown), width)


def _list(page: _Page, title: str, lines: Iterable[str], style: str = "") -> None:
    for at, text in enumerate(lines):
        if at == 0:
            page.heading(title)
        page.line(text, Text("- ", style))
