"""Points in time as logs write them, to int64 nanoseconds since 1970 UTC.

Only what means one thing is read: ISO 8601 with date and time (``2024-05-01 10:00:00.5+02:00``), the same with ``/``
between the parts of the date or a comma before the fraction, and seconds, ms, us or ns since 1970 (told by their size).
``03/04/2024`` means two days, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pandas as pd

from steptime.errors import UsageError

#: Stands for "no time" in int64 columns.
NO_TIME = int(np.iinfo(np.int64).min)
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE,
)
#: From which number on a time is seconds, milliseconds, microseconds, nanoseconds since 1970: each from 1973 on.
_EPOCHS = ((10**17, 1), (10**14, 10**3), (10**11, 10**6), (10**8, 10**9))
#: The last that int64 nanoseconds hold is in 2262; a log from beyond 2200 has a broken clock.
_LAST_NS = 7_258_118_400 * 10**9


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times. ns: int64, `NO_TIME` where there is none. bad: bool, where there is text that is no time.

    naive: how many were written without a time zone.
    """

    ns: npt.NDArray[np.int64]
    bad: npt.NDArray[np.bool_]
    naive: int


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name.

    Raises:
        UsageError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"no time zone is called {name!r}: use a name such as UTC or Europe/Paris") from error


def epoch_ns(value: object) -> int | None:
    """Nanoseconds since 1970 of a number of seconds, ms, us or ns; None if it is too small to be one.

    A float of seconds is rounded to the microsecond: it holds no more.
    """
    if isinstance(value, bool):
        return None
    try:
        exact = Decimal(value.strip()) if isinstance(value, str) else Decimal(value)  # type: ignore[arg-type]
    except (InvalidOperation, TypeError, ValueError):
        return None
    if not exact.is_finite():
        return None
    for least, factor in _EPOCHS:
        if exact >= least:
            ns = exact * factor
            if isinstance(value, float):
                ns = (ns / 1000).to_integral_value() * 1000
            return int(ns) if ns <= _LAST_NS else None
    return None


def parse_times(values: Sequence[object], zone: str = "UTC") -> Times:
    """Read a column of times; ``None`` and empty text are no time. `zone` is that of times that do not say theirs.

    When clocks change, a local time that does not exist is bad, and so is one that comes twice unless all times of the
    column are in order and show which is meant.

    Raises:
        UsageError: there is no such zone.
    """
    ns = np.full(len(values), NO_TIME, np.int64)
    bad = np.zeros(len(values), np.bool_)
    aware: list[tuple[int, str]] = []
    naive: list[tuple[int, str]] = []
    for at, value in enumerate(values):
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        number = epoch_ns(value)
        if number is not None:
            ns[at] = number
            continue
        found = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            bad[at] = True
            continue
        year, month, day, clock, offset = found.groups()
        text = f"{year}-{month}-{day}T{clock.replace(',', '.')}"
        if offset is None:
            naive.append((at, text))
        else:
            aware.append((at, text + ("+00:00" if offset.upper() in ("Z", "UTC", "GMT") else offset)))
    for group, local in ((aware, None), (naive, zone_of(zone))):
        if group:
            where = np.array([at for at, _ in group])
            ns[where] = _stamps([text for _, text in group], local)
            bad[where] = ns[where] == NO_TIME
    return Times(ns, bad, len(naive))


def _localized_ns(wall: pd.DatetimeIndex, local: ZoneInfo) -> npt.NDArray[np.int64]:
    """Local times in their zone; in a log in order, the hour that comes twice shows as one step back of the clock."""
    summer = np.ones(len(wall), np.bool_)
    told = np.asarray(wall.tz_localize(local, ambiguous="NaT", nonexistent="NaT").notna())
    # Those that do not exist have no answer; those that come twice have one where either is taken.
    answered = np.asarray(wall.tz_localize(local, ambiguous=summer, nonexistent="NaT").notna())
    twice = answered & ~told
    days, clock = np.asarray(wall.normalize().asi8), np.asarray(wall.asi8)
    for day in np.unique(days[twice]):
        at = np.flatnonzero(twice & (days == day))
        back = np.flatnonzero(np.diff(clock[at]) < 0)
        if len(back) == 1:
            summer[at[back[0] + 1 :]] = False
            told[at] = True
    return _held_ns(wall.tz_localize(local, ambiguous=summer, nonexistent="NaT"), told)


def _held_ns(stamps: pd.DatetimeIndex, told: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """int64 nanoseconds of the stamps that are `told` and that a log may hold; `NO_TIME` for the others."""
    stamps = stamps.tz_convert("UTC")
    first, last = pd.Timestamp("1970-01-01", tz="UTC"), pd.Timestamp("2200-01-01", tz="UTC")
    inside = np.asarray((stamps >= first) & (stamps < last)) & told
    held = np.full(len(stamps), NO_TIME, np.int64)
    held[inside] = stamps[inside].as_unit("ns").asi8
    return held


def _stamps(texts: list[str], local: ZoneInfo | None) -> npt.NDArray[np.int64]:
    stamps = pd.DatetimeIndex(pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=local is None))
    return _held_ns(stamps, np.ones(len(texts), np.bool_)) if local is None else _localized_ns(stamps, local)
