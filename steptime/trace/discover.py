"""Which files to read: paths, folders, globs and URLs become an ordered list of trace files.

A file that the user named must be a trace. From a folder or a glob only traces are taken, told by their first bytes,
and everything else is named in `Discovery.skipped`. A file that is damaged stays in the list: it may be a rank, and
reading it says what is wrong.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from steptime.errors import NotATrace, TraceError, UsageError
from steptime.trace.sniff import sniff
from steptime.trace.source import is_url, local_path, open_trace, remote_errors

# A folder is searched for files with these suffixes only; a named file or a glob may have any.
SUFFIXES = (".json", ".gz", ".zst", ".zip")

_REMEDY = "give the *.pt.trace.json files that torch.profiler wrote, or their folder"
_SHOWN = 3


class TraceFile(msgspec.Struct, frozen=True):
    """One file to read. path: local path or URL; size_bytes: as stored, 0 if a remote store does not say."""

    path: str
    size_bytes: int


class Discovery(msgspec.Struct, frozen=True):
    """files: in natural order of their paths (rank2 before rank10), each once. skipped: one line a file, with why."""

    files: list[TraceFile]
    skipped: list[str]


class _Candidate(msgspec.Struct, frozen=True):
    file: TraceFile
    identity: str
    named: bool


def discover(paths: Sequence[str]) -> Discovery:
    """Find the traces among `paths`: files, folders (searched to the bottom), globs, fsspec URLs of each kind.

    Raises NotATrace if a named file is something else, TraceError if a path does not exist or holds no trace,
    UsageError if there is no path.
    """
    if not paths:
        raise UsageError(f"no path given; {_REMEDY}")
    files: dict[str, TraceFile] = {}
    skipped: dict[str, None] = {}
    for path in map(os.fspath, paths):
        notes: list[str] = []
        candidates = _remote_candidates(path, notes) if is_url(path) else _local_candidates(path, notes)
        taken = [one for one in sorted(candidates, key=lambda one: _natural(one.file.path)) if _is_taken(one, notes)]
        if not taken:
            raise TraceError(f"{path}: no trace found{_reasons(notes)}; {_REMEDY}")
        for one in taken:
            files.setdefault(one.identity, one.file)
        skipped.update(dict.fromkeys(notes))
    return Discovery(sorted(files.values(), key=lambda file: _natural(file.path)), sorted(skipped, key=_natural))


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that compares runs of digits as numbers; the text itself breaks the tie of 01 and 1."""
    parts = ((1, int(part), part) if part.isdecimal() else (0, 0, part) for part in re.split(r"([0-9]+)", text))
    return (*parts, (0, 0, text))


def _reasons(notes: list[str]) -> str:
    if not notes:
        return ""
    more = f"; and {len(notes) - _SHOWN} more" if len(notes) > _SHOWN else ""
    return f" ({'; '.join(notes[:_SHOWN])}{more})"


def _is_taken(candidate: _Candidate, notes: list[str]) -> bool:
    """Look into one candidate. Adds a note if it is skipped; raises NotATrace if it was named and is none."""
    path = candidate.file.path
    try:
        with open_trace(path) as stream:
            verdict = sniff(stream)
    except NotATrace as error:
        if candidate.named:
            raise
        notes.append(f"{path}: skipped, {str(error).removeprefix(f'{path}: ')}")
        return False
    except TraceError:
        if candidate.named:
            raise
        return True
    if candidate.named:
        if verdict.trace is False:
            raise NotATrace(f"{path}: not a profiler trace but {verdict.what}; {_REMEDY}")
        return True
    if not verdict.trace:
        notes.append(f"{path}: skipped, not a profiler trace but {verdict.what}")
    return verdict.trace is True


def _refused_by_name(name: str) -> str:
    """Why a file found in a folder is not looked into; empty if it is."""
    if name.startswith("."):
        return "a hidden file"
    if name.endswith(".tmp"):
        return "an unfinished file (.tmp): its writer was killed or is still writing"
    return ""


