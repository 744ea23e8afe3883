"""The plain subtraction that a replay is set beside: a step less the ledger's time for what is changed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from steptime.model import Report
from steptime.taxonomy import LEAVES
from steptime.whatif.requests import leaf_totals
from steptime.whatif.scenario import APART, EVEN, HIDDEN, KERNEL, LEAF, NOBODY_LATE, RANKS, STAGES, Change

#: Leaves in the ledger that a kind of change takes away as a whole: waits, which are no time of anybody's own.
_WAITS = {
    NOBODY_LATE: ("stragglers/wait_for_rank",),
    EVEN: ("stragglers/wait_for_rank",),
    STAGES: ("pipeline_bubble/stage_imbalance",),
    APART: tuple(leaf.key for leaf in LEAVES if leaf.slice == "pipeline_bubble"),
}


#: Leaves whose kernels hold useful work, and what the roofline calls their calls.
_PRICED = {"kernels/matmul": ("matmul", "convolution"), "kernels/attention": ("attention",)}


def subtracted_ns(changes: Sequence[Change], report: Report) -> float | None:
    """What the ledger has for the changes, mean of a counted (rank, step), in ns; None where it has no figure.

    A leaf that several changes name is counted once. For late ranks it is what the report says that they cost each
    other rank; a rank that it does not name has no figure.
    """
    if not report.job.rank_steps:
        return None
    if any(change.kind == KERNEL for change in changes):
        return _named_ns(changes[0], report) if len(changes) == 1 else None
    totals = leaf_totals(report)
    left: dict[str, float] = {}
    whole: dict[str, int] = {}
    for change in changes:
        for key in _keys(change):
            left[key] = left.get(key, 1.0) * (change.factor if change.kind == LEAF else 0.0)
            whole |= {key: _useful_ns(key, report)} if change.whole else {}
    known = {key: totals[key].ns for key in left if key in totals}
    late_ns = _late_ns(changes, report)
    if late_ns is None or None in known.values():
        return None
    gone = sum((1.0 - left[key]) * (whole.get(key, 0) + (ns or 0)) for key, ns in known.items())
    return gone / report.job.rank_steps + late_ns


def _late_ns(changes: Sequence[Change], report: Report) -> float | None:
    found = 0.0
    for change in changes:
        if change.kind == RANKS:
            named = [one for one in report.stragglers if set(one.ranks) & set(change.ranks)]
            if not named:
                return None
            found += sum(one.lost_ns for one in named) / max(len(report.job.steps), 1)
    return found


def _useful_ns(key: str, report: Report) -> int:
    """What a leaf's kernels own besides the leaf itself, as far as the roofline lists them."""
    kinds = _PRICED.get(key, ())
    owned = sum(op.owned_ns for op in report.roofline if op.kind in kinds and not op.recomputed)
    return max(owned - (leaf_totals(report)[key].ns or 0), 0) if owned else 0


def _named_ns(change: Change, report: Report) -> float:
    """Owned time of the kernels that a pattern names, as far as the report lists them."""
    search = re.compile(change.pattern).search
    owned = sum(kernel.owned_ns for kernel in report.kernels if search(kernel.name))
    return (1.0 - change.factor) * owned / report.job.rank_steps


def _keys(change: Change) -> tuple[str, ...]:
    if change.kind in (LEAF, HIDDEN):
        return tuple(LEAVES[code].key for code in change.leaves)
    return _WAITS.get(change.kind, ())
