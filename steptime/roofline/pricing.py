"""Prices for the timeline: which GPU it is, what peak counts, and what each call costs at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from steptime.roofline.flops import OpCost, cost, parse_signature
from steptime.roofline.hardware import (
    DTYPES,
    Gpu,
    Match,
    canonical_dtype,
    find_gpu,
    gpu_named,
    load_table,
    parse_peaks,
    reference_dtype,
    with_peaks,
)
from steptime.timeline.pricing import FAST, OpText, Price
from steptime.trace.events import DeviceProperties
from steptime.trace.kernels import kernel_family

#: Note on attention whose kernels are products and a softmax.
MATH_PATH = "math path"


@dataclass(frozen=True)
class Roof:
    """The roof of one device: the GPU with the user's peaks in place, the reference dtype and its peak.

    peak: FLOP/s of the reference dtype, None if unknown, with `why` saying what is missing and the flag that fixes it.
    """

    gpu: Gpu | None
    dtype: str
    peak: float | None
    source: str
    why: str
    notes: tuple[str, ...] = ()

    def peak_of(self, dtype: str | None) -> float | None:
        """Dense peak of a dtype in FLOP/s, None if unknown."""
        if self.gpu is None or dtype is None or dtype not in DTYPES:
            return None
        return self.gpu.peak(dtype).flops

    def achievable_of(self, dtype: str | None) -> float | None:
        """Best published rate of a dtype in FLOP/s, None if unknown."""
        if self.gpu is None or dtype is None or dtype not in DTYPES:
            return None
        return self.gpu.achievable(dtype).flops

    @property
    def facts(self) -> dict[str, float | None]:
        """What views draw as the memory roof."""
        known = self.gpu.memory_bytes_per_s.usable if self.gpu and self.gpu.memory_bytes_per_s else None
        return {"memory_bytes_per_s": known} if known is not None else {}

    @property
    def link_bytes_per_s(self) -> float | None:
        """All links of one GPU in one direction, None if unknown or not to be had between any two GPUs."""
        if self.gpu is None or self.gpu.link_bytes_per_s is None or self.gpu.link_in_pairs:
            return None
        return self.gpu.link_bytes_per_s.usable

    @property
    def peaks(self) -> dict[str, float]:
        """All usable peaks by dtype."""
        found = {dtype: self.peak_of(dtype) for dtype in DTYPES}
        return {dtype: flops for dtype, flops in found.items() if flops is not None}


@dataclass(frozen=True)
class RooflinePricing:
    """What the user said about the hardware: row name, peaks (``989.4e12:bf16``), reference dtype, own table file."""

    gpu: str | None = None
    peaks: tuple[str, ...] = ()
    dtype: str | None = None
    gpu_table: str | None = None

    def check(self) -> None:
        """Refuse wrong options before any file is read.

        Raises:
            UsageError: an unknown GPU or dtype, a malformed peak or table.
        """
        parse_peaks(self.peaks)
        if self.gpu_table is not None:
            load_table(self.gpu_table)
        if self.gpu is not None:
            gpu_named(self.gpu, self._table)
        if self.dtype is not None:
            canonical_dtype(self.dtype)

    @cached_property
    def _table(self) -> tuple[Gpu, ...]:
        own = load_table(self.gpu_table) if self.gpu_table is not None else ()
        return (*own, *load_table())

    def roof(self, device: DeviceProperties | None) -> Roof:
        """The roof of a device as a trace describes it (None: not at all)."""
        compute = (device.compute_major, device.compute_minor) if device is not None else None
        compute = compute if compute and any(compute) else None
        if self.gpu is not None:
            match = Match(gpu_named(self.gpu, self._table))
        elif device is None:
            match = Match(None, "the trace does not describe its GPU: give --gpu NAME or --peak 989.4e12:bf16")
        else:
            match = find_gpu(device.name, device.memory_bytes, device.multiprocessors, compute, self._table)
        peaks = parse_peaks(self.peaks)
        gpu = with_peaks(match.gpu, peaks, device.name if device is not None else "") if peaks else match.gpu
        dtype = reference_dtype(gpu, compute, self.dtype)
        if gpu is None:
            return Roof(None, dtype, None, "", match.reason, match.notes)
        peak = gpu.peak(dtype)
        return Roof(gpu, dtype, peak.flops, peak.source, peak.why_not, match.notes)

    def prices(
        self, device: DeviceProperties | None, calls: Sequence[OpText], kernels: Sequence[Sequence[str]]
    ) -> list[Price | None]:
        """Price each distinct call (see `timeline.pricing.Pricing`)."""
        roof = self.roof(device)
        return [_price(roof, call, names) for call, names in zip(calls, kernels, strict=True)]


def _price(roof: Roof, call: OpText, kernels: Sequence[str]) -> Price | None:
    signature = parse_signature(call.op, call.shapes, call.types, call.concrete)
    found = cost(signature, kernels) if signature is not None else None
    if found is None:
        return None
    found = _by_kernels(found, kernels)
    has_flops = found.kind != "memory"
    ideal_ns, precision_ns, hardware_ns = _times(roof, found) if has_flops else (0, 0, 0.0)
    return Price(
        kind=found.kind,
        direction=found.direction,
        model_flops=found.model_flops if has_flops else None,
        hardware_flops=found.hardware_flops if has_flops else None,
        bytes=found.bytes,
        dtype=found.dtype,
        ideal_ns=ideal_ns,
        precision_ns=precision_ns,
        hardware_ns=hardware_ns,
        notes=found.notes,
    )


def _by_kernels(found: OpCost, kernels: Sequence[str]) -> OpCost:
    """What the kernels tell beyond the arguments: attention on the math path, convolutions by a fast algorithm."""
    if found.kind == "attention" and kernels and not any(kernel_family(name) == "attention" for name in kernels):
        # The math path computes the whole square and masks it afterwards.
        whole = 2 * (found.model_flops or 0) if "causal" in found.notes else found.hardware_flops
        return replace(found, hardware_flops=whole, notes=(*found.notes, MATH_PATH))
    if found.kind == "convolution" and any("winograd" in name.lower() or "fft" in name.lower() for name in kernels):
        return replace(found, hardware_flops=None, notes=(*found.notes, FAST))
    return found


def _times(roof: Roof, found: OpCost) -> tuple[int, int, float]:
    """Times in ns: useful work at the reference peak, the surplus at a slower dtype's peak, all that the hardware ran.

    A faster dtype uses its own peak. Where the dtype is not known the reference counts.
    """
    if roof.peak is None or found.model_flops is None:
        return 0, 0, 0.0
    own = roof.peak_of(found.dtype)
    peak = own if own is not None and own >= roof.peak else roof.peak
    ran = found.hardware_flops if found.hardware_flops is not None else found.model_flops
    ideal = int(1e9 * found.model_flops / peak)
    slower = int(1e9 * found.model_flops / own) - ideal if own is not None and own < roof.peak else 0
    return ideal, slower, 1e9 * ran / peak
