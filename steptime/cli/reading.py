"""The options of every verb that reads traces, and reports wherever a report or traces may be given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from steptime.cli.params import Milliseconds, Pattern, StepRange
from steptime.cli.progress import progress

if TYPE_CHECKING:
    from steptime.model import Report
    from steptime.pipeline import Options

_Function = TypeVar("_Function", bound=Callable[..., None])
#: Options that say what the hardware is: fields of `RooflinePricing`; and what the model is: fields of `ModelAsk`.
_HARDWARE = ("gpu", "peaks", "dtype", "gpu_table")
_MODEL = ("model", "params", "tokens_per_step", "seq_len")


def analysis_options(function: _Function) -> _Function:
    """Add what can be said of traces: each is a field of `steptime.pipeline.Options`, its `pricing` or its `model`."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Name each file as it is read."),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            default=1,
            show_default=True,
            help="Read N files at once.",
        ),
        click.option("--strict", is_flag=True, help="Stop at the first bad file instead of going on without it."),
        click.option("--seq-len", type=click.IntRange(min=1), metavar="N", help="Tokens of one sequence."),
        click.option(
            "--tokens-per-step", type=click.IntRange(min=1), metavar="N", help="Tokens of one update, all GPUs."
        ),
        click.option("--params", metavar="N", help="Parameters of the model, as 8e9, where there is no config."),
        click.option("--model", metavar="MODEL", help="A Hugging Face config.json, or a preset such as llama-3-8b."),
        click.option(
            "--gpu-table", metavar="FILE", help="A table of GPUs of your own, in the form of steptime's gpus.toml."
        ),
        click.option("--dtype", help="The dtype that the run means to compute in (bf16; fp16 before Ampere)."),
        click.option(
            "--peak",
            "peaks",
            metavar="FLOPS:DTYPE",
            multiple=True,
            help="Dense peak of the GPU, as 989.4e12:bf16; once for each dtype.",
        ),
        click.option(
            "--gpu", metavar="NAME", help="The GPU's row in steptime's table, where the trace does not tell it."
        ),
        click.option(
            "--unprofiled-step-ms",
            "unprofiled_step_ns",
            type=Milliseconds(),
            help="A step takes X ms without the profiler; what is more is the profiler's own cost.",
        ),
        click.option(
            "--rank", type=click.IntRange(min=0), metavar="N", help="The rank of a file that does not say it."
        ),
        click.option("--step-marker", type=Pattern(), help="Each annotation that matches RE marks a step."),
        click.option("--steps", type=StepRange(), help="Analyse only steps A to B, both included."),
    ):
        function = option(function)
    return function


def analysis(given: dict[str, Any], **more: Any) -> Options:
    """The options of an analysis from those of a verb, and `more` of them.

    Raises:
        UsageError: an option does not fit.
    """
    from steptime.pipeline import ModelAsk, Options, RooflinePricing

    rest = dict(given)
    pricing = RooflinePricing(**{name: rest.pop(name) for name in _HARDWARE})
    model = ModelAsk(**{name: rest.pop(name) for name in _MODEL})
    return Options(**rest, pricing=pricing, model=model, **more)


def report_of(path: str, given: dict[str, Any], *, quiet: bool, verbose: bool) -> Report:
    """The saved report at `path`, or that of the traces there, without gains: nobody asks for them.

    Raises:
        StepTimeError: it is neither.
    """
    from steptime.store import is_report, load

    if is_report(Path(path)):
        return load(path)
    from steptime.pipeline import analyze

    with progress(quiet, verbose) as tick:
        return analyze([path], analysis(given, replay=False, progress=tick))
