"""Time stamps: decimal text in microseconds becomes exact int64 nanoseconds, once, here.

A float64 near 1.7e15 us has a step of 0.25 us, so no float may touch a time stamp (kineto_schema section 2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

I64 = NDArray[np.int64]

#: Marks a time that the file does not give (null, text that is no number): never a real time.
UNKNOWN_NS = np.iinfo(np.int64).min

#: Values at least this large are read one by one: near the ends of int64 vector arithmetic would wrap.
_LARGE = 2**62

_INT_TOKEN = re.compile(rb"(?<![\d.])(-?\d+)(?![\d.])")
_PLAIN = re.compile(rb"[-0-9. ]*")


def nanoseconds(tokens: Sequence[Raw | bytes]) -> I64:
    """Turn JSON numbers in microseconds into nanoseconds.

    Args:
        tokens: n raw JSON numbers, in any mixture of integers, decimals and exponents.

    Returns:
        int64 [n]. Digits beyond the nanosecond are rounded half to even; a value that is no number is `UNKNOWN_NS`;
        one outside int64 is clamped to its ends.
    """
    count = len(tokens)
    if not count:
        return np.empty(0, np.int64)
    text = b" ".join(tokens)
    if not _PLAIN.fullmatch(text):
        return np.array([_one(bytes(token)) for token in tokens], np.int64)
    dots = text.count(b".")
    if dots == 0:
        values = _integers(text, count)
        large = np.abs(values) >= _LARGE // 1000
        times = values * 1000
    elif dots == count and _all_have_three_decimals(text):
        times = _integers(text.replace(b".", b""), count)
        large = np.abs(times) >= _LARGE
    else:
        times, large = _mixed(text if dots == count else _INT_TOKEN.sub(rb"\1.0", text), count)
    for at in np.flatnonzero(large).tolist():
        times[at] = _one(bytes(tokens[at]))
    return times


def _integers(text: bytes, count: int) -> I64:
    values = np.fromstring(text, dtype=np.int64, sep=" ")
    if len(values) != count:
        raise ValueError(f"{len(values)} numbers where {count} were expected")
    return values


def _all_have_three_decimals(text: bytes) -> bool:
    chars = np.frombuffer(text, np.uint8)
    dots = np.flatnonzero(chars == ord("."))
    ends = np.append(np.flatnonzero(chars == ord(" ")), len(chars))
    return bool(np.array_equal(dots + 4, ends))


def _mixed(text: bytes, count: int) -> tuple[I64, NDArray[np.bool_]]:
    """Times of decimals of any length, and which of them are too large or too long for int64 arithmetic."""
    chars = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(chars == ord(" ")), len(chars))
    starts = np.append(0, ends[:-1] + 1)
    digits = ends - np.flatnonzero(chars == ord(".")) - 1
    parts = _integers(text.replace(b".", b" "), 2 * count).reshape(count, 2)
    large = (np.abs(parts[:, 0]) >= _LARGE // 1000) | (digits > 15)
    scale = np.power(10, np.arange(16, dtype=np.int64))
    coarse = parts[:, 1] * scale[np.clip(3 - digits, 0, 3)]
    divisor = scale[np.clip(digits - 3, 0, 12)]
    fraction, rest = np.divmod(coarse, divisor)
    fraction += (2 * rest > divisor) | ((2 * rest == divisor) & (fraction % 2 == 1))
    sign = np.where(chars[starts] == ord("-"), -1, 1)
    return parts[:, 0] * 1000 + sign * fraction, large


def _one(token: bytes) -> int:
    try:
        exact = Decimal(token.strip(b'"').decode("ascii", "replace")) * 1000
        value = int(exact.to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        return int(UNKNOWN_NS)
    return max(min(value, int(np.iinfo(np.int64).max)), int(UNKNOWN_NS) + 1)
