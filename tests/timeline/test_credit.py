"""What is left of the syncs' credit after each entry of a step, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.timeline.idle import _queue

#: (step, change): a sync adds, idle takes; steps ascend as they do in time.
entries = st.lists(st.tuples(st.integers(0, 6), st.integers(-50, 50)), min_size=1, max_size=40).map(
    lambda found: sorted(found, key=lambda entry: entry[0])
)


def left_after(found: list[tuple[int, int]]) -> list[int]:
    """Credit is never negative, and lapses where the step changes."""
    left, current, result = 0, None, []
    for step, change in found:
        if step != current:
            left, current = 0, step
        left = max(left + change, 0)
        result.append(left)
    return result


def queue(found: list[tuple[int, int]]) -> list[int]:
    step, change = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return [int(value) for value in _queue(change, step)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(0, 5)], [5]),
        ([(0, -5)], [0]),
        # Idle before the sync pays nothing; idle after it draws until the credit is gone.
        ([(0, -9), (0, 5), (0, -3), (0, -3), (0, -3)], [0, 5, 2, 0, 0]),
        # Credits of a step add, and lapse at its end.
        ([(0, 5), (0, 4), (0, -6), (1, -2), (1, 7), (3, -1)], [5, 9, 3, 0, 7, 0]),
        ([(-1, 5), (0, -5), (0, 2)], [5, 0, 2]),
    ],
)
def test_table(found: list[tuple[int, int]], expected: list[int]) -> None:
    assert queue(found) == expected


@given(entries)
def test_like_a_plain_loop(found: list[tuple[int, int]]) -> None:
    assert queue(found) == left_after(found)


@given(entries)
def test_like_a_plain_loop_at_the_length_of_hours(found: list[tuple[int, int]]) -> None:
    # Steps of an hour in ns: sums over many steps must not overflow or lose a nanosecond.
    scaled = [(step, change * 72_000_000_000 + (change > 0)) for step, change in found]
    assert queue(scaled) == left_after(scaled)
