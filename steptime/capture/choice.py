"""Which ranks of a big job to capture: the slowest, a typical one, and one of each pipeline stage.

A rank that others wait for is seldom the one with the longest step: they all wait for it, and take as long. Where the
step times are alike, ranks spread evenly over the job are taken beside a typical one, and the choice says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

#: Up to so many ranks all are captured: every wait then has its culprit among the files.
ALL_OF = 16
#: Ranks taken where neither step times nor stages tell more.
_SPREAD = 8
#: Step times of ranks that wait for each other differ by less than this.
_ALIKE = 0.02


class Choice(NamedTuple):
    """The ranks to capture (empty: all), and why these."""

    ranks: list[int]
    why: str


def choose(world_size: int, medians_ns: Mapping[int, float], stages: Sequence[Sequence[int]] = ()) -> Choice:
    """The ranks to capture of a job.

    Args:
        world_size: ranks of the job.
        medians_ns: the usual step time of the ranks that told it, by rank.
        stages: ranks of each pipeline stage, where an earlier report knows them.
    """
    if world_size <= ALL_OF:
        return Choice([], f"all {world_size} ranks")
    chosen, reasons = [], []
    apart = False
    if medians_ns:
        middle = median(medians_ns.values())
        slowest = max(medians_ns, key=lambda rank: (medians_ns[rank], -rank))
        typical = min(medians_ns, key=lambda rank: (abs(medians_ns[rank] - middle), rank))
        apart = medians_ns[slowest] > middle * (1 + _ALIKE)
        if apart:
            chosen.append(slowest)
            reasons.append(f"the slowest ({slowest})")
        chosen.append(typical)
        reasons.append(f"a typical one ({typical})")
    if stages:
        chosen += [next((rank for rank in chosen if rank in stage), stage[0]) for stage in stages if stage]
        reasons.append(f"one of each of {len(stages)} pipeline stages")
    if not apart or not stages:
        chosen += [at * world_size // _SPREAD for at in range(_SPREAD)]
        alike = "their step times are alike, as they wait for each other" if medians_ns else "no step times are known"
        reasons.append(f"{_SPREAD} spread over the job ({alike})" if not apart else f"{_SPREAD} spread over the job")
    return Choice(sorted({rank for rank in chosen if 0 <= rank < world_size}), " + ".join(reasons))
