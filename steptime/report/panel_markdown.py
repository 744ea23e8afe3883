"""Panels as Markdown for a pull request or a wiki, in less than 60 KB; text from logs is escaped."""

from __future__ import annotations

from steptime.report.gfm import text as escaped
from steptime.report.markdown import MAX_BYTES
from steptime.report.panels import Page, Panel
from steptime.report.plain_table import Table


def render(page: Page) -> str:
    """Return the page as GitHub-flavoured Markdown of less than 60 KB, ending in a newline."""
    text = f"**{escaped(page.verdict)}**\n"
    note = "\n*The rest is left out: it does not fit into a comment. The JSON report has all of it.*\n"
    for panel in page.shown:
        block = _panel(panel)
        if len((text + block + note).encode()) > MAX_BYTES:
            return text + note
        text += "\n" + block
    return text


def _panel(panel: Panel) -> str:
    parts = [escaped(line) for line in panel.lines]
    parts += [f"*{escaped(text)}*" for text in panel.why]
    for title, data in panel.tables:
        if title and title != panel.title:
            parts.append(f"#### {escaped(title)}")
        parts.append(_table(data))
    if panel.items:
        parts.append("\n".join(f"- {escaped(item)}" for item in panel.items))
    if panel.sources:
        told = "\n".join(f"- {escaped(item)}" for item in panel.sources)
        parts.append(f"<details><summary>Sources</summary>\n\n{told}\n\n</details>")
    body = "\n\n".join(parts)
    if panel.folded:
        return f"<details><summary>{escaped(panel.title)}</summary>\n\n{body}\n\n</details>\n"
    return f"### {escaped(panel.title)}\n\n{body}\n"


def _table(data: Table) -> str:
    rule = ["--:" if at < data.numbers else ":--" for at in range(len(data.head))]
    rows = [data.head, rule, *data.rows]
    lines = ["| " + " | ".join(cell if row is rule else escaped(cell) for cell in row) + " |" for row in rows]
    more = [f"\n{data.more} more in the JSON report."] if data.more else []
    return "\n".join([*lines, *more])
