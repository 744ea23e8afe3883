"""The table of GPUs: what a row holds, and how a table file is read.

The figures live in ``gpus.toml``; a user's own file has the same form. Every figure keeps its source, and one that no
page confirms is shown but never used.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from steptime.errors import UsageError

#: The dtypes that have a peak, by the name that reports and flags use.
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "fp4", "int8")
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "float8": "fp8",
    "float4": "fp4",
}

_TABLE = Path(__file__).with_name("gpus.toml")
_GIB = 1 << 30
#: Below this a rate was surely meant in TFLOP/s.
LEAST_PEAK_FLOPS = 1e9
_VENDORS = re.compile(r"^(nvidia|amd|tesla|instinct)\s+", re.IGNORECASE)
_FORM = "write it in the form of steptime's gpus.toml"


class Figure(NamedTuple):
    """One number of the table, with where it was read."""

    value: float
    source: str
    confirmed: bool = True

    @property
    def usable(self) -> float | None:
        """The value, or None where no page confirms it."""
        return self.value if self.confirmed else None


class Peak(NamedTuple):
    """A dense rate in FLOP/s. `flops` is None where it must not be used; `why_not` then says why and what to do."""

    dtype: str
    flops: float | None
    source: str
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row of the table. Rates are per device as the runtime shows it, links in one direction, all in SI units."""

    name: str
    peak_flops: Mapping[str, Figure]
    achievable_flops: Mapping[str, Figure] = field(default_factory=dict)
    memory_bytes: tuple[Figure, ...] = ()
    memory_bytes_per_s: Figure | None = None
    multiprocessors: Figure | None = None
    l2_bytes: Figure | None = None
    #: The cache between L2 and memory (AMD Infinity Cache), where there is one.
    last_level_cache_bytes: Figure | None = None
    link_bytes_per_s: Figure | None = None
    #: No two GPUs can use the whole rate between them, or some can't: a bridge, or single links without a switch.
    link_in_pairs: bool = False
    pcie_bytes_per_s: Figure | None = None
    vendor: str = ""
    names: tuple[str, ...] = ()
    compute: tuple[int, int] | None = None
    slices: bool = False
    note: str = ""

    def peak(self, dtype: str) -> Peak:
        """The dense peak of one dtype."""
        return self._rate(self.peak_flops, dtype, "dense peak")

    def achievable(self, dtype: str) -> Peak:
        """The best matrix multiplication that anyone published for this part; never above `peak`."""
        return self._rate(self.achievable_flops, dtype, "published achievable rate")

    def _rate(self, rates: Mapping[str, Figure], dtype: str, what: str) -> Peak:
        dtype = canonical_dtype(dtype)
        found = rates.get(dtype)
        if found is None:
            why = f"the table has no {what} of {self.name} for {dtype}"
            return Peak(dtype, None, "", f"{why}: give --peak FLOPS:{dtype}")
        if not found.confirmed:
            why = f"the {what} of {self.name} for {dtype} is not confirmed by its vendor ({found.source})"
            return Peak(dtype, None, found.source, f"{why}: to use it give --peak {found.value:g}:{dtype}")
        return Peak(dtype, found.value, found.source)


class _Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: float
    source: str = ""
    unconfirmed: bool = False


_Number = float | _Figure


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    peak_flops: dict[str, _Number]
    achievable_flops: dict[str, _Number] = {}
    memory_gib: _Number | list[_Number] = []
    memory_bytes_per_s: _Number | None = None
    multiprocessors: _Number | None = None
    l2_bytes: _Number | None = None
    last_level_cache_bytes: _Number | None = None
    link_bytes_per_s: _Number | None = None
    link_in_pairs: bool = False
    pcie_bytes_per_s: _Number | None = None
    vendor: str = ""
    names: tuple[str, ...] = ()
    compute: tuple[int, int] | None = None
    slices: bool = False
    note: str = ""


#: The fields of a row that hold one figure.
_SINGLE = (
    "memory_bytes_per_s",
    "multiprocessors",
    "l2_bytes",
    "last_level_cache_bytes",
    "link_bytes_per_s",
    "pcie_bytes_per_s",
)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gpu: list[_Row]
    kind: str
    schema: int = 1
    sources: dict[str, str] = {}


