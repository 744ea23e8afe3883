"""``steptime diagnose``: from "the job is slow" to the culprit."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steptime.cli.capture import capture_options
from steptime.cli.capturing import Taken, Wanted, from_hook, from_outside, latest_of_hook, show_missed, tell
from steptime.cli.outputs import check_outputs, check_places, deliver, output_options, wants_every_step, write_texts
from steptime.cli.progress import progress
from steptime.cli.webhook import check_url, post
from steptime.errors import EXIT_CANNOT_TELL, CaptureError, RankError, StepTimeError, UsageError
from steptime.model.on_call import CANNOT_TELL
from steptime.report import FILE_COLUMNS

if TYPE_CHECKING:
    from steptime.model import Report
    from steptime.model.on_call import OnCall


@click.command("diagnose", short_help="Say who makes a job slow, and why.")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--pid", "pids", type=click.IntRange(min=1), metavar="N", multiple=True, help="Trace this process; may be repeated."
)
@click.option("--job", metavar="NAME", help="Trace the processes of a job: its Slurm number, or a text of its command.")
@click.option(
    "--dynolog", metavar="HOST", multiple=True, help="Ask the dynolog daemon of HOST[:PORT]; may be repeated."
)
@click.option("--baseline", metavar="REPORT", help="A JSON report of the job when it was healthy.")
@capture_options
@click.option(
    "--traces",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep what is traced from outside in DIR; without it in a new folder, which is named.",
)
@click.option("--webhook", metavar="URL", callback=check_url, help="Post the summary to URL as JSON.")
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write step time, MFU and leaf shares to FILE for Prometheus.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", default=1, show_default=True, help="Read N files at once."
)
@output_options
def command(outputs: tuple[Path, ...], quiet: bool, jobs: int, **words: Any) -> None:
    """Say in three sentences what makes a job slow, who and why, and since when; then what to do now.

    PATH is a trace, a folder of them, a glob or a URL, or the folder that a job with the hook watches: then it is asked
    for traces. Processes started with KINETO_USE_DAEMON=1 are traced from outside with --pid, --job or --dynolog.

    Exit codes: 0 there is a verdict, 2 these traces can't tell.
    """
    paths, metrics, webhook = words["paths"], words["metrics"], words["webhook"]
    _check(paths, words)
    check_outputs(outputs, inputs=paths)
    check_places([metrics] if metrics else [], paths, lambda _: None)
    baseline = _baseline(words["baseline"])
    taken = _take(words, baseline, quiet)
    for note in taken.notes:
        tell(note, quiet)
    if not taken.paths:
        show_missed(taken)
        raise CaptureError("nothing was captured; see the reasons above")
    try:
        reports = _reports(taken, outputs, jobs, quiet)
    except StepTimeError:
        show_missed(taken)
        raise
    if len(reports) > 1:
        statuses = _each_alone(reports, baseline, taken, (webhook, quiet))
        if outputs or metrics:
            raise UsageError(
                "nothing written for -o and --metrics: these processes tell no rank, so each has a report of its own; "
                "give one trace at a time: steptime diagnose FILE -o REPORT"
            )
    else:
        ((_, report),) = reports
        check_outputs(outputs, inputs=(source.path for source in report.inputs))
        summary = _summary(report, baseline, taken, words["job"])
        deliver(report, outputs, quiet=True)
        if metrics is not None:
            _write_metrics(summary, metrics)
        _say(summary, webhook, quiet)
        statuses = [summary.status]
    if CANNOT_TELL in statuses:
        click.get_current_context().exit(EXIT_CANNOT_TELL)


def _each_alone(
    reports: list[tuple[str, Report]], baseline: Report | None, taken: Taken, out: tuple[str | None, bool]
) -> list[str]:
    """Processes that tell no rank are no ranks of one job: each is judged by itself."""
    webhook, quiet = out
    show_missed(taken)
    statuses: list[str] = []
    for path, report in reports:
        summary = _summary(report, baseline, Taken(notes=taken.notes), Path(path).name)
        if statuses and not quiet:
            click.echo()
        _say(summary, webhook, quiet)
        statuses.append(summary.status)
    return statuses


def _say(summary: OnCall, webhook: str | None, quiet: bool) -> None:
    if not quiet:
        click.echo(_shown(summary), nl=False)
    if webhook is not None:
        _post(summary, webhook)


def _check(paths: tuple[str, ...], words: dict[str, Any]) -> None:
    """Refuse a request that names nothing, or two things at once."""
    outside = [name for name in ("pids", "job", "dynolog") if words[name]]
    if not paths and not outside:
        raise click.UsageError("name a PATH with traces or with a hook's captures, or processes with --pid or --job")
    if paths and outside:
        raise click.UsageError("PATH and processes (--pid, --job, --dynolog) are two different requests: give one")
    asked = [f"--{name}" for name in ("ranks", "steps", "seconds", "stacks", "traces") if words[name]]
    if paths and asked and _hook_folder(paths) is None:
        raise click.UsageError(f"{', '.join(asked)} says what to capture, and these traces are there already")


def _hook_folder(paths: tuple[str, ...]) -> Path | None:
    """The one path, if it is the folder of a hook."""
    from steptime.capture.ask import is_watched

    folder = Path(paths[0]) if len(paths) == 1 else None
    return folder if folder is not None and folder.is_dir() and is_watched(folder) else None


def _baseline(path: str | None) -> Report | None:
    from steptime.store import load

    return None if path is None else load(path)


def _take(words: dict[str, Any], baseline: Report | None, quiet: bool) -> Taken:
    stages = baseline.pipeline.stages if baseline is not None and baseline.pipeline is not None else ()
    wanted = Wanted(
        words["ranks"] or (),
        words["steps"],
        words["seconds"],
        words["stacks"],
        words["timeout_s"],
        stages=stages,
        quiet=quiet,
    )
    paths = words["paths"]
    if not paths:
        return _from_outside(words, wanted)
    folder = _hook_folder(paths)
    return Taken(paths=list(paths)) if folder is None else _from_folder(folder, wanted)


def _from_outside(words: dict[str, Any], wanted: Wanted) -> Taken:
    folder = words["traces"] or Path(tempfile.mkdtemp(prefix="steptime-"))
    taken = Taken()
    try:
        taken = from_outside(words["pids"], words["job"], words["dynolog"], folder, wanted)
    finally:
        if words["traces"] is None and not taken.paths:
            shutil.rmtree(folder, ignore_errors=True)
    if taken.paths:
        tell(f"the traces are in {folder}", wanted.quiet)
    return taken


def _from_folder(folder: Path, wanted: Wanted) -> Taken:
    """A new capture while the job runs, else the latest that lies there."""
    from steptime.capture.ask import ALIVE_S, last_sign_s

    since = last_sign_s(folder)
    if since is None or since > ALIVE_S:
        return latest_of_hook(folder)
    try:
        return from_hook(folder, wanted)
    except CaptureError as error:
        try:
            return latest_of_hook(folder)
        except CaptureError:
            raise error from None


def _reports(taken: Taken, outputs: tuple[Path, ...], jobs: int, quiet: bool) -> list[tuple[str, Report]]:
    """The report of the job; where processes were traced that tell no rank, one of each, with its path."""
    from steptime.pipeline import Options, analyze

    drawn = any(map(wants_every_step, outputs))
    with progress(quiet, verbose=False) as tick:
        options = Options(jobs=jobs, draw_every_step=drawn, progress=tick)
        try:
            return [(taken.paths[0], analyze(taken.paths, options))]
        except RankError:
            if not taken.apart:
                raise
            return [(path, analyze(path, options)) for path in taken.paths]


def _summary(report: Report, baseline: Report | None, taken: Taken, job: str | None) -> OnCall:
    from msgspec.structs import replace

    from steptime.diagnose.on_call import on_call

    summary = on_call(report, baseline, taken.pace, tuple(taken.missed), job)
    return replace(summary, doubts=[*taken.notes, *summary.doubts])


def _write_metrics(summary: OnCall, path: Path) -> None:
    from steptime.report import prometheus

    write_texts({path.resolve(): prometheus.render(summary)})


def _shown(summary: OnCall) -> str:
    from steptime.report import on_call

    on_terminal = sys.stdout.isatty()
    color = on_terminal and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size().columns if on_terminal else FILE_COLUMNS
    return on_call.render(summary, width=width, color=color)


def _post(summary: OnCall, url: str) -> None:
    from steptime.report.on_call import payload

    failed = post(url, payload(summary))
    if failed is not None:
        click.echo(f"steptime: warning: {failed}", err=True)
