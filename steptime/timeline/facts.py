"""Numbers of one device, by step, that findings rest on and that no leaf holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.idle import GAP_NS
from steptime.timeline.intervals import Pieces, Spans, covered, union
from steptime.timeline.links import Activities
from steptime.timeline.work import COMMUNICATION, COMPUTE, Work
from steptime.trace.events import I64, Category, EventTable

_ALLREDUCE = LEAF_CODE["exposed_comm/allreduce"]
_ALLGATHER, _SCATTER = LEAF_CODE["exposed_comm/allgather"], LEAF_CODE["exposed_comm/reduce_scatter"]
#: A gather that compute covers by less than this share of its length ran under none.
_COVERED = 0.05
#: Parameters are gathered for several layers before the first gradients are scattered; activations (sequence parallel)
#: are gathered and scattered by turns.
_GATHERS_AHEAD = 3
#: Fewer collectives than this say nothing about how streams share the device.
_MIN_COLLECTIVES = 8
_NORM_OPS = ("aten::_foreach_norm", "clip_grad_norm", "aten::_amp_foreach_non_finite_check_and_unscale_")

Facts = dict[str, I64]


def facts(  # noqa: PLR0913 - one device against both clocks
    table: EventTable, work: Activities, labels: Work, parts: Pieces, bounds: I64, host_edges: I64
) -> Facts:
    """Facts by name, int64 [steps] each, in ns or counts (see `diagnose.metrics` for their meaning).

    Args:
        table, work, labels: one device's activities.
        parts: owned parts inside the windows; `source` indexes `work`.
        bounds: ascending boundaries of the steps on the device.
        host_edges: boundaries of the step marks on the host, as many.
    """
    owned = np.zeros(len(work.row), np.int64)
    np.add.at(owned, parts.source, parts.end - parts.start)
    step = np.searchsorted(bounds, work.start_ns, side="right") - 1
    inside = (step >= 0) & (step < len(bounds) - 1)
    kernel = table.category[work.row] == Category.KERNEL

    def by_step(chosen: NDArray[np.bool_], values: I64) -> I64:
        total = np.zeros(len(bounds) - 1, np.int64)
        mine = chosen & inside
        np.add.at(total, step[mine], values[mine])
        return total

    ones = np.ones(len(work.row), np.int64)
    found = {
        "kernels.count": by_step(kernel, ones),
        "kernels.dur_ns": by_step(kernel, work.end_ns - work.start_ns),
        "launch.runs_ns": by_step(kernel & _shorter_than_launch(work), _since_previous(work)),
    }
    comm = labels.klass == COMMUNICATION
    if comm.any():
        found["collectives.last_exposed_ns"] = by_step(_last_of_step(labels.leaf == _ALLREDUCE, step), owned)
        found["collectives.first_exposed_ns"] = by_step(_first_of_label(comm, labels.what), owned)
        found["collectives.unprefetched_ns"] = by_step(_unprefetched(table, work, labels, step), owned)
        found["streams.alternating_ns"] = by_step(_alternates(work, labels), owned)
    norms = np.array([name.startswith(_NORM_OPS) for name in table.names], np.bool_)
    rows = table.ops.row[norms[table.name[table.ops.row]]]
    compiled = any("CompiledFxGraph" in name or "CompiledFunction" in name for name in table.names)
    # A compiled graph may hold a norm without an op of its own; without an update nobody computes one.
    updates = any(name.startswith("Optimizer.step#") for name in table.names)
    if len(table.ops.row) and updates and not compiled:
        at = np.searchsorted(host_edges, table.start_ns[rows], side="right") - 1
        at = at[(at >= 0) & (at < len(bounds) - 1)]
        found["norms.count"] = np.bincount(at, minlength=len(bounds) - 1).astype(np.int64)
    return found


def _shorter_than_launch(work: Activities) -> NDArray[np.bool_]:
    """Kernels that took less time than the call that launched them and did not wait in the queue."""
    call = work.return_ns - work.launch_ns
    prompt = work.launched & (work.start_ns - np.where(work.launched, work.return_ns, 0) <= GAP_NS)
    return prompt & (work.end_ns - work.start_ns < call)


def _since_previous(work: Activities) -> I64:
    """From the end of everything before each activity (or its start) to its own end."""
    if not len(work.row):
        return work.end_ns
    before = np.append(work.start_ns[0], np.maximum.accumulate(work.end_ns)[:-1])
    since: I64 = np.maximum(work.end_ns - np.minimum(before, work.end_ns), 0)
    return since


def _last_of_step(chosen: NDArray[np.bool_], step: I64) -> NDArray[np.bool_]:
    result = np.zeros(len(chosen), np.bool_)
    rows = np.flatnonzero(chosen)
    last = np.append(step[rows][1:] != step[rows][:-1], True) if len(rows) else rows
    result[rows[np.flatnonzero(last)]] = True
    return result


def _first_of_label(chosen: NDArray[np.bool_], what: NDArray[np.int32]) -> NDArray[np.bool_]:
    result = np.zeros(len(chosen), np.bool_)
    rows = np.flatnonzero(chosen)
    _, first = np.unique(what[rows], return_index=True)
    result[rows[first]] = True
    return result


def _unprefetched(table: EventTable, work: Activities, labels: Work, step: I64) -> NDArray[np.bool_]:
    """All-gathers of parameters that ran between two pieces of compute and under none, but for the first of a step.

    A gather that was started a layer ahead runs under that layer, at least in part; the first has none before it.
    """
    result = np.zeros(len(work.row), np.bool_)
    compute = labels.klass == COMPUTE
    group = _group_numbers(table, labels.meta)
    gathers = np.flatnonzero((labels.leaf == _ALLGATHER) & (step >= 0))
    scatters = np.flatnonzero((labels.leaf == _SCATTER) & (step >= 0))
    if not len(gathers) or not compute.any():
        return result
    # One number for group and step; activities are in the order of their starts.
    width = int(step.max()) + 1
    key, ends = group[gathers] * width + step[gathers], group[scatters] * width + step[scatters]
    _, which = np.unique(key, return_inverse=True)
    first_scatter = np.full(int(which.max()) + 1, np.iinfo(np.int64).max, np.int64)
    scattered, at = np.unique(ends, return_index=True)
    place = np.minimum(np.searchsorted(scattered, key), max(len(scattered) - 1, 0))
    known = scattered[place] == key if len(scattered) else np.zeros(len(key), np.bool_)
    first_scatter[which[known]] = work.start_ns[scatters[at[place[known]]]]
    ahead = np.bincount(which, work.start_ns[gathers] < first_scatter[which])
    starts = np.sort(work.start_ns[compute])
    before = np.searchsorted(starts, work.start_ns[gathers])
    order = np.argsort(which, kind="stable")
    since = np.empty(len(gathers), np.int64)
    since[order] = np.diff(before[order], prepend=0)
    first = np.zeros(len(gathers), np.bool_)
    first[np.unique(which, return_index=True)[1]] = True
    spans = Spans(work.start_ns[gathers], work.end_ns[gathers])
    busy = union(Spans(work.start_ns[compute], work.end_ns[compute]))
    bare = covered(spans, busy) <= _COVERED * (spans.end - spans.start)
    result[gathers] = (ahead[which] >= _GATHERS_AHEAD) & ~first & (since > 0) & bare
    return result


def _group_numbers(table: EventTable, meta: I64) -> I64:
    """Number of the process group of each activity, int64 [m]; one number for all without metadata."""
    known: dict[tuple[str, str], int] = {}
    of_meta = [known.setdefault((args.group, args.ranks), len(known)) for args in table.collectives]
    numbers = np.array([*of_meta, len(known)], np.int64)
    return numbers[meta]


def _alternates(work: Activities, labels: Work) -> NDArray[np.bool_]:
    """Collectives that had to wait their turn although another stream was free for them.

    Only if no collective of the recording overlaps compute, and the compute that ran next on another stream had been
    launched before the collective was: both were in the queue together. (Compute that was launched after a collective
    may need its result, as in tensor parallelism.)
    """
    comm, compute = labels.klass == COMMUNICATION, labels.klass == COMPUTE
    none = np.zeros(len(work.row), np.bool_)
    busy = union(Spans(work.start_ns[compute], work.end_ns[compute]))
    rows = np.flatnonzero(comm & work.launched)
    if len(rows) < _MIN_COLLECTIVES or covered(Spans(work.start_ns[comm], work.end_ns[comm]), busy).any():
        return none
    heads = np.flatnonzero(compute)
    after = (
        heads[np.minimum(np.searchsorted(work.start_ns[heads], work.end_ns[rows]), len(heads) - 1)]
        if len(heads)
        else rows
    )
    waited = work.return_ns[rows] + GAP_NS < work.start_ns[rows]
    other = work.stream[after] != work.stream[rows]
    none[rows] = waited & other & (work.return_ns[after] < work.launch_ns[rows])
    return none
