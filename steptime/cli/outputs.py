"""Where a report goes: the files of ``-o``, checked before work starts and written whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from steptime.errors import UsageError

if TYPE_CHECKING:
    from steptime.model import Diff, Report

_Function = TypeVar("_Function", bound=Callable[..., None])


def output_options(function: _Function) -> _Function:
    """Add ``-o`` and ``-q``, which every verb that shows a report has."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Print no summary and no progress."),
        click.option(
            "-o",
            "--output",
            "outputs",
            metavar="FILE",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Write the report to FILE, in the format of its suffix (.html, .json, .md, .perfetto.json, .txt); "
            "may be repeated.",
        ),
    ):
        function = option(function)
    return function


def check_outputs(outputs: Sequence[Path], inputs: Iterable[str]) -> None:
    """Refuse what could not be written, before any time is spent on the analysis.

    Raises:
        UsageError: unknown suffix, no such folder, a folder in place of a file, or an input would be overwritten.
    """
    from steptime.report import format_for

    check_places(outputs, inputs, format_for)


def check_places(outputs: Sequence[Path], inputs: Iterable[str], known: Callable[[Path], object]) -> None:
    """The same for any kind of report; `known` raises `UsageError` for a suffix that it has no format for.

    Raises:
        UsageError: see `check_outputs`.
    """
    read = {Path(path).resolve() for path in inputs}
    for path in outputs:
        known(path)
        if not path.parent.is_dir():
            raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")
        if path.is_dir():
            raise UsageError(f"{path}: is a folder: give the name of a file")
        if path.resolve() in read:
            raise UsageError(f"{path}: is an input of this command: choose another output file")


def wants_every_step(path: Path) -> bool:
    """Whether a format draws every step."""
    return path.name.lower().endswith(".perfetto.json")


def deliver(report: Report, outputs: Sequence[Path], quiet: bool) -> None:
    """Write `report` to every file of `outputs`, then print the terminal summary unless `quiet`."""
    _write(report, outputs)
    if not quiet:
        click.echo(_summary(report), nl=False)


def deliver_diff(diff: Diff, outputs: Sequence[Path], quiet: bool) -> None:
    """The same for a diff."""
    from steptime.report import DIFF_FORMATS, diff_terminal, format_for

    write_texts({path.resolve(): format_for(path, DIFF_FORMATS).render(diff) for path in outputs})
    if not quiet:
        width, color = screen()
        click.echo(diff_terminal.render(diff, width=width, color=color), nl=False)


def _summary(report: Report) -> str:
    from steptime.report import terminal

    width, color = screen()
    text = terminal.render(report, width=width, color=color)
    return text if text.endswith("\n") else text + "\n"


def screen() -> tuple[int | None, bool]:
    """Columns of the terminal, None where there is none, and whether it is to show colours."""
    on_terminal = sys.stdout.isatty()
    return shutil.get_terminal_size().columns if on_terminal else None, on_terminal and not os.environ.get("NO_COLOR")


def _write(report: Report, outputs: Sequence[Path]) -> None:
    from msgspec.structs import replace

    from steptime.report import format_for

    # Only the Perfetto file wants every step drawn; elsewhere the typical and the slowest one say enough.
    brief = replace(report, timelines=[drawn for drawn in report.timelines if drawn.why])
    whole = [path for path in outputs if wants_every_step(path)]
    write_texts({path.resolve(): format_for(path).render(report if path in whole else brief) for path in outputs})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write every text beside its place, then rename: a failure leaves no half-written file.

    Raises:
        UsageError: a file can't be written.
    """
    staged = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in texts}
    try:
        for path, text in texts.items():
            # A file name in another encoding reaches a report as lone surrogates, which UTF-8 can't hold.
            staged[path].write_bytes(text.encode("utf-8", errors="backslashreplace"))
        for path, temporary in staged.items():
            temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: can't be written ({error.strerror}): choose another output file") from error
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