def _local_candidates(path: str, notes: list[str]) -> Iterator[_Candidate]:
    root = local_path(path)
    if root.is_dir():
        yield from _in_folder(root, notes)
    elif root.exists():
        yield from _local_file(root, notes, named=True)
    elif glob.has_magic(path):
        # glob.glob and not Path.glob: like a shell, it leaves hidden files out.
        for match in glob.glob(str(root), recursive=True):  # noqa: PTH207
            if Path(match).is_dir():
                yield from _in_folder(Path(match), notes)
            else:
                yield from _local_file(Path(match), notes, named=False)
    else:
        raise TraceError(f"{path}: no such file or folder; {_REMEDY}")


def _in_folder(root: Path, notes: list[str]) -> Iterator[_Candidate]:
    others: list[str] = []
    for folder, subfolders, names in os.walk(root, onerror=_raise_unreadable):
        for name in sorted(subfolders):
            inner = Path(folder, name)
            if name.startswith("."):
                notes.append(f"{inner}: skipped, a hidden folder")
            elif inner.is_symlink():
                notes.append(f"{inner}: skipped, a link to a folder; give the folder itself")
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if _refused_by_name(name) or name.lower().endswith(SUFFIXES):
                yield from _local_file(Path(folder, name), notes, named=False)
            else:
                others.append(name)
    notes.extend(_note_on_others(str(root), others))


def _raise_unreadable(error: OSError) -> None:
    raise TraceError(f"{error.filename}: can't be listed ({error.strerror}); check the permissions") from error


def _note_on_others(root: str, names: list[str]) -> list[str]:
    """One note for all files of a folder whose suffix no trace has, since there may be thousands."""
    if not names:
        return []
    shown = ", ".join(sorted(names, key=_natural)[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    files = "file" if len(names) == 1 else "files"
    return [f"{root}: skipped {len(names)} {files} without a suffix of traces ({shown})"]


def _local_file(path: Path, notes: list[str], *, named: bool) -> Iterator[_Candidate]:
    refused = "" if named else _refused_by_name(path.name)
    try:
        status = path.stat()
    except OSError as error:
        status, refused = None, refused or f"can't be looked at ({error.strerror})"
    if status is not None and not stat.S_ISREG(status.st_mode):
        refused = "not a regular file"
    if refused:
        if named:
            raise TraceError(f"{path}: {refused}; {_REMEDY}")
        notes.append(f"{path}: skipped, {refused}")
    elif status is not None:
        yield _Candidate(TraceFile(str(path), status.st_size), str(path.resolve()), named)


def _remote_candidates(url: str, notes: list[str]) -> list[_Candidate]:
    with remote_errors(url):
        import fsspec

        file_system, root = fsspec.core.url_to_fs(url)
        info = file_system.info(root) if file_system.exists(root) else None
        # A chained URL (`zip://…::s3://…`) can't be put together again from what a listing returns.
        if "::" in url or (info is not None and info["type"] == "file"):
            return [_Candidate(TraceFile(url, int((info or {}).get("size") or 0)), url, named=True)]
        if info is not None:
            found = _remote_folder(file_system, root, notes)
        elif glob.has_magic(root):
            found = {}
            for name, entry in file_system.glob(root, detail=True).items():
                found.update(
                    _remote_folder(file_system, name, notes) if entry["type"] == "directory" else {name: entry}
                )
        else:
            raise TraceError(f"{url}: no such file or folder; {_REMEDY}")
        return [
            _Candidate(TraceFile(address, int(entry.get("size") or 0)), address, named=False)
            for name, entry in found.items()
            if (address := _address(file_system, name)) and not _is_noted(address, notes)
        ]


def _remote_folder(file_system: Any, root: str, notes: list[str]) -> dict[str, dict[str, Any]]:
    others: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    for name, entry in file_system.find(root, detail=True).items():
        parts = PurePosixPath(name[len(root) :].lstrip("/")).parts
        if any(part.startswith(".") for part in parts[:-1]):
            notes.append(f"{_address(file_system, name)}: skipped, in a hidden folder")
        elif _refused_by_name(parts[-1]) or name.lower().endswith(SUFFIXES):
            found[name] = entry
        else:
            others.append(parts[-1])
    notes.extend(_note_on_others(_address(file_system, root), others))
    return found


def _address(file_system: Any, name: str) -> str:
    return str(file_system.unstrip_protocol(name))


def _is_noted(address: str, notes: list[str]) -> bool:
    refused = _refused_by_name(PurePosixPath(address).name)
    if refused:
        notes.append(f"{address}: skipped, {refused}")
    return bool(refused)
