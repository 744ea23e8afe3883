"""Types of command-line values that click does not have: step ranges, milliseconds, durations, bytes, patterns."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import click


class StepRange(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """``A:B`` or ``A`` to an inclusive range of step numbers."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """The value, or click's usage error."""
        first, colon, last = value.partition(":")
        if not (first.isdecimal() and (last.isdecimal() if colon else True)):
            self.fail(f"{value!r} is not a range of step numbers such as 5:10", param, ctx)
        steps = (int(first), int(last or first))
        if steps[0] > steps[1]:
            self.fail(f"{value!r} ends before it starts", param, ctx)
        return steps


class Milliseconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Decimal milliseconds to int nanoseconds."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The value, or click's usage error."""
        try:
            ns = int(Decimal(value) * 1_000_000)
        except (InvalidOperation, ValueError, OverflowError):
            ns = 0
        if ns <= 0:
            self.fail(f"{value!r} is not a time in milliseconds such as 123.4", param, ctx)
        return ns


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A length of time with its unit (``33s``, ``15m``, ``3h``, ``54d``; without one seconds) to int nanoseconds."""

    name = "TIME"
    _SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The value, or click's usage error."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|min|m|h|d)?\s*", str(value))
        ns = int(Decimal(found[1]) * self._SECONDS[found[2] or ""] * 1_000_000_000) if found else 0
        if ns <= 0:
            self.fail(f"{value!r} is not a length of time such as 33s, 15m or 3h", param, ctx)
        return ns


class Bytes(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Bytes with a unit or without (``6.5TB``, ``80GiB``, ``2e12``; of a rate also ``2TB/s``) to float."""

    name = "BYTES"
    _FACTORS = {"": 1.0, **{f"{prefix}b": 1e3 ** (at + 1) for at, prefix in enumerate("kmgtp")}}
    _FACTORS |= {f"{prefix}ib": 1024.0 ** (at + 1) for at, prefix in enumerate("kmgtp")} | {"b": 1.0}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The value, or click's usage error."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([kmgtp]?i?b)?(?:/s)?\s*", str(value), re.IGNORECASE)
        amount = float(found[1]) * self._FACTORS[(found[2] or "").lower()] if found else 0.0
        if not 1 <= amount < float("inf"):
            self.fail(f"{value!r} is not an amount of bytes such as 6.5TB, 80GiB or 2e12", param, ctx)
        return amount


class Pattern(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A regular expression, kept as text once it is known to compile."""

    name = "RE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The value, or click's usage error."""
        try:
            re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)
        return str(value)
