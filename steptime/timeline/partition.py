"""Split the steps of one device exactly: each instant belongs to one activity, or is idle with one cause."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.model import StepTime
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.contention import contention_ns
from steptime.timeline.dependencies import Dependencies, Parts
from steptime.timeline.facts import Facts, facts
from steptime.timeline.host import HostState
from steptime.timeline.host_points import host_points
from steptime.timeline.idle import EVENTS_MISSING, Idle, attribute, credit_syncs
from steptime.timeline.instances import Instances, device_instances
from steptime.timeline.intervals import Pieces, Spans, complement, cut, first_started, intersect, subtract, union
from steptime.timeline.labels import Labels
from steptime.timeline.ledger import Ledger, LedgerWriter
from steptime.timeline.links import NEVER, Activities, Threads, autograd_nodes
from steptime.timeline.lost import lost_spans
from steptime.timeline.op_groups import OpGroups, group_ops
from steptime.timeline.passes import HostOps, Passes, device_passes
from steptime.timeline.places import Places
from steptime.timeline.pricing import RECOMPUTE, Calls
from steptime.timeline.segments import Segments
from steptime.timeline.steps import Marks, host_windows, shifted, windows
from steptime.timeline.stream_waits import stream_waits
from steptime.timeline.work import COMMUNICATION, COMPUTE, COPY, Work
from steptime.trace.events import I32, I64, Category, EventTable

_CONTENTION = LEAF_CODE["kernels/comm_contention"]


class DeviceSplit(msgspec.Struct, frozen=True):
    """One device of one file: windows int64 [k+1], the ledger, and kernels launched in each step int64 [k].

    `groups` are the calls of ops, None if nothing was priced.
    """

    windows: I64
    ledger: Ledger
    kernels: I64
    unmeasurable_contention_ns: int
    segments: Segments | None = None
    groups: OpGroups | None = None
    facts: Facts = msgspec.field(default_factory=dict)
    instances: Instances | None = None
    passes: Passes | None = None
    dependencies: Dependencies | None = None


class FileContext(msgspec.Struct, frozen=True):
    """What the devices of one file share."""

    table: EventTable
    threads: Threads
    marks: Marks
    state: HostState
    places: Places
    labels: Labels
    lost: I64
    shift_ns: int
    replayed: bool = False


class _Device(msgspec.Struct, frozen=True):
    """One device being split: its activities with labels and calls, the boundaries of the steps, the ledger."""

    context: FileContext
    work: Activities
    labels: Work
    calls: Calls | None
    bounds: I64
    writer: LedgerWriter


def split_device(context: FileContext, work: Activities, labels: Work, calls: Calls | None = None) -> DeviceSplit:
    """Account for all time of all steps of one device."""
    on_main = work.stream == main_stream(work, labels)
    lost_ns = context.table.start_ns[context.lost] - context.shift_ns
    bounds, launched_in = windows(shifted(context.marks, -context.shift_ns), work, on_main, lost_ns)
    device = _Device(context, work, labels, calls, bounds, LedgerWriter())
    charge, unmeasurable = contention_ns(context.table, work, labels, bounds)
    owned = own(work, labels.klass)
    order = np.argsort(owned.start, kind="stable")
    parts, step = cut(Pieces(*(column[order] for column in owned)), bounds)
    lost = lost_spans(context.table, context.threads, work, labels, context.lost, context.shift_ns)
    hidden, what_lost = _put_lost(device, parts, step, lost)
    if len(hidden.start):
        parts, step = _without(parts, step, hidden)
    _put_owned(device, parts, step, charge)
    _put_activities(device)
    idle, what = _put_idle(device)
    count = len(bounds) - 1
    marks = host_windows(context.marks)
    numbers = facts(context.table, work, labels, parts, bounds, marks)
    segments = _segments(parts, labels, idle, what, (hidden, what_lost))
    is_kernel = context.table.category[work.row] == Category.KERNEL
    inside = launched_in[is_kernel & (launched_in >= 0) & (launched_in < count)]
    kernels = np.bincount(inside, minlength=count).astype(np.int64)
    groups = group_ops(context.table, work, labels, calls, (parts, step, bounds), context.labels) if calls else None
    ledger = device.writer.ledger(context.labels.texts)
    instances = device_instances(context.table, work, labels, parts, step, bounds)
    passes = device_passes(HostOps(context.table, context.threads), work, labels, instances.messages, marks)
    split = DeviceSplit(bounds, ledger, kernels, unmeasurable, segments, groups, numbers, instances, passes)
    if not context.replayed:
        return split
    return msgspec.structs.replace(split, dependencies=_dependencies(device, launched_in, on_main, charge))


def _dependencies(device: _Device, launched_in: I64, on_main: NDArray[np.bool_], charge: I64) -> Dependencies:
    """What the device's activities waited for; `launched_in` and `charge` by activity."""
    context, work, labels = device.context, device.work, device.labels
    count = len(device.bounds) - 1
    step = np.where(launched_in < count, launched_in, -1).astype(np.int32)
    host, launch = host_points(context.table, work, context.state, host_windows(context.marks) - context.shift_ns)
    main = int(work.stream[on_main][0]) if on_main.any() else -1
    before, after = stream_waits(context.table, work, labels.leaf, main, step)
    length = work.end_ns - work.start_ns
    slowed = np.minimum(charge, length)
    useful, precision = _useful(device.calls, np.arange(len(length)), length - slowed)
    # Steps without own work on the main stream end with their last work anywhere.
    has_main = np.bincount(step[on_main & (step >= 0)], minlength=count) > 0
    communicates = labels.klass == COMMUNICATION
    what, texts = context.labels.used(labels.what)
    return Dependencies(
        start_ns=work.start_ns,
        end_ns=work.end_ns,
        stream=work.stream,
        leaf=labels.leaf,
        step=step,
        boundary=(step >= 0) & (on_main | ~has_main[step]),
        launch=launch,
        call_ns=np.where(work.launched, work.return_ns - work.launch_ns, 0),
        instance=np.where(communicates, np.cumsum(communicates) - 1, -1),
        also=_run_again(context, work, labels),
        before=before,
        after=after,
        parts=Parts(useful, precision, slowed),
        host=host,
        bounds=np.empty(0, np.int64),
        begin_ns=device.bounds,
        noticed=np.zeros(len(length), np.bool_),
        what=what,
        texts=texts,
    )


