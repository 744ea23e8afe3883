"""What `steptime gate` prints and writes: one screen, a comment, annotations, JUnit, code quality, JSON."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from steptime import store
from steptime.cli import main
from steptime.gate.accepted import read_accepted
from steptime.model.gate import Judged, Moved, Verdict
from steptime.report import gate_ci, gate_markdown, gate_terminal
from tests.gate.runs import MS, report_of

LOADER, MATMUL = "host/data_loader", "kernels/matmul"


def saved(folder: Path, name: str, matmul_ms: float, loader_ms: float = 0.0) -> str:
    """A report of twelve equal steps; its path."""
    parts = {MATMUL: round(matmul_ms * MS), LOADER: round(loader_ms * MS)}
    path = folder / f"{name}.json"
    store.save(report_of([{leaf: ns for leaf, ns in parts.items() if ns}] * 12), path)
    return str(path)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A candidate that waits 20 ms for its loader, and the baseline."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return saved(tmp_path, "new", 100.0, 20.0), saved(tmp_path, "base", 100.0)


def test_the_first_line_has_the_verdict_the_reason_and_the_cause(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    new, base = pair
    assert main(["gate", new, "--baseline", base, "-q"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("regressed: step time +20.0 % (")
    assert "host/data_loader +20.0 ms" in line
    assert main(["gate", new, "--baseline", base]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 24  # one screen
    assert max(map(len, lines)) <= 100
    assert main(["gate", base, "--baseline", base]) == 0
    assert capsys.readouterr().out.startswith("pass: ")


def test_every_file_says_the_same(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, base = pair
    words = ["--comment", "c.md", "--junit", "j.xml", "--code-quality", "q.json", "--json", "v.json"]
    assert (
        main(["gate", new, "--baseline", base, "--max", "data_loader", "+1ms", "--max", "kernels", "+1ms", *words]) == 1
    )
    capsys.readouterr()
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert (verdict["status"], verdict["exit_code"]) == ("regressed", 1)
    assert [row["name"] for row in verdict["judged"]] == ["step time", "slow steps", LOADER, "kernels"]
    comment = (tmp_path / "c.md").read_text()
    assert comment.startswith(gate_markdown.MARK)
    assert "**regressed: step time +20.0 %" in comment
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "0")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["step time", LOADER]
    issues = json.loads((tmp_path / "q.json").read_text())
    assert [issue["check_name"] for issue in issues] == ["steptime gate: step time", f"steptime gate: {LOADER}"]
    # GitLab needs these five of each issue, and a fingerprint of its own.
    assert all({"description", "check_name", "fingerprint", "severity", "location"} <= issue.keys() for issue in issues)
    assert len({issue["fingerprint"] for issue in issues}) == 2


def test_in_actions_it_annotates_and_adds_to_the_summary(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new, base = pair
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["gate", new, "--baseline", base, "-q"]) == 1
    assert "\n::error title=steptime gate::regressed: step time +20.0 %25 (" in capsys.readouterr().out
    text = summary.read_text()
    assert text.startswith("# before\n")
    assert "**regressed: step time +20.0 %" in text


def test_a_verdict_of_cannot_tell_is_an_error_of_junit() -> None:
    suite = ElementTree.fromstring(gate_ci.junit(_unsure()))[0]
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert json.loads(gate_ci.code_quality(_unsure(), "x"))[0]["severity"] == "minor"
    assert json.loads(gate_ci.code_quality(Verdict(status="pass", exit_code=0, reason=""), "x")) == []


def _unsure() -> Verdict:
    return Verdict(status="cannot tell", exit_code=2, reason="no baseline", remedy="make one")


def hostile(rows: int) -> Verdict:
    """Names from a trace that would draw tables, tags and terminal escapes, and many of them."""
    name = "<img src=x>|\x1b[31m@someone::error::`\n" + "x" * 400
    return Verdict(
        status="regressed",
        exit_code=1,
        reason=name,
        remedy=name,
        judged=[Judged(name=name, status="regressed", why=name)] * rows,
        moved=[Moved(name=name, title=name, baseline_ns=1, candidate_ns=2, change_ns=1)] * rows,
        cause=[name] * rows,
        accepted=[name] * rows,
        notes=[name] * rows,
    )


@pytest.mark.parametrize("rows", [1, 500])
def test_hostile_names_stay_text_and_a_comment_stays_below_60_kb(rows: int) -> None:
    verdict = hostile(rows)
    comment = gate_markdown.render(verdict)
    assert len(comment.encode()) < 60_000
    assert "<img" not in comment
    assert "@someone" not in comment
    terminal = gate_terminal.render(verdict, 80)
    assert "\x1b" not in terminal + comment
    ElementTree.fromstring(gate_ci.junit(verdict))
    commands = gate_ci.workflow_commands(verdict).splitlines()
    assert all(line.startswith("::error title=") for line in commands)


def test_a_history_and_several_baselines_after_one_option(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a shell makes of a glob stands behind the option, up to the next one."""
    new, base = pair
    others = [saved(tmp_path, f"other{at}", 100.0 + at) for at in range(3)]
    past = [saved(tmp_path, f"past{at}", 100.0 + at) for at in range(4)]
    words = ["gate", new, "--baseline", base, *others, "--history", *past, past[0], "--json", "v.json", "-q"]
    assert main(words) == 1
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert [row["name"] for row in verdict["baseline"]] == [base, *others]
    assert verdict["degrees"] == 3 + 3
    (tmp_path / "many").mkdir()
    for at in range(3):
        saved(tmp_path / "many", f"run{at}", 100.0 + at)
    for baseline in ("many", "many/*.json", str(tmp_path / "many" / "run*.json"), f"file://{tmp_path}/many/*.json"):
        assert main(["gate", new, "--baseline", baseline, "--json", "v.json", "-q"]) == 1, baseline
        assert len(json.loads((tmp_path / "v.json").read_text())["baseline"]) == 3
    assert main(["gate", new, "--baseline", "memory://nothing/*.json", "-q"]) == 2
    assert "cannot tell: memory://nothing" in capsys.readouterr().out


