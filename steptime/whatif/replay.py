"""The replay: every instant of the job, in many scenarios at once.

Blocks of `Schedule` are solved one after another. Inside a segment, t[i] = max(t[i-1] + lag[i], ready[i]) + work[i],
ready being what the edges allow. With c the running sum of lag + work this is t[i] - c[i] = max(t[i-1] - c[i-1],
ready[i] + work[i] - c[i]): a running maximum. Where a segment starts, c falls by `APART`, so that the whole new segment
lies above the one before it, and one running maximum serves the block.

A scenario is a column of `Weights`; `baseline` is the graph as it is, `in_scenario` the graph as it is in one of them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.errors import GraphError
from steptime.trace.events import I64
from steptime.whatif.graph import NEVER, Graph, Weights
from steptime.whatif.schedule import Schedule

#: Farther apart than the instants of a job are (2**45 ns are 9.8 hours), and no lag between neighbours in a chain binds
#: that is more negative. A block's nodes, at most 2**15, times this stay inside int64 beside `NEVER`.
APART = 1 << 45


def baseline(graph: Graph) -> Weights:
    """The graph's own times as the only scenario."""
    return Weights(
        lag_ns=graph.lag_ns[:, None],
        work_ns=graph.work_ns[:, None],
        edge_lag_ns=graph.edge_lag_ns[:, None],
    )


def in_scenario(graph: Graph, weights: Weights, scenario: int) -> Graph:
    """The graph with the times of one scenario."""
    lag_ns, work_ns, edge_lag_ns = (
        np.ascontiguousarray(part[:, scenario if part.shape[1] > 1 else 0])
        for part in (weights.lag_ns, weights.work_ns, weights.edge_lag_ns)
    )
    return msgspec.structs.replace(graph, lag_ns=lag_ns, work_ns=work_ns, edge_lag_ns=edge_lag_ns)


def replay(graph: Graph, plan: Schedule, weights: Weights) -> I64:
    """The instant of every node in every scenario, int64 [n, s], on the graph's clock.

    A node that nothing binds (its origin, or all lags that lead to it, are `NEVER`) is earlier than -`APART` / 2, by
    how much is not defined, and binds no other.

    Raises:
        GraphError: the weights are not those of this graph.
    """
    scenarios = _scenarios(graph, weights)
    count, chains = len(graph.lag_ns), len(graph.origin_ns)
    if not count:
        return np.empty((0, scenarios), np.int64)
    lag_ns = weights.lag_ns
    if lag_ns.min() < -APART:
        lag_ns = np.maximum(lag_ns, -APART)
    weights = Weights(lag_ns=lag_ns, work_ns=weights.work_ns, edge_lag_ns=weights.edge_lag_ns)
    # Rows behind the nodes stand before each chain's first node, less the lag that is added to every predecessor.
    t = np.empty((count + chains, scenarios), np.int64)
    t[count:] = graph.origin_ns[:, None] - lag_ns[np.minimum(graph.first[:-1], count - 1)]
    bounds = plan.bounds.tolist()
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        _solve(t, plan, weights, begin, end)
    return t[:count]


def _scenarios(graph: Graph, weights: Weights) -> int:
    parts = {"lags": weights.lag_ns, "work": weights.work_ns, "edge lags": weights.edge_lag_ns}
    rows = {"lags": len(graph.lag_ns), "work": len(graph.lag_ns), "edge lags": len(graph.source)}
    scenarios: int = max(part.shape[1] for part in parts.values())
    for name, part in parts.items():
        if len(part) != rows[name] or part.shape[1] not in (1, scenarios):
            raise GraphError(f"{name} of shape {part.shape} for {rows[name]} of the graph in {scenarios} scenarios")
    return scenarios


def _solve(t: I64, plan: Schedule, weights: Weights, begin: list[int], end: list[int]) -> None:
    """The instants of one block, written into t."""
    node = plan.node[begin[0] : end[0]]
    head = plan.head[begin[1] : end[1]] - begin[0]
    lag = weights.lag_ns.take(node, axis=0)
    work = weights.work_ns.take(node, axis=0)
    before = t.take(plan.before[begin[1] : end[1]], axis=0)
    alone = len(head) == len(node)
    if alone:
        ready = before + lag
    else:
        ready = np.full((len(node), t.shape[1]), NEVER, np.int64)
        ready[head] = before + lag[head]
    if begin[2] < end[2]:
        edges = slice(begin[2], end[2])
        came = t.take(plan.source[edges], axis=0) + weights.edge_lag_ns.take(plan.edge[edges], axis=0)
        if end[3] - begin[3] < end[2] - begin[2]:
            came = np.maximum.reduceat(came, plan.group[begin[3] : end[3]] - begin[2], axis=0)
        place = plan.place[begin[3] : end[3]] - begin[0]
        ready[place] = np.maximum(ready.take(place, axis=0), came)
    ready += work
    if alone:
        t[node] = ready
        return
    step = lag + work
    step[head] = -APART
    passed = np.cumsum(step, axis=0)
    ready -= passed
    t[node] = _running_maximum(ready, head) + passed


def _running_maximum(value: I64, head: I64) -> I64:
    """The running maximum of each column, begun anew at each head."""
    running: I64 = np.maximum.accumulate(value, axis=0)
    if (running[head] != value[head]).any():
        # A head that nothing binds, or a job of many hours: rare, so that segments one by one may take their time.
        for begin, end in zip(head, np.append(head[1:], len(value)), strict=True):
            np.maximum.accumulate(value[begin:end], axis=0, out=running[begin:end])
    return running
