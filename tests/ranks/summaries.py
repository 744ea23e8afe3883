"""Trace files as rows of the cross-rank stage, as the pipeline makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steptime.ranks.counted import Row
from steptime.timeline.summary import Request, summarize
from steptime.trace.parse import parse


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """One row a file; every file must say its rank."""
    files = [summarize(parse(str(path)), Request()) for path in paths]
    rows = []
    for file in files:
        assert file.declared_rank is not None
        rows += [Row(file.declared_rank, 0, file, timeline) for timeline in file.devices]
    return sorted(rows, key=lambda row: row.rank)


def kept(row: Row, keep: Sequence[int]) -> Row:
    """The row with only these of its collectives recorded (indices); its ledger is left as it is."""
    import msgspec

    instances = row.timeline.instances
    assert instances is not None
    index = np.array(sorted(keep), np.int64)
    new = np.full(len(instances.start_ns), -1, np.int64)
    new[index] = np.arange(len(index))
    mine = new[instances.exposed_of] >= 0
    columns = ("start_ns", "end_ns", "leaf", "group", "seq", "elements", "bytes", "peer", "sends", "stream", "step")
    fewer = msgspec.structs.replace(
        instances,
        **{name: getattr(instances, name)[index] for name in columns},
        exposed_start=instances.exposed_start[mine],
        exposed_end=instances.exposed_end[mine],
        exposed_of=new[instances.exposed_of[mine]],
        exposed_step=instances.exposed_step[mine],
    )
    return msgspec.structs.replace(row, timeline=msgspec.structs.replace(row.timeline, instances=fewer))
