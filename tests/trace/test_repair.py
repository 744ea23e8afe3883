"""Mended text loads, says what was mended, and keeps every number.

The judge of "legal" is the standard library's strict decoder and msgspec's, neither of which is under test. Mended
texts and offsets are literals, counted by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.trace.repair import Fault, Fix, describe, locate, repair

CASES = Path(__file__).parents[3] / "shared" / "cases"
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this checkout")


def load(text: bytes) -> Any:
    """Decode strictly, and demand that both decoders agree."""
    loaded = msgspec.json.decode(text)
    assert json.loads(text) == loaded
    return loaded


@pytest.mark.parametrize(
    ("text", "mended", "fault", "count", "first"),
    [
        # Raw control characters and line ends, inside strings only.
        (b'{"a": "x\x01y"}', b'{"a": "x y"}', Fault.CONTROL, 1, 8),
        (b'{"a": "x\ny"}', b'{"a": "x y"}', Fault.CONTROL, 1, 8),
        (b'{\n"a": "x\r\n\ty"\n}', b'{\n"a": "x   y"\n}', Fault.CONTROL, 3, 9),
        (b'["a\\"\n", "b\\\\",\n1]', b'["a\\" ", "b\\\\",\n1]', Fault.CONTROL, 1, 5),
        (b"[1]\x00\x00", b"[1]  ", Fault.CONTROL, 2, 3),
        # Escapes: only the backslash that starts an illegal one is doubled.
        (rb'["C:\Users\x"]', rb'["C:\\Users\\x"]', Fault.ESCAPE, 2, 4),
        (rb'["C:\\ok\bad\U"]', rb'["C:\\ok\bad\\U"]', Fault.ESCAPE, 1, 12),
        (rb'["\\\s"]', rb'["\\\\s"]', Fault.ESCAPE, 1, 4),
        (rb'["\\server\share"]', rb'["\\server\\share"]', Fault.ESCAPE, 1, 10),
        (rb'["\u12g4 \u00e9 \u12"]', rb'["\\u12g4 \u00e9 \\u12"]', Fault.ESCAPE, 2, 2),
        (b'["\\\x01"]', b'["\\\\ "]', Fault.ESCAPE, 1, 2),
        # Half of a surrogate pair.
        (rb'["\ud83d"]', rb'["\ufffd"]', Fault.SURROGATE, 1, 2),
        (rb'["\ude00\ud83d\ude00\ud83dx"]', rb'["\ufffd\ud83d\ude00\ufffdx"]', Fault.SURROGATE, 2, 2),
        (rb'["\\ud83d\ude00"]', rb'["\\ud83d\ufffd"]', Fault.SURROGATE, 1, 9),
        # Words that JSON has not, as values only.
        (b'{"a": NaN}', b'{"a": null}', Fault.LITERAL, 1, 6),
        (b'{"a":-Infinity,"b":[nan,-inf , Inf]}', b'{"a":null,"b":[null,null , null]}', Fault.LITERAL, 4, 5),
        (b'{"NaN": "NaN", "b": [", NaN,", -nan(ind)]}', b'{"NaN": "NaN", "b": [", NaN,", null]}', Fault.LITERAL, 1, 31),
        # Bytes that are not UTF-8; U+FFFD is EF BF BD.
        (b'["a\x9f\xff("]', b'["a\xef\xbf\xbd\xef\xbf\xbd("]', Fault.ENCODING, 2, 3),
        (b'["\xef\xbf\xbd\xe2"]', b'["\xef\xbf\xbd\xef\xbf\xbd"]', Fault.ENCODING, 1, 5),
        (b'\xef\xbb\xbf[1]', b"[1]", Fault.BOM, 1, 0),
    ],
)  # fmt: skip
def test_each_fault_is_mended_and_counted(text: bytes, mended: bytes, fault: Fault, count: int, first: int) -> None:
    result = repair(text)
    assert result.text == mended
    load(mended)
    assert Fix(fault, count, first) in result.fixes


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"a": "C:\\\\Users\\\\x", "b": "\\"\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00", "c": [1.5, -2e-3, null]}',
        '{"名": "naïve NaN, inf ", \n\t"x": [true,\r\n false]}'.encode(),
        b'["\\\\", "a\\\\\\"\\\\", "information: Infinity, nan"]',
        b'["\xef\xbf\xbd"]',
    ],
)
def test_legal_text_is_untouched(text: bytes) -> None:
    result = repair(text)
    assert result.text is text
    assert result.fixes == ()
    assert result.notes == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])) | st.text("NaNinf ,:[]{}\"\\\n\té"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\"\\\n"), inner),
    max_leaves=20,
)  # fmt: skip


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_any_legal_text_is_untouched(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert repair(text).text is text


# Names as broken exporters write them raw: no quotes, and no backslash that would escape the closing quote.
raw_names = st.text("C:\\Usertnbfux/. \x01\n\téNaN012", max_size=30).map(lambda name: name + ".py")


@given(
    st.lists(
        st.tuples(raw_names, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
    )
)
def test_numbers_survive_any_raw_names(events: list[tuple[str, int, float]]) -> None:
    rows = [f'{{"name": "{name}", "ts": {ts}, "dur": {dur!r}}}' for name, ts, dur in events]
    text = ("[\n" + ",\n".join(rows) + "\n]").encode("latin-1")
    # Equal values are equal digits here, since the repr of a float is exact.
    loaded = load(repair(text).text)
    assert [(event["ts"], event["dur"]) for event in loaded] == [(ts, dur) for _, ts, dur in events]


@given(st.binary(max_size=60))
def test_any_bytes_come_out_as_utf8_that_needs_no_second_repair(text: bytes) -> None:
    mended = repair(text).text
    mended.decode()
    assert repair(mended).text == mended.removeprefix(b"\xef\xbb\xbf")


@given(st.text('"\\nUu d83e\n', max_size=12))
def test_escapes_against_a_character_loop(body: str) -> None:
    """The pattern doubles the same backslashes as the plain loop that JSON's grammar describes."""
    expected, i = "", 0
    while i < len(body):
        if body[i] != "\\":
            expected, i = expected + body[i], i + 1
            continue
        after = body[i + 1 : i + 2]
        is_hex = after == "u" and len(body) >= i + 6 and all(c in "0123456789abcdef" for c in body[i + 2 : i + 6])
        if (after and after in '"\\/bfnrt') or is_hex:
            expected, i = expected + body[i : i + 2], i + 2
        else:
            expected, i = expected + "\\\\", i + 1
    mended = repair(f"{body}".encode()).text.decode()
    # Other repairs act on the same text: line ends become spaces, half surrogates U+FFFD.
    blank = str.maketrans("\n", " ")
    assert _without_surrogates(mended).translate(blank) == _without_surrogates(expected).translate(blank)


