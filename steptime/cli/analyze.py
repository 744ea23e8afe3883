"""``steptime analyze``: traces in, report out."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from steptime.cli.outputs import check_outputs, deliver, output_options
from steptime.cli.progress import progress


class _StepRange(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """``A:B`` or ``A`` to an inclusive range of step numbers."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        first, colon, last = value.partition(":")
        if not (first.isdecimal() and (last.isdecimal() if colon else True)):
            self.fail(f"{value!r} is not a range of step numbers such as 5:10", param, ctx)
        steps = (int(first), int(last or first))
        if steps[0] > steps[1]:
            self.fail(f"{value!r} ends before it starts", param, ctx)
        return steps


class _Milliseconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Decimal milliseconds to int nanoseconds."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            ns = int(Decimal(value) * 1_000_000)
        except (InvalidOperation, ValueError, OverflowError):
            ns = 0
        if ns <= 0:
            self.fail(f"{value!r} is not a time in milliseconds such as 123.4", param, ctx)
        return ns


class _Pattern(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A regular expression, kept as text once it is known to compile."""

    name = "RE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)
        return str(value)


# Every option that is not named in the signature is a field of `steptime.pipeline.Options`, under the field's name.
@click.command("analyze", short_help="Say where the step time went.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@output_options
@click.option("--steps", type=_StepRange(), help="Analyse only steps A to B, both included.")
@click.option("--step-marker", type=_Pattern(), help="Each annotation that matches RE marks a step.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The rank of a file that does not say it.")
@click.option(
    "--unprofiled-step-ms",
    "unprofiled_step_ns",
    type=_Milliseconds(),
    help="A step takes X ms without the profiler; what is more is the profiler's own cost.",
)
@click.option("--strict", is_flag=True, help="Stop at the first bad file instead of going on without it.")
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", default=1, show_default=True, help="Read N files at once."
)
@click.option("-v", "--verbose", is_flag=True, help="Name each file as it is read.")
def command(paths: tuple[str, ...], outputs: tuple[Path, ...], quiet: bool, verbose: bool, **options: Any) -> None:
    """Say where the step time of a training job went.

    PATH is a trace of PyTorch's profiler (.json, .json.gz, .zip, .zst), a folder of them, a glob or a URL; one file
    per rank. Every nanosecond of every step is given exactly one cause.
    """
    check_outputs(outputs, inputs=paths)
    from steptime.pipeline import Options, analyze

    with progress(quiet, verbose) as tick:
        report = analyze(paths, Options(**options, progress=tick))
    check_outputs(outputs, inputs=(source.path for source in report.inputs))
    deliver(report, outputs, quiet)
