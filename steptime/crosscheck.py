"""HTA's figures beside steptime's over the same interval, each difference traced to the definition that makes it.

HTA is HolisticTraceAnalysis 0.5, an optional package: it is imported here, and only when it is asked. Both tools'
device events are matched one by one. Starting from steptime's figures, one definition after another gives way to
HTA's; what a figure moves by is the effect of that definition, so that the effects add up to the difference. What is
left, and what no known definition moves, is `Cause.UNKNOWN`.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import extract_tb
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptime.errors import TraceError, UsageError
from steptime.timeline.intervals import Spans, covered, union
from steptime.timeline.labels import Labels
from steptime.timeline.links import Threads, activities, launch_rows
from steptime.timeline.totals import Totals, totals
from steptime.timeline.work import COMMUNICATION, Ops, label
from steptime.trace.discover import TraceFile, discover
from steptime.trace.events import I64, Category, EventTable
from steptime.trace.parse import parse
from steptime.trace.source import open_trace

#: Figures of both tools this close are the same, as a share of steptime's.
AGREEMENT = 0.005

#: The figures compared; `overlap` is communication while a compute kernel runs, `non_compute` busy time outside compute.
FIGURES = ("compute", "communication", "copy", "overlap", "idle", "non_compute")

#: Categories of HTA's frame that are work of the device, in the current and in the 2021 dialect (kineto_schema.md).
_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


class Kind(IntEnum):
    """What a device event does. `OTHER` is a kind of HTA only: busy, and in no other figure."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    OTHER = 3


#: `hta.utils.utils.KernelType` by name.
_KIND_OF = {
    "COMPUTATION": Kind.COMPUTE,
    "COMMUNICATION": Kind.COMMUNICATION,
    "MEMORY": Kind.COPY,
    "OTHER": Kind.OTHER,
}


class Cause(Enum):
    """A difference in definition between HTA 0.5.0 and steptime, with where HTA has it."""

    DEVICES = "one timeline for all devices of the file"  # breakdown_analysis.py: no use of the device
    KINDS = "the kind told by the event's name"  # utils.py: get_kernel_type
    UNLAUNCHED = "events without their launch left out"  # trace.py: _filter_irrelevant_gpu_kernels
    NOT_WORK = "records with a stream counted as work"  # breakdown_analysis.py: trace_df["stream"].ne(-1)
    CLEANED = "impossible events counted"  # steptime.trace.cleaning; HTA has no such step
    ROUNDING = "events cut to whole microseconds"  # trace_parser.py: round_down_time_stamps
    FLOATS = "times as floating-point microseconds"  # trace_parser.py: the JSON numbers of the file
    UNKNOWN = "not known"


