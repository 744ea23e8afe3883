"""A diff as one HTML page that opens from disk, in the design of the report's page and without any script."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from steptime.model import Diff
from steptime.report import diff_words, pages, units
from steptime.report.colours import leaf_colour, part_colour
from steptime.report.diff_words import Row
from steptime.report.names import brief
from steptime.report.plain_table import Table

_CALLS = 25
_NOTES = 40
#: Half of the width of the bars' column, in percent of it: a bar goes from the middle to either side.
_HALF = 50.0


@dataclass(frozen=True)
class Shown:
    """A row of the split as the page shows it; left and width place its bar, in percent of the column."""

    row: Row
    cells: list[str]
    colour: str
    kind: str
    left: float
    width: float


def render(diff: Diff) -> str:
    """Return the diff as one HTML page, ending in a newline."""
    scale = diff_words.scale(diff)
    whole = diff.whole
    ends = [diff.ns(amount or 0) for amount in (whole.before_units, whole.after_units)]
    config = [list(row) for row in diff_words.config(diff)]
    context = {
        "title": "steptime: what changed",
        "verdict": diff_words.first_line(diff),
        "differs": diff_words.differs(diff),
        "sides": diff_words.sides(diff),
        "facts": _facts(diff),
        "unit": scale.unit,
        "rows": _rows(diff),
        "total": [
            diff_words.change(diff.ns(whole.change_units), scale),
            *(diff_words.amount(ns, scale) for ns in ends),
        ],
        "calls": _calls(diff),
        "config": Table(["what", "before", "after"], config) if config else None,
        "stragglers": diff_words.stragglers(diff),
        "notes": [brief(note, 400) for note in diff.notes[:_NOTES]],
        "style": Markup(pages.asset("style.css") + pages.asset("diff.css")),
        "policy": pages.policy(),
    }
    text = pages.environment().get_template("diff.html.jinja").render(context)
    return text if text.endswith("\n") else f"{text}\n"


def _facts(diff: Diff) -> list[tuple[str, str]]:
    change = diff.ns(diff.whole.change_units)
    before, after = (side.total_ns / side.rank_steps for side in (diff.before, diff.after))
    shown = [(diff_words.signed(change), "mean step")]
    if before:
        shown.append((units.difference(change / before), "of the step before"))
    shown.append((f"{units.time(before)} → {units.time(after)}", "before → after"))
    if diff.before.mfu is not None and diff.after.mfu is not None:
        ends = [units.share(mfu) for mfu in (diff.before.mfu, diff.after.mfu)]
        shown.append((f"{ends[0]} → {ends[1]}", "MFU"))
    return shown


def _rows(diff: Diff) -> list[Shown]:
    scale = diff_words.scale(diff)
    rows = diff_words.rows(diff)
    largest = max((abs(row.change_ns) for row in rows), default=0) or 1
    found: list[Shown] = []
    for row in rows:
        width = _HALF * abs(row.change_ns) / largest
        left = _HALF if row.change_ns >= 0 else _HALF - width
        amounts = [diff_words.amount(ns, scale) for ns in (row.before_ns, row.after_ns)]
        cells = [diff_words.change(row.change_ns, scale), *amounts]
        kind = ("slice", "leaf", "item")[row.level]
        found.append(Shown(row, cells, _colour(row, found), kind, round(left, 2), round(width, 2)))
    return found


def _colour(row: Row, above: list[Shown]) -> str:
    """A slice's or leaf's own; what is in a leaf has the leaf's."""
    if row.level == 2:
        return above[-1].colour if above else part_colour("unexplained")
    return part_colour(row.key) if row.level == 0 else leaf_colour(row.key)


def _calls(diff: Diff) -> Table | None:
    shown = diff_words.calls(diff, _CALLS)
    if not shown:
        return None
    rows = [[call.change, f"{call.before} → {call.after}", f"{call.name}\n{call.shapes}", call.note] for call in shown]
    more = max(len(diff.ops) - len(shown), 0)
    return Table(["change", "time a step", "call, shapes", "what"], rows, numbers=2, codes=frozenset({2}), more=more)
