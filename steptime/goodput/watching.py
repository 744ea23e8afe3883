"""A run's own log, watched as it was written: what an alert would have said, and when. In: `Metrics`; out: `Watch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from steptime.errors import LogError
from steptime.goodput.metrics_file import Metrics
from steptime.goodput.spikes import Event, drops, runs_of, spikes
from steptime.goodput.trailing import Bools, Floats, Usual, Window, trailing_median
from steptime.model.inputs import Tool
from steptime.model.watch import Drop, NonFinite, Plateau, Series, Spike, Target, UpdateRatio, Watch

Ints = npt.NDArray[np.int64]

LOSS, GRADIENT, THROUGHPUT, MFU, UPDATE = "loss", "grad_norm", "throughput", "mfu", "update_ratio"
WATCHED = (LOSS, GRADIENT, THROUGHPUT, MFU, UPDATE)
#: Losses are judged as they are; what is positive and varies by factors, by its logarithm.
_WINDOWS = {
    LOSS: Window(trend=48, share=1e-3),
    GRADIENT: Window(trend=48, floor=0.02),
    UPDATE: Window(floor=0.02),
    THROUGHPUT: Window(level=128, noise=256, floor=0.005),
    MFU: Window(level=128, noise=256, floor=0.005),
}
_RATES = (THROUGHPUT, MFU)
#: The gradient norm warned of a spike of the loss if its own alert came in this many rows before, or with it.
_WARNING_ROWS = 50
#: A plateau: no improvement beyond the noise for a fifth of the rows so far, and for at least so many.
_PLATEAU_ROWS = 500
_PLATEAU_SHARE = 0.2
_SMOOTH_ROWS = 64
#: A single lucky batch reaches no target: the median of so many rows must.
TARGET_ROWS = 32
#: Parts of the run of which the extremes are drawn.
_DRAWN_PARTS = 700


@dataclass(frozen=True, slots=True)
class WatchAsk:
    """What is asked of a log. columns: which column holds a quantity of `WATCHED`, where its name does not tell."""

    checkpoint_every: int | None = None
    target_loss: float | None = None
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Column:
    """The rows of the log that have one quantity, in order; `value` may hold NaN and infinity that were logged."""

    what: str
    name: str
    row: Ints
    step: Ints
    time_s: Floats
    value: Floats

    @property
    def judged(self) -> Floats:
        """What is compared: NaN where a row has no number to compare."""
        if self.what == LOSS:
            return np.where(np.isfinite(self.value), self.value, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(self.value)
        return np.where(np.isfinite(logs), logs, np.nan)


class _Spiked(NamedTuple):
    """A spike, and where it stands in the log."""

    spike: Spike
    start_row: int
    alert_row: int


def watch(metrics: Metrics, ask: WatchAsk, tool: Tool) -> Watch:
    """Watch a log.

    Raises:
        LogError: the log has none of the quantities, or not the column that was asked for.
    """
    columns = _columns(metrics, ask)
    series: list[Series] = []
    found: dict[str, list[tuple[Event, _Column]]] = {}
    for column in columns.values():
        events, usual = _judge(column)
        found[column.what] = [(event, column) for event in events]
        series.append(_series(column, usual, events))
    spiked = [
        _Spiked(_spike(event, column, ask), int(column.row[event.start]), int(column.row[event.alert]))
        for what in (LOSS, GRADIENT, UPDATE)
        for event, column in found.get(what, [])
    ]
    loss, ratio = columns.get(LOSS), columns.get(UPDATE)
    known = metrics.time_s[np.isfinite(metrics.time_s)]
    return Watch(
        tool=tool,
        path=metrics.path,
        rows=len(metrics.step),
        first_step=int(metrics.step.min()),
        last_step=int(metrics.step.max()),
        duration_s=float(known.max() - known.min()) if len(known) else None,
        checkpoint_every=ask.checkpoint_every,
        step_backs=int((np.diff(metrics.step) < 0).sum()),
        series=series,
        missing=[what for what in WATCHED if what not in columns],
        spikes=_warned(spiked),
        non_finite=[run for column in columns.values() for run in _non_finite(column, ask)],
        drops=[_drop(event, column) for what in _RATES for event, column in found.get(what, [])],
        plateaus=[] if loss is None else _plateaus(loss),
        target=None if loss is None or ask.target_loss is None else _target(loss, ask.target_loss),
        update_ratio=None if ratio is None else _update_ratio(ratio),
        bad_lines=metrics.bad_lines,
        bad_examples=list(metrics.bad_examples),
        notes=list(metrics.notes),
        warnings=_warnings(metrics, columns, ask),
    )


def _columns(metrics: Metrics, ask: WatchAsk) -> dict[str, _Column]:
    asked = dict(ask.columns)
    found = {}
    for what in WATCHED:
        name = asked.get(what) or metrics.column(what)
        if name is None:
            continue
        if name not in metrics.values:
            known = ", ".join(list(metrics.values)[:8])
            raise LogError(f"{metrics.path}: no column {name!r} of numbers (found: {known}): name another one")
        value = metrics.values[name]
        here = ~np.isnan(value) | metrics.logged_nan.get(name, np.zeros(len(value), np.bool_))
        found[what] = _Column(what, name, np.flatnonzero(here), metrics.step[here], metrics.time_s[here], value[here])
    if not found:
        raise LogError(
            f"{metrics.path}: neither loss, gradient norm, throughput nor MFU among {', '.join(metrics.values)}: "
            "say which column is the loss with --loss"
        )
    return found


def _judge(column: _Column) -> tuple[list[Event], Usual]:
    """The events of a column; positions are those of its rows, also where some hold no number."""
    judged = column.judged
    known = np.flatnonzero(np.isfinite(judged))
    events, usual = (drops if column.what in _RATES else spikes)(judged[known], _WINDOWS[column.what])
    if len(known) == len(judged):
        return events, usual
    level, noise = (np.full(len(judged), np.nan) for _ in range(2))
    level[known], noise[known] = usual.level, usual.noise
    place = known.tolist()
    moved = [
        Event(
            start=place[one.start],
            alert=place[one.alert],
            peak=place[one.peak],
            end=None if one.end is None else place[one.end],
            until=place[one.until],
            level=one.level,
            noise=one.noise,
        )
        for one in events
    ]
    return moved, Usual(level, noise)


def _natural(column: _Column, value: float) -> float:
    """A judged value as it stands in the log."""
    return value if column.what == LOSS else float(np.exp(value))


def _rewind(start_step: int, ask: WatchAsk) -> int | None:
    """The last checkpoint before a step; a checkpoint of step k holds the update of step k."""
    every = ask.checkpoint_every
    if every is None:
        return None
    step = (start_step - 1) // every * every
    return step if step > 0 else None


def _spike(event: Event, column: _Column, ask: WatchAsk) -> Spike:
    step, judged = column.step, column.judged
    rewind = _rewind(int(step[event.start]), ask)
    alert_s = float(column.time_s[event.alert] - _start_s(column))
    return Spike(
        what=column.what,
        start_step=int(step[event.start]),
        alert_step=int(step[event.alert]),
        peak_step=int(step[event.peak]),
        end_step=None if event.end is None else int(step[event.end]),
        usual=_natural(column, event.level),
        peak=float(column.value[event.peak]),
        score=float((judged[event.peak] - event.level) / event.noise),
        alert_s=alert_s if np.isfinite(alert_s) else None,
        rewind_step=rewind,
        redone_steps=None if rewind is None else int(step[event.alert]) - rewind,
    )


def _start_s(column: _Column) -> float:
    known = column.time_s[np.isfinite(column.time_s)]
    return float(known[0]) if len(known) else float("nan")


def _warned(found: list[_Spiked]) -> list[Spike]:
    """Spikes in the order of their alerts; those of the loss with the alert of the gradient norm that came before.

    That one is earlier by up to `_WARNING_ROWS` rows of the log; what it leads to is one trouble, so the rewind goes
    before both.
    """
    ordered = []
    for one in found:
        spike = one.spike
        near = [
            other
            for other in found
            if other.spike.what == GRADIENT and one.start_row - _WARNING_ROWS <= other.alert_row <= one.alert_row
        ]
        if spike.what == LOSS and near:
            first = min(near, key=lambda other: other.alert_row)
            spike = msgspec.structs.replace(spike, warned_step=first.spike.alert_step)
            rewind = first.spike.rewind_step
            if rewind is not None and first.start_row < one.start_row:
                spike = msgspec.structs.replace(spike, rewind_step=rewind, redone_steps=spike.alert_step - rewind)
        ordered.append((one.alert_row, spike))
    return [spike for _, spike in sorted(ordered, key=lambda pair: (pair[0], pair[1].what))]


def _non_finite(column: _Column, ask: WatchAsk) -> list[NonFinite]:
    runs = []
    for kind, odd in (("NaN", np.isnan(column.value)), ("infinite", np.isinf(column.value))):
        for first, last in runs_of(odd):
            runs.append(
                NonFinite(
                    what=column.what,
                    kind=kind,
                    first_step=int(column.step[first]),
                    last_step=int(column.step[last]),
                    rows=last - first + 1,
                    ended=last + 1 < len(odd),
                    rewind_step=_rewind(int(column.step[first]), ask),
                )
            )
    return sorted(runs, key=lambda one: one.first_step)


def _drop(event: Event, column: _Column) -> Drop:
    judged = column.judged
    level = float(np.nanmedian(judged[event.start : event.until + 1]))
    return Drop(
        what=column.what,
        start_step=int(column.step[event.start]),
        alert_step=int(column.step[event.alert]),
        end_step=None if event.end is None else int(column.step[event.end]),
        usual=_natural(column, event.level),
        level=_natural(column, level),
        share=float(-np.expm1(level - event.level)),
        rows=event.until - event.start + 1,
    )


def _plateaus(loss: _Column) -> list[Plateau]:
    """Where the smoothed loss made no new best by more than its own noise for too long.

    The noise of a median of n rows is 1.2533 σ/√n; σ is told by the last rows around their medians.
    """
    known = np.flatnonzero(np.isfinite(loss.value))
    values, steps = loss.value[known], loss.step[known]
    smooth = trailing_median(values, _SMOOTH_ROWS)
    if len(values) < 2 * _PLATEAU_ROWS:
        return []
    away = trailing_median(np.abs(values - np.where(np.isfinite(smooth), smooth, values)), 8 * _SMOOTH_ROWS, 1)
    noise = 1.4826 * away * 1.2533 / np.sqrt(_SMOOTH_ROWS)
    found: list[Plateau] = []
    best, since = float(smooth[_SMOOTH_ROWS - 1]), _SMOOTH_ROWS - 1
    while True:
        lower = np.flatnonzero(smooth[since:] < best - 2 * noise[since:])
        next_best = since + int(lower[0]) if len(lower) else len(values)
        needed = max(_PLATEAU_ROWS, round(_PLATEAU_SHARE * since / (1 - _PLATEAU_SHARE)))
        if next_best - since >= needed:
            found.append(
                Plateau(
                    from_step=int(steps[since]),
                    alert_step=int(steps[since + needed - 1]),
                    to_step=int(steps[next_best]) if len(lower) else None,
                    loss=float(np.median(values[since:next_best])),
                    rows=next_best - since,
                )
            )
        if not len(lower):
            return found
        best, since = float(smooth[next_best]), next_best


def _target(loss: _Column, target: float) -> Target:
    known = np.flatnonzero(np.isfinite(loss.value))
    value, step, time_s = loss.value[known], loss.step[known], loss.time_s[known]
    smooth = trailing_median(value, TARGET_ROWS, min(TARGET_ROWS, max(len(known), 1)))
    reached, single = np.flatnonzero(smooth <= target), np.flatnonzero(value <= target)
    taken_s = float(time_s[reached[0]] - _start_s(loss)) if len(reached) else float("nan")
    return Target(
        loss=target,
        smoothed_rows=TARGET_ROWS,
        step=int(step[reached[0]]) if len(reached) else None,
        time_s=taken_s if np.isfinite(taken_s) else None,
        single_step=int(step[single[0]]) if len(single) else None,
        lowest=float(np.nanmin(smooth)) if len(known) else None,
    )


def _update_ratio(column: _Column) -> UpdateRatio | None:
    known = np.flatnonzero(np.isfinite(column.value))
    if not len(known):
        return None
    value, step = column.value[known], column.step[known]
    low, high = int(np.argmin(value)), int(np.argmax(value))
    return UpdateRatio(
        first=float(value[0]),
        median=float(np.median(value)),
        last=float(value[-1]),
        lowest=float(value[low]),
        lowest_step=int(step[low]),
        highest=float(value[high]),
        highest_step=int(step[high]),
    )


def _series(column: _Column, usual: Usual, events: list[Event]) -> Series:
    known = np.flatnonzero(np.isfinite(column.value))
    numbers = column.value[known]
    watched = np.flatnonzero(np.isfinite(usual.noise))
    drawn = _extremes(numbers, [place for one in events for place in (one.start, one.alert, one.peak)], known)
    some = len(known) > 0
    return Series(
        what=column.what,
        column=column.name,
        rows=len(column.value),
        first=float(numbers[0]) if some else None,
        last=float(numbers[-1]) if some else None,
        lowest=float(numbers.min()) if some else None,
        highest=float(numbers.max()) if some else None,
        usual=float(np.median(numbers[-_SMOOTH_ROWS:])) if some else None,
        noise=float(usual.noise[watched[-1]]) if len(watched) else None,
        watched_from=int(column.step[watched[0]]) if len(watched) else None,
        drawn_step=column.step[known[drawn]].tolist(),
        drawn_value=numbers[drawn].tolist(),
    )


def _extremes(numbers: Floats, extra: list[int], known: Ints) -> Ints:
    """Places of the lowest and highest value of each part of a column, of its ends, and of the rows `extra`."""
    if not len(numbers):
        return np.empty(0, np.int64)
    edges = np.linspace(0, len(numbers), min(len(numbers), _DRAWN_PARTS) + 1).astype(np.int64)
    places = {0, len(numbers) - 1, *np.searchsorted(known, extra).tolist()}
    for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = numbers[first:after]
        places |= {first + int(np.argmin(part)), first + int(np.argmax(part))}
    return np.array(sorted(places), np.int64)


def _warnings(metrics: Metrics, columns: dict[str, _Column], ask: WatchAsk) -> list[str]:
    said = []
    if LOSS not in columns:
        said.append("no column was recognised as the training loss: say which one it is with --loss")
    for column in columns.values():
        odd: Bools = np.isfinite(column.value) & (column.value <= 0)
        if column.what != LOSS and odd.any():
            said.append(f"{column.name}: {int(odd.sum())} rows are zero or less and were not judged")
        if len(column.value) < _WINDOWS[column.what].first + 1:
            rows = _WINDOWS[column.what].first
            said.append(f"{column.name}: {len(column.value)} rows are too few to tell what is usual; {rows} are needed")
    if ask.target_loss is not None and LOSS not in columns:
        said.append("whether the target was reached can't be told without the loss")
    if metrics.bad_lines:
        said.append(f"lines that could not be used: {metrics.bad_lines}")
    return said
