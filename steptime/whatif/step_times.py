"""Step times of a replay, and how well the unchanged graph gives back the measured ones."""

from __future__ import annotations

import numpy as np

from steptime.trace.events import I64
from steptime.whatif.job_graph import Boundaries


def step_edges(ends: Boundaries, times: I64) -> list[I64]:
    """Where the steps of each row begin and end in each scenario, int64 [steps of the row + 1, s] each.

    A step ends when the last of its nodes does, no earlier than the step before it, as when it was measured.

    Args:
        ends: where steps end.
        times: int64 [n, s].
    """
    first = np.append(0, np.cumsum(ends.steps))
    total, scenarios = int(first[-1]), times.shape[1]
    limit = np.iinfo(np.int64).min
    end = np.full((total, scenarios), limit, np.int64)
    np.maximum.at(end, first[ends.row] + ends.step, times[ends.node])
    edges = []
    for row, begin in enumerate(ends.begin_ns.tolist()):
        own = end[int(first[row]) : int(first[row + 1])]
        edges.append(np.maximum.accumulate(np.vstack([np.full((1, scenarios), begin), own]), axis=0))
    return edges


def step_lengths(ends: Boundaries, times: I64) -> I64:
    """Length of every step of every row in each scenario, int64 [sum of steps, s], by row, then step.

    Args:
        ends: where steps end.
        times: int64 [n, s].
    """
    return np.concatenate([np.diff(edges, axis=0) for edges in step_edges(ends, times)])
