"""A gate's verdict as Markdown, for a comment on a pull request and for a step summary: less than 60 KB."""

from __future__ import annotations

from steptime.model.gate import Verdict
from steptime.report import gate_words, gfm

#: GitHub refuses a comment of more than 65,536 characters.
MAX_BYTES = 60_000
_MOVED_ROWS = 40
#: By it a workflow finds the comment that it wrote before, to replace it.
MARK = "<!-- steptime gate -->"


def render(verdict: Verdict) -> str:
    """Return the verdict as GitHub-flavoured Markdown of less than 60 KB that ends in a newline."""
    spread = gate_words.spread_line(verdict)
    sides = [gate_words.runs_line("candidate", verdict.candidate), gate_words.runs_line("baseline", verdict.baseline)]
    blocks = [
        MARK,
        f"**{gfm.text(gate_words.headline(verdict))}**",
        f"What to do: {gfm.text(verdict.remedy)}" if verdict.remedy else "",
        "  \n".join(gfm.text(line) for line in [*sides, *([spread] if spread else [])]),
        _judged(verdict),
        _moved(verdict),
        gfm.folded("What changed", _items(verdict.cause)) if len(verdict.cause) > 1 else "",
        _items(gate_words.doubts(verdict)),
    ]
    text = ""
    note = "\n*The rest is left out: it does not fit into a comment. The JSON verdict has all of it.*\n"
    for block in blocks:
        if len((text + block + note).encode()) + 2 > MAX_BYTES:
            return text + note
        text += ("\n" if text and block else "") + block + ("\n" if block else "")
    return text


def _judged(verdict: Verdict) -> str:
    if not verdict.judged:
        return ""
    rows = [[gfm.text(cell) for cell in row] for row in gate_words.judged_rows(verdict)]
    return gfm.table(gate_words.JUDGED_HEAD, rows, 0)


def _moved(verdict: Verdict) -> str:
    if not verdict.moved:
        return ""
    rows = [[gfm.text(cell) for cell in row] for row in gate_words.moved_rows(verdict, _MOVED_ROWS)]
    body = gfm.table(gate_words.MOVED_HEAD, rows, 3)
    return body if verdict.status == "regressed" else gfm.folded("Where the time went", body)


def _items(lines: list[str]) -> str:
    return "\n".join(f"- {gfm.text(line)}" for line in lines)
