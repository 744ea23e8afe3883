"""The critical path as pieces of time, each with the leaf that it is charged to."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.trace.events import I64
from steptime.whatif.critical import Path
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.rank_nodes import EDGE, GAP, HELD, LAG, TRANSFER, WORK

Mask = NDArray[np.bool_]

UNEXPLAINED = LEAF_CODE["unexplained/unexplained"]


class PathPieces(msgspec.Struct, frozen=True):
    """q pieces that tile the path in order of time.

    node int64 [q]: the node that they lead to; leaf int16 [q]; start_ns, end_ns int64 [q] on the graph's clock;
    transfer bool [q]: after a meeting; recorded bool [q]: False only for what comes before the path's first node.
    """

    node: I64
    leaf: NDArray[np.int16]
    start_ns: I64
    end_ns: I64
    transfer: Mask
    recorded: Mask


def path_pieces(job: JobGraph, times: I64, path: Path, since_ns: int) -> PathPieces:
    """Split the path at every change of leaf.

    Where a node came a little before what it waited for (clocks are good to microseconds), what went on beyond it was
    not waited for and is left out, so that the pieces tile.

    Args:
        job: the graph as it was replayed, unchanged.
        times: int64 [n].
        path: the critical path for these times.
        since_ns: from where on the pieces must cover; if the path starts later, one piece leads up to it.
    """
    node, ns = path.steps(times)
    edge, leads = _came_by(path, len(node))
    work = job.graph.work_ns[node]
    nodes = len(job.graph.lag_ns)
    along = np.where(leads, _key(LAG, node, nodes), -1)
    lag = _parts_of(job, np.where(edge >= 0, _key(EDGE, edge, nodes), along))
    done = _parts_of(job, _key(WORK, node, nodes))
    at = np.arange(len(node))
    rests = (_rest(ns - work, lag), _rest(work, done))
    source = np.concatenate([at, lag[0], at, done[0]])
    leaf = np.concatenate([_rest_leaf(job, edge, leads), lag[1], np.full(len(at), UNEXPLAINED, np.int16), done[1]])
    length = np.concatenate([rests[0], lag[2], rests[1], done[2]])
    # Lag before work, and of each first what no part explains.
    turn = np.repeat(np.arange(4), [len(at), len(lag[0]), len(at), len(done[0])])
    order = np.lexsort((turn, source))
    order = order[length[order] != 0]
    source, leaf, turn = source[order], leaf[order], turn[order]
    end = path.origin_ns + np.cumsum(length[order])
    end = np.append(path.origin_ns, end)
    end = np.minimum.accumulate(end[::-1])[::-1]
    start = np.append(min(since_ns, int(end[0])), end[:-1])
    came = job.edge_kind[edge[source]] if len(job.edge_kind) else np.full(len(source), -1, np.int8)
    transfer = (edge[source] >= 0) & (turn < 2) & (came == TRANSFER)
    return PathPieces(
        node=np.append(node[0], node[source]),
        leaf=np.append(np.int16(UNEXPLAINED), leaf).astype(np.int16),
        start_ns=start,
        end_ns=end,
        transfer=np.append(False, transfer),
        recorded=np.append(False, np.ones(len(source), np.bool_)),
    )


def _came_by(path: Path, count: int) -> tuple[I64, Mask]:
    """Edge by which each of the path's nodes was reached, -1 without one, and whether it was along its chain."""
    size = path.last - path.first + 1
    head = np.cumsum(size) - size
    edge = np.full(count, -1, np.int64)
    edge[head] = path.edge
    leads = np.ones(count, np.bool_)
    leads[head] = False
    return edge, leads


def _key(kind: int, index: I64, nodes: int) -> I64:
    """One number for each lag, work and edge of the graph."""
    return index + {LAG: 0, WORK: nodes, EDGE: 2 * nodes}[kind]


def _parts_of(job: JobGraph, wanted: I64) -> tuple[I64, NDArray[np.int16], I64]:
    """Parts of the wanted lags, work and edges (-1: none): place in `wanted`, leaf, ns, in the order of `Parts`."""
    parts, nodes = job.parts, len(job.graph.lag_ns)
    asked = np.zeros(2 * nodes + len(job.graph.source), np.bool_)
    asked[wanted[wanted >= 0]] = True
    key = parts.index + np.array([0, nodes, 2 * nodes])[parts.kind]
    mine = np.flatnonzero(asked[key])
    mine = mine[np.argsort(key[mine], kind="stable")]
    low, high = (np.searchsorted(key[mine], wanted, side=side) for side in ("left", "right"))
    count = high - low
    place = np.repeat(np.arange(len(wanted)), count)
    part = mine[low[place] + np.arange(len(place)) - (np.cumsum(count) - count)[place]]
    return place, parts.leaf[part], parts.ns[part]


def _rest(ns: I64, parts: tuple[I64, NDArray[np.int16], I64]) -> I64:
    """What the parts of each lag or work leave of it, int64 [p]."""
    rest = ns.copy()
    np.subtract.at(rest, parts[0], parts[2])
    return rest


def _rest_leaf(job: JobGraph, edge: I64, leads: Mask) -> NDArray[np.int16]:
    """What the rest of each lag is charged to: a gap on the device, or what a call that waits is for."""
    if not len(job.edge_kind):
        return np.where(leads, GAP, UNEXPLAINED).astype(np.int16)
    held = job.edge_kind[edge] == HELD
    by_edge = np.where(held, job.edge_leaf[edge], GAP)
    return np.where(edge >= 0, by_edge, np.where(leads, GAP, UNEXPLAINED)).astype(np.int16)
