"""How a report is shown: one row of `FORMATS` for each way.

A renderer takes a finished `Report` and returns text. It computes no figure that the report does not hold and imports
nothing but `model`, `errors` and `store`. Libraries for drawing load when a format is used, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from steptime.errors import UsageError
from steptime.model import Diff, Report

#: Columns of a report that goes to a file, where there is no terminal to ask.
FILE_COLUMNS = 100


class Format(NamedTuple):
    """One way to write a report or a diff: the suffix that asks for it, and the function that makes the text."""

    suffix: str
    render: Callable[[Any], str]
    title: str


def _terminal(report: Report) -> str:
    from steptime.report import terminal

    return terminal.render(report, width=FILE_COLUMNS)


def _markdown(report: Report) -> str:
    from steptime.report import markdown

    return markdown.render(report)


def _html(report: Report) -> str:
    from steptime.report import html

    return html.render(report)


def _perfetto(report: Report) -> str:
    from steptime.report import perfetto

    return perfetto.render(report)


def _json(report: Report) -> str:
    from steptime import store

    return store.dumps(report)


FORMATS: dict[str, Format] = {
    "terminal": Format(".txt", _terminal, "plain text, as in the terminal"),
    "markdown": Format(".md", _markdown, "Markdown for a pull request"),
    "html": Format(".html", _html, "one page with charts that opens without a network"),
    "perfetto": Format(".perfetto.json", _perfetto, "the lost time as tracks, to open beside the trace in Perfetto"),
    "json": Format(".json", _json, "the report itself, for `show` and other programs"),
}


def _diff_terminal(diff: Diff) -> str:
    from steptime.report import diff_terminal

    return diff_terminal.render(diff, width=FILE_COLUMNS)


def _diff_markdown(diff: Diff) -> str:
    from steptime.report import diff_markdown

    return diff_markdown.render(diff)


def _diff_html(diff: Diff) -> str:
    from steptime.report import diff_html

    return diff_html.render(diff)


def _diff_json(diff: Diff) -> str:
    from steptime import store

    return store.dumps(diff)


#: How a diff is shown.
DIFF_FORMATS: dict[str, Format] = {
    "terminal": Format(".txt", _diff_terminal, "plain text, as in the terminal"),
    "markdown": Format(".md", _diff_markdown, "Markdown for a pull request"),
    "html": Format(".html", _diff_html, "one page that opens without a network"),
    "json": Format(".json", _diff_json, "the diff itself, with exact amounts"),
}


def format_for(path: str | PurePath, formats: Mapping[str, Format] = FORMATS) -> Format:
    """Return the format that the suffix of `path` asks for, out of `formats`.

    Raises:
        UsageError: no format has that suffix.
    """
    name = PurePath(path).name.lower()
    # The longest suffix decides, so that ".perfetto.json" is not taken for ".json".
    for form in sorted(formats.values(), key=lambda form: -len(form.suffix)):
        if name.endswith(form.suffix) and len(name) > len(form.suffix):
            return form
    suffix = PurePath(path).suffix.lower()
    known = ", ".join(sorted(form.suffix for form in formats.values()))
    wrong = f"no report format has the suffix {suffix}" if suffix else "no suffix, so no report format"
    raise UsageError(f"{path}: {wrong}: use one of {known}")
