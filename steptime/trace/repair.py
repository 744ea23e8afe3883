"""JSON text that a strict decoder refuses, mended where that can't change a number.

Exporters have written raw bytes, raw line ends, Windows paths with single backslashes, cut surrogate pairs and bare
NaN into traces. Each of these is mended inside the text, and counted. An unescaped quote inside a name can't be told
from the end of the name and is left alone: decoding then fails again, and `locate` says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

import msgspec
import numpy as np
from numpy.typing import NDArray

_BOM = b"\xef\xbb\xbf"
_REPLACEMENT = b"\xef\xbf\xbd"
_QUOTE, _BACKSLASH, _MINUS = b'"\\-'

# The last backslash of an odd run: the one that starts an escape. The look-behind pins the match to the run's start.
_ESCAPE = rb"\\(?<!\\\\)(?:\\\\)*"
_ILLEGAL_ESCAPE = re.compile(_ESCAPE + rb'(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
# A whole surrogate pair has a group 2; a half on its own has not, and strict decoders refuse it.
_SURROGATE = re.compile(
    rb"(" + _ESCAPE + rb")(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
# The C++ and JavaScript spellings; JSON has no bare words but true, false and null. Each pattern begins with its word,
# which lets the search skip ahead, and looks back from there.
_LITERALS = {
    word: re.compile(word + rb"(?<=[:,\[\s-]" + word + rb")(?:\([a-z]*\))?(?=[,\]}\s])")
    for word in (b"NaN", b"nan", b"Infinity", b"Inf", b"inf")
}


class Fault(Enum):
    """What was mended: the phrase for one, and for many."""

    BOM = ("byte order mark removed", "byte order marks removed")
    CONTROL = (
        "raw control character or line end replaced by a space",
        "raw control characters or line ends replaced by spaces",
    )
    ESCAPE = ("illegal escape (backslash) doubled", "illegal escapes (backslashes) doubled")
    SURROGATE = ("half surrogate pair replaced by U+FFFD", "half surrogate pairs replaced by U+FFFD")
    LITERAL = ("bare NaN or Infinity read as null", "bare NaN or Infinity values read as null")
    ENCODING = (
        "byte sequence that is not UTF-8 replaced by U+FFFD",
        "byte sequences that are not UTF-8 replaced by U+FFFD",
    )


class Fix(msgspec.Struct, frozen=True):
    """How often one fault was mended, and the offset of the first in bytes of the file."""

    fault: Fault
    count: int
    first_byte: int


class Repair(msgspec.Struct, frozen=True):
    """The mended text and what was done to it; without a fault the text is the one given."""

    text: bytes
    fixes: tuple[Fix, ...]

    @property
    def notes(self) -> list[str]:
        """One line per kind of fault."""
        return describe(self.fixes)


def describe(fixes: Iterable[Fix]) -> list[str]:
    """One line per kind of fault, over all pieces of a file: "3 illegal escapes … doubled, first at byte 1234"."""
    count: dict[Fault, int] = {}
    first: dict[Fault, int] = {}
    for fix in fixes:
        count[fix.fault] = count.get(fix.fault, 0) + fix.count
        first[fix.fault] = min(first.get(fix.fault, fix.first_byte), fix.first_byte)
    return [
        f"{n} {fault.value[n > 1]}{', first' if n > 1 else ''} at byte {first[fault]}" for fault, n in count.items()
    ]


def locate(text: bytes, offset: int) -> str:
    """Where byte `offset` of `text` is, as "line L, column C", both from 1, the column in bytes."""
    line = text.count(b"\n", 0, offset) + 1
    column = offset - text.rfind(b"\n", 0, offset)
    return f"line {line}, column {column}"


def repair(text: bytes, start: int = 0) -> Repair:
    """Mend `text`, a piece of JSON that begins outside a string; `start` is its offset in the file.

    Numbers keep every digit. Text without a fault comes back as the same object, with no fixes. Time and memory are
    linear: at the peak 2 bytes for each byte of faultless text, up to about 8 while mending.
    """
    found: list[tuple[Fault, int, int]] = []
    mended = _blank_controls(text, found)
    mended = _replace_surrogates(mended, found)
    # Offsets hold up to here, since both of these keep the length: the rest is first looked for, then replaced.
    escape = _ILLEGAL_ESCAPE.search(mended)
    literals = _bare_literals(mended)
    if literals:
        found.append((Fault.LITERAL, len(literals), literals[0][0]))
        mended = _replaced(mended, literals, b"null")
    if escape:
        mended, count = _ILLEGAL_ESCAPE.subn(rb"\g<0>\\", mended)
        found.append((Fault.ESCAPE, count, escape.end() - 1))
    mended = _replace_bytes(mended, text, found)
    if start == 0 and mended.startswith(_BOM):
        found.append((Fault.BOM, 1, 0))
        mended = mended[len(_BOM) :]
    return Repair(mended, tuple(Fix(fault, count, start + first) for fault, count, first in found))


def _blank_controls(text: bytes, found: list[tuple[Fault, int, int]]) -> bytes:
    """Bytes below 0x20 become spaces, unless they are the white space that JSON allows outside strings."""
    codes = np.frombuffer(text, dtype=np.uint8)
    at = np.flatnonzero(codes < 0x20)
    is_space = np.isin(codes[at], np.frombuffer(b"\t\n\r", dtype=np.uint8))
    bad = at[~is_space | _in_string(codes, at)] if len(at) else at
    if not len(bad):
        return text
    found.append((Fault.CONTROL, len(bad), int(bad[0])))
    blanked = codes.copy()
    blanked[bad] = 0x20
    return blanked.tobytes()


def _in_string(codes: NDArray[np.uint8], at: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each position lies inside a string: the quotes before it, less the escaped ones, are odd in number."""
    quotes = np.flatnonzero(codes == _QUOTE)
    slashes = np.flatnonzero(codes == _BACKSLASH)
    if len(slashes) and len(quotes):
        runs = slashes[np.diff(slashes, prepend=-2) != 1]
        follows = (quotes > 0) & (codes[quotes - 1] == _BACKSLASH)
        suspects = quotes[follows]
        run = runs[np.searchsorted(runs, suspects, side="right") - 1]
        follows[follows] = (suspects - run) % 2 == 1
        quotes = quotes[~follows]
    inside: NDArray[np.bool_] = np.searchsorted(quotes, at) % 2 == 1
    return inside


