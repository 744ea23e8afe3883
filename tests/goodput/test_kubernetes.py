"""Kubernetes' events with a known truth, worked out by hand in seconds after 2024-05-01 00:00 UTC."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from steptime.errors import LogError
from steptime.goodput.assess import Options, assess
from steptime.goodput.logs import Reading
from steptime.model.goodput import GoodputReport

S = 10**9
T0 = datetime(2024, 5, 1, tzinfo=timezone.utc)
Item = dict[str, object]


def stamp(seconds: int) -> str:
    return (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(seconds: int, reason: str, name: str = "trainer-0", kind: str = "Pod", **more: object) -> Item:
    """An event as the API server writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{seconds:x}", "namespace": "ml", "creationTimestamp": stamp(seconds)},
        "involvedObject": {"kind": kind, "name": name, "namespace": "ml"},
        "reason": reason,
        "message": "",
        "type": "Warning",
        "firstTimestamp": stamp(seconds),
        "lastTimestamp": stamp(seconds),
        "count": 1,
        "source": {"component": "kubelet", "host": "node-a"},
        **more,
    }


def as_list(items: list[Item]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4)


def as_lines(items: list[Item]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def as_documents(items: list[Item]) -> str:
    """What ``kubectl get events -o json --watch`` prints: indented documents one after the other."""
    return "\n".join(json.dumps(item, indent=4) for item in items) + "\n"


def _assess(tmp_path: Path, text: str, options: Options = Options()) -> GoodputReport:  # noqa: B008 - frozen
    path = tmp_path / "events.json"
    path.write_text(text)
    report = assess([str(path)], options)
    report.check()
    return report


def _parts(report: GoodputReport) -> dict[str, int]:
    return {part.id: part.ns // S for part in report.parts if part.ns}


RUN: list[Item] = [
    event(0, "Started"),
    event(5, "Started", "trainer-1"),
    # An Xid on a node, the pod killed 100 s later, both containers back at 700 s.
    event(10_000, "XidError", "node-a", "Node", message="Xid 79: GPU has fallen off the bus"),
    event(10_100, "Killing"),
    event(10_101, "Killing", "trainer-1"),
    event(10_690, "Started"),
    event(10_700, "Started", "trainer-1"),
    # Out of memory: the container ends, backs off once more after a start that did not stay.
    event(50_000, "OOMKilling", "node-b", "Node", message="Memory cgroup out of memory: Killed process 1"),
    event(50_060, "Started"),
    event(50_070, "BackOff"),
    event(50_300, "Started"),
    event(90_000, "Completed", "pretrain", "PyTorchJob"),
]


@pytest.mark.parametrize("write", [as_list, as_lines, as_documents])
def test_failures_and_what_started_after_them(write: Callable[[list[Item]], str], tmp_path: Path) -> None:
    report = _assess(tmp_path, write(RUN))
    assert _parts(report) == {"detection": 100, "restart": 600, "unsplit": 300}
    assert report.total_ns == 90_000 * S
    assert report.eta == 1 - 1_000 / 90_000
    assert report.mtbf is not None
    assert (report.mtbf.failures, report.mtbf.mtbf_h) == (2, 12.5)
    assert [(one.cause, one.host) for one in report.interruptions] == [
        ("faulty_gpu", "node-a"),
        ("out_of_memory", "node-b"),
    ]
    assert report.inputs[0].bad_lines == 0
    assert any("events show pods, not training" in text for text in report.warnings)


def test_order_copies_and_newer_events(tmp_path: Path) -> None:
    newer = [
        {key: value for key, value in item.items() if key not in ("firstTimestamp", "lastTimestamp", "count")}
        | {"eventTime": str(item["firstTimestamp"]).replace("Z", ".000000Z"), "firstTimestamp": None}
        for item in RUN
    ]
    report = _assess(tmp_path, as_list([*reversed(newer), newer[3], newer[3]]))
    assert _parts(report) == {"detection": 100, "restart": 600, "unsplit": 300}
    assert report.inputs[0].duplicates == 2


def test_a_list_that_was_cut(tmp_path: Path) -> None:
    text = as_list(RUN[:7])
    report = _assess(tmp_path, text[: text.rindex('"reason"')], Options(until=stamp(20_000)))
    # The last start is lost with the cut: the one before it, 10 s earlier, is the last known.
    assert _parts(report) == {"detection": 100, "restart": 590}
    (log,) = report.inputs
    assert log.bad_lines == 1
    assert "cut or not JSON" in log.bad_examples[0]


def test_lines_that_are_no_events(tmp_path: Path) -> None:
    bad: list[Item] = [
        {"kind": "Event", "involvedObject": {"kind": "Pod"}, "reason": "Killing"},
        {"kind": "Event", "involvedObject": None, "reason": "Killing", "firstTimestamp": stamp(20_000)},
        event(20_000, "Killing", firstTimestamp="now", lastTimestamp=None),
    ]
    text = as_lines([*RUN[:4], *bad, *RUN[4:]]) + '{"kind": "Event", "invol'
    report = _assess(tmp_path, text)
    assert _parts(report) == {"detection": 100, "restart": 600, "unsplit": 300}
    assert report.inputs[0].bad_lines == 4


def test_repeats_that_were_counted_keep_two_times(tmp_path: Path) -> None:
    """A node that was not ready at 10,000 and at 50,000 s, counted five times: three are without a time."""
    flap = event(10_000, "NodeNotReady", "node-c", "Node", lastTimestamp=stamp(50_000), count=5)
    items = [event(0, "Started"), flap, event(10_500, "Started"), event(50_400, "Started")]
    report = _assess(tmp_path, as_list([*items, event(86_400, "Completed")]))
    assert _parts(report) == {"unsplit": 900}
    assert [one.host for one in report.hosts] == ["node-c"]
    assert any("3 repeats of failures have no time of their own" in text for text in report.warnings)


def test_a_start_that_is_missing_leaves_bounds(tmp_path: Path) -> None:
    """Without the starts after it, the first failure may have lasted a moment or until the second one."""
    report = _assess(tmp_path, as_list([item for item in RUN if not 10_600 < _seconds(item) < 10_800]))
    assert report.mtbf is not None
    assert report.mtbf.failures == 2
    assert _parts(report) == {"detection": 100, "unknown": 50_000 - 10_100, "unsplit": 300}
    assert (report.eta, report.eta_high) == (None, 1 - 400 / 90_000)
    assert report.eta_low == 1 - (40_000 + 300) / 90_000


def _seconds(item: Item) -> float:
    return (datetime.fromisoformat(str(item["firstTimestamp"]).replace("Z", "+00:00")) - T0).total_seconds()


def test_an_open_interruption_and_a_run_without_an_end(tmp_path: Path) -> None:
    items = [event(0, "Started"), event(80_000, "Evicted", message="node shutdown")]
    open_ended = _assess(tmp_path, as_list(items))
    assert (open_ended.eta, open_ended.mtbf) == (None, None)
    assert any("ended: give --until" in text for text in open_ended.cannot_tell)
    report = _assess(tmp_path, as_list(items), Options(until=stamp(100_000)))
    assert _parts(report) == {"unsplit": 20_000}
    assert report.eta == 0.8


def test_only_the_job_that_is_asked_for(tmp_path: Path) -> None:
    other = [event(30_000, "Killing", "notebook-7"), event(30_500, "Started", "notebook-7")]
    report = _assess(
        tmp_path, as_list([*RUN[:7], *other, *RUN[7:]]), Options(reading=Reading(job="trainer"), until=stamp(90_000))
    )
    assert _parts(report) == {"detection": 100, "restart": 600, "unsplit": 300}
    with pytest.raises(LogError, match="no event of the job"):
        _assess(tmp_path, as_list(other), Options(reading=Reading(job="trainer")))


def test_a_container_killed_as_the_job_completes_is_no_failure(tmp_path: Path) -> None:
    report = _assess(tmp_path, as_list([event(0, "Started"), event(9_990, "Killing"), event(10_000, "Completed")]))
    assert (report.eta, report.interruptions) == (1.0, [])
