"""Real runs: one training script twice, then with a slower loader, then with checkpointing; and published traces.

What is true of a run is what its own clock says (the moments at which its last gradient was ready), never its trace.
The two runs of a pair run at the same time on the same core, so that whatever else the machine does hits both alike; a
pair is repeated until the clocks say that it differs by what was changed alone, and skipped where that never happens.
"""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

import pytest

from steptime.cli import main
from tests.real_run.job import Settings, run_job

SAME = Settings(
    ranks=1, slow_rank=-1, layers=4, width=192, sequence=32, batch=4, steps=24, warmup_steps=4, sleep_every=1
)
SLEEP_MS = 80.0
#: The other run of a pair has more steps where the changed one takes longer, so that both end at about the same time.
PAIRS = {
    "same": (SAME, SAME),
    "loader": (replace(SAME, steps=44), replace(SAME, slow_rank=0, sleep_ms=SLEEP_MS)),
    "checkpointing": (replace(SAME, steps=32), replace(SAME, checkpointing="nonreentrant")),
}
TRIES = 3
#: Of a steady run, the distance of the quartiles and of the halves' medians at most, as shares of the median.
STEADY, DRIFT = 0.2, 0.1
_OBVIOUS = 1.0


@dataclass(frozen=True)
class RealRun:
    """A run: its traces, and its step lengths by its own clock, in ms."""

    folder: Path
    steps_ms: list[float]

    @property
    def median_ms(self) -> float:
        return median(self.steps_ms)

    @property
    def steady(self) -> bool:
        low, middle, high = quantiles(self.steps_ms, n=4)
        half = len(self.steps_ms) // 2
        drift = abs(median(self.steps_ms[:half]) - median(self.steps_ms[half:]))
        return high - low <= STEADY * middle and drift <= DRIFT * middle


def record(folder: Path, settings: Settings) -> RealRun:
    truth = run_job(folder, settings)
    arrival_ns = truth["ranks"]["0"]["arrival_ns"]
    at = [arrival_ns[str(step)] for step in truth["recorded_steps"]]
    return RealRun(folder, [(after - before) / 1e6 for before, after in zip(at, at[1:], strict=False)])


def recorded(folder: Path, name: str, low: float, high: float) -> tuple[RealRun, RealRun]:
    """A pair of runs, the second longer by a share of `low` to `high` by their own clocks.

    Both are steady, too, unless `low` is so much that no unsteadiness explains it.
    """
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    seen = []
    for at in range(TRIES):
        folders = [folder / f"{at}{side}" for side in "ab"]
        with ThreadPoolExecutor(2) as pool:
            before, after = pool.map(record, folders, PAIRS[name])
        growth = after.median_ms / before.median_ms - 1.0
        seen.append(f"{growth:+.0%}")
        if low <= growth <= high and (low >= _OBVIOUS or (before.steady and after.steady)):
            return before, after
    pytest.skip(f"the machine is too busy: the steps of {TRIES} pairs differed by {', '.join(seen)} or were not steady")


def first_line(candidate: Path, baseline: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["gate", str(candidate), "--baseline", str(baseline), "-q"])
    return code, capsys.readouterr().out


def test_the_same_script_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = recorded(tmp_path, "same", -0.04, 0.04)
    code, line = first_line(after.folder, before.folder, capsys)
    assert (code, line[:5]) == (0, "pass:"), line


def test_a_slower_loader_is_regressed_by_the_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = recorded(tmp_path, "loader", _OBVIOUS, 9.0)
    code, line = first_line(after.folder, before.folder, capsys)
    assert code == 1, line
    assert line.partition("): ")[2].startswith("host/data_loader +"), line


def test_checkpointing_is_regressed_by_recompute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # One more forward pass: a third of the step where the backward takes two.
    before, after = recorded(tmp_path, "checkpointing", 0.2, 0.5)
    code, line = first_line(after.folder, before.folder, capsys)
    assert code == 1, line
    assert line.partition("): ")[2].startswith("recompute/recompute +"), line


def test_the_published_loader_pair(repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The PyTorch tutorial's ResNet-50: its page shows the loader's share fall as workers come."""
    traces = repo.parent / "shared" / "public_traces" / "resnet50_dataloader"
    if not traces.is_dir():
        pytest.skip("the published traces lie beside the checkout, not in it")
    out = tmp_path / "verdict.json"
    code = main(
        ["gate", str(traces / "num_workers_0"), "--baseline", str(traces / "num_workers_4"), "--json", str(out), "-q"]
    )
    line = capsys.readouterr().out
    assert code == 1
    assert line.partition("): ")[2].startswith("host/data_loader +"), line
    moved = {row["name"]: row["change_ns"] for row in json.loads(out.read_text())["moved"]}
    assert 40e6 < moved["host/data_loader"] < 60e6  # about +50 ms (the traces' README)
    assert main(["gate", str(traces / "num_workers_4"), "--baseline", str(traces / "num_workers_0"), "-q"]) == 0
