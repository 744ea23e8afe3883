"""A report written by hand that fills every section of a page, for the tests of HTML, charts and Perfetto files."""

from __future__ import annotations

import msgspec

from steptime.model import (
    Alignment,
    ChecklistItem,
    Evidence,
    Finding,
    Job,
    LeafTotal,
    OpRoof,
    RankSteps,
    Report,
    SliceTotal,
    StepTime,
    StepTimeline,
    Straggler,
)
from tests.report.reports import HOSTILE, MS, hostile, ranks_64

US = 1_000
#: An absolute time with digits that a double of microseconds could not hold.
EPOCH_NS = 1_711_964_646_123_456_789

PEAK_FLOPS = 989.4e12
MEMORY_BYTES_PER_S = 3.35e12


def op(
    name: str, kind: str, owned_us: int, rates: tuple[float | None, float | None, float | None], **more: object
) -> OpRoof:
    """A call with the given intensity, attained FLOP/s and bytes/s; FLOPs and bytes follow from the rates."""
    intensity, flops, moved = rates
    seconds = owned_us / 1e6
    fields: dict[str, object] = {
        "op": name,
        "shapes": "[[8192, 4096], [4096, 4096]]",
        "dtype": "bf16",
        "kind": kind,
        "direction": "forward",
        "count": 64,
        "kernels": 64,
        "kernel": f"sm90_xmma_gemm_{name.partition('::')[2]}_128x256x64",
        "dur_ns": owned_us * US,
        "owned_ns": owned_us * US,
        "flops": None if flops is None else round(flops * seconds),
        "model_flops": None if flops is None else round(flops * seconds),
        "bytes": None if moved is None else round(moved * seconds),
        "intensity": intensity,
        "bound": "compute",
        "attained_flops": flops,
        "attained_bytes_per_s": moved,
        "peak_share": None if flops is None else flops / PEAK_FLOPS,
        "attainable_ns": owned_us * 700,
        "headroom_ns": owned_us * 300,
    }
    return OpRoof(**(fields | more))  # type: ignore[arg-type]


def ops() -> list[OpRoof]:
    """Calls on both sides of the ridge, one in L2, two without FLOPs, one with neither FLOPs nor bytes."""
    return [
        op("aten::mm", "matmul", 9_000, (1_170.0, 610e12, 521e9)),
        op(
            "aten::mm",
            "matmul",
            2_100,
            (820.0, 240e12, 293e9),
            shapes="[[8192, 4100], [4100, 4096]]",
            checks=["alignment"],
        ),
        op("aten::_scaled_dot_product_flash_attention", "attention", 3_400, (410.0, 420e12, 1_024e9)),
        op("aten::convolution", "convolution", 700, (60.0, 90e12, 1_500e9)),
        op("aten::bmm", "matmul", 60, (9.0, 40e12, 4_444e9), cache_resident=True, bound="memory"),
        op("aten::add_", "memory", 2_600, (None, None, 2_900e9), bound="memory", dtype="fp32", direction="backward"),
        op("aten::layer_norm", "memory", 1_300, (None, None, 900e9), bound="launch", recomputed=True),
        op(
            "custom::op",
            "memory",
            90,
            (None, None, None),
            bound=None,
            peak_share=None,
            attainable_ns=None,
            headroom_ns=None,
        ),
    ]