def _run_again(context: FileContext, work: Activities, labels: Work) -> NDArray[np.int16]:
    """`RECOMPUTE` for what is launched between kernels that run again, or after the last of them before another node
    of the backward pass begins, else -1; int16 [m].
    """
    computes = np.flatnonzero((labels.klass == COMPUTE) & work.launched)
    computes = computes[np.argsort(work.launch_ns[computes], kind="stable")]
    again = np.concatenate([[False], labels.leaf[computes] == RECOMPUTE, [False]])
    called = np.concatenate([[NEVER], work.launch_ns[computes]])
    at = np.searchsorted(called[1:], work.launch_ns)
    nodes = np.sort(context.table.start_ns[autograd_nodes(context.table)]) - context.shift_ns
    begun = np.searchsorted(nodes, work.launch_ns) - np.searchsorted(nodes, called[at])
    inside = work.launched & (labels.klass != COMPUTE) & again[at] & (again[at + 1] | (begun == 0))
    return np.where(inside, np.int16(RECOMPUTE), np.int16(-1))


def _put_lost(device: _Device, parts: Pieces, step: I64, lost: Spans) -> tuple[Spans, int]:
    """Put what communication and copies own while a lost kernel ran; the disjoint parts, and their label."""
    other = np.flatnonzero(device.labels.klass[parts.source] != COMPUTE)
    pieces, _ = intersect(Spans(parts.start[other], parts.end[other]), lost)
    what = device.context.labels.text("device events of calls before it were lost")
    length = pieces.end - pieces.start
    count = len(length)
    ones, none = np.ones(count, np.int64), np.zeros(count, np.int64)
    keys = (step[other[pieces.source]], ones * EVENTS_MISSING, ones * what, -ones)
    device.writer.put(keys, length, (ones, none))
    return Spans(pieces.start, pieces.end), what


