"""Interval algebra: literal tables, and every function against brute force on sets of single nanoseconds.

Spans of the property tests lie in 0..40 ns, so that touching, nested, equal and empty ones are common. Nothing of the
code under test is used to compute what is expected.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.timeline.intervals import (
    I64,
    Pieces,
    Spans,
    complement,
    covered,
    cut,
    first_started,
    holds,
    intersect,
    subtract,
    union,
)

Pair = tuple[int, int]
#: Near the present in ns: no float may have been in between.
EPOCH = 1_795_968_868_086_750_001
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

pairs = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
lists = st.lists(pairs, max_size=8)


@st.composite
def disjoint_lists(draw: st.DrawFn) -> list[Pair]:
    """Non-empty spans in time order that do not overlap but may touch."""
    edges = sorted(draw(st.sets(st.integers(0, 45), max_size=12)))
    found = list(zip(edges, edges[1:], strict=False))
    return [pair for pair in found if draw(st.booleans())]


def spans(found: list[Pair]) -> Spans:
    return Spans(ints([pair[0] for pair in found]), ints([pair[1] for pair in found]))


def ints(values: list[int]) -> I64:
    return np.array(values, np.int64)


def listed(found: Spans) -> list[Pair]:
    assert found.start.dtype == found.end.dtype == np.int64
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


def parts(found: Pieces) -> list[tuple[int, int, int]]:
    assert found.start.dtype == found.end.dtype == np.int64
    return list(zip(found.start.tolist(), found.end.tolist(), found.source.tolist(), strict=True))


def instants(*found: Pair) -> set[int]:
    return {instant for start, end in found for instant in range(start, end)}


def runs(found: set[int]) -> list[Pair]:
    """The maximal runs of consecutive instants."""
    starts = sorted(instant for instant in found if instant - 1 not in found)
    ends = sorted(instant + 1 for instant in found if instant + 1 not in found)
    return list(zip(starts, ends, strict=True))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(3, 7)], [(3, 7)]),
        ([(3, 5), (5, 7)], [(3, 7)]),
        ([(3, 5), (6, 7)], [(3, 5), (6, 7)]),
        ([(3, 5), (3, 5)], [(3, 5)]),
        ([(1, 9), (2, 3), (8, 12)], [(1, 12)]),
        ([(8, 12), (1, 4), (6, 6)], [(1, 4), (8, 12)]),
        ([(EPOCH, EPOCH + 1), (EPOCH + 2, EPOCH + 3)], [(EPOCH, EPOCH + 1), (EPOCH + 2, EPOCH + 3)]),
    ],
)
def test_union_table(given_: list[Pair], expected: list[Pair]) -> None:
    assert listed(union(spans(given_))) == expected


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ([], [(INT64_MIN, INT64_MAX)]),
        ([(3, 5)], [(INT64_MIN, 3), (5, INT64_MAX)]),
        ([(3, 5), (8, 9)], [(INT64_MIN, 3), (5, 8), (9, INT64_MAX)]),
    ],
)
def test_complement_table(given_: list[Pair], expected: list[Pair]) -> None:
    assert listed(complement(spans(given_))) == expected


@pytest.mark.parametrize(
    ("given_", "by", "expected", "other"),
    [
        ([], [(0, 9)], [], []),
        ([(0, 9)], [], [], []),
        ([(0, 10)], [(2, 4), (6, 20)], [(2, 4, 0), (6, 10, 0)], [0, 1]),
        ([(0, 2), (4, 6)], [(2, 4)], [], []),
        # Overlapping spans are each cut; an empty one yields nothing, even inside.
        ([(5, 9), (3, 3), (0, 6)], [(3, 6)], [(5, 6, 0), (3, 6, 2)], [0, 0]),
    ],
)
def test_intersect_table(
    given_: list[Pair], by: list[Pair], expected: list[tuple[int, int, int]], other: list[int]
) -> None:
    found, index = intersect(spans(given_), spans(by))
    assert parts(found) == expected
    assert index.tolist() == other


@pytest.mark.parametrize(
    ("given_", "by", "expected"),
    [
        ([(0, 10)], [], [(0, 10, 0)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(2, 4), (4, 5), (8, 20)], [(0, 2, 0), (5, 8, 0)]),
        ([(INT64_MIN, INT64_MAX)], [(0, 1)], [(INT64_MIN, 0, 0), (1, INT64_MAX, 0)]),
    ],
)
def test_subtract_table(given_: list[Pair], by: list[Pair], expected: list[tuple[int, int, int]]) -> None:
    assert parts(subtract(spans(given_), spans(by))) == expected


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ([], []),
        # The later one owns what the first does not; a wholly covered one owns nothing; an equal one neither.
        ([(0, 5), (2, 8), (3, 4), (8, 9)], [(0, 5, 0), (5, 8, 1), (8, 9, 3)]),
        ([(0, 5), (0, 5)], [(0, 5, 0)]),
        ([(0, 0), (0, 2), (4, 4), (4, 6)], [(0, 2, 1), (4, 6, 3)]),
    ],
)
def test_first_started_table(given_: list[Pair], expected: list[tuple[int, int, int]]) -> None:
    assert parts(first_started(spans(given_))) == expected


@pytest.mark.parametrize(
    ("given_", "boundaries", "expected", "window"),
    [
        ([(0, 10, 4)], [2, 5, 8], [(2, 5, 4), (5, 8, 4)], [0, 1]),
        # Window 1 is empty; what lies outside all windows vanishes.
        ([(0, 3, 7), (4, 9, 2)], [2, 5, 5, 6], [(2, 3, 7), (4, 5, 2), (5, 6, 2)], [0, 0, 2]),
        ([(0, 3, 0)], [5], [], []),
        ([(0, 3, 0)], [1, 1], [], []),
        ([], [0, 9], [], []),
    ],
)
def test_cut_table(
    given_: list[tuple[int, int, int]], boundaries: list[int], expected: list[tuple[int, int, int]], window: list[int]
) -> None:
    pieces = Pieces(*(ints([piece[at] for piece in given_]) for at in range(3)))
    found, index = cut(pieces, ints(boundaries))
    assert parts(found) == expected
    assert index.tolist() == window


@given(lists)
def test_total_is_the_sum_of_lengths(found: list[Pair]) -> None:
    assert spans(found).total() == sum(len(range(*pair)) for pair in found)


@given(lists)
def test_union_is_the_maximal_runs(found: list[Pair]) -> None:
    assert listed(union(spans(found))) == runs(instants(*found))


@given(disjoint_lists())
def test_complement_holds_every_other_instant_once(found: list[Pair]) -> None:
    outside = listed(complement(spans(found)))
    assert outside[0][0] == INT64_MIN
    assert outside[-1][1] == INT64_MAX
    inside = [(max(start, -5), min(end, 60)) for start, end in outside]
    assert sum(end - start for start, end in inside) == len(instants(*inside))
    assert instants(*inside) == set(range(-5, 60)) - instants(*found)


@given(lists, disjoint_lists())
def test_intersect_is_the_common_instants(found: list[Pair], by: list[Pair]) -> None:
    pieces, other = intersect(spans(found), spans(by))
    expected = []
    for source, pair in enumerate(found):
        for index, cutter in enumerate(by):
            common = instants(pair) & instants(cutter)
            if common:
                expected.append((min(common), max(common) + 1, source, index))
    got = [(*part, index) for part, index in zip(parts(pieces), other.tolist(), strict=True)]
    assert got == expected


@given(lists, disjoint_lists())
def test_subtract_is_the_instants_left(found: list[Pair], by: list[Pair]) -> None:
    # Touching cutters leave an empty part between them, which must not show.
    expected = [(*run, source) for source, pair in enumerate(found) for run in runs(instants(pair) - instants(*by))]
    assert parts(subtract(spans(found), spans(by))) == expected


@given(lists, disjoint_lists())
def test_covered_counts_instants(found: list[Pair], by: list[Pair]) -> None:
    expected = [len(instants(pair) & instants(*by)) for pair in found]
    assert covered(spans(found), spans(by)).tolist() == expected


@given(st.lists(st.integers(-2, 60), max_size=20), disjoint_lists())
def test_holds_is_membership(times: list[int], by: list[Pair]) -> None:
    assert holds(spans(by), ints(times)).tolist() == [time in instants(*by) for time in times]


@given(lists)
def test_first_started_gives_each_instant_to_the_first_in_the_list(found: list[Pair]) -> None:
    ordered = sorted(found, key=lambda pair: pair[0])
    owner: dict[int, int] = {}
    for index, pair in enumerate(ordered):
        for instant in instants(pair):
            owner.setdefault(instant, index)
    expected = [
        (*run, index)
        for index in range(len(ordered))
        for run in runs({instant for instant, at in owner.items() if at == index})
    ]
    assert parts(first_started(spans(ordered))) == expected


@given(disjoint_lists(), st.lists(st.integers(-2, 50), min_size=1, max_size=6).map(sorted))
def test_cut_keeps_each_instant_in_its_window(found: list[Pair], boundaries: list[int]) -> None:
    sources = [100 - 7 * index for index in range(len(found))]
    pieces = Pieces(*spans(found), ints(sources))
    got, window = cut(pieces, ints(boundaries))
    windows = list(enumerate(zip(boundaries, boundaries[1:], strict=False)))
    expected = []
    for pair, source in zip(found, sources, strict=True):
        for index, bounds in windows:
            common = instants(pair) & instants(bounds)
            if common:
                expected.append((min(common), max(common) + 1, source, index))
    assert [(*part, index) for part, index in zip(parts(got), window.tolist(), strict=True)] == expected


@given(lists, disjoint_lists())
def test_a_span_is_its_covered_and_its_left_parts_at_epoch_scale(found: list[Pair], by: list[Pair]) -> None:
    here = [(start + EPOCH, end + EPOCH) for start, end in found]
    there = spans([(start + EPOCH, end + EPOCH) for start, end in by])
    left = np.zeros(len(here), np.int64)
    rest = subtract(spans(here), there)
    np.add.at(left, rest.source, rest.end - rest.start)
    assert (left + covered(spans(here), there)).tolist() == [end - start for start, end in found]
