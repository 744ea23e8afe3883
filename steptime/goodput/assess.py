"""Logs of a run in, `GoodputReport` out: where the time went, how often it fails, what that cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steptime.errors import UsageError
from steptime.goodput import account
from steptime.goodput.account import Timeline
from steptime.goodput.costs import HOUR_NS, Money, checkpoint_habit, cost_of
from steptime.goodput.incidents import Incident, RunLog
from steptime.goodput.logs import Merged, Reading, merge, read_logs
from steptime.goodput.lost_work import Known, Rhythm, lost_windows, running
from steptime.goodput.rates import rate_of, repeating_hosts, trend_of
from steptime.goodput.reference import reference_runs
from steptime.goodput.tables import cause_rows, interruption_rows, log_rows, part_rows, profile_of, segment_columns
from steptime.goodput.timestamps import parse_times
from steptime.model.goodput import GoodputReport, Rate, Trend
from steptime.model.inputs import Tool


@dataclass(frozen=True, slots=True)
class Options:
    """What the logs do not say.

    since, until: begin and end of the run, as a log would write them. gpus, hosts: how many the run had. step_ns: time
    of one step; rhythm: checkpoints, where the log has none.
    """

    reading: Reading = Reading()
    since: str | None = None
    until: str | None = None
    gpus: int | None = None
    hosts: int | None = None
    step_ns: float | None = None
    rhythm: Rhythm | None = None
    money: Money = Money()


@dataclass(frozen=True, slots=True)
class _Run:
    """The run between its begin and its end. spanned: whether both are known; else they are the first and last time."""

    start_ns: int
    end_ns: int
    spanned: bool
    incidents: list[Incident]
    pauses: list[tuple[int, int]]
    notes: list[str]
    cannot: list[str]


def assess(paths: Sequence[str], options: Options = Options()) -> GoodputReport:  # noqa: B008 - frozen
    """Say how much of the time a run trained, and what stopped it.

    Raises:
        LogError: a log can't be read or tells nothing.
        UsageError: an option contradicts another, or the logs.
    """
    logs = read_logs(paths, options.reading)
    merged = merge(logs)
    run = _run(logs, merged, options)
    known = _known(logs, run, options)
    outages = account.outages(run.start_ns, run.end_ns, run.incidents)
    windows = lost_windows(run.start_ns, run.end_ns, run.incidents, outages, known)
    pauses = run.pauses
    if options.rhythm is not None and not pauses:
        stretches = running(run.start_ns, run.end_ns, outages)
        pauses = [pause for begin, end in stretches for pause in options.rhythm.pauses(begin, end)]
    lost = {at: window for at, window in windows.items() if window is not None}
    line = account.timeline(run.start_ns, run.end_ns, run.incidents, pauses, lost)
    report = _report(logs, run, line, windows, options)
    report.check()
    return report


def _report(
    logs: Sequence[RunLog],
    run: _Run,
    line: Timeline,
    windows: dict[int, tuple[int, int] | None],
    options: Options,
) -> GoodputReport:
    from steptime import __version__

    total = run.end_ns - run.start_ns if run.spanned and run.end_ns > run.start_ns else None
    failures = [one.time_ns for one in run.incidents if not one.cause.planned and one.time_ns >= run.start_ns]
    lost_unknown = sum(window is None for window in windows.values())
    down, unknown = line.total(*account.DOWN), line.total(account.UNKNOWN)
    hidden = {what for log in logs if log.progress is None for what in log.hidden}
    saves = options.rhythm is not None or any(log.pauses is not None for log in logs)
    parts = part_rows(line, total, lost_unknown, len(windows), hidden, saves)
    productive = None if total is None else total - sum(part.ns for part in parts)
    whole = total is not None and unknown == 0
    eta = 1 - down / total if total and whole else None
    lost_known = lost_unknown == 0
    productive_share = productive / total if total and productive is not None and whole and lost_known else None
    mtbf = rate_of(len(failures), total / HOUR_NS) if total else None
    gpus = options.gpus or next((log.gpus for log in logs if log.gpus), None)
    span = (run.start_ns, run.end_ns)
    habit = checkpoint_habit(run.pauses, options.rhythm, mtbf, running(*span, line.outages))
    return GoodputReport(
        tool=Tool(version=__version__),
        inputs=log_rows(logs),
        start_ns=run.start_ns if run.spanned else None,
        end_ns=run.end_ns if run.spanned else None,
        dated=run.start_ns >= 10**17,
        total_ns=total,
        productive_ns=productive,
        parts=parts,
        eta=eta,
        eta_low=None if not total else 1 - (down + unknown) / total,
        eta_high=None if not total else 1 - down / total,
        productive_share=productive_share,
        interruptions=interruption_rows(run.incidents, line, windows),
        outages=len(line.outages),
        causes=cause_rows(run.incidents, line, windows),
        mtbf=mtbf,
        mtbf_gpu=_per_gpu(mtbf, gpus),
        mean_uptime_ns=_mean_uptime(line, run, total),
        trend=trend_of(failures, *span) if total else Trend(verdict="cannot tell", why=_NO_SPAN),
        hosts=repeating_hosts(run.incidents, options.hosts),
        hosts_known=sum(one.host is not None for one in run.incidents),
        checkpoints=habit,
        logged=sorted({what for log in logs for what in log.logged}),
        cost=cost_of(total, parts, gpus, options.money, eta, productive_share),
        segments=segment_columns(line, run.start_ns),
        profile=profile_of(line) if total else None,
        references=reference_runs(),
        cannot_tell=[*run.cannot, *_doubts(line, windows, total, gpus)],
        warnings=[*run.notes, *(f"{log.path}: {note}" for log in logs for note in log.notes)],
    )


_NO_SPAN = "no log says when the run began and ended: give --since and --until"


def _run(logs: Sequence[RunLog], merged: Merged, options: Options) -> _Run:
    """Begin and end of the run, and what lies between."""
    notes, cannot = [], []
    since, until = (_moment(text, options.reading.zone) for text in (options.since, options.until))
    starts = [log.start_ns for log in logs if log.start_ns is not None]
    ends = [log.end_ns for log in logs if log.end_ns is not None]
    times = [ns for one in merged.incidents for ns in (one.time_ns, one.resumed_ns) if ns is not None]
    start = since if since is not None else min(starts, default=None)
    end = until if until is not None else max(ends, default=None)
    if start is None or end is None:
        missing = " and ".join(
            text for text, ns in (("began: give --since", start), ("ended: give --until", end)) if ns is None
        )
        cannot.append(f"no log says when the run {missing}; without it neither the share of time nor MTBF can be told")
    spanned = start is not None and end is not None
    start = min(times, default=0) if start is None else start
    end = max([start, *times]) if end is None else end
    if end < start or (spanned and end == start):
        raise UsageError("the run would end before it begins: check --since and --until against the logs")
    kept = [one for one in merged.incidents if _touches(one, start, end)]
    if len(kept) < len(merged.incidents):
        notes.append(f"{len(merged.incidents) - len(kept)} interruptions lie outside the run and are left out")
    kept += _silent_end(logs, kept, end, until)
    if merged.duplicates:
        notes.append(f"{merged.duplicates} interruptions are told by two logs and count once")
    if merged.joined:
        notes.append(f"{merged.joined} records are of the same moment and cause as another and count once with it")
    if merged.matched:
        notes.append(f"{merged.matched} restarts in the metrics are those that another log tells the cause of")
    pauses = [pause for log in logs for pause in log.pauses or []]
    return _Run(start, end, spanned, kept, sorted(pauses), notes, cannot)


def _touches(incident: Incident, start_ns: int, end_ns: int) -> bool:
    over = incident.resumed_ns
    return incident.time_ns < end_ns and (incident.time_ns >= start_ns or (over is not None and over > start_ns))


def _silent_end(logs: Sequence[RunLog], kept: Sequence[Incident], end_ns: int, until: int | None) -> list[Incident]:
    """The run's own metrics end long before the run is said to: it stands since then."""
    from steptime.goodput.causes import UNKNOWN
    from steptime.goodput.restarts import GAP_INTERVALS, GAP_LEAST_NS

    for log in logs:
        if log.progress is None or log.end_ns is None or until is None:
            continue
        silent_ns = max(GAP_INTERVALS * log.progress.pace_ns, GAP_LEAST_NS)
        told = any(one.time_ns >= log.end_ns - silent_ns and one.resumed_ns is None for one in kept)
        if end_ns - log.end_ns > silent_ns and not told:
            step = int(log.progress.step[-1])
            return [
                Incident(
                    time_ns=log.end_ns,
                    cause=UNKNOWN,
                    text="",
                    source=f"{log.path}: nothing after step {step:,}",
                    step=step,
                )
            ]
    return []


