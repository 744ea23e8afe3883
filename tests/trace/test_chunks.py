"""Cutting a trace's text into pieces loses nothing, whatever the size of the pieces.

The judge is `json.loads` of the whole text: same events in the same order, same header. A piece that was cut inside a
list of objects can't pass for an array of events: it does not decode, and `parse` then reads the file in one piece.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.errors import NotATrace
from steptime.trace.chunks import TraceText
from steptime.trace.parse import parse

#: Names and values that look like the borders the cutter searches for.
HOSTILE = [
    '},{"ph',
    '},{"ph":"X"',
    '}, {"name": ',
    "}]",
    "}],",
    '}],"distributedInfo":{',
    '"traceEvents":[',
    '"traceEvents": [{"ph": "X"',
    "]}",
    "\\",
    '\\"},{"ph":',
    "{",
    "[",
    "é🙂\u2028",
]
PROPERTIES = [{"id": 0, "name": "NVIDIA A100"}, {"id": 1, "name": "}]"}]
INFO = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}


def event(number: int, label: str = "aten::mm", /, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": label, "pid": 1, "tid": 2, "ts": number, "dur": 5, "args": args}


def read(text: bytes, chunk_bytes: int) -> tuple[list[Any], dict[str, Any], int]:
    """Events, header and number of pieces. Every piece must be whole JSON by itself."""
    found: list[Any] = []
    source = TraceText(io.BytesIO(text), "a.json", chunk_bytes)
    pieces = 0
    for piece in source:
        part = json.loads(bytes(piece))
        assert isinstance(part, list)
        found.extend(part)
        pieces += 1
    assert source.bytes_read == len(text)
    return found, source.header, pieces


def check(text: bytes, expected: object, *, may_fail: bool = False, sizes: list[int] | None = None) -> None:
    """Compare with the whole, at chunk sizes from 64 bytes to more than the text.

    Where `may_fail`, pieces smaller than the whole may also be ones that do not decode; the whole must be right.
    """
    whole = len(text) + 1
    if isinstance(expected, list):
        events, header = expected, {}
    else:
        assert isinstance(expected, dict)
        events, header = expected["traceEvents"], {key: expected[key] for key in expected if key != "traceEvents"}
    for size in sizes or sorted({*range(64, min(whole, 700)), *range(700, whole, 97), whole, 16 << 20}):
        try:
            found, head, _ = read(text, size)
        except (json.JSONDecodeError, msgspec.DecodeError):
            assert may_fail, f"chunks of {size} bytes"
            assert size < whole, f"chunks of {size} bytes"
            continue
        assert found == events, f"chunks of {size} bytes"
        assert {key: head[key] for key in head if key != "traceEvents"} == header, f"chunks of {size} bytes"


def nested() -> list[dict[str, Any]]:
    """Events whose arguments hold lists of objects, and objects that look like events."""
    inner = [{"ph": "X", "name": "inner"}, {"name": "b", "ts": 1}]
    return [
        event(1, **{"Input Dims": [[2, 3], []], "objects": inner, "last": inner}),
        event(2, text="}]", list=[{"a": [{"b": 1}]}]),
        event(3, Call={"ph": "f", "args": [{"ts": 1}, {"dur": 2}]}, more=[[{"id": 1}, {"id": 2}]]),
        event(4),
        event(5, pg_config=[{"pid": 0}]),
    ]


def many(count: int = 12) -> list[dict[str, Any]]:
    return [
        event(number, HOSTILE[number % len(HOSTILE)], note=HOSTILE[-1 - number % len(HOSTILE)])
        for number in range(count)
    ]


SHAPES: dict[str, dict[str, Any]] = {
    "header before": {"schemaVersion": 1, "deviceProperties": PROPERTIES, "traceEvents": many()},
    "nested arguments": {"traceEvents": nested(), "traceName": "x"},
    "deviceProperties after the events": {
        "traceEvents": nested(),
        "deviceProperties": PROPERTIES,
        "displayTimeUnit": "ms",
    },
    "distributedInfo last": {"deviceProperties": PROPERTIES, "traceEvents": many(), "distributedInfo": INFO},
    "events last": {"distributedInfo": INFO, "traceEvents": nested() + many()},
    "lists of objects on both sides": {
        "a": PROPERTIES,
        "traceEvents": many(),
        "b": PROPERTIES,
        "c": [{"d": PROPERTIES}],
    },
    "one event": {"traceEvents": [event(1)], "distributedInfo": INFO},
    "empty array": {"traceEvents": [], "distributedInfo": INFO},
    "empty array, lists behind": {"traceEvents": [], "deviceProperties": PROPERTIES},
    "empty array alone": {"traceEvents": []},
    "the word inside a name": {"traceName": "see traceEvents", "traceEvents": [event(1, '"traceEvents":[')]},
}
#: Lists of objects that begin like an event, in the arguments of an event or behind the events.
ODD = {
    "nested arguments",
    "deviceProperties after the events",
    "events last",
    "lists of objects on both sides",
    "empty array, lists behind",
}
STYLES: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "indented": {"indent": 2},
    "raw unicode": {"ensure_ascii": False, "indent": 1},
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_objects(shape: str, style: str) -> None:
    text = json.dumps(SHAPES[shape], **STYLES[style]).encode()
    check(text, json.loads(text), may_fail=shape in ODD)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("events", [nested(), many(), [event(1)], []], ids=["nested", "many", "one", "none"])
def test_bare_arrays(events: list[dict[str, Any]], style: str) -> None:
    text = json.dumps(events, **STYLES[style]).encode()
    check(text, json.loads(text), may_fail=events == nested())
    check(b"\n  " + text + b"\n\n", json.loads(text), may_fail=events == nested())


@pytest.mark.parametrize("end", [",", ", ", ",\n", " ,\r\n\t"])
@pytest.mark.parametrize(
    "tail", ["", ', "distributedInfo": {"rank": 3}', ', "deviceProperties": [{"id": 0}, {"id": 1}]']
)
def test_a_comma_after_the_last_event(end: str, tail: str) -> None:
    # Kineto files of some years end their array with a comma; JSON has no such thing, so the judge reads it without.
    events = ",".join(json.dumps(one) for one in many())
    text = f'{{"traceEvents": [{events}{end}]{tail}}}'.encode()
    check(text, json.loads(f'{{"traceEvents": [{events}]{tail}}}'), may_fail="deviceProperties" in tail)
    if not tail:
        check(f"[{events}{end}]".encode(), json.loads(f"[{events}]"))


@pytest.mark.parametrize("bare", [False, True])
def test_a_byte_order_mark(bare: bool) -> None:
    whole: Any = many() if bare else {"a": 1, "traceEvents": many(), "distributedInfo": INFO}
    check(b"\xef\xbb\xbf" + json.dumps(whole).encode(), whole)


def test_line_ends_of_windows() -> None:
    whole = {"a": PROPERTIES, "traceEvents": many(), "distributedInfo": INFO}
    check(json.dumps(whole, indent=1).replace("\n", "\r\n").encode(), whole)


def test_keys_in_any_order() -> None:
    # Writers differ in which key an event starts with; Perfetto's start with `name`, HTA's with `ph`.
    keys = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "args")
    events = [{key: event(number)[key] for key in keys[number:] + keys[:number]} for number in range(len(keys))]
    check(json.dumps({"traceEvents": events}).encode(), {"traceEvents": events})


def test_pieces_are_bounded() -> None:
    # 1,000 events of about 130 bytes: with 4 KiB chunks a piece must not grow with the file.
    events = [event(number) for number in range(1000)]
    text = json.dumps({"traceEvents": events}).encode()
    source = TraceText(io.BytesIO(text), "a.json", 4096)
    sizes = [len(piece) for piece in source]
    assert len(sizes) > 20
    assert max(sizes) <= 3 * 4096


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"traceEvents": many(), "distributedInfo": INFO}),
        json.dumps({"a": PROPERTIES, "traceEvents": nested()}),
        json.dumps(many()),
        json.dumps({"traceEvents": []}),
    ],
)
def test_a_cut_file_raises_wherever_it_is_cut(text: str) -> None:
    whole = text.encode()
    for cut in range(1, len(whole)):
        for size in (64, 257, len(whole)):
            with pytest.raises((msgspec.DecodeError, NotATrace, ValueError)):
                read(whole[:cut], size)


@pytest.mark.parametrize("shape", ["deviceProperties after the events", "nested arguments", "distributedInfo last"])
def test_a_file_is_read_the_same_in_any_chunks(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(SHAPES[shape]))
    whole = parse(str(path))
    for size in range(64, path.stat().st_size + 64, 61):
        table = parse(str(path), chunk_bytes=size)
        assert table.start_ns.tolist() == whole.start_ns.tolist(), f"chunks of {size} bytes"
        assert table.names == whole.names
        assert table.meta == whole.meta


def test_an_empty_file_and_another_object_are_no_trace() -> None:
    for text in (b"", b"{}", b'{"a": [1, 2]}'):
        with pytest.raises(NotATrace, match=r"a\.json.*traceEvents"):
            read(text, 64)


names = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20))
scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), names)
objects = st.dictionaries(st.one_of(names, st.sampled_from(["ph", "name", "ts", "args"])), scalars, max_size=3)
values = st.one_of(scalars, objects, st.lists(scalars, max_size=3), st.lists(objects, max_size=3))
args = st.dictionaries(names, values, max_size=3)
made_events = st.lists(
    st.builds(lambda number, name, more: event(number, name, **more), st.integers(0, 9), names, args), max_size=8
)
#: Without the words by which the reader finds the events; see the test of a key "ph" behind them.
plain = st.one_of(st.sampled_from([text for text in HOSTILE if '"' not in text]), st.text(max_size=20))
plain = plain.filter(lambda text: text != "ph" and "traceEvents" not in text)
plain_objects = st.dictionaries(plain, st.one_of(st.integers(), plain), max_size=3)
headers = st.dictionaries(plain, st.one_of(plain, plain_objects, st.lists(plain_objects, max_size=3)), max_size=3)


def test_a_key_ph_behind_the_events() -> None:
    whole = {"traceEvents": many(), "otherData": [{"ph": 1}], "more": [{"a": 1}]}
    text = json.dumps(whole).encode()
    quick = TraceText(io.BytesIO(text), "x", len(text) + 1)
    with pytest.raises(msgspec.DecodeError):
        [json.loads(bytes(piece)) for piece in quick if msgspec.json.decode(piece)]
    careful = TraceText(io.BytesIO(text), "x", len(text) + 1, careful=True)
    assert [event for piece in careful for event in json.loads(bytes(piece))] == whole["traceEvents"]


@given(headers, made_events, headers, st.sampled_from(sorted(STYLES)), st.integers(64, 400))
def test_any_trace(
    before: dict[str, Any], events: list[dict[str, Any]], after: dict[str, Any], style: str, chunk_bytes: int
) -> None:
    text = json.dumps(before | {"traceEvents": events} | after, **STYLES[style]).encode()
    check(text, json.loads(text), may_fail=True, sizes=[chunk_bytes, 1 << 20])


@given(made_events, st.sampled_from(sorted(STYLES)), st.integers(64, 400))
def test_any_bare_array(events: list[dict[str, Any]], style: str, chunk_bytes: int) -> None:
    text = json.dumps(events, **STYLES[style]).encode()
    check(text, events, may_fail=True, sizes=[chunk_bytes, 1 << 20])
