"""``steptime show``: a saved report, rendered again."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.cli.goodput_outputs import deliver_goodput
from steptime.cli.outputs import check_outputs, check_places, deliver, output_options


@click.command("show", short_help="Show a saved report again.")
@click.argument("path", metavar="REPORT.json", type=click.Path(path_type=Path))
@output_options
def command(path: Path, outputs: tuple[Path, ...], quiet: bool) -> None:
    """Show a report that `steptime analyze -o` or `steptime goodput -o REPORT.json` wrote, or convert it with -o."""
    from steptime.store import is_of_a_run, load, load_run

    if path.is_file() and is_of_a_run(path):
        from steptime.report.goodput import format_for

        check_places(outputs, [str(path)], format_for)
        deliver_goodput(load_run(path), outputs, quiet)
        return
    check_outputs(outputs, inputs=[str(path)])
    deliver(load(path), outputs, quiet)
