"""Diffs of real recordings, and of some injected regressions; `python -m tests.diff.regressions` runs all of these."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptime
from steptime.diff.compare import diff_reports
from steptime.model import Diff
from steptime.report.diff_words import differs, first_line
from tests.diff.regressions import CELLS, TWENTY, compare
from tests.matrix.scenarios import HELD_OUT_SEEDS

TRACES = Path(__file__).parents[3] / "shared" / "public_traces"


def _diff(before: Path, after: Path) -> Diff:
    if not (before.exists() and after.exists()):
        pytest.skip(f"{before.name} is not there")
    options = steptime.Options(replay=False)
    return diff_reports(steptime.analyze([before], options), steptime.analyze([after], options))


def test_a_loader_without_workers_costs_what_was_measured() -> None:
    """Beside the recordings: the loader takes about 70 ms of the host's step against 0.1 to 4, kernels are as long.

    What the device waits for of it, while it still works through what was launched before, is about 50.
    """
    folder = TRACES / "resnet50_dataloader"
    file = "num_workers_{}/worker0.{}.pt.trace.json.gz"
    diff = _diff(folder / file.format(4, 1623212756351), folder / file.format(0, 1623143089861))
    changes = {part.key: diff.ns(part.change_units) / 1e6 for part in diff.leaves}
    assert diff.reasons[0].key == "host/data_loader"
    assert 45 < changes["host/data_loader"] < 60
    assert abs(changes["kernels/matmul"]) < 1
    assert "_SingleProcessDataLoaderIter.__next__: new" in first_line(diff)


def test_cuda_graphs_change_gaps_and_no_work() -> None:
    """The same compiled model: nothing but what launches its kernels differs, so its matrix work takes as long."""
    folder = TRACES / "small_lm_rtx3060"
    diff = _diff(folder / "trace_04.json.gz", folder / "trace_05.json.gz")
    assert ("cuda_graphs", "not used", "used") in [(one.name, one.before, one.after) for one in diff.config]
    changes = {part.key: diff.ns(part.change_units) / 1e6 for part in diff.leaves}
    assert abs(changes["kernels/matmul"]) < 0.1
    assert changes["host/kernel_gap"] < 0
    assert first_line(diff).startswith("Step time about the same: ")
    assert differs(diff) == "The runs differ in CUDA graphs."
    assert diff.ops == []
    assert any("calls of ops can't be compared" in note for note in diff.notes)


@pytest.mark.parametrize("name", ["slow_gpu", "bad_shapes", "no_prefetch", "slow_loader"])
def test_the_first_line_names_an_injected_regression(name: str) -> None:
    one = compare(name, HELD_OUT_SEEDS[0])
    assert one.right, one


def test_twenty_kinds_of_regression_are_compared() -> None:
    assert len(TWENTY) == 20
    assert len({CELLS[name].injections for name in CELLS}) == 25
