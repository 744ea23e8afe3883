"""Regressions that a team has accepted: a committed file, each entry with a reason and an end.

An entry lets through what was measured when it was made, not more: up to `MARGIN` times the growth of each leaf, and
only until the baseline itself has grown by half of it, since from then on the baseline holds the regression.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from steptime.errors import UsageError

FILE = "steptime-accepted.toml"
#: Another run of the same regression measures a little more or less.
MARGIN = 1.25
DEFAULT_DAYS = 30

_HEAD = "# Regressions that steptime gate lets through, each until its last day. Written by `steptime gate --accept`.\n"


class Accepted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accepted regression.

    name: the leaf, slice or finding as it was named. leaves: growth of each leaf, ns a step. baseline: what each leaf
    had in the baseline then, ns a step. until: the last day on which it holds.
    """

    name: str
    why: str
    on: datetime.date
    until: datetime.date
    leaves: dict[str, int]
    baseline: dict[str, int]


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    accepted: list[Accepted] = []


def read_accepted(path: Path) -> list[Accepted]:
    """The entries of a file; none if there is no such file.

    Raises:
        UsageError: it can't be read or is not such a file.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_File).accepted
    except FileNotFoundError:
        return []
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a file of accepted regressions ({error}): mend or remove the entry") from error
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}): check the file") from error


def write_accepted(path: Path, entries: Sequence[Accepted]) -> None:
    """Write the entries, at once or not at all; an entry replaces an earlier one of its name.

    Raises:
        UsageError: the file can't be written.
    """
    latest = {entry.name: entry for entry in entries}
    write_at_once(path, _HEAD + "".join(map(_entry, latest.values())))


def write_at_once(path: Path, text: str) -> None:
    """Write beside `path`, then rename: who reads it meanwhile sees the old file or the new one, never a part.

    Raises:
        UsageError: it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: can't be written ({error.strerror}): choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def _entry(entry: Accepted) -> str:
    # msgspec writes TOML only with a library of its own; JSON strings are TOML strings.
    lines = ["", "[[accepted]]"]
    lines += [f"{key} = {_text(getattr(entry, key))}" for key in ("name", "why")]
    lines += [f"{key} = {getattr(entry, key).isoformat()}" for key in ("on", "until")]
    for key in ("leaves", "baseline"):
        table: dict[str, int] = getattr(entry, key)
        lines.append(f"{key} = {{ {', '.join(f'{_text(leaf)} = {ns}' for leaf, ns in table.items())} }}")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode().replace("\x7f", "\\u007f")


def credit_ns(
    entries: Sequence[Accepted], today: datetime.date, before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """What of each leaf's growth is accepted, ns a step, and a line for each entry that matters here.

    Args:
        entries: of the file.
        today: the day of the gate.
        before, after: ns a step of each leaf in baseline and candidate.
    """
    credit: dict[str, int] = {}
    notes = []
    for entry in entries:
        grown = {leaf: after.get(leaf, 0) - before.get(leaf, 0) for leaf in entry.leaves}
        if max(grown.values(), default=0) <= 0:
            continue
        if today > entry.until:
            notes.append(f"acceptance of {entry.name} ended on {entry.until.isoformat()}: {entry.why}")
            continue
        used = False
        for leaf, accepted in entry.leaves.items():
            if before.get(leaf, 0) >= entry.baseline.get(leaf, 0) + max(accepted, 2) / 2:
                continue
            part = min(max(grown[leaf], 0), round(MARGIN * accepted))
            used = used or part > 0
            credit[leaf] = max(credit.get(leaf, 0), part)
        state = "accepted" if used else "no longer accepted, the baseline holds it by now"
        notes.append(f"{entry.name}: {state} until {entry.until.isoformat()}: {entry.why}")
    return credit, notes
