"""An op-level recording in, what slows the job down out.

The quantities are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25): S, S_t,
S_d, S_p, M_W and M_S. The verdict is steptime's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steptime.model.oplevel import Explained, OpLevelReport, Slowdown, Unevenness, Worker
from steptime.trace.events import I64
from steptime.whatif.oplevel.job import Job, arrange
from steptime.whatif.oplevel.ops import KINDS, NAMES, Op
from steptime.whatif.oplevel.read import Layout, read
from steptime.whatif.oplevel.scenarios import Mask, Replayer
from steptime.whatif.oplevel.unevenness import F64, evened, forward_backward_correlation, slowness, stage_times
from steptime.whatif.oplevel.verdict import judge
from steptime.whatif.oplevel.work import find_work

#: Workers in a hundred that M_W takes for the worst, rounded up (the paper's choice).
_WORST_IN_100 = 3
#: Workers are slow together with the slowest one from this share of its excess on.
_AS_SLOW = 0.5


def analyze_oplevel(path: str | Path) -> OpLevelReport:
    """Replay the job of ``trace-NAME.parquet``, with ``meta-NAME.yaml`` beside it.

    Raises:
        UsageError: pyarrow is not installed.
        TraceError: a file is missing, can't be read, or holds no whole op-level steps.
    """
    recording = read(Path(path))
    job = arrange(recording)
    work = find_work(job)
    replayer = Replayer(job, work)
    layout = job.layout
    stage = np.tile(job.stage, layout.dp_size)
    everything = np.ones(len(stage), np.bool_)
    (replayed_ns,) = replayer.keeping([everything])
    ideal_ns = replayer.ideal()
    by_type = _slowdowns(replayer, _types(job), ideal_ns)
    by_dp_rank = _slowdowns(replayer, {str(rank): job.dp_rank == rank for rank in range(layout.dp_size)}, ideal_ns)
    by_stage = _slowdowns(replayer, {str(at): stage == at for at in range(layout.pp_size)}, ideal_ns)
    worst = _worst(layout, by_dp_rank, by_stage, slowness(job, work.traced_ns))
    recorded_ns = job.end_ns.max(axis=0) - job.start_ns.min(axis=0)
    report = OpLevelReport(
        path=str(path),
        name=layout.name,
        dp_size=layout.dp_size,
        pp_size=layout.pp_size,
        world_size=layout.world_size,
        micro_batches=job.micro_batches,
        steps=job.step.tolist(),
        recorded_ns=recorded_ns.tolist(),
        replayed_ns=replayed_ns.tolist(),
        ideal_ns=ideal_ns,
        ideal_op_ns={name: int(work.ideal_ns[op]) for op, name in enumerate(NAMES) if (job.op == op).any()},
        launch_slowdown=float(recorded_ns.mean() / replayed_ns.mean()),
        slowdown=float(replayed_ns.mean() / ideal_ns),
        by_type=by_type,
        by_dp_rank=by_dp_rank,
        by_stage=by_stage,
        worst=worst,
        worst_workers=_explained(replayer, _ops_of(job, worst), replayed_ns, ideal_ns),
        last_stage=_explained(replayer, stage == layout.pp_size - 1, replayed_ns, ideal_ns),
        unevenness=_unevenness(job, replayer, work.traced_ns, replayed_ns, ideal_ns),
        reordered=job.reordered,
        cause="unclear",
        why=None,
        culprits=[],
        stage=None,
    )
    return judge(report)


def _types(job: Job) -> dict[str, Mask]:
    """The ops of each type as it is reported: send and receive of one direction are one."""
    op = np.tile(job.op, job.layout.dp_size)
    kinds = [kind for kind in Op if (op == kind).any()]
    names = dict.fromkeys(KINDS[kind].reported for kind in kinds)
    return {name: np.isin(op, [kind for kind in kinds if KINDS[kind].reported == name]) for name in names}


def _slowdowns(replayer: Replayer, parts: dict[str, Mask], ideal_ns: int) -> list[Slowdown]:
    times = replayer.keeping(parts.values())
    return [
        Slowdown(name=name, step_ns=step_ns.tolist(), slowdown=float(step_ns.mean() / ideal_ns))
        for name, step_ns in zip(parts, times, strict=True)
    ]


def _worst(layout: Layout, by_dp_rank: Sequence[Slowdown], by_stage: Sequence[Slowdown], computes: F64) -> list[Worker]:
    """The slowest 3 % of the workers, at least one.

    A worker is as slow as the lesser of its dp rank and its stage; of workers that are equally slow, the lower rank.
    """
    slowdown = np.minimum.outer([sum(one.step_ns) for one in by_stage], [sum(one.step_ns) for one in by_dp_rank])
    count = math.ceil(_WORST_IN_100 * layout.workers / 100)
    # Ranks ascend by stage and then by dp rank, as the flattened cells do.
    cells = np.argsort(-slowdown.ravel(), kind="stable")[:count]
    places = [divmod(cell, layout.dp_size) for cell in cells.tolist()]
    return [_worker(layout, rank, stage, computes) for stage, rank in places]


def _slow(job: Job, computes: F64) -> list[Worker]:
    """The worker that is slowest against its stage, and all that are slow by at least half as much; slowest first."""
    cells = np.argsort(-computes.ravel(), kind="stable")
    excess = computes.ravel()[cells] - 1
    slow = cells[(excess > 0) & (excess >= _AS_SLOW * excess[0])]
    places = [divmod(cell, job.layout.dp_size) for cell in slow.tolist()]
    return [_worker(job.layout, rank, stage, computes) for stage, rank in places]


def _worker(layout: Layout, dp_rank: int, stage: int, computes: F64) -> Worker:
    slow = float(computes[stage, dp_rank])
    return Worker(dp_rank=dp_rank, stage=stage, rank=layout.rank(dp_rank, stage), slowness=slow)


def _ops_of(job: Job, workers: Sequence[Worker]) -> Mask:
    stage = np.tile(job.stage, job.layout.dp_size)
    found = np.zeros(len(stage), np.bool_)
    for one in workers:
        found |= (job.dp_rank == one.dp_rank) & (stage == one.stage)
    return found


def _explained(replayer: Replayer, part: Mask, replayed_ns: I64, ideal_ns: int) -> Explained:
    without, only = replayer.keeping([~part, part]).mean(axis=1).tolist()
    all_of_it = float(replayed_ns.mean()) - ideal_ns
    return Explained(
        without_ns=without,
        only_ns=only,
        share=(float(replayed_ns.mean()) - without) / all_of_it if all_of_it > 0 else None,
        share_alone=(only - ideal_ns) / all_of_it if all_of_it > 0 else None,
    )


def _unevenness(job: Job, replayer: Replayer, traced_ns: I64, replayed_ns: I64, ideal_ns: int) -> Unevenness:
    work_ns = evened(job, traced_ns)
    slow = _slow(job, slowness(job, traced_ns))
    work_ns["slow_workers"] = np.where(_ops_of(job, slow)[:, None], work_ns["workers"], traced_ns)
    all_of_it = float(replayed_ns.mean()) - ideal_ns
    saved_ns = replayed_ns.mean() - replayer.step_times(work_ns.values()).mean(axis=1)
    share = {name: float(ns / all_of_it) if all_of_it > 0 else None for name, ns in zip(work_ns, saved_ns, strict=True)}
    return Unevenness(
        workers=share["workers"],
        slow_workers=share["slow_workers"],
        slow=slow,
        stages=share["stages"],
        micro_batches=share["micro_batches"],
        stage_ns=stage_times(job, traced_ns).tolist(),
        correlation=forward_backward_correlation(job, traced_ns),
    )
