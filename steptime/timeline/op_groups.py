"""Equal calls of an op, summed by step: how often, how long, how much useful work. The roofline's raw material."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.timeline.intervals import Pieces
from steptime.timeline.labels import Labels
from steptime.timeline.links import Activities
from steptime.timeline.pricing import COUNTABLE, FAST, RECOMPUTE, Calls, OpText, Price
from steptime.timeline.work import Work
from steptime.trace.events import I32, I64, EventTable


class OpGroups(msgspec.Struct, frozen=True):
    """r rows, one for each (step, call, recomputed).

    step, call int32 (call: index into `texts` and `prices`); recomputed bool; ops, kernels int64 counts; dur_ns int64
    sum of the kernels' lengths; owned_ns int64: what they owned; above_peak_ns int64: time at the peak beyond what its
    op's kernels took; kernel int32: label of the kernel that took longest; config int32: its grid and block.

    known_ns, countable_ns int64 [steps]: owned time of matmul and attention with known FLOPs, and in all.
    """

    step: I32
    call: I32
    recomputed: NDArray[np.bool_]
    ops: I64
    kernels: I64
    dur_ns: I64
    owned_ns: I64
    above_peak_ns: I64
    kernel: I32
    config: I32
    known_ns: I64
    countable_ns: I64
    texts: list[OpText]
    prices: list[Price]
    labels: list[str]
    configs: list[str]


def group_ops(
    table: EventTable, work: Activities, work_labels: Work, calls: Calls, owned: tuple[Pieces, I64, I64], labels: Labels
) -> OpGroups:
    """Sum equal calls.

    Args:
        table, work, work_labels, calls: one device's activities with their labels and calls.
        owned: owned parts inside the windows (`source` indexes `work`), the step of each, and the steps' boundaries.
        labels: the file's texts.
    """
    parts, part_step, bounds = owned
    owned_ns = np.zeros(len(work.row), np.int64)
    np.add.at(owned_ns, parts.source, parts.end - parts.start)
    step = np.searchsorted(bounds, work.start_ns, side="right") - 1
    used = np.flatnonzero((calls.call >= 0) & (step >= 0) & (step < len(bounds) - 1))
    again = work_labels.leaf == RECOMPUTE
    keys = np.stack([step[used], calls.call[used], again[used].astype(np.int64)])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.ravel()
    dur_ns = work.end_ns - work.start_ns

    def total(values: I64) -> I64:
        sums = np.zeros(distinct.shape[1], np.int64)
        np.add.at(sums, which, values)
        return sums

    longest = np.lexsort((dur_ns[used], which))
    last = np.append(which[longest][1:] != which[longest][:-1], True) if len(longest) else np.empty(0, np.bool_)
    top = used[longest[last]]
    configs = np.unique(table.device.config[work.column[top]])
    return OpGroups(
        step=distinct[0].astype(np.int32),
        call=distinct[1].astype(np.int32),
        recomputed=distinct[2] > 0,
        ops=total(_firsts(calls.op[used], which)),
        kernels=total(np.ones(len(used), np.int64)),
        dur_ns=total(dur_ns[used]),
        owned_ns=total(owned_ns[used]),
        above_peak_ns=total(_above_peak(calls, dur_ns)[used]),
        kernel=labels.names(table.names, table.name[work.row[top]]),
        config=np.searchsorted(configs, table.device.config[work.column[top]]).astype(np.int32),
        known_ns=_countable(work_labels, calls, parts, part_step, len(bounds) - 1)[0],
        countable_ns=_countable(work_labels, calls, parts, part_step, len(bounds) - 1)[1],
        texts=calls.texts,
        prices=calls.prices,
        labels=labels.texts,
        configs=[table.texts[text] for text in configs.tolist()],
    )


def _firsts(op: I64, group: I64) -> I64:
    """1 for the first activity of each op in its group, else 0."""
    result = np.zeros(len(op), np.int64)
    _, first = np.unique(np.stack([group, op]), axis=1, return_index=True)
    result[first] = 1
    return result


def _above_peak(calls: Calls, dur_ns: I64) -> I64:
    """Time at the peak of each op's own dtype beyond what its eligible kernels took, charged to its first; int64 [m].

    Their own length counts, not what they owned: a kernel hidden under another one is not faster than the peak.
    Algorithms that need fewer operations than the formula (`FAST`) are not judged.
    """
    result = np.zeros(len(dur_ns), np.int64)
    mine = np.flatnonzero(calls.eligible & (calls.call >= 0))
    if not len(mine):
        return result
    ops, first, of_op = np.unique(calls.op[mine], return_index=True, return_inverse=True)
    took = np.zeros(len(ops), np.int64)
    np.add.at(took, of_op, dur_ns[mine])
    needs = [0 if FAST in price.notes else price.ideal_ns + price.precision_ns for price in calls.prices]
    needed = np.array(needs, np.int64)[calls.call[mine[first]]]
    result[mine[first]] = np.maximum(needed - took, 0)
    return result


def _countable(labels: Work, calls: Calls, parts: Pieces, step: I64, count: int) -> tuple[I64, I64]:
    priced = np.array([*(price.model_flops is not None for price in calls.prices), False], np.bool_)[calls.call]
    countable = np.isin(labels.leaf, COUNTABLE)[parts.source]
    known, total = np.zeros(count, np.int64), np.zeros(count, np.int64)
    length = parts.end - parts.start
    np.add.at(total, step[countable], length[countable])
    both = countable & priced[parts.source]
    np.add.at(known, step[both], length[both])
    return known, total
