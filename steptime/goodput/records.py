"""Logs that hold one record a line (CSV, JSON lines) or one JSON array of records, to rows of named values.

Nothing is interpreted here: which column is a step and what a time means is for the readers of metrics and of
interruptions to say.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from steptime.errors import LogError
from steptime.goodput.lines import Refused, read_log

_DELIMITERS = ",\t;|"
#: Keys under which tools keep the list of their records in one JSON document (Hugging Face's trainer_state.json).
_LISTS = ("log_history", "interruptions", "events", "records")


@dataclass(frozen=True, slots=True)
class Row:
    """One record: where it stands in its file (from 1), its values by name, and its own text."""

    line: int
    values: dict[str, object]
    text: str


@dataclass(slots=True)
class Records:
    """A log as rows, in the order of the file.

    kind: ``csv``, ``jsonl`` or ``json``. notes: what a reader of the result should know of the file.
    """

    path: str
    kind: str
    rows: list[Row] = field(default_factory=list)
    refused: Refused = field(default_factory=Refused)
    notes: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        """The names of all values, in the order of first use."""
        return list(dict.fromkeys(name for row in self.rows for name in row.values))

    def where(self, row: Row) -> str:
        """Where a row stands, for messages."""
        return f"record {row.line}" if self.kind == "json" else f"line {row.line}"


def read_records(path: str) -> Records:
    """Read a log of records; the kind is told from its first character that is not white.

    Raises:
        LogError: the file can't be read, or not one record of it.
    """
    return records_of(path, read_log(path))


def records_of(path: str, data: bytes) -> Records:
    """The same from bytes that are read already."""
    first = data.lstrip()[:1]
    records = _from_json(path, data) if first in (b"[", b"{") else _from_csv(path, data)
    if not records.rows:
        said = "; ".join(records.refused.examples[:2])
        raise LogError(f"{path}: holds no record ({said or 'only a header'}): check that it is the right file")
    return records


def json_value(text: bytes) -> object:
    """One JSON value; NaN and Infinity, which Python writes though JSON has none, are read as floats.

    Raises:
        ValueError: it is none.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deep") from error


def _from_json(path: str, data: bytes) -> Records:
    document = _document(data)
    if document is not None:
        records = Records(path, "json")
        for at, item in enumerate(document, 1):
            _add(records, at, item, json.dumps(item, default=str))
        return records
    records = Records(path, "jsonl")
    for at, line in enumerate(data.split(b"\n"), 1):
        stripped = line.strip()
        if not stripped:
            continue
        text = stripped.decode("utf-8", "backslashreplace")
        try:
            item = json_value(stripped)
        except ValueError:
            last = not data.endswith(b"\n") and at == data.count(b"\n") + 1
            why = "cut, the last line has no end" if last else "not JSON"
            records.refused.add(f"line {at}", why, text)
            continue
        _add(records, at, item, text)
    return records


def _document(data: bytes) -> list[object] | None:
    """The records of a file that is one JSON document; None if it is one document a line."""
    if data.lstrip()[:1] == b"{" and b"\n" in data.strip():
        # One object a line is the usual case, and most such files are too long to try the other one first.
        head = data.lstrip().split(b"\n", 1)[0]
        try:
            json_value(head)
        except ValueError:
            pass
        else:
            return None
    try:
        whole = json_value(data)
    except ValueError:
        return None
    if isinstance(whole, dict):
        for key in _LISTS:
            if isinstance(whole.get(key), list):
                return list(whole[key])
        return None
    return whole if isinstance(whole, list) else None


def _add(records: Records, at: int, item: object, text: str) -> None:
    if isinstance(item, dict):
        nested = any(isinstance(value, dict) for value in item.values())
        records.rows.append(Row(at, dict(_flat(item, "")) if nested else item, text))
    else:
        where = f"record {at}" if records.kind == "json" else f"line {at}"
        records.refused.add(where, "no record of named values", text)


def _flat(item: dict[str, object], prefix: str) -> Iterable[tuple[str, object]]:
    """The values of nested objects, named ``outer/inner``."""
    for key, value in item.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _from_csv(path: str, data: bytes) -> Records:
    records = Records(path, "csv")
    text = data.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    lines = text.splitlines()
    head = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    delimiter = max(_DELIMITERS, key=head.count)
    header: list[str] | None = None
    repeated = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for fields in reader:
            cells = [cell.strip() for cell in fields]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if header is None:
                header = _header(path, cells)
            elif cells == header:
                repeated += 1
            elif len(cells) != len(header):
                why = f"has {len(cells)} fields, the header has {len(header)}"
                records.refused.add(f"line {reader.line_num}", why, delimiter.join(cells))
            else:
                row = Row(reader.line_num, dict(zip(header, cells, strict=True)), delimiter.join(cells))
                records.rows.append(row)
    except csv.Error as error:
        records.refused.add(f"line {reader.line_num}", f"not CSV ({error}), and nothing after it was read")
    if repeated:
        records.notes.append(f"the header stands {repeated + 1} times in the file")
    if records.rows and not text.endswith(("\n", "\r")):
        records.notes.append("the last line has no end: if it was cut, its last value is wrong")
    return records


def _header(path: str, cells: list[str]) -> list[str]:
    named = [cell or f"column {at}" for at, cell in enumerate(cells, 1)]
    twice = [name for name, count in Counter(named).items() if count > 1]
    if twice:
        raise LogError(f"{path}: two columns are called {twice[0]!r}: rename one of them")
    return named
