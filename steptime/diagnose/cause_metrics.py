"""Metrics that rest on names: what asked for a sync, which kernels run, which collectives are hidden.

Causes and kernels are the costliest ones that the report lists, so shares and counts here are "at least"; a cause that
cost the device no time is not listed at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from steptime.diagnose.reading import Metric, Part, Reading, Value, unknown
from steptime.model import Collective, Kernel
from steptime.taxonomy import LEAVES

#: Ops and built-ins that fetch a value from the device, and so wait for it (torch's own documentation of each).
ASKS_FOR_VALUE = (
    r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|_?unique\w*|masked_select|equal|allclose)"
    r"|built-in method (?:item|tolist|__bool__|nonzero|cpu) of (?:Tensor|Parameter)"
)
DEVICE_SYNC = (
    r"^(?:cuda|hip|cu)(?:Device|Ctx|Context)Synchronize|_cuda_synchronize|torch/cuda/__init__\.py\(\d+\): sync"
)
#: Copies that block the host: the call itself, or a stream sync that a copy op asked for.
BLOCKING_COPY = r"^(?:cuda|hip|cu)Memcpy|^aten::(?:copy_|_to_copy|to)$"
FIRST_USE = r"^first use of the kernel$|Lazy Function Loading|Module(?:Load|Loading)|GetFunction|LibraryLoad"

#: Runtime and driver calls that answer or set up something; the first one of a process creates its context.
DRIVER_CALL = r"^(?:cuda|hip|cu)(?:Device|Get|Set|Stream|Event|Func|Occupancy|Ctx|Init|Driver|Pointer|Ipc|Host)\w*$"

#: A launch costs a few microseconds of host time (kernel launch latency in CUDA's own guides: 2 to 10 us): a kernel
#: that is shorter can't hide the next launch.
TINY_KERNEL_NS = 5_000
#: NCCL's latency floor for small messages is tens of microseconds between hosts: below this a message is all latency.
SMALL_COLLECTIVE_NS = 60_000

_ELEMENTWISE = r"at::native::(?:\(anonymous namespace\)::)?(?:vectorized_|unrolled_|legacy_)?elementwise_kernel"
_TRANSPOSE = r"nchwToNhwc|nhwcToNchw|batched_transpose|transpose_readWrite|tensorTransform|SubTensorOpWithCastTensor"
#: Matrix kernels on the FP32 units: cuBLAS and cuDNN call them sgemm and scudnn, CUTLASS simt_sgemm.
_FP32_UNITS = (
    r"(?:volta|ampere|maxwell|turing|hopper)_(?:sgemm|scudnn)|simt_sgemm|implicit_convolve_sgemm|_engine<float,"
)
_SOFTMAX = r"(?i)softmax"
_LOG_SOFTMAX = r"(?i)log_?softmax"
_FUSED_OPTIMIZER = r"(?i)multi_tensor|fused|foreach|triton"
_KINDS = tuple(leaf.id for leaf in LEAVES if leaf.slice == "exposed_comm")
_NO_COLLECTIVES = "no collective lies in the counted steps"
_NO_KERNELS = "the report lists no kernels"


def _count_per_step(leaf: str, pattern: str) -> Callable[[Reading], Value]:
    """How often a leaf's causes occur in a step: an occurrence that cost the device nothing is not in the list."""

    def read(reading: Reading) -> Value:
        ns = reading.leaf_ns(leaf)
        if isinstance(ns, str):
            return unknown(ns)
        count = sum(cause.count for _, cause in reading.causes(leaf, pattern))
        if not count and ns > reading.listed_ns.get(leaf, 0):
            return unknown(f"the report names no cause of {leaf}")
        return reading.per_step(count)

    return read


def _kernels(reading: Reading, pattern: str, leaves: tuple[str, ...], unlike: str | None = None) -> Value:
    """Share of the step that kernels of these leaves own whose name matches `pattern` and not `unlike`."""
    if not reading.report.kernels:
        return unknown(_NO_KERNELS)
    wanted, unwanted = re.compile(pattern), re.compile(unlike) if unlike is not None else None
    return reading.share(
        [
            Part(kernel.leaf, kernel.owned_ns, (f"kernel:{kernel.leaf}:{kernel.name}",))
            for kernel in reading.report.kernels
            if kernel.leaf in leaves and wanted.search(kernel.name) and not (unwanted and unwanted.search(kernel.name))
        ]
    )


def _elementwise(reading: Reading) -> Value:
    return _kernels(reading, _ELEMENTWISE, ("kernels/memory_bound",))


