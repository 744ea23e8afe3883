"""A report as panels: what the terminal, Markdown and HTML show of it in the same words and the same order.

For reports that are a headline, a few figures and sections of lines, tables and charts. A page knows nothing of what it
shows; who makes one decides on every word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steptime.report.plain_table import Table


@dataclass(frozen=True)
class Chart:
    """A drawing for the HTML page. legend: (text, colour). steered: has buttons, and the selection `charts.ZOOM`."""

    id: str
    spec: dict[str, Any]
    caption: str
    legend: list[tuple[str, str]] = field(default_factory=list)
    steered: bool = False
    title: str = ""


@dataclass(frozen=True)
class Panel:
    """One section. why: what can't be told here and what to do about it. folded: of use to few readers.

    sources: where figures are from, which a terminal has no room for.
    """

    id: str
    title: str
    lines: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    folded: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.lines or self.why or self.charts or self.tables or self.items)


@dataclass(frozen=True)
class Page:
    """The whole report: what it is about, its one sentence, its main figures as (value, what it is), its panels."""

    title: str
    eyebrow: str
    verdict: str
    figures: list[tuple[str, str]]
    panels: list[Panel]
    tool: str

    @property
    def shown(self) -> list[Panel]:
        """The panels that hold something."""
        return [panel for panel in self.panels if not panel.empty]
