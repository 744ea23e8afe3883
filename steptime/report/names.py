"""Names from traces, made safe to print and short without becoming ambiguous.

A name in a trace is whatever a program put there: terminal escapes, markup, direction marks, a kilobyte of C++
template. Nothing that this module returns holds a character that a terminal or a browser would act on.
"""

from __future__ import annotations

import os.path
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable

ELLIPSIS = "…"
#: Control, format (direction marks, zero-width), surrogate, private, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: What C++ adds to every kernel's name and that tells nothing apart; removed only while names stay distinct.
_NOISE = re.compile(r"^void |\(anonymous namespace\)::|\bat::native::|(?:, )?std::array<char\*, \d+ul>|\bstd::")


def visible(text: str) -> str:
    r"""`text` in which each character that does not print is written out (``\x1b``, ``\u202e``).

    Marks that stack on the character before are kept up to two in a row: more is decoration that spills over lines.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > 2:
            continue
        shown.append(char.encode("unicode_escape").decode("ascii") if category in _HIDDEN else char)
    return "".join(shown)


def brief(text: str, width: int = 60) -> str:
    """`text` made printable and cut to `width`, for where it stands in a sentence; empty text is named as that."""
    return middle(visible(text), width) or "(empty)"


def middle(text: str, width: int) -> str:
    """`text` cut in the middle to at most `width` characters; the end is kept because variants differ there."""
    if len(text) <= width:
        return text
    if width < 2:
        return ELLIPSIS[:width]
    tail = (width - 1) * 2 // 5
    return text[: width - 1 - tail] + ELLIPSIS + (text[-tail:] if tail else "")


def shorten_all(names: Iterable[str], width: int) -> dict[str, str]:
    """Map each name to printable text of at most `width` characters, different for different names.

    Long names lose C++ noise, then deep template arguments, then their middle. Names that would come out equal show
    the place where they first differ, and if that fails too, a number. `width` below 16 is taken as 16.
    """
    width = max(width, 16)
    full = {name: visible(name) or "(no name)" for name in dict.fromkeys(names)}
    short = {name: _candidate(text, width) for name, text in full.items()}
    groups: dict[str, list[str]] = defaultdict(list)
    for name, text in short.items():
        groups[text].append(name)
    for group in groups.values():
        if len(group) > 1:
            short.update(_tell_apart({name: full[name] for name in group}, width))
    seen = Counter(short.values())
    repeated: Counter[str] = Counter()
    for name, text in short.items():
        if seen[text] > 1:
            repeated[text] += 1
            mark = f" [{repeated[text]}]"
            short[name] = middle(text, width - len(mark)) + mark
    return short


def _candidate(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    plain = _NOISE.sub("", text)
    bare = _without_parameters(plain)
    for shorter in (plain, bare, *(_fold(bare, depth) for depth in (3, 2, 1))):
        if len(shorter) <= width:
            return shorter
    return middle(bare, width)


def _without_parameters(text: str) -> str:
    """Drop a C++ function's parameter list: what the template arguments before it already say."""
    if not text.endswith(")"):
        return text
    level = 0
    for at in range(len(text) - 1, 0, -1):
        level += {")": 1, "(": -1}.get(text[at], 0)
        if level == 0:
            return text[:at]
    return text


def _fold(text: str, depth: int) -> str:
    """Replace what is nested `depth` or more brackets deep by an ellipsis."""
    shown: list[str] = []
    level = 0
    for char in text:
        if char in ">)" and level > 0:
            level -= 1
        if level < depth:
            shown.append(char)
        elif shown[-1] != ELLIPSIS:
            shown.append(ELLIPSIS)
        if char in "<(":
            level += 1
    return "".join(shown)


def _tell_apart(full: dict[str, str], width: int) -> dict[str, str]:
    """Show the head of each name of one group and the place where the group's names part."""
    bare = {name: _without_parameters(_NOISE.sub("", text)) for name, text in full.items()}
    texts = bare if len(set(bare.values())) == len(full) else full
    at = len(os.path.commonprefix(list(texts.values())))
    head = width // 3
    if at <= head:
        return {name: middle(text, width) for name, text in texts.items()}
    shown = {}
    for name, text in texts.items():
        rest = text[max(head, at - 6) :]
        shown[name] = text[:head] + ELLIPSIS + _head(rest, width - head - 1)
    return shown


def _head(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + ELLIPSIS
