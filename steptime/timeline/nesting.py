"""Which span of a thread is innermost at an instant, and which span encloses which.

Spans of one host thread nest like calls. Recorded spans may overlap a little (clock noise, unfinished frames); a span
that does not lie wholly inside another is then simply not its child.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Nest:
    """Spans of one thread in call order.

    row int64 [n] are the caller's own numbers in that order; start, end int64 [n]; parent int64 [n] is the position of
    the enclosing span or -1.
    """

    def __init__(self, start: I64, end: I64, row: I64) -> None:
        order = np.lexsort((-end, start))
        self.start, self.end, self.row = start[order], end[order], row[order]
        self.parent = _enclosing(self.end)
        self._sorted = np.argsort(self.row, kind="stable")

    def position(self, rows: I64) -> I64:
        """Position of each of the caller's row numbers, all of which must be spans of this thread."""
        return self._sorted[np.searchsorted(self.row, rows, sorter=self._sorted)]

    def innermost(self, times: I64) -> I64:
        """Position of the innermost span open at each instant, -1 where none is; int64 [len(times)]."""
        position = np.searchsorted(self.start, times, side="right") - 1
        while len(self.end):
            over = (position >= 0) & (self.end[position] <= times)
            if not over.any():
                break
            position[over] = self.parent[position[over]]
        return position

    def nearest(self, wanted: NDArray[np.bool_], position: I64) -> I64:
        """Position of the nearest span that is `wanted`, going outwards from (and including) `position`; -1 if none."""
        position = position.copy()
        while True:
            miss = (position >= 0) & ~wanted[position]
            if not miss.any():
                return position
            position[miss] = self.parent[position[miss]]


def _enclosing(end: I64) -> I64:
    """For spans in call order: the last earlier span that ends no earlier, or -1.

    Pointer doubling: all spans between `before[i]` and i end before end[i]; if `before[i]` does too, everything back to
    `before[before[i]]` does. Takes about log2(n) rounds.
    """
    count = len(end)
    before = np.arange(-1, count - 1, dtype=np.int64)
    open_ = np.arange(count, dtype=np.int64)
    while len(open_):
        candidate = before[open_]
        short = (candidate >= 0) & (end[candidate] < end[open_])
        open_ = open_[short]
        before[open_] = before[candidate[short]]
    return before
