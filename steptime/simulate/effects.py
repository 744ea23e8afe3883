"""What faults do, rank by rank and step by step, as plain arrays: the engine and the writer read nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.simulate.noise import Noise
from steptime.simulate.plan import F64, I64, Exchange, Mask
from steptime.simulate.scenario import Cluster, Jitter, Scenario

_S = 1e9


@dataclass(slots=True, eq=False)
class Effects:
    """Arrays [world, steps] unless said; steps count from the first simulated one.

    slow: factor on kernel times; host: factor on what an op costs the host; link [world]: share of the bandwidth left;
    loader_ns, gc_ns, python_ns, checkpoint_ns: pauses; alloc_ns: one allocator retry, alloc_count of them a step;
    syncs: `.item()` calls a step; tokens, experts [world, steps, micro_batches]: load; drop [world]: share of kernels
    that the recording loses; head_ns [world]: what is cut off the recording's start; base_ns [world]: error of
    baseTimeNanoseconds; struck bool: which ranks faults of single ranks hit, step by step.
    """

    slow: F64
    host: F64
    link: F64
    loader_ns: F64
    gc_ns: F64
    python_ns: F64
    checkpoint_ns: F64
    alloc_ns: F64
    syncs: I64
    tokens: F64
    experts: F64
    drop: F64
    head_ns: I64
    base_ns: I64
    struck: Mask
    alloc_count: int = 1


def no_effects(scenario: Scenario) -> Effects:
    """A job without faults; its random outlier steps are in `slow`."""
    world = scenario.layout.world
    steps = scenario.recording.warmup + scenario.recording.steps
    zeros, ones = np.zeros((world, steps)), np.ones((world, steps))
    loads = np.ones((world, steps, scenario.batch.micro_batches))
    return Effects(
        slow=_outliers(scenario.jitter, Noise(scenario.seed), ones.copy()),
        host=ones.copy(),
        link=np.ones(world),
        loader_ns=zeros.copy(),
        gc_ns=zeros.copy(),
        python_ns=zeros.copy(),
        checkpoint_ns=zeros.copy(),
        alloc_ns=zeros.copy(),
        syncs=np.full((world, steps), scenario.training.item_syncs, np.int64),
        tokens=loads,
        experts=loads.copy(),
        drop=np.zeros(world),
        head_ns=np.zeros(world, np.int64),
        base_ns=np.zeros(world, np.int64),
        struck=np.zeros((world, steps), np.bool_),
    )


def _outliers(jitter: Jitter, noise: Noise, slow: F64) -> F64:
    """In some steps one random rank is slower: nobody's fault."""
    world, steps = slow.shape
    for step in range(steps):
        if noise.one("outlier", step) < jitter.outlier_share:
            slow[int(noise.one("outlier rank", step) * world), step] += jitter.outlier_size
    return slow


class Hardware:
    """Speeds of compute and links under the given effects (the engine's `Speeds`)."""

    def __init__(self, cluster: Cluster, effects: Effects, link_bytes_per_s: float) -> None:
        self.cluster = cluster
        self.effects = effects
        self.intra = cluster.intra_bytes_per_s or link_bytes_per_s * cluster.link_share

    def compute(self, ranks: I64, step: int) -> F64:
        """Factor on kernel times of each rank in a step; float64 [lane]."""
        result: F64 = self.effects.slow[ranks, step]
        return result

    def launching(self, ranks: I64, step: int) -> F64:
        """Factor on what an op costs each rank's host in a step; float64 [lane]."""
        result: F64 = self.effects.host[ranks, step]
        return result

    def transfer_ns(self, exchange: Exchange) -> F64:
        """Transfer time of the exchange for each rank (the same in a group), float64 [world].

        The latency-bandwidth model of NCCL's rings: a latency, and what each member sends (2(n-1)/n of the tensor in an
        all-reduce, (n-1)/n in the others) over the slowest link of the group. Between hosts the members of one host
        share their network cards, one a GPU.
        """
        group, world = exchange.group, len(self.effects.link)
        if self.cluster.infinite:
            return np.zeros(world)
        if exchange.pair is not None:
            return self._pair_ns(exchange, exchange.pair)
        n = group.size
        share = {"allreduce": 2 * (n - 1) / n, "broadcast": 1.0, "ring": 1.0}.get(exchange.kind, (n - 1) / n)
        slowest = np.minimum.reduceat(self.effects.link[group.order], group.starts)
        together = min(n, self.cluster.gpus_per_host)
        between = min(self.intra, self.cluster.inter_bytes_per_s * max(self._per_host(exchange, together), 1))
        bandwidth = np.where(group.crosses, between, self.intra) * slowest
        latency = np.where(group.crosses, self.cluster.inter_latency_us, self.cluster.intra_latency_us) * 1e3
        hops = 1 + np.log2(max(n, 2)) / 4
        per_group = latency * hops + exchange.nbytes * share / bandwidth * _S
        result = np.zeros(world)
        result[group.order] = np.repeat(per_group, group.size)
        return result

    def _per_host(self, exchange: Exchange, together: int) -> int:
        """Members of a group on one host; a ring hop or an all-to-all between hosts uses each GPU's own card."""
        if exchange.kind in ("ring", "all_to_all"):
            return 1
        group = exchange.group
        hosts = group.order[: group.size] // self.cluster.gpus_per_host
        return min(together, int(np.bincount(hosts).max()))

    def _pair_ns(self, exchange: Exchange, pair: I64) -> F64:
        own = np.arange(len(pair))
        crosses = own // self.cluster.gpus_per_host != pair // self.cluster.gpus_per_host
        bandwidth = np.where(crosses, self.cluster.inter_bytes_per_s, self.intra)
        bandwidth = bandwidth * np.minimum(self.effects.link, self.effects.link[pair])
        latency = np.where(crosses, self.cluster.inter_latency_us, self.cluster.intra_latency_us) * 1e3
        result: F64 = latency + exchange.nbytes / bandwidth * _S
        return result
