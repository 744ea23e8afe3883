"""Small training jobs made directly as rows, so that hundreds of them can be judged: their truth is how they are made.

A job has hosts of equally many ranks, tensor-parallel neighbours (`tp`) and data-parallel groups across. A step: wait
for the loader; for each layer compute, then an all-reduce with the tp neighbours (or, with `sharded`, an all-gather
over the data-parallel group); at the end an all-reduce over the data-parallel group; then the optimizer. Every
collective starts on a rank when its compute is done, transfers from the last arrival on and ends a little later on
each rank. Nothing of it comes from the code under test; rows are what summaries of traces hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steptime.model import Quality, StepTime
from steptime.ranks.counted import Row
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.instances import Group, Instances
from steptime.timeline.ledger import Ledger, LedgerWriter
from steptime.timeline.summary import DeviceTimeline, FileSummary
from steptime.trace.events import TraceMeta

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

EPOCH_NS = 1_790_000_000_000_000_000
MS = 1_000_000
TEXTS = ["gemm", "adam", "DataLoader", "allreduce (dp)", "allreduce (tp)", "allgather (dp)"]


@dataclass(kw_only=True)
class Job:
    """What is run. Times ns; offsets_ns and drift by host; slow: factor by rank; loader_ns: by rank and step."""

    hosts: int = 1
    ranks_per_host: int = 4
    tp: int = 1
    sharded: bool = False
    steps: int = 6
    layers: int = 8
    layer_ns: float = 1.0 * MS
    transfer_ns: float = 0.1 * MS
    jitter: float = 0.0
    outlier: float = 0.0
    ends_ns: float = 0.0
    ends_between_ns: float = 0.0
    offsets_ns: list[int] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    slow: dict[int, float] = field(default_factory=dict)
    loader_ns: dict[tuple[int, int], float] = field(default_factory=dict)
    starts_ns: dict[int, float] = field(default_factory=dict)
    named_hosts: bool = True
    seq: bool = True
    groups: bool = True
    seed: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host

    def host(self, rank: int) -> int:
        """The host of a rank."""
        return rank // self.ranks_per_host

    def clock(self, rank: int, true_ns: F64 | float) -> I64:
        """What the rank's clock shows at true times (ns since the job's start)."""
        host = self.host(rank)
        offset = self.offsets_ns[host] if self.offsets_ns else 0
        drift = self.drift[host] if self.drift else 0.0
        shown: I64 = EPOCH_NS + offset + np.rint(np.asarray(true_ns) * (1.0 + drift)).astype(np.int64)
        return shown


@dataclass
class _Rank:
    """What happened on one rank, true times."""

    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    spent: list[dict[str, float]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)


def run(job: Job) -> list[Row]:
    """Run the job and return the rows of all its ranks."""
    random = np.random.default_rng(job.seed)
    count = job.ranks
    now = np.array([job.starts_ns.get(rank, 0.0) for rank in range(count)])
    ranks = [_Rank(bounds=[time]) for time in now]
    slow = np.array([job.slow.get(rank, 1.0) for rank in range(count)])
    tp_groups = [np.arange(at, at + job.tp) for at in range(0, count, job.tp)] if job.tp > 1 else []
    dp_groups = [np.arange(at, count, job.tp) for at in range(job.tp)] if count > job.tp else []
    for step in range(job.steps):
        for one in ranks:
            one.spent.append({})
        loader = np.array([job.loader_ns.get((rank, step), 0.02 * MS) for rank in range(count)])
        now = _spend(ranks, now, loader, "loader")
        odd = np.where(random.random(count) < job.outlier, 1.0 + 0.1 * random.random(count), 1.0)
        for _ in range(job.layers):
            noise = np.exp(job.jitter * random.standard_normal((4, count))).mean(axis=0)
            now = _spend(ranks, now, job.layer_ns * noise * slow * odd, "gemm")
            for group in tp_groups:
                now = _meet(job, ranks, now, group, "tp", step, random)
            if job.sharded:
                for group in dp_groups:
                    now = _meet(job, ranks, now, group, "gather", step, random)
        for group in dp_groups:
            now = _meet(job, ranks, now, group, "dp", step, random)
        now = _spend(ranks, now, 0.3 * MS * slow, "adam")
        for rank, one in enumerate(ranks):
            one.bounds.append(float(now[rank]))
    return [_row(job, rank, one) for rank, one in enumerate(ranks)]


def _spend(ranks: list[_Rank], now: F64, length: F64, what: str) -> F64:
    for rank, one in enumerate(ranks):
        one.spent[-1][what] = one.spent[-1].get(what, 0.0) + float(length[rank])
    return now + length


def _meet(  # noqa: PLR0913  what a collective consists of
    job: Job, ranks: list[_Rank], now: F64, group: I64, kind: str, step: int, random: np.random.Generator
) -> F64:
    last = now[group].max()
    between = len({job.host(rank) for rank in group.tolist()}) > 1
    scale = job.ends_between_ns if between else job.ends_ns
    later = (
        np.minimum(scale * np.exp(random.standard_normal(len(group))), 25 * scale) if scale else np.zeros(len(group))
    )
    ends = last + job.transfer_ns + later
    result = now.copy()
    for at, rank in enumerate(group.tolist()):
        one = ranks[rank]
        one.start.append(float(now[rank]))
        one.end.append(float(ends[at]))
        one.kind.append(kind)
        one.step.append(step)
        result[rank] = ends[at]
    return result


_LEAF = {"dp": "allreduce", "tp": "allreduce", "gather": "allgather"}
_TEXT = {"dp": 3, "tp": 4, "gather": 5}


def _row(job: Job, rank: int, one: _Rank) -> Row:
    bounds = job.clock(rank, np.array(one.bounds))
    start, end = job.clock(rank, np.array(one.start)), job.clock(rank, np.array(one.end))
    step = np.array(one.step, np.int32)
    writer = LedgerWriter()
    leaf = np.array([LEAF_CODE[f"exposed_comm/{_LEAF[kind]}"] for kind in one.kind], np.int64)
    text = np.array([_TEXT[kind] for kind in one.kind], np.int64)
    none = np.full(len(leaf), -1, np.int64)
    writer.put((step, leaf, text, none), end - start, (np.ones(len(leaf), np.int64), end - start))
    busy = np.zeros(job.steps, np.int64)
    np.add.at(busy, step, end - start)
    for code, name, count in ((0, "gemm", job.layers), (1, "adam", 1), (2, "loader", 1)):
        key = {"gemm": "kernels/matmul", "adam": "kernels/optimizer", "loader": "host/data_loader"}[name]
        spent = np.array([entry[name] for entry in one.spent])
        # The last part takes the rounding, so that the step adds up.
        ns = np.rint(spent).astype(np.int64) if name != "loader" else np.diff(bounds) - busy
        busy += ns
        at = np.arange(job.steps, dtype=np.int64)
        same = np.full(job.steps, LEAF_CODE[key], np.int64)
        long = ns if name != "loader" else np.zeros_like(ns)
        columns = (at, same, np.full(job.steps, code), np.full(job.steps, -1))
        writer.put(columns, ns, (np.full(job.steps, count), long))
    ledger = writer.ledger(list(TEXTS))
    timeline = DeviceTimeline(
        device=0,
        name="Built GPU",
        steps=_steps(job, ledger, bounds),
        ledger=ledger,
        host_ops=np.zeros(job.steps, np.int64),
        totals=None,
        instances=_instances(job, rank, one, start, end),
    )
    return Row(rank, 0, _file(job, rank, one), timeline)


def _steps(job: Job, ledger: Ledger, bounds: I64) -> list[StepTime]:
    leaves = ledger.leaves_ns(job.steps, len(LEAVES))
    steps = []
    for at in range(job.steps):
        entry = StepTime(
            step=10 + at,
            start_ns=int(bounds[at]),
            dur_ns=int(bounds[at + 1] - bounds[at]),
            edge=at == 0,
            leaves_ns={LEAVES[code].key: int(ns) for code, ns in enumerate(leaves[at]) if ns},
        )
        entry.check()
        steps.append(entry)
    return steps


def _instances(job: Job, rank: int, one: _Rank, start: I64, end: I64) -> Instances:
    first = rank // job.tp * job.tp
    dp = Group("1", "dp", job.ranks // job.tp, tuple(range(rank % job.tp, job.ranks, job.tp)))
    tp = Group("2", "tp", job.tp, tuple(range(first, first + job.tp)))
    group = np.array([{"tp": 2}.get(kind, 1) for kind in one.kind], np.int32) * np.int32(job.groups)
    count = len(start)
    seq = np.zeros(count, np.int64)
    for name in (1, 2):
        seq[group == name] = np.arange(np.count_nonzero(group == name))
    none = np.full(count, -1, np.int64)
    elements = np.array([{"tp": 1000, "dp": 5000}.get(kind, 3000) for kind in one.kind], np.int64)
    return Instances(
        start_ns=start,
        end_ns=end,
        leaf=np.array([LEAF_CODE[f"exposed_comm/{_LEAF[kind]}"] for kind in one.kind], np.int16),
        group=group,
        seq=seq if job.seq else none,
        elements=elements,
        bytes=2 * elements,
        peer=none,
        sends=np.zeros(count, np.bool_),
        stream=np.full(count, 20, np.int64),
        step=np.array(one.step, np.int32),
        groups=[Group("", "", -1, None), dp, tp],
        exposed_start=start,
        exposed_end=end,
        exposed_of=np.arange(count, dtype=np.int64),
        exposed_step=np.array(one.step, np.int32),
    )


def _file(job: Job, rank: int, one: _Rank) -> FileSummary:
    meta = TraceMeta(
        path=f"rank{rank}.json",
        bytes=0,
        dialect="current",
        rank=rank,
        world_size=job.ranks,
        backend="nccl",
        host=f"host{job.host(rank)}" if job.named_hosts else None,
        base_ns=None,
        devices=[],
        flags=frozenset(),
        event_count=0,
    )
    quality = Quality(
        dialect="current",
        shapes=False,
        stacks=False,
        clock_base="absolute",
        launches_without_kernels=0,
        kernels_without_launches=0,
        partial_first_step=True,
        partial_last_step=False,
        cut_head_events=0,
        dropped={},
        clipped={},
    )
    return FileSummary(
        meta=meta,
        devices=[],
        step_source="ProfilerStep marks",
        quality=quality,
        warnings=[],
        start_ns=int(job.clock(rank, one.bounds[0])),
        end_ns=int(job.clock(rank, one.bounds[-1])),
        recompute_visible=True,
        unmeasurable_contention_ns=0,
        declared_rank=rank,
    )
