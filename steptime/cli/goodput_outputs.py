"""Where a report on a run goes: its files, and the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from steptime.cli.outputs import write_texts

if TYPE_CHECKING:
    from steptime.report.goodput import RunReport


def deliver_goodput(report: RunReport, outputs: Sequence[Path], quiet: bool) -> None:
    """Write `report` to every file of `outputs`, then print it unless `quiet`."""
    from steptime.report.goodput import format_for, terminal

    write_texts({path.resolve(): format_for(path).render(report) for path in outputs})
    if not quiet:
        on_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal else 100
        click.echo(terminal(report, width, on_terminal and not os.environ.get("NO_COLOR")), nl=False)
