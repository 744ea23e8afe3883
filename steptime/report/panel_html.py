"""Panels as one HTML file that opens from disk, in the design of the report on the step."""

from __future__ import annotations

from markupsafe import Markup

from steptime.report import html_file, pages
from steptime.report.panels import Page


def render(page: Page) -> str:
    """Return the page as HTML, ending in a newline. Equal pages give equal bytes."""
    specs = {chart.id: chart.spec for panel in page.shown for chart in panel.charts}
    library, script = html_file.library(), pages.asset("charts.js")
    context = {
        "page": page,
        "specs_json": Markup(html_file.json_text(specs)),
        "style": Markup(pages.asset("style.css")),
        "library": Markup(library),
        "script": Markup(script),
        "policy": pages.policy(library, script),
    }
    text = pages.environment().get_template("panels.html.jinja").render(context)
    return text if text.endswith("\n") else f"{text}\n"
