"""README.md against the code. Run as a script, this puts the demo's new output into README.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from steptime import errors
from steptime.cli import COMMANDS, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, verbs
from steptime.taxonomy import LEAVES

_REPO = Path(__file__).parent.parent
_README = _REPO / "README.md"


def _between(marker: str) -> str:
    """What README.md has between the two markers, which must each be there once."""
    text = _README.read_text()
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->\n"
    assert (text.count(begin), text.count(end)) == (1, 1), marker
    return text.split(begin)[1].split(end)[0]


#: The command behind each marker.
_SAMPLES = {
    "sample": "analyze traces/demo_28_mfu",
    "on-call-sample": "diagnose traces/demo_28_mfu",
    "what-if-sample": "what-if traces/demo_28_mfu --remove straggler:rank=2,11 --remove hidden:allgather "
    "--remove recompute --each",
}


def _sample_block(marker: str) -> str:
    """The command on the demo with what it prints, as README.md shows it."""
    words = _SAMPLES[marker].split()
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(
        [sys.executable, "-m", "steptime", *words], cwd=_REPO, env=environment, capture_output=True, check=False
    )
    assert (result.returncode, result.stderr.decode()) == (0, "")
    return f"```console\n$ steptime {' '.join(words)}\n{result.stdout.decode().rstrip()}\n```\n"


def _table(header: str) -> list[list[str]]:
    """The rows of the table under `header`, cell by cell."""
    rows = _README.read_text().split(f"\n| {header} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _command(name: str) -> click.Command:
    module = next(row.module for row in COMMANDS if row.name == name)
    command: click.Command = import_module(module).command
    return command


def _flags(name: str) -> set[str]:
    return {flag for option in _command(name).params if isinstance(option, click.Option) for flag in option.opts}


@pytest.mark.parametrize("marker", _SAMPLES)
def test_the_samples_are_what_the_demo_prints(marker: str) -> None:
    expected = _sample_block(marker)
    assert _between(marker) == expected, "run `python tests/test_readme.py` to accept the new output"


def test_the_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", _README.read_text())
    assert len(pictures) == 1
    assert [path for path in pictures if not 10_000 < (_REPO / path).stat().st_size < 400_000] == []


def test_every_verb_is_shown() -> None:
    text = _README.read_text()
    assert [row.name for row in COMMANDS if f"steptime {row.name} " not in text] == []


def test_every_command_line_shown_is_one_that_steptime_takes() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", _README.read_text(), flags=re.DOTALL)
    lines = [line.split("steptime ")[-1] for block in blocks for line in block.splitlines() if "steptime " in line]
    assert len(lines) >= 5
    parent = click.Context(verbs, **verbs.context_settings)
    for line in lines:
        verb, *words = line.split()
        _command(verb).make_context(verb, words, parent=parent)  # raises on an unknown option or a bad value


def test_the_options_of_analyze_are_the_table() -> None:
    shown = {flag for row in _table("option") for flag in re.findall(r"`(-[-\w]+)", row[0])}
    assert shown == _flags("analyze")
    assert _flags("show") == {"-o", "--output", "-q", "--quiet"}


def test_the_options_of_gate_are_the_table() -> None:
    """Its other options are those of diff, but that it writes no report."""
    shown = {flag for row in _table("option of `gate`") for flag in re.findall(r"`(-[-\w]+)", row[0])}
    assert shown | (_flags("diff") - {"-o", "--output"}) == _flags("gate")


def test_the_options_of_diagnose_and_capture_are_the_table() -> None:
    rows = [row[0] for row in _table("option of `diagnose`")]
    assert {flag for row in rows for flag in re.findall(r"`(-[-\w]+)", row)} == _flags("diagnose")
    both = [row[0] for row in _table("option of `diagnose`") if "also of `capture`" in row[1]]
    assert {flag for row in both for flag in re.findall(r"`(-[-\w]+)", row)} == _flags("capture")


def test_the_on_call_page_is_short() -> None:
    page = _README.read_text().split("## On call at 3 a.m.\n")[1].split("\n## ")[0]
    assert 30 < len(page.splitlines()) <= 60
    assert [line for line in page.splitlines() if line.startswith("|") and line.count("|") < 3] == []


def test_the_requests_of_what_if_are_the_table() -> None:
    """Every name in the table is one that what-if takes; its other options are those of analyze, but one."""
    from steptime.whatif.requests import remove, scale

    filled = {
        "LEAF": "matmul",
        "SLICE": "host",
        "KIND": "allgather",
        "ID": "any",
        "R[,R...]": "2,11",
        "REGEX": "gemm",
        "F": "0.8",
    }
    said = [text for row in _table("request") for text in re.findall(r"`(?:--(\w+) )?([^`]+)`", row[0])]
    assert len(said) >= 12
    for verb, text in said:
        for word, value in filled.items():
            text = re.sub(rf"\b{re.escape(word)}(?!\w)", value, text)
        (scale if verb == "scale" else remove)(text)
    left_out = {"--unprofiled-step-ms", "--replay", "--no-replay", "--run"}
    assert _flags("what-if") == _flags("analyze") - left_out | {"--remove", "--scale", "--each"}


@pytest.mark.parametrize("verb", ["plan", "watch"])
def test_the_options_of_the_verbs_of_goodput_are_the_tables(verb: str) -> None:
    group = _command("goodput")
    assert isinstance(group, click.Group)
    command = group.get_command(click.Context(group), verb)
    assert command is not None
    flags = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    shown = {flag for row in _table(f"option of `{verb}`") for flag in re.findall(r"`(-[-\w]+)", row[0])}
    assert shown == flags - {"-o", "--output", "-q", "--quiet"}
    lines = re.findall(rf"^steptime goodput {verb} (.*)$", _README.read_text(), flags=re.MULTILINE)
    assert lines
    for line in lines:
        command.make_context(verb, line.split())  # raises on an unknown option or a bad value


def test_the_leaves_are_the_table() -> None:
    assert [(row[0].strip("`"), row[1]) for row in _table("leaf")] == [(leaf.key, leaf.title) for leaf in LEAVES]
    assert all(len(row) == 3 and row[2] for row in _table("leaf"))


def test_the_exit_codes_are_the_table() -> None:
    codes = [errors.EXIT_OK, errors.EXIT_REGRESSED, errors.EXIT_CANNOT_TELL, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE]
    assert [int(row[0]) for row in _table("code")] == codes


def test_the_rooms_exist() -> None:
    rooms = [row[0].strip("`") for row in _table("room")]
    assert [room for room in rooms if not (_REPO / "steptime" / room).exists()] == []
    touched = {path for row in _table("to add") for path in re.findall(r"`(steptime/[\w/.]+)`", row[1])}
    assert len(touched) >= 5
    assert [path for path in sorted(touched) if not (_REPO / path).exists()] == []


def test_the_formats_are_shown() -> None:
    from steptime.report import FORMATS

    text = _README.read_text()
    assert [row.suffix for row in FORMATS.values() if f"`{row.suffix}`" not in text] == []


def test_the_library_example_runs(tmp_path: Path, sample: Path) -> None:
    shutil.copytree(sample, tmp_path / "traces" / sample.name)
    shown = _run(_python_example("steptime.analyze"), tmp_path)
    assert "exposed_comm" in shown
    assert (tmp_path / "report.json").exists()


def test_the_training_loop_runs(tmp_path: Path) -> None:
    given = "import time\nloader, train = range(5), lambda batch: time.sleep(0.05)\n"
    asked = _python_example("steptime.watch") + "\nprint(watch.number)\n"
    assert _run(given + asked, tmp_path) == "5\n"
    assert (tmp_path / "captures").is_dir()


def _python_example(name: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", _README.read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if name in block]
    return str(code)


def _run(code: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("marker", ["demo-command", "test-command"])
def test_the_two_commands_are_one_line_each(marker: str) -> None:
    fence, command, end = _between(marker).splitlines()
    assert (fence, end) == ("```sh", "```")
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


if __name__ == "__main__":
    for name in _SAMPLES:
        _README.write_text(_README.read_text().replace(_between(name), _sample_block(name)))
