"""A job ready to be replayed with changes: its graph, its plan, its counted steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime import model
from steptime.errors import GraphError
from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Counted, Row
from steptime.trace.events import I64
from steptime.whatif.changes import scenario
from steptime.whatif.chunks import chunks
from steptime.whatif.graph import Weights
from steptime.whatif.job_graph import JobGraph, job_graph
from steptime.whatif.replay import baseline, replay
from steptime.whatif.scenario import Change, Place, Scenario, weights
from steptime.whatif.schedule import chain_of, schedule
from steptime.whatif.step_times import step_lengths

#: Scenarios replayed at once: more need more memory, and gain nothing. All at once have so many instants at most (each
#: takes some 40 bytes), and no larger job is replayed.
AT_ONCE, MOST_INSTANTS = 12, 30_000_000


class JobReplay:
    """The job as it was, and as it would be.

    job: its graph; place: what its rows are. times int64 [n]: the replay of the unchanged graph. step_ns: mean length
    of a counted step in it, measured_ns: as it was measured; error_share: by how much single steps differ.
    """

    def __init__(self, counted: Counted, alignment: Alignment | None, pipeline: model.Pipeline | None) -> None:
        self.job: JobGraph = job_graph(counted.rows, alignment)
        self.plan = schedule(self.job.graph)
        self.place = _place(counted, pipeline, self.job)
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

    def scenario(self, changes: Sequence[Change]) -> Scenario:
        """The job under changes."""
        return scenario(self.job, self.place, changes)

    def steps_ns(self, several: Sequence[Sequence[Change]]) -> list[float]:
        """Mean length of a counted step under each of several sets of changes, in ns."""
        return self.lengths_ns([self.scenario(changes) for changes in several])

    def lengths_ns(self, several: Sequence[Scenario]) -> list[float]:
        """Mean length of a counted step in each scenario, in ns."""
        found: list[float] = []
        at_once = max(min(AT_ONCE, MOST_INSTANTS // max(len(self.times), 1)), 1)
        for begin in range(0, len(several), at_once):
            times = replay(self.job.graph, self.plan, weights(self.job, several[begin : begin + at_once]))
            lengths = step_lengths(self.job.ends, times)[self.place.counted]
            found += lengths.mean(axis=0).tolist()
        return found


def ready(counted: Counted, alignment: Alignment | None, pipeline: model.Pipeline | None) -> JobReplay | str:
    """The job to replay, or why it can't be."""
    known = [row.timeline.dependencies for row in counted.rows]
    if any(one is None for one in known):
        return "what waited for what is not known of all ranks"
    if not any(step.dur_ns for _, step in counted.pairs):
        return "no step that takes time was counted"
    instants = sum(len(one.start_ns) + len(one.host.at_ns) for one in known if one is not None)
    if instants > MOST_INSTANTS:
        return f"the job has {instants} instants, more than the {MOST_INSTANTS} that are replayed: choose fewer --steps"
    try:
        return JobReplay(counted, alignment, pipeline)
    except GraphError as error:
        return str(error)


def _place(counted: Counted, pipeline: model.Pipeline | None, job: JobGraph) -> Place:
    rank = np.array([row.rank for row in counted.rows], np.int64)
    stage = np.zeros(len(rank), np.int64)
    for at, ranks in enumerate(pipeline.stages if pipeline is not None else ()):
        stage[np.isin(rank, ranks)] = at
    numbers = np.array([step.step for row in counted.rows for step in row.timeline.steps], np.int64)
    chosen = [
        np.isin(np.arange(len(row.timeline.steps)), steps)
        for row, steps in zip(counted.rows, counted.steps, strict=True)
    ]
    column = np.unique(numbers, return_inverse=True)[1].ravel()
    chunk = chunks(counted.rows, stage, pipeline, job)
    return Place(rank, stage, column, np.concatenate(chosen), chunk, *_groups(counted.rows, job))


def _groups(rows: Sequence[Row], job: JobGraph) -> tuple[I64, list[str]]:
    """The group of each node that communicates, int64 [n], and the groups' names."""
    names: dict[str, int] = {}
    found = np.full(len(job.nodes.activity), -1, np.int64)
    row_of = job.nodes.row[chain_of(job.graph)]
    for at, row in enumerate(rows):
        known, instances = row.timeline.dependencies, row.timeline.instances
        if known is None or instances is None:
            continue
        number = np.array([*(names.setdefault(one.shown, len(names)) for one in instances.groups), -1], np.int64)
        of_instance = np.append(number[instances.group], -1)
        nodes = np.flatnonzero((row_of == at) & (job.nodes.activity >= 0))
        found[nodes] = of_instance[known.instance[job.nodes.activity[nodes]]]
    return found, list(names)
