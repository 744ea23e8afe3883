"""What a job recorded as operations of a pipeline says: how much slower than even work it is, and where that lies."""

from __future__ import annotations

import msgspec


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A replay in which one part of the job keeps the times that were recorded and all other ops take ideal ones.

    name: the op type, or the number of the dp rank or stage. step_ns: each step. slowdown: their mean over the ideal
    step, 1 where the part costs nothing.
    """

    name: str
    step_ns: list[int]
    slowdown: float


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the slowdown some workers explain.

    without_ns: mean step if their ops took ideal times; only_ns: mean step if only theirs took the recorded ones.
    share: of what ideal times would save, what those without them save; below 0 if that slows the job, above 1 if the
    rest beats the ideal. share_alone: the slowdown with theirs only, as a share of all. None without a slowdown.
    """

    without_ns: float
    only_ns: float
    share: float | None
    share_alone: float | None


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded worker; rank is its global rank, slowness what its computes take over its stage's median worker."""

    dp_rank: int
    stage: int
    rank: int
    slowness: float


class Unevenness(msgspec.Struct, frozen=True, kw_only=True):
    """What of the slowdown goes if the computes are made even in one respect and keep all others.

    workers: each worker is as fast as the median one of its stage (of two, the faster); stages: the stages' median
    workers are alike; micro_batches: each takes its worker's mean; slow_workers: only those of `slow` become as fast as
    the median one, which are the slowest and all that are at least half as much slower than the median. Shares of what
    ideal times would save; None without a slowdown.
    stage_ns: forward and backward of a mean micro-batch by each stage's median worker. correlation: of the forward's
    and backward's times of one micro-batch, in the median worker; None where they do not vary.
    """

    workers: float | None
    slow_workers: float | None
    slow: list[Worker]
    stages: float | None
    micro_batches: float | None
    stage_ns: list[float]
    correlation: float | None


class OpLevelReport(msgspec.Struct, frozen=True, kw_only=True):
    """An op-level job, replayed.

    steps: their numbers. recorded_ns: each as recorded; replayed_ns: each with the recorded times of its ops, but
    without delays between them; ideal_ns: a step in which each op takes its type's ideal time, of which ideal_op_ns has
    one for each type. launch_slowdown: recorded over replayed; slowdown: replayed over ideal, of means. worst: the 3 %
    slowest workers, worst_workers what they explain; last_stage: what the last stage does. reordered: worker-steps of
    which the compute order is not the one that was replayed. cause: ``worker``, ``stage``, ``sequence_lengths``,
    ``none`` or ``unclear`` (why says the reason); culprits: the workers meant; stage: the stage meant.
    """

    path: str
    name: str
    dp_size: int
    pp_size: int
    world_size: int
    micro_batches: int
    steps: list[int]
    recorded_ns: list[int]
    replayed_ns: list[int]
    ideal_ns: int
    ideal_op_ns: dict[str, int]
    launch_slowdown: float
    slowdown: float
    by_type: list[Slowdown]
    by_dp_rank: list[Slowdown]
    by_stage: list[Slowdown]
    worst: list[Worker]
    worst_workers: Explained
    last_stage: Explained
    unevenness: Unevenness
    reordered: int
    cause: str
    why: str | None
    culprits: list[Worker]
    stage: int | None
