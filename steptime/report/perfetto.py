"""The lost time as a trace of its own, in the trace-event format, to open beside the original in Perfetto.

One process for each rank and device, with a track of the step windows (their leaves as arguments), a track of what
each instant of the pictured steps is charged to, and where the job was replayed one of the critical path while it is
on this rank. Slices are named by leaf, so that Perfetto gives a leaf one colour.
Times are those of the original: microseconds with three decimals, written as text digit by digit, because a double
can't hold the nanoseconds of an absolute time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from steptime.model import CriticalPath, RankSteps, Report, StepTime, StepTimeline
from steptime.report.names import brief

#: Above every process id that Linux gives (4,194,304) and every device index, so that both files can be merged.
FIRST_PID = 10_000_000
OWNER = "owner"
_STEPS_TRACK = 1
_OWNER_TRACK = 2
_PATH_TRACK = 3
_TRACKS = {_STEPS_TRACK: "steps", _OWNER_TRACK: "lost time"}
_WITH_PATH = {**_TRACKS, _PATH_TRACK: "critical path"}
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
    path = report.critical_path
    for place in path.places if path is not None else ():
        processes.setdefault((place.rank, place.device), FIRST_PID + len(processes))
    tracks = _TRACKS if path is None else _WITH_PATH
    several = len({rank for rank, _ in processes}) < len(processes)
    for order, ((number, device), pid) in enumerate(processes.items()):
        name = f"steptime: lost time, rank {number}"
        if several and device is not None:
            name += f", device {device}"
        yield from _names(pid, name, order, tracks)
    bases = _bases(report)
    for rank in sorted(report.ranks, key=_place):
        row = _row(processes[rank.rank, rank.device], _STEPS_TRACK, tracks)
        yield from _steps(row, rank, bases.get(rank.rank, 0))
    for one in _pictures(report.timelines):
        row = _row(processes[one.rank, one.device], _OWNER_TRACK, tracks)
        yield from _owner(row, one, bases.get(one.rank, 0))
    if path is not None:
        rows = {key: _row(pid, _PATH_TRACK, tracks) for key, pid in processes.items()}
        yield from _path(rows, path, bases)


def _place(rank: RankSteps) -> tuple[int, int]:
    return rank.rank, -1 if rank.device is None else rank.device


def _row(pid: int, track: int, tracks: dict[int, str]) -> tuple[int, int]:
    """Process and thread id of a track. Thread ids are unique over the file, as they are in a trace."""
    return pid, FIRST_PID + (pid - FIRST_PID) * len(tracks) + track


def _names(pid: int, name: str, order: int, tracks: dict[int, str]) -> Iterator[str]:
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": order - FIRST_PID})
    for track, title in tracks.items():
        _, tid = _row(pid, track, tracks)
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


def _steps(row: tuple[int, int], rank: RankSteps, base_ns: int) -> Iterator[str]:
    for step in sorted(rank.steps, key=lambda step: (step.start_ns, -step.dur_ns)):
        times = (step.start_ns - base_ns, step.dur_ns)
        yield _slice(f"step {step.step}", row, times, _said(step))


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


def _owner(row: tuple[int, int], one: StepTimeline, base_ns: int) -> Iterator[str]:
    if OWNER not in one.tracks:
        return
    track = one.tracks.index(OWNER)
    mine = (at for at in range(len(one.track)) if one.track[at] == track)
    for at in sorted(mine, key=lambda at: (one.start_ns[at], -one.segment_ns[at])):
        leaf = one.leaves[one.leaf[at]]
        times = (one.step_start_ns + one.start_ns[at] - base_ns, one.segment_ns[at])
        what = brief(one.names[one.name[at]], _NAME_WIDTH)
        yield _slice(brief(leaf), row, times, {"what": what, "step": one.step, "picture": brief(one.why)})


def _path(
    rows: dict[tuple[int, int | None], tuple[int, int]], path: CriticalPath, bases: dict[int, int]
) -> Iterator[str]:
    """The path on each rank's own clock, on which a segment may be a few nanoseconds longer than on the job's."""
    by_rank: dict[tuple[int, int | None], list[int]] = {}
    for at, place in enumerate(path.place):
        of = path.places[place]
        by_rank.setdefault((of.rank, of.device), []).append(at)
    for key, mine in by_rank.items():
        mine.sort(key=lambda at: path.own_ns[at])
        ends = [*(path.own_ns[at] for at in mine[1:]), 1 << 63]
        for at, limit in zip(mine, ends, strict=True):
            start = path.own_ns[at]
            times = (start - bases.get(key[0], 0), min(path.dur_ns[at], limit - start))
            said: dict[str, object] = {
                "what": brief(path.names[path.name[at]], _NAME_WIDTH),
                "where": brief(path.places[path.place[at]].where),
                "step": path.steps[path.step[at]].step,
                "in a row": path.nodes[at],
            }
            yield _slice(brief(path.leaves[path.leaf[at]]), rows[key], times, said)
