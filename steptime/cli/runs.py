"""Runs from what a user names: reports, trace folders, globs and URLs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from steptime.errors import ReportError, StepTimeError, UsageError

if TYPE_CHECKING:
    from steptime.gate.runs import Run
    from steptime.model import Report
    from steptime.pipeline import Options

_GLOB = frozenset("*?[")
#: A report begins with its schema version; a trace never does.
_REPORT_HEAD = b'"schema_version"'
_HEAD_BYTES = 4096
#: Suffixes under which a folder may hold traces; a folder of reports holds nothing else of them.
_TRACES = (".json", ".gz", ".zip", ".zst")


def read_runs(words: Sequence[str], options: Options) -> list[Run]:
    """The runs that `words` name, in order.

    A report is a run. A glob of reports or of folders is one run for each; a folder of reports, too. Any other folder,
    file or glob is the traces of one run.

    Args:
        words: as the user wrote them.
        options: for the analysis of those that are traces.

    Raises:
        StepTimeError: one of them can't be read, or there is none.
    """
    from steptime.gate.runs import Run

    return [Run(name, report) for word in words for name, report in _runs(word, options)]


def _runs(word: str, options: Options) -> list[tuple[str, Report]]:
    if "://" in word:
        return _remote(word, options)
    from steptime.store import is_report

    path = Path(word)
    if path.is_dir():
        inside = [one for one in sorted(path.iterdir()) if one.name.endswith(_TRACES)]
        if inside and all(is_report(one) for one in inside):
            return [_loaded(one) for one in inside]
        return [_analyzed(word, options)]
    if path.exists():
        return [_loaded(path) if is_report(path) else _analyzed(word, options)]
    if not _GLOB & set(word):
        raise UsageError(f"{word}: no such file or folder: check the path")
    found = [Path(one) for one in _globbed(word)]
    if not found:
        raise UsageError(f"{word}: nothing matches: check the pattern")
    if all(one.is_dir() for one in found):
        return [run for one in found for run in _runs(str(one), options)]
    if any(is_report(one) for one in found):
        return [_loaded(one) for one in found if one.is_file()]
    return [_analyzed(word, options)]


def _globbed(word: str) -> list[str]:
    pattern = Path(word)
    root = Path(pattern.anchor)
    return sorted(str(path) for path in root.glob(str(pattern.relative_to(root) if pattern.anchor else pattern)))


def _remote(word: str, options: Options) -> list[tuple[str, Report]]:
    """Reports behind a URL are read here; traces are left to `analyze`, which reads URLs itself."""
    if not word.endswith(".json"):
        return [_analyzed(word, options)]
    import fsspec

    from steptime.store import loads

    try:
        files = fsspec.open_files(word, "rb")
        contents = []
        for file in files:
            with file as stream:
                contents.append((str(file.path), stream.read()))
    except (OSError, ValueError, ImportError) as error:
        raise ReportError(f"{word}: can't be read ({error}): check the address and its access") from error
    if not contents:
        raise UsageError(f"{word}: nothing matches: check the pattern")
    if not all(_REPORT_HEAD in data[:_HEAD_BYTES] for _, data in contents):
        return [_analyzed(word, options)]
    return [(PurePosixPath(path).name, loads(data, path)) for path, data in contents]


def _loaded(path: Path) -> tuple[str, Report]:
    from steptime.store import load

    return str(path), load(path)


def _analyzed(word: str, options: Options) -> tuple[str, Report]:
    from steptime.pipeline import analyze

    report = analyze([word], options)
    if not report.job.rank_steps:
        raise StepTimeError(f"{word}: no step was measured: record steps with the profiler's schedule")
    return word, report
