"""HTA's figures beside steptime's over the same interval, each difference traced to the definition that makes it.

Both tools' device events are matched one by one. Starting from steptime's figures, one definition after another gives
way to HTA's; what a figure moves by is the effect of that definition, so that the effects add up to the difference.
What no known definition moves is `Cause.UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptime.crosscheck.hta import HtaEvents, HtaView, ask, import_hta, kinds
from steptime.crosscheck.result import FIGURES, Cause, Crosscheck, Effect, Example, Kind, Row
from steptime.errors import TraceError, UsageError
from steptime.timeline.intervals import Spans, covered, union
from steptime.timeline.labels import Labels
from steptime.timeline.links import Threads, activities, launch_rows
from steptime.timeline.totals import Totals, totals
from steptime.timeline.work import COMMUNICATION, Ops, label
from steptime.trace.discover import TraceFile, discover
from steptime.trace.events import I8, I64, Category, EventTable
from steptime.trace.parse import parse

_Mask = NDArray[np.bool_]

#: In an array of kinds: not an event of the device.
_NONE = -1


class _Events(NamedTuple):
    """Device events: start_ns, end_ns int64 [n], kind int8 [n]."""

    start_ns: I64
    end_ns: I64
    kind: I8

    def where(self, chosen: _Mask) -> _Events:
        return _Events(self.start_ns[chosen], self.end_ns[chosen], self.kind[chosen])

    def joined(self, other: _Events) -> _Events:
        return _Events(
            np.concatenate([self.start_ns, other.start_ns]),
            np.concatenate([self.end_ns, other.end_ns]),
            np.concatenate([self.kind, other.kind]),
        )


class _Subjects(NamedTuple):
    """The events that a change is about, length k: name, length ns, and kind to either tool (`_NONE`: no event)."""

    name: NDArray[np.object_]
    dur_ns: I64
    steptime: I8
    hta: I8


class _Step(NamedTuple):
    """One definition replaced: the events after it, and those that it is about."""

    cause: Cause
    events: _Events
    subjects: _Subjects


class _Ours(NamedTuple):
    """steptime's events of all devices of a file.

    launched bool [n]: by a call in the file that is not after the last step mark; name: text; devices: how many.
    """

    events: _Events
    launched: _Mask
    name: NDArray[np.object_]
    devices: int


def crosscheck(path: str) -> Crosscheck:
    """Compare HTA with steptime on one trace.

    Args:
        path: one trace file, as `steptime.analyze` takes it.

    Raises:
        UsageError: HTA is not installed, or `path` holds several traces.
        TraceError: steptime or HTA can't read the file, or it has no device events.
    """
    hta = import_hta()
    file = _only_file(path)
    table = parse(file.path, file.size_bytes)
    if not len(table.device.row):
        raise TraceError(f"{file.path}: no GPU events, which HTA's breakdown is about; choose the trace of a GPU rank")
    theirs = ask(hta, table)
    ours, own = _our_events(table, theirs.start_ns, theirs.end_ns)
    steps = list(_steps(ours, theirs, kinds(hta, ours.name.tolist()), bool(_impossible(table))))
    rows = tuple(_rows(own, theirs, steps))
    return Crosscheck(file.path, theirs.version, theirs.end_ns - theirs.start_ns, rows)


def _only_file(path: str) -> TraceFile:
    files = discover([path]).files
    if len(files) > 1:
        raise UsageError(f"{path}: holds {len(files)} traces; name one of them, such as {files[0].path}")
    return files[0]


def _impossible(table: EventTable) -> list[str]:
    """What was done to device events that can't be true; spans of the host are in no figure here."""
    return [what for what in (*table.meta.dropped, *table.meta.clipped) if "host" not in what]


def _our_events(table: EventTable, start_ns: int, end_ns: int) -> tuple[_Ours, I64]:
    """steptime's events, and its figures over the interval, summed over the devices."""
    launches = launch_rows(table)
    threads = Threads(table)
    ops, labels = Ops(table, threads), Labels()
    last_ns = _last_step_end(table)
    found, rows, launched, sums = [], [], [], []
    for device in np.unique(table.device.device).tolist():
        work = activities(table, device, launches, 0)
        labelled = label(table, work, ops, labels)
        is_kernel = table.category[work.row] == Category.KERNEL
        of_kernel = np.where(labelled.klass == COMMUNICATION, Kind.COMMUNICATION, Kind.COMPUTE)
        found.append(_Events(work.start_ns, work.end_ns, np.where(is_kernel, of_kernel, Kind.COPY).astype(np.int8)))
        rows.append(work.row)
        known = work.launch >= 0
        launched.append(known & (table.start_ns[work.launch] <= last_ns))
        sums.append(_own_figures(totals(table, work, labelled, start_ns, end_ns)))
    events = found[0]
    for more in found[1:]:
        events = events.joined(more)
    names = np.array(table.names, object)[table.name[np.concatenate(rows)]]
    return _Ours(events, np.concatenate(launched), names, len(found)), np.sum(sums, axis=0)


def _last_step_end(table: EventTable) -> int:
    """End of the last step mark, as HTA tells marks: after it, a launch may count for nothing to HTA."""
    is_mark = np.array(["ProfilerStep" in name for name in table.names], np.bool_)
    marks = np.flatnonzero(is_mark[table.name] & (table.category == Category.ANNOTATION))
    return int(table.end_ns[marks].max()) if len(marks) else int(table.end_ns.max())


def _own_figures(own: Totals) -> I64:
    overlap_ns = own.comm_ns - own.comm_exposed_ns
    rest_ns = own.busy_ns - own.compute_ns
    return np.array([own.compute_ns, own.comm_ns, own.copy_ns, overlap_ns, own.idle_ns, rest_ns], np.int64)


