"""``steptime diff``: two runs against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.inputs import input_options
from steptime.cli.outputs import check_places, deliver_diff, output_options
from steptime.cli.reading import report_of


@click.command("diff", short_help="Say what changed from one run to another.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@output_options
@input_options
def command(before: str, after: str, outputs: tuple[Path, ...], quiet: bool, verbose: bool, **options: Any) -> None:
    """Say what changed from run A to run B, in parts that add up to the change of the step exactly.

    A and B are reports (`steptime analyze -o REPORT.json`), or traces as `steptime analyze` takes them: a file, a
    folder, a glob or a URL, analysed with the options given here.
    """
    from steptime.report import DIFF_FORMATS, format_for

    def known(path: Path) -> object:
        return format_for(path, DIFF_FORMATS)

    check_places(outputs, [before, after], known)
    from steptime.diff.compare import diff_reports

    a, b = (report_of(path, options, quiet=quiet, verbose=verbose) for path in (before, after))
    check_places(outputs, [one.path for report in (a, b) for one in report.inputs], known)
    deliver_diff(diff_reports(a, b, names=(before, after)), outputs, quiet)
