"""Slurm's accounting with a known truth, worked out by hand: 2024-05-01 00:00 to 2024-05-02 00:00 is 86,400 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.errors import StepTimeError
from steptime.goodput.assess import Options, assess
from steptime.goodput.logs import Reading
from steptime.model.goodput import GoodputReport

HEAD = "JobID|JobName|State|Start|End|NodeList|AllocTRES|FailedNode"
TRES = "billing=512,cpu=1024,gres/gpu=64,mem=8T,node=8"
S = 10**9


def line(state: str, start: str, end: str, job: str = "4242", failed: str = "None assigned") -> str:
    """One attempt; times are of 1 May, a time with a day of its own stands as it is."""
    start, end = (one if "-" in one or not one[0].isdigit() else f"2024-05-01T{one}" for one in (start, end))
    return f"{job}|pretrain|{state}|{start}|{end}|gpu[001-008]|{TRES}|{failed}"


def _assess(tmp_path: Path, text: str, options: Options = Options()) -> GoodputReport:  # noqa: B008 - frozen
    path = tmp_path / "sacct.txt"
    path.write_text(text)
    report = assess([str(path)], options)
    report.check()
    return report


def _parts(report: GoodputReport) -> dict[str, int]:
    return {part.id: part.ns // S for part in report.parts if part.ns}


def test_attempts_and_the_waits_between_them(tmp_path: Path) -> None:
    lines = [
        HEAD,
        line("NODE_FAIL", "00:00:00", "06:00:00", failed="gpu003"),
        "4242.batch|batch|CANCELLED|2024-05-01T00:00:00|2024-05-01T06:00:05|gpu001||",
        line("PREEMPTED", "06:10:00", "12:00:00"),
        line("CANCELLED by 1000", "12:30:00", "15:00:00"),
        line("FAILED", "15:20:00", "18:00:00"),
        line("OUT_OF_MEMORY", "18:05:00", "20:00:00"),
        line("COMPLETED", "20:01:00", "2024-05-02T00:00:00"),
    ]
    report = _assess(tmp_path, "\n".join(lines) + "\n")
    # 10 min, 30 min, 20 min (an operator's), 5 min, 1 min.
    assert _parts(report) == {"restart": (10 + 30 + 5 + 1) * 60, "planned": 20 * 60}
    assert report.total_ns == 86_400 * S
    assert report.eta == 1 - 66 * 60 / 86_400
    assert report.mtbf is not None
    assert (report.mtbf.failures, report.mtbf.mtbf_h) == (4, 6.0)
    assert report.mtbf_gpu is not None
    assert report.mtbf_gpu.mtbf_h == 6.0 * 64
    assert [one.cause for one in report.interruptions] == [
        "node",
        "preemption",
        "operator",
        "unknown",
        "out_of_memory",
    ]
    assert report.interruptions[0].host == "gpu003"
    # Slurm can't show how long training had stood still, nor what was lost.
    assert report.productive_share is None
    assert any("at least what is shown" in text for text in report.warnings)


def test_the_same_in_columns_of_fixed_width(tmp_path: Path) -> None:
    text = (
        "JobID           JobName      State               Start                 End \n"
        "------------ ---------- ---------- ------------------- ------------------- \n"
        "4242           pretrain  NODE_FAIL 2024-05-01T00:00:00 2024-05-01T06:00:00 \n"
        "4242.batch        batch  CANCELLED 2024-05-01T00:00:00 2024-05-01T06:00:05 \n"
        "4242           pretrain CANCELLED+ 2024-05-01T06:10:00 2024-05-01T12:00:00 \n"
        "4242           pretrain  COMPLETED 2024-05-01T12:30:00 2024-05-02T00:00:00 \n"
    )
    report = _assess(tmp_path, text)
    assert _parts(report) == {"restart": 600, "planned": 1_800}
    assert report.eta == 1 - 2_400 / 86_400
    assert report.mtbf is not None
    assert (report.mtbf.failures, report.mtbf.mtbf_h) == (1, 24.0)


@pytest.mark.parametrize(("delimiter", "tail"), [("|", "|"), (",", "")])
def test_other_ways_to_ask_for_columns(delimiter: str, tail: str, tmp_path: Path) -> None:
    """With --parsable each line ends in one more bar; --delimiter makes it look like CSV."""
    rows = [
        ["JobID", "State", "Start", "End"],
        ["7", "NODE_FAIL", "2024-05-01T00:00:00", "2024-05-01T06:00:00"],
        ["7", "COMPLETED", "2024-05-01T06:10:00", "2024-05-02T00:00:00"],
    ]
    report = _assess(tmp_path, "".join(delimiter.join(row) + tail + "\n" for row in rows))
    assert report.inputs[0].kind == "Slurm accounting"
    assert _parts(report) == {"restart": 600}


def test_what_sacct_prints_by_itself_has_no_times(tmp_path: Path) -> None:
    text = (
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
        "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
        "4242           pretrain       h100       lab        1024  NODE_FAIL      1:0 \n"
    )
    with pytest.raises(StepTimeError, match="lacks Start, End: run sacct -D --parsable2"):
        _assess(tmp_path, text)


def test_a_run_that_waits_or_still_runs(tmp_path: Path) -> None:
    waits = [HEAD, line("NODE_FAIL", "00:00:00", "18:00:00"), line("PENDING", "Unknown", "Unknown")]
    with_end = Options(until="2024-05-02T00:00:00")
    report = _assess(tmp_path, "\n".join(waits) + "\n", with_end)
    assert _parts(report) == {"restart": 6 * 3_600}
    assert report.eta == 0.75
    runs = [HEAD, line("NODE_FAIL", "00:00:00", "18:00:00"), line("RUNNING", "21:00:00", "Unknown")]
    report = _assess(tmp_path, "\n".join(runs) + "\n", with_end)
    assert _parts(report) == {"restart": 3 * 3_600}
    without = _assess(tmp_path, "\n".join(runs) + "\n")
    assert (without.total_ns, without.eta, without.mtbf) == (None, None, None)


def test_copies_second_headers_and_lines_that_are_cut(tmp_path: Path) -> None:
    lines = [
        HEAD,
        line("NODE_FAIL", "00:00:00", "06:00:00"),
        line("NODE_FAIL", "00:00:00", "06:00:00"),
        HEAD,
        line("COMPLETED", "06:10:00", "2024-05-02T00:00:00"),
        line("EXPLODED", "07:00:00", "08:00:00"),
        line("FAILED", "08:00:00", "07:00:00"),
        "4242|pretrain|NODE_FAIL|2024-05-0",
    ]
    report = _assess(tmp_path, "\n".join(lines))
    assert _parts(report) == {"restart": 600}
    (log,) = report.inputs
    assert (log.bad_lines, log.duplicates) == (3, 1)
    assert any("EXPLODED is not a state of Slurm" in text for text in log.bad_examples)
    assert any("ends before it starts" in text for text in log.bad_examples)
    assert any("has 4 fields, the header has 8" in text for text in log.bad_examples)


def test_a_time_limit_is_planned_and_so_is_a_chain_of_jobs(tmp_path: Path) -> None:
    lines = [
        HEAD,
        line("TIMEOUT", "00:00:00", "08:00:00", "1"),
        line("COMPLETED", "08:10:00", "16:00:00", "2"),
        line("COMPLETED", "16:10:00", "2024-05-02T00:00:00", "3"),
    ]
    report = _assess(tmp_path, "\n".join(lines) + "\n")
    assert _parts(report) == {"planned": 1_200}
    assert report.mtbf is not None
    assert (report.mtbf.failures, report.mtbf.mtbf_h) == (0, None)
    assert report.mtbf.low_h == pytest.approx(24 / 3.689, rel=1e-3)


def test_times_of_the_cluster_are_local(tmp_path: Path) -> None:
    # In Chicago 3 November 2024 has 25 hours; the first attempt lasts 2 of them, the wait 10 minutes.
    lines = [
        HEAD,
        line("NODE_FAIL", "2024-11-03T00:00:00", "2024-11-03T00:50:00"),
        line("COMPLETED", "2024-11-03T03:00:00", "2024-11-04T00:00:00"),
    ]
    report = _assess(tmp_path, "\n".join(lines) + "\n", Options(reading=Reading(zone="America/Chicago")))
    assert report.total_ns == 25 * 3_600 * S
    assert _parts(report) == {"restart": (60 + 60 + 70) * 60}


def test_several_jobs_are_not_one_run(tmp_path: Path) -> None:
    lines = [HEAD, line("NODE_FAIL", "00:00:00", "06:00:00"), line("COMPLETED", "06:10:00", "12:00:00")]
    other = line("COMPLETED", "00:00:00", "23:00:00", "9").replace("pretrain", "evaluate")
    text = "\n".join([*lines, other]) + "\n"
    with pytest.raises(StepTimeError, match="holds 2 jobs .*choose one with --job"):
        _assess(tmp_path, text)
    report = _assess(tmp_path, text, Options(reading=Reading(job="pretrain")))
    assert _parts(report) == {"restart": 600}
    with pytest.raises(StepTimeError, match="no job is called 'finetune'"):
        _assess(tmp_path, text, Options(reading=Reading(job="finetune")))
    together = [HEAD, line("NODE_FAIL", "00:00:00", "06:00:00", "1"), line("COMPLETED", "05:00:00", "09:00:00", "2")]
    with pytest.raises(StepTimeError, match="not one run"):
        _assess(tmp_path, "\n".join(together) + "\n")


def test_lost_work_and_pauses_from_a_rhythm_of_checkpoints(tmp_path: Path) -> None:
    """Checkpoints of 60 s after every 3,540 s of training: one an hour. A failure 6 h 10 min in loses 10 minutes."""
    from steptime.goodput.lost_work import Rhythm

    lines = [HEAD, line("NODE_FAIL", "00:00:00", "06:10:00"), line("COMPLETED", "07:00:00", "2024-05-02T00:00:00")]
    report = _assess(tmp_path, "\n".join(lines) + "\n", Options(rhythm=Rhythm(3_540 * S, 60 * S)))
    assert _parts(report) == {"restart": 50 * 60, "lost_work": 10 * 60, "checkpoint": (6 + 17) * 60}
    assert report.productive_share == (86_400 - 50 * 60 - 10 * 60 - 23 * 60) / 86_400
    habit = report.checkpoints
    assert habit is not None
    # Young: sqrt(2 * 60 s * 24 h).
    assert (habit.interval_ns, habit.pause_ns, habit.count) == (3_540 * S, 60 * S, 0)
    assert (habit.young_ns or 0) / S == pytest.approx((2 * 60 * 86_400) ** 0.5)
