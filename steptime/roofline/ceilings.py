"""Equal calls of an op against the two roofs: the vendor's peak, and what anyone achieved (gpu_specs, "Achievable").

The time of a group is its kernels' own lengths; headroom is what they owned beyond the achievable roof. Where no
achievable rate is published for the part, the peak is the roof and headroom an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from steptime.model import OpRoof
from steptime.roofline.checks import checks
from steptime.roofline.pricing import Roof
from steptime.timeline.op_groups import OpGroups
from steptime.timeline.pricing import FAST, OpText, Price
from steptime.timeline.summary import DeviceTimeline

#: Share of the memory peak that well-written kernels reach (stream-like copies; stas00/ml-engineering, benchmarks).
ACHIEVABLE_MEMORY_SHARE = 0.92
#: Kernels shorter than this on average are bound by their launch, whatever they compute.
LAUNCH_NS = 5_000
KEPT = 150


@dataclass(slots=True)
class _Sum:
    """Sums of one distinct call over the counted steps of all ranks."""

    text: OpText
    price: Price
    recomputed: bool
    ops: int = 0
    kernels: int = 0
    dur_ns: int = 0
    owned_ns: int = 0
    by_kernel: dict[tuple[str, str], int] = field(default_factory=dict)


def roof_rows(timelines: Sequence[tuple[DeviceTimeline, list[int]]], roof: Roof) -> list[OpRoof]:
    """Rows for the report, costliest first, at most `KEPT`.

    Args:
        timelines: each rank's timeline with the indices of its counted steps.
        roof: the roof of the device (the first rank's).
    """
    sums: dict[tuple[OpText, bool], _Sum] = {}
    for timeline, chosen in timelines:
        if timeline.groups is not None:
            _add(sums, timeline.groups, chosen)
    ranked = sorted(sums.values(), key=lambda total: (-total.owned_ns, total.text))
    return [_row(total, roof) for total in ranked[:KEPT]]


def _add(sums: dict[tuple[OpText, bool], _Sum], groups: OpGroups, chosen: list[int]) -> None:
    for row in np.flatnonzero(np.isin(groups.step, chosen)).tolist():
        call = int(groups.call[row])
        key = (groups.texts[call], bool(groups.recomputed[row]))
        total = sums.setdefault(key, _Sum(groups.texts[call], groups.prices[call], key[1]))
        total.ops += int(groups.ops[row])
        total.kernels += int(groups.kernels[row])
        total.dur_ns += int(groups.dur_ns[row])
        total.owned_ns += int(groups.owned_ns[row])
        kernel = (groups.labels[int(groups.kernel[row])], groups.configs[int(groups.config[row])])
        total.by_kernel[kernel] = total.by_kernel.get(kernel, 0) + int(groups.dur_ns[row])


def _row(total: _Sum, roof: Roof) -> OpRoof:
    price = total.price
    ran = price.hardware_flops if price.hardware_flops is not None or FAST in price.notes else price.model_flops
    flops = _times(ran, total.ops)
    moved = _times(price.bytes, total.ops)
    kernel, config = max(total.by_kernel, key=lambda key: (total.by_kernel[key], key))
    seconds = total.dur_ns / 1e9
    row = OpRoof(
        op=total.text.op,
        shapes=total.text.shapes,
        dtype=price.dtype,
        kind=price.kind,
        direction=price.direction,
        recomputed=total.recomputed,
        count=total.ops,
        kernels=total.kernels,
        kernel=kernel,
        dur_ns=total.dur_ns,
        owned_ns=total.owned_ns,
        flops=flops,
        model_flops=_times(price.model_flops, total.ops),
        bytes=moved,
        intensity=flops / moved if flops and moved else None,
        attained_flops=flops / seconds if flops and seconds else None,
        attained_bytes_per_s=moved / seconds if moved and seconds else None,
        notes=list(price.notes),
    )
    return checks(_against(row, total, roof), config, roof)


def _times(one: int | None, count: int) -> int | None:
    return None if one is None else one * count


def _against(row: OpRoof, total: _Sum, roof: Roof) -> OpRoof:
    """Add what the roofs say: bound, share of the peak, attainable time, headroom."""
    peak = roof.peak_of(row.dtype) or (roof.peak if row.flops else None)
    best = roof.achievable_of(row.dtype)
    memory = roof.gpu.memory_bytes_per_s.usable if roof.gpu and roof.gpu.memory_bytes_per_s else None
    compute_s = row.flops / peak if row.flops and peak else None
    memory_s = row.bytes / memory if row.bytes and memory else None
    known = [seconds for seconds in (compute_s, memory_s) if seconds is not None]
    if not known or not row.dur_ns or (row.flops and compute_s is None):
        return row
    compute_bound = compute_s is not None and compute_s >= (memory_s or 0.0)
    cached = not compute_bound and _from_cache(total, roof, memory)
    floor_s = max(known)
    reach_s = max((row.flops or 0) / best if best else compute_s or 0.0, (memory_s or 0.0) / ACHIEVABLE_MEMORY_SHARE)
    attainable = min(int(reach_s * 1e9), row.dur_ns)
    bound = "compute" if compute_bound else "memory"
    if row.kernels and row.dur_ns / row.kernels < LAUNCH_NS and floor_s * 1e9 < 0.5 * row.dur_ns:
        bound = "launch"
    return msgspec.structs.replace(
        row,
        bound=bound,
        peak_share=floor_s * 1e9 / row.dur_ns,
        attainable_ns=None if cached else attainable,
        headroom_ns=None if cached else max(row.owned_ns - attainable, 0),
        cache_resident=cached,
    )


def _from_cache(total: _Sum, roof: Roof, memory: float | None) -> bool:
    """Whether the memory roof does not hold for a group, because its data may have come from the last cache.

    One call's bytes fit in it; or the calls are faster than the roof by no more than the bytes that it can hold (an
    operand that the kernel before left there).
    """
    if roof.gpu is None or not total.price.bytes or not total.ops or memory is None:
        return False
    sizes = [figure.usable for figure in (roof.gpu.l2_bytes, roof.gpu.last_level_cache_bytes) if figure is not None]
    largest = max((size for size in sizes if size is not None), default=0.0)
    seconds = total.dur_ns / total.ops / 1e9
    too_fast = total.price.bytes > memory * seconds
    return total.price.bytes <= largest or (too_fast and total.price.bytes - largest <= memory * seconds)
