"""Interruptions inferred from what a run logged at its steps: the step goes back, or nothing is logged for long.

A restart is taken to have begun at the last line before it, since that is the last sign of progress, and to be over
when the first step after it began: one usual interval between lines before the first line. What lies between can't be
split into detection and restart. Pauses that come every so many steps are taken for checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.errors import LogError
from steptime.goodput.causes import UNKNOWN
from steptime.goodput.incidents import Incident, Progress, RunLog
from steptime.goodput.lines import Refused
from steptime.goodput.metrics_file import VALUE_NAMES, Metrics
from steptime.goodput.timestamps import NO_TIME

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Silence that counts as an interruption though the step goes on: this many usual intervals, and at least this long.
GAP_INTERVALS = 10
GAP_LEAST_NS = 300 * 10**9
#: A step that goes back within this share of the usual interval is a line that was written late; one that begins again
#: within so many of them was never interrupted.
_LATE_SHARE, _NO_PAUSE = 0.5, 1.5
#: A pause is one that is longer than what steps vary by: half an interval, and this many deviations.
_PAUSE_SHARE, _PAUSE_DEVIATIONS = 0.5, 6
#: Pauses are periodic if so many multiples of one number of steps were passed, this share of them with a pause.
_PERIODIC_LEAST, _PERIODIC_SHARE = 3, 0.8
#: A pause of more than so many usual ones, and long enough to be an interruption, is one.
_PAUSE_LONGEST = 3
#: Distances between pauses that are tried, the most frequent first; and how many periods a run may have.
_CANDIDATES, _PERIODS_MOST = 12, 3


@dataclass(frozen=True, slots=True)
class _Rows:
    """The lines with a time, in the order of the file, the clock put right. every: usual steps from line to line."""

    time_ns: Ints
    step: Ints
    pace_ns: float
    every: int
    phase: int

    def resumed_step(self, at: int) -> int:
        """The step that had been done when the run went on before line `at`: the one logged would be next."""
        back = (int(self.step[at]) - self.phase) % self.every or self.every
        return max(int(self.step[at]) - back, 0)


def infer(metrics: Metrics, gap_ns: int | None = None) -> RunLog:
    """The interruptions, pauses and progress that a metrics file shows; `gap_ns`: silence that is an interruption.

    Raises:
        LogError: no line has a time, or fewer than three have.
    """
    log = RunLog(
        metrics.path,
        f"metrics ({metrics.kind})",
        lines=len(metrics.step),
        duplicates=metrics.duplicates,
        refused=Refused(metrics.bad_lines, list(metrics.bad_examples)),
        notes=list(metrics.notes),
        hidden=("detection",),
        logged=tuple(what for what in VALUE_NAMES if metrics.column(what) is not None),
    )
    rows = _rows(metrics, log)
    interval_ns = rows.pace_ns * rows.every
    least_ns = gap_ns if gap_ns is not None else max(round(GAP_INTERVALS * interval_ns), GAP_LEAST_NS)
    dt, dstep = np.diff(rows.time_ns), np.diff(rows.step)
    excess = dt - np.rint(rows.pace_ns * dstep).astype(np.int64)
    pauses = _periodic(rows, dstep, excess, log)
    if pauses.any():
        # A run that fails right after it saved stands still where a pause is due, only longer.
        pauses &= excess < max(least_ns, _PAUSE_LONGEST * float(np.median(excess[pauses])))
    # The same step again after a silence was redone.
    back = (dstep < 0) | ((dstep == 0) & (excess >= least_ns))
    silent = (excess >= least_ns) & (dstep > 0) & ~pauses
    for at in np.flatnonzero(back | silent):
        log.incidents.append(_incident(rows, int(at), bool(back[at]), metrics.path))
    if log.incidents:
        log.notes.append(
            "metrics do not tell why a run was interrupted: each counts as unexpected, unless a list of interruptions "
            "is given beside"
        )
    log.pauses = [_pause(rows, int(at), int(excess[at])) for at in np.flatnonzero(pauses)]
    log.start_ns, log.end_ns = int(rows.time_ns[0]), int(rows.time_ns[-1])
    log.progress = Progress(rows.time_ns, rows.step, rows.pace_ns)
    if silent.any():
        log.notes.append(
            f"silence of {least_ns / 1e9:,.0f} s or more counts as an interruption though no step was repeated "
            f"({int(silent.sum())} of them)"
        )
    slow_ns = int(excess[~(back | silent | pauses) & (excess > 0.5 * interval_ns)].sum())
    if slow_ns:
        log.notes.append(f"slow steps took {slow_ns / 1e9:,.0f} s more than usual; that is left to the step time")
    return log


def _rows(metrics: Metrics, log: RunLog) -> _Rows:
    timed = metrics.time_ns != NO_TIME
    if int(timed.sum()) < 3:
        backs = int((np.diff(metrics.step) < 0).sum())
        raise LogError(
            f"{metrics.path}: {int(timed.sum())} lines have a time, so it can't be told how long the run was down "
            f"(the step goes back {backs} times): log the time with each step"
        )
    if not timed.all():
        log.notes.append(f"{int((~timed).sum())} lines without a time were left out")
    time_ns, step = metrics.time_ns[timed], metrics.step[timed]
    time_ns, step = _in_order(time_ns, step, log)
    dt, dstep = np.diff(time_ns), np.diff(step)
    ahead = (dstep > 0) & (dt > 0)
    if not ahead.any():
        raise LogError(f"{metrics.path}: the step never goes on while time does: check the columns of step and time")
    pace_ns = float(np.median(dt[ahead] / dstep[ahead]))
    every = int(np.median(dstep[ahead]))
    rests, counts = np.unique(step % every, return_counts=True)
    rows = _Rows(time_ns, step, pace_ns, every, int(rests[np.argmax(counts)]))
    return _clock_set_right(rows, log)


def _in_order(time_ns: Ints, step: Ints, log: RunLog) -> tuple[Ints, Ints]:
    """Without lines of an older step that were written late: no time passed, or the step is ahead again at once."""
    interval_ns = _usual_interval(time_ns, step, log)
    late = np.zeros(len(step), np.bool_)
    back = np.diff(step) < 0
    took = np.diff(time_ns)
    # A restart takes at least as long as the steps until its first line do.
    late[1:] = back & (took >= 0) & (took < _LATE_SHARE * interval_ns)
    late[1:-1] |= back[:-1] & (step[2:] > step[:-2])
    for at in np.flatnonzero(late):
        log.refused.add(f"step {step[at]}", "written after a later step, and no restart", "")
    time_ns, step = time_ns[~late], step[~late]
    again = (np.diff(step) < 0) & (step[1:] <= step[0]) & (np.diff(time_ns) < _NO_PAUSE * interval_ns)
    if (again & (np.diff(time_ns) >= 0)).any():
        raise LogError(
            f"{log.path}: the step begins again {int(again.sum())} times without a pause, as one that counts within an "
            "epoch does: log the step over the whole run"
        )
    return time_ns, step


def _usual_interval(time_ns: Ints, step: Ints, log: RunLog) -> float:
    """Median time between lines that are each of a step never seen before; several writers do not shorten it."""
    newest = np.concatenate([[True], step[1:] > np.maximum.accumulate(step)[:-1]])
    took = np.diff(time_ns[newest])
    if not (took > 0).any():
        raise LogError(f"{log.path}: the step never goes on while time does: check the columns of step and time")
    return float(np.median(took[took > 0]))


def _clock_set_right(rows: _Rows, log: RunLog) -> _Rows:
    """Where the time goes back while the step goes on as usual, the clock was set back: later times are moved on."""
    dt, dstep = np.diff(rows.time_ns), np.diff(rows.step)
    wrong = dt < 0
    if not wrong.any():
        return rows
    if (wrong & (dstep <= 0)).any():
        raise LogError(
            f"{log.path}: time and step go back together, so it can't be told how long the run was down: "
            "give the log of each start as its own file, or in the order in which they were written"
        )
    missing = np.where(wrong, np.rint(rows.pace_ns * dstep).astype(np.int64) - dt, 0)
    moved = rows.time_ns.copy()
    moved[1:] += np.cumsum(missing)
    log.notes.append(
        f"the clock goes back {int(wrong.sum())} times (by {-int(dt[wrong].sum()) / 1e9:,.1f} s in all) while the step "
        "goes on: later times are moved on, as if the steps between had taken their usual time"
    )
    return _Rows(moved, rows.step, rows.pace_ns, rows.every, rows.phase)


def _periodic(rows: _Rows, dstep: Ints, excess: Ints, log: RunLog) -> Flags:
    """Which intervals hold a pause that comes every so many steps; several periods are told one after the other."""
    ahead = dstep > 0
    found = np.zeros(len(dstep), np.bool_)
    if not ahead.any():
        return found
    spread = 1.4826 * float(np.median(np.abs(excess[ahead] - np.median(excess[ahead]))))
    paused = ahead & (excess > _PAUSE_SHARE * rows.pace_ns * dstep) & (excess > _PAUSE_DEVIATIONS * spread)
    for _ in range(_PERIODS_MOST):
        period, regular = _period(rows, ahead, paused & ~found)
        if not period:
            break
        found |= regular
        log.notes.append(
            f"a pause every {period:,} steps ({int(regular.sum())} of them) is taken for a checkpoint; evaluations "
            "look the same"
        )
    return found


def _period(rows: _Rows, ahead: Flags, paused: Flags) -> tuple[int, Flags]:
    """The smallest number of steps at whose multiples nearly always a pause stands, and those pauses; 0 for none.

    A pause after a step's line lies behind a multiple, one before it in front.
    """
    before, after = rows.step[:-1], rows.step[1:]
    apart, counts = np.unique(np.diff(after[paused]), return_counts=True)
    usual = apart[np.argsort(-counts, kind="stable")][:_CANDIDATES]
    for period in sorted(int(one) for one in usual if one > rows.every):
        for at in ((after - 1) // period * period >= before, after // period * period > before):
            due = ahead & at
            if int(due.sum()) >= _PERIODIC_LEAST and paused[due].mean() >= _PERIODIC_SHARE:
                return period, due & paused
    return 0, np.zeros(len(paused), np.bool_)


def _pause(rows: _Rows, at: int, excess_ns: int) -> tuple[int, int]:
    """The pause between line `at` and the next, at the side of the line that comes before it is known to be."""
    begin, end = int(rows.time_ns[at]), int(rows.time_ns[at + 1])
    return begin, min(begin + excess_ns, end)


def _incident(rows: _Rows, at: int, back: bool, path: str) -> Incident:
    stopped, seen = int(rows.time_ns[at]), int(rows.time_ns[at + 1])
    last, first = int(rows.step[at]), int(rows.step[at + 1])
    done = rows.resumed_step(at + 1) if back else last
    resumed = max(stopped, seen - round((first - done) * rows.pace_ns))
    why = f"the step goes from {last:,} back to {first:,}" if back else f"nothing between steps {last:,} and {first:,}"
    return Incident(
        time_ns=stopped,
        cause=UNKNOWN,
        text="",
        source=f"{path}: {why}",
        resumed_ns=resumed,
        checkpoint_step=done,
        step=last,
    )
