"""Laying sequences of equal collectives of several ranks beside each other, when nothing numbers them.

A rank's sequence may lack a head (its recording started later), a tail, or something in the middle. Its place beside
the longest sequence is the one where the ends keep a constant distance (two clocks, one event) and where the step
numbers agree; both are needed, since identical steps look alike when moved by one, and a step's last collective may
fall on either side of the step's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from steptime.trace.events import I64

F64 = NDArray[np.float64]

#: Step number of an activity outside all steps, or where numbers can't be compared between ranks.
NO_STEP = -(2**40)
#: Place of an entry that has none.
NOWHERE = np.iinfo(np.int64).min

#: Distances of ends may vary by this share of the usual time between two collectives and still be constant.
STEADY_SHARE = 0.05
#: Ends of one collective differ by up to this between hosts (the middle of many differences by far less).
ENDS_DIFFER_NS = 200_000
ENDS_IN_HOST_NS = 20_000
#: So many entries on either side tell whether one lies where it should.
_NEIGHBOURS = 4
#: Two places are equally good if their distances vary alike, but for this.
ALIKE_TIMES, ALIKE_NS = 1.5, 5_000
#: Share of entries that must lie where a constant shift puts them; else something is missing in the middle.
WHOLE = 0.95
#: Share of entries whose step numbers must agree for a place to be believed at once.
AGREEING = 0.8


#: A step has fewer messages than this between two ranks.
_MOST_TURNS = 2**16


class Beat(NamedTuple):
    """One rank's collectives of one kind and size in time order: end_ns, step int64 [n].

    on_host: done by the CPU itself. None of its records get lost, and how they end says little. clock: the name
    of the one that it seems to share with others, None if it is not known.
    """

    end_ns: I64
    step: I64
    on_host: bool = False
    clock: str | None = None


class _Fit(NamedTuple):
    """How a rank's sequence lies beside the reference when entry i stands at i + shift.

    far: entries whose distance is not the usual one. Moved by one, back-to-back collectives still keep their distance,
    but not those on either side of a pause. pace_ns: from one entry of the reference to the next.
    """

    shift: int
    overlap: int
    spread_ns: float
    agree: float
    distance_ns: float
    far: int
    pace_ns: float

    @property
    def steady_ns(self) -> float:
        """How far distances may lie from the usual one and be the same."""
        return max(ENDS_DIFFER_NS, min(10 * self.spread_ns, self.pace_ns / 2))


def place(sequences: Sequence[Beat]) -> list[I64]:
    """The place of every entry in the common sequence, int64 [n] for each rank; `NOWHERE` where there is none."""
    longest = max(range(len(sequences)), key=lambda at: len(sequences[at].end_ns))
    reference = sequences[longest]
    at_once = _at_once(sequences, reference)
    ahead_ns: dict[str | None, float] = {reference.clock: 0.0}
    for one, known in zip(sequences, at_once, strict=True):
        if known:
            ahead_ns.setdefault(one.clock, float(np.median(one.end_ns - reference.end_ns)))
    ahead_ns[None] = 0.0
    return [
        np.arange(len(one.end_ns), dtype=np.int64)
        if known or one is reference
        else _beside(one, reference, ahead_ns.get(one.clock, 0.0))
        for one, known in zip(sequences, at_once, strict=True)
    ]


def host_turns(peer: I64, sends: NDArray[np.bool_], step: I64) -> I64:
    """The place of each message of a rank without a device among those between the same two ranks, one way.

    A span ends there when its host has waited for it, so that ends say nothing; but the messages of a step arrive in
    the order in which they were sent. Made of the step's number, how many the step has (where one side lacks some,
    nothing matches) and which of them it is; `NOWHERE` outside numbered steps, and for what is no message.

    peer: the other rank, -1 if it is no message; all int64 [n], in time order.
    """
    result = np.full(len(peer), NOWHERE, np.int64)
    index = np.flatnonzero((peer >= 0) & (step != NO_STEP))
    if not len(index):
        return result
    key = np.stack([peer[index], sends[index], step[index]])
    which = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(which, kind="stable")
    counts = np.bincount(which)
    turn = np.empty(len(index), np.int64)
    turn[order] = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    result[index] = (step[index] * _MOST_TURNS + counts[which]) * _MOST_TURNS + turn
    return result


def _at_once(sequences: Sequence[Beat], reference: Beat) -> list[bool]:
    """Whether each sequence is as long as the reference and lies beside it without any shift."""
    count = len(reference.end_ns)
    same = [at for at, one in enumerate(sequences) if len(one.end_ns) == count]
    ends = np.stack([sequences[at].end_ns for at in same])
    steps = np.stack([sequences[at].step for at in same])
    distance = ends - reference.end_ns
    spread = np.median(np.abs(distance - np.median(distance, axis=1, keepdims=True)), axis=1)
    pace = _pace_ns(reference)
    known = (steps != NO_STEP) & (reference.step != NO_STEP)
    equal = np.where(known, steps == reference.step, True).mean(axis=1)
    same_steps = np.array([sequences[at].on_host for at in same]) & (known & (steps == reference.step)).all(axis=1)
    good = same_steps | ((equal >= AGREEING) & ((spread <= STEADY_SHARE * pace) | (count < 3)))
    result = [False] * len(sequences)
    for at, fine in zip(same, good.tolist(), strict=True):
        result[at] = fine
    return result


def _pace_ns(beat: Beat) -> float:
    """Usual time from one end to the next; 0 where there is one only."""
    return float(np.median(np.diff(beat.end_ns))) if len(beat.end_ns) > 1 else 0.0


def _beside(one: Beat, reference: Beat, ahead_ns: float) -> I64:
    """The places of one sequence; ahead_ns: how far its clock should be ahead of the reference's."""
    tried = (_fit(one, reference, shift, ahead_ns) for shift in _shifts(one, reference))
    fits = [fit for fit in tried if fit is not None]
    best = _best(fits)
    count = len(one.end_ns)
    if best is None:
        return np.full(count, NOWHERE, np.int64)
    result = np.arange(count, dtype=np.int64) + best.shift
    inside = (result >= 0) & (result < len(reference.end_ns))
    result = np.where(inside, result, NOWHERE)
    offset = _offset(one, reference, best.shift)
    off = one.end_ns[inside] - reference.end_ns[result[inside]] - offset
    # A late end is alone; beyond a hole all entries lie beside their neighbours.
    moved = np.abs(_around(off)) > max(best.pace_ns / 2, ENDS_IN_HOST_NS)
    if ((np.abs(off) <= best.steady_ns) & ~moved).mean() >= WHOLE:
        return result
    return _by_nearest_end(one, reference, fits, ahead_ns)


