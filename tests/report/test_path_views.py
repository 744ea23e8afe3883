"""The critical path in every view, from a path written by hand."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from steptime import store
from steptime.model import CriticalPath, PathPlace
from steptime.report import html, markdown, perfetto, terminal
from steptime.report.charts import Spec, timeline
from steptime.report.colours import part_colour
from steptime.report.path_chart import across_ranks, in_picture, typical_step
from steptime.report.path_words import rows, table
from tests.report.paths import hostile_path, monstrous_path, path, rich_path
from tests.report.reports import MS
from tests.report.rich_reports import EPOCH_NS, monstrous, rich


def test_the_table_has_the_largest_and_a_line_for_the_rest() -> None:
    # 70, 40 and 30 of 200 ms in two steps; 28 + 12 + 10 + 10 are left.
    assert [tuple(row)[:5] for row in rows(path(), 3)] == [
        ("35.0", "35.0", "rank 0", "stream 7", "kernels/matmul"),
        ("20.0", "20.0", "rank 37", "stream 7", "kernels/matmul"),
        ("15.0", "15.0", "rank 37", "stream 7", "kernels/attention"),
        ("30.0", "30.0", "4 more", "", ""),
    ]
    everyone = [tuple(row)[2:5] for row in rows(path(), 8)]
    assert len(everyone) == 7
    assert everyone[3:6] == [
        ("rank 0", "stream 7", "useful work"),
        ("rank 0", "host", "host/data_loader"),
        ("all members", "meeting", "exposed_comm/allreduce"),
    ]


def test_devices_are_named_where_a_rank_has_several() -> None:
    more = msgspec.structs.replace(path(), places=[*path().places, PathPlace(rank=0, device=1, where="host")])
    assert [row.who for row in rows(more, 2)[:2]] == ["rank 0, device 0", "rank 37"]


def test_the_terminal_shows_it() -> None:
    text = terminal.render(rich_path(), 100)
    assert "Critical path  (2 steps, 100.0 ms each: shorter work elsewhere shortens no step)" in text
    assert "\n  35.0      35.0  rank 0       stream 7  kernels/matmul\n" in text
    assert "\n   5.0       5.0  all members  meeting   exposed_comm/allreduce\n" in text
    assert "Critical path" not in terminal.render(rich(), 100)


def test_a_pull_request_shows_it() -> None:
    text = markdown.render(rich_path())
    assert "| points | ms/step | where | leaf |" in text
    assert "| 35.0 | 35.0 | rank 0, stream 7 | kernels/matmul |" in text
    assert "Critical path" not in markdown.render(rich())


def test_the_page_shows_it() -> None:
    shown = html.render(rich_path())
    assert "Critical path over 2 steps, 100.0 ms each" in shown
    assert "The critical path of step 11, 100.0 ms" in shown
    assert shown.count("<figcaption>Red: on the critical path. Row below: what each instant is charged to") == 2
    assert 'href="#def-critical_path"' in shown
    assert "What the steps waited for" not in html.render(rich())


def test_a_step_that_the_path_does_not_touch_says_so() -> None:
    report = rich_path()
    away = [PathPlace(rank=9, device=one.device, where=one.where) for one in path().places]
    shown = html.render(msgspec.structs.replace(report, critical_path=msgspec.structs.replace(path(), places=away)))
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", shown)
    assert len([text for text in captions if "The critical path does not touch this rank in this step." in text]) == 2


def test_it_survives_the_json_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(store.dumps(rich_path()), encoding="utf-8")
    assert store.load(file) == rich_path()


def test_where_it_lies_in_a_picture() -> None:
    report = rich_path()
    first, second = report.timelines
    # Step 10 of rank 0 from its start; step 11 of rank 37, on which it comes at 100 and leaves at 150 ms.
    assert [(one.start_ns, one.end_ns, one.leaf) for one in in_picture(path(), first)] == [
        (0, 12 * MS, "host/data_loader"),
        (12 * MS, 40 * MS, "productive"),
        (40 * MS, 60 * MS, "kernels/matmul"),
    ]
    assert [(one.start_ns, one.end_ns) for one in in_picture(path(), second)] == [(0, 10 * MS), (10 * MS, 50 * MS)]
    late = msgspec.structs.replace(first, step_start_ns=EPOCH_NS + 30 * MS, dur_ns=20 * MS)
    assert [(one.start_ns, one.end_ns) for one in in_picture(path(), late)] == [(0, 10 * MS), (10 * MS, 20 * MS)]
    assert in_picture(None, first) == []


def _data(spec: Spec | None, key: str) -> list[dict[str, Any]]:
    """The rows of the data set that has this key."""
    assert spec is not None
    return next(rows for rows in spec["datasets"].values() if rows and key in rows[0])


def test_a_timeline_has_a_row_for_it_only_where_it_is_there() -> None:
    drawn = rich_path().timelines[0]
    spec, left_out = timeline(drawn, 100, in_picture(path(), drawn))
    assert spec is not None
    assert left_out == drawn.dropped
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rect", "bar"]
    assert [layer["encoding"]["y"]["scale"]["domain"] for layer in spec["layer"]] == [
        ["critical path", "owner", "stream 7", "stream 24"]
    ] * 2
    bars = [row for rows in spec["datasets"].values() for row in rows if row.get("row") == "critical path"]
    assert [(row["s"], row["e"]) for row in bars] == [(12.0, 40.0), (40.0, 60.0), (0.0, 12.0)]
    plain, _ = timeline(drawn, 100)
    assert plain is not None
    assert plain["encoding"]["y"]["scale"]["domain"] == ["owner", "stream 7", "stream 24"]


def test_across_ranks_it_is_drawn_where_it_is() -> None:
    spec, note = across_ranks(path(), 0, 100)
    assert note == ""
    assert [(row["row"], row["s"], row["e"], row["colour"]) for row in _data(spec, "colour")] == [
        ("rank 0", 0, 12, part_colour("host")),
        ("rank 0", 12, 40, part_colour("productive")),
        ("rank 0", 40, 60, part_colour("kernels")),
        ("rank 37", 60, 70, part_colour("exposed_comm")),
        ("rank 37", 70, 100, part_colour("kernels")),
    ]
    assert _data(spec, "to") == [{"s": 60.0, "row": "rank 0", "to": "rank 37"}]
    few, note = across_ranks(path(), 0, 2)
    assert [row["e"] - row["s"] for row in _data(few, "colour")] == [28, 30]
    assert note == "Left out, the shortest: 3 pieces."


def test_of_one_rank_there_is_no_picture_across_ranks() -> None:
    alone = msgspec.structs.replace(path(), places=[PathPlace(rank=0, device=0, where="host")] * 5)
    assert across_ranks(alone, 0, 100) == (None, "")


def test_the_typical_step_is_the_one_of_median_length() -> None:
    lengths = zip(path().steps * 2, [9, 5, 7, 1], strict=True)
    steps = [msgspec.structs.replace(step, dur_ns=length) for step, length in lengths]
    assert typical_step(msgspec.structs.replace(path(), steps=steps)) == 2


def _tracks(text: str) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Slices by rank and the name of their track, times as exact decimals."""
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    ranks = {
        event["pid"]: int(re.findall(r"rank (\d+)", event["args"]["name"])[0])
        for event in events
        if event["name"] == "process_name"
    }
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault((ranks[event["pid"]], names[event["tid"]]), []).append(event)
    return found


