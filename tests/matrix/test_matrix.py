"""Some jobs of the matrix, on a seed that nothing was tuned on; `python -m tests.matrix` runs them all."""

from __future__ import annotations

import pytest

from tests.matrix.judged import LEAF_TOLERANCE, RIGHT, WRONG, judge
from tests.matrix.naming import NAMES
from tests.matrix.scenarios import HELD_OUT_SEEDS, HURT_RECORDINGS, INJECTIONS, Cell, drawn_pairs, singles

_SEED = HELD_OUT_SEEDS[0]
_SOME = (
    Cell("ddp-2-hosts", ("slow_gpu",)),
    Cell("tp", ("slow_gpu",)),
    Cell("fsdp-2-hosts", ("slow_loader_one",)),
    Cell("ddp-2-hosts", ("slow_loader",)),
    Cell("tp", ("allocator_one",)),
    Cell("ddp-2-hosts", ("checkpoint",)),
    Cell("fsdp-2-hosts", ("gc_pause",)),
    Cell("ep", ("uneven_experts",)),
    Cell("fsdp", ("no_prefetch",)),
    Cell("tp", ("bad_shapes",)),
    Cell("cp", ("recompute",)),
    Cell("ep", ("fp32_head",)),
)


@pytest.mark.parametrize("cell", _SOME, ids=lambda cell: cell.name)
def test_the_fault_is_named_first_and_time_is_where_it_was_lost(cell: Cell) -> None:
    one = judge(cell, _SEED)
    assert set(one.places.values()) == {1}
    assert one.culprit != WRONG
    assert one.innocent == []
    assert abs(one.worst.off) <= LEAF_TOLERANCE, one.worst


@pytest.mark.parametrize("layout", ["ddp-2-hosts", "tp"])
def test_a_recording_cut_or_on_a_wrong_base_accuses_nobody(layout: str) -> None:
    for name in ("cut_head", "wrong_base"):
        one = judge(Cell(layout, (name,)), _SEED)
        assert one.innocent == []
        assert abs(one.worst.off) <= LEAF_TOLERANCE, one.worst


def test_two_faults_on_two_ranks_of_a_job_are_both_named() -> None:
    one = judge(Cell("fsdp-2-hosts", ("slow_gpu", "recompute")), _SEED)
    assert sorted(place or 9 for place in one.places.values()) == [1, 2]
    assert one.culprit == RIGHT


@pytest.mark.parametrize(
    ("layout", "faults"),
    [
        ("ddp-2-hosts", ("slow_loader_one", "item_sync_one")),
        ("ep", ("slow_gpu", "uneven_experts")),
        ("ep", ("gc_pause", "uneven_experts")),
        ("1f1b", ("few_micro_batches", "allocator")),
        ("tp", ("slow_link", "recompute")),
    ],
)
def test_both_faults_of_a_pair_are_among_the_first_two_causes(layout: str, faults: tuple[str, ...]) -> None:
    one = judge(Cell(layout, faults), _SEED)
    assert all(place is not None and place <= 2 for place in one.places.values()), one.first
    assert one.culprit != WRONG
    assert one.innocent == []


def test_every_fault_that_costs_time_has_names_and_three_layouts() -> None:
    kinds = {one.fault.kind for name, one in INJECTIONS.items() if name not in HURT_RECORDINGS}
    assert kinds == set(NAMES)
    assert min(len(one.layouts) for one in INJECTIONS.values()) >= 3
    assert len(singles()) >= 60


def test_pairs_are_the_same_each_time() -> None:
    left, right = drawn_pairs(), drawn_pairs()
    assert [next(left) for _ in range(20)] == [next(right) for _ in range(20)]