def _moment(text: str | None, zone: str) -> int | None:
    if text is None:
        return None
    # A day alone is its first moment.
    times = parse_times([f"{text}T00:00:00" if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else text], zone)
    if times.bad[0]:
        raise UsageError(f"{text!r} is not a time: write it as 2024-05-01T10:00:00+02:00")
    return int(times.ns[0])


def _known(logs: Sequence[RunLog], run: _Run, options: Options) -> Known:
    return Known(
        progress=next((log.progress for log in logs if log.progress is not None), None),
        saves_ns=tuple(end for _, end in run.pauses),
        start_step=next((log.start_step for log in logs if log.start_step is not None), None),
        step_ns=options.step_ns,
        rhythm=options.rhythm,
    )


def _per_gpu(mtbf: Rate | None, gpus: int | None) -> Rate | None:
    """Every GPU was exposed for as long as the run."""
    return None if mtbf is None or not gpus else rate_of(mtbf.failures, mtbf.exposure_h * gpus)


def _mean_uptime(line: Timeline, run: _Run, total: int | None) -> int | None:
    """Time that the run was up for each outage that nobody planned."""
    struck = sum(any(not run.incidents[at].cause.planned for at in outage.members) for outage in line.outages)
    if total is None or not struck or line.total(account.UNKNOWN):
        return None
    return round((total - line.total(*account.DOWN)) / struck)


def _doubts(
    line: Timeline, windows: dict[int, tuple[int, int] | None], total: int | None, gpus: int | None
) -> list[str]:
    """What these logs can't answer, each with what would."""
    found = []
    open_ended = [outage for outage in line.outages if not outage.known]
    if open_ended and total:
        found.append(
            f"{len(open_ended)} interruptions have no time at which training went on, and are not the last: the share "
            "of time is only known within bounds"
        )
    missing = sum(window is None for window in windows.values())
    if missing:
        found.append(
            f"work lost before {missing} of {len(windows)} interruptions is not known (no last checkpoint): give the "
            "run's metrics beside the log, a column last_checkpoint, or --checkpoint-every"
        )
    if gpus is None:
        found.append("the number of GPUs is not known: give --gpus for MTBF of a GPU and GPU-hours")
    return found
