"""What Kubernetes' events tell (``kubectl get events -o json``, or one event a line): failures, and starts after them.

An interruption begins with the first event that says a pod or node failed, and is over when the last container has
started after it; where no start is seen before another failure much later, when it was over is not known. Events do not
show training itself: how long it had stood still before, and how long loading took, is not in them. An event that
Kubernetes counted several times keeps its first and its last time only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from steptime.errors import LogError
from steptime.goodput.causes import UNKNOWN, Cause, cause_by_id, cause_of
from steptime.goodput.incidents import Incident, RunLog
from steptime.goodput.records import json_value
from steptime.goodput.timestamps import NO_TIME, parse_times

# Reasons of events: kubernetes/pkg/kubelet/events/event.go, pkg/controller, pkg/scheduler; node-problem-detector's
# configs; training-operator's pkg/util. Compared in lower case.
_FAILURES: dict[str, str] = {
    "nodenotready": "node",
    "nodenotschedulable": "maintenance",
    "nodeshutdown": "node",
    "rebooted": "node",
    "kerneloops": "node",
    "taskhung": "node",
    "deletingnode": "node",
    "removingnode": "node",
    "evicted": "node",
    "taintmanagereviction": "node",
    "oomkilling": "out_of_memory",
    "systemoom": "out_of_memory",
    "preempted": "preemption",
    "preempting": "preemption",
    "backoff": "software_bug",
    "failed": "unknown",
    "podfailed": "unknown",
    "backofflimitexceeded": "unknown",
    "pytorchjobrestarting": "unknown",
    "pytorchjobfailed": "unknown",
    "jobrestarting": "unknown",
    "exitedwithcode": "unknown",
    "killing": "unknown",
}
_HARDWARE = re.compile(r"xid|gpu|nvlink|ecc|infiniband|nic", re.IGNORECASE)
#: Containers of one restart start within so long of each other.
_TOGETHER_NS = 600 * 10**9
#: A run that is down says so at least so often: containers that fail again are reported every five minutes or sooner.
_SILENT_NS = 1800 * 10**9
#: What a controller does once it has noticed.
_ACTIONS = frozenset(
    {"killing", "taintmanagereviction", "evicted", "pytorchjobrestarting", "jobrestarting", "stopping"}
)
_STARTED = frozenset({"started", "pytorchjobrunning", "jobrunning"})
_DONE = frozenset({"completed", "pytorchjobsucceeded", "jobsucceeded"})


@dataclass(frozen=True, slots=True)
class _Event:
    time_ns: int
    reason: str
    message: str
    object_kind: str
    object_name: str
    host: str
    place: str


def looks_like_events(head: bytes) -> bool:
    """Whether the first bytes of a file are those of Kubernetes' events."""
    return b'"involvedObject"' in head or (b'"kind"' in head and b'"apiVersion"' in head and b'"items"' in head)


def kubernetes_log(path: str, data: bytes, zone: str = "UTC", job: str | None = None) -> RunLog:
    """Read events; `job`: only pods and jobs whose name begins so (and all nodes).

    Raises:
        LogError: no event in it, or none that tells of the job.
    """
    log = RunLog(path, "Kubernetes events", hidden=("checkpoint", "lost_work"))
    events = sorted(_events(path, data, zone, log), key=lambda event: event.time_ns)
    if job is not None:
        events = [one for one in events if one.object_kind == "Node" or one.object_name.startswith(job)]
    if not events:
        raise LogError(f"{path}: no event of the job in it ({'; '.join(log.refused.examples[:2]) or 'none at all'})")
    _read(path, events, log)
    log.notes.append(
        "events show pods, not training: how long it stood still before a failure was noticed and how long loading "
        "took after a start is not in them; Kubernetes keeps events for an hour by default"
    )
    return log


@dataclass(slots=True)
class _Open:
    """An interruption while its events are read."""

    first: _Event
    last_ns: int
    detected_ns: int | None = None
    resumed_ns: int | None = None

    def over_before(self, event: _Event) -> bool:
        """Whether a failure is another one: training had gone on, or so long nothing was said that it must have."""
        return self.resumed_ns is not None or event.time_ns - self.last_ns > _SILENT_NS


def _read(path: str, events: list[_Event], log: RunLog) -> None:
    """Go through the events in order of time; an interruption is open from its first failure on."""
    found: list[_Open] = []
    more = alone = 0
    for event in events:
        last = found[-1] if found else None
        if event.reason in _DONE:
            log.end_ns = event.time_ns
            if last is not None and last.resumed_ns is None and last.first.reason == "killing":
                # What is killed as the job completes was stopped on purpose.
                found.pop()
        elif event.reason in _STARTED:
            alone += _start(event, last, log)
        elif _failure(event) is not None:
            if last is None or (last.over_before(event) and event.reason != "backoff"):
                found.append(_Open(event, event.time_ns))
            else:
                more += 1
                _again(event, last)
    log.incidents += [_incident(path, one) for one in found]
    if more:
        log.notes.append(f"{more} more events of failures while the run was down belong to what had stopped it")
    if alone:
        log.notes.append(f"{alone} containers started without a failure before them: the events may be incomplete")


def _start(event: _Event, last: _Open | None, log: RunLog) -> bool:
    """A container started; True if no failure before it explains that."""
    if last is None:
        log.start_ns = event.time_ns if log.start_ns is None else log.start_ns
        return False
    if last.resumed_ns is not None and event.time_ns - last.resumed_ns > _TOGETHER_NS:
        return True
    last.resumed_ns = event.time_ns
    return False


