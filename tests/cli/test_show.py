"""``steptime show``: the same report again, without the traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime import cli
from steptime.report import FORMATS
from steptime.store import load


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """The report of the sample, as `analyze` writes it."""
    path = tmp_path_factory.mktemp("show") / "report.json"
    assert cli.main(["analyze", str(sample), "-q", "-o", str(path)]) == 0
    return path


def test_it_prints_what_analyze_printed(saved: Path, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", str(sample)]) == 0
    first = capsys.readouterr()
    assert cli.main(["show", str(saved)]) == 0
    assert capsys.readouterr() == first
    assert len(first.out.splitlines()) > 10


def test_it_converts(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / f"again{row.suffix}" for row in FORMATS.values()]
    assert cli.main(["show", str(saved), "-q", *(word for path in outputs for word in ("-o", str(path)))]) == 0
    assert capsys.readouterr() == ("", "")
    texts = [row.render(load(saved)) for row in FORMATS.values()]
    assert [path.read_text(encoding="utf-8") for path in outputs] == texts
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


def test_it_refuses_a_trace(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sorted(sample.glob("*.json.gz"))[0]
    assert cli.main(["show", str(trace)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"steptime: {trace}: ")
    assert err.count("\n") == 1


def test_it_refuses_to_overwrite_its_input(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = saved.read_bytes()
    assert cli.main(["show", str(saved), "-o", str(saved)]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert saved.read_bytes() == before
