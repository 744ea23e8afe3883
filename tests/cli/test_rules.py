"""``steptime rules``: the list, one rule, the metrics, and rules of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime import cli
from steptime.diagnose.metrics import METRICS
from steptime.diagnose.rules import load_rules


def test_it_lists_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules"]) == 0
    out = capsys.readouterr().out
    for rule in load_rules():
        assert f"{rule.id} [{rule.slice}]\n    {rule.title}\n    when " in out
    assert "when host.recompile_share >= 0.01 and host.compile_steps >= 0.3\n" in out
    assert max(map(len, out.splitlines())) <= 100


def test_it_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "sync-device"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sync-device [host]: The whole device is synchronised inside the step\n")
    assert "fires: host.device_sync_share = 0.06\n    silent: host.device_sync_share = 0.002\n" in out
    assert "torch.cuda.synchronize()" in out


def test_it_lists_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--metrics"]) == 0
    out = capsys.readouterr().out
    assert [name for name, metric in METRICS.items() if f"{name} [{metric.unit}]\n" not in out] == []


def test_an_unknown_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "nothing"]) == 2
    assert capsys.readouterr() == ("", "steptime: no rule 'nothing': `steptime rules` lists them all\n")


def test_rules_of_ones_own(tmp_path: Path, repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (repo / "rules" / "sync.toml").read_text()
    (tmp_path / "my-sync.toml").write_text(text.replace('id = "sync"', 'id = "my-sync"'))
    assert cli.main(["rules", "my-sync", "--rules", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("my-sync [host]: ")
    (tmp_path / "bad.toml").write_text("id = 3")
    assert cli.main(["rules", "--rules", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"steptime: {tmp_path / 'bad.toml'}: is no rule (")