def _replace_surrogates(text: bytes, found: list[tuple[Fault, int, int]]) -> bytes:
    halves = [match for match in _SURROGATE.finditer(text) if match[2] is None]
    if not halves:
        return text
    found.append((Fault.SURROGATE, len(halves), halves[0].end(1) - 1))
    return _replaced(text, [(half.end(1), half.end()) for half in halves], b"ufffd")


def _bare_literals(text: bytes) -> list[tuple[int, int]]:
    matches = (match for word, pattern in _LITERALS.items() if word in text for match in pattern.finditer(text))
    spans = sorted((match.start() - (text[match.start() - 1] == _MINUS), match.end()) for match in matches)
    if not spans:
        return []
    starts = np.array([start for start, _ in spans], dtype=np.intp)
    inside = _in_string(np.frombuffer(text, dtype=np.uint8), starts)
    return [span for span, is_text in zip(spans, inside.tolist(), strict=True) if not is_text]


def _replaced(text: bytes, spans: list[tuple[int, int]], by: bytes) -> bytes:
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return by.join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _replace_bytes(text: bytes, original: bytes, found: list[tuple[Fault, int, int]]) -> bytes:
    if text.isascii():
        return text
    try:
        original.decode()
    except UnicodeDecodeError as error:
        mended = text.decode(errors="replace").encode()
        count = mended.count(_REPLACEMENT) - text.count(_REPLACEMENT)
        found.append((Fault.ENCODING, count, error.start))
        return mended
    return text
