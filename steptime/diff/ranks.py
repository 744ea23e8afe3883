"""Which rank the change of a leaf comes from, where it is one."""

from __future__ import annotations

from steptime.model import Report, StepTime
from steptime.model.diff import Part

#: A change is one rank's if this share of it is.
_NEARLY_ALL = 0.9
#: With fewer ranks there is nobody to tell it from.
_FEWEST = 3

ByRank = dict[str, dict[int, int]]


def by_rank(report: Report, units: int) -> ByRank:
    """By leaf (and ``productive``): rank -> its total over the counted steps, in units of the split.

    Empty where the ranks' steps do not add up to the job: a report may hold some of them only.
    """
    counted = set(report.job.steps)
    found: ByRank = {}
    total_ns = 0
    for rank in report.ranks:
        for step in rank.steps:
            if step.step in counted and step.class_ == "train" and not step.edge:
                total_ns += step.dur_ns
                _add(found, rank.rank, step, units)
    return found if total_ns == report.job.total_ns else {}


def _add(found: ByRank, rank: int, step: StepTime, units: int) -> None:
    for leaf, ns in (*step.leaves_ns.items(), ("productive", step.productive_ns)):
        ranks = found.setdefault(leaf, {})
        ranks[rank] = ranks.get(rank, 0) + ns * units


def one_rank(ranks: tuple[ByRank, ByRank], leaf: str, part: Part) -> int | None:
    """The rank that nearly all of the change comes from."""
    a, b = ranks
    known = {rank for found in (a, b) for row in found.values() for rank in row}
    if not a or not b or len(known) < _FEWEST or not part.change_units:
        return None
    changes = {rank: b.get(leaf, {}).get(rank, 0) - a.get(leaf, {}).get(rank, 0) for rank in known}
    if sum(changes.values()) != part.change_units:
        return None
    rank = max(changes, key=lambda rank: (abs(changes[rank]), -rank))
    # Of the whole change, and of all that moved in it: ranks that balance each other are not one rank.
    moved = sum(map(abs, changes.values()))
    return rank if abs(changes[rank]) >= _NEARLY_ALL * moved else None
