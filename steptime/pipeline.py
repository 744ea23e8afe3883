"""The whole tool on one screen: trace files in, `Report` out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.diagnose.findings import diagnose
from steptime.diagnose.run_reports import read_run_reports
from steptime.errors import StepTimeError, TraceError, UsageError
from steptime.model import Input, Report, Tool
from steptime.model.what_if import WhatIf
from steptime.ranks.bandwidth import with_bandwidth
from steptime.ranks.counted import Counted, Row, count_steps
from steptime.ranks.job import Tables, job_facts, job_totals, other_steps, pictures, rank_rows
from steptime.ranks.together import Together, together, with_ranks
from steptime.roofline.ceilings import roof_rows
from steptime.roofline.pricing import RooflinePricing
from steptime.roofline.totals import with_utilization
from steptime.roofline.utilization import ModelAsk, utilization
from steptime.timeline.summary import FileSummary, Request, summarize
from steptime.trace.discover import TraceFile, discover
from steptime.trace.events import DeviceProperties
from steptime.trace.parse import parse
from steptime.trace.rank_order import RankAssignment, RankClaim, assign_ranks
from steptime.whatif.gains import with_replay
from steptime.whatif.job_replay import ready

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["ModelAsk", "Options", "RooflinePricing", "analyze", "what_if"]


@dataclass(frozen=True, slots=True)
class Options:
    """What to analyse and how."""

    steps: tuple[int, int] | None = None  # first and last step number, both included
    step_marker: str | None = None  # regular expression on annotation names that mark steps
    rank: int | None = None  # rank of a single file that does not say it
    unprofiled_step_ns: int | None = None  # length of a step without the profiler
    pricing: RooflinePricing = RooflinePricing()  # GPU, peaks and reference dtype
    model: ModelAsk = ModelAsk()  # the model and its tokens, for MFU by convention
    rules: tuple[str, ...] = ()  # folders with the user's own rules
    replay: bool = True  # replay the job, so that findings say what fixing them would buy
    run: tuple[str, ...] = ()  # reports on the whole run, of `steptime goodput`, for the checklist
    draw_every_step: bool = False  # keep the segments of all steps, not of a typical and the slowest one only
    strict: bool = False  # stop at the first bad file instead of going on without it
    jobs: int = 1  # files read at once, each in a process of its own
    progress: Callable[[int, int, str], None] | None = None  # called as (files done, files in all, path)
    executor: Executor | None = None  # runs the files; one of its own is made when there is none


def analyze(paths: Sequence[str | PathLike[str]] | str | PathLike[str], options: Options = Options()) -> Report:  # noqa: B008 - frozen
    """Turn trace files into a report.

    Args:
        paths: files, folders, globs or fsspec URLs.
        options: see `Options`.

    Raises:
        StepTimeError: nothing could be analysed, or, with `strict`, one file could not.
    """
    report, counted, ranks = _analyzed(paths, options)
    if not options.replay:
        return report
    return with_replay(report, ready(counted, ranks.compared, ranks.pipeline), counted.rows, ranks.compared)


def what_if(
    paths: Sequence[str | PathLike[str]],
    removals: Sequence[str],
    scales: Sequence[str] = (),
    options: Options = Options(),  # noqa: B008 - frozen
) -> WhatIf:
    """Replay a job with some of its times changed.

    Args:
        paths: files, folders, globs or fsspec URLs.
        removals: what is taken away: leaves, slices or fixes, as `steptime what-if --remove` takes them.
        scales: ``NAME=FACTOR``, as ``--scale``; at least one of both.
        options: see `Options`.

    Raises:
        StepTimeError: a name that means nothing, or nothing could be analysed or replayed.
    """
    from steptime.whatif.outcome import what_if as outcome
    from steptime.whatif.requests import remove, scale

    requests = [*map(remove, removals), *map(scale, scales)]
    if not requests:
        raise UsageError("nothing to change: give --remove NAME or --scale NAME=FACTOR")
    report, counted, ranks = _analyzed(paths, replace(options, replay=True))
    job = ready(counted, ranks.compared, ranks.pipeline)
    if isinstance(job, str):
        raise TraceError(f"{fspath(paths[0])}: this job can't be replayed: {job}")
    return outcome(report, job, (counted.rows, ranks.compared), requests)


def _analyzed(
    paths: Sequence[str | PathLike[str]] | str | PathLike[str], options: Options
) -> tuple[Report, Counted, Together]:
    """The report with the rows and the alignment that it is made of."""
    options.pricing.check()
    options.model.shape()
    run = read_run_reports(options.run)
    several = [paths] if isinstance(paths, (str, PathLike)) else paths
    found = discover([fspath(path) for path in several])
    files, refused = _summaries(found.files, options)
    assignment = assign_ranks([_claim(file) for file in files], options.rank)
    rows = [
        Row(rank, capture, file, timeline)
        for file, rank, capture in zip(files, assignment.ranks, assignment.captures, strict=True)
        for timeline in file.devices
    ]
    rows.sort(key=lambda row: (row.rank, row.capture, row.timeline.device or 0))
    ranks = together(rows, assignment.world_size)
    counted = count_steps(ranks.rows, options.steps)
    notes = [*found.skipped, *refused, *ranks.notes]
    report = _report(counted, assignment, files, notes, options, ranks)
    report = with_ranks(report, ranks)
    report = with_bandwidth(report, counted, ranks.seen, options.pricing.roof(_device(counted)).link_bytes_per_s)
    return diagnose(report, [Path(folder) for folder in options.rules], run), counted, ranks


def _summaries(files: Sequence[TraceFile], options: Options) -> tuple[list[FileSummary], list[str]]:
    """Summaries of the readable files in the given order, and one line for each file that is not."""
    summaries, refused = [], []
    first: StepTimeError | None = None
    for done, (file, result) in enumerate(_results(files, options), 1):
        if isinstance(result, FileSummary):
            summaries.append(result)
        else:
            first = first or result
            refused.append(f"skipped: {result}")
        if isinstance(result, StepTimeError) and (options.strict or len(files) == 1):
            raise result
        if options.progress is not None:
            options.progress(done, len(files), file.path)
    if not summaries:
        raise first or TraceError("no trace files were given")
    return summaries, refused


def _results(files: Sequence[TraceFile], options: Options) -> Iterator[tuple[TraceFile, FileSummary | StepTimeError]]:
    request = Request(
        options.step_marker, options.unprofiled_step_ns, options.pricing, options.draw_every_step, options.replay
    )
    jobs = min(options.jobs, len(files))
    if options.executor is None and jobs <= 1:
        yield from ((file, _summary(file, request)) for file in files)
        return
    own: AbstractContextManager[Executor] = nullcontext(options.executor) if options.executor else _pool(jobs)
    with own as executor:
        yield from zip(files, executor.map(_summary, files, [request] * len(files)), strict=True)


def _device(counted: Counted) -> DeviceProperties | None:
    """The first row's device, as its trace describes it."""
    for row in counted.rows:
        for device in row.file.meta.devices:
            if device.id == row.timeline.device:
                return device
    return None


