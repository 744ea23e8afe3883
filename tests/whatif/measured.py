"""Trace files as a job ready to be replayed with changes, as the pipeline makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steptime.pipeline import Options
from steptime.ranks.counted import Counted, Row, count_steps
from steptime.ranks.together import together
from steptime.roofline.utilization import ModelAsk, utilization
from steptime.timeline.summary import FileSummary, Request, summarize
from steptime.trace.parse import parse
from steptime.whatif.job_replay import JobReplay


def measured_job(paths: Sequence[Path]) -> tuple[Counted, JobReplay]:
    """Read the files, one a rank: their counted steps, useful work told apart, and the unchanged job replayed."""
    request = Request(pricing=Options().pricing, replayed=True)
    files = [summarize(parse(str(path)), request) for path in paths]
    rows = [_row(file, at, row) for at, file in enumerate(files) for row in range(len(file.devices))]
    rows.sort(key=lambda row: (row.rank, row.timeline.device or 0))
    ranks = together(rows, None)
    counted = count_steps(ranks.rows, None)
    job = JobReplay(counted, ranks.seen[0] if ranks.seen else None, ranks.pipeline)
    pairs = [(row.timeline, steps) for row, steps in zip(counted.rows, counted.steps, strict=True)]
    roof = Options().pricing.roof(next((one for row in rows for one in row.file.meta.devices), None))
    useful = utilization(pairs, roof, ModelAsk(), len(rows))
    return counted.with_timelines(useful.timelines), job


def _row(file: FileSummary, at: int, device: int) -> Row:
    return Row(at if file.declared_rank is None else file.declared_rank, 0, file, file.devices[device])
