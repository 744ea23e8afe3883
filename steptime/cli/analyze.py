"""``steptime analyze``: traces in, report out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.inputs import input_options, read_options
from steptime.cli.outputs import check_outputs, deliver, output_options, wants_every_step
from steptime.cli.params import Milliseconds
from steptime.cli.progress import progress


# Every option that is not named in the signature is a field of `steptime.pipeline.Options`, of its
# `pricing` or of its `model`, under the field's name.
@click.command("analyze", short_help="Say where the step time went.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@output_options
@input_options
@click.option(
    "--unprofiled-step-ms",
    "unprofiled_step_ns",
    type=Milliseconds(),
    help="A step takes X ms without the profiler; what is more is the profiler's own cost.",
)
@click.option(
    "--replay/--no-replay",
    default=True,
    help="Replay the job to say what each fix would buy (the default); without, gains are by subtraction.",
)
@click.option("--run", metavar="REPORT", multiple=True, help="A report of `steptime goodput`, for the checklist.")
def command(paths: tuple[str, ...], outputs: tuple[Path, ...], quiet: bool, verbose: bool, **options: Any) -> None:
    """Say where the step time of a training job went.

    PATH is a trace of PyTorch's profiler (.json, .json.gz, .zip, .zst), a folder of them, a glob or a URL; one file
    per rank. Every nanosecond of every step is given exactly one cause.
    """
    check_outputs(outputs, inputs=paths)
    from steptime.pipeline import analyze

    drawn = any(map(wants_every_step, outputs))
    with progress(quiet, verbose) as tick:
        report = analyze(paths, read_options(options | {"draw_every_step": drawn, "progress": tick}))
    check_outputs(outputs, inputs=(source.path for source in report.inputs))
    deliver(report, outputs, quiet)
