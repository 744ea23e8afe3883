"""When a simulated job fails, and what each failure leaves of the time until the next one.

A failure is a moment on the clock that does not depend on what the job does then: it may hit work, a checkpoint, a
restart or a wait for a host. So the same failures serve every checkpoint interval, and intervals are compared without
the noise of different luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.errors import UsageError
from steptime.model.plan import PlanAsk

Floats = npt.NDArray[np.float64]

#: Runs in one block: its arrays stay in a core's cache.
BLOCK_RUNS = 32
#: Gaps drawn at once for each run. Part of what a seed means: another number gives other runs.
_CHUNK = 64
#: More failures in one run than this, and the job makes no progress that would be worth planning.
MAX_FAILURES = 50_000


@dataclass(frozen=True, slots=True)
class Uptimes:
    """Some runs, each cut by its failures. All arrays are float64 seconds.

    closed_s: (runs, most failures), how long the job was up before each failure, 0 where it was not or where the run
    has fewer failures. open_s: (runs,), how long it was up after the last one. restart_s and spare_wait_s: (runs,), in
    total. failures: (runs,). Of each run, everything adds up to the horizon.
    """

    closed_s: Floats
    open_s: Floats
    restart_s: Floats
    spare_wait_s: Floats
    failures: Floats


def draw(ask: PlanAsk) -> Iterator[Uptimes]:
    """The runs of a plan, `BLOCK_RUNS` at a time; equal seeds give equal luck, whatever the other figures are.

    Raises:
        UsageError: the job would fail so often that nothing is left to simulate.
    """
    expected = ask.horizon_s / ask.mtbf_job_s
    if expected > MAX_FAILURES:
        raise UsageError(
            f"a job that fails every {ask.mtbf_job_s:.3g} s fails {expected:.3g} times in the simulated time: check "
            "--gpus and --mtbf-gpu (hours), or give fewer --days"
        )
    blocks = -(-ask.runs // BLOCK_RUNS)
    for at, seed in enumerate(np.random.SeedSequence(ask.seed).spawn(blocks)):
        runs = min(BLOCK_RUNS, ask.runs - at * BLOCK_RUNS)
        yield cut(failure_times(ask, np.random.default_rng(seed), runs), ask)


def failure_times(ask: PlanAsk, rng: np.random.Generator, runs: int) -> Floats:
    """(runs, n) moments of failures, ascending, in seconds; every row reaches the horizon.

    The gaps between the failures of the job are exponential, or Weibull of the same mean: the shape that systems show
    is 0.7 to 0.8 (Schroeder and Gibson, DSN 2006, section 5.3). Failures of many devices that are each exponential make
    an exponential job with the mean divided by their number.
    """
    shape = ask.weibull_shape
    scale_s = ask.mtbf_job_s / math.gamma(1 + 1 / shape)
    parts: list[Floats] = []
    reached = np.zeros((runs, 1))
    while reached.min() < ask.horizon_s:
        gaps = rng.standard_exponential((runs, _CHUNK))
        if shape != 1:
            gaps **= 1 / shape
        parts.append(reached + np.cumsum(gaps * scale_s, axis=1))
        reached = parts[-1][:, -1:]
    return np.concatenate(parts, axis=1)


def cut(times_s: Floats, ask: PlanAsk) -> Uptimes:
    """What failures at `times_s` (runs, n; ascending, reaching the horizon) leave of the runs.

    After a failure the job waits for a host if no spare is left, then restarts; a failure during either begins both
    anew. Every failure takes out one host for `repair_s`. With S spares, the host that replaces the one of failure j is
    there once failure j − S is repaired: at most S hosts may be out while the job runs, and repairs take equally long,
    so they end in the order of the failures.
    """
    horizon = ask.horizon_s
    inside = times_s < horizon
    starts = np.concatenate([np.zeros((len(times_s), 1)), times_s[:, :-1]], axis=1)
    gaps = np.maximum(np.minimum(times_s, horizon) - starts, 0)
    waits = np.zeros_like(gaps)
    if ask.spares is not None:
        back = min(ask.spares, gaps.shape[1])
        returned = np.concatenate([np.full((len(times_s), back), -np.inf), times_s[:, : gaps.shape[1] - back]], axis=1)
        ready = (returned + ask.repair_s)[:, : gaps.shape[1]]
        waits[:, 1:] = np.maximum(ready - times_s, 0)[:, :-1]
    waited = np.minimum(waits, gaps)
    # The first gap begins with a job that runs.
    restarts = np.full(gaps.shape[1], ask.restart_s)
    restarts[0] = 0
    restarted = np.minimum(gaps - waited, restarts)
    up = gaps - waited - restarted
    last = inside.sum(axis=1)
    rows = np.arange(len(times_s))
    most = int(last.max(initial=0))
    return Uptimes(
        closed_s=np.where(inside, up, 0)[:, :most],
        open_s=up[rows, last],
        restart_s=restarted.sum(axis=1),
        spare_wait_s=waited.sum(axis=1),
        failures=last.astype(np.float64),
    )
