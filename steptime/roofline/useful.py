"""Useful work: which source of FLOPs to believe, and moving productive time out of the leaves (DESIGN 1.2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.ledger import Ledger, LedgerWriter
from steptime.timeline.pricing import COUNTABLE
from steptime.timeline.summary import DeviceTimeline
from steptime.trace.events import I64

#: Below this share of matmul, convolution and attention time with known FLOPs, the trace's FLOPs are not a total.
MIN_COVERAGE = 0.98
#: Above this share of the step beyond the peak, FLOPs, dtype or peak are wrong.
MAX_ABOVE_PEAK = 0.005

_PRECISION = LEAF_CODE["kernels/precision"]


class Counts(msgspec.Struct, frozen=True):
    """Sums over the counted steps of all ranks.

    model_flops and hardware_flops: None without a single priced op; coverage: share of owned matmul, convolution and
    attention time with known FLOPs, None without such time; above_peak_ns; above: labels of the worst calls beyond the
    peak, worst first; attention_flops: part of model_flops; rank_steps: counted (rank, step) pairs;
    hardware_ns: hardware_flops at the peaks that productive time is counted at.
    """

    model_flops: int | None
    hardware_flops: int | None
    coverage: float | None
    above_peak_ns: int
    above: list[str]
    attention_flops: int
    rank_steps: int
    hardware_ns: float


def count_useful(timelines: Sequence[tuple[DeviceTimeline, list[int]]]) -> Counts:
    """Sum FLOPs and coverage over (timeline, indices of its counted steps)."""
    model = hardware = known = countable = above_ns = attention = 0
    hardware_ns = 0.0
    priced = False
    worst: dict[str, int] = {}
    for timeline, chosen in timelines:
        groups = timeline.groups
        if groups is None:
            continue
        known += int(groups.known_ns[chosen].sum())
        countable += int(groups.countable_ns[chosen].sum())
        for row in np.flatnonzero(np.isin(groups.step, chosen)).tolist():
            price, text = groups.prices[int(groups.call[row])], groups.texts[int(groups.call[row])]
            above_ns += int(groups.above_peak_ns[row])
            if groups.above_peak_ns[row]:
                key = f"{text.op} {text.shapes}"
                worst[key] = worst.get(key, 0) + int(groups.above_peak_ns[row])
            if price.model_flops is None:
                continue
            priced = True
            ops = int(groups.ops[row])
            model += 0 if groups.recomputed[row] else ops * price.model_flops
            attention += ops * price.model_flops if price.kind == "attention" and not groups.recomputed[row] else 0
            ran = price.hardware_flops if price.hardware_flops is not None else price.model_flops
            hardware += ops * ran
            hardware_ns += ops * price.hardware_ns
    return Counts(
        model_flops=model if priced else None,
        hardware_flops=hardware if priced else None,
        coverage=known / countable if countable else None,
        above_peak_ns=above_ns,
        above=sorted(worst, key=lambda key: -worst[key])[:3],
        attention_flops=attention,
        rank_steps=sum(len(chosen) for _, chosen in timelines),
        hardware_ns=hardware_ns,
    )


def without_useful(timeline: DeviceTimeline) -> DeviceTimeline:
    """All owned time stays in its leaf: no FLOPs can be believed."""
    ledger = timeline.ledger
    none = np.zeros_like(ledger.ns)
    return msgspec.structs.replace(
        timeline, ledger=msgspec.structs.replace(ledger, productive_ns=none, precision_ns=none)
    )


def with_trace(timeline: DeviceTimeline) -> DeviceTimeline:
    """Productive time as the trace's own FLOPs give it; the surplus of slower dtypes becomes `precision`."""
    ledger = timeline.ledger
    writer = LedgerWriter()
    left = ledger.ns - ledger.productive_ns - ledger.precision_ns
    none = np.zeros_like(left)
    keys = (ledger.step, ledger.leaf, ledger.what, ledger.where)
    writer.put(keys, left, (ledger.count, ledger.dur_ns), (ledger.productive_ns, none))
    slow = np.flatnonzero(ledger.precision_ns)
    leaf = np.full(len(slow), _PRECISION, np.int16)
    slow_keys = (ledger.step[slow], leaf, ledger.what[slow], ledger.where[slow])
    writer.put(slow_keys, ledger.precision_ns[slow], (ledger.count[slow], none[slow]))
    return _with_useful(timeline, writer.ledger(ledger.texts))


def with_model(timeline: DeviceTimeline, ideal_ns: int) -> DeviceTimeline:
    """Productive time as the model gives it: `ideal_ns` a step, taken from matmuls and attention by owned time."""
    ledger = timeline.ledger
    countable = np.isin(ledger.leaf, COUNTABLE)
    held = np.where(countable, ledger.ns, 0)
    total = np.zeros(len(timeline.steps), np.int64)
    np.add.at(total, ledger.step, held)
    wanted = np.minimum(total, ideal_ns)
    share = _apportion(held, ledger.step, total, wanted)
    none = np.zeros_like(held)
    return _with_useful(
        timeline, msgspec.structs.replace(ledger, ns=ledger.ns - share, productive_ns=share, precision_ns=none)
    )


def _apportion(held: I64, step: np.ndarray[tuple[int], np.dtype[np.int32]], total: I64, wanted: I64) -> I64:
    """Parts of each row's time in proportion, adding up to `wanted` in every step exactly."""
    running = np.cumsum(held)
    first = np.append(True, step[1:] != step[:-1])
    offset = (running - held)[first][np.cumsum(first) - 1] if len(held) else running
    # Exact integers: Python's, since time times time does not fit into int64.
    whole = np.maximum(total[step], 1).astype(object)
    upto = ((running - offset).astype(object) * wanted[step].astype(object)) // whole
    before = ((running - offset - held).astype(object) * wanted[step].astype(object)) // whole
    parts: I64 = (upto - before).astype(np.int64)
    return parts


def _with_useful(timeline: DeviceTimeline, ledger: Ledger) -> DeviceTimeline:
    productive_ns = np.zeros(len(timeline.steps), np.int64)
    np.add.at(productive_ns, ledger.step, ledger.productive_ns)
    return timeline.with_ledger(ledger, productive_ns)
