"""What a training run logged at its steps: JSON lines, CSV, one JSON array, or TensorBoard event files.

In: a file, or a folder of event files. Out: `Metrics`, columns in the order in which they were written, so that a step
counter that goes back (a restart) still shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptime.errors import LogError
from steptime.goodput.lines import read_log
from steptime.goodput.records import Records, Row, records_of
from steptime.goodput.timestamps import NO_TIME, Times, parse_times

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: What a column is called, most telling first; compared in lower case, whole or after the last "/".
STEP_NAMES = ("step", "global_step", "iteration", "iter", "train_step", "_step", "steps", "num_updates", "n_iter")
TIME_NAMES = ("timestamp", "_timestamp", "wall_time", "walltime", "datetime", "time", "ts", "created_at", "date")
ELAPSED_NAMES = ("_runtime", "elapsed", "elapsed_s", "elapsed_time", "elapsed_seconds", "relative_time", "runtime")
VALUE_NAMES: dict[str, tuple[str, ...]] = {
    "loss": ("loss", "train_loss", "training_loss", "lm_loss", "lm loss", "train/loss", "loss_metrics/global_avg_loss"),
    "grad_norm": ("grad_norm", "gradient_norm", "gnorm", "grad norm", "global_grad_norm", "total_norm", "grad-norm"),
    "learning_rate": ("learning_rate", "lr", "learning rate", "learning-rate"),
    "throughput": (
        "tokens_per_second",
        "tokens_per_sec",
        "tokens/s",
        "tps",
        "throughput",
        "tokens_per_sec_per_gpu",
        "tokens_per_second_per_gpu",
        "throughput(tps)",
        "samples_per_second",
        "wps",
    ),
    "mfu": ("mfu", "mfu(%)", "mfu_percent"),
    "step_time": ("step_time", "step_time_s", "iteration_time", "time_per_step", "iter_time", "elapsed_per_iteration"),
    "update_ratio": ("update_to_weight_ratio", "update_ratio", "update_to_weight", "update/weight"),
}
_RANK_NAMES = ("rank", "global_rank", "process_index", "process_rank")
_EVENT_MARK = "tfevents"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a run logged. All columns have one entry a row, in the order of the file (files: by their first event).

    time_ns: int64 since 1970 UTC, `NO_TIME` where the row has none. step: int64. values: float64 by column name, NaN
    where the row has none *or* where NaN was logged; logged_nan tells the second: name to bool array, only for columns
    with one. elapsed: times count from the start of the run, not from 1970. bad_lines counts what could not be used;
    bad_examples are its first few with the reason. duplicates: rows left out because the same row stands before.
    naive_times: how many times were written without a zone.
    """

    path: str
    kind: str
    time_ns: Ints
    step: Ints
    values: dict[str, Floats]
    logged_nan: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    elapsed: bool = False
    bad_lines: int = 0
    bad_examples: tuple[str, ...] = ()
    duplicates: int = 0
    naive_times: int = 0
    notes: tuple[str, ...] = ()

    @property
    def time_s(self) -> Floats:
        """float64 seconds since 1970 (or since the start, if `elapsed`), NaN where a row has no time."""
        return np.where(self.time_ns == NO_TIME, np.nan, self.time_ns / 1e9)

    def column(self, what: str) -> str | None:
        """The name of the column that holds `what`, a key of `VALUE_NAMES`; None if there is none."""
        return find_name(self.values, VALUE_NAMES[what])


