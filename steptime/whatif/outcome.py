"""What a set of changes does to a job: its step, its MFU, and where the time of its critical path then lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from steptime.model import CriticalPath, Report
from steptime.model.what_if import Bottleneck, PathLeaf, Predicted, WhatIf
from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Row
from steptime.trace.events import I64
from steptime.whatif.changes import scenario
from steptime.whatif.gains import MOST_ERROR
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.job_replay import JobReplay
from steptime.whatif.path_report import with_critical_path
from steptime.whatif.rank_nodes import EDGE, LAG
from steptime.whatif.replay import in_scenario, replay
from steptime.whatif.requests import Request, changes_of, meaning
from steptime.whatif.scenario import LEAF, Change, Scenario, weights
from steptime.whatif.subtraction import subtracted_ns

_PRODUCTIVE = "productive"
_UNEXPLAINED = "unexplained/"


def what_if(
    report: Report, job: JobReplay, made_of: tuple[Sequence[Row], Alignment | None], requests: Sequence[Request]
) -> WhatIf:
    """Replay the job under the requests: each alone, one after the other, and all together.

    Args:
        report: of the job.
        job: ready to be replayed.
        made_of: its rows, and their clocks (None for a single row).
        requests: at least one.

    Raises:
        UsageError: a request that means nothing in this job.
    """
    asked = [changes_of(request, report) for request in requests]
    texts = [request.text for request in requests]
    refused = _refused(job)
    alone = [[one] for one in range(len(asked))]
    growing = [list(range(count + 1)) for count in range(len(asked))]
    several = [[change for at in which for change in asked[at]] for which in [*alone, *growing]]
    new = [None] * len(several) if refused else [_step_ns(job, ns) for ns in _replayed(job, several)]
    made = [
        Predicted(
            asked=[texts[at] for at in which],
            step_ns=step_ns,
            mfu=None if report.job.mfu is None or step_ns is None else report.job.mfu * job.measured_ns / step_ns,
            subtracted_ns=_subtracted(job, report, changes),
            notes=_notes(job, changes) if len(which) == 1 else [],
        )
        for which, changes, step_ns in zip([*alone, *growing], several, new, strict=True)
    ]
    result = WhatIf(
        tool=report.tool,
        inputs=[one.path for one in report.inputs],
        ranks_analyzed=report.job.ranks_analyzed,
        world_size=report.job.world_size,
        steps=report.job.steps,
        measured_ns=job.measured_ns,
        replayed_ns=job.step_ns,
        error_share=job.error_share,
        refused=refused,
        mfu=report.job.mfu,
        unexplained_share=None,
        meanings=[meaning(*one, report) for one in zip(requests, asked, strict=True)],
        each=made[: len(asked)],
        so_far=made[len(asked) :],
        together=made[-1],
        warnings=report.warnings,
    )
    before = _path(report, made_of, (job.job, job.times))
    if before is None:
        return result
    result = msgspec.structs.replace(result, unexplained_share=_unexplained_share(before))
    if refused:
        return result
    after = _path(report, made_of, _under(job, several[-1]))
    if after is None or len(after.steps) != len(before.steps):
        return result
    return _with_paths(result, before, after)


def _refused(job: JobReplay) -> str | None:
    if job.error_share <= MOST_ERROR:
        return None
    return (
        f"the replay of the unchanged job misses its measured steps by {100 * job.error_share:.1f} % "
        f"(more than {100 * MOST_ERROR:.0f} %)"
    )


def _replayed(job: JobReplay, several: Sequence[Sequence[Change]]) -> list[float]:
    """Mean steps of several sets, each of which is replayed once."""
    distinct = list(dict.fromkeys(tuple(changes) for changes in several))
    made = dict(zip(distinct, job.steps_ns(distinct), strict=True))
    return [made[tuple(changes)] for changes in several]


def _step_ns(job: JobReplay, replayed_ns: float) -> float:
    """A replayed step as a measured one: what the unchanged replay misses is taken to stay."""
    return job.measured_ns * replayed_ns / job.step_ns


def _subtracted(job: JobReplay, report: Report, changes: Sequence[Change]) -> float | None:
    removed = subtracted_ns(changes, report)
    return None if removed is None else max(job.measured_ns - removed, 0.0)


def _notes(job: JobReplay, changes: Sequence[Change]) -> list[str]:
    """What of a request changes nothing."""
    asked = [code for change in changes if change.kind == LEAF for code in change.leaves]
    if not asked or any(change.kind != LEAF for change in changes):
        return []
    held = np.isin(job.job.parts.leaf, asked).any() or np.isin(job.job.parts.also, asked).any()
    if held or np.isin(job.job.edge_leaf, asked).any():
        return []
    return [f"{changes[0].asked}: there is none of it in these traces"]


def _under(job: JobReplay, changes: Sequence[Change]) -> tuple[JobGraph, I64]:
    """The job's graph and its instants under changes."""
    made = scenario(job.job, job.place, changes)
    times = weights(job.job, [made])
    graph = in_scenario(job.job.graph, times, 0)
    return _graph_of(msgspec.structs.replace(job.job, graph=graph), made), replay(graph, job.plan, times)[:, 0]


