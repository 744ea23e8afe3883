"""Reports written by hand, for the tests of what is shown and stored."""

from __future__ import annotations

from steptime.model import (
    Cause,
    Collective,
    Input,
    Job,
    Kernel,
    LeafTotal,
    OtherStep,
    Quality,
    RankSteps,
    Report,
    SliceTotal,
    Spread,
    StepTime,
    Tool,
)

MS = 1_000_000

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
BATCH_NORM = (
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float, "
    "cudnnTensorStruct, float const*, cudnnTensorStruct, float const*, cudnnTensorStruct, float*, float const*, float*)"
)


def quality(**changes: object) -> Quality:
    """What an ordinary file of today's profiler holds."""
    fields: dict[str, object] = {
        "dialect": "kineto",
        "shapes": True,
        "stacks": False,
        "clock_base": "unix",
        "launches_without_kernels": 0,
        "kernels_without_launches": 0,
        "partial_first_step": False,
        "partial_last_step": False,
        "cut_head_events": 0,
        "dropped": {},
        "clipped": {},
    }
    return Quality(**(fields | changes))  # type: ignore[arg-type]


def slices(leaves_ns: dict[str, int | None], total_ns: int) -> list[SliceTotal]:
    """All slices of the contract with the given leaves; a slice whose every leaf is None is None itself."""
    parts = []
    for part in ("kernels", "exposed_comm", "pipeline_bubble", "recompute", "stragglers", "host", "unexplained"):
        own = {key.partition("/")[2]: ns for key, ns in leaves_ns.items() if key.partition("/")[0] == part}
        leaves = [LeafTotal(id=key, ns=ns, share=None if ns is None else ns / total_ns) for key, ns in own.items()]
        known = [ns for ns in own.values() if ns is not None]
        ns = None if own and not known else sum(known)
        parts.append(SliceTotal(id=part, ns=ns, share=None if ns is None else ns / total_ns, leaves=leaves))
    return parts


def job(leaves_ns: dict[str, int | None], *, rank_steps: int = 4, **changes: object) -> Job:
    """A job of one V100 whose leaves are given as totals over `rank_steps`."""
    productive_ns = changes.get("productive_ns", 0)
    assert isinstance(productive_ns, int)
    total_ns = productive_ns + sum(ns or 0 for ns in leaves_ns.values())
    step_ns = total_ns // max(rank_steps, 1)
    fields: dict[str, object] = {
        "world_size": 1,
        "ranks_analyzed": 1,
        "rank_steps": rank_steps,
        "device": "Tesla V100-SXM2-32GB",
        "step_source": "ProfilerStep",
        "steps": list(range(5, 5 + rank_steps)),
        "step_time_ns": Spread(median=step_ns, p10=step_ns, p90=step_ns),
        "total_ns": total_ns,
        "slices": slices(leaves_ns, total_ns or 1),
    }
    return Job(**(fields | changes))  # type: ignore[arg-type]