def _figures(events: _Events, start_ns: int, end_ns: int) -> I64:
    """`FIGURES` of events on one timeline, int64 [6]."""
    start, end = np.clip(events.start_ns, start_ns, end_ns), np.clip(events.end_ns, start_ns, end_ns)
    compute, comm, copy = (
        union(Spans(start[events.kind == kind], end[events.kind == kind]))
        for kind in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY)
    )
    busy_ns, compute_ns = union(Spans(start, end)).total(), compute.total()
    overlap_ns = int(covered(comm, compute).sum())
    idle_ns = end_ns - start_ns - busy_ns
    return np.array([compute_ns, comm.total(), copy.total(), overlap_ns, idle_ns, busy_ns - compute_ns], np.int64)


def _steps(ours: _Ours, theirs: HtaView, named: I8, cleaned: bool) -> Iterator[_Step]:
    """Go from steptime's definitions to HTA's, one at a time; `named`: HTA's kind of each of our events."""
    here, there = _matched(ours, theirs)
    length = ours.events.end_ns - ours.events.start_ns
    none = np.full(len(length), _NONE, np.int8)
    every = _Subjects(ours.name, length, ours.events.kind, named)
    gone = _Subjects(ours.name, length, ours.events.kind, none)

    events = ours.events
    yield _Step(Cause.DEVICES if ours.devices > 1 else Cause.UNKNOWN, events, every)
    events = events._replace(kind=named)
    yield _Step(Cause.KINDS, events, _some(every, named != ours.events.kind))
    unlaunched = ~here & ~ours.launched
    yield _Step(Cause.UNLAUNCHED, events.where(~unlaunched), _some(gone, unlaunched))
    extra = ~there & ~theirs.events.is_work
    with_extra = events.where(~unlaunched).joined(_as_events(theirs.events).where(extra))
    new = _subjects_of(theirs.events)
    yield _Step(Cause.NOT_WORK, with_extra, _some(new, extra))
    both = events.where(here).joined(_as_events(theirs.events).where(~there))
    odd = ~there & theirs.events.is_work
    yield _Step(Cause.CLEANED if cleaned else Cause.UNKNOWN, both, _some(new, odd))


def _matched(ours: _Ours, theirs: HtaView) -> tuple[_Mask, _Mask]:
    """For each event of either tool, whether the other has it too: same name, and same times as HTA holds them."""
    ts = _us(ours.events.start_ns - theirs.base_ns)
    dur = _us(ours.events.end_ns - ours.events.start_ns)
    if theirs.rounded:
        end = np.floor(ts + dur)
        ts = np.ceil(ts)
        dur = end - ts
    mine = pd.MultiIndex.from_arrays([ts - theirs.zero_us, dur, ours.name])
    events = theirs.events
    other = pd.MultiIndex.from_arrays([events.ts.astype(np.float64), events.dur.astype(np.float64), events.name])
    return mine.isin(other), other.isin(mine)


def _us(ns: I64) -> NDArray[np.float64]:
    """The float64 that a JSON reader makes of `ns` written as decimal microseconds."""
    exact = np.abs(ns) < 2**53
    micros: NDArray[np.float64] = np.where(exact, ns / 1000, (ns // 1000) + (ns % 1000) / 1000)
    return micros


def _as_events(events: HtaEvents) -> _Events:
    return _Events(events.start_ns, events.end_ns, events.kind)


def _subjects_of(events: HtaEvents) -> _Subjects:
    none = np.full(len(events.kind), _NONE, np.int8)
    return _Subjects(events.name, events.end_ns - events.start_ns, none, events.kind)


def _some(subjects: _Subjects, chosen: _Mask) -> _Subjects:
    return _Subjects(subjects.name[chosen], subjects.dur_ns[chosen], subjects.steptime[chosen], subjects.hta[chosen])


def _rows(own: I64, theirs: HtaView, steps: list[_Step]) -> Iterator[Row]:
    states = [_figures(step.events, theirs.start_ns, theirs.end_ns) for step in steps]
    causes = [(step.cause, step.subjects) for step in steps]
    same = _subjects_of(theirs.events)._replace(steptime=theirs.events.kind)
    causes.append((_last_cause(theirs), same))
    moved = np.diff([own, *states, theirs.figures], axis=0)
    for at, (figure, made_of) in enumerate(FIGURES.items()):
        effects = tuple(
            _effect(cause, int(moved[step, at]), subjects, made_of)
            for step, (cause, subjects) in enumerate(causes)
            if moved[step, at]
        )
        yield Row(figure, int(theirs.figures[at]), int(own[at]), effects)


def _last_cause(theirs: HtaView) -> Cause:
    """Why the same events, of the same kinds, can still add up to something else."""
    if theirs.rounded:
        return Cause.ROUNDING
    return Cause.FLOATS if theirs.events.ts.dtype.kind == "f" else Cause.UNKNOWN


def _effect(cause: Cause, ns: int, subjects: _Subjects, made_of: tuple[Kind, ...]) -> Effect:
    """The effect on a figure, counted over the events that are of its kinds to either tool."""
    mine = _some(subjects, np.isin(subjects.steptime, made_of) | np.isin(subjects.hta, made_of))
    return Effect(cause, ns, len(mine.name), _costliest(mine))


def _costliest(subjects: _Subjects) -> Example | None:
    if not len(subjects.name):
        return None
    name = pd.Series(subjects.dur_ns).groupby(subjects.name).sum().idxmax()
    first = int(np.flatnonzero(subjects.name == name)[0])
    steptime, hta = int(subjects.steptime[first]), int(subjects.hta[first])
    return Example(str(name), Kind(steptime) if steptime >= 0 else None, Kind(hta) if hta >= 0 else None)
