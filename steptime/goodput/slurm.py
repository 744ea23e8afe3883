"""What Slurm's accounting (`sacct`) tells: one attempt of the job after the other, and how each ended.

Read are ``--parsable2``, ``--parsable`` and the columns of fixed width that sacct prints by itself, as long as they
hold State, Start and End. Between the end of one attempt and the start of the next the run was down. How long training
had stood still before Slurm noticed, and how long loading the checkpoint took after the start, is not in sacct.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from steptime.errors import LogError, UsageError
from steptime.goodput.causes import Cause, cause_by_id
from steptime.goodput.incidents import Incident, RunLog
from steptime.goodput.timestamps import NO_TIME, parse_times

_NEEDED = ("State", "Start", "End")
_ASK = "sacct -D --parsable2 --format=JobID,JobName,State,Start,End,NodeList,AllocTRES"
_GPUS = re.compile(r"gres/gpu(?::[^=,]*)?=(\d+)")
#: How an attempt ended: first word of State, to a cause; source: "JOB STATE CODES" of the sacct manual.
_STATES: dict[str, str] = {
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "LAUNCH_FAILED": "node",
    "PREEMPTED": "preemption",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "CANCELLED": "operator",
    "COMPLETED": "time_limit",
    "OUT_OF_MEMORY": "out_of_memory",
    "FAILED": "unknown",
    "REQUEUED": "unknown",
    "REVOKED": "unknown",
    "STOPPED": "operator",
    "SUSPENDED": "operator",
}
_ALIVE = frozenset({"RUNNING", "COMPLETING", "RESIZING", "STAGE_OUT", "SIGNALING"})
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_NO_TIME = frozenset({"Unknown", "None", "", "N/A"})


@dataclass(frozen=True, slots=True)
class _Attempt:
    start_ns: int | None
    end_ns: int | None
    state: str
    job: str
    name: str
    line: int
    gpus: int | None
    nodes: str
    failed_node: str


def looks_like_sacct(head: str) -> bool:
    """Whether the first line of a file is a header of sacct."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    names = re.split(r"[|,;\s]+", first.strip())
    return "State" in names and any(name.startswith("JobID") for name in names)


def slurm_log(path: str, data: bytes, zone: str = "UTC", job: str | None = None) -> RunLog:
    """Read sacct's output; `job`: name or number of the job, needed if the file holds several.

    Raises:
        LogError: a column is missing, or no attempt can be used.
        UsageError: several jobs, and none was chosen.
    """
    log = RunLog(path, "Slurm accounting", hidden=("detection", "checkpoint", "lost_work"))
    attempts = _attempts(path, data.decode("utf-8", "backslashreplace"), zone, log)
    chosen = _chosen(attempts, job, path)
    started = sorted((one for one in chosen if one.start_ns is not None), key=lambda one: one.start_ns or 0)
    if not started:
        raise LogError(f"{path}: no attempt has started ({'; '.join(log.refused.examples[:2]) or 'all wait'})")
    log.start_ns = started[0].start_ns
    for before, after in zip(started, [*started[1:], None], strict=True):
        if before.end_ns is None:
            continue
        done = after is None and before.state == "COMPLETED"
        if done:
            log.end_ns = before.end_ns
        else:
            log.incidents.append(_incident(path, before, after.start_ns if after else None))
    _overlaps(started, log)
    log.gpus = max((one.gpus for one in started if one.gpus), default=None)
    log.notes.append(
        "Slurm shows neither how long training stood still before an attempt ended nor how long loading took after a "
        "start: the time lost is at least what is shown"
    )
    return log


def _attempts(path: str, text: str, zone: str, log: RunLog) -> list[_Attempt]:
    first = text.lstrip().splitlines()[0]
    delimiter = max("|,;\t", key=first.count)
    rows = list(_parsable(text, delimiter, log) if delimiter in first else _fixed_width(text, log))
    if rows:
        missing = [name for name in _NEEDED if name not in rows[0][1]]
        if missing:
            raise LogError(f"{path}: sacct's output lacks {', '.join(missing)}: run {_ASK}")
    seen: set[tuple[str, ...]] = set()
    single = []
    for line, row in rows:
        key = tuple(row.values())
        log.duplicates += key in seen
        if key not in seen:
            single.append((line, row))
        seen.add(key)
    log.lines = len(single)
    # Steps of a job (123.batch, 123.0) lie inside it.
    jobs = [(line, row) for line, row in single if "." not in row.get("JobID", row.get("JobIDRaw", ""))]
    times = {
        name: parse_times([None if row[name] in _NO_TIME else row[name] for _, row in jobs], zone)
        for name in ("Start", "End")
    }
    naive = sum(column.naive for column in times.values())
    if naive:
        log.notes.append(f"{naive} times are written without a time zone and are taken as {zone}")
    attempts = []
    for at, (line, row) in enumerate(jobs):
        bad = next((name for name, column in times.items() if column.bad[at]), None)
        start, end = (None if int(one.ns[at]) == NO_TIME else int(one.ns[at]) for one in times.values())
        state = (row["State"].split() or [""])[0].rstrip("+").upper()
        wrong = f"{bad} is not a time" if bad else _contradiction(state, start, end)
        if wrong:
            log.refused.add(f"line {line}", wrong, "|".join(row.values()))
            continue
        gpus = _GPUS.search(row.get("AllocTRES", "") or row.get("ReqTRES", ""))
        attempts.append(
            _Attempt(
                start_ns=None if state in _WAITING else start,
                end_ns=end,
                state=state,
                job=row.get("JobID", row.get("JobIDRaw", "")),
                name=row.get("JobName", ""),
                line=line,
                gpus=int(gpus[1]) if gpus else None,
                nodes=row.get("NodeList", ""),
                failed_node=row.get("FailedNode", ""),
            )
        )
    return attempts


