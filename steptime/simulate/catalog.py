"""Figures of GPUs and models, read from the tables that lie in the package as data.

Only the numbers are shared with the analyser, none of its code.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steptime.errors import UsageError

_DATA = Path(__file__).parent.parent / "roofline"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. reported: the name in a trace; peak_flops by dtype; link_bytes_per_s: one direction, all links."""

    name: str
    reported: str
    compute: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float
    peak_flops: dict[str, float]


@functools.cache
def _rows(file: str, key: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = msgspec.toml.decode((_DATA / file).read_bytes())[key]
    return rows


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "", text.lower())


def gpu(name: str) -> Gpu:
    """The GPU that `name` says: its row's name, or one of the names that the runtime reports.

    Raises:
        UsageError: no such row, or the row lacks a figure that a simulation needs.
    """
    for row in _rows("gpus.toml", "gpu"):
        if _plain(name) in map(_plain, (row["name"], *row["names"])):
            return _gpu(row)
    known = ", ".join(row["name"] for row in _rows("gpus.toml", "gpu"))
    raise UsageError(f"no GPU {name!r}: choose one of {known}")


def _gpu(row: dict[str, Any]) -> Gpu:
    memory = row["memory_gib"]
    try:
        return Gpu(
            name=row["name"],
            reported=row["names"][0],
            compute=(row["compute"][0], row["compute"][1]) if "compute" in row else (0, 0),
            multiprocessors=int(row["multiprocessors"]["value"]),
            memory_bytes=int((memory[-1] if isinstance(memory, list) else memory)["value"]) << 30,
            memory_bytes_per_s=float(row["memory_bytes_per_s"]["value"]),
            link_bytes_per_s=float(row.get("link_bytes_per_s", row.get("pcie_bytes_per_s", {"value": 25e9}))["value"]),
            peak_flops={dtype: float(entry["value"]) for dtype, entry in row["peak_flops"].items()},
        )
    except KeyError as error:
        raise UsageError(f"GPU {row['name']!r} lacks {error.args[0]!r} in the table: choose another GPU") from error


def preset(name: str) -> dict[str, Any]:
    """The config keys of a named model.

    Raises:
        UsageError: no such model.
    """
    for row in _rows("presets.toml", "model"):
        if _plain(name) in map(_plain, (row["name"], *row["names"])):
            config: dict[str, Any] = row["config"]
            return config
    known = ", ".join(row["name"] for row in _rows("presets.toml", "model"))
    raise UsageError(f"no model {name!r}: choose one of {known}")
