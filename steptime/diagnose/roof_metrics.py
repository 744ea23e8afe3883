"""Metrics of the roofline: how far kernels are from their roof, and how much time the named checks concern.

All are unknown while the report has no roofline rows: without shapes there are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from steptime.diagnose.reading import Metric, Part, Reading, Value, unknown
from steptime.model import OpRoof

#: The faults that `roofline.checks` names; a text after a colon is detail.
CHECKS: dict[str, str] = {
    "misaligned": "a dimension is not a multiple of what the tensor cores take at that dtype",
    "wave_quantized": "the last wave of blocks leaves most multiprocessors idle",
    "slower_precision": "FP32 or TF32 in a run of a faster reference dtype",
    "math_attention": "attention as separate matmuls and softmax",
    "layout_copy": "a copy that only changes the layout",
    "dtype_copy": "a copy that only changes the dtype",
    "tiny_kernels": "kernels too short to fill the device",
}
#: ``fp32_where_bf16_is_reference`` and its like are one check.
_SLOWER = re.compile(r"\w+_where_\w+_is_reference")
#: Checks whose fix makes the op faster (gain: its headroom); the others' fix makes the op go away (gain: its time).
_MADE_FASTER = ("misaligned", "wave_quantized")
#: Copies: only an op that does nothing else is one, whatever its longest kernel is called.
_COPIES = ("layout_copy", "dtype_copy")
#: The steps of a norm that is written out; rsqrt is what tells one from other arithmetic.
_NORM_OPS = ("aten::pow", "aten::mean", "aten::rsqrt", "aten::square")
_OPTIMIZER_OP = re.compile(r"(?i)optimizer|_fused_(?:adam|sgd|adagrad)|^aten::_foreach_")

#: A misaligned matmul counts only if it attains less than this part of what aligned ones of its dtype do, since newer
#: libraries lose nothing on some shapes (allenai/allennlp PR#4929 against tinygrad#5049).
_SLOW_NEIGHBOUR = 0.75
#: Without an aligned neighbour, less than half of peak is called slow.
_SLOW_ALONE = 0.5

_NO_ROOF = "the report has no roofline: shapes were not recorded, or the device's peak is not known"
_LEAF_OF_KIND = {
    "matmul": "kernels/matmul",
    "convolution": "kernels/matmul",
    "attention": "kernels/attention",
    "memory": "kernels/memory_bound",
}
_MATMUL = ("matmul", "convolution")


def leaf_of(row: OpRoof) -> str:
    """The leaf that a row's time is in."""
    if row.recomputed:
        return "recompute/recompute"
    if _OPTIMIZER_OP.search(row.op):
        return "kernels/optimizer"
    return _LEAF_OF_KIND.get(row.kind, "kernels/other_compute")


def has_check(row: OpRoof, check: str) -> bool:
    """Whether a row carries a check, with or without detail."""
    names = ["slower_precision" if _SLOWER.fullmatch(text) else text.partition(":")[0] for text in row.checks]
    return check in names


def part_of(at: int, row: OpRoof, ns: int) -> Part:
    """`ns` of one row. Where each call is one kernel, the time is that kernel's, too."""
    items = (f"roof:{at}",) + ((f"kernel:{leaf_of(row)}:{row.kernel}",) if row.kernels == row.count else ())
    return Part(leaf_of(row), ns, items)


def _sum(wanted: Callable[[OpRoof], bool], ns: Callable[[OpRoof], int | None]) -> Callable[[Reading], Value]:
    """Share of the step that a figure of the wanted rows holds; unknown if it is unknown for all of them."""

    def read(reading: Reading) -> Value:
        rows = reading.report.roofline
        if not rows:
            return unknown(_NO_ROOF)
        chosen = [(at, row, ns(row)) for at, row in enumerate(rows) if wanted(row)]
        known = [part_of(at, row, time) for at, row, time in chosen if time is not None]
        if chosen and not known:
            return unknown("the roof of these ops is not known")
        return reading.share(known)

    return read


def _owned(row: OpRoof) -> int | None:
    return row.owned_ns


def _headroom(row: OpRoof) -> int | None:
    return row.headroom_ns


def _check_metrics() -> list[Metric]:
    metrics = []
    for check, meaning in CHECKS.items():
        figure = _headroom if check in _MADE_FASTER else _owned
        whose = "Headroom" if check in _MADE_FASTER else "Time"
        read = _misaligned_share if check == "misaligned" else _sum(_carries(check), figure)
        metrics.append(Metric(f"roof.{check}_share", "share", f"{whose} of ops with: {meaning}.", read))
    return metrics


