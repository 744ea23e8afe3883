"""How a report on a run is shown, on its log, its plan or its watch: one row of `FORMATS` for each way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from steptime.errors import UsageError
from steptime.model.goodput import GoodputReport
from steptime.model.plan import Plan
from steptime.model.watch import Watch
from steptime.report import FILE_COLUMNS
from steptime.report.panels import Page

RunReport = GoodputReport | Plan | Watch


class GoodputFormat(NamedTuple):
    """One way to write a goodput report: the suffix that asks for it, and the function that makes the text."""

    suffix: str
    render: Callable[[RunReport], str]


def terminal(report: RunReport, width: int | None = FILE_COLUMNS, color: bool = False) -> str:
    """The report as text; see `panel_terminal.render`."""
    from steptime.report import panel_terminal

    return panel_terminal.render(_page(report), width, color)


def _page(report: RunReport, *, drawn: bool = False) -> Page:
    """The report as panels, by its kind."""
    if isinstance(report, Plan):
        from steptime.report.plan_page import plan_page

        return plan_page(report, drawn=drawn)
    if isinstance(report, Watch):
        from steptime.report.watch_page import watch_page

        return watch_page(report, drawn=drawn)
    from steptime.report.goodput_page import goodput_page

    return goodput_page(report, drawn=drawn)


def _markdown(report: RunReport) -> str:
    from steptime.report import panel_markdown

    return panel_markdown.render(_page(report))


def _html(report: RunReport) -> str:
    from steptime.report import panel_html

    return panel_html.render(_page(report, drawn=True))


def _json(report: RunReport) -> str:
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
