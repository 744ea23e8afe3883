"""In which order the instants of a graph can be computed, many at a time.

Chains are cut into *segments*, all nodes of which become computable together: a node starts one if it is its chain's
first, if a join ends in it, or if it was launched from a later segment than all before it in its chain (a launch from
the same segment is computable already: a million kernels behind one host thread are one segment). Segments form a
graph of their own, whose topological levels (Kahn's algorithm, a whole frontier at once) are solved one after another;
`steptime.whatif.replay` does so. All of this depends on the topology only: one plan serves all weights.

Any order of launches gives right results; the order that `Graph` asks for is what keeps the levels few.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.errors import GraphError
from steptime.trace.events import I64
from steptime.whatif.graph import Graph

#: A segment has at most so many nodes, a block less than twice as many, which bounds the memory that solving one takes
#: and the sums in it (`steptime.whatif.replay.APART`). Between 2**12 and 2**16 the time is the same.
BLOCK = 1 << 14
#: Chains that launch into chains that launch: so deep, segments are kept whole; deeper, launches are taken as joins.
_LAUNCH_DEPTH = 8
#: Edges of a circle that its error names.
_SHOWN = 8


class Schedule(msgspec.Struct, frozen=True):
    """A plan of b blocks, solved in order; the nodes of a block depend on earlier blocks and on their own segment only.

    node int64 [n]: nodes in the order of solving. head int64 [h]: places in `node` where segments start; before int64
    [h]: the node before each head, or n + chain for a chain's first. edge int64 [e]: edges by their target's place;
    source int64 [e]: where each of them starts. group int64 [g]: places in `edge` where the edges of a target start;
    place int64 [g]: that target's place in `node`. bounds int64 [b+1, 4]: where each block starts in node, head, edge,
    group. levels: how many levels the blocks lie in.
    """

    node: I64
    head: I64
    before: I64
    edge: I64
    source: I64
    group: I64
    place: I64
    bounds: I64
    levels: int


def chain_of(graph: Graph) -> I64:
    """The chain of each node, int64 [n]."""
    return np.repeat(np.arange(len(graph.origin_ns)), np.diff(graph.first))


def schedule(graph: Graph) -> Schedule:
    """The plan for a graph.

    Raises:
        GraphError: its arrays do not fit together, or nodes wait for each other in a circle; both name the nodes.
    """
    _check(graph)
    count = len(graph.lag_ns)
    chain = chain_of(graph)
    cut, binding = _cuts(graph, chain)
    segment = np.cumsum(cut) - 1
    start = np.flatnonzero(cut)
    later = start[chain[start] == chain[start - 1]] if count else start
    later = later[later > 0]
    level = _levels(
        np.concatenate((later - 1, graph.source[binding])),
        np.concatenate((later, graph.target[binding])),
        segment,
        chain,
    )
    order = np.argsort(level, kind="stable")
    size = np.diff(np.append(start, count))[order]
    head = np.cumsum(size) - size
    node = np.repeat(start[order] - head, size) + np.arange(count)
    place_of = np.empty(count, np.int64)
    place_of[node] = np.arange(count)
    edge = np.argsort(place_of[graph.target], kind="stable")
    target = place_of[graph.target[edge]]
    group = np.flatnonzero(_changes(target))
    first_of_chain = np.zeros(count, np.bool_)
    first_of_chain[graph.first[:-1][np.diff(graph.first) > 0]] = True
    starts = start[order]
    return Schedule(
        node=node,
        head=head,
        before=np.where(first_of_chain[starts], count + chain[starts], starts - 1),
        edge=edge,
        source=graph.source[edge],
        group=group,
        place=target[group],
        bounds=_bounds(level[order], head, target, target[group], count),
        levels=int(level.max(initial=-1)) + 1,
    )


def _changes(values: I64) -> NDArray[np.bool_]:
    """Where a value differs from the one before it; true for the first."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _check(graph: Graph) -> None:
    nodes, edges = len(graph.lag_ns), len(graph.source)
    if len(graph.first) != len(graph.origin_ns) + 1 or graph.first[0] != 0 or graph.first[-1] != nodes:
        raise GraphError(f"the chains of the job's graph do not hold its {nodes} nodes")
    if (np.diff(graph.first) < 0).any() or len(graph.work_ns) != nodes:
        raise GraphError(f"the chains of the job's graph do not hold its {nodes} nodes in order")
    if not len(graph.target) == len(graph.edge_lag_ns) == len(graph.follows) == edges:
        raise GraphError(f"the job's graph has {edges} sources of edges, but not as many targets, lags or kinds")
    ends = np.concatenate((graph.source, graph.target))
    outside = ends[(ends < 0) | (ends >= nodes)]
    if len(outside):
        raise GraphError(f"an edge of the job's graph ends at node {outside[0]}, but there are {nodes}")


