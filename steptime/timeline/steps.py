"""Where a step begins and ends.

Host marks come from one of five sources; windows lie on the device, from completion to completion (DESIGN 1.1): the
window of step k is [B(k-1), B(k)), B(k) being the end of the last activity launched inside step k on the main compute
stream. A training step is the span up to and including one optimizer update.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.errors import TraceError
from steptime.timeline.links import Activities
from steptime.trace.events import I64, Category, EventTable

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")
_HOST = (Category.CPU_OP, Category.ANNOTATION)

_NONE, _ENDLESS = np.empty(0, np.int64), np.iinfo(np.int64).max

WHOLE_RECORDING = "the whole recording (no step marks)"


class Marks(msgspec.Struct, frozen=True):
    """Host marks of k steps in time order: number, start_ns, end_ns int64 [k]; track of the marking thread, -1 if none.

    updated bool [k]: whether an optimizer update lies inside; None if the recording has no optimizer spans.
    source: one line that says where the marks come from.
    """

    number: I64
    start_ns: I64
    end_ns: I64
    track: int
    source: str
    updated: NDArray[np.bool_] | None = None
    notes: tuple[str, ...] = ()


def find_marks(table: EventTable, marker: str | None = None) -> Marks:
    """Host marks by the first source that the recording has.

    Args:
        table: one file's events.
        marker: a regular expression on annotation names; overrides all other sources. The first group of digits in the
            name is the step's number.

    Raises:
        TraceError: `marker` matches nothing; the message lists regularly repeating annotations.
    """
    names = _NameRows(table)
    if marker is not None:
        rows = names.matching(re.compile(marker))
        if not len(rows):
            raise TraceError(
                f"{table.meta.path}: no annotation matches --step-marker {marker!r}; repeating ones are: "
                f"{', '.join(names.candidates()) or 'none'}"
            )
        return _merged(table, names, _outer(table, rows, f"marks that match {marker!r}"))
    rows = names.matching(_PROFILER_STEP)
    if len(rows):
        return _merged(table, names, _outer(table, rows, "ProfilerStep marks"))
    rows = names.matching(_OPTIMIZER)
    if len(rows):
        marks = _between_updates(table, names, rows)
        if len(marks.number):
            return marks
    return whole_recording(table)


def whole_recording(table: EventTable) -> Marks:
    """One step from the first to the last recorded event."""
    rows = table.rows(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, *_DEVICE)
    if not len(rows):
        rows = np.arange(len(table.start_ns))
    start, end = table.start_ns[rows], table.start_ns[rows] + table.dur_ns[rows]
    track = _busiest_track(table)
    one = np.zeros(1, np.int64)
    return Marks(one, one + int(start.min()), one + int(end.max()), track, WHOLE_RECORDING)


_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def _busiest_track(table: EventTable) -> int:
    rows = table.rows(Category.RUNTIME)
    rows = rows if len(rows) else table.rows(Category.CPU_OP)
    return int(np.bincount(table.track[rows]).argmax()) if len(rows) else -1


class _NameRows:
    """Host rows by name pattern; patterns run over the interned names only."""

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self.rows = table.rows(*_HOST)

    def matching(self, pattern: re.Pattern[str]) -> I64:
        wanted = np.array([bool(pattern.search(name)) for name in self.table.names], np.bool_)
        rows = self.rows[wanted[self.table.name[self.rows]]] if len(wanted) else self.rows[:0]
        return rows[np.argsort(self.table.start_ns[rows], kind="stable")]

    def candidates(self) -> list[str]:
        """Annotations that repeat most regularly: the ones worth giving to --step-marker."""
        table = self.table
        rows = self.rows[table.category[self.rows] == Category.ANNOTATION]
        found: dict[str, list[int]] = {}
        for row in rows.tolist():
            found.setdefault(re.sub(r"\d+", "N", table.names[table.name[row]]), []).append(int(table.start_ns[row]))
        spread = {name: _irregularity(starts) for name, starts in found.items() if len(starts) > 2}
        return sorted(spread, key=lambda name: spread[name])[:5]


def _irregularity(starts: list[int]) -> float:
    gaps = np.diff(np.sort(np.array(starts, np.float64)))
    return float(np.std(gaps) / max(float(np.mean(gaps)), 1.0))


def _outer(table: EventTable, rows: I64, source: str) -> Marks:
    """Marks start to start; the last one ends at its own end. A mark inside another of the same source is skipped."""
    start, end = table.start_ns[rows], table.start_ns[rows] + table.dur_ns[rows]
    reached = np.append(np.int64(np.iinfo(np.int64).min), np.maximum.accumulate(end)[:-1])
    # Kineto rounds a mark's end and the next one's start separately: they may touch or overlap by a little.
    rows = rows[start + table.dur_ns[rows] // 2 >= reached]
    start = table.start_ns[rows]
    end = np.append(start[1:], start[-1] + table.dur_ns[rows[-1]])
    digits = [re.search(r"(\d+)\D*$", table.names[name]) for name in table.name[rows].tolist()]
    numbers = [int(found[1]) if found else at for at, found in enumerate(digits)]
    if len(set(numbers)) < len(numbers):
        numbers = list(range(len(rows)))
    return Marks(np.array(numbers, np.int64), start, end, int(table.track[rows[0]]), source)


def _between_updates(table: EventTable, names: _NameRows, rows: I64) -> Marks:
    """Optimizer spans, start to start. Spans without backward work between them belong to one update."""
    start = table.start_ns[rows]
    backward = np.sort(table.start_ns[names.matching(_BACKWARD)])
    if len(backward):
        before = np.searchsorted(backward, start)
        first = np.append(True, before[1:] > before[:-1])
    else:
        gaps = np.diff(start)
        first = np.append(True, gaps > 0.1 * np.max(gaps)) if len(gaps) else np.ones(1, np.bool_)
    rows, start = rows[first], start[first]
    source = "Optimizer.step spans, start to start (no ProfilerStep marks)"
    numbers = np.arange(len(rows) - 1, dtype=np.int64)
    return Marks(numbers, start[:-1], start[1:], int(table.track[rows[0]]), source, np.ones(len(rows) - 1, np.bool_))


def _merged(table: EventTable, names: _NameRows, marks: Marks) -> Marks:
    """Merge marks without an update with the next one that has one (a mark per micro-batch).

    A mark without an update is a micro-batch only if it has backward work; without (an evaluation, a checkpoint) it
    stays a step of its own.
    """
    updates = table.start_ns[names.matching(_OPTIMIZER)]
    if not len(updates):
        return msgspec.structs.replace(marks, notes=("no optimizer spans: each mark is taken as one step",))
    edges = np.append(marks.start_ns, marks.end_ns[-1])
    count = len(marks.number)

    def any_inside(times: I64) -> NDArray[np.bool_]:
        at = np.searchsorted(edges, times, side="right") - 1
        inside = at[(at >= 0) & (at < count)]
        return np.bincount(inside, minlength=count) > 0

    updated = any_inside(updates)
    backward = table.start_ns[names.matching(_BACKWARD)]
    trained = any_inside(backward) if len(backward) else np.ones(count, np.bool_)
    last = updated | ~trained | np.append(~trained[1:], True)
    first = np.append(True, last[:-1])
    if last.all():
        return msgspec.structs.replace(marks, updated=updated)
    begin, stop = np.flatnonzero(first), np.flatnonzero(last)
    merged = int(np.max(stop - begin)) + 1
    return msgspec.structs.replace(
        marks,
        number=marks.number[stop],
        start_ns=marks.start_ns[begin],
        end_ns=marks.end_ns[stop],
        updated=updated[stop],
        source=f"{marks.source}, up to {merged} merged per optimizer update",
    )


def shifted(marks: Marks, by_ns: int) -> Marks:
    """The marks on a clock that shows `by_ns` more."""
    return msgspec.structs.replace(marks, start_ns=marks.start_ns + by_ns, end_ns=marks.end_ns + by_ns)


def windows(marks: Marks, work: Activities, on_main: NDArray[np.bool_], lost_ns: I64 = _NONE) -> tuple[I64, I64]:
    """Device windows of the steps.

    Where the record of a step's last kernel is lost, the step lasts until its other work that was done before the next
    step's first kernel: a lower bound of where it ended.

    Args:
        marks: k host marks, on the device's clock.
        work: m activities of one device.
        on_main: bool [m], whether an activity runs on the main compute stream.
        lost_ns: when work was launched whose records are missing, int64 [l], on the device's clock.

    Returns:
        boundaries int64 [k+1], ascending: window of step i is [b[i], b[i+1]); step int64 [m]: the step in which each
        activity was launched, -1 before the first and k after the last.
    """
    count = len(marks.number)
    edges = np.append(marks.start_ns, marks.end_ns[-1])
    has_launches = bool(work.launched.any())
    when = np.where(work.launched, work.launch_ns, work.start_ns if not has_launches else np.int64(-1))
    step = np.searchsorted(edges, when, side="right") - 1
    first_own = _first(work.start_ns[(step == 0) & on_main], default=marks.start_ns[0])
    # An activity without a recorded launch is work from before the recording only if it ran before the first own work.
    unknown = ~work.launched & has_launches
    step = np.where(unknown & (work.start_ns >= first_own), count + 1, step)
    head = work.end_ns[(step < 0) & (work.launched | (work.start_ns < first_own))]
    ends = _latest(step[on_main], work.end_ns[on_main], count)
    fallback = _latest(step, work.end_ns, count)
    ends = np.where(ends >= 0, ends, np.where(fallback >= 0, fallback, marks.end_ns))
    if len(lost_ns):
        lost_in = np.searchsorted(edges, lost_ns, side="right") - 1
        ends = np.maximum(ends, _ends_without_last(step, work, on_main, _latest(lost_in, lost_ns, count)))
    begin = max(int(marks.start_ns[0]), int(head.max()) if len(head) else 0)
    return np.maximum.accumulate(np.append(begin, ends)), np.where(step > count, -1, step)


def _first(times: I64, default: int) -> int:
    return int(times.min()) if len(times) else int(default)


def _latest(step: I64, time_ns: I64, count: int) -> I64:
    """The latest time in each of the first `count` steps, int64 [k]; -1 where there is none."""
    latest = np.full(count, -1, np.int64)
    inside = (step >= 0) & (step < count)
    np.maximum.at(latest, step[inside], time_ns[inside])
    return latest


def _ends_without_last(step: I64, work: Activities, on_main: NDArray[np.bool_], last_lost_ns: I64) -> I64:
    """Where steps end at least whose last kernel is lost, int64 [k]; -1 for the others, and where none follows.

    last_lost_ns: the last launch without a record in each step, int64 [k], -1 for none.
    """
    count = len(last_lost_ns)
    launched = on_main & work.launched
    last_seen = _latest(step[launched], work.launch_ns[launched], count)
    begins = np.full(count + 1, _ENDLESS)
    later = np.flatnonzero(on_main & (step > 0))
    np.minimum.at(begins, np.minimum(step[later], count), work.start_ns[later])
    next_start = np.minimum.accumulate(begins[::-1])[::-1][1:]
    cut = (last_lost_ns > last_seen) & (last_seen >= 0) & (next_start < _ENDLESS)
    own = np.flatnonzero((step >= 0) & (step < count))
    done = own[cut[step[own]] & (work.end_ns[own] <= next_start[step[own]])]
    return _latest(step[done], work.end_ns[done], count)


def host_windows(marks: Marks) -> I64:
    """Windows of a rank without a device: mark to mark; boundaries int64 [k+1]."""
    return np.append(marks.start_ns, marks.end_ns[-1])
