"""What every verb that reads traces takes: which steps, which hardware, which model, how to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from steptime.cli.params import Pattern, StepRange

if TYPE_CHECKING:
    from steptime.pipeline import Options

_Function = TypeVar("_Function", bound=Callable[..., None])

#: Options that say what the hardware is: fields of `RooflinePricing`; and what the model is: fields of `ModelAsk`.
_HARDWARE = ("gpu", "peaks", "dtype", "gpu_table")
_MODEL = ("model", "params", "tokens_per_step", "seq_len")


def input_options(function: _Function) -> _Function:
    """Add the options that `read_options` takes."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("--steps", type=StepRange(), help="Analyse only steps A to B, both included."),
        click.option("--step-marker", type=Pattern(), help="Each annotation that matches RE marks a step."),
        click.option(
            "--rank", type=click.IntRange(min=0), metavar="N", help="The rank of a file that does not say it."
        ),
        click.option(
            "--gpu", metavar="NAME", help="The GPU's row in steptime's table, where the trace does not tell it."
        ),
        click.option(
            "--peak",
            "peaks",
            metavar="FLOPS:DTYPE",
            multiple=True,
            help="Dense peak of the GPU, as 989.4e12:bf16; once for each dtype.",
        ),
        click.option("--dtype", help="The dtype that the run means to compute in (bf16; fp16 before Ampere)."),
        click.option(
            "--gpu-table", metavar="FILE", help="A table of GPUs of your own, in the form of steptime's gpus.toml."
        ),
        click.option("--model", metavar="MODEL", help="A Hugging Face config.json, or a preset such as llama-3-8b."),
        click.option("--params", metavar="N", help="Parameters of the model, as 8e9, where there is no config."),
        click.option(
            "--tokens-per-step", type=click.IntRange(min=1), metavar="N", help="Tokens of one update, all GPUs."
        ),
        click.option("--seq-len", type=click.IntRange(min=1), metavar="N", help="Tokens of one sequence."),
        click.option("--rules", metavar="DIR", multiple=True, help="A folder with rules of your own."),
        click.option("--strict", is_flag=True, help="Stop at the first bad file instead of going on without it."),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            default=1,
            show_default=True,
            help="Read N files at once.",
        ),
        click.option("-v", "--verbose", is_flag=True, help="Name each file as it is read."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def read_options(options: dict[str, Any]) -> Options:
    """`steptime.pipeline.Options` of the words on the command line.

    Args:
        options: fields of it, of its `pricing` and of its `model`, by name.
    """
    from steptime.pipeline import ModelAsk, Options, RooflinePricing

    rest = {name: value for name, value in options.items() if name not in (*_HARDWARE, *_MODEL)}
    pricing = RooflinePricing(**{name: options[name] for name in _HARDWARE})
    return Options(**rest, pricing=pricing, model=ModelAsk(**{name: options[name] for name in _MODEL}))
