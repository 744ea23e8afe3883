"""``steptime capture``: ask a job with the hook for traces, and wait for the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from steptime.cli.capturing import Ranks, Wanted, from_hook, show_missed
from steptime.errors import CaptureError

_Function = TypeVar("_Function", bound=Callable[..., None])


def capture_options(function: _Function) -> _Function:
    """Add the options that say what to capture: fields of `Wanted`."""
    for option in (
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0, min_open=True, max=86_400),
            metavar="S",
            default=120.0,
            show_default=True,
            help="Wait at most S seconds for the traces.",
        ),
        click.option("--stacks", is_flag=True, help="Record Python stacks, too: source lines, but a slower host."),
        click.option(
            "--seconds",
            type=click.FloatRange(min=0, min_open=True, max=600),
            metavar="S",
            help="Record at most S seconds; of a process from outside, S seconds in place of whole steps.",
        ),
        click.option("--steps", type=click.IntRange(1, 1000), metavar="N", help="Record N whole steps (3)."),
        click.option("--ranks", type=Ranks(), help="Record these ranks, as 0,3,8-11; without it steptime chooses."),
    ):
        function = option(function)
    return function


@click.command("capture", short_help="Ask a job with the hook for traces.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@capture_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but the names of the files.")
def command(folder: Path, quiet: bool, **words: Any) -> None:
    """Ask a job with the hook for traces, and print the names of the files once they are there.

    DIR is the folder that `steptime.watch` was given. Of up to 16 ranks all are recorded; of more, the slowest, a
    typical one and some spread over the job.
    """
    taken = from_hook(folder, Wanted.of(words, quiet=quiet))
    show_missed(taken)
    if not taken.paths:
        raise CaptureError(f"{folder}: no rank left a trace; see the reasons above")
    for path in taken.paths:
        click.echo(path)
