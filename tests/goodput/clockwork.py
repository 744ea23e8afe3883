"""The same job stepped through event by event: slow, plain, and sharing no code with the simulation.

`by_events` is the loop that one would write first; the other is the published one, with its own rule that nothing fails
during a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass
class Spent:
    """Seconds of one run."""

    work: float = 0.0
    checkpoint: float = 0.0
    lost: float = 0.0
    restart: float = 0.0
    spare_wait: float = 0.0
    failures: int = 0
    checkpoints: int = 0


@dataclass(frozen=True)
class Job:
    """What a run does; `spares` None: always enough hosts. write: seconds until a checkpoint counts."""

    interval: float
    pause: float
    restart: float
    horizon: float
    write: float = 0.0
    spares: int | None = None
    repair: float = 0.0


def by_events(failures: Sequence[float], job: Job) -> Spent:
    """One run under given moments of failure (ascending, the last beyond the horizon)."""
    spent = Spent()
    # Moments at which a failed host is a spare again.
    away: list[float] = []
    now = 0.0
    for at, fails in enumerate(failures):
        end = min(fails, job.horizon)
        if at:
            ready = now
            if job.spares is not None:
                away.append(now + job.repair)
                while sum(back > ready for back in away) > job.spares:
                    ready = min(back for back in away if back > ready)
            spent.spare_wait += min(ready, end) - now
            now = min(ready, end)
            done = min(now + job.restart, end)
            spent.restart += done - now
            now = done
        _up(now, end, fails < job.horizon, job, spent)
        now = end
        if fails >= job.horizon:
            return spent
        spent.failures += 1
    raise AssertionError("the failures end before the horizon")


def _up(start: float, end: float, fails: bool, job: Job, spent: Spent) -> None:
    """Work and pauses from `start` until `end`, where the job fails or the run ends."""
    now, done = start, []
    while now + job.interval + job.pause <= end:
        now += job.interval + job.pause
        done.append(now)
    if fails:
        safe = [moment for moment in done if moment + job.write <= end]
        kept = safe[-1] if safe else start
        spent.work += len(safe) * job.interval
        spent.checkpoint += len(safe) * job.pause
        spent.checkpoints += len(safe)
        spent.lost += end - kept
        return
    spent.checkpoints += len(done)
    spent.work += len(done) * job.interval + min(end - now, job.interval)
    spent.checkpoint += len(done) * job.pause + max(end - now - job.interval, 0)


def mulberry32(seed: int) -> Iterator[float]:
    """The generator of the published simulation: 32-bit arithmetic, uniform in [0, 1)."""
    state = seed & 0xFFFFFFFF
    while True:
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        mixed = ((state ^ (state >> 15)) * (state | 1)) & 0xFFFFFFFF
        mixed ^= (mixed + ((mixed ^ (mixed >> 7)) * (mixed | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF
        yield ((mixed ^ (mixed >> 14)) & 0xFFFFFFFF) / 4294967296


def published(seed: int, tau: float, delta: float, restart: float, mtbf: float, horizon: float) -> float:
    """The goodput of one run, a line-by-line port of the loop that ``seeds/002…`` prints."""
    uniform = mulberry32(seed)
    now, useful = 0.0, 0.0
    fail = now - math.log(1 - next(uniform)) * mtbf
    while now < horizon:
        end_checkpoint = now + tau + delta
        if fail >= end_checkpoint:
            useful += tau
            now = end_checkpoint
            continue
        now = fail + restart
        fail = now - math.log(1 - next(uniform)) * mtbf
    return useful / now
