"""Some jobs of the matrix without their faults, predicted and simulated, on a seed that nothing was tuned on.

`python -m tests.matrix --what-if` runs them all.
"""

from __future__ import annotations

import pytest

from tests.matrix.naming import NAMES
from tests.matrix.scenarios import HELD_OUT_SEEDS, Cell
from tests.matrix.what_if import FIDELITY, NO_REMOVAL, REMOVALS, WITHIN, Predicted, cells, predict, removal, totals

_SEED = HELD_OUT_SEEDS[0]
_SOME = (
    Cell("ddp-2-hosts", ("slow_gpu",)),
    Cell("ddp-2-hosts", ("slow_loader",)),
    Cell("tp", ("slow_host",)),
    Cell("ep", ("recompute",)),
    Cell("tp-fsdp", ("no_prefetch",)),
    Cell("interleaved", ("unbalanced_stages",)),
    Cell("cp", ("item_sync",)),
    Cell("1f1b", ("allocator",)),
    Cell("fsdp-2-hosts", ("slow_loader_one",)),
    Cell("tp", ("slow_gpu", "allocator_one")),
)


@pytest.mark.parametrize("cell", _SOME, ids=lambda cell: cell.name)
def test_the_step_without_the_fault_is_predicted(cell: Cell) -> None:
    one = predict(cell, _SEED)
    assert one.error <= FIDELITY
    assert abs(one.off) <= WITHIN, str(one)


def test_every_fault_is_predicted_or_left_out_with_a_reason() -> None:
    assert set(REMOVALS) | set(NO_REMOVAL) == set(NAMES)
    assert not set(REMOVALS) & set(NO_REMOVAL)
    assert removal(Cell("ddp", ("tiny_batch",))) is None
    assert len(cells()) >= 100


def test_totals_are_missed_where_too_many_predictions_are_off() -> None:
    def found(off: float, error: float = 0.0) -> Predicted:
        return Predicted(_SOME[0], error, 2e6, 1e6 * (1 + off), 1e6, 1_000_000)

    assert [enough for *_, enough in totals([found(0.01)] * 19 + [found(0.06)])] == [True, True, True]
    assert [enough for *_, enough in totals([found(0.01)] * 18 + [found(-0.06)] * 2)] == [True, False, True]
    assert [enough for *_, enough in totals([found(0.02)] * 20)] == [True, True, False]
    assert [enough for *_, enough in totals([found(0.0, 0.02)])] == [False, True, True]