def _again(event: _Event, last: _Open) -> None:
    """Another event of the interruption that is open."""
    last.last_ns = event.time_ns
    if event.reason == "backoff":
        # It speaks of the failure before: what started meanwhile did not stay.
        last.resumed_ns = None
    elif event.reason in _ACTIONS and last.detected_ns is None:
        last.detected_ns = event.time_ns


def _failure(event: _Event) -> Cause | None:
    """What failed, or None for an event that says of no failure."""
    known = _FAILURES.get(event.reason)
    if known is None:
        if event.object_kind == "Node" and _HARDWARE.search(event.reason):
            return cause_of(f"{event.reason} {event.message}")
        return None
    cause = cause_by_id(known)
    if cause is UNKNOWN or cause.id == "node":
        told = cause_of(event.message)
        if told.group in ("GPU", "network") or (cause is UNKNOWN and told.id in ("out_of_memory", "nccl_timeout")):
            return told
    return cause


def _incident(path: str, one: _Open) -> Incident:
    event = one.first
    return Incident(
        time_ns=event.time_ns,
        cause=_failure(event) or UNKNOWN,
        text=event.reason,
        source=f"{path}: {event.place} ({event.object_kind} {event.object_name})",
        # An action in the very moment is how the failure came to be known: when it began is not told.
        detected_ns=one.detected_ns if one.detected_ns is not None and one.detected_ns > event.time_ns else None,
        resumed_ns=one.resumed_ns,
        host=event.host or None,
    )


def _events(path: str, data: bytes, zone: str, log: RunLog) -> Iterator[_Event]:
    items = list(_items(path, data, log))
    log.lines = len(items)
    seen: set[str] = set()
    kept: list[tuple[str, dict[str, object]]] = []
    for place, item in items:
        key = json.dumps(item, sort_keys=True, default=str)
        log.duplicates += key in seen
        if key not in seen:
            kept.append((place, item))
        seen.add(key)
    raw = [_times_of(item) for _, item in kept]
    times = [parse_times([one[at] for one in raw], zone) for at in range(2)]
    between = 0
    for at, (place, item) in enumerate(kept):
        if any(column.bad[at] for column in times) or times[0].ns[at] == NO_TIME:
            log.refused.add(place, "has no time that can be read", str(item.get("reason", "")))
            continue
        made = _made(item, place)
        if made is None:
            log.refused.add(place, "has no reason or no object", "")
            continue
        firsts = [int(column.ns[at]) for column in times if column.ns[at] != NO_TIME]
        count = item.get("count")
        if isinstance(count, int) and count > len(set(firsts)) and made.reason in _FAILURES:
            between += count - len(set(firsts))
        for ns in sorted(set(firsts)):
            yield replace(made, time_ns=ns)
    if between:
        log.notes.append(f"{between} repeats of failures have no time of their own in the events and are not counted")


def _made(item: dict[str, object], place: str) -> _Event | None:
    about = item.get("involvedObject") or item.get("regarding")
    reason = item.get("reason")
    if not isinstance(about, dict) or not isinstance(reason, str):
        return None
    kind, name = str(about.get("kind", "")), str(about.get("name", ""))
    source = item.get("source")
    host = str(source.get("host", "")) if isinstance(source, dict) else ""
    message = str(item.get("message") or item.get("note") or "")
    return _Event(0, reason.lower(), message, kind, name, name if kind == "Node" else host, place)


def _times_of(item: dict[str, object]) -> tuple[object, object]:
    """The first and last time of an event; newer events have one only, under another name."""
    meta = item.get("metadata")
    made = meta.get("creationTimestamp") if isinstance(meta, dict) else None
    first = item.get("firstTimestamp") or item.get("eventTime") or made
    return first, item.get("lastTimestamp") or None


def _items(path: str, data: bytes, log: RunLog) -> Iterator[tuple[str, dict[str, object]]]:
    """The events of a list, of one event a line, or of documents that follow each other."""
    try:
        whole = json_value(data)
    except ValueError:
        yield from _several(data, log)
        return
    items = whole.get("items", [whole]) if isinstance(whole, dict) else whole
    if not isinstance(items, list):
        raise LogError(f"{path}: JSON, but no list of events: run kubectl get events -o json")
    for at, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield f"event {at}", item
        else:
            log.refused.add(f"event {at}", "no event", str(item))


def _several(data: bytes, log: RunLog) -> Iterator[tuple[str, dict[str, object]]]:
    text = data.decode("utf-8", "backslashreplace")
    # A list that was cut: its events are read one by one.
    inside = re.search(r'"items"\s*:\s*\[', text)
    at = inside.end() if inside else 0
    decoder = json.JSONDecoder()
    number = 0
    while (found := re.compile(r"[^\s,\]]").search(text, at)) is not None:
        number += 1
        try:
            item, at = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            line_end = text.find("\n", found.start())
            log.refused.add(
                f"event {number}", "cut or not JSON", text[found.start() : found.start() + 80].split("\n")[0]
            )
            if line_end < 0 or inside:
                return
            at = line_end + 1
            continue
        if isinstance(item, dict):
            yield f"event {number}", item
        elif inside is None:
            log.refused.add(f"event {number}", "no event", str(item)[:80])
