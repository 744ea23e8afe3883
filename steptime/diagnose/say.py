"""Numbers of evidence and reasons as words; the views of a report print them as they are."""

from __future__ import annotations

_MICROS, _MILLIS, _SECONDS = 1_000, 1_000_000, 1_000_000_000


def time_text(ns: float) -> str:
    """Three significant digits with the unit that fits: ``6.20 ms``."""
    for unit, size in (("s", _SECONDS), ("ms", _MILLIS), ("µs", _MICROS)):
        if abs(ns) >= size:
            return f"{_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def span_text(ns: float) -> str:
    """A length of a run: ``3.10 h``, ``14.2 min``; shorter ones as `time_text` has them."""
    for unit, seconds, least in (("days", 86_400, 172_800), ("h", 3_600, 7_200), ("min", 60, 600)):
        if ns >= least * _SECONDS:
            return f"{_digits(ns / (seconds * _SECONDS))} {unit}"
    return time_text(ns)


def share_text(share: float) -> str:
    """``32.6 %``; never 0 or 100 unless it is exactly that."""
    if share in (0, 1):
        return f"{share * 100:.0f} %"
    if abs(share) < 0.0005:
        return "<0.1 %"
    return ">99.9 %" if 0.9995 <= share < 1 else f"{share * 100:.1f} %"


def number_text(number: float, unit: str) -> str:
    """A metric's number with its unit (`reading.UNITS`)."""
    if unit in ("share", "step share", "fraction"):
        return share_text(number)
    if unit == "ns":
        return time_text(number)
    if unit in ("bytes", "bytes/s"):
        return f"{_digits(number / 2**30)} GiB" if unit == "bytes" else f"{_digits(number / 1e9)} GB/s"
    if unit == "yes":
        return "yes" if number else "no"
    return f"{number:,.0f}" if number == int(number) else _digits(number)


def plural(count: float, what: str, several: str = "") -> str:
    """``1 call``, ``3 calls``; `several` is the plural where it takes more than an s."""
    return f"{count:,.0f} {what if count == 1 else several or what + 's'}"


def _digits(number: float) -> str:
    """Three significant digits, without an exponent for what a report holds."""
    size = abs(number)
    return f"{number:.0f}" if size >= 100 else f"{number:.1f}" if size >= 10 else f"{number:.2f}"