def timeline(why: str = "typical", *, rank: int = 0, step: int = 10, start_ns: int = EPOCH_NS) -> StepTimeline:
    """100 ms: a wait for data, then two kernels with an all-reduce half under the second, then the host is late."""
    rows = [
        # track, start, length (µs), leaf, name
        (0, 0, 12_000, 1, 1),
        (0, 12_000, 40_000, 0, 0),
        (0, 52_000, 30_000, 0, 2),
        (0, 82_000, 15_000, 2, 3),
        (0, 97_000, 3_000, 3, 4),
        (1, 12_000, 40_000, 0, 0),
        (1, 52_000, 30_000, 0, 2),
        (2, 70_000, 27_000, 2, 3),
    ]
    return StepTimeline(
        rank=rank,
        device=rank % 8,
        step=step,
        why=why,
        step_start_ns=start_ns,
        dur_ns=100 * MS,
        tracks=["owner", "stream 7", "stream 24"],
        names=[
            "sm90_xmma_gemm_bf16",
            "enumerate(DataLoader)#__next__",
            "flash_fwd",
            "ncclDevKernel_AllReduce",
            "aten::add",
        ],
        leaves=["kernels/matmul", "host/data_loader", "exposed_comm/allreduce", "host/launch_bound"],
        track=[row[0] for row in rows],
        start_ns=[row[1] * US for row in rows],
        segment_ns=[row[2] * US for row in rows],
        leaf=[row[3] for row in rows],
        name=[row[4] for row in rows],
        dropped=12 if why == "slowest" else 0,
    )


