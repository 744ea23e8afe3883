"""For each rule a small report, written by hand, in which what the rule is about takes a visible part of the step.

Unless it says otherwise it has one rank and four equal steps of 100 ms, so that a leaf of 20 ms is a share of 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from steptime.model import (
    Alignment,
    Cause,
    Collective,
    Input,
    Job,
    Kernel,
    OpRoof,
    OtherStep,
    RankSteps,
    Report,
    SlowGroup,
    Spread,
    StepTime,
    Straggler,
)
from tests.report.reports import MS, job, quality, report

STEP = 100 * MS
STEPS = 4
TOTAL = STEP * STEPS


def cause(leaf: str, what: str, ms: int, where: str | None = None, count: int = 8) -> Cause:
    """A cause that takes `ms` of each of the four steps."""
    return Cause(leaf=leaf, what=what, where=where, ns=ms * MS * STEPS, share=ms / 100, count=count, rank_steps=STEPS)


def kernel(leaf: str, name: str, ms: int, count: int = 8) -> Kernel:
    """Kernels of one name that take `ms` of each step."""
    return Kernel(name=name, leaf=leaf, count=count, dur_ns=ms * MS * STEPS, owned_ns=ms * MS * STEPS)


def collective(kind: str, ms: int, count: int, exposed: float = 1.0) -> Collective:
    """Collectives that take `ms` of each step, of which a part is exposed."""
    return Collective(
        kind=kind, group="dp", count=count, dur_ns=ms * MS * STEPS, exposed_ns=int(exposed * ms * MS * STEPS)
    )


def measured(ms: int, **changes: object) -> Collective:
    """Exposed all-reduces of `ms` a step whose bandwidth was measured."""
    return msgspec.structs.replace(collective("allreduce", ms, count=4), measured=4, **changes)


def slow_group(ranks: list[int], hosts: list[str], lost_ms: int) -> SlowGroup:
    """A group of the example in issue 4: 1.8 times as long as two others."""
    return SlowGroup(ranks=ranks, hosts=hosts, ratio=1.8, compared=2, lost_ns=lost_ms * MS)


def roof(checks: list[str], ms: int, **changes: object) -> OpRoof:
    """An op that takes `ms` of each step and has half of it as headroom."""
    fields: dict[str, object] = {
        "op": "aten::mm",
        "shapes": "[8192,4096]x[4096,50257]",
        "dtype": "bf16",
        "kind": "matmul",
        "direction": "forward",
        "count": 4,
        "kernels": 4,
        "kernel": "gemm_bf16",
        "dur_ns": ms * MS * STEPS,
        "owned_ns": ms * MS * STEPS,
        "flops": 10**12,
        "model_flops": 10**12,
        "bytes": 10**9,
        "bound": "compute",
        "peak_share": 0.25,
        "attainable_ns": ms * MS * STEPS // 2,
        "headroom_ns": ms * MS * STEPS // 2,
        "checks": checks,
    }
    return OpRoof(**(fields | changes))  # type: ignore[arg-type]


def ranks_of(leaves_ms: dict[int, dict[str, int]], edge: bool = False) -> list[RankSteps]:
    """Ranks with the given leaves in each of four steps."""
    rows = []
    for rank, leaves in leaves_ms.items():
        leaves_ns = {key: ms * MS for key, ms in leaves.items()}
        length = sum(leaves_ns.values())
        steps = [
            StepTime(step=5 + at, start_ns=1_000 * MS + at * length, dur_ns=length, leaves_ns=leaves_ns, edge=edge)
            for at in range(STEPS)
        ]
        rows.append(RankSteps(rank=rank, host=f"node{rank}", device=0, steps=steps))
    return rows


def one_rank(
    ms: dict[str, int],
    *,
    of_job: Mapping[str, object] | None = None,
    of_file: Mapping[str, object] | None = None,
    **parts: object,
) -> Report:
    """One rank whose every step has leaves of `ms` milliseconds; matrix work fills it up to 100 ms.

    Args:
        ms: leaf to milliseconds.
        of_job: changes of the job.
        of_file: changes of the file's quality.
        parts: changes of the report.
    """
    leaves = {"kernels/matmul": 100 - sum(ms.values())} | ms
    totals: dict[str, int | None] = {key: value * MS * STEPS for key, value in leaves.items()}
    fields: dict[str, object] = {
        "ranks": ranks_of({0: leaves}),
        "inputs": [Input(path="rank0.json", rank=0, bytes=1, events=1, quality=quality(**(of_file or {})))],
    }
    return report(job(totals, **({"rank_steps": STEPS} | dict(of_job or {}))), **(fields | parts))  # type: ignore[arg-type]


def with_leaf(given: Report, key: str, **changes: object) -> Report:
    """The report with one leaf of its job changed."""
    slices = []
    for part in given.job.slices:
        leaves = [
            msgspec.structs.replace(leaf, **changes) if f"{part.id}/{leaf.id}" == key else leaf for leaf in part.leaves
        ]
        slices.append(msgspec.structs.replace(part, leaves=leaves))
    the_job: Job = msgspec.structs.replace(given.job, slices=slices)
    return msgspec.structs.replace(given, job=the_job)


def _several_ranks(odd: dict[str, int], what: str, leaf: str, late_ms: int) -> Report:
    """Four ranks of which rank 2 is odd; the others wait for it in all-reduce, `late_ms` a step."""
    usual = {"kernels/matmul": 60, "host/python": 1, "exposed_comm/allreduce": 99 - 60}
    odd = odd | {"exposed_comm/allreduce": 100 - sum(odd.values())}
    rows = ranks_of({0: usual, 1: usual, 2: odd, 3: usual})
    totals: dict[str, int | None] = {}
    for row in rows:
        for step in row.steps:
            for key, ns in step.leaves_ns.items():
                totals[key] = (totals.get(key) or 0) + ns
    late = Straggler(
        kind="straggler",
        rank=2,
        ranks=[2],
        host="node2",
        cause=what,
        leaf=leaf,
        steps=[5, 6, 7, 8],
        lost_ns=late_ms * MS * STEPS,
        share=late_ms / 100,
    )
    return report(
        job(totals, rank_steps=16, steps=[5, 6, 7, 8], world_size=4, ranks_analyzed=4),
        ranks=rows,
        alignment=Alignment(matched=64, unmatched=0, refused=0, error_ns=1_000),
        stragglers=[late],
    )


def _uneven() -> Report:
    """Ten steps of which two take twice as long."""
    lengths = [100] * 8 + [200] * 2
    steps = [
        StepTime(step=5 + at, start_ns=at * STEP, dur_ns=ms * MS, leaves_ns={"kernels/matmul": ms * MS})
        for at, ms in enumerate(lengths)
    ]
    spread = Spread(median=100 * MS, p10=100 * MS, p90=200 * MS)
    totals: dict[str, int | None] = {"kernels/matmul": sum(lengths) * MS}
    return report(
        job(totals, rank_steps=10, step_time_ns=spread), ranks=[RankSteps(rank=0, host=None, device=0, steps=steps)]
    )


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_WORLD: dict[str, object] = {"world_size": 8, "ranks_analyzed": 8}
_PRICED: dict[str, object] = {"mfu": 0.28, "flops_source": "trace", "reference_dtype": "bf16"}
_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"


def _exposed(kind: str) -> Report:
    return one_rank({f"exposed_comm/{kind}": 20}, of_job=_WORLD, collectives=[collective(kind, 20, 8)])


def _checked(check: str, **changes: object) -> Report:
    return one_rank({}, roofline=[roof([check], 20, **changes)])


SITUATIONS: dict[str, Report] = {
    "loader-in-process": one_rank({"host/data_loader": 30}, causes=[cause("host/data_loader", LOADER, 30)]),
    "loader-too-slow": one_rank({"host/data_loader": 8}),
    "launch-bound": one_rank({"host/launch_bound": 20}),
    "launch-bound-tiny-kernels": one_rank(
        {"host/launch_bound": 70}, kernels=[kernel("kernels/matmul", "gemm", 30, count=30_000)]
    ),
    "optimizer-launches": one_rank(
        {"host/launch_bound": 10}, causes=[cause("host/launch_bound", "Optimizer.step#AdamW.step", 10, "aten::add_")]
    ),
    "kernel-gaps": one_rank({"host/kernel_gap": 5}),
    "sync-for-a-value": one_rank(
        {"host/sync": 6}, causes=[cause("host/sync", "cudaStreamSynchronize", 6, "aten::_local_scalar_dense")]
    ),
    "sync-device": one_rank({"host/sync": 6}, causes=[cause("host/sync", "cudaDeviceSynchronize", 6, count=80)]),
    "sync-serializes": one_rank(
        {"host/sync": 2, "exposed_comm/allreduce": 30},
        of_job=_WORLD,
        causes=[cause("host/sync", "cudaDeviceSynchronize", 2, count=80)],
        collectives=[collective("allreduce", 30, 80)],
    ),
    "sync-blocking-copy": one_rank(
        {"host/sync": 6}, causes=[cause("host/sync", "cudaStreamSynchronize drained the queue", 6, "aten::copy_")]
    ),
    "sync": one_rank({"host/sync": 6}),
    "allocator-in-step": one_rank({"host/allocator": 4}, causes=[cause("host/allocator", "cudaFree", 4)]),
    "allocator-fragmented": one_rank({}, facts={"allocator.reserved_bytes": 64e9, "allocator.allocated_bytes": 40e9}),
    "gc-pauses": one_rank({"host/gc": 1}, causes=[cause("host/gc", "<built-in function collect>", 1)]),
    "python-between-ops": one_rank({"host/python": 18}),
    "recompiles": one_rank(
        {"host/compile": 20}, causes=[cause("host/compile", "_compile.compile_inner (dynamo_timed)", 20)]
    ),
    "first-use": one_rank({"host/compile": 20}, causes=[cause("host/compile", "first use of the kernel", 20)]),
    "driver-calls": one_rank(
        {"host/launch_bound": 30}, causes=[cause("host/launch_bound", "cudaDeviceGetStreamPriorityRange", 30)]
    ),
    "checkpoint-pause": one_rank({"host/checkpoint": 12}),
    "other-steps": one_rank({}, other_steps=[OtherStep(rank=0, step=20, dur_ns=200 * MS, reason="checkpoint")]),
    "pageable-input": one_rank(
        {"host/h2d_copy": 3}, causes=[cause("host/h2d_copy", "Memcpy HtoD (Pageable -> Device)", 3, "aten::copy_")]
    ),
    "input-copy-exposed": one_rank({"host/h2d_copy": 4}),
    "output-copy-exposed": one_rank({"host/d2h_copy": 2}),
    "profiler-overhead": one_rank({"host/profiler_overhead": 30}),
    "stacks-inflate": one_rank({"host/launch_bound": 60, "host/python": 10}, of_file={"stacks": True}),
    "precision-lost": one_rank({"kernels/precision": 40}, of_job=_PRICED),
    "fp32-without-tensor-cores": one_rank({}, kernels=[kernel("kernels/matmul", "ampere_sgemm_128x64_tn", 60)]),
    "matmul-misaligned": _checked("misaligned: 50257 is no multiple of 8"),
    "wave-quantization": _checked("wave_quantized"),
    "attention-math-path": _checked("math_attention", kind="attention"),
    "softmax-apart": one_rank(
        {"kernels/memory_bound": 22},
        kernels=[kernel("kernels/memory_bound", "cunn_SoftMaxForward<4, float, SoftMaxForwardEpilogue>", 22)],
    ),
    "norm-unfused": one_rank(
        {},
        roofline=[roof([], 20, kind="memory", op="aten::pow"), roof([], 2, kind="memory", op="aten::rsqrt")],
    ),
    "optimizer-per-tensor": one_rank(
        {"kernels/optimizer": 4}, kernels=[kernel("kernels/optimizer", _ELEMENTWISE, 4, count=4_000)]
    ),
    "optimizer-large": one_rank({"kernels/optimizer": 8}),
    "layout-copies": _checked("layout_copy", kind="memory", op="aten::copy_"),
    "layout-transposes": one_rank(
        {"kernels/memory_bound": 14}, kernels=[kernel("kernels/memory_bound", "batched_transpose_16x32_half", 14)]
    ),
    "dtype-copies": _checked("dtype_copy", kind="memory", op="aten::_to_copy"),
    "elementwise-unfused": one_rank(
        {"kernels/memory_bound": 30}, kernels=[kernel("kernels/memory_bound", _ELEMENTWISE, 30)]
    ),
    "contention": one_rank({"kernels/comm_contention": 4}, of_job=_WORLD),
    "small-batch": _checked("tiny_kernels", bound="launch"),
    "matmul-below-roof": _checked("none"),
    "attention-below-roof": _checked("none", kind="attention"),
    "memory-below-roof": _checked("none", kind="memory", op="aten::add"),
    "allreduce-exposed": _exposed("allreduce"),
    "last-bucket": one_rank(
        {"exposed_comm/allreduce": 20}, of_job=_WORLD, facts={"collectives.last_exposed_ns": 0.07 * TOTAL}
    ),
    "allgather-exposed": msgspec.structs.replace(
        _exposed("allgather"), facts={"collectives.unprefetched_ns": 0.15 * TOTAL}
    ),
    "allgather-remainder": _exposed("allgather"),
    "reduce-scatter-exposed": _exposed("reduce_scatter"),
    "all-to-all-exposed": _exposed("all_to_all"),
    "p2p-exposed": _exposed("p2p_transfer"),
    "broadcast-exposed": _exposed("broadcast"),
    "barrier-exposed": _exposed("barrier"),
    "streams-alternate": one_rank(
        {"exposed_comm/reduce_scatter": 20}, of_job=_WORLD, facts={"streams.alternating_ns": 0.1 * TOTAL}
    ),
    "collectives-small": one_rank(
        {"exposed_comm/allreduce": 3}, of_job=_WORLD, collectives=[collective("allreduce", 3, count=400)]
    ),
    "slow-group": one_rank(
        {"exposed_comm/allreduce": 30},
        of_job=_WORLD,
        facts={"collectives.slowest_group_ratio": 1.8},
        collectives=[measured(30, slow_groups=[slow_group([2, 3], ["node2"], lost_ms=4)])],
    ),
    "slow-transport": one_rank(
        {"exposed_comm/allreduce": 30},
        of_job=_WORLD,
        facts={"collectives.bus_bytes_per_s": 5e9},
        collectives=[measured(30, large_bus_bytes_per_s=5e9)],
    ),
    "ranks-missing": one_rank({"exposed_comm/allreduce": 30}, of_job={"world_size": 8, "ranks_analyzed": 1}),
    "first-collective": one_rank(
        {"exposed_comm/allgather": 48}, of_job=_WORLD, facts={"collectives.first_exposed_ns": 0.4 * TOTAL}
    ),
    "pipeline-bubble": one_rank({"pipeline_bubble/warmup": 8, "pipeline_bubble/drain": 7}, of_job=_WORLD),
    "stage-imbalance": one_rank({"pipeline_bubble/stage_imbalance": 5}, of_job=_WORLD),
    "recompute-on": one_rank({"recompute/recompute": 25}),
    "wait-for-rank": one_rank({"stragglers/wait_for_rank": 10}, of_job=_WORLD),
    "slow-rank": _several_ranks({"kernels/matmul": 84, "host/python": 1}, "slower kernels", "kernels/matmul", 24),
    "one-rank-host": _several_ranks(
        {"kernels/matmul": 60, "host/data_loader": 25}, "data_loader", "host/data_loader", 24
    ),
    "queue-stalled": one_rank({"unexplained/queue_stalled": 62}),
    "idle-unexplained": one_rank({"unexplained/unexplained": 30}),
    "events-missing": one_rank({"unexplained/events_missing": 10}, of_file={"launches_without_kernels": 3_000}),
    "capture-skew": one_rank({"unexplained/capture_skew": 30}, of_job=_WORLD),
    "coverage-low": one_rank({}, of_job={"flops_coverage": 0.6}),
    "no-shapes": one_rank({}, of_file={"shapes": False}),
    "above-peak": one_rank({}, of_job={"above_peak_ns": int(0.03 * TOTAL)}),
    "edge-only": one_rank({}, ranks=ranks_of({0: {"kernels/matmul": 100}}, edge=True)),
    "steps-uneven": _uneven(),
}
