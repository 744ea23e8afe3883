"""A diff as text for a terminal: what changed and why, the exact split, calls, and in what the runs differ."""

from __future__ import annotations

from rich.text import Text

from steptime.model import Diff
from steptime.report import diff_words
from steptime.report.names import brief
from steptime.report.text_page import TextPage, fitting

_CALLS = 8
_NOTES = 12
_RED, _GREEN = "red", "green"


def render(diff: Diff, width: int | None = None, color: bool = False) -> str:
    """Return the diff as text of at most `width` columns (72 to 140), ending in a newline."""
    page = TextPage(fitting(width), color)
    page.line(diff_words.first_line(diff), style="bold")
    if differs := diff_words.differs(diff):
        page.line(differs)
    page.line()
    for text in diff_words.sides(diff):
        page.line(text)
    _split(page, diff)
    _list(page, "In what the runs differ", diff_words.config_lines(diff))
    _calls(page, diff)
    _list(page, "Late ranks", diff_words.stragglers(diff))
    _list(page, "To bear in mind", [brief(note, 400) for note in diff.notes[:_NOTES]])
    return page.text()


def _split(page: TextPage, diff: Diff) -> None:
    scale = diff_words.scale(diff)
    page.heading("Where the change is", "  (mean of a rank-step; the parts add up to the whole)")
    page.fixed(f"{'change':>9} {'before':>9} {'after':>9}   {scale.unit}", style="dim")
    for row in diff_words.rows(diff):
        figures = (diff_words.amount(ns, scale) for ns in (row.before_ns, row.after_ns))
        lead = Text(f"{diff_words.change(row.change_ns, scale):>9}", _colour(row.change_ns))
        lead.append(" " + " ".join(f"{figure:>9}" for figure in figures) + "  " + "  " * row.level, "dim")
        style = ("bold", "", "dim")[row.level]
        page.line(Text.assemble((row.title, style), (f"  ({row.note})" if row.note else "", "dim")), lead)
    whole = diff.whole
    figures = (diff_words.amount(diff.ns(units or 0), scale) for units in (whole.before_units, whole.after_units))
    total = f"{diff_words.change(diff.ns(whole.change_units), scale):>9} " + " ".join(f"{text:>9}" for text in figures)
    page.fixed(f"{total}  total", style="dim")


def _colour(change_ns: float) -> str:
    return "" if not change_ns else _RED if change_ns > 0 else _GREEN


def _calls(page: TextPage, diff: Diff) -> None:
    calls = diff_words.calls(diff, _CALLS)
    if not calls:
        return
    page.heading("Calls whose time changed most", "  (a second view of kernels above)")
    for call in calls:
        page.line(Text.assemble(call.name, (f" {call.shapes}", "dim")), f"{call.change:>9}  ")
        page.line(f"{call.before} → {call.after}; {call.note}", " " * 11, style="dim")


def _list(page: TextPage, title: str, lines: list[str]) -> None:
    if lines:
        page.heading(title)
    for text in lines:
        page.line(text, "- ")