def _contradiction(state: str, start: int | None, end: int | None) -> str:
    if state in _WAITING:
        return ""
    if state not in _STATES and state not in _ALIVE:
        return f"{state or 'empty'} is not a state of Slurm"
    if start is None and state in _ALIVE:
        return "runs but has no start"
    if start is not None and end is None and state not in _ALIVE:
        return "is over but has no end"
    if start is not None and end is not None and end < start:
        return "ends before it starts"
    return ""


def _parsable(text: str, delimiter: str, log: RunLog) -> Iterator[tuple[int, dict[str, str]]]:
    header: list[str] | None = None
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(delimiter)]
        if header is None:
            # --parsable ends each line with one more bar.
            header = cells
        elif cells == header:
            continue
        elif len(cells) != len(header):
            log.refused.add(f"line {at}", f"has {len(cells)} fields, the header has {len(header)}", line)
        else:
            yield at, dict(zip(header, cells, strict=True))


def _fixed_width(text: str, log: RunLog) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows under a header and a line of dashes, which says how wide each column is."""
    lines = text.splitlines()
    ruler = next((at for at, line in enumerate(lines) if line.strip() and not line.strip("- ")), None)
    if ruler is None or ruler == 0:
        raise LogError(f"{log.path}: no line of dashes under the header, so columns can't be told: run {_ASK}")
    spans = [match.span() for match in re.finditer("-+", lines[ruler])]
    header = [lines[ruler - 1][begin:end].strip() for begin, end in spans]
    for at, line in enumerate(lines[ruler + 1 :], ruler + 2):
        if not line.strip():
            continue
        if len(line.rstrip()) < spans[-1][0] and line.split()[0] != lines[ruler - 1].split()[0]:
            log.refused.add(f"line {at}", "shorter than the columns", line)
            continue
        yield at, {name: line[begin:end].strip() for name, (begin, end) in zip(header, spans, strict=True)}


def _chosen(attempts: Sequence[_Attempt], job: str | None, path: str) -> list[_Attempt]:
    if job is not None:
        chosen = [one for one in attempts if job in (one.name, one.job)]
        if not chosen:
            raise UsageError(f"{path}: no job is called {job!r}: see the names in the file")
        return chosen
    by_name = Counter(one.name or one.job for one in attempts)
    if len(by_name) > 1:
        names = ", ".join(name for name, _ in by_name.most_common(4))
        raise UsageError(f"{path}: holds {len(by_name)} jobs ({names}): choose one with --job")
    return list(attempts)


def _incident(path: str, attempt: _Attempt, next_start_ns: int | None) -> Incident:
    assert attempt.end_ns is not None
    cause: Cause = cause_by_id(_STATES.get(attempt.state, "unknown"))
    failed = attempt.failed_node if attempt.failed_node not in _NO_TIME else ""
    one_node = attempt.nodes if attempt.nodes and not re.search(r"[\[,]", attempt.nodes) else ""
    return Incident(
        time_ns=attempt.end_ns,
        cause=cause,
        text=attempt.state,
        source=f"{path}: line {attempt.line}",
        detected_ns=attempt.end_ns,
        resumed_ns=next_start_ns,
        host=failed or (one_node if cause.id == "node" else "") or None,
    )


def _overlaps(started: Sequence[_Attempt], log: RunLog) -> None:
    """Two attempts at once are two jobs, or a clock that was set: what is between them can't be told."""
    ends = np.array([one.end_ns if one.end_ns is not None else -1 for one in started[:-1]], np.int64)
    starts = np.array([one.start_ns or 0 for one in started[1:]], np.int64)
    together = int((starts < ends).sum()) + int((ends < 0).sum())
    if together:
        raise LogError(
            f"{log.path}: {together} attempts start before the one before them ends, so they are not one run: "
            "choose the job with --job"
        )
