"""Panels as text for a terminal. What comes from a log is printed as plain text: no markup, no control characters."""

from __future__ import annotations

import io
import shutil

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from steptime.report.panels import Page, Panel
from steptime.report.plain_table import Table

MIN_WIDTH, MAX_WIDTH = 72, 140


def render(page: Page, width: int | None = None, color: bool = False) -> str:
    """Return the page as text of at most `width` columns (72 to 140), ending in a newline.

    Args:
        page: what to show.
        width: columns; None takes the width of the terminal, 100 where there is none.
        color: emit ANSI colours; without them the text is plain.
    """
    columns = shutil.get_terminal_size((100, 40)).columns if width is None else width
    console = Console(
        file=io.StringIO(),
        width=max(MIN_WIDTH, min(columns, MAX_WIDTH)),
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(Text(page.verdict, style="bold"))
    for panel in page.shown:
        _panel(console, panel)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() if not color else line for line in file.getvalue().split("\n"))


def _panel(console: Console, panel: Panel) -> None:
    console.print()
    console.print(Text(panel.title, style="bold"))
    for line in panel.lines:
        console.print(Text(line))
    for text in panel.why:
        console.print(_item(text, "yellow"))
    for title, data in panel.tables:
        if title and title != panel.title:
            console.print(Text(title, style="underline"))
        console.print(_table(data))
        if data.more:
            console.print(Text(f"{data.more} more in the JSON report.", style="bright_black"))
    for item in panel.items:
        console.print(_item(item))


def _item(text: str, style: str = "") -> RichTable:
    """A line that begins with a dash and goes on below its own beginning."""
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold")
    grid.add_row(Text("-"), Text(text, style=style))
    return grid


def _table(data: Table) -> RichTable:
    grid = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    for at, head in enumerate(data.head):
        number = at < data.numbers
        grid.add_column(Text(head), justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in data.rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid
