"""Replays of an op-level job in which some ops keep the times that were recorded and all others take other ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from steptime.trace.events import I64
from steptime.whatif.graph import Graph, Weights
from steptime.whatif.oplevel.dependencies import step_graph
from steptime.whatif.oplevel.job import Job
from steptime.whatif.oplevel.work import Work
from steptime.whatif.replay import replay
from steptime.whatif.schedule import Schedule, schedule

Mask = NDArray[np.bool_]

#: Times held at once in a replay: 2**23 are 64 MiB an array, of which the replay has a few.
_AT_ONCE = 1 << 23


class Replayer:
    """The job's steps, to be replayed with any work times; steps are columns, since each of them begins at 0."""

    def __init__(self, job: Job, work: Work) -> None:
        self._graph: Graph = step_graph(job, work.group)
        self._plan: Schedule = schedule(self._graph)
        self._traced_ns = work.traced_ns
        self._ideal_ns: I64 = np.tile(work.ideal_ns[job.op], job.layout.dp_size)[:, None]

    def keeping(self, masks: Iterable[Mask]) -> I64:
        """The step times if the ops of a mask (bool [d*k]) keep their times and all others are ideal, int64 [m, s]."""
        return self.step_times(np.where(mask[:, None], self._traced_ns, self._ideal_ns) for mask in masks)

    def ideal(self) -> int:
        """The length of a step in which every op takes its ideal time: the same for each step."""
        return int(self.step_times([self._ideal_ns])[0, 0])

    def step_times(self, work_ns: Iterable[I64]) -> I64:
        """The step times with each of these work times (int64 [d*k, s], all of one shape), int64 [m, s]."""
        found: list[I64] = []
        batch: list[I64] = []
        for times in work_ns:
            batch.append(times)
            if (len(batch) + 1) * times.size > _AT_ONCE:
                found.append(self._replayed(batch))
                batch = []
        if batch:
            found.append(self._replayed(batch))
        return np.concatenate(found)

    def _replayed(self, batch: list[I64]) -> I64:
        ops, columns = batch[0].shape
        graph = self._graph
        work_ns = np.zeros((len(graph.work_ns), columns * len(batch)), np.int64)
        np.concatenate(batch, axis=1, out=work_ns[:ops])
        weights = Weights(graph.lag_ns[:, None], work_ns, graph.edge_lag_ns[:, None])
        ends_ns = replay(graph, self._plan, weights)[:ops]
        # A step begins at 0, with the parameters' all-gather, which waits for nothing.
        step_ns: I64 = ends_ns.max(axis=0).reshape(len(batch), columns)
        return step_ns
