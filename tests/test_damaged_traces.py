"""Whatever a file holds: an exact account, or one line that refuses it. Never a traceback, never a wrong sum.

Damage is done to a good trace event by event, with values that real files have held (cases/README.md) and worse.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steptime
from steptime.errors import AccountingError, StepTimeError
from steptime.model import Report
from steptime.report import FORMATS
from tests.builders import TraceBuilder

Event = dict[str, Any]
MAX, MIN = 2**63 - 1, -(2**63)
#: The good trace lasts 20 ms.
HOUR_NS = 3_600 * 10**9


def _good() -> dict[str, Any]:
    builder = TraceBuilder(world_size=2)
    for number, at in ((3, 0), (4, 10_000)):
        builder.step(number, at, 10_000).loader(at + 5, 85).frame("train.py(33): step", at, 9_000)
        builder.op("aten::copy_", at + 100, 90).copy("HtoD", at + 200, 500, launch_at=at + 120, launch_for=40)
        builder.op("aten::mm", at + 300, 60, seq=number, shapes=[[8, 8], [8, 8]])
        builder.kernel("nvjet_tst_128x256", at + 1000, 3000, launch_at=at + 320)
        builder.collective("allreduce", at + 6000, 2000, launch_at=at + 520, seq=number)
        builder.graph_launch(at + 560, 20, [("flash_fwd_kernel", at + 8100, 300), ("ampere_sgemm", at + 8500, 300)])
        builder.optimizer(at + 600, 100).kernel("multi_tensor_apply_kernel", at + 8900, 100, launch_at=at + 650)
        builder.runtime("cudaDeviceSynchronize", at + 700, 8_300).sync_record("Stream Wait Event", at + 500, 5)
    found: dict[str, Any] = json.loads(builder.dumps())
    return found


GOOD = _good()


def _analyzed(path: Path) -> tuple[Report | None, str]:
    try:
        return steptime.analyze(str(path)), ""
    except AccountingError:
        raise
    except StepTimeError as refusal:
        return None, str(refusal)


def outcome(trace: dict[str, Any], path: Path) -> Report | str:
    """The report, or the line that refuses the file."""
    path.write_text(json.dumps(trace))
    report, refusal = _analyzed(path)
    if report is None:
        assert str(path) in refusal
        assert "\n" not in refusal
        return refusal
    for rank in report.ranks:
        for step in rank.steps:
            step.check()
            assert 0 <= step.dur_ns < HOUR_NS
    for row in FORMATS.values():
        assert row.render(report)
    return report


def _set(key: str, value: object, cat: str, nth: int = 0) -> Callable[[dict[str, Any]], None]:
    """Set a field, or an argument, of the nth event of a category."""

    def change(trace: dict[str, Any]) -> None:
        event = [event for event in trace["traceEvents"] if event.get("cat") == cat][nth]
        (event if key in event else event["args"])[key] = value

    return change


def _head(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda trace: trace.update({key: value})


DAMAGE: dict[str, list[Callable[[dict[str, Any]], None]]] = {
    "a stream number out of range": [_set("stream", -1e300, "gpu_memcpy")],
    "a correlation out of range": [_set("correlation", 1e30, "kernel")],
    "a correlation as long text": [_set("correlation", "9" * 30, "cuda_runtime")],
    "a base out of range": [_head("baseTimeNanoseconds", 2**64)],
    "a negative base": [_head("baseTimeNanoseconds", MIN)],
    "a base of another type": [_head("baseTimeNanoseconds", "soon"), _head("deviceProperties", 7)],
    "the recording's own mark far away": [_set("ts", 9.3e15, "Trace")],
    "the recording's own mark without a time": [_set("ts", None, "Trace"), _set("dur", "x", "Trace")],
    "a launch call of 292 years": [_set("dur", MAX, "cuda_runtime")],
    "a launch call of 31 years": [_set("dur", 10**15, "cuda_runtime", 1)],
    "a kernel of 292 years": [_set("dur", MAX // 1000, "kernel")],
    "the last kernel of a year": [_set("dur", 3 * 10**13, "kernel", -1)],
    "an op of 292 years": [_set("dur", 9.2e15, "cpu_op")],
    "the last mark of 292 years": [_set("dur", 9.3e15, "user_annotation", -2)],
    "a kernel of unknown length": [_set("dur", None, "kernel", 2)],
    "names and categories that are no text": [_set("name", None, "kernel"), _set("cat", 5, "cpu_op")],
    "arguments that are no object": [
        _set("args", [1], "kernel"),
        _set("args", "x", "cpu_op"),
        _set("args", 5, "cuda_runtime"),
    ],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_known_damage(damage: str, tmp_path: Path) -> None:
    trace = copy.deepcopy(GOOD)
    for change in DAMAGE[damage]:
        change(trace)
    outcome(trace, tmp_path / "rank0.json")


def test_the_good_trace_is_read(tmp_path: Path) -> None:
    report = outcome(GOOD, tmp_path / "rank0.json")
    assert isinstance(report, Report)
    assert report.job.steps == [4]


values: st.SearchStrategy[object] = st.sampled_from(
    [0, -1, 1, 10**12, 10**18, -(10**18), 9.3e15, 1e300, -1e300, MAX, MIN, 2**64, 0.5, 1e-9]
    + [None, "x", "", "12", True, [], {}, [{}], {"a": 1}]
)
change_field = st.tuples(
    st.just("field"),
    st.integers(0, 10**6),
    st.sampled_from(["ts", "dur", "pid", "tid", "cat", "name", "ph", "args"]),
    values,
)
change_argument = st.tuples(st.just("argument"), st.integers(0, 10**6), st.integers(0, 20), values)
remove_field = st.tuples(st.just("without"), st.integers(0, 10**6), st.integers(0, 20), st.none())
repeat = st.tuples(st.sampled_from(["twice", "gone"]), st.integers(0, 10**6), st.just(0), st.none())
change_head = st.tuples(st.just("head"), st.integers(0, 20), st.just(0), values)
changes = st.lists(st.one_of(change_field, change_argument, remove_field, repeat, change_head), min_size=1, max_size=4)


def damaged(todo: list[tuple[str, int, Any, Any]]) -> dict[str, Any]:
    trace = copy.deepcopy(GOOD)
    events: list[Event] = trace["traceEvents"]
    for kind, number, key, value in todo:
        event = events[number % len(events)]
        if kind == "field":
            event[key] = value
        elif kind == "argument" and isinstance(event.get("args"), dict) and event["args"]:
            event["args"][sorted(event["args"])[key % len(event["args"])]] = value
        elif kind == "without" and len(event) > 1:
            del event[sorted(event)[key % len(event)]]
        elif kind == "twice":
            events.append(copy.deepcopy(event))
        elif kind == "gone":
            events.remove(event)
        elif kind == "head":
            names = sorted(set(trace) - {"traceEvents"})
            trace[names[number % len(names)]] = value
    return trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@settings(max_examples=200)
@given(todo=changes)
def test_any_damage(todo: list[tuple[str, int, Any, Any]], folder: Path) -> None:
    outcome(damaged(todo), folder / "rank0.json")
