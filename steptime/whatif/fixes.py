"""What fixing a finding changes in the job: the leaves whose time it counts on, as changes of a replay."""

from __future__ import annotations

from steptime.model import Finding, Report, Straggler
from steptime.taxonomy import LEAF_CODE
from steptime.whatif.scenario import APART, HIDDEN, LEAF, NOBODY_LATE, RANKS, STAGES, Change

#: A fix that takes so much of a leaf takes all of it.
ALL = 0.9
#: Leaves that are no time of the job's own: nothing to replay without.
_NOT_OF_THE_JOB = ("host/profiler_overhead", "unexplained/capture_skew", "unexplained/events_missing")


def changes_for(finding: Finding, report: Report) -> list[Change]:
    """The changes that a fix makes; empty where it promises no time, or none that a replay can leave out.

    The part of a leaf that it counts on is taken off all of that leaf's times evenly. Waits are not times but follow
    from others: for a late rank it is made as fast as its peers, for a bubble the stages even or apart; communication
    that is to be hidden is waited for by nobody.
    """
    changes: list[Change] = []
    for key, ns in finding.promised.items():
        if key in _NOT_OF_THE_JOB:
            continue
        left = _left(report, key, ns)
        slice_id = key.partition("/")[0]
        if slice_id == "stragglers":
            changes += _late(report)
        elif slice_id == "pipeline_bubble":
            changes.append(Change(finding.id, STAGES if key.endswith("stage_imbalance") else APART))
        elif slice_id == "exposed_comm" and not left:
            changes.append(Change(finding.id, HIDDEN, (LEAF_CODE[key],)))
        else:
            changes.append(Change(finding.id, LEAF, (LEAF_CODE[key],), left))
    return list(dict.fromkeys(changes))


def _left(report: Report, key: str, ns: int) -> float:
    """Share of a leaf that is left when a fix has taken its part; 0.0 if that is nearly all."""
    slice_id, _, leaf_id = key.partition("/")
    whole = next(
        (leaf.ns for part in report.job.slices if part.id == slice_id for leaf in part.leaves if leaf.id == leaf_id),
        None,
    )
    taken = ns / whole if whole else 1.0
    return 0.0 if taken >= ALL else 1.0 - taken


def _late(report: Report) -> list[Change]:
    """Late ranks as fast as their peers; where it is another one each time, nobody slower than the usual."""
    named = [one for one in report.stragglers if one.recorded and one.kind != "jitter" and one.ranks]
    ranks = tuple(sorted({rank for one in named for rank in _own(one)}))
    changes = [Change("stragglers", RANKS, ranks=ranks)] if ranks else []
    return changes if named and len(named) == len(report.stragglers) else [Change("stragglers", NOBODY_LATE)]


def _own(straggler: Straggler) -> list[int]:
    return [straggler.rank] if straggler.rank is not None else straggler.ranks
