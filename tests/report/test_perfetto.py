"""The file is checked against the trace-event format by a schema written here, and its times by exact decimals."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from steptime.model import RankSteps, Report
from steptime.report import FORMATS, format_for
from steptime.report.perfetto import FIRST_PID, microseconds, render
from tests.report.paths import hostile_path, rich_path
from tests.report.reports import MS, REPORTS, loader_bound
from tests.report.rich_reports import EPOCH_NS, adjacent_steps, hostile_rich, monstrous, rich, timeline

ALL = {**REPORTS, "rich": rich, "hostile_rich": hostile_rich, "monstrous": monstrous}
ALL |= {"rich_path": rich_path, "hostile_path": hostile_path}
#: Of "Trace Event Format", the phases that this file may have, with the keys that each must have.
KEYS = {"M": {"name", "ph", "pid", "tid", "args"}, "X": {"name", "ph", "pid", "tid", "ts", "dur"}}
ARGS_OF_METADATA = {"process_name": "name", "thread_name": "name"} | dict.fromkeys(
    ("process_sort_index", "thread_sort_index"), "sort_index"
)


def _loaded(report: Report) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(render(report), parse_float=Decimal)
    return loaded


def _slices(report: Report, track: str) -> list[dict[str, Any]]:
    """The events of all tracks of that name."""
    events = _loaded(report)["traceEvents"]
    rows = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == track
    }
    return [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) in rows]


def _ns(microseconds_: Decimal) -> int:
    ns = microseconds_ * 1000
    assert ns == int(ns)
    return int(ns)


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_it_is_a_valid_trace(build: Callable[[], Report]) -> None:
    loaded = _loaded(build())
    assert isinstance(loaded["baseTimeNanoseconds"], int)
    assert loaded["displayTimeUnit"] in ("ms", "ns")
    named: set[object] = set()
    for event in loaded["traceEvents"]:
        assert set(event) >= KEYS[event["ph"]]
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert event["name"].isprintable()
        if event["ph"] == "M":
            assert set(event["args"]) == {ARGS_OF_METADATA[event["name"]]}
            named.add((event["name"], event["pid"], event["tid"]))
        else:
            assert isinstance(event["ts"], Decimal)
            assert event["dur"] >= 0
            assert ("process_name", event["pid"], 0) in named
            assert ("thread_name", event["pid"], event["tid"]) in named


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_slices_of_a_track_nest(build: Callable[[], Report]) -> None:
    tracks = defaultdict(list)
    for event in _loaded(build())["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for slices in tracks.values():
        open_until: list[Decimal] = []
        for start, minus_length in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            end = start - minus_length
            assert not open_until or end <= open_until[-1], "overlaps a slice that it does not lie in"
            open_until.append(end)


def test_times_are_exact_to_the_nanosecond() -> None:
    # 1.7e15 µs with three decimals: a double would round to a quarter of a microsecond.
    text = render(rich())
    assert f'"ts": {EPOCH_NS // 1000}.{EPOCH_NS % 1000:03d}, "dur": 100000.000' in text
    assert "e+" not in text


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0.000"), (7, "0.007"), (1_000, "1.000"), (EPOCH_NS, "1711964646123456.789"), (-1, "-0.001")]
)
def test_microseconds(ns: int, text: str) -> None:
    assert microseconds(ns) == text


def test_every_step_of_every_rank_has_its_window_and_leaves() -> None:
    report = rich()
    shown = {(event["ts"], event["pid"]): (_ns(event["dur"]), event["args"]) for event in _slices(report, "steps")}
    assert len(shown) == 64 * 2
    for _, args in shown.values():
        parts = sum(ns for key, ns in args.items() if key.endswith("_ns") and key != "dur_ns")
        # The accounting law holds in the file, too: every window of this report has 100 ms.
        assert parts == args["dur_ns"] == 100 * MS


def test_steps_that_tile_touch_exactly() -> None:
    report = msgspec.structs.replace(
        loader_bound(), ranks=[RankSteps(rank=0, host=None, device=0, steps=adjacent_steps(5))]
    )
    events = _slices(report, "steps")
    ends = [_ns(event["ts"]) + _ns(event["dur"]) for event in events]
    assert [_ns(event["ts"]) for event in events[1:]] == ends[:-1]


def test_the_owner_row_covers_the_step_by_leaf() -> None:
    report = msgspec.structs.replace(rich(), timelines=[timeline()])
    events = _slices(report, "lost time")
    # The literal of `timeline`, in µs from the step's start.
    assert [(event["name"], _ns(event["ts"]) - EPOCH_NS, _ns(event["dur"])) for event in events] == [
        ("host/data_loader", 0, 12 * MS),
        ("kernels/matmul", 12 * MS, 40 * MS),
        ("kernels/matmul", 52 * MS, 30 * MS),
        ("exposed_comm/allreduce", 82 * MS, 15 * MS),
        ("host/launch_bound", 97 * MS, 3 * MS),
    ]
    assert events[0]["args"]["what"] == "enumerate(DataLoader)#__next__"


def test_a_step_that_is_typical_and_slowest_comes_once() -> None:
    once = msgspec.structs.replace(rich(), timelines=[timeline()])
    twice = msgspec.structs.replace(rich(), timelines=[timeline(), timeline("slowest")])
    assert len(_slices(twice, "lost time")) == len(_slices(once, "lost time")) == 5


def test_ranks_and_devices_are_processes_of_their_own() -> None:
    report = msgspec.structs.replace(
        loader_bound(),
        ranks=[RankSteps(rank=rank, host=None, device=device, steps=[]) for rank, device in ((1, 0), (0, 1), (0, 0))],
    )
    names = [event for event in _loaded(report)["traceEvents"] if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in names] == [
        "steptime: lost time, rank 0, device 0",
        "steptime: lost time, rank 0, device 1",
        "steptime: lost time, rank 1, device 0",
    ]
    # No process id of the original can be one of these.
    assert {event["pid"] for event in names} == {FIRST_PID, FIRST_PID + 1, FIRST_PID + 2}
    assert FIRST_PID > 4_194_304


@pytest.mark.parametrize("path", ["lost_time.perfetto.json", "A.PERFETTO.JSON", "out/x.y.perfetto.json"])
def test_the_longest_suffix_decides(path: str) -> None:
    assert format_for(path) is FORMATS["perfetto"]


@pytest.mark.parametrize("path", ["perfetto.json", ".perfetto.json", "xperfetto.json"])
def test_other_names_are_reports(path: str) -> None:
    assert format_for(path) is FORMATS["json"]


def test_hostile_text_stays_text() -> None:
    text = render(hostile_rich())
    assert re.fullmatch(r"[\n\x20-\x7e]+", text)