def canonical_dtype(text: str) -> str:
    """``"bf16"`` for ``"bfloat16"``, ``"torch.bfloat16"`` and so on.

    Raises:
        UsageError: no such dtype.
    """
    name = text.strip().lower().removeprefix("torch.")
    name = _ALIASES.get(name, "fp8" if name.startswith("float8_") else name)
    if name not in DTYPES:
        raise UsageError(f"dtype {text!r} has no peak: choose one of {', '.join(DTYPES)}")
    return name


def load_table(path: Path | str | None = None) -> tuple[Gpu, ...]:
    """The rows of a table file, by default steptime's own.

    Raises:
        UsageError: the file can't be read, is not of the form of ``gpus.toml``, or holds sparse figures.
    """
    return _built_in() if path is None else _load(Path(path))


@functools.cache
def _built_in() -> tuple[Gpu, ...]:
    return _load(_TABLE)


def _load(path: Path) -> tuple[Gpu, ...]:
    try:
        table = msgspec.toml.decode(path.read_bytes(), type=_Table)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}): give a GPU table (TOML)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path}: not a GPU table ({reason}): {_FORM}") from error
    wrong = _first_fault(table)
    if wrong:
        raise UsageError(f"{path}: not a GPU table ({wrong}): {_FORM}")
    return tuple(_gpu(row, table.sources, path.name) for row in table.gpu)


def _first_fault(table: _Table) -> str:
    if table.schema != 1:
        return f"schema {table.schema}, this version reads 1"
    if table.kind != "dense":
        return f'kind "{table.kind}", must be "dense": halve figures that count 2:4 sparsity'
    seen: set[str] = set()
    for row in table.gpu:
        if plain_name(row.name) in seen:
            return f'two rows are called "{row.name}"'
        seen.add(plain_name(row.name))
        unknown = (row.peak_flops.keys() | row.achievable_flops.keys()).difference(DTYPES)
        if unknown:
            return f'"{row.name}" has a rate for "{min(unknown)}", known are {", ".join(DTYPES)}'
        for what, number in _numbers(row):
            least = LEAST_PEAK_FLOPS if what in DTYPES else 0
            if not least < _value(number) < math.inf:
                return f'"{row.name}" has {what} = {_value(number):g}; SI units are meant, as in 989.4e12 FLOP/s'
    return "" if table.gpu else "no [[gpu]] row"


def _numbers(row: _Row) -> Iterator[tuple[str, _Number]]:
    yield from row.peak_flops.items()
    yield from row.achievable_flops.items()
    for size in _sizes(row):
        yield "memory_gib", size
    for what in _SINGLE:
        number = getattr(row, what)
        if number is not None:
            yield what, number


def _sizes(row: _Row) -> list[_Number]:
    return row.memory_gib if isinstance(row.memory_gib, list) else [row.memory_gib]


def _value(number: _Number) -> float:
    return number.value if isinstance(number, _Figure) else number


def _gpu(row: _Row, sources: Mapping[str, str], file: str) -> Gpu:
    def figure(number: _Number) -> Figure:
        if isinstance(number, _Figure):
            return Figure(number.value, sources.get(number.source, number.source) or file, not number.unconfirmed)
        return Figure(number, file)

    def maybe(number: _Number | None) -> Figure | None:
        return None if number is None else figure(number)

    return Gpu(
        name=row.name,
        peak_flops={dtype: figure(number) for dtype, number in row.peak_flops.items()},
        achievable_flops={dtype: figure(number) for dtype, number in row.achievable_flops.items()},
        memory_bytes=tuple(size._replace(value=size.value * _GIB) for size in map(figure, _sizes(row))),
        **{what: maybe(getattr(row, what)) for what in _SINGLE},
        link_in_pairs=row.link_in_pairs,
        vendor=row.vendor,
        names=row.names,
        compute=row.compute,
        slices=row.slices,
        note=row.note,
    )


def plain_name(name: str) -> str:
    """A name without vendor, case and punctuation: what is compared."""
    name = name.strip()
    while (rest := _VENDORS.sub("", name)) != name:
        name = rest
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()
