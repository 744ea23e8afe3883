"""The plain subtraction that a replay is set beside: a step less the ledger's time for what is changed."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.model import Report
from steptime.taxonomy import LEAVES
from steptime.whatif.requests import leaf_totals
from steptime.whatif.scenario import APART, EVEN, HIDDEN, LEAF, NOBODY_LATE, RANKS, STAGES, Change

#: Leaves in the ledger that a kind of change takes away as a whole: waits, which are no time of anybody's own.
_WAITS = {
    NOBODY_LATE: ("stragglers/wait_for_rank",),
    EVEN: ("stragglers/wait_for_rank",),
    STAGES: ("pipeline_bubble/stage_imbalance",),
    APART: tuple(leaf.key for leaf in LEAVES if leaf.slice == "pipeline_bubble"),
}


def subtracted_ns(changes: Sequence[Change], report: Report) -> float | None:
    """What the ledger has for the changes, mean of a counted (rank, step), in ns; None where it has no figure.

    A leaf that several changes name is counted once. For late ranks it is what the report says that they cost each
    other rank; a rank that it does not name has no figure.
    """
    if not report.job.rank_steps:
        return None
    totals = leaf_totals(report)
    left: dict[str, float] = {}
    late_ns = 0.0
    for change in changes:
        if change.kind == RANKS:
            named = [one for one in report.stragglers if set(one.ranks) & set(change.ranks)]
            if not named:
                return None
            late_ns += sum(one.lost_ns for one in named) / max(len(report.job.steps), 1)
        for key in _keys(change):
            left[key] = left.get(key, 1.0) * (change.factor if change.kind == LEAF else 0.0)
    gone = 0.0
    for key, factor in left.items():
        total = totals.get(key)
        if total is None:
            continue
        if total.ns is None:
            return None
        gone += (1.0 - factor) * total.ns
    return gone / report.job.rank_steps + late_ns


def _keys(change: Change) -> tuple[str, ...]:
    if change.kind in (LEAF, HIDDEN):
        return tuple(LEAVES[code].key for code in change.leaves)
    return _WAITS.get(change.kind, ())
