"""The replay against its definition, computed one node at a time, and against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.errors import GraphError
from steptime.whatif.graph import NEVER, Graph, Weights
from steptime.whatif.replay import APART, baseline, in_scenario, replay
from steptime.whatif.schedule import BLOCK, schedule
from tests.whatif.graphs import graph_of, one_by_one, weighed_graphs


def replayed(graph: Graph) -> list[int]:
    times: list[int] = replay(graph, schedule(graph), baseline(graph))[:, 0].tolist()
    return times


@given(weighed_graphs())
def test_every_instant_is_as_the_definition_says(drawn: tuple[Graph, Weights]) -> None:
    graph, weights = drawn
    times = replay(graph, schedule(graph), weights)
    assert times.dtype == np.int64
    assert times.flags.c_contiguous
    for scenario in range(times.shape[1]):
        assert times[:, scenario].tolist() == one_by_one(graph, weights, scenario)
        assert replayed(in_scenario(graph, weights, scenario)) == times[:, scenario].tolist()


@given(weighed_graphs(), st.data())
def test_a_chain_may_be_loosened_in_some_scenarios(drawn: tuple[Graph, Weights], data: st.DataObject) -> None:
    graph, weights = drawn
    loose = data.draw(st.lists(st.booleans(), min_size=weights.lag_ns.size, max_size=weights.lag_ns.size))
    lag_ns = np.where(np.reshape(loose, weights.lag_ns.shape), NEVER, weights.lag_ns)
    weights = Weights(lag_ns=lag_ns, work_ns=weights.work_ns, edge_lag_ns=weights.edge_lag_ns)
    times = replay(graph, schedule(graph), weights)
    for scenario in range(times.shape[1]):
        expected = one_by_one(graph, weights, scenario)
        unbound = [ns < -APART // 2 for ns in expected]
        assert (times[:, scenario] < -APART // 2).tolist() == unbound
        assert times[~np.array(unbound), scenario].tolist() == [ns for ns in expected if ns > -APART // 2]


def test_kernels_wait_for_their_launch_and_for_the_kernel_before() -> None:
    # Launches return at 10, 20, 30; the kernels start 5 later or when the one before ends: 15-115, 115-116, 116-117.
    host = [(0, 10), (0, 10), (0, 10)]
    stream = [(0, 100), (0, 1), (0, 1)]
    graph = graph_of([host, stream], [(0, 3, 5, True), (1, 4, 5, True), (2, 5, 5, True)])
    assert replayed(graph) == [10, 20, 30, 115, 116, 117]


def test_a_synchronisation_holds_the_host_up() -> None:
    # Kernel: 10 + 5 to 115. The host may not go on before; its next launch ends at 125, the next kernel at 231.
    host = [(0, 10), (0, 0), (0, 10)]
    stream = [(0, 100), (0, 101)]
    graph = graph_of([host, stream], [(0, 3, 5, True), (3, 1, 0, False), (2, 4, 5, True)])
    assert replayed(graph) == [10, 115, 125, 115, 231]


def test_a_collective_starts_when_the_last_rank_arrives() -> None:
    # Ranks arrive at 30 and 70 (the second one's clock starts at 50); 8 ns of transfer later both have finished.
    graph = graph_of(
        [[(0, 30), (0, 0)], [(0, 20), (0, 0)], [(0, 0)]],
        [(0, 4, 0, False), (2, 4, 0, False), (4, 1, 8, False), (4, 3, 8, False)],
        [0, 50, NEVER],
    )
    assert replayed(graph) == [30, 78, 70, 78, 70]


def test_scenarios_are_replayed_side_by_side() -> None:
    # One kernel behind one launch: as measured, launched at no cost, and with the launch not needed at all.
    graph = graph_of([[(0, 10)], [(0, 100)]], [(0, 1, 5, True)])
    weights = Weights(
        lag_ns=graph.lag_ns[:, None],
        work_ns=np.array([[10, 0, 10], [100, 100, 100]]),
        edge_lag_ns=np.array([[5, 5, NEVER]]),
    )
    assert replay(graph, schedule(graph), weights).tolist() == [[10, 0, 10], [115, 105, 100]]


def test_jobs_longer_than_hours_and_heads_that_nothing_binds() -> None:
    # The first of two chains in one level runs far beyond what keeps segments apart; the second starts at 0.
    far = 10 * APART
    graph = graph_of([[(0, far), (0, far)], [(0, 1), (0, 1)], [(0, 1), (0, 1)]], [], [0, 0, NEVER])
    assert replayed(graph)[:4] == [far, 2 * far, 1, 2]
    assert max(replayed(graph)[4:]) < -APART


def test_the_lag_of_a_chains_first_node_is_not_used() -> None:
    assert replayed(graph_of([[(NEVER, 3), (1, 3)], [(77, 3)]], [])) == [3, 7, 3]


def test_a_graph_may_be_empty_and_so_may_a_chain() -> None:
    assert replayed(graph_of([], [])) == []
    assert replayed(graph_of([[], [(0, 4)], []], [], [9, 2, 9])) == [6]


def test_long_chains_are_solved_in_blocks() -> None:
    # Node i of a chain of ones ends at i + 1; every third of the other chain's nodes is launched 10 after it.
    count = 3 * BLOCK + 5
    sources = np.arange(0, count, 3)
    graph = Graph(
        first=np.array([0, count, count + len(sources)]),
        origin_ns=np.zeros(2, np.int64),
        lag_ns=np.zeros(count + len(sources), np.int64),
        work_ns=np.ones(count + len(sources), np.int64),
        source=sources,
        target=count + np.arange(len(sources)),
        edge_lag_ns=np.full(len(sources), 10),
        follows=np.ones(len(sources), np.bool_),
    )
    times = np.array(replayed(graph))
    assert (times[:count] == np.arange(count) + 1).all()
    assert (times[count:] == sources + 1 + 10 + 1).all()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 1), (1, 1), (1, 1)), "work of shape (1, 1)"),
        (((2, 1), (2, 3), (1, 2)), "edge lags of shape (1, 2)"),
        (((2, 1), (2, 1), (2, 1)), "edge lags of shape (2, 1)"),
    ],
)
def test_weights_of_another_graph_are_refused(shapes: tuple[tuple[int, int], ...], message: str) -> None:
    graph = graph_of([[(0, 10)], [(0, 100)]], [(0, 1, 5, True)])
    lag_ns, work_ns, edge_lag_ns = (np.zeros(shape, np.int64) for shape in shapes)
    with pytest.raises(GraphError, match=message.replace("(", r"\(").replace(")", r"\)")):
        replay(graph, schedule(graph), Weights(lag_ns=lag_ns, work_ns=work_ns, edge_lag_ns=edge_lag_ns))
