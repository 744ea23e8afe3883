"""Logs in which somebody wrote down each interruption: CSV or JSON with a time, a cause, and what is known beside.

Columns, each under one of several names: time (needed), cause, detected, resumed, step, last checkpoint step, time of
the last checkpoint, host, event. A row whose event (or cause) is ``start``, ``end`` or ``checkpoint`` is not an
interruption: it says when the run began, when it ended, or that it paused from ``time`` to ``resumed`` to save.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.errors import LogError
from steptime.goodput.causes import cause_of
from steptime.goodput.incidents import Incident, RunLog
from steptime.goodput.records import Records, Row
from steptime.goodput.timestamps import NO_TIME, Times, parse_times

# Not "start" and "end": those of an attempt of the job are as usual as those of an outage, and mean the opposite.
_TIME = ("time", "failed", "failed_at", "failure_time", "interrupted", "interrupted_at", "down_since", "down_at")
_TIMES: dict[str, tuple[str, ...]] = {
    "time": (*_TIME, "timestamp", "date", "datetime", "ts"),
    "detected": ("detected", "detected_at", "detection_time", "detect_time", "noticed"),
    "resumed": ("resumed", "resumed_at", "resume_time", "recovered", "recovered_at", "restarted_at", "up_at"),
    "checkpoint": ("last_checkpoint", "last_checkpoint_time", "last_checkpoint_at"),
}
_CAUSE = ("cause", "reason", "root_cause", "component", "category", "failure", "description")
_EVENT = ("event", "kind", "type")
_HOST = ("host", "node", "hostname", "server", "failed_host", "failed_node")
_STEPS: dict[str, tuple[str, ...]] = {
    "checkpoint_step": ("last_checkpoint_step", "checkpoint_step", "ckpt_step", "resume_step"),
    "step": ("step", "failed_step", "global_step", "iteration", "step_at_failure"),
}
_STARTS = frozenset({"start", "started", "run start", "run_start", "begin"})
_ENDS = frozenset({"end", "ended", "finished", "completed", "run end", "run_end"})
_SAVES = frozenset({"checkpoint", "checkpoint pause", "checkpoint_pause", "save"})


def holds_interruptions(names: Sequence[str]) -> bool:
    """Whether columns of these names are those of an interruption log: a time, and a cause or when it was over."""
    telling = (_TIMES["detected"], _TIMES["resumed"], _CAUSE, _STEPS["checkpoint_step"])
    return _named(names, _TIMES["time"]) is not None and any(_named(names, known) is not None for known in telling)


def interruption_log(records: Records, zone: str = "UTC") -> RunLog:
    """Read an interruption log.

    Raises:
        LogError: no row can be used.
        UsageError: there is no such time zone.
    """
    log = RunLog(records.path, f"interruption log ({records.kind})", lines=len(records.rows), refused=records.refused)
    log.notes += records.notes
    names = records.names()
    rows = _single(records.rows, log)
    columns = {what: _named(names, known) for what, known in _TIMES.items()}
    times = {what: parse_times([row.values.get(name or "") for row in rows], zone) for what, name in columns.items()}
    cause_name, event_name, host_name = (_named(names, known) for known in (_CAUSE, _EVENT, _HOST))
    step_names = {what: _named(names, known) for what, known in _STEPS.items()}
    unused = sorted(set(names) - {*columns.values(), cause_name, event_name, host_name, *step_names.values()})
    if unused:
        log.notes.append(f"columns not used: {', '.join(unused[:8])}")
    naive = sum(column.naive for column in times.values())
    if naive:
        log.notes.append(f"{naive} times are written without a time zone and are taken as {zone}")
    before: int | None = None
    back = 0
    for at, row in enumerate(rows):
        where = f"{records.path}: {records.where(row)}"
        wrong = _wrong(at, times, columns)
        steps, bad_step = _steps(row, step_names)
        if wrong or bad_step:
            log.refused.add(records.where(row), wrong or bad_step, row.text)
            continue
        found = {what: _known(column, at) for what, column in times.items()}
        time_ns = found["time"]
        assert time_ns is not None  # `_wrong` refuses a row without one
        text = str(row.values.get(cause_name or "", "") or "")
        event = str(row.values.get(event_name or "", "") or "").strip().lower()
        mark = event or text.strip().lower()
        if mark in _STARTS and steps["step"] is not None:
            log.start_step = steps["step"]
        if _is_mark(log, mark, time_ns, found["resumed"]):
            continue
        back += before is not None and time_ns < before
        before = time_ns
        log.incidents.append(
            Incident(
                time_ns=time_ns,
                cause=cause_of(text or event),
                text=text or event,
                source=where,
                detected_ns=found["detected"],
                resumed_ns=found["resumed"],
                checkpoint_ns=found["checkpoint"],
                checkpoint_step=steps["checkpoint_step"],
                step=steps["step"],
                host=str(row.values.get(host_name or "", "") or "") or None,
            )
        )
    if back:
        log.notes.append(f"{back} lines are of an earlier time than the line before; all were put in order")
    log.incidents.sort(key=lambda incident: incident.time_ns)
    if not log.incidents and log.start_ns is None:
        raise LogError(f"{records.path}: no line can be used ({'; '.join(log.refused.examples[:2])})")
    return log


def _named(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first of `known` that is one of `names`, in any case and with spaces or underscores between words."""
    plain = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in reversed(names)}
    return next((plain[name] for name in known if name in plain), None)


