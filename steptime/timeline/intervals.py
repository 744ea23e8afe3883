"""Interval algebra on half-open spans of int64 nanoseconds: pure arithmetic, no GPU words.

A `Spans` holds two arrays of equal length with start <= end. "Disjoint" means sorted by start and not overlapping;
functions say where they need it. Everything is vectorised; nothing loops over spans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

_MIN = np.iinfo(np.int64).min
_MAX = np.iinfo(np.int64).max


class Spans(NamedTuple):
    """n half-open spans [start, end): int64 [n] each."""

    start: I64
    end: I64

    def total(self) -> int:
        """Sum of lengths."""
        return int((self.end - self.start).sum())


class Pieces(NamedTuple):
    """Parts of spans: start, end int64 [k]; source int64 [k], index of the span each part was cut from."""

    start: I64
    end: I64
    source: I64


def union(spans: Spans) -> Spans:
    """Disjoint spans that cover the same instants; empty spans vanish, touching spans merge."""
    full = spans.end > spans.start
    start, end = spans.start[full], spans.end[full]
    if not len(start):
        return Spans(start, end)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > end[:-1])
    last = np.append(first[1:], True)
    return Spans(start[first], end[last])


def complement(disjoint: Spans) -> Spans:
    """All of int64 time that `disjoint` does not cover, disjoint."""
    return Spans(np.append(np.int64(_MIN), disjoint.end), np.append(disjoint.start, np.int64(_MAX)))


def intersect(spans: Spans, disjoint: Spans) -> tuple[Pieces, I64]:
    """Cut each span by a disjoint list.

    Returns:
        The non-empty parts ordered by source, then time, and for each the index into `disjoint`, int64 [k].
    """
    low = np.searchsorted(disjoint.end, spans.start, side="right")
    high = np.searchsorted(disjoint.start, spans.end, side="left")
    counts = np.where(spans.end > spans.start, np.maximum(high - low, 0), 0)
    source = np.repeat(np.arange(len(counts)), counts)
    offset = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    other = low[source] + offset
    start = np.maximum(spans.start[source], disjoint.start[other])
    end = np.minimum(spans.end[source], disjoint.end[other])
    full = end > start
    return Pieces(start[full], end[full], source[full]), other[full]


def subtract(spans: Spans, disjoint: Spans) -> Pieces:
    """The parts of each span that a disjoint list does not cover."""
    return intersect(spans, complement(disjoint))[0]


def covered(spans: Spans, disjoint: Spans) -> I64:
    """How much of each span a disjoint list covers, int64 [n]."""
    before = np.append(0, np.cumsum(disjoint.end - disjoint.start))

    def until(times: I64) -> I64:
        index = np.searchsorted(disjoint.start, times, side="right")
        last = np.maximum(index - 1, 0)
        if not len(disjoint.start):
            return np.zeros(len(times), np.int64)
        inside = np.minimum(times, disjoint.end[last]) - disjoint.start[last]
        return np.where(index > 0, before[last] + inside, 0)

    return np.where(spans.end > spans.start, until(spans.end) - until(spans.start), 0)


def holds(disjoint: Spans, times: I64) -> NDArray[np.bool_]:
    """Whether each instant lies inside a disjoint list."""
    if not len(disjoint.start):
        return np.zeros(len(times), np.bool_)
    index = np.searchsorted(disjoint.start, times, side="right") - 1
    return (index >= 0) & (times < disjoint.end[np.maximum(index, 0)])


def first_started(spans: Spans) -> Pieces:
    """Exclusive ownership: each instant belongs to the covering span that comes first in the given order.

    The spans must be sorted by start; among spans that start together the earlier one in the list wins. Each span owns
    at most one part, so `source` ascends and parts are disjoint.
    """
    if not len(spans.start):
        return Pieces(spans.start, spans.end, np.empty(0, np.int64))
    reached = np.append(np.int64(_MIN), np.maximum.accumulate(spans.end)[:-1])
    start = np.maximum(spans.start, reached)
    owns = spans.end > start
    return Pieces(start[owns], spans.end[owns], np.flatnonzero(owns))


def cut(pieces: Pieces, boundaries: I64) -> tuple[Pieces, I64]:
    """Cut disjoint pieces at ascending boundaries b[0..k] and keep what lies in [b[0], b[k]).

    Returns:
        The parts (`source` as in `pieces`) and the window of each, int64: w means [b[w], b[w+1]).
    """
    windows = Spans(boundaries[:-1], boundaries[1:])
    filled = np.flatnonzero(windows.end > windows.start)
    parts, window = intersect(Spans(pieces.start, pieces.end), Spans(windows.start[filled], windows.end[filled]))
    return Pieces(parts.start, parts.end, pieces.source[parts.source]), filled[window]
