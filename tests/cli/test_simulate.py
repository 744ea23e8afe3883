"""``steptime simulate`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.cli import main

_SCENARIO = Path(__file__).parent.parent.parent / "traces" / "scenarios" / "dp_slow_gpu.toml"


def test_traces_and_truth_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(_SCENARIO), "--out", str(tmp_path / "job"), "--seed", "3"]) == 0
    assert sorted(path.name for path in (tmp_path / "job").iterdir())[-2:] == ["rank7.json.gz", "truth.json"]
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())
    assert (truth["seed"], truth["culprits"], truth["world_size"]) == (3, [3], 8)
    printed = capsys.readouterr().out
    assert "8 ranks" in printed
    assert f"{truth['step_time_ns'] / 1e6:.1f} ms" in printed


def test_bad_requests_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "none.toml"), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "none.toml: can't be read" in error
    assert error.count("\n") == 1
    assert main(["simulate", str(_SCENARIO)]) == 2
