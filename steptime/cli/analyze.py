"""``steptime analyze``: traces in, report out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.outputs import check_outputs, deliver, output_options, wants_every_step
from steptime.cli.params import Milliseconds, Pattern, StepRange
from steptime.cli.progress import progress

#: Options that say what the hardware is: fields of `RooflinePricing`; and what the model is: fields of `ModelAsk`.
_HARDWARE = ("gpu", "peaks", "dtype", "gpu_table")
_MODEL = ("model", "params", "tokens_per_step", "seq_len")


# Every option that is not named in the signature is a field of `steptime.pipeline.Options`, of its
# `pricing` or of its `model`, under the field's name.
@click.command("analyze", short_help="Say where the step time went.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@output_options
@click.option("--steps", type=StepRange(), help="Analyse only steps A to B, both included.")
@click.option("--step-marker", type=Pattern(), help="Each annotation that matches RE marks a step.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The rank of a file that does not say it.")
@click.option(
    "--unprofiled-step-ms",
    "unprofiled_step_ns",
    type=Milliseconds(),
    help="A step takes X ms without the profiler; what is more is the profiler's own cost.",
)
@click.option("--gpu", metavar="NAME", help="The GPU's row in steptime's table, where the trace does not tell it.")
@click.option(
    "--peak",
    "peaks",
    metavar="FLOPS:DTYPE",
    multiple=True,
    help="Dense peak of the GPU, as 989.4e12:bf16; once for each dtype.",
)
@click.option("--dtype", help="The dtype that the run means to compute in (bf16; fp16 before Ampere).")
@click.option("--gpu-table", metavar="FILE", help="A table of GPUs of your own, in the form of steptime's gpus.toml.")
@click.option("--model", metavar="MODEL", help="A Hugging Face config.json, or a preset such as llama-3-8b.")
@click.option("--params", metavar="N", help="Parameters of the model, as 8e9, where there is no config.")
@click.option("--tokens-per-step", type=click.IntRange(min=1), metavar="N", help="Tokens of one update, all GPUs.")
@click.option("--seq-len", type=click.IntRange(min=1), metavar="N", help="Tokens of one sequence.")
@click.option("--run", metavar="REPORT", multiple=True, help="A report of `steptime goodput`, for the checklist.")
@click.option("--rules", metavar="DIR", multiple=True, help="A folder with rules of your own.")
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
    from steptime.pipeline import ModelAsk, Options, RooflinePricing, analyze

    pricing = RooflinePricing(**{name: options.pop(name) for name in _HARDWARE})
    drawn = any(map(wants_every_step, outputs))
    model = ModelAsk(**{name: options.pop(name) for name in _MODEL})
    with progress(quiet, verbose) as tick:
        report = analyze(paths, Options(**options, pricing=pricing, model=model, draw_every_step=drawn, progress=tick))
    check_outputs(outputs, inputs=(source.path for source in report.inputs))
    deliver(report, outputs, quiet)
