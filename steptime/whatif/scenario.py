"""A scenario: factors on the parts of a job's times, and edges that bind no longer; and the changes that make one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAVES
from steptime.trace.events import I64
from steptime.whatif.graph import NEVER, Weights
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.rank_nodes import EDGE, LAG, PRODUCTIVE, WORK

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Kinds of changes, see `Change`.
LEAF, KERNEL, RANKS, NOBODY_LATE, EVEN, STAGES, APART, HIDDEN = (
    "leaf",
    "kernel",
    "ranks",
    "nobody late",
    "even",
    "stages",
    "apart",
    "hidden",
)

_SLICE_OF = np.array([leaf.slice for leaf in LEAVES])
#: Codes of communication's leaves, and of computing's, with `PRODUCTIVE`.
COMMUNICATES = np.flatnonzero(_SLICE_OF == "exposed_comm")
COMPUTES = np.append(np.flatnonzero(np.isin(_SLICE_OF, ["kernels", "recompute"])), PRODUCTIVE)


class Change(msgspec.Struct, frozen=True):
    """One change. asked: how the user calls it.

    kind: ``leaf`` (times of `leaves` by `factor`; at 0 their calls wait for nothing; of kernels what is beyond useful
    work, or with `whole` all), ``kernel`` (what is called as `pattern` says, by `factor`), ``ranks`` (`ranks` as fast
    as their peers), ``nobody late`` (every rank at most as slow as its peers), ``even`` (every rank and step as the
    median), ``stages`` (computing evenly spread over the stages), ``apart`` (no stage waits for a message of another),
    ``hidden`` (nothing on the device waits for communication of `leaves`, gathers are sent ahead; only in a group
    called `group` if that is given). leaves: codes.
    """

    asked: str
    kind: str
    leaves: tuple[int, ...] = ()
    factor: float = 0.0
    ranks: tuple[int, ...] = ()
    group: str = ""
    whole: bool = False
    pattern: str = ""


class Place(msgspec.Struct, frozen=True):
    """Where the rows of a job stand: rank, stage int64 [r] (stage 0 without a pipeline).

    Of each step, by row, then step: column int64, its number among all of the job, so that equal steps of two rows are
    in one column; counted bool. chunk int64 [n]: of each node, see `steptime.whatif.chunks`.
    group int64 [n]: of each node that communicates, an index into `groups`, their names; -1 for all others.
    """

    rank: I64
    stage: I64
    column: I64
    counted: Mask
    chunk: I64
    group: I64
    groups: list[str]


class Scenario(msgspec.Struct, frozen=True):
    """factor float64 [p] on the parts; gone bool [e]: edges that bind no longer; alone bool [e]: transfers that take as
    long, but wait for nobody."""

    factor: F64
    gone: Mask
    alone: Mask


def untouched(job: JobGraph) -> Scenario:
    """The job as it was."""
    edges = len(job.graph.source)
    return Scenario(np.ones(len(job.parts.ns)), np.zeros(edges, np.bool_), np.zeros(edges, np.bool_))


def combined(several: Sequence[Scenario]) -> Scenario:
    """Several scenarios of one job at once: their factors multiply."""
    factor, gone, alone = several[0].factor, several[0].gone, several[0].alone
    for one in several[1:]:
        factor, gone, alone = factor * one.factor, gone | one.gone, alone | one.alone
    return Scenario(factor, gone, alone)


def weights(job: JobGraph, scenarios: Sequence[Scenario]) -> Weights:
    """The graph's times in each scenario."""
    graph, parts = job.graph, job.parts
    lag, work, edge = (
        np.repeat(column[:, None], len(scenarios), axis=1)
        for column in (graph.lag_ns, graph.work_ns, graph.edge_lag_ns)
    )
    for at, one in enumerate(scenarios):
        changed = np.flatnonzero(one.factor != 1.0)
        saved = parts.ns[changed] - np.rint(parts.ns[changed] * one.factor[changed]).astype(np.int64)
        for kind, column in ((LAG, lag), (WORK, work), (EDGE, edge)):
            mine = parts.kind[changed] == kind
            np.subtract.at(column[:, at], parts.index[changed[mine]], saved[mine])
        alone = np.flatnonzero(one.alone)
        np.maximum.at(lag[:, at], graph.target[alone], edge[alone, at])
        edge[one.gone | one.alone, at] = NEVER
    return Weights(lag_ns=lag, work_ns=work, edge_lag_ns=edge)
