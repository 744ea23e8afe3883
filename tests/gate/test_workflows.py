"""The workflows and the pytest example of README.md, run as far as they go without their hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from steptime import store
from tests.gate.runs import MS, report_of

#: Instead of the user's training script: each run leaves a report where traces would be. SLOW_MS is what is injected.
TRAIN = """
import os, sys
from pathlib import Path
from steptime import store
from tests.gate.runs import MS, report_of
out = Path(sys.argv[sys.argv.index("--profile") + 1])
out.mkdir(parents=True)
at = int(out.name[-1])
steps = [{"kernels/matmul": (100 + at) * MS, "host/data_loader": int(os.environ["SLOW_MS"]) * MS + 1}] * 12
store.save(report_of(steps), out / "report.json")
"""


def _between(repo: Path, marker: str) -> str:
    text = (repo / "README.md").read_text()
    inside = text.split(f"<!-- {marker} -->\n")[1].split(f"<!-- /{marker} -->")[0]
    return re.sub(r"^```.*\n", "", inside, flags=re.MULTILINE)


def github_scripts(repo: Path) -> dict[str, str]:
    """The named steps of the workflow that run a script, by name."""
    found = {}
    for step in re.split(r"^ +- (?=name:|uses:|run:)", _between(repo, "github-workflow"), flags=re.MULTILINE)[1:]:
        name = re.match(r"name: (.+)\n", step)
        body = re.search(r"^ +run: \|\n((?: {10}.*\n)+)", step, flags=re.MULTILINE)
        if name and body:
            found[name[1]] = textwrap.dedent(body[1])
    return found


def gitlab_lines(repo: Path) -> list[str]:
    """The lines of the job's script."""
    script = re.search(r"^  script:\n((?:    - .*\n)+)", _between(repo, "gitlab-job"), flags=re.MULTILINE)
    assert script is not None
    return [line.removeprefix("    - ") for line in script[1].splitlines()]


@pytest.fixture
def checkout(tmp_path: Path, repo: Path) -> tuple[Path, dict[str, str]]:
    """A project with a training script and a committed baseline, and the environment of a runner's shell."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "baselines").mkdir()
    store.save(report_of([{"kernels/matmul": 102 * MS}] * 12), tmp_path / "baselines" / "main.json")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("steptime", "-m steptime"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(repo),
        "PYTHONIOENCODING": "utf-8",
        "SLOW_MS": "0",
    }
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        environment.pop(name, None)
    return tmp_path, environment


def _shell(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # A runner's shell for `run`: https://docs.github.com/actions/reference/workflow-syntax-for-github-actions.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(("slow_ms", "code", "verdict"), [("0", 0, "pass"), ("30", 1, "regressed")])
def test_the_github_workflow(
    repo: Path, checkout: tuple[Path, dict[str, str]], slow_ms: str, code: int, verdict: str
) -> None:
    folder, environment = checkout
    scripts = github_scripts(repo)
    assert list(scripts) == ["record", "gate", "comment"]
    recorded = _shell(scripts["record"], folder, {**environment, "SLOW_MS": slow_ms})
    assert (recorded.returncode, recorded.stderr) == (0, "")
    summary = folder / "summary.md"
    actions = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), "CI": "true"}
    result = _shell(scripts["gate"], folder, {**environment, **actions})
    assert (result.returncode, result.stderr) == (code, "")
    assert result.stdout.startswith(f"{verdict}: step time ")
    level = "error" if code else "notice"
    assert f"\n::{level} title=steptime gate::{verdict}: step time " in result.stdout
    assert summary.read_text() == (folder / "comment.md").read_text()
    assert f"**{verdict}: step time " in summary.read_text()
    assert ("host/data_loader +30.0 ms" in result.stdout.splitlines()[0]) == bool(code)
    assert ElementTree.parse(folder / "gate.xml").getroot().get("failures") == str(code)
    # The last step needs the host; the file that it posts is the one that the gate wrote.
    assert "--body-file comment.md" in scripts["comment"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_gitlab_job(repo: Path, checkout: tuple[Path, dict[str, str]]) -> None:
    folder, environment = checkout
    install, *script = gitlab_lines(repo)
    assert install == "pip install steptime"
    result = _shell("\n".join(script), folder, {**environment, "SLOW_MS": "30", "GITLAB_CI": "true"})
    assert (result.returncode, result.stderr) == (1, "")
    named = re.findall(r"(junit|codequality): (\S+)", _between(repo, "gitlab-job"))
    assert [name for name, _ in named] == ["junit", "codequality"]
    files = dict(named)
    assert ElementTree.parse(folder / files["junit"]).getroot().get("failures") == "1"
    (issue,) = json.loads((folder / files["codequality"]).read_text())
    assert issue["severity"] == "major"
    assert issue["description"].startswith("regressed: step time ")


@pytest.mark.parametrize(("slow_ms", "outcome"), [(0, "1 passed"), (30, "1 failed")])
def test_the_pytest_example(repo: Path, checkout: tuple[Path, dict[str, str]], slow_ms: int, outcome: str) -> None:
    folder, environment = checkout
    (folder / "traces" / "run1").mkdir(parents=True)
    steps = [{"kernels/matmul": 102 * MS, "host/data_loader": slow_ms * MS + 1}] * 12
    store.save(report_of(steps), folder / "traces" / "run1" / "report.json")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_speed.py").write_text(_between(repo, "pytest-example"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "steptime.pytest_plugin", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert outcome in result.stdout, result.stdout + result.stderr
    if slow_ms:
        assert "regressed: step time +29" in result.stdout
        assert "host/data_loader +30.0 ms" in result.stdout


def test_the_fixture_fails_or_skips_where_it_can_t_tell(checkout: tuple[Path, dict[str, str]]) -> None:
    folder, environment = checkout
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_speed.py").write_text(
        "def test_fails(steptime_gate):\n    steptime_gate('baselines/main.json', 'nowhere.json')\n"
        "def test_skips(steptime_gate):\n"
        "    steptime_gate('baselines/main.json', 'nowhere.json', skip_if_cannot_tell=True)\n"
        "def test_passes(steptime_gate):\n"
        "    assert steptime_gate(['baselines/main.json'], ['baselines/main.json']).status == 'pass'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "steptime.pytest_plugin", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed, 1 skipped" in result.stdout, result.stdout + result.stderr
    assert "cannot tell: nowhere.json: no such file or folder" in result.stdout
