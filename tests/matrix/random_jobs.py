"""Random jobs of any shape against the simulator's truth: ``python -m tests.matrix.random_jobs --first 0 --jobs 400``.

Where the matrix asks whether a fault is found, this asks whether anything is said that is not so, on jobs that nobody
chose: layouts, dialects, hosts, drifting clocks, cut heads, lost events, files that are missing. Prints what is wrong
of each job, then the totals; exit code 1 if anything is. What the recording can't tell may be left open:

- a clock further off than three times its error bar;
- a straggler with a cause that no fault gave it. Without a cause it only says whom the others waited for, which is so:
  a host that fell behind in some earlier step stays behind;
- a verdict that names somebody, but not the rank whose repair would save the step a twentieth or more;
- an unchanged replay more than 1 % off (but where events were lost);
- a crash, or a job that is refused though its ranks have steps in common.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import steptime
from steptime.errors import StepTimeError, UsageError
from steptime.model import Report
from steptime.ranks.causes import UNKNOWN
from steptime.simulate import Scenario, Truth, simulate
from steptime.simulate.scenario import (
    Batch,
    Clocks,
    Cluster,
    Fault,
    Jitter,
    Layout,
    Model,
    Recording,
    Training,
    check,
)

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
_SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")

#: Kind -> sizes of a fault that strikes one rank: it is that rank's doing.
ON_ONE_RANK = {
    "slow_gpu": (0.15, 0.4),
    "slow_loader": (20.0, 80.0),
    "python": (40.0, 80.0),
    "allocator": (5.0, 5.0),
    "uneven_sequences": (0.3, 0.6),
    "item_sync": (200.0, 600.0),
}
#: Faults of the job or of a recording: nobody's doing, or seen too late to be told.
OTHERS = {
    "gc_pause": (20.0, 60.0),
    "cut_head": (5.0, 5.0),
    "missing_events": (0.01, 0.05),
    "wrong_base": (1.0, 1.0),
    "recompute": (0.0, 0.0),
}
HURT_ONE_FILE = ("cut_head", "missing_events", "wrong_base")
MOST_RANKS, LOST_FILE = 12, 0.1
#: A clock drifts before its offset is measured, by up to this.
DRIFTED_SHARE = 60e-6
REPLAYED = 0.01
WORTH_NAMING = 0.05


@dataclass(frozen=True)
class Job:
    """A scenario; lost: a file is taken away before it is analysed."""

    seed: int
    scenario: Scenario
    lost: bool

    @property
    def fault(self) -> Fault | None:
        """The only one, if there is one."""
        return self.scenario.fault[0] if self.scenario.fault else None

    def __str__(self) -> str:
        layout, recording, fault = self.scenario.layout, self.scenario.recording, self.fault
        shape = " ".join(f"{name}{getattr(layout, name)}" for name in ("dp", "tp", "pp", "ep", "cp"))
        kind = f"{fault.kind}{fault.ranks or ''}" if fault is not None else "clean"
        rest = f"{layout.schedule if layout.pp > 1 else ''}{' fsdp' if layout.fsdp else ''} {recording.dialect}"
        return f"{self.seed}: {shape} {rest} {kind}{', a file lost' if self.lost else ''}"


def draw(seed: int) -> Job:
    """The job of a seed: the first that can run."""
    draws = random.Random(seed)
    while True:
        scenario = _scenario(draws, seed)
        if scenario is not None:
            return Job(seed, scenario, draws.random() < LOST_FILE)


def _scenario(draws: random.Random, seed: int) -> Scenario | None:
    some = draws.choice
    pp, tp, cp, dp = some([1, 1, 1, 2, 4]), some([1, 1, 2, 4]), some([1, 1, 1, 2]), some([1, 2, 2, 3, 4, 6, 8])
    if not 2 <= pp * tp * cp * dp <= MOST_RANKS:
        return None
    schedule: Schedule = draws.choice(_SCHEDULES) if pp > 1 else "1f1b"
    chunks = 2 if schedule == "interleaved" else 1
    ep = some([size for size in (1, 1, 2, 4) if dp % size == 0])
    made = Scenario(
        seed=seed,
        model=Model(
            layers=pp * chunks * some([1, 2, 3]),
            hidden=some([1024, 2048, 4096]),
            heads=16,
            ffn=some([2048, 8192]),
            vocab=some([2048, 8192, 32000]),
            experts=8 if ep > 1 else None,
        ),
        layout=Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            ep=ep,
            cp=cp,
            fsdp=draws.random() < 0.4,
            sequence_parallel=tp > 1 and draws.random() < 0.5,
            schedule=schedule,
            chunks=chunks,
            early_receives=draws.random() < 0.3,
        ),
        batch=Batch(
            micro_batches=pp * some([1, 2, 4]) if pp > 1 else some([1, 1, 2, 4]),
            micro_batch_size=some([1, 2, 4]),
            seq_len=some([1024, 2048, 4096]),
        ),
        training=Training(
            recompute=some(["none", "none", "selective", "full"]),
            prefetch=draws.random() < 0.8,
            reshard=draws.random() < 0.7,
            bucket_mb=some([5.0, 25.0, 100.0]),
            optimizer=some(["fused", "foreach", "loop"]),
            clip_grad=draws.random() < 0.4,
            log_every=some([0, 0, 1, 2]),
            broadcast_buffers=draws.random() < 0.2,
            detail=some(["lean", "full"]),
            cuda_graph=draws.random() < 0.1,
        ),
        cluster=Cluster(gpus_per_host=some([1, 2, 4, 8])),
        jitter=Jitter(kernel=some([0.02, 0.05]), host=some([0.05, 0.2]), outlier_share=some([0.0, 0.1])),
        clocks=Clocks(offset_ms=some([0.0, 0.2, 3.0, 50.0]), drift_ppm=some([0.0, 20.0, 50.0])),
        recording=Recording(
            steps=some([3, 4, 6]),
            start_spread_us=some([0.0, 1500.0, 8000.0]),
            dialect=some(["current", "current", "current", "integer"]),
            seq=draws.random() < 0.4,
            p2p_metadata=draws.random() < 0.8,
            p2p_batched=draws.random() < 0.3,
            flows=draws.random() < 0.3,
            optimizer_marks=draws.random() < 0.8,
            step_marks=draws.random() < 0.95,
            shapes=draws.random() < 0.85,
        ),
        fault=_fault(draws, pp * tp * cp * dp),
    )
    try:
        check(made)
    except UsageError:
        return None
    # Not simulated together.
    return None if schedule == "zero-bubble" and made.fault and made.fault[0].kind == "recompute" else made


def _fault(draws: random.Random, world: int) -> list[Fault]:
    kinds, one = draws.choices([(ON_ONE_RANK, True), (OTHERS, False), ({}, False)], [0.4, 0.25, 0.35])[0]
    if not kinds:
        return []
    kind = draws.choice(list(kinds))
    low, high = kinds[kind]
    ranks = [draws.randrange(world)] if one or kind in HURT_ONE_FILE else []
    return [Fault(kind=kind, ranks=ranks, size=draws.uniform(low, high) or None, count=2 if kind == "allocator" else 1)]


def wrong(job: Job) -> list[str]:
    """What is said of the job that is not so: kind, then what exactly."""
    with tempfile.TemporaryDirectory() as folder:
        truth = simulate(job.scenario, folder, job.seed)
        files = sorted(Path(folder).glob("rank*.json.gz"))
        if job.lost and len(files) > 2:
            files[random.Random(job.seed).randrange(len(files))].unlink()
        try:
            report = steptime.analyze([Path(folder)])
        except StepTimeError as error:
            common = "no step in common" in str(error)
            return [] if common else [f"refused: {error}"]
        except Exception:  # noqa: BLE001  whatever it is, it is reported with its job
            return [f"crash: {traceback.format_exc(limit=-3)}"]
    return [*_clocks(job, truth, report), *_verdicts(job, truth, report), *_replay(job, report)]


def _clocks(job: Job, truth: Truth, report: Report) -> list[str]:
    if job.fault is not None and job.fault.kind == "wrong_base":
        return []
    true = {clock.host: clock for clock in truth.clocks}
    passed_ns = (job.scenario.recording.warmup + 1) * truth.step_time_ns
    known = [rank for rank in report.ranks if rank.clock_offset_ns is not None and rank.clock_error_ns is not None]
    found = []
    for rank in known[1:]:
        here, first = (true[one.rank // job.scenario.cluster.gpus_per_host] for one in (rank, known[0]))
        off = (rank.clock_offset_ns or 0) - (known[0].clock_offset_ns or 0) - (here.offset_ns - first.offset_ns)
        bar = 3 * max(rank.clock_error_ns or 0, known[0].clock_error_ns or 0) + DRIFTED_SHARE * passed_ns
        if abs(off) > bar + 1_000:
            found.append(
                f"clock: rank {rank.rank} off by {off / 1e3:.1f} us, bar {(rank.clock_error_ns or 0) / 1e3:.1f}"
            )
    return found[:1]


def _verdicts(job: Job, truth: Truth, report: Report) -> list[str]:
    guilty = set(truth.culprits) | set(job.fault.ranks if job.fault is not None else [])
    named = [one for one in report.stragglers if one.kind == "straggler" and one.recorded]
    accused = [one for one in named if one.cause != UNKNOWN]
    found = [f"innocent: rank {one.rank}, {one.cause}" for one in accused if not guilty & set(one.ranks)]
    worth = truth.saved_ns >= WORTH_NAMING * truth.step_time_ns
    if job.fault is not None and job.fault.kind in ON_ONE_RANK and worth and named and not job.lost:
        found += [] if any(guilty & set(one.ranks) for one in named) else [f"missed: rank {sorted(guilty)}"]
    return found


def _replay(job: Job, report: Report) -> list[str]:
    error = report.replay.error_share if report.replay is not None else None
    hurt = job.fault is not None and job.fault.kind == "missing_events"
    return [f"replay: {100 * error:.2f} % off"] if error is not None and error > REPLAYED and not hurt else []


def _judged(seed: int) -> tuple[str, list[str]]:
    job = draw(seed)
    return str(job), wrong(job)


def main() -> int:
    """Draw the jobs, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="seed of the first job (default 0)")
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("-j", "--processes", type=int, default=2)
    given = parser.parse_args()
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        for name, found in pool.map(_judged, range(given.first, given.first + given.jobs)):
            for what in found:
                sys.stdout.write(f"{name}\n    {what}\n")
            totals.update({what.partition(":")[0] for what in found})
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(totals.items())) or "nothing"
    sys.stdout.write(f"{given.jobs} jobs, wrong of them: {told}\n")
    return 1 if totals else 0


if __name__ == "__main__":
    raise SystemExit(main())
