"""Which piece of the model each kernel computes, forward or backward, where the job is a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime import model
from steptime.ranks.counted import Row
from steptime.ranks.stages import kept_passes
from steptime.timeline.dependencies import Dependencies
from steptime.timeline.passes import Passes
from steptime.trace.events import I64
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.schedule import chain_of

#: Kernels outside the passes of known micro-batches.
OUTSIDE = -1


def chunks(rows: Sequence[Row], stage: I64, pipeline: model.Pipeline | None, job: JobGraph) -> I64:
    """Twice the chunk of its stage that each node computes, one more in a backward pass; `OUTSIDE`; int64 [n].

    Passes follow each other in each step as in the one that the pipeline's actions list; where a step has other passes,
    nothing is known of it.

    Args:
        rows: the job's rows.
        stage: int64 [r], of each row.
        pipeline: None where there is none.
        job: the job's graph.
    """
    found = np.full(len(job.nodes.activity), OUTSIDE, np.int64)
    if pipeline is None or pipeline.actions is None:
        return found
    row_of = job.nodes.row[chain_of(job.graph)]
    for at, row in enumerate(rows):
        known, passes = row.timeline.dependencies, row.timeline.passes
        if known is None or passes is None:
            continue
        nodes = np.flatnonzero((row_of == at) & (job.nodes.activity >= 0))
        found[nodes] = _of_activities(known, passes, pipeline.actions, int(stage[at]))[job.nodes.activity[nodes]]
    return found


def _of_activities(known: Dependencies, passes: Passes, actions: model.PipelineActions, stage: int) -> I64:
    code = _of_passes(passes, actions, stage)
    order = np.argsort(passes.start_ns, kind="stable")
    at = order[np.maximum(np.searchsorted(passes.start_ns[order], known.start_ns, side="right") - 1, 0)]
    inside = (passes.start_ns[at] <= known.start_ns) & (known.end_ns <= passes.end_ns[at])
    return np.where(inside, code[at], OUTSIDE)


def _of_passes(passes: Passes, actions: model.PipelineActions, stage: int) -> I64:
    """The code of each pass, int64 [passes]."""
    listed = sorted(zip(actions.start_ns, actions.stage, actions.backward, actions.chunk, strict=True))
    code = np.full(len(passes.step), OUTSIDE, np.int64)
    kept = kept_passes(passes)
    for backward in (False, True):
        chunk = np.array([one[3] for one in listed if one[1] == stage and one[2] == backward], np.int64)
        for step in np.unique(passes.step[passes.step >= 0]).tolist():
            mine = np.flatnonzero(kept & (passes.backward == backward) & (passes.step == step))
            if len(mine) == len(chunk):
                code[mine] = 2 * chunk + backward
    return code
