"""Trace files as a replayed job, as the pipeline makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from steptime.model import Report
from steptime.pipeline import Options, analyze
from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Row
from steptime.ranks.together import together
from steptime.timeline.summary import FileSummary, Request, summarize
from steptime.trace.events import I64
from steptime.trace.parse import parse
from steptime.whatif.job_graph import JobGraph, job_graph
from steptime.whatif.replay import baseline, replay
from steptime.whatif.schedule import schedule


class Replayed(msgspec.Struct, frozen=True):
    """A job's report, rows, clocks, graph and instants, int64 [n]."""

    report: Report
    rows: list[Row]
    alignment: Alignment | None
    job: JobGraph
    times: I64


def replayed(paths: Sequence[Path]) -> Replayed:
    """Read the files, one a rank, and replay the unchanged job."""
    files = [summarize(parse(str(path)), Request(pricing=Options().pricing, replayed=True)) for path in paths]
    rows = sorted((_row(file) for file in files), key=lambda row: row.rank)
    ranks = together(rows, None)
    alignment = ranks.seen[0] if ranks.seen else None
    job = job_graph(ranks.rows, alignment)
    times = replay(job.graph, schedule(job.graph), baseline(job.graph))[:, 0]
    return Replayed(analyze([str(path) for path in paths]), ranks.rows, alignment, job, times)


def _row(file: FileSummary) -> Row:
    assert file.declared_rank is not None
    return Row(file.declared_rank, 0, file, file.devices[0])