def findings() -> list[Finding]:
    """One with everything, one with as little as there can be."""
    return [
        Finding(
            id="allreduce-exposed",
            slice="exposed_comm",
            title="Gradients are reduced after the backward pass instead of under it",
            cost_ns=2_900 * MS,
            share=0.227,
            mfu_if_fixed=0.452,
            step_time_if_fixed_ns=86 * MS,
            confidence="high",
            evidence=[
                Evidence(
                    text="the longest all-reduce runs with no kernel beside it",
                    rank=3,
                    step=10,
                    start_ns=EPOCH_NS + 82 * MS,
                    dur_ns=15 * MS,
                    event="ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                ),
                Evidence(text="one bucket of 268 MB holds half of the gradients"),
            ],
            advice="Make the buckets smaller (bucket_cap_mb=25), so that the first of them can start early. "
            "Check that no hook waits for all of them.",
        ),
        Finding(
            id="late-loader",
            slice="host",
            title="Rank 37 waits for data",
            cost_ns=None,
            share=None,
            confidence="low",
            advice="Look at that host's disk.",
        ),
    ]


def checklist() -> list[ChecklistItem]:
    """Each of the three answers."""
    return [
        ChecklistItem(item="dense peak and dtype", status="pass", why="989.4 TFLOP/s, bf16, H100 SXM"),
        ChecklistItem(item="communication overlaps with compute", status="fail", why="23.7 points are exposed"),
        ChecklistItem(item="allocator", status="cannot tell", why="no memory events: profile_memory was off"),
    ]


def rich() -> Report:
    """64 ranks of H100 with all that a report can hold."""
    report = ranks_64()
    parts = [
        SliceTotal(
            id=part.id,
            ns=part.ns,
            share=part.share,
            recoverable_ns=part.recoverable_ns,
            mfu_if_removed=None if part.share is None else round(0.39 / (1 - part.share), 3),
            leaves=part.leaves,
        )
        for part in report.job.slices
    ]
    ranks = [
        RankSteps(
            rank=rank.rank,
            host=rank.host,
            device=rank.device,
            steps=[
                msgspec.structs.replace(step, start_ns=EPOCH_NS + (step.step - 10) * 100 * MS) for step in rank.steps
            ],
        )
        for rank in report.ranks
    ]
    return msgspec.structs.replace(
        report,
        job=msgspec.structs.replace(
            report.job, slices=parts, model_flops_per_step=2_469_000_000_000_000, above_peak_ns=3 * MS
        ),
        ranks=ranks,
        roofline=ops(),
        timelines=[timeline(), timeline("slowest", rank=37, step=11, start_ns=EPOCH_NS + 100 * MS)],
        facts={"memory_bytes_per_s": MEMORY_BYTES_PER_S, "input_wait_share": 0.003, "allocator_ratio": None},
        findings=findings(),
        not_evaluated={"allocator-reserved": "no memory events in these traces"},
        checklist=checklist(),
        alignment=Alignment(matched=4_096, unmatched=0, refused=0, error_ns=4_200),
        stragglers=[
            Straggler(
                kind="straggler",
                rank=37,
                ranks=[37],
                host="node4",
                cause="data_loader",
                leaf="host/data_loader",
                steps=[11, 12],
                lost_ns=42_000_000,
                share=0.021,
            )
        ],
    )


#: Markup, quotes, controls, and a name of 5,000 characters.
UGLY = (
    *HOSTILE,
    "</script><img src=x onerror=alert(1)>",
    "\"'`<b>${7*7}{{7*7}}</b>",
    "k" * 5_000,
    "\x00\x08\x1b[2J\u2028\u2029",
)


def hostile_rich() -> Report:
    """Every text that reaches a page or a chart is hostile."""
    ugly = "".join(UGLY[:6])
    calls = [op(text, text, 100, (10.0, 1e12, 1e11), shapes=text, kernel=text, dtype=text, bound=text) for text in UGLY]
    calls += [op(text, "memory", 90, (None, None, 1e11), shapes=text, kernel=text, checks=[text]) for text in UGLY]
    drawn = msgspec.structs.replace(
        timeline(), tracks=["owner", UGLY[1], UGLY[1]], names=list(UGLY[-5:]), leaves=list(UGLY[-4:]), why=ugly
    )
    odd = [
        Finding(
            id=text,
            slice=text,
            title=text,
            cost_ns=1,
            share=0.1,
            confidence=text,
            gain=text,
            mfu_if_fixed=0.5,
            evidence=[Evidence(text=text, event=text)],
            advice=text,
        )
        for text in UGLY
    ]
    return msgspec.structs.replace(
        hostile(),
        roofline=calls,
        timelines=[drawn],
        facts=dict.fromkeys(UGLY, 1.0),
        findings=odd,
        not_evaluated=dict.fromkeys(UGLY, ugly),
        checklist=[ChecklistItem(item=text, status=text, why=text) for text in UGLY],
        stragglers=[
            Straggler(
                kind=text, rank=None, ranks=[1, 2], host=text, cause=text, leaf=text, steps=[1], lost_ns=1, share=1.0
            )
            for text in UGLY
        ],
    )


def monstrous() -> Report:
    """Far more of everything than a page can hold."""
    report = rich()
    long = "<&\u65e5'\"" * 200
    many = 3_000
    drawn = StepTimeline(
        rank=0,
        device=0,
        step=10,
        why="typical",
        step_start_ns=EPOCH_NS,
        dur_ns=many * US,
        tracks=["owner", *(f"stream {at}" for at in range(1, 40))],
        names=[f"{at}{long}" for at in range(many)],
        leaves=["kernels/matmul", "host/python"],
        track=[at % 40 for at in range(many)],
        start_ns=[at * US for at in range(many)],
        segment_ns=[US - at % 7 for at in range(many)],
        leaf=[at % 2 for at in range(many)],
        name=list(range(many)),
    )
    return msgspec.structs.replace(
        report,
        roofline=[op(f"{at}{long}", "matmul", at + 1, (10.0, 1e12, 1e11), shapes=f"{long}{at}") for at in range(2_000)],
        timelines=[drawn, msgspec.structs.replace(drawn, why="slowest")],
        findings=[msgspec.structs.replace(findings()[0], title=f"{at}{long}", advice=long) for at in range(500)],
        not_evaluated={f"{at}{long}": long for at in range(500)},
        warnings=[f"{at}{long}" for at in range(3_000)],
        facts={f"{at}{long}": 1.0 for at in range(3_000)} | report.facts,
    )


def one_edge_job(job: Job) -> Job:
    """`job` in which nothing is useful and all is one leaf."""
    leaf = LeafTotal(id="python", ns=job.total_ns, share=1.0)
    return msgspec.structs.replace(
        job, productive_ns=0, mfu=None, slices=[SliceTotal(id="host", ns=job.total_ns, share=1.0, leaves=[leaf])]
    )


def adjacent_steps(count: int) -> list[StepTime]:
    """Steps that tile, from a time whose microseconds need more digits than a double has."""
    return [
        StepTime(step=at, start_ns=EPOCH_NS + at * 1_000_001, dur_ns=1_000_001, leaves_ns={"host/python": 1_000_001})
        for at in range(count)
    ]
