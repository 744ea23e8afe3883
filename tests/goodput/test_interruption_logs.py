"""Interruption logs with a known truth: every figure below was worked out by hand from the rows, in seconds."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from steptime.errors import LogError, StepTimeError, UsageError
from steptime.goodput.assess import Options, assess
from steptime.goodput.logs import Reading
from steptime.model.goodput import GoodputReport
from steptime.store import dumps

S = 10**9
T0 = datetime(2024, 5, 1, tzinfo=timezone.utc)
COLUMNS = ("time", "cause", "detected", "resumed", "step", "last_checkpoint_step", "last_checkpoint", "host")


def at(seconds: float, zone: timezone = timezone.utc) -> str:
    """That many seconds after the run began, as ISO 8601 with its zone."""
    return (T0 + timedelta(seconds=seconds)).astimezone(zone).isoformat()


def row(time: object, cause: str, detected: object = "", resumed: object = "", **more: object) -> dict[str, object]:
    """One line; numbers are seconds after the run began, text stands as it is."""
    told = {"time": time, "cause": cause, "detected": detected, "resumed": resumed, **more}
    times = ("time", "detected", "resumed", "last_checkpoint")
    return {
        key: at(value) if key in times and isinstance(value, (int, float)) else value for key, value in told.items()
    }


START, END = row(0, "start"), row(100_000, "end")


@dataclass(frozen=True)
class Known:
    """Rows of a log, and what is true of the run: seconds by part, failures, lines that can't be used, copies.

    lost: False where these rows don't tell the work lost by every interruption.
    """

    rows: list[dict[str, object]]
    parts: dict[str, int]
    failures: int
    total: int = 100_000
    bad: int = 0
    copies: int = 0
    outages: int = -1
    lost: bool = True
    tail: str = ""
    said: list[str] = field(default_factory=list)


SITUATIONS: dict[str, Known] = {
    "one failure, all told": Known(
        [START, row(10_000, "Faulty GPU", 10_060, 10_600, last_checkpoint=9_400), END],
        {"detection": 60, "restart": 540, "lost_work": 600},
        failures=1,
    ),
    "nothing happened": Known([START, END], {}, failures=0),
    # B strikes while A is restarting, and it takes B until 11,500: A owns 10,000-11,000, B what comes after.
    "overlapping failures": Known(
        [
            START,
            row(10_000, "NIC", 10_100, 11_000, last_checkpoint=9_000),
            row(10_500, "switch", 10_600, 11_500, last_checkpoint=9_000),
            END,
        ],
        {"detection": 100, "restart": 1_400, "lost_work": 1_000},
        failures=2,
        outages=1,
        said=["1 interruption began while the run was down already"],
    ),
    # B lies wholly inside A, and its detection is A's time.
    "a failure inside another": Known(
        [
            START,
            row(10_000, "NIC", 10_100, 12_000, last_checkpoint=10_000),
            row(10_500, "NIC", 10_600, 11_000, last_checkpoint=10_000),
            END,
        ],
        {"detection": 100, "restart": 1_900},
        failures=2,
        outages=1,
    ),
    # Two failures before the next checkpoint: the second loses what ran since the resume, not what the first lost.
    "fails twice before it saves": Known(
        [
            START,
            row(10_000, "GPU", 10_000, 10_500, last_checkpoint=9_000),
            row(11_000, "GPU", 11_000, 11_200, last_checkpoint=9_000),
            END,
        ],
        {"restart": 700, "lost_work": 1_000 + 500},
        failures=2,
    ),
    "lines out of order": Known(
        [
            START,
            row(50_000, "SSD", 50_010, 50_100, last_checkpoint=50_000),
            row(10_000, "CPU", 10_010, 10_100, last_checkpoint=10_000),
            END,
        ],
        {"detection": 20, "restart": 180},
        failures=2,
        said=["1 lines are of an earlier time than the line before"],
    ),
    "copied lines": Known(
        [
            START,
            row(10_000, "HBM3", 10_060, 10_600, last_checkpoint=10_000),
            row(10_000, "HBM3", 10_060, 10_600, last_checkpoint=10_000),
            row(10_000, "HBM3", 10_060, 10_600, last_checkpoint=10_000),
            END,
        ],
        {"detection": 60, "restart": 540},
        failures=1,
        copies=2,
    ),
    # A switch fails and two hosts are lost in the same second: one interruption, over when the second is back.
    "two hosts in one moment": Known(
        [
            START,
            row(10_000, "switch", 10_060, 10_600, last_checkpoint=9_400, host="node1"),
            row(10_000, "switch", 10_090, 10_900, last_checkpoint=9_400, host="node2"),
            END,
        ],
        {"detection": 60, "restart": 840, "lost_work": 600},
        failures=1,
        outages=1,
        said=["1 records are of the same moment and cause as another"],
    ),
    # The same instants in three zones: 10,000 s after midnight UTC is 04:46:40 in Berlin's summer.
    "time zones": Known(
        [
            START,
            row(
                at(10_000, timezone(timedelta(hours=2))),
                "NCCL watchdog",
                at(10_060, timezone(timedelta(hours=-7))),
                at(10_600, timezone(timedelta(hours=5, minutes=30))),
                last_checkpoint=10_000,
            ),
            END,
        ],
        {"detection": 60, "restart": 540},
        failures=1,
    ),
    "an interruption that is open at the end": Known(
        [START, row(90_000, "power supply", 90_100, "", last_checkpoint=89_000), END],
        {"detection": 100, "restart": 9_900, "lost_work": 1_000},
        failures=1,
    ),
    "detection not told": Known(
        [START, row(10_000, "GPU", "", 10_600, last_checkpoint=10_000), END], {"unsplit": 600}, failures=1
    ),
    "planned stops are no failures": Known(
        [
            START,
            row(10_000, "firmware upgrade", "", 13_600, last_checkpoint=10_000),
            row(50_000, "GPU", 50_000, 50_600, last_checkpoint=49_900),
            END,
        ],
        {"planned": 3_600, "restart": 600, "lost_work": 100},
        failures=1,
    ),
    # 2,000 steps in 20,000 s, 100 of them after the checkpoint; then 100 of 1,000 in 10,000 s from the checkpoint on.
    "lost work by steps": Known(
        [
            row(0, "start", step=0),
            row(20_000, "GPU", 20_000, 20_500, step=2_000, last_checkpoint_step=1_900),
            row(30_500, "GPU", 30_500, 31_000, step=2_900, last_checkpoint_step=2_800),
            END,
        ],
        {"restart": 1_000, "lost_work": 1_000 + 1_000},
        failures=2,
    ),
    # Pauses of 40 s; the last one before the failure ended 4,960 s before it.
    "checkpoints in the log": Known(
        [
            START,
            row(1_000, "checkpoint", "", 1_040),
            row(5_000, "checkpoint", "", 5_040),
            row(10_000, "GPU", 10_000, 10_500),
            END,
        ],
        {"checkpoint": 80, "restart": 500, "lost_work": 4_960},
        failures=1,
    ),
    "work lost is not told": Known(
        [START, row(10_000, "GPU", 10_000, 10_500), END],
        {"restart": 500},
        failures=1,
        lost=False,
        said=["work lost before 1 of 1 interruptions is not known"],
    ),
    "half a line at the end": Known(
        [START, row(10_000, "GPU", 10_000, 10_500, last_checkpoint=10_000), END],
        {"restart": 500},
        failures=1,
        bad=1,
        tail="half",
    ),
    "lines that contradict themselves": Known(
        [
            START,
            row(10_000, "GPU", 10_000, 10_500, last_checkpoint=10_000),
            row(20_000, "GPU", 20_500, 20_100, last_checkpoint=20_000),
            row(20_000, "GPU", 19_000, 20_100, last_checkpoint=20_000),
            row(20_000, "GPU", "soon", 20_100, last_checkpoint=20_000),
            row("", "GPU", "", 20_100, last_checkpoint=20_000),
            row(20_000, "GPU", "", 20_100, last_checkpoint=30_000),
            row(20_000, "GPU", "", 20_100, step=5, last_checkpoint_step=6),
            row(20_000, "GPU", "", 20_100, step="many", last_checkpoint_step=6),
            END,
        ],
        {"restart": 500},
        failures=1,
        bad=7,
    ),
}


def written(known: Known, kind: str) -> str:
    """The rows as CSV or as JSON lines."""
    text = io.StringIO()
    if kind == "csv":
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(known.rows)
        return text.getvalue() + ("2024-05-01T20:00:00+00:00,GPU,2024-05" if known.tail else "")
    lines = [json.dumps({key: value for key, value in one.items() if value != ""}) for one in known.rows]
    return "\n".join(lines) + "\n" + ('{"time": "2024-05-01T20:00:00+00:00", "cau' if known.tail else "")


def check(report: GoodputReport, known: Known) -> None:
    """Every figure of a report against the truth, exactly."""
    report.check()
    assert {part.id: part.ns for part in report.parts if part.ns} == {key: s * S for key, s in known.parts.items()}
    assert report.total_ns == known.total * S
    down = sum(known.parts.get(part, 0) for part in ("detection", "restart", "unsplit", "planned"))
    assert report.eta == 1 - down / known.total
    if known.lost:
        assert report.productive_share == (known.total - sum(known.parts.values())) / known.total
    else:
        assert report.productive_share is None
    assert report.mtbf is not None
    assert report.mtbf.failures == known.failures
    assert report.mtbf.mtbf_h == (known.total / 3600 / known.failures if known.failures else None)
    if known.outages >= 0:
        assert report.outages == known.outages
    (log,) = report.inputs
    assert (log.bad_lines, log.duplicates) == (known.bad, known.copies)
    assert len(log.bad_examples) == min(known.bad, 5)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_every_figure_is_exact(name: str, kind: str, tmp_path: Path) -> None:
    known = SITUATIONS[name]
    path = tmp_path / f"log.{kind}"
    path.write_text(written(known, kind), encoding="utf-8")
    report = assess([str(path)])
    check(report, known)
    from steptime.report.goodput import terminal

    shown = " ".join(terminal(report).split())
    for text in known.said:
        assert text in shown
    for example in report.inputs[0].bad_examples:
        assert " ".join(example.split())[:40] in shown


def _log(tmp_path: Path, *rows: dict[str, object]) -> str:
    path = tmp_path / "log.csv"
    path.write_text(written(Known(list(rows), {}, 0), "csv"), encoding="utf-8")
    return str(path)


def test_a_log_that_does_not_say_when_the_run_began_gives_no_share(tmp_path: Path) -> None:
    path = _log(tmp_path, row(10_000, "GPU", 10_060, 10_600, last_checkpoint=9_400))
    report = assess([path])
    assert (report.total_ns, report.eta, report.productive_share, report.mtbf) == (None, None, None, None)
    assert report.trend.verdict == "cannot tell"
    assert any("began: give --since and ended: give --until" in text for text in report.cannot_tell)
    # What the row itself says is known all the same.
    assert {part.id: part.ns for part in report.parts if part.ns} == {"detection": 60 * S, "restart": 540 * S}
    spanned = assess([path], Options(since=at(0), until=at(100_000)))
    check(spanned, SITUATIONS["one failure, all told"])


def test_an_interruption_without_an_end_in_between_leaves_bounds(tmp_path: Path) -> None:
    # Down from 10,000 on, noticed at 10,100; the next one began at 60,000, so it was over by then, or at once.
    path = _log(
        tmp_path,
        START,
        row(10_000, "GPU", 10_100, "", last_checkpoint=10_000),
        row(60_000, "GPU", 60_000, 60_500, last_checkpoint=60_000),
        END,
    )
    report = assess([path])
    assert report.eta is None
    assert report.eta_high == 1 - (100 + 500) / 100_000
    assert report.eta_low == 1 - (50_000 + 500) / 100_000
    assert {part.id: part.ns // S for part in report.parts if part.ns} == {
        "detection": 100,
        "restart": 500,
        "unknown": 49_900,
    }
    assert any("1 interruptions have no time at which training went on" in text for text in report.cannot_tell)
    assert report.mtbf is not None
    assert report.mtbf.mtbf_h == 100_000 / 3600 / 2


def test_since_and_until_cut_the_run(tmp_path: Path) -> None:
    rows = [
        START,
        row(10_000, "GPU", 10_000, 10_600, last_checkpoint=9_900),
        row(50_000, "GPU", 50_000, 50_600, last_checkpoint=49_900),
        row(90_000, "GPU", 90_000, 90_600, last_checkpoint=89_900),
        END,
    ]
    report = assess([_log(tmp_path, *rows)], Options(since=at(10_300), until=at(60_300)))
    # The first had begun before: its time counts from --since on, but it is no failure of this stretch.
    assert {part.id: part.ns // S for part in report.parts if part.ns} == {"restart": 300 + 600, "lost_work": 100}
    assert report.mtbf is not None
    assert (report.total_ns, report.mtbf.failures) == (50_000 * S, 1)
    assert any("1 interruptions lie outside the run" in text for text in report.warnings)


def test_local_times_need_their_zone(tmp_path: Path) -> None:
    text = "time,cause,resumed\n2024-05-01 02:00:00,start,\n2024-05-01 04:46:40,GPU,2024-05-01 04:56:40\n"
    text += "2024-05-02 05:46:40,end,\n"
    path = tmp_path / "local.csv"
    path.write_text(text)
    told = assess([str(path)], Options(reading=Reading(zone="Europe/Berlin")))
    assert told.start_ns == int(T0.timestamp()) * S
    assert told.total_ns == 100_000 * S
    assert any("taken as Europe/Berlin" in warning for warning in told.warnings)
    with pytest.raises(UsageError, match="no time zone is called 'Mars'"):
        assess([str(path)], Options(reading=Reading(zone="Mars")))


def test_two_logs_that_tell_the_same_count_once(tmp_path: Path) -> None:
    known = SITUATIONS["one failure, all told"]
    paths = []
    for kind in ("csv", "jsonl"):
        path = tmp_path / f"log.{kind}"
        path.write_text(written(known, kind))
        paths.append(str(path))
    report = assess(paths)
    assert (len(report.interruptions), len(report.inputs)) == (1, 2)
    assert any("1 interruptions are told by two logs" in text for text in report.warnings)


def test_a_report_is_no_log(tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    saved.write_text(dumps(assess([_log(tmp_path, START, END)])))
    with pytest.raises(LogError, match="a report of steptime, not a log"):
        assess([str(saved)])


def test_a_last_line_without_an_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(written(SITUATIONS["nothing happened"], "csv").rstrip("\n"))
    assert any("the last line has no end" in text for text in assess([str(path)]).warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,cause\nyesterday,GPU\n", "no line can be used"),
        ("when,why\n2024-05-01T00:00:00Z,GPU\n", "neither interruptions"),
        ("start,end,reason\n2024-05-01T00:00:00Z,2024-05-01T09:00:00Z,GPU\n", "of an attempt or of an interruption"),
        ("\n\n", "is empty"),
        ('{"a": 1}\n', "neither interruptions"),
    ],
)
def test_what_tells_nothing_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(LogError, match=said):
        assess([str(path)])


def test_a_run_cannot_end_before_it_begins(tmp_path: Path) -> None:
    path = _log(tmp_path, START, END)
    with pytest.raises(StepTimeError, match="end before it begins"):
        assess([path], Options(since=at(100), until=at(50)))
