"""A job under changes, shown: on the terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from steptime.errors import UsageError
from steptime.model.what_if import WhatIf
from steptime.report import FILE_COLUMNS, units
from steptime.report import what_if_words as words


class Format(NamedTuple):
    """One way to write it: the suffix that asks for it, and the function that makes the text."""

    suffix: str
    render: Callable[[WhatIf, bool], str]


def terminal(result: WhatIf, each: bool = False, width: int | None = None, color: bool = False) -> str:
    """Return the result as text, ending in a newline.

    Args:
        result: what to show.
        each: show every change alone, too.
        width: columns (72 to 140); None takes the width of the terminal, 100 where there is none.
        color: emit ANSI colours.
    """
    from rich.text import Text

    from steptime.report.text_page import TextPage, fitting

    page = TextPage(fitting(width), color)
    page.line("What if", style="bold")
    for text in words.meanings(result):
        page.line(text, "- ")
    page.line()
    page.line(words.verdict(result), style="bold")
    page.line(words.subtraction(result))
    page.line(words.trust(result), style="dim")
    rows = words.each_rows(result) if each else []
    if rows:
        page.heading("Each alone, and one after the other")
        head = words.EACH_HEAD
        widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
        for at, row in enumerate([head, *rows]):
            cells = "  ".join(f"{cell:>{size}}" for cell, size in zip(row[:-1], widths, strict=False))
            page.line(Text(row[-1], "dim" if not at else ""), Text(f" {cells}  ", "" if at else "dim"))
    path = words.path_rows(result)
    if path:
        unit = words.scale(result).unit
        page.heading("Where the critical path's time is", f"  ({unit} a step, mean of {_steps(result)})")
        page.fixed(f"{'before':>8} {'after':>8} {'change':>8}", style="dim")
        for line in path:
            lead = f"{line.before:>8} {line.after:>8} {line.change:>8}  "
            style = "" if line.title else "dim"
            page.line(Text.assemble((line.leaf, style), (f"  {line.title}" if line.title else "", "dim")), lead)
        page.line()
    for text in filter(None, (words.path_note(result), words.moved(result), words.bottleneck(result))):
        page.line(text)
    for at, text in enumerate(words.notes(result)):
        if not at:
            page.line()
        page.line(text, Text("! ", "yellow"))
    return page.text()


def markdown(result: WhatIf, each: bool = False) -> str:
    """Return the result as Markdown for a pull request, ending in a newline."""
    from steptime.report.gfm import table
    from steptime.report.gfm import text as plain

    said = [words.asked(result), words.verdict(result)]
    blocks = [
        "  \n".join(f"**{plain(text)}**" for text in said),
        "\n".join(f"- {plain(text)}" for text in words.meanings(result)),
        "  \n".join(plain(text) for text in (words.subtraction(result), words.trust(result))),
    ]
    rows = words.each_rows(result) if each else []
    if rows:
        blocks.append(table(words.EACH_HEAD, [[plain(cell) for cell in row] for row in rows], right=4))
    path = words.path_rows(result)
    if path:
        unit = words.scale(result).unit
        head = [f"{unit} before", "after", "change", f"critical path, mean of {_steps(result)}"]
        cells = [[*(plain(cell) for cell in line[:3]), _leaf(line, plain)] for line in path]
        blocks.append(table(head, cells, right=3))
    blocks += [plain(text) for text in (words.path_note(result), words.moved(result), words.bottleneck(result))]
    blocks.append("\n".join(f"- {plain(text)}" for text in words.notes(result)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _leaf(line: words.Row, plain: Callable[[str], str]) -> str:
    return plain(f"{line.leaf}: {line.title}" if line.title else line.leaf)


def _steps(result: WhatIf) -> str:
    return units.plural(result.path_steps, "step")


def _text(result: WhatIf, each: bool) -> str:
    return terminal(result, each, FILE_COLUMNS)


def _json(result: WhatIf, each: bool) -> str:  # noqa: ARG001
    from steptime import store

    return store.dumps(result)


FORMATS = (Format(".txt", _text), Format(".md", markdown), Format(".json", _json))


def format_for(path: str | PurePath) -> Format:
    """Return the format that the suffix of `path` asks for.

    Raises:
        UsageError: no format has that suffix.
    """
    for form in FORMATS:
        if PurePath(path).suffix.lower() == form.suffix and PurePath(path).stem:
            return form
    known = ", ".join(form.suffix for form in FORMATS)
    raise UsageError(f"{path}: no format of a what-if has that suffix: use one of {known}")
