"""Nesting of calls: a literal table, and every method of `Nest` against plain loops over the spans.

In call order (by start, longer first) the parent of a span is the last earlier one that ends no earlier, and the
innermost span at an instant is the last one in call order that is open then.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steptime.timeline.nesting import I64, Nest

Pair = tuple[int, int]

pairs = st.tuples(st.integers(0, 30), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
lists = st.lists(pairs, min_size=1, max_size=10)


@st.composite
def proper_calls(draw: st.DrawFn) -> list[Pair]:
    """Spans as a thread makes them: each inside its caller, siblings apart, in any order."""
    made: list[Pair] = []

    def call(start: int, end: int, depth: int) -> None:
        made.append((start, end))
        at = start
        while depth and at < end and draw(st.booleans()):
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            call(first, last, depth - 1)
            at = last

    call(0, draw(st.integers(1, 40)), 3)
    return draw(st.permutations(made))


def ints(values: list[int]) -> I64:
    return np.array(values, np.int64)


def nest(found: list[Pair], row: list[int] | None = None) -> Nest:
    rows = ints(list(range(len(found))) if row is None else row)
    return Nest(ints([pair[0] for pair in found]), ints([pair[1] for pair in found]), rows)


def called(found: list[Pair]) -> list[Pair]:
    """The spans in call order."""
    return sorted(found, key=lambda pair: (pair[0], -pair[1]))


def parent_of(ordered: list[Pair], position: int) -> int:
    around = [at for at in range(position) if ordered[at][1] >= ordered[position][1]]
    return around[-1] if around else -1


def test_calls_of_a_thread() -> None:
    # step 0..100 holds forward 10..40 (with mm 20..30 in it) and backward 50..90; after the step a lone op 120..130.
    made = nest([(20, 30), (0, 100), (120, 130), (50, 90), (10, 40)], row=[7, 3, 9, 8, 5])
    assert made.row.tolist() == [3, 5, 7, 8, 9]
    assert made.parent.tolist() == [-1, 0, 1, 0, -1]
    assert made.position(ints([9, 3, 7])).tolist() == [4, 0, 2]
    # Half open: a call ends before its last instant, and its caller is open again.
    times = [-1, 0, 10, 29, 30, 40, 89, 99, 100, 110, 120, 130]
    assert made.innermost(ints(times)).tolist() == [-1, 0, 1, 2, 1, 0, 3, 0, -1, -1, 4, -1]
    wanted = np.array([True, False, False, False, False])
    assert made.nearest(wanted, ints([2, 1, 0, 4, -1])).tolist() == [0, 0, 0, -1, -1]


def test_a_span_that_runs_over_its_neighbours_end_is_not_its_child() -> None:
    # Clock noise: the second starts inside the first and ends after it.
    made = nest([(0, 10), (8, 20), (9, 15)])
    assert made.parent.tolist() == [-1, -1, 1]
    assert made.innermost(ints([9, 10, 16])).tolist() == [2, 2, 1]


def test_a_parent_hidden_behind_many_short_calls_is_found() -> None:
    count = 5000
    found = [(0, 10 * count)] + [(10 * at, 10 * at + 5) for at in range(count)]
    made = nest(found)
    assert made.parent.tolist() == [-1] + [0] * count
    assert made.innermost(ints([10 * count - 1])).tolist() == [0]


def test_a_deep_stack() -> None:
    depth = 2000
    made = nest([(at, 10_000 - at) for at in range(depth)])
    assert made.parent.tolist() == list(range(-1, depth - 1))
    wanted = np.zeros(depth, np.bool_)
    wanted[0] = True
    assert made.nearest(wanted, ints([depth - 1])).tolist() == [0]


def test_no_spans() -> None:
    made = nest([])
    assert made.innermost(ints([])).tolist() == []
    assert made.innermost(ints([1, 2])).tolist() == [-1, -1]


@given(lists)
def test_order_and_parents(found: list[Pair]) -> None:
    made, ordered = nest(found), called(found)
    assert list(zip(made.start.tolist(), made.end.tolist(), strict=True)) == ordered
    assert [found[row] for row in made.row.tolist()] == ordered
    assert sorted(made.row.tolist()) == list(range(len(found)))
    assert made.parent.tolist() == [parent_of(ordered, position) for position in range(len(ordered))]


@given(lists, st.randoms(use_true_random=False))
def test_position_finds_the_callers_rows(found: list[Pair], random: object) -> None:
    assert hasattr(random, "sample")
    rows: list[int] = random.sample(range(1000), len(found))
    made = nest(found, rows)
    for position, row in enumerate(made.row.tolist()):
        assert made.position(ints([row])).tolist() == [position]
        assert found[rows.index(row)] == (made.start[position], made.end[position])


@given(proper_calls(), st.lists(st.integers(-2, 45), max_size=20))
def test_innermost_is_the_last_open_call(found: list[Pair], times: list[int]) -> None:
    ordered = called(found)
    expected = []
    for time in times:
        open_ = [at for at, (start, end) in enumerate(ordered) if start <= time < end]
        expected.append(open_[-1] if open_ else -1)
    assert nest(found).innermost(ints(times)).tolist() == expected


@given(lists, st.lists(st.integers(-2, 50), max_size=20))
def test_innermost_of_overlapping_spans_is_the_last_open_one(found: list[Pair], times: list[int]) -> None:
    # Recorded spans may overlap; whichever is open and comes last in call order is the innermost.
    ordered = called(found)
    expected = []
    for time in times:
        open_ = [at for at, (start, end) in enumerate(ordered) if start <= time < end]
        expected.append(open_[-1] if open_ else -1)
    assert nest(found).innermost(ints(times)).tolist() == expected


@given(lists, st.data())
def test_nearest_walks_outwards(found: list[Pair], data: st.DataObject) -> None:
    made, ordered = nest(found), called(found)
    wanted = data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    asked = data.draw(st.lists(st.integers(-1, len(found) - 1), max_size=8))
    expected = []
    for position in asked:
        while position >= 0 and not wanted[position]:
            position = parent_of(ordered, position)
        expected.append(position)
    given_ = ints(asked)
    assert made.nearest(np.array(wanted, np.bool_), given_).tolist() == expected
    assert given_.tolist() == asked