class Example(NamedTuple):
    """An event that a cause is about; the kinds are None where both tools agree on them."""

    name: str
    here: Kind | None
    there: Kind | None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one cause adds to a figure of steptime's, in ns, and how many events it is about."""

    cause: Cause
    ns: int
    count: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both tools in ns. The effects add up to the difference."""

    figure: str
    hta_ns: int
    steptime_ns: int
    effects: tuple[Effect, ...]

    @property
    def difference_ns(self) -> int:
        """HTA's figure less steptime's."""
        return self.hta_ns - self.steptime_ns

    @property
    def agrees(self) -> bool:
        """Whether both figures are the same within `AGREEMENT`."""
        return abs(self.difference_ns) <= AGREEMENT * self.steptime_ns

    @property
    def explained(self) -> bool:
        """Whether the figures agree, or would but for causes that are known."""
        unknown_ns = sum(effect.ns for effect in self.effects if effect.cause is Cause.UNKNOWN)
        return self.agrees or abs(unknown_ns) <= AGREEMENT * self.steptime_ns


@dataclass(frozen=True, slots=True)
class Crosscheck:
    """Both tools on one file, over `interval_ns` from the first to the last event that HTA takes for device work."""

    path: str
    hta_version: str
    interval_ns: int
    rows: tuple[Row, ...]


class _Events(NamedTuple):
    """Device events: start_ns, end_ns int64 [n], kind int8 [n]."""

    start_ns: I64
    end_ns: I64
    kind: NDArray[np.int8]

    def where(self, chosen: NDArray[np.bool_]) -> _Events:
        return _Events(*(column[chosen] for column in self))


@dataclass(frozen=True, slots=True)
class _Ours:
    """steptime's device events, all devices of a file in one, and its own figures.

    row, launch int64 [n]: into the table, launch -1 if none; device int64 [n].
    """

    table: EventTable
    events: _Events
    row: I64
    launch: I64
    device: I64
    names: NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class _Theirs:
    """HTA's view of the file: its figures in ns, its events, and its kinds.

    figures int64 [6] in the order of `FIGURES`; frame: ts and dur (µs as HTA has them, ts from `zero_us` on), name,
    category (text); base_ns: what to add to HTA's absolute times.
    """

    version: str
    figures: I64
    start_ns: int
    end_ns: int
    frame: pd.DataFrame
    events: _Events
    zero_us: float
    base_ns: int
    rounded: bool


def crosscheck(path: str) -> Crosscheck:
    """Compare HTA with steptime on one trace.

    Args:
        path: one trace file, as `steptime.analyze` takes it.

    Raises:
        UsageError: HTA is not installed, or `path` holds several traces.
        TraceError: steptime or HTA can't read the file, or it has no device events.
    """
    hta = _import_hta(path)
    file = _only_file(path)
    table = parse(file.path, file.size_bytes)
    if not len(table.device.row):
        raise TraceError(f"{file.path}: no GPU events, which HTA's breakdown is about; choose the trace of a GPU rank")
    with TemporaryDirectory(prefix="steptime-") as folder, _quiet():
        plain = _plain_copy(file.path, Path(folder))
        try:
            theirs = _ask(hta, plain, table)
        except Exception as error:
            # HTA has no errors of its own: it fails with whatever pandas or Python raises.
            raise TraceError(
                f"{file.path}: HTA can't analyse this file ({_cause(error)}); there is nothing to compare with"
            ) from error
        ours, own = _our_events(table, theirs.start_ns, theirs.end_ns)
        rows = _rows(own, ours, theirs, hta)
    return Crosscheck(file.path, theirs.version, theirs.end_ns - theirs.start_ns, rows)


def _cause(error: Exception) -> str:
    """The kind of `error` and its first line, or, for a bare `assert`, the line that failed."""
    text = str(error).strip() or str(extract_tb(error.__traceback__)[-1].line)
    return f"{type(error).__name__}: {text.splitlines()[0][:100]}"


class _Hta(NamedTuple):
    """What is used of HTA."""

    analysis: Any
    kernel_type: Any
    merge: Any
    keeps_ns: Any


def _import_hta(path: str) -> _Hta:
    try:
        with _quiet():
            from hta.configs.env_options import disable_ns_rounding
            from hta.trace_analysis import TraceAnalysis
            from hta.utils.utils import get_kernel_type, merge_kernel_intervals
    except ImportError as error:
        raise UsageError(
            f"{path}: HTA, to compare with, can't be imported ({error}): pip install 'steptime[crosscheck]'"
        ) from error
    return _Hta(TraceAnalysis, get_kernel_type, merge_kernel_intervals, disable_ns_rounding)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep HTA's own log lines and the warnings that its modules cause off the terminal."""
    logger = logging.getLogger("hta")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"hta\.")
            yield
    finally:
        logger.setLevel(level)


def _only_file(path: str) -> TraceFile:
    files = discover([path]).files
    if len(files) > 1:
        raise UsageError(f"{path}: holds {len(files)} traces; name one of them, such as {files[0].path}")
    return files[0]


def _plain_copy(path: str, folder: Path) -> Path:
    """The trace as HTA takes it: plain JSON with a suffix that says so, an object and not a bare list."""
    plain = folder / "trace.json"
    with open_trace(path) as source, plain.open("wb") as target:
        head = source.read(1 << 16)
        bare = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        target.write(b'{"traceEvents": ' * bare + head)
        shutil.copyfileobj(source, target)  # type: ignore[misc]
        target.write(b"}" * bare)
    return plain


