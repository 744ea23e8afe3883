"""The profiler's own cost: what a profiled step lasts longer than an unprofiled one (DESIGN 1.4, rule 5)."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.labels import Labels
from steptime.timeline.ledger import Ledger, LedgerWriter
from steptime.trace.events import I64

#: Where the profiler's cost hides, in the order in which the excess is taken.
_TAKEN_FROM = tuple(LEAF_CODE[f"host/{leaf}"] for leaf in ("launch_bound", "python", "kernel_gap"))
_OVERHEAD = LEAF_CODE["host/profiler_overhead"]

#: Upper bound of what recording one op costs the host: 17.8 ms became 30.5 ms at about 4 us an op, pytorch/kineto#325.
COST_PER_OP_NS = 4_000


def move_overhead(ledger: Ledger, excess_ns: I64, labels: Labels) -> Ledger:
    """Move each step's excess from host leaves to `profiler_overhead`; sums per step stay.

    Args:
        ledger: one device's ledger.
        excess_ns: int64 [steps], how much longer than unprofiled each step was, >= 0.
        labels: the file's texts.
    """
    left = excess_ns.copy()
    ns = ledger.ns.copy()
    moved = np.zeros_like(excess_ns)
    for leaf in _TAKEN_FROM:
        rows = np.flatnonzero(ledger.leaf == leaf)
        step = ledger.step[rows]
        held = ns[rows]
        before = np.cumsum(held) - held
        first = np.append(True, step[1:] != step[:-1]) if len(rows) else np.empty(0, np.bool_)
        before = before - before[first][np.cumsum(first) - 1] if len(rows) else before
        take = np.clip(left[step] - before, 0, held)
        ns[rows] -= take
        gone = np.zeros_like(left)
        np.add.at(gone, step, take)
        left -= gone
        moved += gone
    writer = LedgerWriter()
    kept = replace(ledger, ns=ns)
    useful = (kept.productive_ns, kept.precision_ns)
    writer.put((kept.step, kept.leaf, kept.what, kept.where), kept.ns, (kept.count, kept.dur_ns), useful)
    steps = np.flatnonzero(moved)
    what = np.full(len(steps), labels.text("longer than the unprofiled step"), np.int32)
    leaf_codes = np.full(len(steps), _OVERHEAD, np.int16)
    writer.put((steps, leaf_codes, what, np.full(len(steps), -1, np.int32)), moved[steps])
    return writer.ledger(labels.texts)
