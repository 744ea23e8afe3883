"""What a fix changes: each kind of change on a scenario. Several changes together multiply."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from steptime.errors import UsageError
from steptime.taxonomy import LEAF_CODE
from steptime.trace.events import I64
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.peers import even, nobody_late, ranks, stages
from steptime.whatif.rank_nodes import EDGE, HELD, PRODUCTIVE, STALL, STREAM, TRANSFER, WORK
from steptime.whatif.scenario import (
    APART,
    COMMUNICATES,
    EVEN,
    F64,
    HIDDEN,
    KERNEL,
    LEAF,
    NOBODY_LATE,
    RANKS,
    STAGES,
    Change,
    Mask,
    Place,
    Scenario,
    untouched,
)

_PRECISION, _OPTIMIZER = LEAF_CODE["kernels/precision"], LEAF_CODE["kernels/optimizer"]
_GATHER = LEAF_CODE["exposed_comm/allgather"]


def scenario(job: JobGraph, place: Place, changes: Sequence[Change]) -> Scenario:
    """All changes together.

    Raises:
        UsageError: a rank that is not there, or that has no peers.
    """
    made = untouched(job)
    for change in changes:
        made = _KINDS[change.kind](job, place, made, change)
    return made


def _by_leaf(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:  # noqa: ARG001
    leaves = np.array(change.leaves)
    parts = job.parts
    mine = np.isin(parts.leaf, leaves)
    if change.factor == 0.0:
        mine |= np.isin(parts.also, leaves)
    if change.whole:
        mine |= _works(job) & np.isin(job.nodes.leaf, leaves)[_node(job)]
    factor = np.where(mine, made.factor * change.factor, made.factor)
    if _PRECISION in change.leaves:
        factor = factor * _in_reference_dtype(job, change.factor)
    gone = made.gone
    if change.factor == 0.0:
        gone = gone | ((job.edge_kind == HELD) & np.isin(job.edge_leaf, np.setdiff1d(leaves, COMMUNICATES)))
        # A collective that would not be waits for nobody.
        without = np.zeros(len(gone), np.bool_)
        without[parts.index[(parts.kind == EDGE) & np.isin(parts.also, leaves)]] = True
        gone |= without & (job.edge_kind == TRANSFER)
    return msgspec.structs.replace(made, factor=factor, gone=gone)


def _works(job: JobGraph) -> Mask:
    """Parts that are an activity's own length, bool [p]."""
    result: Mask = (job.parts.kind == WORK) & (job.parts.leaf != STALL)
    return result


def _node(job: JobGraph) -> I64:
    """Node of each part of `WORK`; of others node 0, int64 [p]."""
    return np.where(job.parts.kind == WORK, job.parts.index, 0)


def _by_name(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:  # noqa: ARG001
    search = re.compile(change.pattern).search
    named = np.array([*(bool(search(name)) for name in job.nodes.names), False], np.bool_)[job.nodes.name]
    mine = _works(job) & named[_node(job)]
    if not mine.any():
        raise UsageError(f"{change.asked}: no kernel's name matches")
    return msgspec.structs.replace(made, factor=np.where(mine, made.factor * change.factor, made.factor))


def _in_reference_dtype(job: JobGraph, left: float) -> F64:
    """Factor on the rest of the kernels that compute in a slower dtype, float64 [p].

    What such a kernel takes beyond its peak shrinks as its peak time does: it is as efficient in either dtype.
    """
    parts = job.parts
    works = parts.kind == WORK
    ideal, slower = np.zeros(len(job.graph.work_ns)), np.zeros(len(job.graph.work_ns))
    for total, leaf in ((ideal, PRODUCTIVE), (slower, _PRECISION)):
        mine = works & (parts.leaf == leaf)
        np.add.at(total, parts.index[mine], parts.ns[mine])
    factor = np.ones(len(parts.ns))
    rest = np.flatnonzero(works & (parts.leaf != PRODUCTIVE) & (parts.leaf != _PRECISION))
    node = parts.index[rest]
    factor[rest] = (ideal + left * slower)[node] / np.maximum((ideal + slower)[node], 1.0)
    factor[rest[(slower == 0.0)[node]]] = 1.0
    return factor


def _hidden(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:
    """Nothing waits for the communication. Gathers are sent ahead instead: what is gathered (parameters) is there from
    the optimizer on, so they start as soon as their stream is free, and what needs them waits for them as it did.
    """
    wanted = np.array([at for at, name in enumerate(place.groups) if not change.group or name == change.group])
    mine = np.isin(place.group, wanted) if change.group else np.ones(len(place.group), np.bool_)
    leaves = np.array(change.leaves)
    source, target = job.graph.source, job.graph.target
    waits = np.isin(job.edge_kind, (STREAM, HELD)) & np.isin(job.edge_leaf, leaves[leaves != _GATHER]) & mine[source]
    if _GATHER in change.leaves:
        ahead = (job.edge_kind == STREAM) & ((job.nodes.leaf == _GATHER) & mine)[target] & (job.edge_leaf != _OPTIMIZER)
        waits |= ahead
    return msgspec.structs.replace(made, gone=made.gone | waits)


def _apart(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:  # noqa: ARG001
    meetings = job.meetings
    stage = place.stage[meetings.row]
    low, high = (np.full(len(meetings.leaf), value, np.int64) for value in (np.iinfo(np.int64).max, -1))
    np.minimum.at(low, meetings.meeting, stage)
    np.maximum.at(high, meetings.meeting, stage)
    between = (low != high)[meetings.meeting] & meetings.pair[meetings.meeting] & (meetings.edge >= 0)
    alone = made.alone.copy()
    alone[meetings.edge[between]] = True
    return msgspec.structs.replace(made, alone=alone)


_KINDS: dict[str, Callable[[JobGraph, Place, Scenario, Change], Scenario]] = {
    LEAF: _by_leaf,
    KERNEL: _by_name,
    RANKS: ranks,
    NOBODY_LATE: nobody_late,
    EVEN: even,
    STAGES: stages,
    APART: _apart,
    HIDDEN: _hidden,
}