def test_perfetto_has_a_track_of_it_on_each_rank_where_it_is() -> None:
    tracks = _tracks(perfetto.render(rich_path()))
    assert {rank for rank, name in tracks if name == "critical path"} == {0, 37}
    assert [
        (event["name"], event["ts"] * 1000 - EPOCH_NS, event["dur"] * 1000) for event in tracks[0, "critical path"]
    ] == [
        ("host/data_loader", 0, 12 * MS),
        ("productive", 12 * MS, 28 * MS),
        ("kernels/matmul", 40 * MS, 20 * MS),
        ("kernels/matmul", 150 * MS, 50 * MS),
    ]
    assert tracks[37, "critical path"][0]["args"] == {
        "what": "allreduce (dp)",
        "where": "meeting",
        "step": 10,
        "in a row": 1,
    }
    assert not [name for _, name in _tracks(perfetto.render(rich())) if name == "critical path"]


def test_on_a_clock_that_runs_slower_slices_do_not_overlap() -> None:
    made = path()
    own = [EPOCH_NS + start - start // 1_000_000 for start in made.start_ns]
    slow = msgspec.structs.replace(rich_path(), critical_path=msgspec.structs.replace(made, own_ns=own))
    events = _tracks(perfetto.render(slow))[0, "critical path"]
    # The second begins 12 ns early on this clock, and so does the first end.
    assert [(event["ts"] * 1000 - EPOCH_NS, event["dur"] * 1000) for event in events[:2]] == [
        (0, 12 * MS - 12),
        (12 * MS - 12, 28 * MS - 28),
    ]


def test_hostile_names_are_text() -> None:
    report = hostile_path()
    page = html.render(report)
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
    (table_text,) = re.findall(r"Critical path</summary>(.*?)</details>", markdown.render(report), flags=re.DOTALL)
    assert "[link](http://x)" not in table_text
    assert "<script" not in table_text
    assert "@octocat" not in table_text
    for width in (72, 140):
        text = terminal.render(msgspec.structs.replace(rich(), critical_path=report.critical_path), width)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert max(map(cell_len, text.splitlines())) <= width
    assert re.fullmatch(r"[\n\x20-\x7e]+", perfetto.render(report))


@pytest.mark.parametrize("made", [path(), hostile_path().critical_path])
def test_the_table_is_of_bounded_width(made: CriticalPath) -> None:
    shown = table(msgspec.structs.replace(rich(), critical_path=made), 12)
    assert shown is not None
    assert max(len(cell) for row in shown.rows for cell in row) <= 60


def test_however_long_it_is_the_page_stays_small() -> None:
    page = html.render(monstrous_path(monstrous()))
    assert len(page.encode()) <= html.MAX_BYTES
    assert "Left out, the shortest: " in page
