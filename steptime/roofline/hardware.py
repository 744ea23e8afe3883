"""Which GPU a trace was recorded on, and which peak its MFU refers to.

A GPU is found by name, memory size and multiprocessor count together, because a name alone does not tell the parts
apart; where the three disagree, or the name is not listed, the answer is "unknown" with the flag that fixes it. There
is no default GPU: another part's peak makes a plausible and wrong MFU.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from steptime.errors import UsageError
from steptime.roofline.gpu_table import (
    DTYPES,
    LEAST_PEAK_FLOPS,
    Figure,
    Gpu,
    Peak,
    canonical_dtype,
    load_table,
    plain_name,
)

__all__ = [
    "DTYPES",
    "Figure",
    "Gpu",
    "Match",
    "Peak",
    "canonical_dtype",
    "find_gpu",
    "gpu_named",
    "load_table",
    "parse_peak",
    "parse_peaks",
    "reference_dtype",
    "weighted_peak",
    "with_peaks",
]

_GIB = 1 << 30
_FLAGS = (
    "give its dense peak with --peak 989.4e12:bf16 (FLOP/s:dtype; this is an H100 SXM's), or its row with --gpu NAME"
)
#: A full part reports 92 % (24 GB with ECC) to 100 % of its marketed size in GiB.
_FULL_MEMORY = (0.88, 1.01)
#: The largest true slice has 4 of 7 compute and 4 of 8 memory parts; anything nearer to the full part is another part.
_LARGEST_SLICE = 0.75
#: Memory rate comes in eighths with the memory of a slice (NVIDIA MIG; AMD partitions the same).
_MEMORY_PARTS = 8
_MIG = re.compile(r"\s+mig\s+\d+g\.\d+gb\S*$", re.IGNORECASE)


class Match(NamedTuple):
    """What `find_gpu` found. The figures of `gpu` already carry `scale`; `reason` says why there is no `gpu`."""

    gpu: Gpu | None
    reason: str = ""
    scale: float = 1.0
    notes: tuple[str, ...] = ()


def parse_peak(text: str) -> tuple[str, float]:
    """``("bf16", 989.4e12)`` for ``"989.4e12:bf16"``: a dense rate in FLOP/s.

    Raises:
        UsageError: not of that form, or far below any GPU (TFLOP/s were given).
    """
    value, colon, dtype = text.strip().partition(":")
    form = "write FLOP/s:dtype, as in --peak 989.4e12:bf16"
    if not colon:
        raise UsageError(f"--peak {text}: no dtype: {form}")
    try:
        flops = float(value)
    except ValueError as error:
        raise UsageError(f"--peak {text}: {value!r} is not a number: {form}") from error
    if not LEAST_PEAK_FLOPS <= flops < float("inf"):
        raise UsageError(f"--peak {text}: {value} FLOP/s is no GPU's peak (989.4 TFLOP/s is 989.4e12): {form}")
    return canonical_dtype(dtype), flops


def parse_peaks(texts: Iterable[str]) -> dict[str, float]:
    """Several peaks, by dtype.

    Raises:
        UsageError: one is malformed, or a dtype comes twice.
    """
    peaks: dict[str, float] = {}
    for text in texts:
        dtype, flops = parse_peak(text)
        if dtype in peaks:
            raise UsageError(f"--peak {text}: {dtype} was given before: give each dtype once")
        peaks[dtype] = flops
    return peaks


def with_peaks(gpu: Gpu | None, peaks: Mapping[str, float], name: str = "") -> Gpu:
    """`gpu` with the user's peaks in place of its own; a GPU without any other figure where there is none."""
    given = {dtype: Figure(flops, "--peak") for dtype, flops in peaks.items()}
    if gpu is None:
        return Gpu(name=name or "unknown GPU", peak_flops=given)
    return replace(gpu, peak_flops={**gpu.peak_flops, **given})


def gpu_named(name: str, table: Sequence[Gpu] | None = None) -> Gpu:
    """The row that the user names with ``--gpu``: a row's own name or a name that the runtime reports.

    Raises:
        UsageError: no such row; the nearest ones are suggested.
    """
    rows = load_table() if table is None else table
    key = plain_name(name)
    for gpu in rows:
        if key == plain_name(gpu.name) or key in map(plain_name, gpu.names):
            return gpu
    near = [gpu.name for gpu in rows if key and plain_name(gpu.name).startswith(f"{key} ")]
    near = near or difflib.get_close_matches(name.upper(), [gpu.name for gpu in rows], n=3)
    known = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(gpu.name for gpu in rows)};"
    raise UsageError(f'--gpu "{name}": no such row: {known} Or give --peak FLOPS:DTYPE')


def find_gpu(
    name: str,
    memory_bytes: int,
    multiprocessors: int,
    compute: tuple[int, int] | None = None,
    table: Sequence[Gpu] | None = None,
) -> Match:
    """The row of a device as a trace describes it; 0 where the trace does not say.

    Name, memory and multiprocessors must agree. A slice (the full name with fewer multiprocessors and less memory, or
    "MIG" in the name) gets the full part's figures, compute scaled by multiprocessors, memory rate by its memory.
    """
    rows = load_table() if table is None else table
    if not name.strip():
        return Match(None, f"the trace does not name its GPU: {_FLAGS}")
    key, is_slice = plain_name(_MIG.sub("", name)), bool(_MIG.search(name))
    named = [gpu for gpu in rows if key in map(plain_name, gpu.names)]
    if not named:
        return Match(None, f'GPU "{name}" is not in the table: {_FLAGS}')
    reasons: list[str] = []
    for gpu in named:
        match = _fit(gpu, memory_bytes, multiprocessors, compute, is_slice)
        if match.gpu is not None:
            return match
        reasons.append(match.reason)
    return Match(None, f'GPU "{name}" {reasons[0]}: {_FLAGS}')


