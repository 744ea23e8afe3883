"""A report wherever a saved one, or the traces that it is made of, may be given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.cli.inputs import read_options
from steptime.cli.progress import progress

if TYPE_CHECKING:
    from steptime.model import Report


def report_of(path: str, given: dict[str, Any], *, quiet: bool, verbose: bool) -> Report:
    """The saved report at `path`, or that of the traces there, without gains: nobody asks for them.

    Args:
        given: what `steptime.cli.inputs.input_options` takes.

    Raises:
        StepTimeError: it is neither.
    """
    from steptime.store import is_report, load

    if is_report(Path(path)):
        return load(path)
    from steptime.pipeline import analyze

    with progress(quiet, verbose) as tick:
        return analyze([path], read_options(given | {"replay": False, "progress": tick}))
