"""How far an analysis has come, told on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Tick = Callable[[int, int, str], None]

#: Work that ends sooner than this, in seconds, shows no bar.
PATIENCE_S = 1.0


@contextmanager
def progress(quiet: bool, verbose: bool) -> Iterator[Tick | None]:
    """Yield what `steptime.pipeline.Options.progress` expects, or None where nothing is to be told."""
    if quiet:
        yield None
    elif verbose:
        yield _name_file
    elif sys.stderr.isatty():
        with _bar() as tick:
            yield tick
    else:
        yield None


def _name_file(done: int, total: int, path: str) -> None:
    click.echo(f"steptime: {done} of {total} files read: {path}", err=True)


@contextmanager
def _bar() -> Iterator[Tick]:
    """A bar that appears with the second file or the second second, whichever is first."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None)
    patience = threading.Timer(PATIENCE_S, bar.start)
    patience.daemon = True

    def tick(done: int, total: int, path: str) -> None:  # noqa: ARG001
        bar.update(task, completed=done, total=total)
        if 0 < done < total:
            bar.start()

    patience.start()
    try:
        yield tick
    finally:
        patience.cancel()
        patience.join()
        bar.stop()
