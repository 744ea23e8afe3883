"""Moving productive time out of a ledger: exact sums, for any ledger. Expected values by hand or in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.model import StepTime
from steptime.roofline.useful import count_useful, with_model, with_trace, without_useful
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.ledger import Ledger
from steptime.timeline.op_groups import OpGroups
from steptime.timeline.pricing import OpText, Price
from steptime.timeline.summary import DeviceTimeline

MATMUL, ATTENTION = "kernels/matmul", "kernels/attention"
#: One ledger row: step, leaf, owned, productive, precision.
Row = tuple[int, str, int, int, int]


def timeline(steps: int, rows: list[Row], groups: OpGroups | None = None) -> DeviceTimeline:
    """A timeline of that many steps; each row has a label of its own."""
    rows = sorted(rows, key=lambda row: (row[0], LEAF_CODE[row[1]]))
    leaves: list[dict[str, int]] = [{} for _ in range(steps)]
    for step, leaf, owned, _, _ in rows:
        if owned:
            leaves[step][leaf] = leaves[step].get(leaf, 0) + owned
    table = np.array([row[2:] for row in rows], np.int64).reshape(-1, 3)
    ledger = Ledger(
        step=np.array([row[0] for row in rows], np.int32),
        leaf=np.array([LEAF_CODE[row[1]] for row in rows], np.int16),
        what=np.arange(len(rows), dtype=np.int32),
        where=np.full(len(rows), -1, np.int32),
        ns=table[:, 0],
        count=np.ones(len(rows), np.int64),
        dur_ns=table[:, 0],
        productive_ns=table[:, 1],
        precision_ns=table[:, 2],
        texts=[f"kernel {at}" for at in range(len(rows))],
    )
    times = [StepTime(step=at, start_ns=0, dur_ns=sum(held.values()), leaves_ns=held) for at, held in enumerate(leaves)]
    return DeviceTimeline(
        device=0,
        name=None,
        steps=times,
        ledger=ledger,
        host_ops=np.zeros(steps, np.int64),
        totals=None,
        groups=groups,
    )


def test_the_model_s_share_is_taken_by_owned_time() -> None:
    rows: list[Row] = [(0, MATMUL, 600, 0, 0), (0, ATTENTION, 200, 0, 0), (0, "kernels/memory_bound", 200, 0, 0)]
    result = with_model(timeline(1, rows), 400)
    # 400 x 600 / 800 and 400 x 200 / 800.
    (step,) = result.steps
    assert (step.productive_ns, step.dur_ns) == (400, 1000)
    assert step.leaves_ns == {MATMUL: 300, ATTENTION: 100, "kernels/memory_bound": 200}
    assert result.ledger.productive_ns.tolist() == [300, 100, 0]


def test_the_model_s_share_is_capped() -> None:
    rows: list[Row] = [(0, MATMUL, 600, 0, 0), (0, "host/python", 400, 0, 0), (1, MATMUL, 50, 0, 0)]
    result = with_model(timeline(2, rows), 100)
    assert [step.productive_ns for step in result.steps] == [100, 50]
    assert [step.leaves_ns for step in result.steps] == [{MATMUL: 500, "host/python": 400}, {}]


def test_the_model_ignores_what_the_trace_had_priced() -> None:
    # Whatever of the rows was productive or of a slower type by the trace: not to be believed.
    result = with_model(timeline(1, [(0, MATMUL, 600, 250, 300)]), 100)
    assert result.steps[0].leaves_ns == {MATMUL: 500}
    assert result.ledger.precision_ns.tolist() == [0]


def test_the_trace_s_share_and_its_surplus() -> None:
    rows: list[Row] = [
        (0, MATMUL, 600, 250, 300),
        (0, MATMUL, 100, 0, 0),
        (0, ATTENTION, 80, 80, 0),
        (1, MATMUL, 7, 3, 0),
        (1, "host/sync", 9, 0, 0),
    ]
    result = with_trace(timeline(2, rows))
    # 600 - 250 - 300 + 100 stay; an empty leaf is left out.
    assert [step.productive_ns for step in result.steps] == [330, 3]
    assert [step.leaves_ns for step in result.steps] == [
        {MATMUL: 150, "kernels/precision": 300},
        {MATMUL: 4, "host/sync": 9},
    ]
    assert int(result.ledger.ns.sum()) + int(result.ledger.productive_ns.sum()) == 796
    # The surplus keeps the name of its kernel.
    ledger = result.ledger
    (slow,) = np.flatnonzero(ledger.leaf == LEAF_CODE["kernels/precision"]).tolist()
    assert ledger.texts[ledger.what[slow]] == "kernel 0"


def test_what_cannot_be_believed_stays_in_its_leaf() -> None:
    given_ = timeline(1, [(0, MATMUL, 600, 250, 300)])
    result = without_useful(given_)
    assert result.steps == given_.steps
    assert (result.ledger.productive_ns.tolist(), result.ledger.precision_ns.tolist()) == ([0], [0])
    assert result.ledger.ns.tolist() == [600]


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[int, list[Row]]:
    steps = draw(st.integers(1, 4))
    # Up to an hour: time times time does not fit into int64.
    size = draw(st.sampled_from([20, 10**6, 4 * 10**12]))
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 12))):
        leaf = draw(st.sampled_from([MATMUL, MATMUL, ATTENTION, "kernels/memory_bound", "host/sync"]))
        owned = draw(st.integers(0, size))
        useful = draw(st.integers(0, owned)) if leaf in (MATMUL, ATTENTION) else 0
        slow = draw(st.integers(0, owned - useful)) if leaf in (MATMUL, ATTENTION) else 0
        rows.append((draw(st.integers(0, steps - 1)), leaf, owned, useful, slow))
    return steps, rows


@given(ledgers(), st.sampled_from([0, 1, 7, 10**6, 10**12, 10**16]))
def test_model_on_any_ledger(ledger: tuple[int, list[Row]], ideal_ns: int) -> None:
    steps, rows = ledger
    before = timeline(steps, rows)
    after = with_model(before, ideal_ns)
    for at, (old, new) in enumerate(zip(before.steps, after.steps, strict=True)):
        new.check()
        held = old.leaves_ns.get(MATMUL, 0) + old.leaves_ns.get(ATTENTION, 0)
        assert new.productive_ns == min(held, ideal_ns)
        assert new.dur_ns == old.dur_ns
        for leaf in ("kernels/memory_bound", "host/sync"):
            assert new.leaves_ns.get(leaf) == old.leaves_ns.get(leaf)
        mine = np.flatnonzero(after.ledger.step == at)
        for row in mine.tolist():
            owned, share = int(before.ledger.ns[row]), int(after.ledger.productive_ns[row])
            countable = LEAVES[int(before.ledger.leaf[row])].key in (MATMUL, ATTENTION)
            exact = Fraction(owned * min(held, ideal_ns), held) if countable and held else Fraction(0)
            assert abs(share - exact) < 1
            assert int(after.ledger.ns[row]) == owned - share >= 0


@given(ledgers())
def test_trace_on_any_ledger(ledger: tuple[int, list[Row]]) -> None:
    steps, rows = ledger
    after = with_trace(timeline(steps, rows))
    for at, step in enumerate(after.steps):
        step.check()
        mine = [row for row in rows if row[0] == at]
        assert step.productive_ns == sum(row[3] for row in mine)
        assert step.leaves_ns.get("kernels/precision", 0) == sum(row[4] for row in mine)
        for leaf in (MATMUL, ATTENTION, "kernels/memory_bound", "host/sync"):
            left = sum(owned - useful - slow for _, name, owned, useful, slow in mine if name == leaf)
            assert step.leaves_ns.get(leaf, 0) == left


def price(kind: str, model: int | None, hardware: int | None) -> Price:
    return Price(kind, "forward", model, hardware, None, "bf16", 0, 0)


def groups(rows: list[tuple[int, int, bool, int, int]], prices: list[Price], times: list[tuple[int, int]]) -> OpGroups:
    """Rows are (step, call, recomputed, ops, above_peak_ns), times (known_ns, countable_ns) by step."""
    table = np.array(rows, np.int64).reshape(-1, 5)
    none = np.zeros(len(rows), np.int64)
    return OpGroups(
        step=table[:, 0].astype(np.int32),
        call=table[:, 1].astype(np.int32),
        recomputed=table[:, 2] > 0,
        ops=table[:, 3],
        kernels=table[:, 3],
        dur_ns=none,
        owned_ns=none,
        above_peak_ns=table[:, 4],
        kernel=none.astype(np.int32),
        config=none.astype(np.int32),
        known_ns=np.array([known for known, _ in times], np.int64),
        countable_ns=np.array([countable for _, countable in times], np.int64),
        texts=[OpText(f"op{at}", f"[{at}]", "", "") for at in range(len(prices))],
        prices=prices,
        labels=["kernel"],
        configs=[""],
    )


def test_counts_are_of_the_counted_steps_only() -> None:
    prices = [price("matmul", 100, 100), price("attention", 40, 50), price("memory", None, None)]
    rows = [
        (0, 0, False, 9, 999),  # step 0 is an edge step
        (1, 0, False, 3, 5),
        (1, 0, True, 2, 0),
        (1, 1, False, 2, 7),
        (1, 2, False, 8, 0),
        (2, 1, True, 1, 0),
        (2, 1, False, 1, 1),
    ]
    one = timeline(3, [], groups(rows, prices, [(1, 10), (90, 100), (80, 80)]))
    counts = count_useful([(one, [1, 2])])
    # Model: 3 x 100 + 2 x 40 + 40; with what ran again 2 x 100, and attention at 50: 300 + 200 + 100 + 50 + 50.
    assert (counts.model_flops, counts.hardware_flops) == (420, 700)
    assert counts.attention_flops == 120
    assert counts.coverage == 170 / 180
    assert counts.above_peak_ns == 13
    assert counts.above == ["op1 [1]", "op0 [0]"]
    assert counts.rank_steps == 2


def test_counts_of_several_ranks_add_up() -> None:
    prices = [price("matmul", 100, 100)]
    one = timeline(1, [], groups([(0, 0, False, 3, 0)], prices, [(50, 100)]))
    two = timeline(2, [], groups([(1, 0, False, 4, 0)], prices, [(9, 9), (100, 100)]))
    counts = count_useful([(one, [0]), (two, [1])])
    assert (counts.model_flops, counts.coverage, counts.rank_steps) == (700, 0.75, 2)


@pytest.mark.parametrize("prices", [[], [price("memory", None, None)], [price("attention", None, None)]])
def test_without_a_priced_op_there_are_no_flops(prices: list[Price]) -> None:
    rows = [(0, 0, False, 3, 0)] if prices else []
    counts = count_useful([(timeline(1, [], groups(rows, prices, [(0, 100)])), [0])])
    assert (counts.model_flops, counts.hardware_flops, counts.coverage) == (None, None, 0.0)
    assert count_useful([(timeline(1, []), [0])]).coverage is None
