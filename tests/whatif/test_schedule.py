"""The plan of a replay: which nodes become computable together, how many levels that takes, and what has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from steptime.errors import GraphError
from steptime.whatif.graph import Graph
from steptime.whatif.replay import baseline, replay
from steptime.whatif.schedule import BLOCK, schedule
from tests.whatif.graphs import graph_of, graphs


def host_and_stream(launches: int, waits: int) -> Graph:
    """One host thread and one stream; the thread waits for the stream so many times, evenly spaced."""
    at = np.linspace(0, launches, waits + 2).astype(np.int64)[1:-1]
    host = np.arange(launches)
    return Graph(
        first=np.array([0, launches, 2 * launches]),
        origin_ns=np.zeros(2, np.int64),
        lag_ns=np.zeros(2 * launches, np.int64),
        work_ns=np.ones(2 * launches, np.int64),
        source=np.append(host, launches + at - 1),
        target=np.append(launches + host, at),
        edge_lag_ns=np.zeros(launches + waits, np.int64),
        follows=np.arange(launches + waits) < launches,
    )


@given(graphs())
def test_every_node_is_planned_after_all_that_it_waits_for(graph: Graph) -> None:
    plan = schedule(graph)
    count = len(graph.lag_ns)
    assert sorted(plan.node.tolist()) == list(range(count))
    place = np.argsort(plan.node)
    block = np.searchsorted(plan.bounds[:, 0], place, side="right")
    assert (block[graph.source] < block[graph.target]).all()
    heads = set(plan.node[plan.head].tolist())
    starts = set(graph.first[:-1].tolist())
    for node in set(range(count)) - starts:
        assert block[node - 1] < block[node] if node in heads else place[node - 1] == place[node] - 1


def test_a_host_thread_and_its_stream_are_two_segments() -> None:
    assert schedule(host_and_stream(BLOCK, 0)).levels == 2


def test_a_hundred_thousand_launches_take_a_handful_of_levels() -> None:
    # 7 parts of 2**14 nodes at most in a chain, and the stream one behind the host.
    assert schedule(host_and_stream(100_000, 0)).levels == 8


def test_each_wait_of_the_host_costs_two_levels() -> None:
    assert schedule(host_and_stream(1000, 9)).levels == 20


def test_launches_from_two_threads_into_one_stream() -> None:
    # Neither thread waits for anything: the stream is one segment for each thread's first launch.
    graph = graph_of([[(0, 3)] * 2, [(0, 4)] * 2, [(0, 1)] * 4], [(0, 4, 0, True), (2, 5, 0, True), (1, 6, 0, True)])
    assert schedule(graph).levels == 3
    assert replay(graph, schedule(graph), baseline(graph))[:, 0].tolist() == [3, 6, 4, 8, 4, 5, 7, 8]


def test_launches_that_launch_further_than_usual() -> None:
    # Each chain launches the next one, twenty deep: node 0 of chain d ends at d + 1. A node of 50 more waits for the
    # last of these, and the first chain's node 1 for it: node 1 of chain d ends at 20 + 50 + d + 1. That the first
    # chain is cut there cuts the next one, and so on to the last, which would wait for itself if it were one segment.
    deep = 20
    edges = [(2 * chain + k, 2 * chain + 2 + k, 0, True) for chain in range(deep - 1) for k in range(2)]
    edges += [(2 * deep - 2, 2 * deep, 0, False), (2 * deep, 1, 0, False)]
    graph = graph_of([[(0, 1), (0, 1)]] * deep + [[(0, 50)]], edges)
    times = replay(graph, schedule(graph), baseline(graph))[:, 0]
    assert times.tolist() == [70 * k + chain + 1 for chain in range(deep) for k in range(2)] + [70]


def test_a_level_of_many_nodes_is_solved_in_parts() -> None:
    chains, length = 40, BLOCK // 8
    count = chains * length
    graph = Graph(
        first=np.arange(0, count + 1, length),
        origin_ns=np.zeros(chains, np.int64),
        lag_ns=np.zeros(count, np.int64),
        work_ns=np.ones(count, np.int64),
        source=np.zeros(0, np.int64),
        target=np.zeros(0, np.int64),
        edge_lag_ns=np.zeros(0, np.int64),
        follows=np.zeros(0, np.bool_),
    )
    plan = schedule(graph)
    assert plan.levels == 1
    assert np.diff(plan.bounds[:, 0]).tolist() == [BLOCK] * 5
    times = replay(graph, plan, baseline(graph))[:, 0]
    assert (times.reshape(chains, length) == np.arange(1, length + 1)).all()


def test_a_circle_is_an_error_that_names_its_nodes() -> None:
    # Nodes 1 and 4 wait for each other through 3, which follows 1; nodes 0 and 2 are before the circle, 5 behind it.
    graph = graph_of(
        [[(0, 1), (0, 1)], [(0, 1), (0, 1), (0, 1)], [(0, 1)]],
        [(1, 3, 0, False), (4, 1, 0, False), (4, 5, 0, False)],
    )
    with pytest.raises(GraphError, match="circle") as caught:
        schedule(graph)
    assert "node 3 (chain 1) waits for node 1 (chain 0)" in str(caught.value)
    assert "node 1 (chain 0) waits for node 4 (chain 1)" in str(caught.value)
    assert "node 5" not in str(caught.value)


@pytest.mark.parametrize("follows", [False, True])
def test_launches_in_a_circle_are_one_too(follows: bool) -> None:
    edges = [(2 * k + 1, (2 * k + 2) % 24, 0, follows) for k in range(12)]
    with pytest.raises(GraphError, match=r"circle.* and 4 more$"):
        schedule(graph_of([[(0, 1), (0, 1)]] * 12, edges))


@pytest.mark.parametrize(("source", "target"), [(1, 0), (2, 0), (1, 1)])
def test_a_node_cannot_wait_for_its_own_successor(source: int, target: int) -> None:
    for follows in (False, True):
        with pytest.raises(GraphError, match=rf"node {target} \(chain 0\) waits for node {source} \(chain 0\)"):
            schedule(graph_of([[(0, 1)] * 3], [(source, target, 0, follows)]))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("first", [0, 2], "chains of the job's graph do not hold its 3 nodes"),
        ("first", [0, 2, 2], "chains of the job's graph do not hold its 3 nodes"),
        ("first", [0, 4, 3], "chains of the job's graph do not hold its 3 nodes"),
        ("work_ns", [1, 1], "in order"),
        ("target", [], "not as many targets"),
        ("target", [3], "ends at node 3, but there are 3"),
        ("source", [-1], "ends at node -1"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(field: str, value: list[int], message: str) -> None:
    graph = graph_of([[(0, 1), (0, 1)], [(0, 1)]], [(0, 2, 0, True)])
    parts = {name: getattr(graph, name) for name in graph.__struct_fields__}
    with pytest.raises(GraphError, match=message):
        schedule(Graph(**parts | {field: np.array(value, np.int64)}))