def _pool(jobs: int) -> Executor:
    import signal
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # An interrupt is the parent's to handle: workers would print a traceback each.
    return ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))


def _summary(file: TraceFile, request: Request) -> FileSummary | StepTimeError:
    try:
        return summarize(parse(file.path, file.size_bytes), request)
    except StepTimeError as error:
        return error


def _claim(file: FileSummary) -> RankClaim:
    steps = tuple(step.step for step in file.devices[0].steps)
    return RankClaim(
        path=file.meta.path,
        declared_rank=file.declared_rank,
        world_size=file.meta.world_size,
        start_ns=file.start_ns,
        end_ns=file.end_ns,
        steps=steps,
        has_cpu=True,
    )


def _report(
    counted: Counted,
    assignment: RankAssignment,
    files: list[FileSummary],
    notes: list[str],
    options: Options,
    ranks: Together,
) -> Report:
    from steptime import __version__

    pairs = [(row.timeline, chosen) for row, chosen in zip(counted.rows, counted.steps, strict=True)]
    roof = options.pricing.roof(_device(counted))
    useful = utilization(pairs, roof, options.model, assignment.world_size or len(counted.rows))
    counted = counted.with_timelines(useful.timelines)
    rows = roof_rows(pairs, roof)
    totals = job_totals(counted, assignment.world_size, ranks.alignment is not None, ranks.bubble_unknown)
    job = with_utilization(totals, useful, roof, rows)
    tables = Tables(counted, job.total_ns)
    warnings = [*useful.warnings, *assignment.warnings, *notes, *counted.notes]
    contention_ns = sum(file.unmeasurable_contention_ns for file in files)
    if contention_ns:
        warnings.append(
            f"contention is not measurable for {contention_ns / 1e6:.2f} ms of compute under communication (all "
            "files): no kernels of the same name and size ran alone often enough"
        )
    return Report(
        tool=Tool(version=__version__),
        inputs=[
            Input(
                path=file.meta.path,
                rank=rank,
                bytes=file.meta.bytes,
                events=file.meta.event_count,
                base_ns=file.meta.base_ns,
                quality=file.quality,
                warnings=file.warnings,
                software=file.meta.software,
            )
            for file, rank in zip(files, assignment.ranks, strict=True)
        ],
        job=job,
        ranks=rank_rows(counted, options.steps),
        causes=tables.causes(),
        kernels=tables.kernels(),
        collectives=tables.collectives(),
        other_steps=other_steps(counted),
        roofline=rows,
        facts=job_facts(counted, options.model.tokens_per_step) | roof.facts,
        timelines=pictures(counted),
        warnings=list(dict.fromkeys(warnings)),
    )
