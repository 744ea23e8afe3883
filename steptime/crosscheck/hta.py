"""What HTA says of one trace file.

HTA is HolisticTraceAnalysis 0.5, an optional package: it is imported when it is asked, and only here.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import extract_tb
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptime.crosscheck.result import Kind
from steptime.errors import StepTimeError, TraceError, UsageError
from steptime.timeline.intervals import Spans, covered
from steptime.trace.events import I8, I64, EventTable
from steptime.trace.source import open_trace

#: Categories that are work of the device, in the current and in the 2021 dialect (kineto_schema.md, section 9).
_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")

#: Names of `hta.utils.utils.KernelType`.
_KIND_OF = {
    "COMPUTATION": Kind.COMPUTE,
    "COMMUNICATION": Kind.COMMUNICATION,
    "MEMORY": Kind.COPY,
    "OTHER": Kind.OTHER,
}

#: What int64 nanoseconds reach, in µs.
_MAX_US = np.iinfo(np.int64).max / 1000


@dataclass(frozen=True, slots=True)
class HtaEvents:
    """HTA's device events, length n.

    start_ns, end_ns int64; kind int8 (`Kind`); name text; is_work bool, False for records that only name a stream;
    ts, dur: µs exactly as HTA holds them (int64 or float64), `ts` from HTA's own zero on.
    """

    start_ns: I64
    end_ns: I64
    kind: I8
    name: NDArray[np.object_]
    is_work: NDArray[np.bool_]
    ts: NDArray[Any]
    dur: NDArray[Any]


@dataclass(frozen=True, slots=True)
class HtaView:
    """HTA's figures int64 ns in the order of `FIGURES`, over [start_ns, end_ns), and what they are made of.

    `zero_us` is HTA's zero in µs of the file's clock and `base_ns` that clock's start; `rounded` says that HTA cut
    events to whole microseconds.
    """

    version: str
    figures: I64
    start_ns: int
    end_ns: int
    events: HtaEvents
    zero_us: float
    base_ns: int
    rounded: bool


class Hta(NamedTuple):
    """What is used of HTA: its own functions and classes."""

    analysis: Any
    kernel_type: Callable[[str], str]
    merge: Callable[[pd.DataFrame], pd.DataFrame]
    keeps_ns: Callable[[], bool]


def import_hta() -> Hta:
    """HTA, or a UsageError that says how to install it."""
    try:
        with _quiet():
            from hta.configs.env_options import disable_ns_rounding
            from hta.trace_analysis import TraceAnalysis
            from hta.utils.utils import get_kernel_type, merge_kernel_intervals
    except ImportError as error:
        raise UsageError(
            f"crosscheck compares with HTA, which can't be imported ({error}): pip install 'steptime[crosscheck]'"
        ) from error
    return Hta(TraceAnalysis, get_kernel_type, merge_kernel_intervals, disable_ns_rounding)


def ask(hta: Hta, table: EventTable) -> HtaView:
    """Let HTA read the file of `table` and give its figures.

    Raises:
        TraceError: HTA can't analyse the file.
    """
    path = table.meta.path
    with TemporaryDirectory(prefix="steptime-") as folder, _quiet():
        plain = _plain_copy(path, Path(folder))
        try:
            return _view(hta, plain, table)
        except StepTimeError:
            raise
        except Exception as error:
            # HTA has no errors of its own: it fails with whatever pandas or Python raises.
            raise TraceError(
                f"{path}: HTA can't analyse this file ({_first_line(error)}); there is nothing to compare with"
            ) from error


def kinds(hta: Hta, names: Iterable[str]) -> I8:
    """HTA's kind of each name, int8 [n]."""
    known = {name: _KIND_OF[hta.kernel_type(name)] for name in set(names)}
    return np.array([known[name] for name in names], np.int8)


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


def _first_line(error: Exception) -> str:
    """The kind of `error` and its first line; of a bare `assert`, the line that failed."""
    text = str(error).strip() or str(extract_tb(error.__traceback__)[-1].line)
    return f"{type(error).__name__}: {text.splitlines()[0][:100]}"