def _graph_of(job: JobGraph, made: Scenario) -> JobGraph:
    """The graph with the parts of a scenario; a transfer that waits for nobody is its member's own."""
    parts = job.parts
    kind, index = parts.kind.copy(), parts.index.copy()
    alone = np.zeros(len(job.graph.source), np.bool_)
    alone[_longest(job, made)] = True
    moved = np.flatnonzero(kind == EDGE)
    moved = moved[alone[index[moved]]]
    kind[moved], index[moved] = LAG, job.graph.target[index[moved]]
    ns = np.rint(parts.ns * made.factor).astype(np.int64)
    return msgspec.structs.replace(job, parts=msgspec.structs.replace(parts, kind=kind, index=index, ns=ns))


def _longest(job: JobGraph, made: Scenario) -> I64:
    """Of the transfers that wait for nobody, the longest into each node: of a kernel with several, they are one."""
    alone = np.flatnonzero(made.alone)
    length = np.zeros(len(made.alone), np.int64)
    own = job.parts.kind == EDGE
    ns = np.rint(job.parts.ns[own] * made.factor[own]).astype(np.int64)
    np.add.at(length, job.parts.index[own], ns)
    target = job.graph.target[alone]
    order = np.lexsort((length[alone], target))
    last = np.append(target[order][1:] != target[order][:-1], True)[: len(order)]
    result: I64 = alone[order[last]]
    return result


def _path(
    report: Report, made_of: tuple[Sequence[Row], Alignment | None], replayed: tuple[JobGraph, I64]
) -> CriticalPath | None:
    graph, times = replayed
    path = with_critical_path(report, graph, times, *made_of).critical_path
    return path if path is not None and path.length_ns > 0 else None


def _unexplained_share(path: CriticalPath) -> float:
    return sum(one.ns for one in path.totals if one.leaf.startswith(_UNEXPLAINED)) / path.length_ns


def _with_paths(result: WhatIf, before: CriticalPath, after: CriticalPath) -> WhatIf:
    then, now = _by_leaf(before), _by_leaf(after)
    leaves = sorted({*then, *now}, key=lambda leaf: (-now.get(leaf, 0), -then.get(leaf, 0), leaf))
    return msgspec.structs.replace(
        result,
        path_steps=len(before.steps),
        path_before_ns=before.length_ns,
        path_after_ns=after.length_ns,
        path=[PathLeaf(leaf=leaf, before_ns=then.get(leaf, 0), after_ns=now.get(leaf, 0)) for leaf in leaves],
        bottleneck_before=_bottleneck(before),
        bottleneck=_bottleneck(after),
    )


def _by_leaf(path: CriticalPath) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for one in path.totals:
        found[one.leaf] += one.ns
    return dict(found)


def _bottleneck(path: CriticalPath) -> Bottleneck | None:
    by_leaf = {leaf: ns for leaf, ns in _by_leaf(path).items() if leaf != _PRODUCTIVE and ns > 0}
    if not by_leaf:
        return None
    leaf = max(by_leaf, key=lambda leaf: (by_leaf[leaf], leaf))
    place = max((one for one in path.totals if one.leaf == leaf), key=lambda one: one.ns)
    return Bottleneck(
        leaf=leaf,
        ns=by_leaf[leaf],
        share=by_leaf[leaf] / path.length_ns,
        rank=place.rank,
        where=place.where,
        place_ns=place.ns,
    )
