"""``steptime what-if`` from the command line, on op-level jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.cli import main
from steptime.report.oplevel import render
from steptime.whatif.oplevel.analysis import analyze_oplevel
from tests.whatif.oplevel_jobs import Shape, recorded, tiny, works, write


def test_a_job_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, tiny(), (2, 2), "small")
    assert main(["what-if", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "small: " in out
    assert "2 steps of 4 workers (2 dp ranks, 2 stages; a job of 8 ranks), 2 micro-batches a step." in out
    # 166 / 128.5, as worked out in tests/whatif/test_oplevel_small.py.
    assert "Slowdown S = 1.2918." in out
    assert "120.00 %  the slowest 3 % of workers (M_W): rank 6 (dp rank 1, stage 1; 2.00 times its stage's" in out
    assert "120.00 %  the last stage (M_S): forward and backward of a micro-batch take 30.0 ms, 1.00 times" in out
    assert max(map(len, out.splitlines())) <= 100


def test_delays_and_names_are_told(tmp_path: Path) -> None:
    shape = Shape(2, 2, 2)
    taken = works(shape, 1, lambda key, _: 0.0 if key.optype == "gc" else 1e-3)
    late = works(shape, 1, lambda key, _: 2e-3 * (key.optype == "optimizer"))
    path = write(tmp_path, recorded(shape, taken, late), (2, 2))
    meta = tmp_path / "meta-T.yaml"
    meta.write_text(meta.read_text().replace("trial_name: T", "trial_name: \x1b[31mT"))
    text = render(analyze_oplevel(path), 72)
    assert text.startswith("\\x1b[31mT: no straggler: ")
    assert "! Delays between ops make the recorded step +" in text
    assert "forward and backward of the micro-batches do not vary" in text
    assert max(map(len, text.splitlines())) <= 72


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", str(tmp_path / "rank0.json.gz")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"steptime: {tmp_path}/rank0.json.gz: what-if replays op-level recordings")
    assert err.count("\n") == 1
