"""A whole log, watched: from files as runs write them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from steptime.errors import LogError
from steptime.goodput.metrics_file import read_metrics
from steptime.goodput.watching import WatchAsk, watch
from steptime.model.inputs import Tool
from steptime.model.watch import Watch

TOOL = Tool(name="steptime", version="test")
EVERY_S = 2.5


def _rows(rows: int = 2000, seed: int = 0) -> list[dict[str, float]]:
    """A calm run: loss falls to 2, gradient norm around 0.3, 1,000 tokens a second, a row every 2.5 s and 10 steps."""
    rng = np.random.default_rng(seed)
    at = np.arange(rows)
    loss = 2 + 6 * np.exp(-at / 150) + rng.normal(0, 0.02, rows)
    grad = 0.3 * np.exp(rng.normal(0, 0.1, rows))
    rate = rng.normal(1000, 8, rows)
    return [
        {
            "step": 10 * row,
            "time": 1_700_000_000 + EVERY_S * row,
            "train_loss": float(loss[row]),
            "grad_norm": float(grad[row]),
            "tps": float(rate[row]),
            "mfu": 0.4,
            "update_to_weight_ratio": 1e-3,
        }
        for row in range(rows)
    ]


def _written(rows: list[dict[str, float]], folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _watched(rows: list[dict[str, float]], folder: Path, ask: WatchAsk | None = None) -> Watch:
    return watch(read_metrics(_written(rows, folder)), ask or WatchAsk(), TOOL)


def test_a_calm_run_has_nothing_to_report(tmp_path: Path) -> None:
    found = _watched(_rows(), tmp_path)
    assert (found.spikes, found.non_finite, found.drops, found.missing, found.warnings) == ([], [], [], [], [])
    assert [one.what for one in found.series] == ["loss", "grad_norm", "throughput", "mfu", "update_ratio"]
    assert (found.rows, found.first_step, found.last_step, found.step_backs) == (2000, 0, 19_990, 0)
    assert found.duration_s == pytest.approx(1999 * EVERY_S)


def test_a_spike_with_its_rewind(tmp_path: Path) -> None:
    """Rows 1,203 to 1,206 are steps 12,030 to 12,060; checkpoints every 500 steps: 12,000 is the last before it."""
    rows = _rows()
    for at, more in zip(range(1203, 1207), (0.5, 1.5, 1.0, 0.5), strict=True):
        rows[at]["train_loss"] += more
    (spike,) = _watched(rows, tmp_path, WatchAsk(checkpoint_every=500)).spikes
    assert (spike.what, spike.start_step, spike.peak_step, spike.end_step) == ("loss", 12_030, 12_040, 12_070)
    assert spike.alert_step in (12_030, 12_040)
    assert (spike.rewind_step, spike.redone_steps) == (12_000, spike.alert_step - 12_000)
    assert spike.alert_s == pytest.approx(spike.alert_step / 10 * EVERY_S)
    assert spike.warned_step is None
    assert spike.usual == pytest.approx(2.0, abs=0.02)
    assert spike.score > 50


def test_a_checkpoint_at_the_spike_itself_is_too_late(tmp_path: Path) -> None:
    rows = _rows()
    for at in range(1200, 1204):
        rows[at]["train_loss"] += 1
    (spike,) = _watched(rows, tmp_path, WatchAsk(checkpoint_every=500)).spikes
    assert (spike.start_step, spike.rewind_step) == (12_000, 11_500)
    (early,) = _watched(rows, tmp_path, WatchAsk(checkpoint_every=50_000)).spikes
    assert (early.rewind_step, early.redone_steps) == (None, None)


def test_the_gradient_norm_warned(tmp_path: Path) -> None:
    """Ten times as large from row 1,190 on, 15 rows before the loss: the rewind goes before both."""
    rows = _rows()
    for at in range(1190, 1195):
        rows[at]["grad_norm"] *= 10
    for at in range(1205, 1209):
        rows[at]["train_loss"] += 1
    gradient, loss = _watched(rows, tmp_path, WatchAsk(checkpoint_every=1000)).spikes
    assert (gradient.what, loss.what) == ("grad_norm", "loss")
    assert loss.warned_step == gradient.alert_step == 11_900
    assert (loss.start_step, loss.rewind_step) == (12_050, 11_000)
    assert gradient.usual == pytest.approx(0.3, rel=0.05)


def test_nan_and_infinity(tmp_path: Path) -> None:
    rows = _rows()
    rows[900]["grad_norm"] = math.inf
    for at in range(1500, 2000):
        rows[at]["train_loss"] = math.nan
    found = _watched(rows, tmp_path, WatchAsk(checkpoint_every=4000))
    shown = [(one.what, one.kind, one.first_step, one.last_step, one.rows, one.ended) for one in found.non_finite]
    assert sorted(shown) == [
        ("grad_norm", "infinite", 9000, 9000, 1, True),
        ("loss", "NaN", 15_000, 19_990, 500, False),
    ]
    assert [one.rewind_step for one in found.non_finite if one.what == "loss"] == [12_000]
    assert found.spikes == []


def test_a_log_of_nothing_but_nan(tmp_path: Path) -> None:
    rows = _rows(50)
    for row in rows:
        row["train_loss"] = math.nan
    found = _watched(rows, tmp_path, WatchAsk(target_loss=2.0))
    assert [(one.rows, one.ended) for one in found.non_finite] == [(50, False)]
    assert found.target is not None
    assert (found.target.step, found.target.lowest) == (None, None)
    assert [one.lowest for one in found.series if one.what == "loss"] == [None]


def test_a_drop_of_the_throughput(tmp_path: Path) -> None:
    """30 % for 200 rows, then back; 20 % from row 1,500 on."""
    rows = _rows()
    for at in range(700, 900):
        rows[at]["tps"] *= 0.7
    for at in range(1500, 2000):
        rows[at]["tps"] *= 0.8
    first, second = _watched(rows, tmp_path).drops
    assert (first.what, first.start_step, first.alert_step, first.end_step) == ("throughput", 7000, 7070, 9000)
    assert first.share == pytest.approx(0.3, abs=0.01)
    assert first.usual == pytest.approx(1000, rel=0.01)
    assert (second.start_step, second.end_step) == (15_000, None)
    assert second.share == pytest.approx(0.2, abs=0.01)


def test_the_target_is_reached_by_many_rows_not_by_one(tmp_path: Path) -> None:
    """2 + 6·e^(−x/150) = 2.5 at x = 150·ln 12 = 372.7; the median of 32 rows lies 15.5 rows behind: row 388, ±5."""
    rows = _rows()
    rows[100]["train_loss"] = 2.4
    target = _watched(rows, tmp_path, WatchAsk(target_loss=2.5)).target
    assert target is not None
    assert target.single_step == 1000
    assert target.step is not None
    assert target.step / 10 == pytest.approx(388, abs=5)
    assert target.time_s == pytest.approx(target.step / 10 * EVERY_S)
    missed = _watched(rows, tmp_path, WatchAsk(target_loss=1.0)).target
    assert missed is not None
    assert (missed.step, missed.time_s, missed.single_step) == (None, None, None)
    assert missed.lowest == pytest.approx(2.0, abs=0.02)


def test_a_plateau_is_seen_while_it_lasts(tmp_path: Path) -> None:
    """The loss falls for 1,500 rows by 1e-3 a row, stays for 1,500, and falls again."""
    rng = np.random.default_rng(1)
    at = np.arange(4500)
    loss = 5 - 1e-3 * (np.minimum(at, 1500) + np.maximum(at - 3000, 0)) + rng.normal(0, 0.02, 4500)
    rows = [{"step": int(row), "loss": float(loss[row])} for row in at]
    (plateau,) = _watched(rows, tmp_path).plateaus
    assert plateau.from_step == pytest.approx(1530, abs=60)
    assert 2000 <= plateau.alert_step <= 2200
    assert plateau.to_step == pytest.approx(3030, abs=60)
    assert plateau.loss == pytest.approx(3.5, abs=0.01)
    assert _watched(rows[:1500], tmp_path).plateaus == []
    assert [one.to_step for one in _watched(rows[:2800], tmp_path).plateaus] == [None]


def test_the_update_to_weight_ratio(tmp_path: Path) -> None:
    rows = _rows()
    for at, row in enumerate(rows):
        row["update_to_weight_ratio"] = 1e-4 if at < 100 else 2e-3 if at == 700 else 1e-3
    ratio = _watched(rows, tmp_path).update_ratio
    assert ratio is not None
    assert (ratio.first, ratio.median, ratio.last) == (1e-4, 1e-3, 1e-3)
    assert (ratio.highest, ratio.highest_step) == (2e-3, 7000)


def test_a_restart_shows(tmp_path: Path) -> None:
    rows = _rows(600)
    again = [{**row, "time": row["time"] + 3600} for row in rows[350:]]
    found = _watched(rows[:400] + again, tmp_path)
    assert (found.step_backs, found.rows) == (1, 650)


def test_a_log_without_anything_to_watch(tmp_path: Path) -> None:
    path = _written([{"step": 1, "humidity": 3.0}], tmp_path)
    with pytest.raises(LogError, match="say which column is the loss with --loss"):
        watch(read_metrics(path), WatchAsk(), TOOL)
    found = watch(read_metrics(path), WatchAsk(columns=(("loss", "humidity"),)), TOOL)
    assert [one.column for one in found.series] == ["humidity"]
    with pytest.raises(LogError, match="no column 'height'"):
        watch(read_metrics(path), WatchAsk(columns=(("loss", "height"),)), TOOL)


def test_what_is_not_in_the_log_is_said(tmp_path: Path) -> None:
    rows = [{"step": row, "loss": 2.0} for row in range(20)]
    found = _watched(rows, tmp_path)
    assert found.missing == ["grad_norm", "throughput", "mfu", "update_ratio"]
    assert any("too few to tell what is usual" in text for text in found.warnings)
    assert found.duration_s is None
    (series,) = found.series
    assert (series.noise, series.watched_from) == (None, None)


def test_what_is_drawn_keeps_the_extremes(tmp_path: Path) -> None:
    rows = _rows(12_000)
    rows[7777]["train_loss"] = 9.0
    series = next(one for one in _watched(rows, tmp_path).series if one.what == "loss")
    assert len(series.drawn_step) <= 1500
    assert dict(zip(series.drawn_step, series.drawn_value, strict=True))[77_770] == 9.0
    assert series.highest == 9.0
    assert (series.drawn_step[0], series.drawn_step[-1]) == (0, 119_990)


def test_event_files_of_the_real_library(tmp_path: Path) -> None:
    """Written by ``torch.utils.tensorboard.SummaryWriter``: tags as training scripts have them, two files, a spike."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    rows = _rows(800)
    for at in range(500, 505):
        rows[at]["train_loss"] += 1
    for part in (rows[:300], rows[300:]):
        with SummaryWriter(str(tmp_path / "run"), filename_suffix=f".{int(part[0]['step'])}") as writer:
            for row in part:
                step, time = int(row["step"]), row["time"]
                writer.add_scalar("train/loss", row["train_loss"], step, walltime=time)
                writer.add_scalar("train/grad_norm", row["grad_norm"], step, walltime=time)
                writer.add_scalar("throughput(tps)", row["tps"], step, walltime=time)
                writer.add_scalar("eval/loss", 2.5, step, walltime=time)
    found = watch(read_metrics(tmp_path / "run"), WatchAsk(checkpoint_every=1000), TOOL)
    assert [one.column for one in found.series] == ["train/loss", "train/grad_norm", "throughput(tps)"]
    assert [one.rows for one in found.series] == [800] * 3
    (spike,) = found.spikes
    # TensorBoard keeps values as 32-bit floats.
    assert spike.peak == pytest.approx(max(row["train_loss"] for row in rows[500:505]), rel=1e-6)
    assert (spike.start_step, spike.rewind_step) == (5000, 4000)
    assert found.duration_s == pytest.approx(799 * EVERY_S, abs=1)