def test_accepting_needs_a_reason_and_lets_through_until_its_day(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, base = pair
    words = ["gate", new, "--baseline", base, "--accept", "data_loader"]
    assert main(words) == 2
    assert "--accept needs --why" in capsys.readouterr().err
    assert main([*words, "--why", "x", "--until", "2020-01-01"]) == 2
    assert "that day is over" in capsys.readouterr().err
    assert main(["gate", new, "--baseline", base, "--accept", "recompute", "--why", "x"]) == 2
    assert "nothing of it has grown" in capsys.readouterr().err
    assert main(["gate", new, "--baseline", base, "--accept", "data_lodaer", "--why", "x"]) == 2
    assert "did you mean data_loader?" in capsys.readouterr().err
    assert not (tmp_path / "steptime-accepted.toml").exists()
    assert main([*words, "--why", "decoding moved to the host"]) == 0
    (entry,) = read_accepted(tmp_path / "steptime-accepted.toml")
    assert (entry.name, entry.leaves) == (LOADER, {LOADER: 20 * MS})
    assert entry.until - entry.on == datetime.timedelta(days=30)
    assert main(["gate", new, "--baseline", base]) == 0
    assert "decoding moved to the host" in capsys.readouterr().out
    worse = saved(tmp_path, "worse", 100.0, 60.0)
    assert main(["gate", worse, "--baseline", base, "-q"]) == 1


def test_settings_files_hold_for_the_command(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, base = pair
    (tmp_path / "steptime.toml").write_text('[gate]\nbaseline = ["base.json"]\nmax_step_time = "+30%"\n')
    assert main(["gate", new]) == 0
    assert "within the limit of +30.0 %" in capsys.readouterr().out
    assert main(["gate", new, "--max-step-time", "+5%"]) == 1
    (tmp_path / "steptime.toml").write_text('[gate]\nbaseline = ["base.json"]\n[gate.max]\nhots = "5ms"\n')
    assert main(["gate", new, "--baseline", base]) == 2
    assert (
        "steptime.toml: max: no slice, leaf or finding is called 'hots': did you mean host?" in capsys.readouterr().err
    )


def test_an_output_that_can_t_be_written_is_no_pass(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    new, base = pair
    assert main(["gate", base, "--baseline", base, "--comment", "no/c.md"]) == 2
    assert "the folder no does not exist" in capsys.readouterr().err
    before = Path(base).read_bytes()
    assert main(["gate", new, "--baseline", base, "--json", base]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert Path(base).read_bytes() == before


def test_a_verdict_without_a_baseline_is_written_too(pair: tuple[str, str], tmp_path: Path) -> None:
    new, _ = pair
    assert main(["gate", new, "--baseline", "gone.json", "--comment", "c.md", "--junit", "j.xml", "-q"]) == 2
    assert "**cannot tell: gone.json: no such file" in (tmp_path / "c.md").read_text()
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("errors") == "1"


def test_the_candidate_stands_first(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    new, base = pair
    assert main(["gate", "--baseline", base, new]) == 2
    assert "no CANDIDATE: it stands first" in capsys.readouterr().err


def test_noise_alone_is_not_blamed_on_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    paths = [saved(tmp_path, f"r{at}", 100.0 * float(np.exp(rng.normal(0, 0.01)))) for at in range(6)]
    assert main(["gate", *paths[:3], "--baseline", *paths[3:], "-q"]) == 0
    assert "kernels" not in capsys.readouterr().out