def _around(values: NDArray[np.floating[Any]]) -> F64:
    """The median of each value and its neighbours, float64 [n]."""
    reach = min(_NEIGHBOURS, max(len(values) - 1, 0))
    padded = np.pad(values.astype(np.float64), reach, mode="reflect") if reach else values.astype(np.float64)
    result: F64 = np.median(sliding_window_view(padded, 2 * reach + 1), axis=1)
    return result


def _shifts(one: Beat, reference: Beat) -> list[int]:
    """Places worth trying: counted from the start, from the end, by step numbers, and by the clocks as they are."""
    n, m = len(one.end_ns), len(reference.end_ns)
    found = {0, m - n}
    numbers, mine = np.unique(one.step, return_index=True)
    others, theirs = np.unique(reference.step, return_index=True)
    shared, left, right = np.intersect1d(numbers, others, return_indices=True)
    votes = (theirs[right] - mine[left])[shared != NO_STEP]
    if len(votes):
        values, counts = np.unique(votes, return_counts=True)
        found.update(values[np.argsort(-counts)][:3].tolist())
    nearest = np.searchsorted(reference.end_ns, one.end_ns) - np.arange(n)
    middle = int(np.median(nearest))
    found.update((middle - 1, middle, middle + 1))
    return sorted(found)


