"""``steptime goodput`` as a user runs it: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from steptime.cli import goodput as module
from steptime.cli import main
from steptime.errors import EXIT_CANNOT_TELL, EXIT_OK
from steptime.store import load_goodput

LOG = (
    "time,cause,detected,resumed,last_checkpoint\n"
    "2024-05-01T00:00:00Z,start,,,\n"
    "2024-05-01T10:00:00Z,Faulty GPU,2024-05-01T10:05:00Z,2024-05-01T10:30:00Z,2024-05-01T09:40:00Z\n"
    "2024-05-03T02:00:00Z,end,,,\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def test_it_says_what_a_reader_needs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 50 h, of which 5 min undetected, 25 min restarting and 20 min lost: 49 h 10 min of training are 98.333 %, at most,
    # since no checkpoint is in the log.
    options = ["--gpus", "64", "--mfu", "0.4", "--gpu-hour-price", "2.5"]
    assert main(["goodput", *options, str(log)]) == EXIT_OK
    shown = " ".join(capsys.readouterr().out.split())
    begin = "The run trained at most 98.3 % of 2.08 days: 1 unexpected interruption; the largest loss is restarting"
    assert shown.startswith(begin)
    for text in (
        "η = 1 − Σ(d + r)/T = 99.0 %",
        "64 GPUs: 3,200 GPU-hours, of which at least 53 did not train.",
        "At 2.50 a GPU-hour: 8,000, of which at least 133 for time that did not train.",
        "MFU 40.0 % (given) × 98.3 % of the time = at most 39.3 % of what was paid for did useful work.",
        "its FLOPs are 67 days of compute that nothing stops",
    ):
        assert text in shown


def test_options_may_come_after_logs_and_every_format_is_written(log: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("r.json", "r.html", "r.md", "r.txt")]
    words = [word for file in files for word in ("-o", str(file))]
    assert main(["goodput", str(log), "-q", *words]) == EXIT_OK
    assert all(file.stat().st_size > 500 for file in files)
    report = load_goodput(files[0])
    assert report.productive_share == pytest.approx(49 / 50 + 1 / 300)
    again = tmp_path / "again.md"
    assert main(["show", str(files[0]), "-q", "-o", str(again)]) == EXIT_OK
    assert again.read_text() == files[2].read_text()


def test_show_prints_a_goodput_report(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", str(log), "-o", str(tmp_path / "r.json")]) == EXIT_OK
    printed = capsys.readouterr().out
    assert main(["show", str(tmp_path / "r.json")]) == EXIT_OK
    assert capsys.readouterr().out == printed


def test_mfu_and_gpus_come_from_a_report_on_the_step(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], repo: Path
) -> None:
    analysed = tmp_path / "analysed.json"
    assert main(["analyze", str(repo / "traces" / "demo_28_mfu"), "-q", "-o", str(analysed)]) == EXIT_OK
    assert main(["goodput", str(log), "--run", str(analysed)]) == EXIT_OK
    shown = capsys.readouterr().out
    # The demo's MFU, times 98.33 %.
    assert "MFU 28.2 % (" in shown
    assert "at most 27.7 % of what was paid for" in " ".join(shown.split())
    assert "16 GPUs: 800 GPU-hours" in shown


def test_analyze_takes_the_report_for_its_checklist(log: Path, tmp_path: Path, repo: Path) -> None:
    saved, analysed = tmp_path / "r.json", tmp_path / "a.json"
    words = ["--checkpoint-every", "15m", "--checkpoint-pause", "33s"]
    assert main(["goodput", str(log), "-q", "-o", str(saved), *words]) == EXIT_OK
    demo = str(repo / "traces" / "demo_28_mfu")
    assert main(["analyze", demo, "-q", "--run", str(saved), "-o", str(analysed)]) == EXIT_OK
    items = {item["item"]: item for item in json.loads(analysed.read_text())["checklist"]}
    # One failure in 50 h and a pause of 33 s: sqrt(2 * 33 * 180,000) = 3,447 s = 57.4 min, and 15 min is too often.
    assert items["Budget the failures"]["status"] == "fail"
    assert items["Budget the failures"]["why"].endswith("saves every 15.0 min, Young's formula asks for 57.4 min")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.csv"], "no such file"),
        (["LOG", "-o", "r.perfetto.json"], "no such format"),
        (["LOG", "-o", "LOG"], "no such format"),
        (["LOG", "--since", "May"], "'May' is not a time"),
        (["LOG", "--checkpoint-pause", "30s"], "--checkpoint-every"),
        (["LOG", "--mfu", "0.4", "--run", "x.json"], "choose one"),
        (["LOG", "--timezone", "Moon/Base"], "no time zone is called"),
        (["LOG", "--checkpoint-every", "soon"], "is not a length of time"),
        (["LOG", "--mfu", "41"], "--mfu"),
        ([], "LOG..."),
    ],
)
def test_what_is_refused_is_one_line_and_exit_code_2(
    words: list[str], said: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["goodput", *(str(log) if word == "LOG" else word for word in words)]) == EXIT_CANNOT_TELL
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err


def test_bad_lines_are_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(LOG + "2024-05-01T20:00:00Z,GPU,,2024-05-01T19:00:00Z,\n2024-05-01T2")
    assert main(["goodput", str(log)]) == EXIT_OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 lines could not be used:" in shown
    assert "line 5: resumed before it began: 2024-05-01T20:00:00Z,GPU" in shown
    assert "line 6: has 1 fields, the header has 5: 2024-05-01T2" in shown


def test_a_verb_is_told_from_a_log_by_its_name(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("plan")
    @click.option("--gpus", type=int)
    def planned(gpus: int) -> None:
        click.echo(f"planned for {gpus}")

    monkeypatch.setitem(module.goodput.commands, "plan", planned)
    monkeypatch.setattr(module.LogsOrVerb, "list_commands", lambda _self, _context: ["plan"])
    monkeypatch.setattr(module, "import_module", lambda _name: None)
    assert main(["goodput", "plan", "--gpus", "8"]) == EXIT_OK
    assert capsys.readouterr().out == "planned for 8\n"
    log.rename(tmp_path / "plan")
    monkeypatch.chdir(tmp_path)
    assert main(["goodput", "./plan"]) == EXIT_OK
    assert "The run trained at most 98.3 %" in capsys.readouterr().out


def test_the_options_are_the_table_in_the_readme(repo: Path) -> None:
    rows = (repo / "README.md").read_text().split("| option of `goodput` |")[1].split("\n\n")[0].splitlines()[2:]
    shown = {flag for row in rows for flag in re.findall(r"`(-[-\w]+)", row.split("|")[1])}
    options = [option for option in module.goodput.params if isinstance(option, click.Option)]
    assert shown == {flag for option in options for flag in option.opts}


def test_the_terminal_needs_no_charts(log: Path, repo: Path) -> None:
    code = "import sys; from steptime.cli import main; main(sys.argv[1:]); print('loaded:', *sys.modules)"
    words = [sys.executable, "-c", code, "goodput", str(log)]
    printed = subprocess.run(words, cwd=repo, capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in printed.split("loaded:")[1].split()}
    assert loaded & {"altair", "torch", "tensorboard", "jinja2", "vl_convert"} == set()