def _single(rows: Sequence[Row], log: RunLog) -> list[Row]:
    """The rows without exact copies of earlier ones, which are counted."""
    first = {row.text: row for row in reversed(rows)}
    single = [row for row in rows if first[row.text] is row]
    log.duplicates = len(rows) - len(single)
    return single


def _known(column: Times, at: int) -> int | None:
    ns = int(column.ns[at])
    return None if ns == NO_TIME else ns


def _wrong(at: int, times: dict[str, Times], columns: dict[str, str | None]) -> str:
    """What contradicts itself in a row's times; empty if nothing does."""
    for what, column in times.items():
        if column.bad[at]:
            return f"{columns[what]} is not a time"
    ns = {what: _known(column, at) for what, column in times.items()}
    begun = ns["time"]
    if begun is None:
        return "has no time"
    for later in ("detected", "resumed"):
        known = ns[later]
        if known is not None and known < begun:
            return f"{later} before it began"
    if ns["detected"] is not None and ns["resumed"] is not None and ns["resumed"] < ns["detected"]:
        return "resumed before it was detected"
    if ns["checkpoint"] is not None and ns["checkpoint"] > begun:
        return "its last checkpoint is later than it"
    return ""


def _steps(row: Row, names: dict[str, str | None]) -> tuple[dict[str, int | None], str]:
    """The row's step numbers, and what is wrong with them."""
    found: dict[str, int | None] = {}
    for what, name in names.items():
        raw = row.values.get(name or "")
        found[what] = None
        if raw is None or raw == "":
            continue
        try:
            number = float(str(raw))
        except ValueError:
            return found, f"{name} is not a number"
        if not np.isfinite(number) or number != int(number) or number < 0:
            return found, f"{name} is not a whole number from 0 on"
        found[what] = int(number)
    step, saved = found["step"], found["checkpoint_step"]
    if step is not None and saved is not None and saved > step:
        return found, "its last checkpoint is of a later step than it"
    return found, ""


def _is_mark(log: RunLog, event: str, time_ns: int, resumed_ns: int | None) -> bool:
    """Take note of a row that is no interruption; False if it is one."""
    if event in _STARTS:
        log.start_ns = min(time_ns, log.start_ns if log.start_ns is not None else time_ns)
    elif event in _ENDS:
        log.end_ns = max(time_ns, log.end_ns if log.end_ns is not None else time_ns)
    elif event in _SAVES:
        log.pauses = [*(log.pauses or []), (time_ns, time_ns if resumed_ns is None else resumed_ns)]
        if resumed_ns is None:
            log.notes.append("a checkpoint without the time at which training went on counts as a pause of no length")
    else:
        return False
    return True
