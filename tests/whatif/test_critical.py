"""The critical path: worked out by hand, and on random graphs checked step by step against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steptime.errors import GraphError
from steptime.trace.events import I64
from steptime.whatif.critical import CHAIN, NOTHING, ORIGIN, causes, critical_path
from steptime.whatif.graph import NEVER, Graph
from steptime.whatif.replay import baseline, replay
from steptime.whatif.schedule import chain_of, schedule
from tests.whatif.graphs import graph_of, graphs


def instants(graph: Graph) -> I64:
    return replay(graph, schedule(graph), baseline(graph))[:, 0]


@given(graphs(), st.data())
def test_the_path_is_made_of_causes_and_adds_up(graph: Graph, data: st.DataObject) -> None:
    times = instants(graph)
    end = data.draw(st.integers(0, len(times) - 1))
    path = critical_path(graph, times, end)
    nodes, ns = path.steps(times)
    assert nodes[-1] == end
    assert ns.sum() == times[end] - path.origin_ns
    assert path.chain.tolist() == chain_of(graph)[path.first].tolist() == chain_of(graph)[path.last].tolist()
    # From the origin of its chain, every step is a lag and the node's work, and so as late as the replay says.
    reached = int(graph.origin_ns[path.chain[0]])
    assert graph.first[path.chain[0]] == path.first[0]
    for at, (first, last, edge) in enumerate(zip(path.first, path.last, path.edge, strict=True)):
        if at:
            assert (graph.source[edge], graph.target[edge]) == (path.last[at - 1], first)
            reached += graph.edge_lag_ns[edge]
        else:
            assert edge == -1
        reached += graph.work_ns[first]
        for node in range(first + 1, last + 1):
            reached += graph.lag_ns[node] + graph.work_ns[node]
        assert reached == times[last]


@given(graphs())
def test_without_the_cause_a_node_is_earlier(graph: Graph) -> None:
    # For nodes with one cause only: the lag of the edge made one shorter, the node comes one earlier.
    times = instants(graph)
    cause = causes(graph, times)
    edges = cause[cause >= 0]
    assume(len(edges))
    edge = int(edges[-1])
    target = graph.target[edge]
    slack = times[target] - graph.work_ns[target] - times[graph.source] - graph.edge_lag_ns
    assume(np.count_nonzero(slack[graph.target == target] == 0) == 1)
    graph.edge_lag_ns[edge] -= 1
    assert instants(graph)[target] == times[target] - 1


def test_a_job_whose_host_waits_for_a_kernel() -> None:
    # Launch to 10, kernel 15 to 115, the host's synchronisation returns at 117, launch to 127, kernel 132 to 142.
    graph = graph_of(
        [[(0, 10), (0, 2), (0, 10)], [(0, 100), (0, 10)]],
        [(0, 3, 5, True), (3, 1, 0, False), (2, 4, 5, True)],
    )
    times = instants(graph)
    assert times.tolist() == [10, 117, 127, 115, 142]
    path = critical_path(graph, times, 4)
    assert list(zip(path.chain.tolist(), path.first.tolist(), path.last.tolist(), path.edge.tolist(), strict=True)) == [
        (0, 0, 0, -1),
        (1, 3, 3, 0),
        (0, 1, 2, 1),
        (1, 4, 4, 2),
    ]
    nodes, ns = path.steps(times)
    assert nodes.tolist() == [0, 3, 1, 2, 4]
    assert ns.tolist() == [10, 105, 2, 10, 15]


def test_ties_go_to_the_chain_then_to_the_first_edge() -> None:
    # Node 1: both its chain and the edge allow it at 5. Node 3: two edges, both at 5. Node 2: its origin.
    graph = graph_of(
        [[(0, 5), (0, 0)], [(0, 5), (-9, 1)], [(0, 5)]],
        [(2, 1, 0, False), (0, 3, 0, False), (4, 3, 0, False)],
    )
    assert causes(graph, instants(graph)).tolist() == [ORIGIN, CHAIN, ORIGIN, 1, ORIGIN]


def test_the_origin_that_counts_is_that_of_the_chain_where_the_path_starts() -> None:
    graph = graph_of([[(0, 5)], [(0, 5)]], [(0, 1, 1, False)], [100, 30])
    path = critical_path(graph, instants(graph), 1)
    assert path.origin_ns == 100
    assert path.steps(instants(graph))[1].tolist() == [5, 6]


def test_instants_that_are_not_those_of_the_graph_are_refused() -> None:
    graph = graph_of([[(0, 5), (0, 5)], [(0, 5)]], [(0, 2, 0, False)])
    times = instants(graph)
    assert times.tolist() == [5, 10, 10]
    for node in range(3):
        early, late = times.copy(), times.copy()
        early[node] -= 1
        late[node] += 1
        with pytest.raises(GraphError, match="earlier than what it waits for"):
            critical_path(graph, early, node)
        with pytest.raises(GraphError, match=r"nothing binds node|earlier than what it waits for"):
            critical_path(graph, late, node)


def test_a_node_that_nothing_binds_has_no_path() -> None:
    graph = graph_of([[(0, 5)], [(0, 5)]], [(0, 1, NEVER, False)], [0, NEVER])
    times = instants(graph)
    assert causes(graph, times)[0] == ORIGIN
    loose = graph_of([[(0, 5), (NEVER, 5)]], [])
    assert causes(loose, instants(loose)).tolist() == [ORIGIN, NOTHING]
    with pytest.raises(GraphError, match="nothing binds node 1"):
        critical_path(loose, instants(loose), 1)
