"""How a goodput report is shown: one row of `FORMATS` for each way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from steptime.errors import UsageError
from steptime.model.goodput import GoodputReport
from steptime.report import FILE_COLUMNS


class GoodputFormat(NamedTuple):
    """One way to write a goodput report: the suffix that asks for it, and the function that makes the text."""

    suffix: str
    render: Callable[[GoodputReport], str]


def terminal(report: GoodputReport, width: int | None = FILE_COLUMNS, color: bool = False) -> str:
    """The report as text; see `panel_terminal.render`."""
    from steptime.report import goodput_page, panel_terminal

    return panel_terminal.render(goodput_page.goodput_page(report), width, color)


def _markdown(report: GoodputReport) -> str:
    from steptime.report import goodput_page, panel_markdown

    return panel_markdown.render(goodput_page.goodput_page(report))


def _html(report: GoodputReport) -> str:
    from steptime.report import goodput_page, panel_html

    return panel_html.render(goodput_page.goodput_page(report, drawn=True))


def _json(report: GoodputReport) -> str:
    from steptime import store

    return store.dumps(report)


FORMATS: dict[str, GoodputFormat] = {
    "terminal": GoodputFormat(".txt", terminal),
    "markdown": GoodputFormat(".md", _markdown),
    "html": GoodputFormat(".html", _html),
    "json": GoodputFormat(".json", _json),
}


def format_for(path: str | PurePath) -> GoodputFormat:
    """Return the format that the suffix of `path` asks for.

    Raises:
        UsageError: no format has that suffix.
    """
    name = PurePath(path).name.lower()
    for form in FORMATS.values():
        if name.endswith(form.suffix) and len(name) > len(form.suffix) and not name.endswith(".perfetto.json"):
            return form
    known = ", ".join(sorted(form.suffix for form in FORMATS.values()))
    raise UsageError(f"{path}: a goodput report has no such format: use one of {known}")
