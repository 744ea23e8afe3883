"""Restarts inferred from metrics against runs that were lived through step by step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from steptime.errors import LogError
from steptime.goodput.assess import Options, assess
from steptime.goodput.logs import Reading
from steptime.model.goodput import GoodputReport
from tests.goodput.training_runs import PACE, START, Lived, live, write_csv, write_events, write_jsonl

S = 10**9
RUNS: dict[str, Callable[[], Lived]] = {
    "no failure": lambda: live(500, {}),
    "one failure": lambda: live(500, {250: 600}),
    "failures one after the other": lambda: live(900, {250: 600, 251: 900, 555: 1_200, 850: 60}),
    "a line every ten steps": lambda: live(900, {250: 600, 560: 1_200}, every=10),
    "from the beginning again": lambda: live(500, {60: 700}),
    "pauses to save": lambda: live(900, {250: 600, 560: 1_200}, pause=40),
    "long pauses to save": lambda: live(2_000, {250: 600, 1_560: 1_200}, pause=400),
}


def _assess(path: Path, options: Options = Options()) -> GoodputReport:  # noqa: B008 - frozen
    report = assess([str(path)], options)
    report.check()
    return report


def _parts(report: GoodputReport) -> dict[str, int]:
    return {part.id: part.ns // S for part in report.parts if part.ns}


def _check(report: GoodputReport, lived: Lived) -> None:
    truth = {"unsplit": lived.down, "lost_work": lived.lost, "checkpoint": lived.paused}
    assert _parts(report) == {name: seconds for name, seconds in truth.items() if seconds}
    assert report.total_ns == lived.total * S
    assert report.eta == 1 - lived.down / lived.total
    assert report.productive_share == (lived.total - lived.down - lived.lost - lived.paused) / lived.total
    assert report.mtbf is not None
    assert report.mtbf.failures == lived.failures
    assert report.mtbf.mtbf_h == (lived.total / 3600 / lived.failures if lived.failures else None)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("write", "place"), [(write_jsonl, "m.jsonl"), (write_csv, "m.csv")])
def test_every_figure_is_exact(name: str, write: Callable[[Lived, Path], None], place: str, tmp_path: Path) -> None:
    lived = RUNS[name]()
    write(lived, tmp_path / place)
    _check(_assess(tmp_path / place), lived)


@pytest.mark.parametrize("name", ["one failure", "failures one after the other", "pauses to save"])
def test_event_files_of_the_real_writer(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    lived = RUNS[name]()
    write_events(lived, tmp_path / "run")
    report = _assess(tmp_path / "run")
    _check(report, lived)
    assert report.logged == ["loss"]


def test_files_of_several_starts_are_one_run(tmp_path: Path) -> None:
    lived = RUNS["one failure"]()
    cut = next(at for at in range(1, 500) if lived.rows[at][1] < lived.rows[at - 1][1])
    write_jsonl(Lived(lived.rows[:cut]), tmp_path / "z.jsonl")
    write_jsonl(Lived(lived.rows[cut:]), tmp_path / "a.jsonl")
    report = assess([str(tmp_path / "a.jsonl"), str(tmp_path / "z.jsonl")])
    _check(report, lived)


def test_a_clock_that_is_set_back_is_moved_on(tmp_path: Path) -> None:
    lived = RUNS["failures one after the other"]()
    set_back = Lived([(time - 3_600 * (at >= 400), step) for at, (time, step) in enumerate(lived.rows)])
    write_jsonl(set_back, tmp_path / "m.jsonl")
    report = _assess(tmp_path / "m.jsonl")
    _check(report, lived)
    assert any("the clock goes back 1 times" in text for text in report.warnings)


def test_time_and_step_that_go_back_together_are_not_guessed_at(tmp_path: Path) -> None:
    lived = RUNS["one failure"]()
    cut = next(at for at in range(1, 500) if lived.rows[at][1] < lived.rows[at - 1][1])
    write_jsonl(Lived(lived.rows[cut:] + lived.rows[:cut]), tmp_path / "m.jsonl")
    with pytest.raises(LogError, match="time and step go back together"):
        _assess(tmp_path / "m.jsonl")


def test_a_silence_is_an_interruption_though_no_step_was_repeated(tmp_path: Path) -> None:
    """A run that saves as it is stopped: 1,000 s of silence in 500 steps of 10 s, and 200 s that are too short."""
    rows = [(START + PACE * step + 1_000 * (step > 250) + 200 * (step > 400), step) for step in range(1, 501)]
    write_jsonl(Lived([(float(time), step) for time, step in rows]), tmp_path / "m.jsonl")
    report = _assess(tmp_path / "m.jsonl")
    assert _parts(report) == {"unsplit": 1_000}
    assert report.eta == 1 - 1_000 / (499 * 10 + 1_200)
    assert any("slow steps took 200 s more than usual" in text for text in report.warnings)
    shorter = _assess(tmp_path / "m.jsonl", Options(reading=Reading(gap_ns=150 * S)))
    assert _parts(shorter) == {"unsplit": 1_200}
    assert shorter.mtbf is not None
    assert shorter.mtbf.failures == 2


def test_a_failure_right_after_a_save_is_no_long_pause(tmp_path: Path) -> None:
    """Pauses of 40 s at every 100th step, and after step 400 a failure that loses nothing: down for 800 s."""
    lived = live(900, {400: 800}, pause=40)
    assert (lived.down, lived.lost, lived.paused) == (800, 0, 8 * 40)
    write_jsonl(lived, tmp_path / "m.jsonl")
    # The pause before the failure can't be told from the failure: nothing is logged between them.
    assert _parts(_assess(tmp_path / "m.jsonl")) == {"unsplit": 840, "checkpoint": 7 * 40}


def test_a_noisy_run_is_split_within_a_point(tmp_path: Path) -> None:
    """Steps of 5 s with 8 % of noise and some slow ones, saves every 500 steps, evaluations every 1,000, 25 failures.

    Failures strike anywhere, so what is inferred is off by up to a step at each of them.
    """
    rng = np.random.default_rng(5)
    now, step, saved, since = float(START), 0, 0, float(START)
    down = lost = paused = 0.0
    strikes = sorted((START + rng.uniform(1e4, 2.4e5, 25)).tolist())
    count = len(strikes)
    lived = Lived()
    while step < 40_000:
        length = 5 * math.exp(rng.normal(0, 0.08)) + (rng.exponential(10) if rng.random() < 0.002 else 0)
        if strikes and now + length > strikes[0]:
            strikes.pop(0)
            lost += now - since
            down += (restart := rng.uniform(300, 1_200)) + length
            now, step = now + length + restart, saved
            since = now
            strikes = [one for one in strikes if one > now]
            lived.failures += 1
            continue
        now, step = now + length, step + 1
        lived.rows.append((round(now, 3), step))
        if step % 500 == 0:
            pause = 20 * math.exp(rng.normal(0, 0.1)) + 90 * (step % 1_000 == 0)
            now, paused, saved = now + pause, paused + pause, step
            since = now
    write_jsonl(lived, tmp_path / "m.jsonl")
    report = _assess(tmp_path / "m.jsonl")
    assert lived.failures > count // 2
    assert report.mtbf is not None
    assert report.mtbf.failures == lived.failures
    shares = {part.id: part.share or 0 for part in report.parts}
    assert shares["unsplit"] == pytest.approx(down / lived.total, abs=0.003)
    assert shares["lost_work"] == pytest.approx(lost / lived.total, abs=0.005)
    assert shares["checkpoint"] == pytest.approx(paused / lived.total, abs=0.003)


def test_bad_copied_and_late_lines_change_nothing(tmp_path: Path) -> None:
    lived = RUNS["one failure"]()
    write_jsonl(lived, tmp_path / "m.jsonl")
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    late = json.dumps({"step": 90, "timestamp": lived.rows[99][0] + 1, "loss": 2.0})
    lines = [
        *lines[:50],
        "CUDA error: device-side assert",
        lines[49],
        *lines[50:100],
        late,
        *lines[100:],
        '{"step": 50',
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    report = _assess(tmp_path / "m.jsonl")
    _check(report, lived)
    (log,) = report.inputs
    assert (log.bad_lines, log.duplicates) == (3, 1)
    assert any("written after a later step" in text for text in log.bad_examples)


def test_a_failure_between_two_lines_is_off_by_less_than_a_line(tmp_path: Path) -> None:
    """Logged every ten steps (100 s), failed after step 255: the last sign of progress is step 250."""
    lived = live(500, {255: 600}, every=10)
    write_jsonl(lived, tmp_path / "m.jsonl")
    parts = _parts(_assess(tmp_path / "m.jsonl"))
    assert parts["unsplit"] == lived.down + 5 * PACE
    assert parts["lost_work"] == lived.lost - 5 * PACE


def test_a_run_that_stands_when_the_log_ends(tmp_path: Path) -> None:
    lived = RUNS["no failure"]()
    write_jsonl(lived, tmp_path / "m.jsonl")
    end = lived.rows[-1][0] + 5_000
    report = _assess(tmp_path / "m.jsonl", Options(until=str(int(end))))
    assert _parts(report)["unsplit"] == 5_000
    assert report.eta == 1 - 5_000 / (lived.total + 5_000)


def test_metrics_without_times_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("step,loss\n1,2\n2,2\n3,2\n2,2\n3,2\n")
    with pytest.raises(LogError, match=r"0 lines have a time.*goes back 1 times"):
        _assess(tmp_path / "m.csv")


def test_times_since_the_start_are_enough(tmp_path: Path) -> None:
    lived = RUNS["one failure"]()
    text = "".join(f"{time - START},{step},2.0\n" for time, step in lived.rows)
    (tmp_path / "m.csv").write_text("_runtime,_step,loss\n" + text)
    report = _assess(tmp_path / "m.csv")
    _check(report, lived)
    assert not report.dated


def test_lines_of_several_writers_are_no_restarts(tmp_path: Path) -> None:
    """Two ranks write into one file, the second a step behind and a moment later; with and without a column for it."""
    lived = RUNS["one failure"]()
    rows = []
    for at, (time, step) in enumerate(lived.rows):
        rows.append({"step": step, "timestamp": time, "rank": 0})
        if at and lived.rows[at - 1][1] < step:
            rows.append({"step": lived.rows[at - 1][1], "timestamp": time + 0.25, "rank": 1})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = _assess(tmp_path / "m.jsonl")
    _check(report, lived)
    assert any(f"{len(lived.rows) - 2} lines of other ranks than 0" in text for text in report.warnings)
    for row in rows:
        del row["rank"]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = _assess(tmp_path / "m.jsonl")
    assert report.mtbf is not None
    assert report.mtbf.failures == 1
    assert _parts(report)["lost_work"] == pytest.approx(lived.lost, abs=PACE)
    assert report.inputs[0].bad_lines > 400


def test_a_step_that_counts_within_an_epoch_is_refused(tmp_path: Path) -> None:
    rows = [(float(START + PACE * at), at % 100) for at in range(300)]
    write_jsonl(Lived(rows), tmp_path / "m.jsonl")
    with pytest.raises(LogError, match="begins again 2 times without a pause"):
        _assess(tmp_path / "m.jsonl")


def test_local_times_through_the_hour_that_comes_twice(tmp_path: Path) -> None:
    """Paris, 27 October 2024: after 02:59 it is 02:00 again. A line every 10 minutes from 00:00, 30 of them."""
    begin = datetime(2024, 10, 26, 22, tzinfo=timezone.utc)
    zone = ZoneInfo("Europe/Paris")
    times = [(begin + timedelta(minutes=10 * at)).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") for at in range(30)]
    assert times.count("2024-10-27 02:30:00") == 2
    text = "".join(f"{time},{step}\n" for step, time in enumerate(times))
    (tmp_path / "m.csv").write_text("time,step\n" + text)
    report = _assess(tmp_path / "m.csv", Options(reading=Reading(zone="Europe/Paris")))
    assert (report.total_ns, report.eta) == (290 * 60 * S, 1.0)
    assert report.inputs[0].bad_lines == 0


def test_an_interruption_log_tells_the_cause_of_what_metrics_show(tmp_path: Path) -> None:
    """The failure after step 250 is at 250 steps and two saves without a pause: 2,500 s; noticed 100 s later."""
    lived = RUNS["one failure"]()
    write_jsonl(lived, tmp_path / "m.jsonl")
    failed = START + 250 * PACE
    (tmp_path / "log.csv").write_text(f"time,cause,detected,host\n{failed},GPU HBM3 memory,{failed + 100},node9\n")
    report = assess([str(tmp_path / "log.csv"), str(tmp_path / "m.jsonl")])
    assert _parts(report) == {"detection": 100, "restart": 500, "lost_work": lived.lost}
    (one,) = report.interruptions
    assert (one.cause, one.host) == ("gpu_hbm", "node9")
    assert report.eta == 1 - 600 / lived.total
    assert any("1 restarts in the metrics are those that another log tells" in text for text in report.warnings)