def find_name(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    """The first of `names` that is one of `wanted`, whole or after its last "/"; order of `wanted` decides."""
    lowered = {name.lower(): name for name in reversed(list(names))}
    tails = {name.rpartition("/")[2]: name for name in reversed(list(lowered))}
    for name in wanted:
        if name in lowered:
            return lowered[name]
    for name in wanted:
        if name in tails:
            return lowered[tails[name]]
    return None


def read_metrics(path: str | Path, zone: str = "UTC") -> Metrics:
    """Read what a run logged; `zone` is the time zone of times that do not say theirs.

    Raises:
        LogError: the file can't be read, has no step, or TensorBoard's reader is not installed.
        UsageError: there is no such time zone.
    """
    name = str(path)
    if Path(name).is_dir() or _EVENT_MARK in Path(name).name:
        from steptime.goodput.tensorboard_files import read_events

        return read_events(name)
    return metrics_of(records_of(name, read_log(name)), zone)


def metrics_of(records: Records, zone: str = "UTC") -> Metrics:
    """The same from records that are read already."""
    names = records.names()
    step_name = find_name(names, STEP_NAMES)
    if step_name is None:
        raise LogError(
            f"{records.path}: no column holds the step (known: {', '.join(STEP_NAMES[:4])}; found: "
            f"{', '.join(names[:8])}): rename the one that does"
        )
    notes = list(records.notes)
    _one_rank(records, names, notes)
    time_name, elapsed = _time_name(records.rows, names, notes)
    kept, steps = _with_steps(records, step_name, notes)
    times = _times(kept, time_name, elapsed, zone)
    used = [at for at in range(len(kept)) if not times.bad[at]]
    for at in np.flatnonzero(times.bad):
        records.refused.add(records.where(kept[at]), f"{time_name} is not a time", kept[at].text)
    used, twice = _without_duplicates(kept, used, times)
    if not used:
        raise LogError(f"{records.path}: no line can be used ({'; '.join(records.refused.examples[:2])})")
    if times.naive and not elapsed:
        notes.append(f"{times.naive} times are written without a time zone and are taken as {zone}")
    values, logged_nan = _values([kept[at] for at in used], [one for one in names if one not in (step_name, time_name)])
    return Metrics(
        path=records.path,
        kind=records.kind,
        time_ns=times.ns[used],
        step=np.array([steps[at] for at in used], np.int64),
        values=values,
        logged_nan=logged_nan,
        elapsed=elapsed,
        bad_lines=records.refused.count,
        bad_examples=tuple(records.refused.examples),
        duplicates=twice,
        naive_times=times.naive,
        notes=tuple(notes),
    )


def _one_rank(records: Records, names: Sequence[str], notes: list[str]) -> None:
    """Where several ranks write into one log, keep the lines of the lowest, and those that are of none."""
    name = find_name(names, _RANK_NAMES)
    if name is None:
        return
    ranks = [_number(row.values.get(name)) for row in records.rows]
    known = sorted({rank for rank in ranks if rank is not None})
    if len(known) > 1:
        before = len(records.rows)
        records.rows = [row for row, rank in zip(records.rows, ranks, strict=True) if rank in (None, known[0])]
        notes.append(f"{before - len(records.rows)} lines of other ranks than {known[0]:.0f} were left out")


def _with_steps(records: Records, step_name: str, notes: list[str]) -> tuple[list[Row], list[int]]:
    """The rows with a step, and the steps; rows with none (an evaluation, a summary at the end) are counted."""
    kept: list[Row] = []
    steps: list[int] = []
    without = 0
    for row in records.rows:
        raw = row.values.get(step_name)
        number = _number(raw)
        if number is None or math.isnan(number):
            if raw in (None, ""):
                without += 1
            else:
                records.refused.add(records.where(row), f"{step_name} is not a number", row.text)
        elif not 0 <= number < 2**63 or number != int(number):
            records.refused.add(records.where(row), f"{step_name} is not a whole number from 0 on", row.text)
        else:
            kept.append(row)
            steps.append(int(number))
    if without:
        notes.append(f"{without} lines without a step were left out")
    return kept, steps


def _time_name(rows: Sequence[Row], names: Sequence[str], notes: list[str]) -> tuple[str | None, bool]:
    """The column with the time, and whether it counts from the start of the run.

    Small numbers under a name such as ``time`` are the time since the start if they grow, else the length of a step.
    """
    for wanted in TIME_NAMES:
        name = find_name(names, (wanted,))
        if name is None:
            continue
        given = [value for row in rows if (value := row.values.get(name)) not in (None, "")]
        if not given:
            continue
        numbers = [number for value in given if (number := _number(value)) is not None and math.isfinite(number)]
        if len(numbers) <= len(given) // 2 or max(numbers) >= 1e8:
            return name, False
        rising = sum(after > before for before, after in zip(numbers, numbers[1:], strict=False))
        if len(numbers) > 2 and rising >= 0.9 * (len(numbers) - 1):
            notes.append(f"{name} counts from the start of the run, so no line has a date")
            return name, True
    name = find_name(names, ELAPSED_NAMES)
    if name is not None:
        notes.append(f"{name} counts from the start of the run, so no line has a date")
    else:
        notes.append("no column holds the time of a line")
    return name, name is not None


def _times(rows: Sequence[Row], name: str | None, elapsed: bool, zone: str) -> Times:
    if name is None:
        nothing = np.full(len(rows), NO_TIME, np.int64)
        return Times(nothing, np.zeros(len(rows), np.bool_), 0)
    raw = [row.values.get(name) for row in rows]
    if not elapsed:
        return parse_times(raw, zone)
    numbers = [_number(value) for value in raw]
    given = np.array([value not in (None, "") for value in raw], np.bool_)
    seconds = np.array([math.nan if number is None else number for number in numbers], np.float64)
    known = np.abs(seconds) < 1e9  # False for NaN
    ns = np.where(known, np.rint(np.where(known, seconds, 0) * 1e9), NO_TIME).astype(np.int64)
    return Times(ns, given & ~known, 0)


def _without_duplicates(rows: Sequence[Row], used: list[int], times: Times) -> tuple[list[int], int]:
    """Leave out a row whose text stood before: with a time it is a copy; without, only right after the first.

    A run that replays steps after a restart may log the very same loss again, and that is no copy.
    """
    seen: set[str] = set()
    before: str | None = None
    single: list[int] = []
    for at in used:
        text = rows[at].text
        copied = text in seen if times.ns[at] != NO_TIME else text == before
        before = text
        seen.add(text)
        if not copied:
            single.append(at)
    return single, len(used) - len(single)


def _values(rows: Sequence[Row], names: Sequence[str]) -> tuple[dict[str, Floats], dict[str, npt.NDArray[np.bool_]]]:
    """The columns that hold a number somewhere, and where NaN was logged."""
    values: dict[str, Floats] = {}
    logged_nan: dict[str, npt.NDArray[np.bool_]] = {}
    for name in names:
        numbers = [_number(row.values.get(name)) for row in rows]
        if all(number is None for number in numbers):
            continue
        values[name] = np.array([math.nan if number is None else number for number in numbers], np.float64)
        nan = np.array([number is not None and math.isnan(number) for number in numbers], np.bool_)
        if nan.any():
            logged_nan[name] = nan
    return values, logged_nan


def _number(value: object) -> float | None:
    """A number, also one written as text; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        try:
            return float(value.rstrip("% ").replace("_", "x"))
        except ValueError:
            return None
    return None
