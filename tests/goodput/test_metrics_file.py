"""Metrics files against values written down here, and event files of the real library."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from steptime.errors import LogError
from steptime.goodput.metrics_file import find_name, read_metrics
from steptime.goodput.timestamps import NO_TIME, parse_times

T0 = 1_714_550_400  # 2024-05-01 08:00:00 UTC
ISO = "2024-05-01T08:00:0{}Z"


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_json_lines_keep_order_nan_and_nested_names(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "timestamp": ISO.format(0), "loss": 2.5, "optim": {"grad_norm": 1.25}},
        {"step": 2, "timestamp": ISO.format(1), "loss": math.nan},
        {"step": 3, "timestamp": ISO.format(2), "loss": math.inf},
        {"step": 2, "timestamp": ISO.format(3), "loss": 2.25, "val_loss": "3.5"},
    ]
    metrics = read_metrics(_write(tmp_path / "m.jsonl", "\n".join(map(json.dumps, lines)) + "\n"))
    assert metrics.step.tolist() == [1, 2, 3, 2]
    assert (metrics.time_ns // 10**9 - T0).tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(metrics.values["loss"], [2.5, np.nan, np.inf, 2.25])
    assert metrics.logged_nan["loss"].tolist() == [False, True, False, False]
    assert "val_loss" not in metrics.logged_nan
    assert metrics.column("grad_norm") == "optim/grad_norm"
    assert metrics.column("mfu") is None
    assert (metrics.bad_lines, metrics.duplicates, metrics.notes) == (0, 0, ())


def test_bad_lines_are_counted_and_quoted(tmp_path: Path) -> None:
    text = (
        '{"step": 1, "time": 1714550400, "loss": 2.5}\n'
        "Traceback (most recent call last):\n"
        '{"step": "one", "time": 1714550401, "loss": 2.5}\n'
        '{"step": 2.5, "time": 1714550401, "loss": 2.5}\n'
        '{"step": 1e999, "time": 1714550401, "loss": 2.5}\n'
        '{"step": 3, "time": "yesterday", "loss": 2.5}\n'
        "[1, 2]\n"
        '{"eval_loss": 2.0}\n'
        '{"step": 4, "time": 1714550404, "lo'
    )
    metrics = read_metrics(_write(tmp_path / "m.jsonl", text))
    assert metrics.step.tolist() == [1]
    assert metrics.bad_lines == 7
    assert len(metrics.bad_examples) == 5
    assert metrics.bad_examples[0] == "line 2: not JSON: Traceback (most recent call last):"
    assert any("line 9: cut, the last line has no end" in one for one in metrics.bad_examples)
    assert "1 lines without a step were left out" in metrics.notes


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_csv_with_a_second_header_and_a_cut_end(tmp_path: Path, delimiter: str) -> None:
    rows = [
        ["Step", "date", "train/loss", "mfu(%)"],
        ["1", "2024-05-01 08:00:00", "2.5", "41.5%"],
        ["Step", "date", "train/loss", "mfu(%)"],
        ["2", "2024-05-01 08:00:01", "", "41"],
        ["3", "2024-05-01 08:0"],
    ]
    text = "\ufeff# written by a test\n\n" + "\n".join(delimiter.join(row) for row in rows)
    metrics = read_metrics(_write(tmp_path / "m.csv", text))
    assert metrics.step.tolist() == [1, 2]
    assert metrics.time_ns.tolist() == [T0 * 10**9, (T0 + 1) * 10**9]
    np.testing.assert_array_equal(metrics.values["train/loss"], [2.5, np.nan])
    np.testing.assert_array_equal(metrics.values["mfu(%)"], [41.5, 41.0])
    assert metrics.column("loss") == "train/loss"
    assert metrics.bad_lines == 1
    assert "has 2 fields, the header has 4" in metrics.bad_examples[0]
    assert metrics.naive_times == 2
    assert any("header stands 2 times" in note for note in metrics.notes)
    assert any("taken as UTC" in note for note in metrics.notes)
    assert any("last line has no end" in note for note in metrics.notes)


def test_copies_are_left_out_but_a_replay_without_times_is_not(tmp_path: Path) -> None:
    timed = '{"step": 1, "ts": 1714550400}\n{"step": 2, "ts": 1714550401}\n{"step": 1, "ts": 1714550400}\n'
    metrics = read_metrics(_write(tmp_path / "a.jsonl", timed))
    assert (metrics.step.tolist(), metrics.duplicates) == ([1, 2], 1)
    untimed = '{"step": 1}\n{"step": 1}\n{"step": 2}\n{"step": 1}\n{"step": 2}\n'
    metrics = read_metrics(_write(tmp_path / "b.jsonl", untimed))
    assert (metrics.step.tolist(), metrics.duplicates) == ([1, 2, 1, 2], 1)


def test_times_that_count_from_the_start_have_no_date(tmp_path: Path) -> None:
    text = "".join(json.dumps({"_step": at, "_runtime": 1.5 * at, "loss": 1.0}) + "\n" for at in range(4))
    metrics = read_metrics(_write(tmp_path / "wandb.jsonl", text))
    assert metrics.elapsed
    assert metrics.time_s.tolist() == [0, 1.5, 3.0, 4.5]


def test_a_step_length_called_time_is_no_time(tmp_path: Path) -> None:
    text = "step,time,loss\n1,0.51,2.5\n2,0.49,2.4\n3,0.52,2.3\n4,0.50,2.2\n"
    metrics = read_metrics(_write(tmp_path / "m.csv", text))
    assert (metrics.time_ns == NO_TIME).all()
    assert np.isnan(metrics.time_s).all()
    assert metrics.values["time"].tolist() == [0.51, 0.49, 0.52, 0.5]
    assert "no column holds the time of a line" in metrics.notes


def test_one_json_document_and_compression(tmp_path: Path) -> None:
    state = {"best_metric": None, "log_history": [{"step": 10, "loss": 1.5, "epoch": 0.1}, {"step": 20, "loss": 1.25}]}
    packed = tmp_path / "trainer_state.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(state, indent=2).encode()))
    metrics = read_metrics(packed)
    assert metrics.kind == "json"
    assert (metrics.step.tolist(), metrics.values["loss"].tolist()) == ([10, 20], [1.5, 1.25])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no column holds the step"),
        ("step,step\n1,2\n", "two columns are called 'step'"),
        ("step,loss\n", "holds no record"),
        ("step,loss\nx,1\n", "no line can be used"),
        ("{{{\n", "holds no record"),
    ],
)
def test_what_tells_nothing_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LogError) as caught:
        read_metrics(_write(tmp_path / "m", text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_and_utf16_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"step,loss\n1,2\n" * 100)[:-20])
    with pytest.raises(LogError, match="damaged or cut"):
        read_metrics(tmp_path / "cut.gz")
    (tmp_path / "wide.csv").write_bytes("step,loss\n1,2\n".encode("utf-16"))
    with pytest.raises(LogError, match="UTF-16"):
        read_metrics(tmp_path / "wide.csv")


def test_times_mean_one_thing() -> None:
    # Offsets and the two hours at which Paris changes its clocks, worked by hand.
    written = [
        "2024-05-01 10:00:00.5+02:00",
        "2024/05/01 08:00 UTC",
        "1714550400.25",
        1714550400123,
        1714550400.1,
        "03/04/2024",
        "2024-05-01T08:0",
        None,
    ]
    times = parse_times(written)
    base = T0 * 10**9
    assert times.ns.tolist()[:5] == [base + 500_000_000, base, base + 250_000_000, base + 123_000_000, base + 10**8]
    assert times.bad.tolist() == [False] * 5 + [True, True, False]
    local = parse_times(["2024-05-01 10:00:00,001", "2024-03-31 02:30:00", "2024-10-27 02:30:00"], "Europe/Paris")
    assert local.ns.tolist() == [base + 1_000_000, NO_TIME, NO_TIME]
    assert local.bad.tolist() == [False, True, True]
    assert local.naive == 3


def test_names_are_found_whole_before_their_tail() -> None:
    assert find_name(["val/loss", "train/loss"], ("loss", "train/loss")) == "train/loss"
    assert find_name(["Loss/train", "eval/loss"], ("loss",)) == "eval/loss"
    assert find_name(["lossy"], ("loss",)) is None


def _write_events(folder: Path, steps: range, start_s: float, *, nan_at: int = -1) -> Path:
    writer_module = pytest.importorskip("torch.utils.tensorboard")
    writer = writer_module.SummaryWriter(folder)
    for step in steps:
        loss = math.nan if step == nan_at else 8.0 / (step + 1)
        writer.add_scalar("train/loss", loss, step, walltime=start_s + step)
        writer.add_scalar("train/grad_norm", 0.5, step, walltime=start_s + step + 0.001)
        if step % 2:
            writer.add_text("note", "not a scalar", step, walltime=start_s + step)
    writer.close()
    return next(file for file in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns, reverse=True))


def test_event_files_of_the_real_writer(tmp_path: Path) -> None:
    _write_events(tmp_path / "run", range(10), T0)
    _write_events(tmp_path / "run", range(4, 8), T0 + 100, nan_at=5)
    metrics = read_metrics(tmp_path / "run")
    assert metrics.step.tolist() == [*range(10), *range(4, 8)]
    assert (metrics.time_ns // 10**9 - T0).tolist() == [*range(10), *range(104, 108)]
    # The writer keeps float32.
    expected = [np.float32(8 / (step + 1)) for step in range(10)]
    np.testing.assert_array_equal(metrics.values["train/loss"][:10], expected)
    assert metrics.logged_nan["train/loss"].nonzero()[0].tolist() == [11]
    assert set(metrics.values) == {"train/loss", "train/grad_norm"}
    assert metrics.bad_lines == 0
    assert any("started 2 times" in note for note in metrics.notes)


def test_a_cut_event_file_says_so(tmp_path: Path) -> None:
    file = _write_events(tmp_path / "run", range(10), T0)
    file.write_bytes(file.read_bytes()[:-5])
    metrics = read_metrics(file)
    assert metrics.step.tolist() == list(range(10))
    assert metrics.bad_lines == 1
    assert "cut at the end of the file" in metrics.bad_examples[0]


def test_a_damaged_event_file_counts_what_was_not_read(tmp_path: Path) -> None:
    file = _write_events(tmp_path / "run", range(10), T0)
    data = bytearray(file.read_bytes())
    data[-30] ^= 0xFF
    file.write_bytes(bytes(data))
    metrics = read_metrics(file)
    assert metrics.bad_lines >= 1
    assert "damaged" in metrics.bad_examples[0]


def test_a_folder_of_several_runs_is_not_guessed_at(tmp_path: Path) -> None:
    _write_events(tmp_path / "a", range(2), T0)
    _write_events(tmp_path / "b", range(2), T0)
    with pytest.raises(LogError, match="holds 2 runs"):
        read_metrics(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(LogError, match="without TensorBoard event files"):
        read_metrics(tmp_path / "none")
