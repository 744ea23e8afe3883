"""``steptime what-if``: what a job would take with some of its times changed, by replaying it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steptime.cli.inputs import input_options, read_options
from steptime.cli.outputs import check_places, output_options, write_texts
from steptime.cli.progress import progress
from steptime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steptime.model.what_if import WhatIf

_OP_LEVEL = ".parquet"


@click.command("what-if", short_help="Replay a job with some of its times changed.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--remove",
    "removals",
    metavar="NAME",
    multiple=True,
    help="What takes no time any more: a leaf or slice of the report (host/data_loader, exposed_comm) or a fix "
    "(straggler:rank=5, stragglers, stages, perfect, recompute, graphs, loader, hidden:KIND, roof:LEAF, "
    "link-roof:KIND, finding:ID); may be repeated.",
)
@click.option(
    "--scale",
    "scales",
    metavar="NAME=F",
    multiple=True,
    help="A leaf or slice that takes F times as long, as matmul=0.8; may be repeated.",
)
@click.option("--each", is_flag=True, help="Show each change alone and one after the other, too.")
@output_options
@input_options
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Replay a job without some of its lost time, and say what a step then takes and what holds it up next.

    PATH is what `steptime analyze` takes: the traces of one job, one file a rank. Several changes are one set: the
    step is replayed with all of them.

    A PATH that ends in .parquet is a job recorded as operations of a pipeline (trace-NAME.parquet of the OSDI'25
    straggler analysis, with meta-NAME.yaml beside it; it needs pip install 'steptime[oplevel]'): what slows it down,
    and by how much.
    """
    removals, scales = options.pop("removals"), options.pop("scales")
    outputs, quiet, verbose, each = (options.pop(name) for name in ("outputs", "quiet", "verbose", "each"))
    if any(Path(path).suffix == _OP_LEVEL for path in paths):
        _op_level(paths, changed=bool(removals or scales or each or outputs))
        return
    from steptime.report.what_if import format_for

    check_places(outputs, paths, format_for)
    from steptime.pipeline import what_if

    with progress(quiet, verbose) as tick:
        result = what_if(paths, removals, scales, read_options(options | {"progress": tick}))
    check_places(outputs, result.inputs, format_for)
    _deliver(result, outputs, quiet=quiet, each=each)


def _deliver(result: WhatIf, outputs: Sequence[Path], *, quiet: bool, each: bool) -> None:
    from steptime.report.what_if import format_for, terminal

    write_texts({path.resolve(): format_for(path).render(result, each) for path in outputs})
    if not quiet:
        on_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal else None
        color = on_terminal and not os.environ.get("NO_COLOR")
        click.echo(terminal(result, each, width=width, color=color), nl=False)


def _op_level(paths: Sequence[str], *, changed: bool) -> None:
    """Print what an op-level job says of itself."""
    if len(paths) > 1:
        raise UsageError(f"{paths[0]}: one op-level recording at a time: it holds a whole job")
    if changed:
        raise UsageError(
            f"{paths[0]}: op-level recordings take no --remove, --scale, --each or -o: the report has each op type, "
            "worker and stage by itself"
        )
    from steptime.report.oplevel import render
    from steptime.whatif.oplevel.analysis import analyze_oplevel

    click.echo(render(analyze_oplevel(Path(paths[0]))), nl=False)