def _fit(gpu: Gpu, memory_bytes: int, count: int, compute: tuple[int, int] | None, is_slice: bool) -> Match:
    """Check the device against one row whose name fits."""
    if compute and gpu.compute and any(compute) and compute != gpu.compute:
        theirs, ours = (f"{major}.{minor}" for major, minor in (compute, gpu.compute))
        return Match(None, f"reports compute capability {theirs}, but {gpu.name} has {ours}")
    full = gpu.multiprocessors.usable if gpu.multiprocessors else None
    sizes = [size.value for size in gpu.memory_bytes if size.confirmed]
    notes = [gpu.note] if gpu.note else []
    unknown = [what for what, known in (("memory", sizes), ("multiprocessors", full)) if not known]
    if unknown:
        notes.append(f"not compared, because no page confirms it for {gpu.name}: {', '.join(unknown)}")
    shares = [memory_bytes / size for size in sizes]
    if memory_bytes and shares and not any(_FULL_MEMORY[0] <= share <= _FULL_MEMORY[1] for share in shares):
        if _is_slice(gpu, count, max(shares), is_slice):
            return _slice(gpu, count, max(shares), notes)
        found, known = memory_bytes / _GIB, " or ".join(f"{size / _GIB:g}" for size in sizes)
        return Match(None, f"reports {found:.1f} GiB of memory, but {gpu.name} has {known}")
    if is_slice and full and 0 < count < full and gpu.slices:
        return _slice(gpu, count, 1.0, notes)
    if is_slice and (not count or not gpu.slices):
        return Match(None, f"is a slice of a size that the trace does not tell, or {gpu.name} can't be split")
    if count and full and count != full:
        return Match(None, f"reports {count} multiprocessors, but {gpu.name} has {full:g}")
    unrecorded = [what for what, seen in (("memory", memory_bytes), ("multiprocessors", count)) if not seen]
    if unrecorded:
        notes.append(f"not compared, because the trace does not record it: {', '.join(unrecorded)}")
    return Match(gpu, "", 1.0, tuple(notes))


def _is_slice(gpu: Gpu, count: int, memory_share: float, is_slice: bool) -> bool:
    full = gpu.multiprocessors.usable if gpu.multiprocessors else None
    if not (gpu.slices and full and 0 < count < full and memory_share < 1):
        return False
    return is_slice or (count / full <= _LARGEST_SLICE and memory_share <= _LARGEST_SLICE)


def _slice(gpu: Gpu, count: int, memory_share: float, notes: Sequence[str]) -> Match:
    full = gpu.multiprocessors.value if gpu.multiprocessors else count
    scale = count / full
    parts = max(1, round(min(memory_share, 1.0) * _MEMORY_PARTS))
    memory_scale = parts / _MEMORY_PARTS

    def scaled(figure: Figure | None, by: float) -> Figure | None:
        return figure and figure._replace(value=figure.value * by)

    said = (
        f"a slice of {gpu.name}: compute peaks are scaled by its {count} of {full:g} multiprocessors, "
        f"memory rate and caches by its {parts} of {_MEMORY_PARTS} memory parts; slices have no link"
    )
    smaller = replace(
        gpu,
        peak_flops={dtype: rate._replace(value=rate.value * scale) for dtype, rate in gpu.peak_flops.items()},
        achievable_flops={
            dtype: rate._replace(value=rate.value * scale) for dtype, rate in gpu.achievable_flops.items()
        },
        memory_bytes=tuple(size._replace(value=size.value * memory_scale) for size in gpu.memory_bytes),
        memory_bytes_per_s=scaled(gpu.memory_bytes_per_s, memory_scale),
        multiprocessors=scaled(gpu.multiprocessors, scale),
        l2_bytes=scaled(gpu.l2_bytes, memory_scale),
        last_level_cache_bytes=scaled(gpu.last_level_cache_bytes, memory_scale),
        link_bytes_per_s=None,
    )
    return Match(smaller, "", scale, (*notes, said))


def reference_dtype(gpu: Gpu | None, compute: tuple[int, int] | None = None, requested: str | None = None) -> str:
    """The dtype whose peak MFU refers to: `requested`, else bf16; fp16 where the part has no bf16 (before Ampere).

    A GPU known only by one ``--peak`` refers to that dtype.

    Raises:
        UsageError: `requested` is no dtype.
    """
    if requested:
        return canonical_dtype(requested)
    if gpu is None:
        return "fp16" if compute and (0, 0) < compute < (8, 0) else "bf16"
    for dtype in ("bf16", "fp16"):
        if dtype in gpu.peak_flops:
            return dtype
    return next(iter(gpu.peak_flops)) if len(gpu.peak_flops) == 1 else "bf16"


def weighted_peak(gpu: Gpu, flops_by_dtype: Mapping[str, float]) -> Peak:
    """The rate at which a mix of dtypes would run with each operation at its own peak: sum(F) / sum(F / P).

    `flops_by_dtype` is FLOPs by dtype. For a run that is half FP8 this is the fair denominator; the BF16 figure stays
    the comparable one, so show both, labelled. `flops` is None when one of the peaks is.
    """
    total = seconds = 0.0
    for dtype, flops in flops_by_dtype.items():
        peak = gpu.peak(dtype)
        if peak.flops is None:
            return peak
        total, seconds = total + flops, seconds + flops / peak.flops
    label = "+".join(canonical_dtype(dtype) for dtype in flops_by_dtype)
    if not seconds:
        return Peak(label, None, "", "no FLOPs to weight the peaks with")
    return Peak(label, total / seconds, "each dtype at its own peak, weighted by FLOPs")
