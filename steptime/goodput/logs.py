"""Files to what they tell of the run: each file is recognised by what it holds, and several become one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steptime.errors import LogError
from steptime.goodput.incidents import Incident, RunLog
from steptime.goodput.interruption_log import holds_interruptions, interruption_log
from steptime.goodput.kubernetes import kubernetes_log, looks_like_events
from steptime.goodput.lines import read_log
from steptime.goodput.metrics_file import STEP_NAMES, Metrics, find_name, metrics_of, read_metrics
from steptime.goodput.records import records_of
from steptime.goodput.restarts import infer
from steptime.goodput.slurm import looks_like_sacct, slurm_log
from steptime.goodput.timestamps import NO_TIME

_HEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read logs. zone: time zone of times that do not say theirs. job: the job, where a log holds several.

    gap_ns: silence in a metrics file that is an interruption.
    """

    zone: str = "UTC"
    job: str | None = None
    gap_ns: int | None = None


def read_logs(paths: Sequence[str], how: Reading) -> list[RunLog]:
    """Read every file; the metrics files among them are taken for one run that was started several times.

    Raises:
        LogError: a file can't be read, or is none that steptime knows.
        UsageError: a file holds several jobs, or there is no such time zone.
    """
    logs: list[RunLog] = []
    metrics: list[Metrics] = []
    for path in dict.fromkeys(paths):
        found = _read(path, how)
        if isinstance(found, Metrics):
            metrics.append(found)
        else:
            logs.append(found)
    if metrics:
        logs.append(infer(_one_run(metrics), how.gap_ns))
    return logs


def _read(path: str, how: Reading) -> RunLog | Metrics:
    if Path(path).is_dir() or "tfevents" in Path(path).name:
        return read_metrics(path, how.zone)
    data = read_log(path)
    head = data[:_HEAD_BYTES]
    if head.lstrip().startswith(b"{") and b'"schema_version"' in head and b'"tool"' in head:
        raise LogError(f"{path}: a report of steptime, not a log: give the log that it was made from")
    if looks_like_events(head):
        return kubernetes_log(path, data, how.zone, how.job)
    if looks_like_sacct(head.decode("utf-8", "replace")):
        return slurm_log(path, data, how.zone, how.job)
    records = records_of(path, data)
    names = records.names()
    if holds_interruptions(names):
        return interruption_log(records, how.zone)
    if find_name(names, STEP_NAMES) is not None:
        return metrics_of(records, how.zone)
    if find_name(names, ("start", "start_time", "begin")) and find_name(names, ("end", "end_time", "stop")):
        raise LogError(
            f"{path}: columns {', '.join(names[:6])} do not say whether start and end are those of an attempt or of an "
            "interruption: call those of an interruption time and resumed"
        )
    raise LogError(
        f"{path}: neither interruptions (columns time and cause or resumed), nor metrics (a step), nor sacct, nor "
        f"Kubernetes events (found: {', '.join(names[:8])}): name the columns so"
    )


def _one_run(metrics: Sequence[Metrics]) -> Metrics:
    """The rows of all files in the order of their first times."""
    if len(metrics) == 1:
        return metrics[0]
    undated = [one for one in metrics if one.elapsed or not (one.time_ns != NO_TIME).any()]
    if undated:
        raise LogError(f"{undated[0].path}: its lines have no date, so it can't be put among the other files")
    ordered = sorted(metrics, key=lambda one: int(one.time_ns[one.time_ns != NO_TIME][0]))
    names = set.intersection(*(set(one.values) for one in ordered))
    return Metrics(
        path=", ".join(one.path for one in ordered),
        kind="several files",
        time_ns=np.concatenate([one.time_ns for one in ordered]),
        step=np.concatenate([one.step for one in ordered]),
        values={name: np.concatenate([one.values[name] for one in ordered]) for name in sorted(names)},
        bad_lines=sum(one.bad_lines for one in ordered),
        bad_examples=tuple(text for one in ordered for text in one.bad_examples)[:5],
        duplicates=sum(one.duplicates for one in ordered),
        notes=tuple(dict.fromkeys(note for one in ordered for note in one.notes)),
    )


@dataclass(frozen=True, slots=True)
class Merged:
    """The interruptions of all logs, in order of time.

    duplicates: told by two logs; matched: with the run's own metrics; joined: of the same moment and cause as another.
    """

    incidents: list[Incident]
    duplicates: int
    matched: int
    joined: int


def merge(logs: Sequence[RunLog]) -> Merged:
    """One list of interruptions; one that was inferred from metrics is told by its cause in another log."""
    told = sorted(
        (one for log in logs if log.progress is None for one in log.incidents), key=lambda incident: incident.time_ns
    )
    distinct = list({(one.time_ns, one.cause.id, one.text, one.host): one for one in reversed(told)}.values())[::-1]
    single: dict[tuple[int, str], Incident] = {}
    for one in distinct:
        key = (one.time_ns, one.cause.id)
        single[key] = _together(single[key], one) if key in single else one
    merged, matched = list(single.values()), 0
    slack_ns = 0
    for log in logs:
        if log.progress is None:
            continue
        # A failure lies after the last line before it, and a line may have been due.
        slack_ns = round(log.progress.pace_ns * 2)
        for seen in log.incidents:
            over = seen.resumed_ns if seen.resumed_ns is not None else seen.time_ns
            same = [
                at
                for at, one in enumerate(merged)
                if one.source != seen.source and seen.time_ns - slack_ns <= one.time_ns <= over + slack_ns
            ]
            if not same:
                merged.append(seen)
                continue
            matched += 1
            for at in same:
                one = merged[at]
                merged[at] = replace(
                    one,
                    resumed_ns=one.resumed_ns if one.resumed_ns is not None else seen.resumed_ns,
                    checkpoint_step=one.checkpoint_step if one.checkpoint_step is not None else seen.checkpoint_step,
                    step=one.step if one.step is not None else seen.step,
                )
    merged.sort(key=lambda incident: incident.time_ns)
    return Merged(merged, len(told) - len(distinct), matched, len(distinct) - len(single))


def _together(one: Incident, other: Incident) -> Incident:
    """Two records of the same moment and cause, on two hosts say: one interruption, over when the later one is."""
    return replace(
        one,
        detected_ns=_least(one.detected_ns, other.detected_ns),
        resumed_ns=None
        if one.resumed_ns is None or other.resumed_ns is None
        else max(one.resumed_ns, other.resumed_ns),
        checkpoint_ns=_least(one.checkpoint_ns, other.checkpoint_ns),
        checkpoint_step=_least(one.checkpoint_step, other.checkpoint_step),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((ns for ns in (one, other) if ns is not None), default=None)
