"""The ledger of one rank on one device: every nanosecond of every step under a leaf, with what and where.

The rows of a step and leaf sum to exactly what the step's account says; the report's tables are views of the ledger.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.trace.events import I32, I64

I16 = NDArray[np.int16]
Ints = NDArray[np.signedinteger[Any]]
Keys = tuple[Ints, Ints, Ints, Ints]
Useful = tuple[I64, I64]


class Ledger(msgspec.Struct, frozen=True):
    """r rows, sorted by step and leaf, one for each (step, leaf, what, where).

    step int32 (index of the step), leaf int16 (index in `LEAVES`), what and where int32 (into `texts`, -1: none),
    ns int64 (owned time), count int64 (occurrences), dur_ns int64 (full length of device work, hidden parts included;
    0 for idle causes), productive_ns and precision_ns int64 (parts of `ns` that are useful work at the reference peak,
    and its surplus at the peak of a slower dtype).
    """

    step: I32
    leaf: I16
    what: I32
    where: I32
    ns: I64
    count: I64
    dur_ns: I64
    productive_ns: I64
    precision_ns: I64
    texts: list[str]

    def leaves_ns(self, steps: int, leaves: int) -> I64:
        """Sum of `ns` by step and leaf, int64 [steps, leaves]."""
        total = np.zeros((steps, leaves), np.int64)
        np.add.at(total, (self.step, self.leaf), self.ns)
        return total


class LedgerWriter:
    """Collects entries in any order; equal keys are summed at once, so that memory stays with what is distinct."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, ...]] = []

    def put(self, keys: Keys, ns: I64, occurs: tuple[I64, I64] | None = None, useful: Useful | None = None) -> None:
        """Add k entries.

        Args:
            keys: step, leaf, what and where, [k] each.
            ns: owned time, int64 [k].
            occurs: (count, dur_ns), int64 [k] each; without it each entry counts once.
            useful: (productive_ns, precision_ns), int64 [k] each; without it there is none.
        """
        none = np.zeros(len(ns), np.int64)
        count, dur_ns = occurs if occurs is not None else (np.ones(len(ns), np.int64), none)
        self._parts.append(_summed(keys, (ns, count, dur_ns, *(useful if useful is not None else (none, none)))))

    def ledger(self, texts: list[str]) -> Ledger:
        """Sum entries with equal step, leaf, what and where."""
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        step, leaf, what, where, *values = _summed(tuple(columns[:4]), tuple(columns[4:]))
        ns, count, dur_ns, productive_ns, precision_ns = (column.astype(np.int64) for column in values)
        return Ledger(
            step=step.astype(np.int32),
            leaf=leaf.astype(np.int16),
            what=what.astype(np.int32),
            where=where.astype(np.int32),
            ns=ns,
            count=count,
            dur_ns=dur_ns,
            productive_ns=productive_ns,
            precision_ns=precision_ns,
            texts=texts,
        )


def _summed(keys: tuple[Ints, ...], values: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Sums of `values` by equal keys, sorted by the keys in their order: key columns, then value columns."""
    order = np.lexsort(keys[::-1])
    changed = np.zeros(len(order), np.bool_)
    changed[:1] = True
    ordered = [key[order] for key in keys]
    for key in ordered:
        changed[1:] |= key[1:] != key[:-1]
    first = np.flatnonzero(changed)
    sums = [np.add.reduceat(value[order], first) if len(first) else value for value in values]
    return (*(key[first] for key in ordered), *sums)