def report(the_job: Job, **changes: object) -> Report:
    """A report of that job; its one rank is given a step for each that the job counts."""
    fields: dict[str, object] = {
        "tool": Tool(version="0.1.0"),
        "inputs": [Input(path="/data/run/rank0.json.gz", rank=0, bytes=56_200_000, events=412_345, quality=quality())],
        "job": the_job,
        "ranks": [RankSteps(rank=0, host="node1", device=0, steps=[])],
        "causes": [],
        "kernels": [],
        "collectives": [],
        "warnings": [],
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


def loader_bound() -> Report:
    """One V100 that waits for its data loader: six steps, eager, stacks on, MFU not known."""
    leaves: dict[str, int | None] = {
        "kernels/matmul": 418 * MS,
        "kernels/memory_bound": 161 * MS,
        "kernels/optimizer": 12_300_000,
        "pipeline_bubble/unsplit": None,
        "stragglers/wait_for_rank": None,
        "host/data_loader": 355_700_000,
        "host/launch_bound": 58_200_000,
        "host/kernel_gap": 9_450_000,
        "host/h2d_copy": 27_300_000,
        "unexplained/unexplained": 400_000,
    }
    the_job = job(leaves, rank_steps=6, step_time_ns=Spread(median=178_400_000, p10=165_900_000, p90=181_200_000))
    total = the_job.total_ns
    seen = [
        ("kernels/matmul", "volta_scudnn_128x64_relu_interior_nn_v1", "aten::cudnn_convolution", 203 * MS, 312, 6),
        ("kernels/memory_bound", BATCH_NORM, "train.py:41 forward", 96 * MS, 318, 6),
        ("kernels/memory_bound", ADD, None, 33 * MS, 96, 6),
        ("kernels/memory_bound", ADD.replace("<float>", "<c10::Half>"), None, 2 * MS, 6, 1),
        (
            "host/data_loader",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "train.py:88 main",
            355_700_000,
            6,
            6,
        ),
        ("host/launch_bound", "aten::batch_norm", "torch/nn/modules/batchnorm.py:168 forward", 22 * MS, 901, 6),
        ("host/h2d_copy", "Memcpy HtoD (Pageable -> Device)", "aten::to", 27_300_000, 12, 6),
    ]
    causes = [
        Cause(leaf=leaf, what=what, where=where, ns=ns, share=ns / total, count=count, rank_steps=rank_steps)
        for leaf, what, where, ns, count, rank_steps in seen
    ]
    steps = [
        StepTime(
            step=4,
            edge=True,
            start_ns=0,
            dur_ns=90 * MS,
            leaves_ns={"kernels/matmul": 80 * MS, "host/data_loader": 10 * MS},
            note="work from before the recording",
        )
    ]
    start_ns = 90 * MS
    for number, loader_ms in zip(range(5, 11), (69, 58, 61, 57, 63, 48), strict=True):
        leaves_ns = {"kernels/matmul": 98 * MS, "host/data_loader": loader_ms * MS, "host/launch_bound": 10 * MS}
        steps.append(StepTime(step=number, start_ns=start_ns, dur_ns=(108 + loader_ms) * MS, leaves_ns=leaves_ns))
        start_ns += (108 + loader_ms) * MS
    return report(
        the_job,
        inputs=[
            Input(
                path="/data/resnet/worker0.1623143089861.pt.trace.json.gz",
                rank=0,
                bytes=4_512_345,
                events=104_410,
                quality=quality(
                    dialect="kineto 1.9",
                    stacks=True,
                    clock_base="none",
                    partial_first_step=True,
                    launches_without_kernels=3,
                ),
                warnings=["stacks were recorded: the host is slower than in production"],
            )
        ],
        ranks=[RankSteps(rank=0, host="node1", device=0, steps=steps)],
        causes=causes,
        kernels=[
            Kernel(name=BATCH_NORM, leaf="kernels/memory_bound", count=318, dur_ns=96 * MS, owned_ns=96 * MS),
        ],
        other_steps=[
            OtherStep(rank=0, step=12, dur_ns=1_240_000_000, reason="evaluation"),
            OtherStep(rank=0, step=112, dur_ns=1_260_000_000, reason="evaluation"),
            OtherStep(rank=0, step=50, dur_ns=3_400_000_000, reason="checkpoint"),
        ],
        warnings=["mfu is null: FLOPs are not counted by this version"],
    )


def ranks_64() -> Report:
    """64 H100 with MFU known and gains known; rank 37's loader is slow and the others wait for it in all-reduce."""
    ranks = []
    for number in range(64):
        late = number == 37
        leaves_ns = {
            "kernels/matmul": 22 * MS,
            "kernels/memory_bound": 14 * MS,
            "exposed_comm/allreduce": (3 if late else 24) * MS,
            "host/data_loader": 21 * MS if late else 0,
            "host/kernel_gap": 1 * MS,
        }
        given = {key: ns for key, ns in leaves_ns.items() if ns}
        ranks.append(
            RankSteps(
                rank=number,
                host=f"node{number // 8}",
                device=number % 8,
                steps=[
                    StepTime(
                        step=step, start_ns=step * 100 * MS, dur_ns=100 * MS, productive_ns=39 * MS, leaves_ns=given
                    )
                    for step in (10, 11)
                ],
            )
        )
    rank_steps = 128
    totals: dict[str, int | None] = {
        "kernels/matmul": 22 * MS * rank_steps,
        "kernels/memory_bound": 14 * MS * rank_steps,
        "exposed_comm/allreduce": (24 * 126 + 3 * 2) * MS,
        "recompute/recompute": 0,
        "stragglers/wait_for_rank": None,
        "host/data_loader": 42 * MS,
        "host/kernel_gap": 1 * MS * rank_steps,
    }
    the_job = job(
        totals,
        rank_steps=rank_steps,
        world_size=64,
        ranks_analyzed=64,
        device="NVIDIA H100 80GB HBM3",
        peak_flops={"bf16": 989.4e12},
        reference_dtype="bf16",
        steps=[10, 11],
        mfu=0.39,
        mfu_by={"torchtitan": 0.412, "palm": 0.405},
        hfu=0.39,
        flops_source="trace",
        flops_coverage=0.997,
        productive_ns=39 * MS * rank_steps,
    )
    gains = {"matmul": 9 * MS * rank_steps, "memory_bound": 4 * MS * rank_steps, "allreduce": 11 * MS * rank_steps}
    with_gains = []
    for part in the_job.slices:
        leaves = [
            LeafTotal(id=leaf.id, ns=leaf.ns, share=leaf.share, recoverable_ns=gains.get(leaf.id, leaf.ns))
            for leaf in part.leaves
        ]
        gain = None if part.ns is None else sum(leaf.recoverable_ns or 0 for leaf in leaves)
        with_gains.append(SliceTotal(id=part.id, ns=part.ns, share=part.share, recoverable_ns=gain, leaves=leaves))
    fields = {name: getattr(the_job, name) for name in the_job.__struct_fields__} | {"slices": with_gains}
    total = the_job.total_ns
    return report(
        Job(**fields),
        inputs=[
            Input(
                path=f"/data/run/rank{number}.json.gz",
                rank=number,
                bytes=30_000_000 + number,
                events=200_000,
                quality=quality(launches_without_kernels=number % 3 + 1),
                warnings=["the last step has launches without kernels"] + ["clock went backwards"] * (number == 5),
            )
            for number in range(64)
        ],
        ranks=ranks,
        causes=[
            Cause(
                leaf="exposed_comm/allreduce",
                what="all_reduce float32 134,217,728",
                where="DistributedDataParallel",
                ns=2_900 * MS,
                share=2_900 * MS / total,
                count=1_536,
                rank_steps=128,
            ),
            Cause(
                leaf="host/data_loader",
                what="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                where=None,
                ns=42 * MS,
                share=42 * MS / total,
                count=2,
                rank_steps=2,
            ),
        ],
        collectives=[
            Collective(kind="allreduce", group="dp", count=1_536, dur_ns=6_000 * MS, exposed_ns=3_030 * MS),
        ],
    )


def nothing_measured() -> Report:
    """No step could be counted: every list is empty, everything that may be missing is."""
    empty = job({}, rank_steps=0, world_size=None, ranks_analyzed=0, device=None, slices=[], steps=[], total_ns=0)
    return report(empty, inputs=[], ranks=[], warnings=[])


HOSTILE = (
    "[red]markup[/red]",
    "</script><script>alert(1)</script>",
    "\x1b[31mred\x1b[0m\x07\r\n\ttwo lines",
    "\u202eright to left\u200b",
    "pipe | tick ` both `` and \\| backslash",
    "*bold* _it_ [link](http://x) ![i](y) @octocat #1 &amp; ~~gone~~",
    "z" * 3_000,
    "z" * 2_999 + "y",
    "日本語" * 60,
    "e" + "\u0301" * 400,
    "lone \udcff surrogate",
    "",
)


def hostile() -> Report:
    """Every text that comes from outside holds something that a terminal or a browser would act on."""
    ugly = "".join(HOSTILE[:6])
    the_job = job({"kernels/matmul": 60 * MS, "host/python": 40 * MS}, device=ugly, step_source=ugly, world_size=2)
    leaves = [
        LeafTotal(id="python", ns=30 * MS, share=0.3, detail={ugly: ugly, "line": HOSTILE[6]}),
        LeafTotal(id=ugly, ns=10 * MS, share=0.1),
        LeafTotal(id="gc", ns=None, share=None, detail={"why": ugly}),
    ]
    parts = [
        SliceTotal(id="host", ns=40 * MS, share=0.4, leaves=leaves) if part.id == "host" else part
        for part in the_job.slices
    ]
    step = StepTime(step=5, start_ns=0, dur_ns=10, leaves_ns={f"{ugly}/{ugly}": 4, "kernels/matmul": 6}, note=ugly)
    return report(
        Job(**{name: getattr(the_job, name) for name in the_job.__struct_fields__} | {"slices": parts}),
        tool=Tool(name=ugly, version=ugly),
        inputs=[
            Input(
                path=f"/data/{text}",
                rank=None,
                bytes=1,
                events=1,
                quality=quality(dialect=text, clock_base=text, dropped={text: 1}),
                warnings=[text],
            )
            for text in HOSTILE
        ],
        ranks=[RankSteps(rank=rank, host=ugly, device=0, steps=[step]) for rank in range(2)],
        causes=[
            Cause(leaf=f"host/{text}", what=text, where=text, ns=MS, share=0.01, count=1, rank_steps=1)
            for text in HOSTILE[:10]
        ],
        kernels=[Kernel(name=text, leaf=ugly, count=1, dur_ns=1, owned_ns=1) for text in HOSTILE],
        collectives=[Collective(kind=ugly, group=ugly, count=1, dur_ns=1, exposed_ns=1)],
        other_steps=[OtherStep(rank=0, step=9, dur_ns=1, reason=text) for text in HOSTILE],
        warnings=list(HOSTILE),
    )


def cpu_only() -> Report:
    """Two gloo ranks without a device; nothing here can be told about recompute."""
    leaves: dict[str, int | None] = {
        "kernels/matmul": 300 * MS,
        "exposed_comm/allreduce": 90 * MS,
        "recompute/recompute": None,
        "stragglers/wait_for_rank": None,
        "host/data_loader": 10 * MS,
    }
    the_job = job(leaves, rank_steps=8, device=None, world_size=2, ranks_analyzed=2, steps=[3, 4, 5, 6])
    return report(the_job, ranks=[RankSteps(rank=rank, host=None, device=None, steps=[]) for rank in range(2)])


#: Every report that each format must be able to show.
REPORTS = {
    "loader_bound": loader_bound,
    "ranks_64": ranks_64,
    "nothing_measured": nothing_measured,
    "hostile": hostile,
    "cpu_only": cpu_only,
}