def _transposes(reading: Reading) -> Value:
    return _kernels(reading, _TRANSPOSE, ("kernels/memory_bound", "kernels/matmul", "kernels/other_compute"))


def _fp32_units(reading: Reading) -> Value:
    """None of it where the precision leaf has the loss as a figure."""
    lost = reading.leaf_ns("kernels/precision")
    if isinstance(lost, int) and lost > 0:
        return reading.share([])
    return _kernels(reading, _FP32_UNITS, ("kernels/matmul",))


def _softmax(reading: Reading) -> Value:
    return _kernels(reading, _SOFTMAX, ("kernels/memory_bound", "kernels/attention"), _LOG_SOFTMAX + "|flash|fmha")


def _per_tensor_optimizer(reading: Reading) -> Value:
    return _kernels(reading, "", ("kernels/optimizer",), _FUSED_OPTIMIZER)


def _compute_kernels(reading: Reading) -> list[Kernel]:
    return [kernel for kernel in reading.report.kernels if kernel.count > 0]


def _mean_kernel_ns(reading: Reading) -> Value:
    """Measured over all kernels if the report has it, else over the listed kernels, which are the costliest."""
    fact = reading.report.facts.get("kernels.mean_ns")
    kernels = _compute_kernels(reading)
    if fact is not None or not kernels:
        return Value(fact) if fact is not None else unknown(_NO_KERNELS)
    return Value(sum(kernel.dur_ns for kernel in kernels) / sum(kernel.count for kernel in kernels))


def _kernels_per_step(reading: Reading) -> Value:
    fact = reading.report.facts.get("kernels.per_step")
    kernels = _compute_kernels(reading)
    if fact is not None or not kernels:
        return Value(fact) if fact is not None else unknown(_NO_KERNELS)
    return reading.per_step(sum(kernel.count for kernel in kernels))


def _tiny_kernels(reading: Reading) -> Value:
    kernels = _compute_kernels(reading)
    if not kernels:
        return unknown(_NO_KERNELS)
    tiny = [kernel for kernel in kernels if kernel.dur_ns < TINY_KERNEL_NS * kernel.count]
    return Value(sum(kernel.count for kernel in tiny) / sum(kernel.count for kernel in kernels))


def _collectives(reading: Reading, kind: str | None = None) -> list[Collective]:
    return [one for one in reading.report.collectives if one.count > 0 and kind in (None, one.kind)]


def _overlap(kind: str | None) -> Metric:
    """Communication that costs no time of its own; undefined, not zero, where there is none."""

    def read(reading: Reading) -> Value:
        found = _collectives(reading, kind)
        whole = sum(one.dur_ns for one in found)
        if not whole:
            return unknown(_NO_COLLECTIVES if kind is None else f"no {kind} lies in the counted steps")
        return Value(1 - min(sum(one.exposed_ns for one in found), whole) / whole)

    name = "comm.overlap" if kind is None else f"comm.overlap.{kind}"
    return Metric(
        name,
        "fraction",
        f"What of all {kind or 'communication'} time is hidden under other work, or a wait for a rank.",
        read,
    )


def _collectives_per_step(reading: Reading) -> Value:
    return reading.per_step(sum(one.count for one in _collectives(reading)))


def _mean_collective_ns(reading: Reading) -> Value:
    found = _collectives(reading)
    count = sum(one.count for one in found)
    return Value(sum(one.dur_ns for one in found) / count) if count else unknown(_NO_COLLECTIVES)


def _small_collectives(reading: Reading) -> Value:
    """Exposed time of the kinds and groups whose collectives are, on average, no longer than their latency."""
    found = _collectives(reading)
    if not found:
        return unknown(_NO_COLLECTIVES)
    small = [one for one in found if one.dur_ns < SMALL_COLLECTIVE_NS * one.count]
    return reading.share(
        [
            Part(f"exposed_comm/{one.kind}", one.exposed_ns, (f"collective:{one.kind} {one.group}",))
            for one in small
            if one.kind in _KINDS
        ]
    )


def _inflation(reading: Reading) -> Value:
    ns = reading.leaf_ns("host/launch_bound")
    if isinstance(ns, str):
        return unknown(ns)
    leaf = reading.leaves.get("host/launch_bound")
    most = leaf.detail.get("profiler_inflation_ns") if leaf is not None else None
    if leaf is not None and ns and not isinstance(most, int):
        return unknown("the report does not say how many ops were recorded")
    return Value((most if isinstance(most, int) else 0) / reading.total_ns)


