"""The critical path: the one sequence of instants, back from an end, of which each is what made the next one wait.

Every node has one cause: what was the last to allow it. Going from an end to its cause, and on to that one's cause,
gives a path whose parts add up exactly to the time from the origin where it starts to its end. It lies in one chain for
long stretches, so it is kept as runs of nodes, and found from run to run.
"""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.errors import GraphError
from steptime.trace.events import I64
from steptime.whatif.graph import Graph
from steptime.whatif.schedule import chain_of

#: Causes that are no edge: the node before in the chain, the chain's origin, and nothing at all.
CHAIN, ORIGIN, NOTHING = -1, -2, -3


class Path(msgspec.Struct, frozen=True):
    """r runs of nodes, in order of time: int64 [r].

    chain, first, last: the chain of each run, and its first and last node. edge: the edge from the last node of the run
    before into this one's first node, -1 for the first run, which starts at its chain's origin, origin_ns.
    """

    chain: I64
    first: I64
    last: I64
    edge: I64
    origin_ns: int

    def steps(self, times: I64) -> tuple[I64, I64]:
        """All nodes of the path in order, and the ns from each one's cause to it, int64 [p] each.

        A node's ns are its work and the lag before it (of the edge, if it is the first of a run): negative only if the
        lag is. Their sum is times[end] - origin_ns.

        Args:
            times: int64 [n], those for which the path was found.
        """
        size = self.last - self.first + 1
        done = np.cumsum(size)
        node = np.repeat(self.first - done + size, size) + np.arange(done[-1])
        return node, np.diff(times[node], prepend=self.origin_ns)


def causes(graph: Graph, times: I64) -> I64:
    """What bound each node, int64 [n]: an edge, or `CHAIN`, `ORIGIN` or `NOTHING`.

    The chain is named before an edge that binds as much, and the first edge before others.

    Args:
        graph: with the weights of the scenario (`steptime.whatif.replay.in_scenario`).
        times: int64 [n], the instants of that scenario.

    Raises:
        GraphError: a node is earlier than what it waits for: these are not the instants of this graph.
    """
    allowed = times - graph.work_ns
    first = graph.first[:-1][np.diff(graph.first) > 0]
    by_chain = np.append(0, times[:-1])[: len(times)] + graph.lag_ns
    by_chain[first] = graph.origin_ns[np.diff(graph.first) > 0]
    by_edge = times[graph.source] + graph.edge_lag_ns
    early = np.append(np.flatnonzero(allowed < by_chain), graph.target[allowed[graph.target] < by_edge])
    if len(early):
        raise GraphError(f"node {early[0]} is earlier than what it waits for: not the instants of this graph")
    cause = np.full(len(times), NOTHING, np.int64)
    # Of several assignments to one node the last one stays.
    binding = np.flatnonzero(allowed[graph.target] == by_edge)[::-1]
    cause[graph.target[binding]] = binding
    held = allowed == by_chain
    cause[held] = CHAIN
    cause[first[held[first]]] = ORIGIN
    return cause


def critical_path(graph: Graph, times: I64, end_node: int) -> Path:
    """The path that made `end_node` as late as it is, from a chain's origin.

    Args:
        graph: with the weights of the scenario (`steptime.whatif.replay.in_scenario`).
        times: int64 [n], the instants of that scenario.
        end_node: where the path ends.

    Raises:
        GraphError: these are not the instants of this graph, or nothing binds a node of the path.
    """
    cause = causes(graph, times)
    run_start = np.maximum.accumulate(np.where(cause == CHAIN, 0, np.arange(len(cause))))
    runs: list[tuple[int, int, int]] = []
    node = end_node
    while True:
        start = int(run_start[node])
        edge = int(cause[start])
        if edge == NOTHING:
            raise GraphError(f"nothing binds node {start}, so that node {end_node} has no critical path")
        runs.append((start, node, max(edge, -1)))
        if edge == ORIGIN:
            break
        node = int(graph.source[edge])
    first, last, edges = np.array(runs[::-1], np.int64).T
    chain = chain_of(graph)[first]
    return Path(chain=chain, first=first, last=last, edge=edges, origin_ns=int(graph.origin_ns[chain[0]]))
