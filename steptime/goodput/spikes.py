"""Rows that leave what was usual: spikes, which an alert sees at once, and drops, which must last.

In: one column of a log, finite values. Out: `Event`s in the order of their alerts. An alert of row i is decided by rows
up to i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.goodput.trailing import Bools, Floats, Usual, Window, usual

#: A spike: two rows in a row this many times the noise above the usual,
_TWICE = 5.0
#: or one row this far: 10 of the noise is beyond what batches do.
_ONCE = 10.0
#: It is over when this many rows in a row are back within `_BACK` of the noise.
_BACK = 3.0
_BACK_ROWS = 3
#: A drop: 8 of 10 rows at least 5 % below the usual, and beyond 4 of the noise.
_DROP_SHARE = 0.05
_DROP_SCORE = 4.0
_DROP_ROWS, _DROP_OF = 8, 10
#: So many rows in a row that are not odd: what is usual has followed.
_QUIET_ROWS = 20


@dataclass(frozen=True, slots=True)
class Event:
    """Rows that were not usual, as positions in the column. end: the first row back at usual, None if none was.

    until: the last row that belongs to it; without an end, where the new level had become usual or the column ends.
    level, noise: what was usual at its start.
    """

    start: int
    alert: int
    peak: int
    end: int | None
    until: int
    level: float
    noise: float


def spikes(values: Floats, window: Window) -> tuple[list[Event], Usual]:
    """The spikes of a column, upward."""
    before = usual(values, window)
    score = before.score(values)
    high = score >= _TWICE
    alarm = (score >= _ONCE) | (high & np.concatenate([[False], high[:-1]]))
    return _events(values, before, alarm, high), before


def drops(values: Floats, window: Window) -> tuple[list[Event], Usual]:
    """The drops of a column of logarithms; `Event.level` and its noise are those of the column."""
    before = usual(-values, window)
    score = before.score(-values)
    low = (score >= _DROP_SCORE) & (-values - before.level >= -np.log1p(-_DROP_SHARE))
    total = np.concatenate([[0], np.cumsum(low)])
    lasting = np.arange(1, len(values) + 1)
    of_ten = total[lasting] - total[np.maximum(lasting - _DROP_OF, 0)]
    alarm = low & (of_ten >= _DROP_ROWS)
    found = _events(-values, before, alarm, low)
    flipped = [Event(one.start, one.alert, one.peak, one.end, one.until, -one.level, one.noise) for one in found]
    return flipped, Usual(-before.level, before.noise)


def _events(values: Floats, before: Usual, alarm: Bools, odd: Bools) -> list[Event]:
    """One event for each alarm outside the one before it."""
    found: list[Event] = []
    alarms, quiet = np.flatnonzero(alarm), _runs_at(~odd, _QUIET_ROWS)
    at = 0
    while (place := int(np.searchsorted(alarms, at))) < len(alarms):
        alert = int(alarms[place])
        start = _start(odd, alert, at)
        level, noise = float(before.level[start]), float(before.noise[start])
        # A level that stays becomes usual: from there on it is no event any more.
        settled = int(np.searchsorted(quiet, alert + 1))
        until = int(quiet[settled]) - 1 if settled < len(quiet) else len(values) - 1
        end = _back(values, alert + 1, level + _BACK * noise)
        if end is not None and (end - 1 <= until or before.level[end] <= level + _BACK * noise):
            until = end - 1
        else:
            # What training gains later does not bring it back.
            end = None
        peak = start + int(np.argmax(values[start : until + 1]))
        found.append(Event(start, alert, peak, end, until, level, noise))
        at = until + 1
    return found


def _back(values: Floats, start: int, limit: float) -> int | None:
    """The first of `_BACK_ROWS` rows in a row at or below `limit`, from `start` on."""
    ahead = 128
    while True:
        whole = _runs_at(values[start : start + ahead] <= limit, _BACK_ROWS)
        if len(whole):
            return start + int(whole[0])
        if start + ahead >= len(values):
            return None
        ahead *= 4


def _start(odd: Bools, alert: int, least: int) -> int:
    """The first of the odd rows that lead to the alert; up to two usual ones may lie between them."""
    start = alert
    while start > least and odd[max(start - 3, least) : start].any():
        start = max(start - 3, least) + int(np.flatnonzero(odd[max(start - 3, least) : start])[0])
    return start


def _runs_at(good: Bools, rows: int) -> npt.NDArray[np.int64]:
    """Where `rows` true values in a row begin."""
    total = np.concatenate([[0], np.cumsum(good)])
    return np.flatnonzero(total[rows:] - total[:-rows] == rows)


def runs_of(odd: Bools) -> list[tuple[int, int]]:
    """First and last place of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], odd.astype(np.int8), [0]])))
    pairs: npt.NDArray[np.int64] = edges.reshape(-1, 2)
    return [(int(first), int(last) - 1) for first, last in pairs]