def _without(parts: Pieces, step: I64, hidden: Spans) -> tuple[Pieces, I64]:
    """The parts outside of some spans, in time order, and the step of each."""
    left = subtract(Spans(parts.start, parts.end), hidden)
    order = np.argsort(left.start, kind="stable")
    source = left.source[order]
    return Pieces(left.start[order], left.end[order], parts.source[source]), step[source]


def _segments(parts: Pieces, labels: Work, idle: Idle, what: I32, lost: tuple[Spans, int]) -> Segments:
    """Owned and idle pieces of all steps in time order, and those in which a lost kernel ran."""
    hidden, what_lost = lost
    count = len(hidden.start)
    start = np.concatenate([parts.start, idle.start_ns, hidden.start])
    order = np.argsort(start, kind="stable")
    leaf = [labels.leaf[parts.source], idle.leaf, np.full(count, EVENTS_MISSING)]
    return Segments(
        start_ns=start[order],
        end_ns=np.concatenate([parts.end, idle.end_ns, hidden.end])[order],
        leaf=np.concatenate(leaf)[order].astype(np.int64),
        what=np.concatenate([labels.what[parts.source], what, np.full(count, what_lost)])[order],
    )


def main_stream(work: Activities, labels: Work) -> int:
    """The stream with most compute time; without compute, the busiest."""
    chosen = labels.klass == COMPUTE
    chosen = chosen if chosen.any() else np.ones_like(chosen)
    streams, which = np.unique(work.stream[chosen], return_inverse=True)
    total = np.zeros(len(streams), np.int64)
    np.add.at(total, which, (work.end_ns - work.start_ns)[chosen])
    return int(streams[total.argmax()]) if len(streams) else -1


def own(work: Activities, klass: NDArray[np.int8]) -> Pieces:
    """Exclusive ownership of the device: compute before communication before copies, then who started first.

    Returns disjoint parts; `source` is the index of the owning activity.
    """
    taken = Spans(np.empty(0, np.int64), np.empty(0, np.int64))
    parts = []
    for wanted in (COMPUTE, COMMUNICATION, COPY):
        index = np.flatnonzero(klass == wanted)
        mine = first_started(Spans(work.start_ns[index], work.end_ns[index]))
        free = subtract(Spans(mine.start, mine.end), taken)
        parts.append(Pieces(free.start, free.end, index[mine.source[free.source]]))
        taken = union(Spans(np.concatenate([taken.start, mine.start]), np.concatenate([taken.end, mine.end])))
    return Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _op_names(device: _Device) -> I32:
    """Label of the op that launched each activity, -1 if none."""
    table, op = device.context.table, device.labels.op
    names = np.where(op >= 0, table.name[op], -1).astype(np.int32)
    return device.context.labels.names(table.names, names)


def _put_owned(device: _Device, parts: Pieces, step: I64, charge: I64) -> None:
    """Owned time of each activity in the step where it passes.

    Contention (`charge`, by activity) is deducted first, so that a wrong peak can't change it; then an op's useful work
    and the surplus of a slower dtype, each clipped to what is left (DESIGN 1.2 has them in the other order, which gives
    the same whenever a kernel's baseline holds its useful work).
    """
    source = parts.source
    length = parts.end - parts.start
    slowed = share_out(source, length, charge)
    productive, precision = _useful(device.calls, source, length - slowed)
    labels, writer = device.labels, device.writer
    what, where = labels.what[source], _op_names(device)[source]
    none = np.zeros(len(source), np.int64)
    keys = (step, labels.leaf[source], what, where)
    writer.put(keys, length - slowed, (none, none), (productive, precision))
    slow = np.flatnonzero(slowed)
    leaf = np.full(len(slow), _CONTENTION, np.int16)
    writer.put((step[slow], leaf, what[slow], where[slow]), slowed[slow], (np.ones(len(slow), np.int64), none[slow]))


