"""Small graphs for tests: written down by hand, or drawn at random, and a replay of them one node at a time."""

from __future__ import annotations

from graphlib import TopologicalSorter

import numpy as np
from hypothesis import strategies as st

from steptime.trace.events import I64
from steptime.whatif.graph import NEVER, Graph, Weights

Edge = tuple[int, int, int, bool]
"""Source, target, lag, whether it is a launch."""


def graph_of(chains: list[list[tuple[int, int]]], edges: list[Edge], origins: list[int] | None = None) -> Graph:
    """A graph of chains of (lag, work)."""
    nodes = [node for chain in chains for node in chain]
    first = np.cumsum([0, *(len(chain) for chain in chains)])
    return Graph(
        first=first,
        origin_ns=np.array(origins or [0] * len(chains), np.int64),
        lag_ns=np.array([lag for lag, _ in nodes], np.int64),
        work_ns=np.array([work for _, work in nodes], np.int64),
        source=np.array([edge[0] for edge in edges], np.int64),
        target=np.array([edge[1] for edge in edges], np.int64),
        edge_lag_ns=np.array([edge[2] for edge in edges], np.int64),
        follows=np.array([edge[3] for edge in edges], np.bool_),
    )


def one_by_one(graph: Graph, weights: Weights, scenario: int) -> list[int]:
    """The definition in `steptime.whatif.graph`, node by node in the order of the standard library's sorter."""

    def column(part: I64) -> list[int]:
        return [int(row[scenario if part.shape[1] > 1 else 0]) for row in part]

    lag, work, edge_lag = column(weights.lag_ns), column(weights.work_ns), column(weights.edge_lag_ns)
    origin = {
        int(begin): int(ns)
        for begin, end, ns in zip(graph.first[:-1], graph.first[1:], graph.origin_ns, strict=True)
        if begin < end
    }
    incoming: dict[int, list[tuple[int, int]]] = {node: [] for node in range(len(lag))}
    for source, target, ns in zip(graph.source.tolist(), graph.target.tolist(), edge_lag, strict=True):
        incoming[target].append((source, ns))
    for node in range(len(lag)):
        if node not in origin:
            incoming[node].append((node - 1, lag[node]))
    t: dict[int, int] = {}
    for node in TopologicalSorter({node: [s for s, _ in came] for node, came in incoming.items()}).static_order():
        t[node] = max([t[s] + ns for s, ns in incoming[node]] + [origin.get(node, 4 * NEVER)]) + work[node]
    return [t[node] for node in range(len(lag))]


_NS = st.integers(0, 1000)
_LAG = st.integers(-50, 300)
_EDGE_LAG = st.one_of(st.integers(-500, 500), st.just(NEVER))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph without circles: nodes happen in some order, and edges lead from earlier to later ones."""
    chain_count = draw(st.integers(1, 5))
    happened = draw(st.lists(st.integers(0, chain_count - 1), min_size=1, max_size=40))
    first = np.cumsum([0, *(happened.count(chain) for chain in range(chain_count))])
    seen = [0] * chain_count
    order: list[int] = []
    for chain in happened:
        order.append(int(first[chain]) + seen[chain])
        seen[chain] += 1
    places = st.integers(0, len(order) - 1)
    pairs = draw(st.lists(st.tuples(places, places), max_size=60))
    edges = [
        (order[min(pair)], order[max(pair)], draw(_EDGE_LAG), draw(st.booleans()))
        for pair in pairs
        if len({*pair}) == 2
    ]
    chains = [[(draw(_LAG), draw(_NS)) for _ in range(happened.count(chain))] for chain in range(chain_count)]
    return graph_of(chains, edges, [draw(_NS) for _ in range(chain_count)])


@st.composite
def weighed_graphs(draw: st.DrawFn) -> tuple[Graph, Weights]:
    """A graph and times for it in some scenarios; what does not change may be given once."""
    graph = draw(graphs())
    scenarios = draw(st.integers(1, 4))

    def part(rows: int, values: st.SearchStrategy[int]) -> I64:
        columns = draw(st.sampled_from([1, scenarios]))
        cells = draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
        return np.array(cells, np.int64).reshape(rows, columns)

    nodes, edges = len(graph.lag_ns), len(graph.source)
    return graph, Weights(lag_ns=part(nodes, _LAG), work_ns=part(nodes, _NS), edge_lag_ns=part(edges, _EDGE_LAG))