def _fit(one: Beat, reference: Beat, shift: int, ahead_ns: float) -> _Fit | None:
    n, m = len(one.end_ns), len(reference.end_ns)
    low, high = max(0, -shift), min(n, m - shift)
    if high <= low:
        return None
    distance = one.end_ns[low:high] - reference.end_ns[low + shift : high + shift]
    middle = float(np.median(distance))
    mine, theirs = one.step[low:high], reference.step[low + shift : high + shift]
    known = (mine != NO_STEP) & (theirs != NO_STEP)
    agree = float((mine == theirs)[known].mean()) if known.any() else -1.0
    off = np.abs(distance - middle)
    fit = _Fit(shift, high - low, float(np.median(off)), agree, abs(middle - ahead_ns), 0, _pace_ns(reference))
    return fit._replace(far=int(np.count_nonzero(off > fit.steady_ns)))


def _best(fits: list[_Fit]) -> _Fit | None:
    numbered = max((fit.agree for fit in fits), default=-1.0)
    if numbered >= 0:
        fits = [fit for fit in fits if fit.agree > 0]
    if not fits:
        return None
    most = max(fit.overlap for fit in fits)
    wide = [fit for fit in fits if fit.overlap >= max(2, most // 2)] or fits
    least = min(fit.spread_ns for fit in wide)
    steady = [fit for fit in wide if fit.spread_ns <= ALIKE_TIMES * least + ALIKE_NS]
    return min(steady, key=lambda fit: (-round(fit.agree, 1), fit.far, fit.distance_ns))


def _offset(one: Beat, reference: Beat, shift: int) -> float:
    """Distance of the clocks: the middle of the narrowest half of the distances that a shift gives."""
    n, m = len(one.end_ns), len(reference.end_ns)
    low, high = max(0, -shift), min(n, m - shift)
    distance = np.sort(one.end_ns[low:high] - reference.end_ns[low + shift : high + shift])
    half = max(1, len(distance) // 2)
    widths = distance[half - 1 :] - distance[: len(distance) - half + 1]
    at = int(widths.argmin())
    return float(np.median(distance[at : at + half]))


def _by_nearest_end(one: Beat, reference: Beat, fits: list[_Fit], ahead_ns: float) -> I64:
    """Places when something is missing in the middle: each entry with the one whose end is nearest, and the reverse.

    Every shift proposes a distance of the clocks; the one under which most entries find each other holds, then the one
    with the most equal step numbers, then the one nearest to what the distance should be.
    """
    best = np.full(len(one.end_ns), NOWHERE, np.int64)
    most = (0, -1.0)
    offsets = {round(_offset(one, reference, fit.shift)) for fit in fits}
    for offset in sorted(offsets, key=lambda ns: (abs(ns - ahead_ns), ns)):
        places = _mutual(one.end_ns - offset, reference.end_ns)
        found = np.flatnonzero(places != NOWHERE)
        mine, theirs = one.step[found], reference.step[places[found]]
        known = (mine != NO_STEP) & (theirs != NO_STEP)
        agree = float((mine == theirs)[known].mean()) if known.any() else 0.0
        # Rounded to a twentieth, so that a few entries more don't outweigh the step numbers.
        score = (20 * len(found) // len(one.end_ns), agree)
        if score > most:
            most, best = score, places
    return best


def _mutual(end_ns: I64, reference_ns: I64) -> I64:
    """Index of the nearest reference end, where that one's nearest is the entry and they are near; else `NOWHERE`."""
    forth = _nearest(reference_ns, end_ns)
    back = _nearest(end_ns, reference_ns)
    mutual = back[forth] == np.arange(len(end_ns))
    near = np.abs(end_ns - reference_ns[forth]) <= ENDS_DIFFER_NS
    return np.where(mutual & near, forth, NOWHERE)


def _nearest(values: I64, wanted: I64) -> I64:
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    right = np.clip(np.searchsorted(ascending, wanted), 1, max(len(values) - 1, 1))
    right = np.minimum(right, len(values) - 1)
    left = np.maximum(right - 1, 0)
    closer = np.abs(ascending[left] - wanted) <= np.abs(ascending[right] - wanted)
    result: I64 = order[np.where(closer, left, right)]
    return result
