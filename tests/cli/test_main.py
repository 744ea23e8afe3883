"""What `main` makes of whatever a verb does: the exit code, and one line on stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest

import steptime
from steptime import cli, errors


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Add a verb named ``fail`` that raises what it is given."""

    def add(error: BaseException) -> None:
        @click.command("fail")
        def command() -> None:
            raise error

        module = ModuleType("a_failing_verb")
        vars(module)["command"] = command
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, cli.Command("fail", module.__name__, "Fail.")))

    return add


def _steptime(*words: str, repo: Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "steptime", *words],
        cwd=repo,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "error", [errors.UsageError, errors.NotATrace, errors.UnsupportedDevice, errors.RankError, errors.ReportError]
)
def test_a_refusal_is_one_line_and_exit_code_2(
    error: type[errors.StepTimeError],
    verb: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb(error("x.json: broken in the middle: record it again"))
    assert cli.main(["fail"]) == 2
    assert capsys.readouterr() == ("", "steptime: x.json: broken in the middle: record it again\n")


def test_the_exit_code_rides_on_the_error(
    verb: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    class Regressed(errors.StepTimeError):
        exit_code = errors.EXIT_REGRESSED

    verb(Regressed("slower by 12 %"))
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr().err == "steptime: slower by 12 %\n"


def test_an_interrupt_is_130(verb: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]) -> None:
    verb(KeyboardInterrupt())
    assert cli.main(["fail"]) == 130  # what a shell reports for SIGINT: 128 + 2
    assert capsys.readouterr().err == "steptime: interrupted\n"


def test_a_click_error_never_reads_as_regressed(
    verb: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(click.ClickException("no"))  # click's own exit code for it is 1
    assert cli.main(["fail"]) == 2
    assert capsys.readouterr().err == "Error: no\n"


def test_a_defect_is_not_hidden(verb: Callable[[BaseException], None]) -> None:
    verb(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        cli.main(["fail"])


def test_a_defect_shows_its_traceback_and_exits_2(repo: Path) -> None:
    code = (
        "import sys; from steptime import cli; sys.argv = ['steptime', 'analyze', 'x'];"
        "cli.COMMANDS = (cli.Command('analyze', 'no_such_module', ''),); sys.exit(cli.main())"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=repo, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("steptime: this is a defect in steptime")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["analyze", "--help"], ["show", "-h"]])
def test_help_is_exit_code_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out.startswith("Usage: steptime ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Commands:"),
        (["analyse"], "No such command 'analyse'"),
        (["analyze"], "Missing argument 'PATH...'"),
        (["show"], "Missing argument 'REPORT.json'"),
        (["analyze", "--fast", "x"], "No such option"),
    ],
)
def test_bad_usage_is_exit_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_each_verb_has_help_and_its_line_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    context = click.Context(cli.verbs)
    for row in cli.COMMANDS:
        command = cli.verbs.get_command(context, row.name)
        assert command is not None
        assert command.name == row.name
        assert command.help
        assert row.help in listed
        undocumented = [o.name for o in command.params if isinstance(o, click.Option) and not o.help]
        assert undocumented == []


def test_the_module_runs_as_a_program(repo: Path) -> None:
    result = _steptime("--version", repo=repo)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"steptime, version {steptime.__version__}\n", "")


def test_a_reader_that_goes_away_is_no_error(repo: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = _steptime("--help", repo=repo, stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")  # what a shell reports for SIGPIPE: 128 + 13


def test_a_terminal_that_lacks_characters_is_no_error(repo: Path, sample: Path) -> None:
    words = [sys.executable, "-m", "steptime", "analyze", str(sample)]
    shown = {}
    for encoding in ("utf-8", "latin-1"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        result = subprocess.run(words, cwd=repo, env=environment, capture_output=True, check=False)
        assert (result.returncode, result.stderr) == (0, b"")
        shown[encoding] = result.stdout
    assert shown["latin-1"] == shown["utf-8"].decode().encode("latin-1", "replace")
