"""``steptime analyze``: what it refuses, what it writes, what it prints, in process on the sample."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest

from steptime import cli
from steptime.cli.analyze import command
from steptime.pipeline import ModelAsk, Options, RooflinePricing
from steptime.report import FORMATS
from steptime.store import load


def _convert(option: str, value: str) -> object:
    """What the command line makes of one option."""
    return command.make_context("analyze", ["x", option, value]).params


def test_every_field_of_options_is_an_option() -> None:
    # `progress` is what the command line itself provides; an `executor` can't be written on it.
    fields = {field.name for field in dataclasses.fields(Options)} - {
        "progress",
        "executor",
        "pricing",
        "draw_every_step",
    }
    fields |= {field.name for part in (RooflinePricing, ModelAsk) for field in dataclasses.fields(part)}
    own = {"paths", "outputs", "quiet", "verbose"}
    assert {parameter.name for parameter in command.params} - own == fields


def test_the_help_lists_the_formats() -> None:
    suffixes = ", ".join(sorted(row.suffix for row in FORMATS.values()))
    (output,) = (option for option in command.params if option.name == "outputs")
    assert isinstance(output, click.Option)
    assert f"({suffixes})" in str(output.help)


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("--steps", "5:10", "steps", (5, 10)),
        ("--steps", "7", "steps", (7, 7)),
        ("--steps", "0:0", "steps", (0, 0)),
        ("--unprofiled-step-ms", "117.5", "unprofiled_step_ns", 117_500_000),
        # 0.1 ms is no binary fraction, and 1e15 ns is beyond what a float keeps to the nanosecond after a product.
        ("--unprofiled-step-ms", "0.1", "unprofiled_step_ns", 100_000),
        ("--unprofiled-step-ms", "9007199254.740993", "unprofiled_step_ns", 9_007_199_254_740_993),
        ("--step-marker", "^iteration \\d+$", "step_marker", "^iteration \\d+$"),
        ("--rank", "3", "rank", 3),
        ("-j", "2", "jobs", 2),
    ],
)
def test_values_are_read_exactly(option: str, value: str, field: str, expected: object) -> None:
    params = _convert(option, value)
    assert isinstance(params, dict)
    assert params[field] == expected


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--steps", "10:5", "ends before it starts"),
        ("--steps", "a:b", "not a range of step numbers"),
        ("--steps", "5:", "not a range of step numbers"),
        ("--steps", "-1:3", "not a range of step numbers"),
        ("--unprofiled-step-ms", "fast", "not a time in milliseconds"),
        ("--unprofiled-step-ms", "0", "not a time in milliseconds"),
        ("--unprofiled-step-ms", "nan", "not a time in milliseconds"),
        ("--unprofiled-step-ms", "inf", "not a time in milliseconds"),
        ("--step-marker", "(", "not a regular expression"),
        ("--rank", "-1", "not in the range"),
        ("-j", "0", "not in the range"),
    ],
)
def test_bad_values_are_refused(option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", "x", option, value]) == 2
    assert said in capsys.readouterr().err


def test_outputs_are_refused_before_the_work_starts(
    tmp_path: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = sorted(sample.glob("*.json.gz"))[0]
    known = ".html, .json, .md, .perfetto.json, .txt"
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "trace.json").write_text("{}")
    cases = {
        "report.pdf": f"no report format has the suffix .pdf: use one of {known}",
        "report": f"no suffix, so no report format: use one of {known}",
        "absent/report.json": f"the folder {tmp_path / 'absent'} does not exist: create it first",
        "folder.json": "is a folder: give the name of a file",
        "trace.json": "is an input of this command: choose another output file",
    }
    for name, said in cases.items():
        # The second path does not exist: it would be the complaint if the analysis had begun.
        paths = [str(tmp_path / "trace.json"), str(trace) + "x"]
        assert cli.main(["analyze", *paths, "-o", str(tmp_path / name)]) == 2
        assert capsys.readouterr() == ("", f"steptime: {tmp_path / name}: {said}\n")


def test_a_missing_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", str(tmp_path / "absent.json")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("steptime: ")
    assert "absent.json" in err
    assert err.count("\n") == 1


def test_it_writes_every_format_and_prints_the_summary(
    tmp_path: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {name: tmp_path / f"report{row.suffix.upper()}" for name, row in FORMATS.items()}
    words = [word for path in outputs.values() for word in ("-o", str(path))]
    assert cli.main(["analyze", str(sample), *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in outputs.values())
    report = load(outputs["json"])
    assert sorted(rank.rank for rank in report.ranks) == [0, 1]
    # The tracks for Perfetto show every step, which the saved report does not hold: 2 ranks of 8 steps.
    tracks = json.loads(outputs.pop("perfetto").read_text())["traceEvents"]
    assert len([event for event in tracks if event["name"].startswith("step ")]) == 16
    for name, path in outputs.items():
        assert path.read_text(encoding="utf-8") == FORMATS[name].render(report)


def test_an_output_has_the_usual_permissions_and_links_stay_links(tmp_path: Path, sample: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    mask = os.umask(0o027)
    try:
        assert cli.main(["analyze", str(sample), "-q", "-o", str(link)]) == 0
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_report_alone(
    tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text("old")
    write_bytes = Path.write_bytes

    def full_disk(path: Path, data: bytes) -> int:
        if path.name.startswith(".b"):
            write_bytes(path, data[:10])
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert cli.main(["analyze", str(sample), "-o", str(first), "-o", str(second)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"steptime: {second}: can't be written (No space left on device): choose another output file\n"
    assert first.read_text() == "old"
    assert list(tmp_path.iterdir()) == [first]


def test_quiet_prints_nothing_and_verbose_names_files(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", str(sample), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert cli.main(["analyze", str(sample), "-v"]) == 0
    err = capsys.readouterr().err
    assert "2 of 2 files read" in err
    assert all(line.startswith("steptime: ") for line in err.splitlines())


def _on_terminal(stream: str, words: list[str], repo: Path, **environment: str) -> tuple[int, str, str]:
    """Run steptime with `stream` on a terminal: exit code, what the terminal got, what the other stream got."""
    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: theirs}
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    process = subprocess.Popen([sys.executable, "-m", "steptime", *words], cwd=repo, env=settings, **streams)  # type: ignore[call-overload]
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other end was closed
        pass
    other = process.stderr if stream == "stdout" else process.stdout
    rest = other.read()
    other.close()
    os.close(ours)
    return process.wait(), shown.decode(), rest.decode()


def test_colour_on_a_terminal_only(repo: Path, sample: Path) -> None:
    words = ["analyze", str(sample)]
    assert "\x1b[" in _on_terminal("stdout", words, repo)[1]
    assert "\x1b[" not in _on_terminal("stdout", words, repo, NO_COLOR="1")[1]


def test_a_bar_for_several_files_on_a_terminal_only(repo: Path, sample: Path) -> None:
    code, shown, summary = _on_terminal("stderr", ["analyze", str(sample)], repo)
    assert code == 0
    assert "1/2 files" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "reading" not in summary
    assert _on_terminal("stderr", ["analyze", str(sample), "-q"], repo) == (0, "", "")
