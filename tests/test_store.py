from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime import store
from steptime.errors import ReportError
from steptime.model import SCHEMA_VERSION, Report
from tests.report.reports import REPORTS, loader_bound

Document = dict[str, Any]


@pytest.mark.parametrize("build", [build for name, build in REPORTS.items() if name != "hostile"])
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, build: Callable[[], Report]) -> None:
    store.save(build(), tmp_path / "report.json")
    assert store.load(tmp_path / "report.json") == build()


def test_hostile_text_survives_but_for_what_is_no_unicode(tmp_path: Path) -> None:
    report = REPORTS["hostile"]()
    store.save(report, tmp_path / "report.json")
    loaded = store.load(str(tmp_path / "report.json"))
    assert loaded.warnings == [text.replace("\udcff", "\\udcff") for text in report.warnings]
    assert store.dumps(loaded) == store.dumps(report)


def test_the_file_is_the_contract() -> None:
    text = store.dumps(loader_bound())
    document = json.loads(text)
    # DESIGN: a step's class is called "class", leaves are keyed slice/leaf, times are integers.
    step = document["ranks"][0]["steps"][1]
    assert (step["class"], step["leaves_ns"]["host/data_loader"]) == ("train", 69_000_000)
    assert list(document)[:2] == ["schema_version", "tool"]
    assert text.startswith("{\n  ")
    assert text.endswith("}\n")


def _document() -> Document:
    document: Document = json.loads(store.dumps(loader_bound()))
    return document


def _write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    document = _document()
    document["new"] = [1]
    document["job"]["new"] = {"a": 1}
    document["ranks"][0]["steps"][0]["new"] = None
    assert store.load(_write(tmp_path / "r.json", document)) == loader_bound()


def _edit(change: Callable[[Document], object]) -> Document:
    document = _document()
    change(document)
    return document


TRACE = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}
NEWER = SCHEMA_VERSION + 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (TRACE, "a profiler trace, not a report: run `steptime analyze`"),
        (TRACE["traceEvents"], "a profiler trace, not a report: run `steptime analyze`"),
        ({"hello": 1}, "JSON, but not a steptime report"),
        ([1, 2], "JSON, but not a steptime report"),
        ("text", "JSON, but not a steptime report"),
        (_edit(lambda d: d.pop("schema_version")), "JSON, but not a steptime report"),
        (
            _edit(lambda d: d.update(schema_version=NEWER)),
            f"schema version {NEWER}, written by steptime 0.1.0; this steptime reads version {SCHEMA_VERSION}: upgrade",
        ),
        (_edit(lambda d: d.update(schema_version=0)), "analyze the traces again"),
        ({"schema_version": NEWER, "tool": "text"}, "JSON, but not a steptime report"),
        (_edit(lambda d: d.pop("job")), "missing required field `job`"),
        (_edit(lambda d: d["job"].update(rank_steps="six")), "$.job.rank_steps"),
        (_edit(lambda d: d["job"].update(total_ns=5)), "edited or damaged, the job's parts hold"),
        (_edit(lambda d: d["ranks"][0]["steps"][2].update(dur_ns=5)), "edited or damaged, rank 0 step 6: parts hold"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, document: object, says: str) -> None:
    path = _write(tmp_path / "r.json", document)
    with pytest.raises(ReportError) as caught:
        store.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON"),
        (b"not json", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (store.dumps(loader_bound()).encode()[:400], "not valid JSON"),
        (b'{"traceEvents": [{"ph": "X", "na', "a profiler trace, not a report"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
        (
            gzip.compress(json.dumps(TRACE).encode()),
            "compressed, so not a report; if it is a trace, run `steptime analyze`",
        ),
    ],
)
def test_bytes_that_are_no_report(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(data)
    with pytest.raises(ReportError, match="r.json: ") as caught:
        store.load(path)
    assert says in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="none.json: no such file: check the path"):
        store.load(tmp_path / "none.json")
    with pytest.raises(ReportError, match="a folder, not a report; if it holds traces, run `steptime analyze`"):
        store.load(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="can't be written .* choose another place with -o"):
        store.save(loader_bound(), tmp_path / "none" / "r.json")


def test_the_history_names_the_current_version() -> None:
    assert store.__doc__ is not None
    assert f"\n  {SCHEMA_VERSION}   20" in store.__doc__
