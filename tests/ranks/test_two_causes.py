"""Late for two reasons at once, and late by chance where every host does the same: against the simulator's truth.

Which rank is struck by what is what the scenario injects; jobs and sizes are those of the matrix (`tests/matrix`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import steptime
from steptime.model import Report
from steptime.simulate import simulate
from tests.matrix.scenarios import Cell

#: Used neither for tuning nor by the matrix.
SEED = 43


def _report(cell: Cell, folder: Path, seed: int = SEED) -> Report:
    simulate(cell.scenario(), folder, seed)
    return steptime.analyze([folder])


@pytest.mark.parametrize(
    ("layout", "faults", "causes"),
    [
        ("ep", ("slow_gpu", "uneven_experts"), {"slower kernels", "more work"}),
        ("ddp-2-hosts", ("slow_gpu", "uneven_sequences"), {"slower kernels", "more work"}),
        ("ddp-2-hosts", ("slow_loader_one", "item_sync_one"), {"data_loader", "sync"}),
        ("tp", ("python_one", "item_sync_one"), {"python", "sync"}),
        ("fsdp-2-hosts", ("slow_gpu", "allocator_one"), {"slower kernels", "allocator"}),
    ],
)
def test_both_causes_of_one_rank_are_named(
    layout: str, faults: tuple[str, ...], causes: set[str], tmp_path: Path
) -> None:
    (verdict,) = _report(Cell(layout, faults), tmp_path).stragglers
    assert (verdict.kind, verdict.rank) == ("straggler", 3)
    assert {verdict.cause, *verdict.also} == causes


@pytest.mark.parametrize(
    ("layout", "fault", "cause"),
    [
        ("ep", "slow_gpu", "slower kernels"),
        ("ep", "uneven_experts", "more work"),
        ("ddp-2-hosts", "uneven_sequences", "more work"),
        ("ddp-2-hosts", "slow_loader_one", "data_loader"),
        ("tp", "item_sync_one", "sync"),
        ("tp", "allocator_one", "allocator"),
    ],
)
def test_one_cause_is_no_two(layout: str, fault: str, cause: str, tmp_path: Path) -> None:
    (verdict,) = _report(Cell(layout, (fault,)), tmp_path).stragglers
    assert (verdict.kind, verdict.rank, verdict.cause, verdict.also) == ("straggler", 3, cause, [])


def test_a_rank_late_in_every_step_behind_pauses_of_others(tmp_path: Path) -> None:
    """One rank with more work; a collection strikes a rank drawn anew in each step and costs more."""
    first, *rest = _report(Cell("ep", ("gc_pause", "uneven_experts")), tmp_path).stragglers
    assert (first.kind, first.rank, first.cause) == ("straggler", 3, "more work")
    assert {one.cause for one in rest} == {"python"}
    assert {one.kind for one in rest} <= {"jitter", "once", "unclear"}


@pytest.mark.parametrize(
    ("layout", "fault", "cause"),
    [
        ("1f1b", "python", "python"),
        ("1f1b", "slow_loader", "data_loader"),
        ("1f1b", "allocator", "allocator"),
        ("ddp-2-hosts", "slow_loader", "data_loader"),
        ("ddp-2-hosts", "python", "python"),
    ],
)
def test_what_every_host_does_is_no_rank_s_fault(layout: str, fault: str, cause: str, tmp_path: Path) -> None:
    """All ranks stall for about as long; who comes last is chance, and stays last for the steps that are recorded."""
    report = _report(Cell(layout, (fault,)), tmp_path)
    assert [(one.kind, one.rank, one.cause) for one in report.stragglers] == [("jitter", None, cause)]
    (verdict,) = report.stragglers
    assert verdict.ranks == list(range(8))


def test_one_calm_step_makes_no_straggler(tmp_path: Path) -> None:
    """Every rank's loader is slow at random; on this seed one rank comes last in three of four steps."""
    report = _report(Cell("tp", ("slow_loader",)), tmp_path, 105)
    assert {one.kind for one in report.stragglers} <= {"jitter", "once", "unclear"}
    assert {one.cause for one in report.stragglers} == {"data_loader"}


def test_a_pause_of_some_ranks_is_theirs(tmp_path: Path) -> None:
    cell = Cell("1f1b", ("gc_pause",))
    truth = simulate(cell.scenario(), tmp_path, SEED)
    for verdict in steptime.analyze([tmp_path]).stragglers:
        assert (verdict.kind, verdict.cause) != ("straggler", "python")
        assert set(verdict.ranks) <= set(truth.culprits)


@pytest.mark.parametrize("seed", [43, 104])
def test_the_other_end_of_a_slow_link_is_no_straggler(seed: int, tmp_path: Path) -> None:
    """Both ends are late to the same meeting; on seed 104 the wrong one is ahead by chance."""
    simulate(Cell("tp", ("slow_link",)).scenario(), tmp_path, seed)
    found = steptime.analyze([tmp_path]).stragglers
    assert {rank for one in found if one.kind == "straggler" for rank in one.ranks} <= {3}