def _cuts(graph: Graph, chain: I64) -> tuple[NDArray[np.bool_], I64]:
    """Which nodes start a segment, bool [n], and the edges that their segments wait for."""
    cut = np.zeros(len(chain), np.bool_)
    cut[(np.arange(len(chain)) - graph.first[chain]) % BLOCK == 0] = True
    within = chain[graph.source] == chain[graph.target]
    joins = np.flatnonzero(~graph.follows | within)
    cut[graph.target[joins]] = True
    launches = np.flatnonzero(graph.follows & ~within)
    pair = chain[graph.target[launches]] * len(graph.origin_ns) + chain[graph.source[launches]]
    order = np.lexsort((graph.target[launches], pair))
    launches, pair = launches[order], pair[order]
    source, target = graph.source[launches], graph.target[launches]
    fresh_pair = _changes(pair)
    for _ in range(_LAUNCH_DEPTH):
        segment = np.cumsum(cut)
        # The running maximum starts anew with each pair of chains: all segments of a pair lie above the last one's.
        reached = np.maximum.accumulate(segment[source] + np.cumsum(fresh_pair) * (len(chain) + 1))
        later = _changes(reached)
        if cut[target[later]].all():
            return cut, np.append(joins, launches[later])
        cut[target[later]] = True
    cut[target] = True
    return cut, np.append(joins, launches)


def _levels(source: I64, target: I64, segment: I64, chain: I64) -> I64:
    """The topological level of each segment, given what they wait for: edges between nodes."""
    count = int(segment[-1]) + 1 if len(segment) else 0
    before, after = segment[source], segment[target]
    order = np.argsort(before, kind="stable")
    out = after[order]
    first = np.searchsorted(before[order], np.arange(count + 1))
    waits_for = np.bincount(after, minlength=count)
    level = np.full(count, -1, np.int64)
    frontier = np.flatnonzero(waits_for == 0)
    at = 0
    while len(frontier):
        level[frontier] = at
        begin = first[frontier]
        size = first[frontier + 1] - begin
        done = np.cumsum(size)
        reached = out[np.repeat(begin - done + size, size) + np.arange(done[-1])]
        np.subtract.at(waits_for, reached, 1)
        frontier = np.unique(reached[waits_for[reached] == 0])
        at += 1
    if (level < 0).any():
        raise GraphError(_circle(source, target, segment, chain, level < 0))
    return level


def _circle(source: I64, target: I64, segment: I64, chain: I64, stuck: NDArray[np.bool_]) -> str:
    """Every segment that is stuck waits for another one; going back from one to the next must close a circle."""
    both = np.flatnonzero(stuck[segment[source]] & stuck[segment[target]])
    cause = dict(zip(segment[target[both]].tolist(), both.tolist(), strict=True))
    at = int(np.flatnonzero(stuck)[0])
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = cause[at]
        at = int(segment[source[cause[at]]])
    edges = list(seen.values())[list(seen).index(at) :]
    waits = [
        f"node {target[edge]} (chain {chain[target[edge]]}) waits for node {source[edge]} (chain {chain[source[edge]]})"
        for edge in edges[:_SHOWN]
    ]
    more = f", and {len(edges) - _SHOWN} more" if len(edges) > _SHOWN else ""
    return f"nodes of the job's graph wait for each other in a circle: {', '.join(waits)}{more}"


def _bounds(level: I64, head: I64, target: I64, group_target: I64, count: int) -> I64:
    """Blocks: the levels, long ones in parts of about `BLOCK` nodes; a segment is never divided."""
    starts = np.flatnonzero(_changes(level))
    size = np.diff(np.append(starts, len(level)))
    part = (head - np.repeat(head[starts], size)) // BLOCK
    starts = np.flatnonzero(_changes(level) | _changes(part))
    node = np.append(head[starts], count)
    return np.stack(
        (
            node,
            np.append(starts, len(head)),
            np.searchsorted(target, node),
            np.searchsorted(group_target, node),
        ),
        axis=1,
    )
