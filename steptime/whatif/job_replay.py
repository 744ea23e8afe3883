"""A job ready to be replayed with changes: its graph, its plan, its counted steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime import model
from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Counted
from steptime.trace.events import I64
from steptime.whatif.changes import scenario
from steptime.whatif.graph import Weights
from steptime.whatif.job_graph import JobGraph, job_graph
from steptime.whatif.replay import baseline, replay
from steptime.whatif.scenario import Change, Place, weights
from steptime.whatif.schedule import schedule
from steptime.whatif.step_times import step_lengths

#: Scenarios replayed at once: more need more memory, and gain nothing.
AT_ONCE = 12


class JobReplay:
    """The job as it was, and as it would be.

    job: its graph; place: what its rows are. times int64 [n]: the replay of the unchanged graph. step_ns: mean length
    of a counted step in it, measured_ns: as it was measured; error_share: by how much single steps differ.
    """

    def __init__(self, counted: Counted, alignment: Alignment | None, pipeline: model.Pipeline | None) -> None:
        self.job: JobGraph = job_graph(counted.rows, alignment)
        self.plan = schedule(self.job.graph)
        self.place = _place(counted, pipeline)
        self.times: I64 = replay(self.job.graph, self.plan, baseline(self.job.graph))[:, 0]
        lengths = step_lengths(self.job.ends, self.times[:, None])[:, 0]
        chosen = self.place.counted
        measured = np.array([step.dur_ns for row in counted.rows for step in row.timeline.steps], np.int64)
        self.step_ns = float(lengths[chosen].mean())
        self.measured_ns = float(measured[chosen].mean())
        self.error_share = float(np.abs(lengths - measured)[chosen].sum() / measured[chosen].sum())

    def weights(self, changes: Sequence[Change]) -> Weights:
        """The graph's times under changes, in one column."""
        return weights(self.job, [scenario(self.job, self.place, changes)])

    def steps_ns(self, several: Sequence[Sequence[Change]]) -> list[float]:
        """Mean length of a counted step under each of several sets of changes, in ns."""
        found: list[float] = []
        for begin in range(0, len(several), AT_ONCE):
            part = [scenario(self.job, self.place, changes) for changes in several[begin : begin + AT_ONCE]]
            times = replay(self.job.graph, self.plan, weights(self.job, part))
            lengths = step_lengths(self.job.ends, times)[self.place.counted]
            found += lengths.mean(axis=0).tolist()
        return found


def _place(counted: Counted, pipeline: model.Pipeline | None) -> Place:
    rank = np.array([row.rank for row in counted.rows], np.int64)
    stage = np.zeros(len(rank), np.int64)
    for at, ranks in enumerate(pipeline.stages if pipeline is not None else ()):
        stage[np.isin(rank, ranks)] = at
    numbers = np.array([step.step for row in counted.rows for step in row.timeline.steps], np.int64)
    chosen = [
        np.isin(np.arange(len(row.timeline.steps)), steps)
        for row, steps in zip(counted.rows, counted.steps, strict=True)
    ]
    return Place(rank, stage, np.unique(numbers, return_inverse=True)[1].ravel(), np.concatenate(chosen))
