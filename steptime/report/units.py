"""Numbers as people read them: the only place where nanoseconds become "12.3 ms" and a share becomes "12.3 %".

Rounding never shows 0 or 100 % unless the value is exactly that, and never shows a time of 0 that is not 0.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import NamedTuple

#: Name, nanoseconds, decimals below 10, below 100 and above: three digits, and a fourth for the usual step time.
_TIME_UNITS: tuple[tuple[str, int, tuple[int, int, int]], ...] = (
    ("ns", 1, (0, 0, 0)),
    ("µs", 1_000, (1, 1, 0)),
    ("ms", 1_000_000, (2, 1, 1)),
    ("s", 1_000_000_000, (2, 2, 0)),
)
#: A job's recordings are counted in bytes of storage: powers of 1000, as disks and `ls --si` count.
_BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_RATE_UNITS = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"))


class Scale(NamedTuple):
    """One unit for a whole column, so that its numbers can be compared at a glance."""

    unit: str
    ns: int


def time(ns: float) -> str:
    """Nanoseconds as text of about three digits: ``450 µs``, ``12.3 ms``, ``178.4 ms``, ``1.25 s``, ``21 min 5 s``."""
    if ns < 0:
        return f"-{time(-ns)}"
    if ns >= 600e9:
        minutes, seconds = divmod(round(ns / 1e9), 60)
        return f"{count(minutes)} min {seconds} s"
    if 0 < ns < 0.5:
        return "<1 ns"
    text = ""
    for name, unit_ns, decimals in _TIME_UNITS:
        text = f"{_three_digits(ns / unit_ns, decimals)} {name}"
        # The unit is chosen on the rounded figure, so that 999.96 µs reads 1.00 ms.
        if not text.startswith("1,000") and ns < 1000 * unit_ns:
            break
    return text


#: Lengths of a run: from how many seconds on, the unit in seconds, its name.
_SPANS = (
    (2 * 365.25 * 86_400, 365.25 * 86_400, "years"),
    (48 * 3600, 86_400, "days"),
    (2 * 3600, 3600, "h"),
    (600, 60, "min"),
)


def span(seconds: float) -> str:
    """A length of a run of about three digits: ``54.0 days``, ``3.09 h``, ``13.4 min``, ``33.0 s``, ``5.77 years``."""
    for least, unit, name in _SPANS:
        if abs(seconds) >= least:
            return f"{_three_digits(seconds / unit, (2, 1, 0))} {name}"
    return time(seconds * 1e9)


def moment(ns: int) -> str:
    """A point in time as UTC to the second: ``2024-05-01 10:00:00``."""
    # To the second by hand: a float of seconds would round some of them up.
    return datetime.fromtimestamp(ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _three_digits(value: float, decimals: tuple[int, int, int]) -> str:
    below_10, below_100, above = decimals
    for limit, digits in ((10, below_10), (100, below_100)):
        text = f"{value:.{digits}f}"
        if float(text) < limit:
            return text
    return f"{value:,.{above}f}"


def scale_for(ns: float) -> Scale:
    """The unit for a column of parts of `ns`, fine enough that a thousandth of it still shows."""
    if ns >= 100e9:
        return Scale("s", 1_000_000_000)
    if ns >= 10e6:
        return Scale("ms", 1_000_000)
    if ns >= 10e3:
        return Scale("µs", 1_000)
    return Scale("ns", 1)


def scaled(ns: float, scale: Scale) -> str:
    """`ns` in a column's unit with one decimal, without the unit; what is not 0 never reads 0."""
    if ns == 0:
        return "0"
    if scale.ns == 1:
        return f"{ns:,.0f}" if abs(ns) >= 0.5 else "<1"
    value = ns / scale.ns
    return f"{value:,.1f}" if abs(value) >= 0.05 else "<0.1"


def share(value: float) -> str:
    """A share of 0 to 1 as percent: ``12.3 %``; ``<0.1 %`` and ``>99.9 %`` where rounding would claim none or all."""
    return f"{points(value)} %"


def points(value: float) -> str:
    """A share of 0 to 1 in points of 100, as `share` but without the sign."""
    percent = value * 100
    if value in (0, 1):
        return f"{percent:.0f}"
    if 0 < percent < 0.05:
        return "<0.1"
    if 99.95 <= percent < 100:
        return ">99.9"
    return f"{percent:.1f}"


def difference(share_of: float) -> str:
    """A difference as a share of what it is set against: ``+11.2 %``, ``−5.0 %``, ``0`` where it rounds to that."""
    percent = round(share_of * 100, 1)
    return f"{percent:+,.1f} %".replace("-", "−") if percent else "0"


def count(value: int) -> str:
    """An integer with thousands separators."""
    return f"{value:,}"


def times(value: int) -> str:
    """How often: ``once``, ``12 times``."""
    return "once" if value == 1 else f"{count(value)} times"


def plural(value: int, singular: str, plural_form: str | None = None) -> str:
    """``1 step``, ``12 steps``; `plural_form` where an s is not enough."""
    return f"{count(value)} {singular if value == 1 else plural_form or singular + 's'}"


def size(value: int) -> str:
    """Bytes as text: ``56.2 MB``."""
    for factor, name in _BYTE_UNITS:
        if value >= factor:
            return f"{_three_digits(value / factor, (2, 1, 0))} {name}"
    return f"{value} B"


def rate(flops: float) -> str:
    """FLOPs a second as text: ``989.4 TFLOP/s``."""
    for factor, name in _RATE_UNITS:
        if flops >= factor:
            return f"{flops / factor:,.1f} {name}"
    return f"{flops:,.0f} FLOP/s"


def ranges(numbers: list[int]) -> str:
    """Whole numbers as runs: ``0-7, 9``; a constant stride of three or more as ``0, 8 ... 56``."""
    ordered = sorted(set(numbers))
    strides = {after - before for before, after in zip(ordered, ordered[1:], strict=False)}
    if len(ordered) > 3 and len(strides) == 1 and strides != {1}:
        return f"{ordered[0]}, {ordered[1]} ... {ordered[-1]}"
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
