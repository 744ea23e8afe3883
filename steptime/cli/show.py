"""``steptime show``: a saved report, rendered again."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.cli.outputs import check_outputs, deliver, output_options


@click.command("show", short_help="Show a saved report again.")
@click.argument("path", metavar="REPORT.json", type=click.Path(path_type=Path))
@output_options
def command(path: Path, outputs: tuple[Path, ...], quiet: bool) -> None:
    """Show a report that `steptime analyze -o REPORT.json` wrote, or convert it with -o."""
    check_outputs(outputs, inputs=[str(path)])
    from steptime.store import load

    deliver(load(path), outputs, quiet)
