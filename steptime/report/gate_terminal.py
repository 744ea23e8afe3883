"""A gate's verdict as text: one screen, the verdict first."""

from __future__ import annotations

from rich.text import Text

from steptime.model.gate import Verdict
from steptime.report import gate_words
from steptime.report.names import brief, visible
from steptime.report.text_page import TextPage, fitting

_STYLES = {"pass": "bold green", "regressed": "bold red", "cannot tell": "bold yellow"}


def render(verdict: Verdict, width: int | None = None, color: bool = False) -> str:
    """Return the verdict as text that ends in a newline; width: None takes the terminal's."""
    page = TextPage(fitting(width), color)
    page.line(gate_words.headline(verdict), style=_STYLES[verdict.status])
    if verdict.remedy:
        page.line(visible(verdict.remedy), lead="What to do: ")
    page.line()
    page.line(gate_words.runs_line("candidate", verdict.candidate))
    page.line(gate_words.runs_line("baseline", verdict.baseline))
    spread = gate_words.spread_line(verdict)
    if spread:
        page.line(spread)
    if verdict.judged:
        page.line()
        _judged(page, verdict)
    if verdict.moved:
        page.line()
        _table(page, gate_words.MOVED_HEAD, gate_words.moved_rows(verdict))
    for sentence in verdict.cause[1:]:
        page.line(visible(sentence), lead="  ")
    for doubt in gate_words.doubts(verdict):
        page.line(doubt, lead="! ")
    return page.text()


def _judged(page: TextPage, verdict: Verdict) -> None:
    """One thing a line, in words: seven columns of figures would not fit."""
    rows = gate_words.judged_rows(verdict)
    wide = [max(len(row[at]) for row in rows) for at in (0, 1)]
    for (status, name, before, after, change, interval, caught, limit), judged in zip(
        rows, verdict.judged, strict=True
    ):
        why = brief(judged.why, 200)
        span = f"{before} → {after}" if before else after
        said = [span, f"{change} ({interval})" if interval else change]
        said += [f"caught from {caught}"] if caught else []
        said += [f"limit {limit}"] if limit else []
        said += [f"can't tell: {why}"] if not interval else []
        page.line("; ".join(part for part in said if part), lead=f"{status:<{wide[0]}}  {name:<{wide[1]}}  ")


def _table(page: TextPage, head: list[str], rows: list[list[str]]) -> None:
    """Columns side by side; the last one is wrapped under its own beginning."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head) - 1)]
    for number, row in enumerate([head, *rows]):
        lead = "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=False)) + "  "
        style = "dim" if number == 0 else ""
        page.line(Text(row[-1], style=style), lead=Text(lead, style=style))
