"""Compute slowed by communication that runs beside it on the same SMs.

For kernels of one name, launch configuration and launching op's shapes, the median of the unoverlapped instances is the
baseline; what the overlapped ones took beyond it is contention, if it is more than chance would give (DESIGN 1.3).
"""

from __future__ import annotations

import numpy as np

from steptime.timeline.intervals import Spans, covered, union
from steptime.timeline.links import Activities
from steptime.timeline.work import COMMUNICATION, COMPUTE, Work
from steptime.trace.events import I64, Category, EventTable

#: Fewer unoverlapped instances make no baseline.
MIN_BASELINE = 3
_DRAWS = 200


def contention_ns(table: EventTable, work: Activities, labels: Work) -> tuple[I64, int]:
    """How much longer each kernel took because of communication beside it.

    Returns:
        int64 [m] in the order of `work`, 0 where there is none or no baseline; and the time in ns of compute under
        communication for which there is no baseline (not measurable).
    """
    charge = np.zeros(len(work.row), np.int64)
    is_kernel = (labels.klass == COMPUTE) & (table.category[work.row] == Category.KERNEL)
    comm = labels.klass == COMMUNICATION
    if not comm.any() or not is_kernel.any():
        return charge, 0
    beside = covered(Spans(work.start_ns, work.end_ns), union(Spans(work.start_ns[comm], work.end_ns[comm])))
    shapes_of_row = np.full(len(table.start_ns), -1, np.int64)
    shapes_of_row[table.ops.row] = table.ops.shapes
    shapes = np.where(labels.op >= 0, shapes_of_row[labels.op], -1)
    kernels = np.flatnonzero(is_kernel)
    keys = np.stack([table.name[work.row], table.device.config[work.column], shapes])[:, kernels]
    by_key = np.lexsort(keys[::-1])
    order, keys = kernels[by_key], keys[:, by_key]
    bounds = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    unmeasurable = 0
    rng = np.random.default_rng(0)
    for group in np.split(order, bounds[1:]):
        hidden = group[beside[group] > 0]
        if not len(hidden):
            continue
        alone = work.end_ns[group] - work.start_ns[group]
        alone = alone[beside[group] == 0]
        if len(alone) < MIN_BASELINE:
            unmeasurable += int(beside[hidden].sum())
            continue
        _charge_group(charge, hidden, (work.end_ns - work.start_ns)[hidden], alone, rng)
    return charge, unmeasurable


def _charge_group(charge: I64, hidden: I64, took: I64, alone: I64, rng: np.random.Generator) -> None:
    baseline = int(np.median(alone))
    excess = int(took.sum()) - len(hidden) * baseline
    if excess <= 0:
        return
    # What the same number of instances would exceed the baseline by, drawn from those that ran alone.
    draws = rng.choice(alone, (_DRAWS, len(hidden))).sum(axis=1) - len(hidden) * baseline
    if excess <= np.percentile(draws, 95):
        return
    over = np.maximum(took - baseline, 0)
    # Only what is above the baseline can be contention; the group's sum is shared out by it, rounded down.
    charge[hidden] = (over * (excess / max(int(over.sum()), 1))).astype(np.int64)