def _useful(calls: Calls | None, source: I64, length: I64) -> tuple[I64, I64]:
    """Productive and precision time of each owned part, int64 [parts] each."""
    none = np.zeros(len(source), np.int64)
    if calls is None or not calls.prices:
        return none, none
    op = np.where(calls.eligible & (calls.call >= 0), calls.op, -1)
    ops, of_activity = np.unique(op, return_inverse=True)
    call = np.full(len(ops), -1, np.int64)
    call[of_activity] = calls.call
    ideal = np.array([*(price.ideal_ns for price in calls.prices), 0], np.int64)
    surplus = np.array([*(price.precision_ns for price in calls.prices), 0], np.int64)
    call = np.where(ops >= 0, call, -1)
    group = of_activity[source]
    productive = share_out(group, length, ideal[call])
    return productive, share_out(group, length - productive, surplus[call])


def _put_activities(device: _Device) -> None:
    """Count every activity where it starts, also one that owns nothing: hidden collectives belong in the tables."""
    work, labels = device.work, device.labels
    at = np.searchsorted(device.bounds, work.start_ns, side="right") - 1
    inside = np.flatnonzero((at >= 0) & (at < len(device.bounds) - 1))
    occurs = (np.ones(len(inside), np.int64), (work.end_ns - work.start_ns)[inside])
    where = _op_names(device)[inside]
    none = np.zeros(len(inside), np.int64)
    device.writer.put((at[inside], labels.leaf[inside], labels.what[inside], where), none, occurs)


def share_out(source: I64, length: I64, charge: I64) -> I64:
    """Take each source's charge from its parts, earliest first, never more than they hold; int64 [parts]."""
    if not charge.any():
        return np.zeros(len(source), np.int64)
    order = np.argsort(source, kind="stable")
    held = length[order]
    before = np.cumsum(held) - held
    first = np.append(True, source[order][1:] != source[order][:-1]) if len(order) else np.empty(0, np.bool_)
    before = before - before[first][np.cumsum(first) - 1]
    taken = np.empty(len(source), np.int64)
    taken[order] = np.clip(charge[source[order]] - before, 0, held)
    return taken


def _put_idle(device: _Device) -> tuple[Idle, I32]:
    """Idle time by cause; returns the attributed pieces with their labels."""
    context, work, labels, bounds = device.context, device.work, device.labels, device.bounds
    busy = union(Spans(work.start_ns, work.end_ns))
    free, _ = intersect(Spans(bounds[:-1], bounds[1:]), complement(busy))
    idle = attribute(context.table, work, labels.leaf, Spans(free.start, free.end), context.state, context.lost)
    idle = credit_syncs(context.table, idle, bounds, busy, context.shift_ns, context.state)
    step = np.searchsorted(bounds, idle.start_ns, side="right") - 1
    what = context.places.what(idle)
    where = context.places.where(idle, work, labels.op, context.state, context.shift_ns)
    occurs = (_occurrences(step, idle.row, where), np.zeros(len(step), np.int64))
    device.writer.put((step, idle.leaf, what, where), idle.end_ns - idle.start_ns, occurs)
    return idle, what


def _occurrences(step: I64, row: I64, where: I32) -> I64:
    """1 for each piece that is the first of its host span in its step and place, and for pieces without one; else 0."""
    count = np.ones(len(row), np.int64)
    known = np.flatnonzero(row >= 0)
    _, first = np.unique(np.stack([step[known], row[known], where[known]]), axis=1, return_index=True)
    count[known] = 0
    count[known[first]] = 1
    return count


def step_times(marks: Marks, bounds: I64, ledger: Ledger) -> list[StepTime]:
    """Steps with their leaves; every one is checked against the accounting law."""
    totals = ledger.leaves_ns(len(bounds) - 1, len(LEAVES))
    steps = []
    for index, row in enumerate(totals.tolist()):
        step = StepTime(
            step=int(marks.number[index]),
            start_ns=int(bounds[index]),
            dur_ns=int(bounds[index + 1] - bounds[index]),
            leaves_ns={LEAVES[code].key: ns for code, ns in enumerate(row) if ns},
        )
        step.check()
        steps.append(step)
    return steps
