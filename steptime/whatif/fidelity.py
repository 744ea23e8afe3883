"""How much of the measured steps the graph explains by itself, without what it was told of each single start.

The unchanged replay takes each lag from the recording, so it gives back the measured steps almost by construction. Here
no start keeps a delay of its own: gaps, launch latencies and waits take what is usual on their rank, and stalls are
gone. A dependency that the graph lacks then shows as steps that come out too short, a false one as steps too long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.trace.events import I64
from steptime.whatif.graph import Weights
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.job_replay import JobReplay
from steptime.whatif.rank_nodes import EDGE, GAP, HELD, LAG, STALL, STREAM, WORK
from steptime.whatif.replay import replay
from steptime.whatif.step_times import step_lengths


def modelled_error(job: JobReplay) -> float:
    """By how much counted steps differ from the unchanged replay if no start is late by more than usual, as a share."""
    shape, chosen = job.job, job.place.counted
    lengths = step_lengths(shape.ends, replay(shape.graph, job.plan, usual(shape)))[chosen, 0]
    before = step_lengths(shape.ends, job.times[:, None])[chosen, 0]
    return float(np.abs(lengths - before).sum() / max(int(before.sum()), 1))


def usual(job: JobGraph) -> Weights:
    """The graph's times with the median of its row in place of each gap, latency and wait, and without stalls."""
    graph, parts = job.graph, job.parts
    lag, work, edge = graph.lag_ns.copy(), graph.work_ns.copy(), graph.edge_lag_ns.copy()
    stalls = (parts.leaf == STALL) & (parts.kind == WORK)
    np.subtract.at(work, parts.index[stalls], parts.ns[stalls])
    on_device = job.nodes.activity[parts.index * (parts.kind == LAG)] >= 0
    for kind, column in ((LAG, lag), (EDGE, edge)):
        mine = np.flatnonzero((parts.leaf == GAP) & (parts.kind == kind) & (on_device | (kind == EDGE)))
        column[parts.index[mine]] += _medians(parts.row[mine], parts.ns[mine]) - parts.ns[mine]
    row = job.edge_row()
    for kind in (STREAM, HELD):
        mine = np.flatnonzero(job.edge_kind == kind)
        edge[mine] = _medians(row[mine], edge[mine])
    return Weights(lag_ns=lag[:, None], work_ns=work[:, None], edge_lag_ns=edge[:, None])


def _medians(group: NDArray[np.integer], values: I64) -> I64:
    """The median of each one's group, int64 [n]."""
    result = np.empty_like(values)
    for one in np.unique(group).tolist():
        mine = group == one
        result[mine] = int(np.median(values[mine]))
    return result
