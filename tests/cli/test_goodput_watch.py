"""``steptime goodput watch``: a log in, report out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from steptime import cli
from steptime.model.watch import Watch
from steptime.store import load_run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 rows, a spike of the loss at steps 3,000 to 3,030, half a line at the end."""
    path = tmp_path_factory.mktemp("watch") / "metrics.jsonl"
    loss = np.random.default_rng(0).normal(2, 0.02, 400)
    loss[300:304] += 1
    rows = [{"step": 10 * at, "train_loss": float(value), "norm": 0.3} for at, value in enumerate(loss)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 4000, "trai')
    return path


def test_it_prints_and_writes_and_shows_again(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / f"watch.{suffix}" for suffix in ("json", "html", "md", "txt")]
    words = [word for path in outputs for word in ("-o", str(path))]
    asked = ["--checkpoint-every", "1000", "--target-loss", "2.1", "--grad-norm", "norm"]
    assert cli.main(["goodput", "watch", str(log), *asked, *words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "1 spike of the loss" in printed.out
    assert "cut, the last line has no end" in printed.out
    report = load_run(outputs[0])
    assert isinstance(report, Watch)
    assert [(one.start_step, one.rewind_step) for one in report.spikes] == [(3000, 2000)]
    assert [one.column for one in report.series] == ["train_loss", "norm"]
    assert report.bad_lines == 1
    assert cli.main(["show", str(outputs[0])]) == 0
    assert capsys.readouterr() == printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["LOG", "--loss", "height"], "no column 'height'"),
        (["LOG", "--checkpoint-every", "0"], "--checkpoint-every"),
        (["LOG", "-o", "LOG"], "no such format"),
        ([], "METRICS"),
    ],
)
def test_bad_usage_is_one_line_and_2(
    words: list[str], said: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["goodput", "watch", *(str(log) if word == "LOG" else word for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err
