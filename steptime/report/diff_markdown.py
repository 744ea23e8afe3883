"""A diff as Markdown for a pull request, in less than 60 KB."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.model import Diff
from steptime.report import diff_words, gfm
from steptime.report.markdown import MAX_BYTES
from steptime.report.names import brief

_CALLS = 12
_ROWS = 60
_LEFT_OUT = "\n*The rest is left out: it does not fit into a comment. The JSON form has all of it.*\n"


def render(diff: Diff) -> str:
    """Return the diff as GitHub-flavoured Markdown of less than 60 KB, ending in a newline."""
    blocks = [
        f"**{gfm.text(diff_words.first_line(diff))}**",
        gfm.text(diff_words.differs(diff)),
        "  \n".join(gfm.text(line) for line in diff_words.sides(diff)),
        _items(brief(note, 400) for note in diff.notes),
        split(diff),
        _config(diff),
        gfm.folded("Late ranks", _items(diff_words.stragglers(diff))),
        gfm.folded("Calls whose time changed most", _calls(diff)),
    ]
    text = ""
    for block in blocks:
        if not block:
            continue
        if len((text + block + _LEFT_OUT).encode()) + 2 > MAX_BYTES:
            return text + _LEFT_OUT
        text += ("\n" if text else "") + block + "\n"
    return text


def split(diff: Diff, most: int = _ROWS) -> str:
    """The split as a table of at most `most` rows and the total."""
    scale = diff_words.scale(diff)
    everything = diff_words.rows(diff)
    # Slices and leaves first, where not all fits: without what is in them they still add up.
    rows = everything if len(everything) <= most else [row for row in everything if row.level < 2]
    table = []
    for row in rows:
        title = gfm.code(row.title) if row.level == 2 and row.key != "other" else gfm.text(row.title)
        title = f"**{title}**" if row.level == 0 else "&emsp;" * row.level + title
        title += f" ({gfm.text(row.note)})" if row.note else ""
        amounts = [diff_words.amount(ns, scale) for ns in (row.before_ns, row.after_ns)]
        table.append([gfm.text(cell) for cell in [diff_words.change(row.change_ns, scale), *amounts]] + [title])
    whole = diff.whole
    ends = [diff_words.amount(diff.ns(amount or 0), scale) for amount in (whole.before_units, whole.after_units)]
    total = [diff_words.change(diff.ns(whole.change_units), scale), *ends]
    table.append([*(gfm.text(cell) for cell in total), "total (mean of a rank-step)"])
    return gfm.table([f"change, {scale.unit}", "before", "after", "where"], table, right=3)


def _config(diff: Diff) -> str:
    rows = [[gfm.text(cell) for cell in row] for row in diff_words.config(diff)]
    return gfm.table(["the runs differ in", "before", "after"], rows, right=0) if rows else ""


def _calls(diff: Diff) -> str:
    rows = [
        [gfm.text(call.change), gfm.text(f"{call.before} → {call.after}"), gfm.code(call.name), gfm.code(call.shapes)]
        + [gfm.text(call.note)]
        for call in diff_words.calls(diff, _CALLS)
    ]
    return gfm.table(["change", "time a step", "call", "shapes", "what"], rows, right=2) if rows else ""


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {gfm.text(line)}" for line in lines)
