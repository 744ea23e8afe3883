"""The shape of the code: who imports whom, how long a module may be, what starts instantly."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAX_LINES = 400
NAMES_WITHOUT_MEANING = {"util", "utils", "common", "helper", "helpers", "core", "base", "misc"}
HEAVY = {"altair", "numpy", "pandas", "torch"}
STARTUP_CPU_S = 0.2

_LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _LINT], cwd=root, capture_output=True, text=True, check=False)


def _modules(repo: Path) -> list[Path]:
    return sorted((repo / "steptime").rglob("*.py"))


def test_imports_keep_the_contract(repo: Path) -> None:
    result = _lint_imports(repo)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("trace/parse.py", "import steptime.timeline", "imports flow one way"),
        ("store.py", "import steptime.report", "imports flow one way"),
        ("report/terminal.py", "import steptime.trace.events", "renderers know only the report"),
        ("trace/parse.py", "import torch", "only capture may import torch"),
        ("helpers.py", "", "imports flow one way"),
    ],
)
def test_the_contract_sees_a_planted_fault(repo: Path, tmp_path: Path, module: str, line: str, broken: str) -> None:
    shutil.copytree(repo / "steptime", tmp_path / "steptime")
    shutil.copy(repo / "pyproject.toml", tmp_path)
    with (tmp_path / "steptime" / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = _lint_imports(tmp_path)
    assert result.returncode == 1
    assert f"{broken} BROKEN" in result.stdout


def test_no_module_is_too_long(repo: Path) -> None:
    lines = {str(path.relative_to(repo)): len(path.read_text().splitlines()) for path in _modules(repo)}
    assert lines
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_has_a_room(repo: Path) -> None:
    assert [path for path in _modules(repo) if {path.stem, path.parent.name} & NAMES_WITHOUT_MEANING] == []


def test_help_imports_nothing_heavy(repo: Path) -> None:
    code = "import sys; from steptime.cli import main; main(['--help']); print('loaded:', *sys.modules)"
    help_text = subprocess.run(
        [sys.executable, "-c", code], cwd=repo, capture_output=True, text=True, check=True
    ).stdout
    assert "analyze" in help_text
    loaded = {name.partition(".")[0] for name in help_text.split("loaded:")[1].split()}
    assert "click" in loaded
    assert loaded & HEAVY == set()


def test_help_is_instant(repo: Path) -> None:
    # Processor time, not wall time: a busy machine must not fail this. The least of five is the cost itself.
    import resource

    def cpu_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    costs = []
    for _ in range(5):
        before = cpu_s()
        subprocess.run([sys.executable, "-m", "steptime", "--help"], cwd=repo, capture_output=True, check=True)
        costs.append(cpu_s() - before)
    assert min(costs) < STARTUP_CPU_S
