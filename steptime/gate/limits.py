"""Budgets: what a slice, leaf, finding, the step or MFU may cost, as people write it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from steptime.errors import UsageError
from steptime.taxonomy import LEAVES, SLICES

_TIME_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LIMIT = re.compile(r"(?P<plus>\+?)(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s)")


@dataclass(frozen=True, slots=True)
class Limit:
    """``+2%``: growth of at most 2 % of the baseline; ``+3ms``: by 3 ms a step; ``12ms``, ``8%``: at most that much.

    value: a share for percents, nanoseconds a step for times. text: as it was written.
    """

    growth: bool
    share: bool
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """What a budget may name. kind: ``slice``, ``leaf`` or ``finding``; leaves: its leaves' keys, none of a finding."""

    kind: str
    id: str
    leaves: tuple[str, ...] = ()


def parse_limit(text: str, where: str) -> Limit:
    """A limit from its text; `where` begins the error.

    Raises:
        UsageError: it is none.
    """
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{where}: {text!r} is no limit: write +2% or +3ms for growth, 12ms or 8% for the most it may be"
        )
    share = match["unit"] == "%"
    value = float(match["number"]) * (0.01 if share else _TIME_NS[match["unit"]])
    return Limit(growth=bool(match["plus"]), share=share, value=value, text=match[0])


def parse_growth(text: str, where: str) -> float:
    """A relative growth such as ``+2%`` (or ``2%``) as a share.

    Raises:
        UsageError: it is none.
    """
    limit = parse_limit(text, where)
    if not limit.share:
        raise UsageError(f"{where}: {text!r} is no percentage: write +2%")
    return limit.value


def find_name(text: str, findings: Iterable[str], where: str) -> Name:
    """The slice, leaf (``host/data_loader`` or ``data_loader``) or finding that `text` names.

    Args:
        findings: ids of all findings that a report may hold.
        where: begins the error.

    Raises:
        UsageError: nothing has that name; the nearest one is in the message.
    """
    known = {finding: Name("finding", finding) for finding in findings}
    # A slice and its only leaf may share a name, and then mean the same time.
    known |= {leaf.id: Name("leaf", leaf.key, (leaf.key,)) for leaf in LEAVES}
    known |= {leaf.key: Name("leaf", leaf.key, (leaf.key,)) for leaf in LEAVES}
    known |= {
        part.id: Name("slice", part.id, tuple(leaf.key for leaf in LEAVES if leaf.slice == part.id)) for part in SLICES
    }
    if text in known:
        return known[text]
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`steptime rules` lists the findings, README.md the leaves"
    raise UsageError(f"{where}: no slice, leaf or finding is called {text!r}: {hint}")
