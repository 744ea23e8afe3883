"""``steptime diff``: reports and traces against each other."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click
import pytest

from steptime import cli
from steptime.report import DIFF_FORMATS
from steptime.store import is_report


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """The report of the sample, as `analyze` writes it."""
    path = tmp_path_factory.mktemp("diff") / "report.json"
    assert cli.main(["analyze", str(sample), "-q", "-o", str(path)]) == 0
    return path


def test_a_report_against_the_traces_it_came_from(
    saved: Path, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = [tmp_path / f"diff{row.suffix}" for row in DIFF_FORMATS.values()]
    words = [word for path in outputs for word in ("-o", str(path))]
    assert cli.main(["diff", str(saved), str(sample), *words, "-j", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Step time unchanged, ")
    assert (tmp_path / "diff.txt").read_text(encoding="utf-8") == out
    assert err == ""
    assert [path.stat().st_size > 300 for path in outputs] == [True] * 4


def test_it_takes_what_analyze_takes_but_what_no_diff_shows() -> None:
    def flags(name: str) -> set[str]:
        module = next(row.module for row in cli.COMMANDS if row.name == name)
        options = import_module(module).command.params
        return {flag for option in options if isinstance(option, click.Option) for flag in option.opts}

    assert flags("analyze") - flags("diff") == {"--run", "--replay", "--unprofiled-step-ms"}
    assert flags("diff") <= flags("analyze")


def test_quiet_prints_nothing(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", str(saved), str(saved), "-q"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{saved}", "missing.json"], "missing.json"),
        (["{saved}", "{saved}", "-o", "x.perfetto.json.gz"], "no report format"),
        (["{saved}", "{saved}", "-o", "{saved}"], "is an input of this command"),
        (["{saved}", "{other}"], "not a"),
        (["{saved}", "{saved}", "--gpu", "no such GPU"], ""),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], said: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"schema_version": 1, "hello": 2}')
    given = [word.format(saved=saved, other=other) for word in words]
    code = cli.main(["diff", *given])
    out, err = capsys.readouterr()
    if not said:  # Options about traces are not looked at where both are reports.
        assert (code, err) == (0, "")
        return
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_reports_are_told_from_traces(saved: Path, sample: Path, tmp_path: Path) -> None:
    assert is_report(saved)
    assert not is_report(sorted(sample.glob("*.json.gz"))[0])
    trace = tmp_path / "trace.json"
    trace.write_text('{"schemaVersion": 1, "note": "\\"schema_version\\"", "traceEvents": []}')
    assert not is_report(trace)
    assert not is_report(tmp_path / "missing.json")