def _without_surrogates(text: str) -> str:
    return re.sub(r"u(?:d[89a-f][0-9a-f]{2}|fffd)", "u****", text)


def test_notes_count_and_give_the_first_place() -> None:
    text = rb'{"a": "\U \s \q"}' + b"\n" + b'{"b": "\xff\x01", "c": NaN}'
    assert sorted(repair(text).notes) == [
        "1 bare NaN or Infinity read as null at byte 35",
        "1 byte sequence that is not UTF-8 replaced by U+FFFD at byte 25",
        "1 raw control character or line end replaced by a space at byte 26",
        "3 illegal escapes (backslashes) doubled, first at byte 7",
    ]


def test_pieces_of_a_file_add_up() -> None:
    one = repair(rb'["\U", "\U"]')
    two = repair(b'["\\U", "\x01"]', start=5000)
    assert describe([*one.fixes, *two.fixes]) == [
        "3 illegal escapes (backslashes) doubled, first at byte 2",
        "1 raw control character or line end replaced by a space at byte 5008",
    ]


@pytest.mark.parametrize(
    ("offset", "where"),
    [(0, "line 1, column 1"), (2, "line 1, column 3"), (3, "line 2, column 1"), (5, "line 3, column 2")],
)
def test_locate(offset: int, where: str) -> None:
    assert locate(b"ab\n\ncd", offset) == where


def numbers_and_names(name: str) -> list[tuple[str, float, float]]:
    events = json.loads(repair((CASES / name).read_bytes()).text)["traceEvents"]
    return [(event["name"], event["ts"], event.get("dur", 0)) for event in events]


@needs_cases
@pytest.mark.parametrize(
    ("case", "note", "names"),
    [
        ("A05/illegal_escapes.json", "illegal escapes (backslashes) doubled", [
            "C:\\Users\\x\\site-packages\torch\nn\\modules\\linear.py(114): forward",
            "torch\\cuda\\__init__.py(219): _lazy_init",
        ]),
        ("A05/mixed.json", "illegal escape (backslash) doubled at byte", [
            "C:\\ok\\a.py(1): f", "C:\bad\\Users\b.py(2): g",
        ]),
        ("A05/properly_escaped.json", "", ["C:\\Users\\x\\train.py(9): main"]),
        ("A05/legal_but_wrong.json", "", ["torch\nn\functional.py(12): relu", "a\b\train.py(3): step"]),
        ("A06/control_char.json", "raw control character or line end", ["torch/_inductor/config.py(0):  "]),
        ("A06/newline.json", "raw control character or line end", ["_lib = Library('x') (1): <module>"]),
        ("A06/not_utf8.json", "not UTF-8", ["model.py(7): \ufffd\ufffd\ufffd("]),
    ],
)  # fmt: skip
def test_the_files_of_cases_a05_and_a06(case: str, note: str, names: list[str]) -> None:
    """Each loads strictly, differs from its control by the broken events only, and says what was mended."""
    control = numbers_and_names(f"{case[:3]}/control.json")
    mended = numbers_and_names(case)
    assert [event for event in mended if event not in control] == [event for event in mended if event[0] in names]
    assert [event[0] for event in mended if event not in control] == names
    assert [event for event in mended if event in control] == control
    notes = repair((CASES / case).read_bytes()).notes
    assert len(notes) == bool(note)
    assert all(note in line for line in notes)


@needs_cases
def test_an_unescaped_quote_is_left_to_fail() -> None:
    text = (CASES / "A06" / "quotes.json").read_bytes()
    with pytest.raises(ValueError, match="delimiter") as error:
        json.loads(repair(text).text)
    assert isinstance(error.value, json.JSONDecodeError)
    expected = f"line {error.value.lineno}, column {error.value.colno}"
    assert locate(text, error.value.pos) == expected
