"""In which respect the computes of a job are uneven: from worker to worker, from stage to stage, or by micro-batch.

A compute's time is taken as what its stage usually takes, times how slow its worker is, times the rest, which is its
micro-batch. Each of the three is made even by itself and the job replayed. Means would let one slow worker make its
whole stage look long, so what a stage usually takes is that of its median worker: of two, the faster one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.trace.events import I64
from steptime.whatif.oplevel.job import Job
from steptime.whatif.oplevel.ops import Op

F64 = NDArray[np.float64]

_COMPUTES = (Op.FORWARD, Op.BACKWARD)


def evened(job: Job, traced_ns: I64) -> dict[str, I64]:
    """The work times with even ``workers``, ``stages`` and ``micro_batches``, int64 [d*k, s] each."""
    found = {name: traced_ns.astype(np.float64) for name in ("workers", "stages", "micro_batches")}
    for op in _COMPUTES:
        worker_ns = _worker_means(job, traced_ns, op)
        stage_ns = _median_worker(worker_ns)
        mine = np.flatnonzero(np.tile(job.op == op, job.layout.dp_size))
        stage = np.tile(job.stage, job.layout.dp_size)[mine]
        worker = worker_ns[stage, job.dp_rank[mine]][:, None]
        usual = stage_ns[stage][:, None]
        found["workers"][mine] *= _ratio(usual, worker)
        found["stages"][mine] *= _ratio(np.full_like(usual, stage_ns.mean()), usual)
        found["micro_batches"][mine] = worker
    return {name: np.rint(times).astype(np.int64) for name, times in found.items()}


def stage_times(job: Job, traced_ns: I64) -> F64:
    """Forward and backward of a mean micro-batch in the median worker of each stage, ns float64 [stages]."""
    both = sum((_worker_means(job, traced_ns, op) for op in _COMPUTES), np.zeros(1))
    return _median_worker(both)


def slowness(job: Job, traced_ns: I64) -> F64:
    """Forward and backward of a mean micro-batch, over those of the stage's median worker; float64 [stages, d]."""
    both = sum((_worker_means(job, traced_ns, op) for op in _COMPUTES), np.zeros(1))
    return _ratio(both, np.broadcast_to(_median_worker(both)[:, None], both.shape))


def forward_backward_correlation(job: Job, traced_ns: I64) -> float | None:
    """Pearson's correlation of forward and backward over the micro-batches of a worker, of the median worker.

    Within one worker, so that slow workers and long stages do not count. Long sequences make both passes long.
    """
    forward, backward = (_by_worker(job, traced_ns, op) for op in _COMPUTES)
    forward, backward = (times - times.mean(axis=-1, keepdims=True) for times in (forward, backward))
    power = (forward**2).sum(axis=-1) * (backward**2).sum(axis=-1)
    varies = power > 0
    if not varies.any():
        return None
    return float(np.median((forward * backward).sum(axis=-1)[varies] / np.sqrt(power[varies])))


def _median_worker(worker_ns: F64) -> F64:
    """The lower median of each row: a value that one worker has, and not half of a slow one's."""
    median: F64 = np.sort(worker_ns, axis=1)[:, (worker_ns.shape[1] - 1) // 2]
    return median


def _worker_means(job: Job, traced_ns: I64, op: Op) -> F64:
    means: F64 = _by_worker(job, traced_ns, op).mean(axis=-1)
    return means


def _by_worker(job: Job, traced_ns: I64, op: Op) -> F64:
    """The times of one type by stage and dp rank, ns float64 [stages, d, micro-batches * s], micro-batches by seq."""
    slots = np.flatnonzero(job.op == op)
    slots = slots[np.lexsort((job.seq[slots], job.stage[slots]))]
    times = traced_ns.reshape(job.layout.dp_size, job.slots, -1)[:, slots]
    by_worker: F64 = times.reshape(job.layout.dp_size, job.layout.pp_size, -1).transpose(1, 0, 2).astype(np.float64)
    return by_worker


def _ratio(wanted: F64, present: F64) -> F64:
    return np.divide(wanted, present, out=np.ones_like(present), where=present > 0)