def _ask(hta: _Hta, plain: Path, table: EventTable) -> _Theirs:
    """HTA's figures. Its rank is a key of its own, and it is told to keep the last step, which it leaves out by default."""
    rank = table.meta.rank or 0
    analysis = hta.analysis({rank: str(plain)}, str(plain.parent), include_last_profiler_step=True)
    trace = analysis.t
    symbols = np.array(trace.symbol_table.get_sym_table(), object)
    whole = trace.traces[rank]
    frame = whole[whole["stream"] != -1].drop_duplicates("index")
    frame = pd.DataFrame(
        {
            "ts": frame["ts"],
            "dur": frame["dur"],
            "name": symbols[frame["name"].to_numpy()],
            "category": symbols[frame["cat"].to_numpy()],
        }
    )
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    kind = _kinds(hta, frame["name"])
    merged = {wanted: _merged(hta, frame[kind == wanted]) for wanted in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY)}
    overlap = int(covered(merged[Kind.COMMUNICATION], merged[Kind.COMPUTE]).sum())
    base_ns = table.meta.base_ns or 0
    start_ns = base_ns + int(_ns(np.array([frame["ts"].min() + trace.min_ts]))[0])
    compute, idle, non_compute, span = (
        int(_ns(np.array([breakdown[f"{name}_time(us)"]]))[0]) for name in ("compute", "idle", "non_compute", "kernel")
    )
    communication, copy = merged[Kind.COMMUNICATION].total(), merged[Kind.COPY].total()
    began = base_ns + _ns(frame["ts"].to_numpy() + trace.min_ts)
    has_fractions = bool(((table.start_ns - base_ns) % 1000).any())
    return _Theirs(
        version=version("HolisticTraceAnalysis"),
        figures=np.array([compute, communication, copy, overlap, idle, non_compute], np.int64),
        start_ns=start_ns,
        end_ns=start_ns + span,
        frame=frame,
        events=_Events(began, began + _ns(frame["dur"].to_numpy()), kind),
        zero_us=trace.min_ts,
        base_ns=base_ns,
        rounded=has_fractions and not hta.keeps_ns(),
    )


def _kinds(hta: _Hta, names: Sequence[str] | pd.Series[Any]) -> NDArray[np.int8]:
    """HTA's kind of each name, int8 [n]."""
    return np.array([_KIND_OF[hta.kernel_type(name)] for name in names], np.int8)


def _merged(hta: _Hta, events: pd.DataFrame) -> Spans:
    """The union as HTA builds it, ns: an event that rounding turned inside out stays, and has a negative length."""
    merged = hta.merge(events[["ts", "dur"]].copy())
    return Spans(_ns(merged["ts"].to_numpy()), _ns(merged["end"].to_numpy()))


def _ns(micros: NDArray[Any]) -> I64:
    """Microseconds, whole or not, as int64 ns; whole ones exactly, since 1.7e18 is more than a float64 holds."""
    whole = np.floor(micros).astype(np.int64)
    return whole * 1000 + np.rint((micros - whole) * 1000).astype(np.int64)


def _our_events(table: EventTable, start_ns: int, end_ns: int) -> tuple[_Ours, I64]:
    """steptime's events, and its figures over the interval, summed over the devices."""
    launches = launch_rows(table)
    threads = Threads(table)
    ops, labels = Ops(table, threads), Labels()
    found, sums = [], []
    for device in np.unique(table.device.device).tolist():
        work = activities(table, device, launches, 0)
        labelled = label(table, work, ops, labels)
        is_kernel = table.category[work.row] == Category.KERNEL
        kernel_kind = np.where(labelled.klass == COMMUNICATION, Kind.COMMUNICATION, Kind.COMPUTE)
        kind = np.where(is_kernel, kernel_kind, Kind.COPY).astype(np.int8)
        found.append((work.start_ns, work.end_ns, kind, work.row, work.launch, np.full(len(kind), device)))
        sums.append(_figures_of(totals(table, work, labelled, start_ns, end_ns)))
    began, ended, kinds, row, launch, devices = (np.concatenate(column) for column in zip(*found, strict=True))
    names = np.array(table.names, object)[table.name[row]]
    return _Ours(table, _Events(began, ended, kinds), row, launch, devices, names), np.sum(sums, axis=0)


def _figures_of(own: Totals) -> I64:
    overlap = own.comm_ns - own.comm_exposed_ns
    rest = own.busy_ns - own.compute_ns
    return np.array([own.compute_ns, own.comm_ns, own.copy_ns, overlap, own.idle_ns, rest], np.int64)


def _figures(events: _Events, start_ns: int, end_ns: int) -> I64:
    """`FIGURES` of events on one timeline, int64 [6]."""
    start, end = np.clip(events.start_ns, start_ns, end_ns), np.clip(events.end_ns, start_ns, end_ns)
    compute, comm, copy = (
        union(Spans(start[events.kind == kind], end[events.kind == kind]))
        for kind in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY)
    )
    busy_ns = union(Spans(start, end)).total()
    compute_ns = compute.total()
    overlap_ns = int(covered(comm, compute).sum())
    idle_ns = end_ns - start_ns - busy_ns
    return np.array([compute_ns, comm.total(), copy.total(), overlap_ns, idle_ns, busy_ns - compute_ns], np.int64)