def _host_pace(reading: Reading) -> Value:
    """Launch-bound and Python time together: what profiling inflates."""
    parts = []
    for key in ("host/launch_bound", "host/python"):
        ns = reading.leaf_ns(key)
        if isinstance(ns, str):
            return unknown(ns)
        parts.append(Part(key, ns))
    return reading.share(parts)


def _recompiles(reading: Reading) -> Value:
    """The compile leaf without the first uses of kernels."""
    whole, first = reading.share_of("host/compile"), reading.named_share("host/compile", FIRST_USE)
    if whole.number is None or first.number is None:
        return whole if whole.number is None else first
    left = round((whole.number - first.number) * reading.total_ns)
    return reading.share([Part("host/compile", left, ("cause:compile beyond first uses",))])


def _named(metric: str, leaf: str, pattern: str, meaning: str) -> Metric:
    return Metric(metric, "share", meaning, lambda reading: reading.named_share(leaf, pattern))


def _counted(metric: str, leaf: str, pattern: str, meaning: str) -> Metric:
    return Metric(metric, "count", meaning, _count_per_step(leaf, pattern))


CAUSE_METRICS: tuple[Metric, ...] = (
    _named(
        "host.in_process_loader_share",
        "host/data_loader",
        "_SingleProcessDataLoaderIter|_utils/fetch",
        "Waits for a loader that works in the training process (num_workers=0).",
    ),
    _counted("host.syncs_per_step", "host/sync", "", "Waits for the device that cost it time, a rank and step."),
    _named("host.value_sync_share", "host/sync", ASKS_FOR_VALUE, "Sync time asked for by ops that fetch a value."),
    _named("host.device_sync_share", "host/sync", DEVICE_SYNC, "Sync time of waits for the whole device."),
    _counted("host.device_syncs_per_step", "host/sync", DEVICE_SYNC, "Waits for the whole device, a rank and step."),
    _named("host.copy_sync_share", "host/sync", BLOCKING_COPY, "Sync time of copies that block the host."),
    _counted("host.allocator_calls_per_step", "host/allocator", "", "Allocator calls that cost the device time."),
    _named("host.first_use_share", "host/compile", FIRST_USE, "First uses of kernels: lazy loading and autotuning."),
    Metric("host.recompile_share", "share", "Compiling beyond first uses of kernels.", _recompiles),
    _named("host.driver_call_share", "host/launch_bound", DRIVER_CALL, "Driver calls that launch nothing."),
    _named("host.optimizer_launch_share", "host/launch_bound", r"Optimizer\.step#", "Launching the optimizer's ops."),
    Metric("host.inflation_share", "step share", "What profiling may have added to launch-bound, at most.", _inflation),
    Metric("host.pace_share", "share", "Launch-bound and Python time: what profiling inflates.", _host_pace),
    _named("host.pageable_h2d_share", "host/h2d_copy", "Pageable", "Copies to the device from pageable memory."),
    _named("host.pageable_d2h_share", "host/d2h_copy", "Pageable", "Copies from the device to pageable memory."),
    Metric("kernels.mean_ns", "ns", "Mean length of a kernel; of the costliest ones, if not given.", _mean_kernel_ns),
    Metric("kernels.per_step", "count", "Kernels a rank and step; the costliest, if not given.", _kernels_per_step),
    Metric("kernels.tiny", "fraction", "Listed kernels shorter than 5 us, by count.", _tiny_kernels),
    Metric("kernels.elementwise_share", "share", "Unfused elementwise kernels of PyTorch.", _elementwise),
    Metric("kernels.transpose_share", "share", "Kernels that only change the layout for a convolution.", _transposes),
    Metric("kernels.fp32_units_share", "share", "Matrix kernels on FP32 units, not tensor cores.", _fp32_units),
    Metric("kernels.softmax_share", "share", "Softmax as a kernel of its own, without losses.", _softmax),
    Metric("kernels.per_tensor_optimizer_share", "share", "Optimizer kernels for one tensor.", _per_tensor_optimizer),
    _overlap(None),
    *(_overlap(kind) for kind in _KINDS),
    Metric("comm.per_step", "count", "Collectives a rank and step.", _collectives_per_step),
    Metric("comm.mean_ns", "ns", "Mean length of a collective.", _mean_collective_ns),
    Metric("comm.small_share", "share", "Exposed time of collectives of less than 60 us.", _small_collectives),
)
