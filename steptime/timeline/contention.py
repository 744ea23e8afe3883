"""Compute slowed by communication that runs beside it on the same SMs.

For kernels of one name, launch configuration and launching op's shapes, the median of the unoverlapped instances is the
baseline; what the overlapped ones took beyond it is contention, if it is more than chance would give (DESIGN 1.3).
A step in which all kernels are slower (a clock that dips) is not slowed by communication: its baseline is that step's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.timeline.intervals import Spans, covered, union
from steptime.timeline.links import Activities
from steptime.timeline.work import COMMUNICATION, COMPUTE, Work
from steptime.trace.events import I64, Category, EventTable

F64 = NDArray[np.float64]

#: Fewer unoverlapped instances make no baseline.
MIN_BASELINE = 3
_DRAWS = 200
#: A step has a pace of its own if its unoverlapped kernels differ from other steps' by this many standard errors.
_ERRORS = 4.0
#: Kernels and steps are told apart by so many rounds of means; those of an ordinary recording settle in two or three.
_ROUNDS = 10


def contention_ns(table: EventTable, work: Activities, labels: Work, bounds: I64) -> tuple[I64, int]:
    """How much longer each kernel took because of communication beside it.

    `bounds`: ascending boundaries of the steps, int64 [k+1].

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
    first = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))
    took = work.end_ns - work.start_ns
    step = np.searchsorted(bounds, work.start_ns[order], side="right")
    pace = np.ones(len(work.row))
    pace[order] = step_pace(took[order], np.cumsum(first) - 1, step, beside[order] == 0)[step]
    unmeasurable = 0
    rng = np.random.default_rng(0)
    for group in np.split(order, np.flatnonzero(first)[1:]):
        hidden = group[beside[group] > 0]
        if not len(hidden):
            continue
        alone = group[beside[group] == 0]
        if len(alone) < MIN_BASELINE:
            unmeasurable += int(beside[hidden].sum())
            continue
        charge[hidden] = _charged(took[hidden], pace[hidden], took[alone] / pace[alone], rng)
    return charge, unmeasurable


def step_pace(took: I64, kind: I64, step: I64, alone: NDArray[np.bool_]) -> F64:
    """How much longer kernels take in each step than they usually do, as a factor, float64 [steps].

    From those that ran alone, by means of logarithms over kinds and steps in turn: which kinds ran alone differs from
    step to step. 1 where nothing beyond chance can be seen.

    Args:
        took, kind, step: lengths in ns, kind and step of each kernel, from 0 on, int64 [k].
        alone: without communication beside it, bool [k].
    """
    count = int(step.max(initial=0)) + 1
    often = np.bincount(kind[alone], minlength=int(kind.max(initial=0)) + 1)
    usable = np.flatnonzero(alone & (took > 0) & (often[kind] >= MIN_BASELINE))
    if not len(usable):
        return np.ones(count)
    kind, step = kind[usable], step[usable]
    length, weight = np.log(took[usable]), took[usable].astype(np.float64)
    by_kind = np.maximum(np.bincount(kind, weight), 1.0)
    by_step = np.maximum(np.bincount(step, weight, count), 1.0)
    pace = np.zeros(count)
    for _ in range(_ROUNDS):
        usual = np.bincount(kind, weight * (length - pace[step])) / by_kind
        pace = np.bincount(step, weight * (length - usual[kind]), count) / by_step
    left = length - usual[kind] - pace[step]
    # The error of a weighted mean; the spread is that of single kernels, outliers apart.
    spread = 1.4826 * float(np.median(np.abs(left)))
    error = spread * np.sqrt(np.bincount(step, weight**2, count)) / by_step
    seen = np.bincount(step, minlength=count) >= MIN_BASELINE
    pace -= np.median(pace[seen]) if seen.any() else 0.0
    result: F64 = np.exp(np.where(seen & (np.abs(pace) > _ERRORS * error), pace, 0.0))
    return result


def _charged(took: I64, pace: F64, alone: F64, rng: np.random.Generator) -> I64:
    """The charge of each overlapped kernel of a group.

    Args:
        took, pace: lengths in ns and the pace of each one's step, [n].
        alone: lengths of those that ran alone, at the usual pace.
    """
    baseline = np.rint(np.floor(np.median(alone)) * pace).astype(np.int64)
    excess = int(took.sum() - baseline.sum())
    none = np.zeros(len(took), np.int64)
    if excess <= 0:
        return none
    # What the same number of instances would exceed the baseline by, drawn from those that ran alone.
    draws = (rng.choice(alone, (_DRAWS, len(took))) * pace).sum(axis=1) - baseline.sum()
    if excess <= np.percentile(draws, 95):
        return none
    over = np.maximum(took - baseline, 0)
    # Only what is above the baseline can be contention; the group's sum is shared out by it, rounded down.
    charge: I64 = (over * (excess / max(int(over.sum()), 1))).astype(np.int64)
    return charge
