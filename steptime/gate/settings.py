"""What the gate is asked for: `steptime.toml`, `[tool.steptime.gate]` of `pyproject.toml`, and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from steptime.errors import UsageError
from steptime.gate.limits import Limit, Name, find_name, parse_growth, parse_limit

#: Growth of the step time that is let through even where it is certain: less is seldom worth a blocked merge.
DEFAULT_MAX_STEP_TIME = 0.005
#: The gate passes only what it could have seen: a regression of this size at the least.
DEFAULT_DETECT = 0.25
#: Under five steps one slow step can't be told from a slow run.
DEFAULT_MIN_STEPS = 5

FILES = ("steptime.toml", "pyproject.toml")

_Table = TypeVar("_Table", bound=msgspec.Struct)


class GateTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table of a settings file. Paths are relative to the file."""

    max_step_time: str | None = None
    min_mfu: float | None = None
    detect: str | None = None
    min_steps: int | None = None
    max: dict[str, str] = {}
    baseline: list[str] = []
    history: list[str] = []
    accepted: str | None = None


class _SteptimeFile(msgspec.Struct, frozen=True, kw_only=True):
    gate: GateTable = GateTable()


class _Tool(msgspec.Struct, frozen=True, kw_only=True):
    steptime: _SteptimeFile = _SteptimeFile()


class _PyprojectFile(msgspec.Struct, frozen=True, kw_only=True):
    tool: _Tool = _Tool()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the gate judges by. `max_step_time` None: `DEFAULT_MAX_STEP_TIME`, and nothing was promised."""

    max_step_time: float | None = None
    min_mfu: float | None = None
    detect: float = DEFAULT_DETECT
    min_steps: int = DEFAULT_MIN_STEPS
    budgets: tuple[tuple[Name, Limit], ...] = ()


def read_table(folder: Path) -> tuple[GateTable, str]:
    """The table of the first file in `folder` that has one, and where it stands; an empty one if none has.

    Raises:
        UsageError: a file can't be read, or holds what the gate does not know.
    """
    own, project = folder / FILES[0], folder / FILES[1]
    if own.is_file():
        return _decoded(own, _SteptimeFile).gate, str(own)
    if project.is_file():
        return _decoded(project, _PyprojectFile).tool.steptime.gate, str(project)
    return GateTable(), ""


def _decoded(path: Path, kind: type[_Table]) -> _Table:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(field.name for field in msgspec.structs.fields(GateTable))
        raise UsageError(f"{path}: the gate's settings are not valid ({error}); it knows {fields}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML ({error})") from error
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}): check the file") from error


def settings(table: GateTable, where: str, asked: GateTable, findings: Iterable[str]) -> Settings:
    """The table of a file with what the command line asks for on top.

    Args:
        table, where: as `read_table` gives them.
        asked: what the command line says.
        findings: ids of all findings.

    Raises:
        UsageError: an unknown name or a limit that is none.
    """
    known = list(findings)
    budgets: dict[Name, Limit] = {}
    for limits, place in ((table.max, f"{where}: max"), (asked.max, "--max")):
        budgets |= _budgets(limits, place, known)
    growth = _text(table.max_step_time, f"{where}: max_step_time", asked.max_step_time, "--max-step-time")
    detect = _text(table.detect, f"{where}: detect", asked.detect, "--detect")
    mfu = asked.min_mfu if asked.min_mfu is not None else table.min_mfu
    if mfu is not None and not 0 <= mfu <= 1:
        raise UsageError(f"min_mfu {mfu:g} is not between 0 and 1")
    steps = asked.min_steps or table.min_steps or DEFAULT_MIN_STEPS
    return Settings(growth, mfu, DEFAULT_DETECT if detect is None else detect, max(steps, 2), tuple(budgets.items()))


def _budgets(limits: Mapping[str, str], where: str, findings: list[str]) -> dict[Name, Limit]:
    return {find_name(name, findings, where): parse_limit(text, f"{where} {name}") for name, text in limits.items()}


def _text(filed: str | None, file_where: str, asked: str | None, asked_where: str) -> float | None:
    if asked is not None:
        return parse_growth(asked, asked_where)
    return parse_growth(filed, file_where) if filed is not None else None