def _carries(check: str) -> Callable[[OpRoof], bool]:
    return lambda row: has_check(row, check) and (check not in _COPIES or _only_copies(row))


def _only_copies(row: OpRoof) -> bool:
    """Neither a convolution that transposes first nor a fused kernel that transposes on the way."""
    return row.kind == "memory" and not row.kernel.startswith("triton_")


def _norms_written_out(reading: Reading) -> Value:
    """Time of the steps of norms that are written out; none without an rsqrt."""
    rows = reading.report.roofline
    if rows and not any(row.op == "aten::rsqrt" for row in rows):
        return reading.share([])
    return _sum(lambda row: row.op in _NORM_OPS and row.kind == "memory", _owned)(reading)


def _misaligned_share(reading: Reading) -> Value:
    """Headroom of misaligned matmuls that are slow against aligned ones of their dtype, or slow by themselves."""
    rows = reading.report.roofline
    usual: dict[str | None, float] = {}
    for dtype in {row.dtype for row in rows}:
        aligned = [
            row for row in rows if row.kind in _MATMUL and row.dtype == dtype and not has_check(row, "misaligned")
        ]
        typical = _mean_peak_share(aligned)
        if typical is not None:
            usual[dtype] = typical

    def slow(row: OpRoof) -> bool:
        if not has_check(row, "misaligned") or row.peak_share is None:
            return False
        known = usual.get(row.dtype)
        return row.peak_share < (_SLOW_ALONE if known is None else _SLOW_NEIGHBOUR * known)

    return _sum(slow, _headroom)(reading)


def _mean_peak_share(rows: Sequence[OpRoof]) -> float | None:
    """Attained over peak, weighted by time; None without any known."""
    known = [(row.peak_share, row.owned_ns) for row in rows if row.peak_share is not None]
    weight = sum(ns for _, ns in known)
    return sum(share * ns for share, ns in known) / weight if weight else None


def _matmul_peak_share(reading: Reading) -> Value:
    mean = _mean_peak_share([row for row in reading.report.roofline if row.kind in _MATMUL])
    return Value(mean) if mean is not None else unknown(_NO_ROOF)


def _top_peak_share(reading: Reading) -> Value:
    rows = [row for row in reading.report.roofline if row.peak_share is not None]
    top = max(rows, key=lambda row: row.owned_ns, default=None)
    return Value(top.peak_share) if top is not None else unknown(_NO_ROOF)


def _known(reading: Reading) -> Value:
    rows = reading.report.roofline
    kernels = reading.slice_ns("kernels")
    if not rows or isinstance(kernels, str):
        return unknown(_NO_ROOF)
    whole = kernels + reading.job.productive_ns
    known = sum(row.owned_ns for row in rows if row.attainable_ns is not None and not row.recomputed)
    return Value(min(known / whole, 1.0)) if whole else unknown("no kernel ran in the counted steps")


def _is(*kinds: str) -> Callable[[OpRoof], bool]:
    return lambda row: row.kind in kinds and not row.recomputed


ROOF_METRICS: tuple[Metric, ...] = (
    Metric("roof.known", "fraction", "Kernel time whose roof is known.", _known),
    Metric("roof.headroom_share", "share", "All time above the achievable roof.", _sum(lambda _: True, _headroom)),
    Metric("roof.matmul_headroom_share", "share", "Matmuls above their roof.", _sum(_is(*_MATMUL), _headroom)),
    Metric("roof.attention_headroom_share", "share", "Attention above its roof.", _sum(_is("attention"), _headroom)),
    Metric("roof.memory_headroom_share", "share", "Memory-bound ops above their roof.", _sum(_is("memory"), _headroom)),
    Metric("roof.matmul_peak_share", "fraction", "Peak that matmuls attain, weighted by time.", _matmul_peak_share),
    Metric("roof.top_peak_share", "fraction", "Peak that the costliest op attains.", _top_peak_share),
    Metric(
        "roof.launch_bound_share",
        "share",
        "Matmuls and convolutions too small to fill the device.",
        _sum(lambda row: row.kind in _MATMUL and row.bound == "launch", _owned),
    ),
    Metric("roof.unfused_norm_share", "share", "Power, mean and rsqrt of norms written out.", _norms_written_out),
    *_check_metrics(),
)
