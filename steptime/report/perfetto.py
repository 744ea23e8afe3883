"""The lost time as a trace of its own, in the trace-event format, to open beside the original in Perfetto.

One process for each rank and device, with a track of the step windows (their leaves as arguments) and a track of what
each instant of the pictured steps is charged to. Slices are named by leaf, so that Perfetto gives a leaf one colour.
Times are those of the original: microseconds with three decimals, written as text digit by digit, because a double
can't hold the nanoseconds of an absolute time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from steptime.model import RankSteps, Report, StepTime, StepTimeline
from steptime.report.names import brief

#: Above every process id that Linux gives (4,194,304) and every device index, so that both files can be merged.
FIRST_PID = 10_000_000
OWNER = "owner"
_STEPS_TRACK = 1
_OWNER_TRACK = 2
_TRACKS = {_STEPS_TRACK: "steps", _OWNER_TRACK: "lost time"}
_NAME_WIDTH = 200


def render(report: Report) -> str:
    """Return the tracks as trace-event JSON, ending in a newline."""
    head = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": next(iter(_bases(report).values()), 0),
        "otherData": {"producer": f"{brief(report.tool.name)} {brief(report.tool.version)}"},
    }
    text = json.dumps(head, ensure_ascii=True)
    return f'{text[:-1]}, "traceEvents": [\n' + ",\n".join(_events(report)) + "\n]}\n"


def _bases(report: Report) -> dict[int, int]:
    """What each rank's own file counts its time stamps from, in ns: its tracks lie beside its original."""
    return {one.rank: one.base_ns or 0 for one in report.inputs if one.rank is not None}


def _events(report: Report) -> Iterator[str]:
    processes: dict[tuple[int, int | None], int] = {}
    for rank in sorted(report.ranks, key=_place):
        processes.setdefault((rank.rank, rank.device), FIRST_PID + len(processes))
    for one in sorted(report.timelines, key=lambda one: (one.rank, -1 if one.device is None else one.device)):
        processes.setdefault((one.rank, one.device), FIRST_PID + len(processes))
    several = len({rank for rank, _ in processes}) < len(processes)
    for place, ((number, device), pid) in enumerate(processes.items()):
        name = f"steptime: lost time, rank {number}"
        if several and device is not None:
            name += f", device {device}"
        yield from _names(pid, name, place)
    bases = _bases(report)
    for rank in sorted(report.ranks, key=_place):
        yield from _steps(processes[rank.rank, rank.device], rank, bases.get(rank.rank, 0))
    for one in _pictures(report.timelines):
        yield from _owner(processes[one.rank, one.device], one, bases.get(one.rank, 0))


def _place(rank: RankSteps) -> tuple[int, int]:
    return rank.rank, -1 if rank.device is None else rank.device


def _tid(pid: int, track: int) -> int:
    """Thread ids are unique over the file, as they are in a trace."""
    return FIRST_PID + (pid - FIRST_PID) * len(_TRACKS) + track


def _names(pid: int, name: str, place: int) -> Iterator[str]:
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": place - FIRST_PID})
    for track, title in _TRACKS.items():
        tid = _tid(pid, track)
        yield _metadata("thread_name", pid, tid, {"name": title})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": track})


def _metadata(name: str, pid: int, tid: int, args: dict[str, str | int]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}, ensure_ascii=True)


def _slice(name: str, row: tuple[int, int], times_ns: tuple[int, int], args: dict[str, object]) -> str:
    """A complete event. Start and length are put in as text: JSON numbers of Python would be doubles."""
    head = json.dumps({"ph": "X", "cat": "steptime", "name": name, "pid": row[0], "tid": row[1]}, ensure_ascii=True)
    start, length = (microseconds(ns) for ns in times_ns)
    return f'{head[:-1]}, "ts": {start}, "dur": {length}, "args": {json.dumps(args, ensure_ascii=True)}}}'


def microseconds(ns: int) -> str:
    """Nanoseconds as a trace writes them: microseconds with three decimals, exactly."""
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def _steps(pid: int, rank: RankSteps, base_ns: int) -> Iterator[str]:
    for step in sorted(rank.steps, key=lambda step: (step.start_ns, -step.dur_ns)):
        times = (step.start_ns - base_ns, step.dur_ns)
        yield _slice(f"step {step.step}", (pid, _tid(pid, _STEPS_TRACK)), times, _said(step))


def _said(step: StepTime) -> dict[str, object]:
    """A step's parts, largest first: nanoseconds as integers, which add up to `dur_ns`."""
    largest = sorted(step.leaves_ns.items(), key=lambda item: (-item[1], item[0]))
    parts: dict[str, object] = {"productive_ns": step.productive_ns}
    parts |= {f"{brief(key)}_ns": ns for key, ns in largest}
    said: dict[str, object] = {"class": brief(step.class_), "edge": step.edge, "dur_ns": step.dur_ns, **parts}
    return said | ({"note": brief(step.note, _NAME_WIDTH)} if step.note else {})


def _pictures(timelines: Iterable[StepTimeline]) -> list[StepTimeline]:
    """Each step once, in time order: a typical step may be the slowest, too."""
    unique = {(one.rank, one.device, one.step): one for one in timelines}
    return sorted(
        unique.values(), key=lambda one: (one.rank, -1 if one.device is None else one.device, one.step_start_ns)
    )


def _owner(pid: int, one: StepTimeline, base_ns: int) -> Iterator[str]:
    if OWNER not in one.tracks:
        return
    track = one.tracks.index(OWNER)
    mine = (at for at in range(len(one.track)) if one.track[at] == track)
    row = (pid, _tid(pid, _OWNER_TRACK))
    for at in sorted(mine, key=lambda at: (one.start_ns[at], -one.segment_ns[at])):
        leaf = one.leaves[one.leaf[at]]
        times = (one.step_start_ns + one.start_ns[at] - base_ns, one.segment_ns[at])
        what = brief(one.names[one.name[at]], _NAME_WIDTH)
        yield _slice(brief(leaf), row, times, {"what": what, "step": one.step, "picture": brief(one.why)})
