"""Small recordings of ranks without a device, as torch 2.13 writes them over gloo.

Names, threads and arguments are those of real recordings (`tests/real_run/layouts.py`): messages stand on the thread
that asked for them, collectives on workers, and only the op has the other rank and the tag.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steptime.timeline.summary import DeviceTimeline, Request, summarize
from steptime.trace.events import EventTable
from steptime.trace.parse import parse

MAIN, WORKER = 100, 101


def group(name: str, description: str, *ranks: int) -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": list(ranks)}


WORLD = group("0", "default_pg", 0, 1, 2, 3)


class Recording:
    """Events of one rank, in microseconds."""

    def __init__(self, rank: int, groups: list[dict[str, Any]] | None = None) -> None:
        self.rank, self.groups = rank, [WORLD] if groups is None else groups
        self.events: list[dict[str, Any]] = []

    def add(self, category: str, name: str, at: int, end: int, thread: int = MAIN, **arguments: object) -> Recording:
        args = {key.replace("_", " "): value for key, value in arguments.items()}
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": at, "dur": end - at}
        self.events.append({**event, "args": args})
        return self

    def step(self, number: int, at: int, end: int) -> Recording:
        return self.add("user_annotation", f"ProfilerStep#{number}", at, end)

    def op(self, name: str, at: int, end: int) -> Recording:
        return self.add("cpu_op", name, at, end)

    def message(self, kind: str, peer: int, asked: tuple[int, int], done: int, tag: int = 0) -> Recording:
        """A send or receive of 16 x 256 elements that is asked for in an op and done when the host waited for it."""
        name = {"send": "c10d::send", "recv": "c10d::recv_"}[kind]
        types = ["TensorList", "", "Scalar", "Scalar"]
        self.add(
            "cpu_op",
            name,
            *asked,
            Input_Dims=[[[16, 256]], [], [], []],
            Input_type=types,
            Concrete_Inputs=["", "", str(peer), str(tag)],
        )
        return self.add("user_annotation", f"gloo:{kind}", asked[0] + 1, done, Input_Dims=[[16, 256]])

    def asks(self, name: str, at: int, shapes: list[Any]) -> Recording:
        return self.add("cpu_op", f"c10d::{name}", at, at + 2, Input_Dims=shapes)

    def works(self, name: str, at: int, end: int, elements: int) -> Recording:
        return self.add("user_annotation", f"gloo:{name}", at, end, WORKER, Input_Dims=[[elements]])

    def table(self, folder: Path) -> EventTable:
        info = {"backend": "gloo", "rank": self.rank, "world_size": 4, "pg_config": self.groups}
        head = {
            "schemaVersion": 1,
            "distributedInfo": info,
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "host_name": "here",
        }
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps({**head, "traceEvents": self.events}))
        return parse(str(path))

    def timeline(self, folder: Path) -> DeviceTimeline:
        (timeline,) = summarize(self.table(folder), Request()).devices
        return timeline