class _Change(NamedTuple):
    """What one definition moved: the figures' changes int64 [6], events concerned, examples."""

    cause: Cause
    moved_ns: I64
    count: int
    examples: tuple[Example, ...]


def _rows(own: I64, ours: _Ours, theirs: _Theirs, hta: _Hta) -> tuple[Row, ...]:
    changes = _changes(own, ours, theirs, hta)
    rows = []
    for at, figure in enumerate(FIGURES):
        effects = tuple(
            Effect(change.cause, int(change.moved_ns[at]), change.count, change.examples)
            for change in changes
            if change.moved_ns[at]
        )
        rows.append(Row(figure, int(theirs.figures[at]), int(own[at]), effects))
    return tuple(rows)


def _changes(own: I64, ours: _Ours, theirs: _Theirs, hta: _Hta) -> list[_Change]:
    """Go from steptime's definitions to HTA's, one at a time."""
    here, there = _seen_by_both(ours, theirs)
    cleaned = any("host" not in what for what in ours.table.meta.dropped)
    is_work = theirs.frame["category"].isin(_WORK).to_numpy()
    named = _kinds(hta, ours.names.tolist())
    unlaunched = ~here & (ours.launch < 0)
    odd = Cause.CLEANED if cleaned else Cause.UNKNOWN
    devices = len(np.unique(ours.device))

    events = ours.events
    steps: list[tuple[Cause, _Events, int, tuple[Example, ...]]] = [
        (Cause.DEVICES if devices > 1 else Cause.UNKNOWN, events, devices, ())
    ]
    other_kind = named != events.kind
    examples = _examples(ours.names, other_kind, events, named)
    events = events._replace(kind=named)
    steps.append((Cause.KINDS, events, int(other_kind.sum()), examples))
    events = events.where(~unlaunched)
    steps.append((Cause.UNLAUNCHED, events, int(unlaunched.sum()), ()))
    extra = ~there & ~is_work
    events = _joined(events, theirs.events.where(extra))
    names = theirs.frame["name"].to_numpy(object)
    steps.append((Cause.NOT_WORK, events, int(extra.sum()), _examples(names, extra, theirs.events, None)))
    lost = ~here & ~unlaunched
    events = _joined(ours.events._replace(kind=named).where(here), theirs.events.where(~there))
    steps.append((odd, events, int(max(lost.sum(), (~there & is_work).sum())), ()))

    changes, before = [], own
    for cause, state, count, shown in steps:
        after = _figures(state, theirs.start_ns, theirs.end_ns)
        changes.append(_Change(cause, after - before, count, shown))
        before = after
    last = Cause.ROUNDING if theirs.rounded else Cause.UNKNOWN
    if not theirs.rounded and theirs.frame["ts"].dtype.kind == "f":
        last = Cause.FLOATS
    changes.append(_Change(last, theirs.figures - before, len(theirs.frame), ()))
    return changes


def _joined(first: _Events, second: _Events) -> _Events:
    return _Events(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _seen_by_both(ours: _Ours, theirs: _Theirs) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each event of either tool, whether the other has it too: same name, and same times to HTA's precision."""
    start = ours.events.start_ns - theirs.base_ns
    ts, dur = _us(start), _us(ours.events.end_ns - ours.events.start_ns)
    if theirs.rounded:
        end = np.floor(ts + dur)
        ts = np.ceil(ts)
        dur = end - ts
    mine = pd.MultiIndex.from_arrays([ts - theirs.zero_us, dur, ours.names])
    frame = theirs.frame
    other = pd.MultiIndex.from_arrays([frame["ts"].astype(float), frame["dur"].astype(float), frame["name"]])
    return mine.isin(other), other.isin(mine)


def _us(ns: I64) -> NDArray[np.float64]:
    """The float64 that a JSON reader makes of `ns` written as decimal microseconds."""
    return (ns // 1000).astype(np.float64) + (ns % 1000) / 1000


def _examples(
    names: NDArray[np.object_], chosen: NDArray[np.bool_], events: _Events, named: NDArray[np.int8] | None
) -> tuple[Example, ...]:
    """The two costliest names among the chosen events."""
    at = np.flatnonzero(chosen)
    if not len(at):
        return ()
    cost = pd.Series(events.end_ns[at] - events.start_ns[at]).groupby(names[at]).sum()
    result = []
    for name in cost.sort_values(ascending=False, kind="stable").index[:2]:
        first = at[names[at] == name][0]
        there = Kind(int(events.kind[first] if named is None else named[first]))
        result.append(Example(str(name), None if named is None else Kind(int(events.kind[first])), there))
    return tuple(result)