def _plain_copy(path: str, folder: Path) -> Path:
    """The trace as HTA takes it: plain JSON with a suffix that says so, an object and not a bare list."""
    plain = folder / "trace.json"
    with open_trace(path) as source, plain.open("wb") as target:
        head = source.read(1 << 16)
        bare = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        target.write(b'{"traceEvents": ' * bare + head)
        shutil.copyfileobj(source, target)
        target.write(b"}" * bare)
    return plain


def _view(hta: Hta, plain: Path, table: EventTable) -> HtaView:
    # HTA is told the rank, since not every file says it, and to keep the last step, which it leaves out by default.
    rank = table.meta.rank or 0
    analysis = hta.analysis({rank: str(plain)}, str(plain.parent), include_last_profiler_step=True)
    trace = analysis.t
    symbols = np.array(trace.symbol_table.get_sym_table(), object)
    events = trace.traces[rank]
    # The merge with launches doubles an event that has two.
    events = events[events["stream"] != -1].drop_duplicates("index")
    name = symbols[events["name"].to_numpy()]
    kind = kinds(hta, name.tolist())
    base_ns = table.meta.base_ns or 0
    ts, dur = events["ts"].to_numpy(), events["dur"].to_numpy()
    if len(ts) and np.abs(ts + float(trace.min_ts) + base_ns / 1000).max() + dur.max() > _MAX_US:
        raise TraceError(
            f"{table.meta.path}: an event's time is out of reach of nanoseconds; steptime drops it and HTA does not, "
            "so there is no interval to compare over: remove the event or record again"
        )
    began = base_ns + _ns(ts + trace.min_ts)
    figures, span_ns = _figures(hta, analysis, events, kind)
    return HtaView(
        version=version("HolisticTraceAnalysis"),
        figures=figures,
        start_ns=int(began.min()),
        end_ns=int(began.min()) + span_ns,
        events=HtaEvents(
            start_ns=began,
            end_ns=began + _ns(dur),
            kind=kind,
            name=name,
            is_work=np.isin(symbols[events["cat"].to_numpy()].astype(str), _WORK),
            ts=ts,
            dur=dur,
        ),
        zero_us=float(trace.min_ts),
        base_ns=base_ns,
        rounded=bool(((table.start_ns - base_ns) % 1000).any()) and not hta.keeps_ns(),
    )


def _figures(hta: Hta, analysis: Any, events: pd.DataFrame, kind: I8) -> tuple[I64, int]:
    """HTA's figures and its `kernel_time`, in ns.

    Communication and copies are what `get_gpu_kernel_breakdown` adds up; it is not asked itself because it cuts every
    piece to whole microseconds, even where HTA was told to keep nanoseconds.
    """
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    columns = np.array([float(breakdown[f"{name}_time(us)"]) for name in ("compute", "idle", "non_compute", "kernel")])
    compute, idle, non_compute, span = _ns(columns).tolist()
    merged = {wanted: _merged(hta, events[kind == wanted]) for wanted in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY)}
    communication = merged[Kind.COMMUNICATION]
    overlap = int(covered(communication, merged[Kind.COMPUTE]).sum())
    figures = [compute, communication.total(), merged[Kind.COPY].total(), overlap, idle, non_compute]
    return np.array(figures, np.int64), span


def _merged(hta: Hta, events: pd.DataFrame) -> Spans:
    """The union as HTA builds it, in ns: an event that rounding turned inside out stays, with a negative length."""
    merged = hta.merge(events[["ts", "dur"]].copy())
    return Spans(_ns(merged["ts"].to_numpy()), _ns(merged["end"].to_numpy()))


def _ns(micros: NDArray[Any]) -> I64:
    """Microseconds, whole or not, as int64 ns; whole ones exactly, since 1.7e18 is more than a float64 holds."""
    whole: I64 = np.floor(micros).astype(np.int64)
    fraction: I64 = np.rint((micros - whole) * 1000).astype(np.int64)
    ns: I64 = whole * 1000 + fraction
    return ns
