"""Pieces of GitHub-flavoured Markdown; text from a trace is escaped so that it draws no table, tag, link or mention."""

from __future__ import annotations

import re

from steptime.report.names import visible

_SPECIAL = re.compile(r"[\\`*\[\]~#|!]|(?<!\w)_|_(?!\w)")
_ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "&<>|`*_[]~\\@#"})


def table(head: list[str], rows: list[list[str]], right: int) -> str:
    """A table whose first `right` columns are numbers."""
    marks = ["---:"] * right + ["---"] * (len(head) - right)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, marks, *rows])


def folded(title: str, body: str) -> str:
    """A part that opens on a click; nothing where there is no body."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def text(given: str) -> str:
    """Plain text: nothing in it formats, links or mentions."""
    escaped = visible(given).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = _SPECIAL.sub(lambda found: f"\\{found[0]}", escaped)
    # A mention would notify whoever bears that name; a comment inside it is invisible and breaks it.
    return escaped.replace("@", "@<!-- -->")


def code(name: str) -> str:
    """A name in code style: a code span, or where the name holds what a table cell or a span can't, entities."""
    if not re.search(r"[`|\\]|^\s|\s$|^$", name):
        return f"`{name}`"
    return f"<code>{name.translate(_ENTITIES)}</code>"
