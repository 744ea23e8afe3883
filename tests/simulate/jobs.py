"""Small jobs for the simulator's tests, and their traces read back by the plainest means."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from steptime.simulate.scenario import Batch, Cluster, Host, Jitter, Layout, Model, Recording, Scenario

SMALL = Model(layers=2, hidden=1024, heads=8, ffn=4096, vocab=8192)
ORIGIN_NS = 227 * 7_889_238_000_000_000 + 5_111_842_086_750_000

#: No host cost, no transfer time, no jitter: what is left is the schedule.
IDEAL_HOST = Host(
    op_us=0.01,
    launch_us=0.01,
    after_us=0.0,
    python_us=0.0,
    latency_us=0.0,
    gap_us=0.0,
    loader_us=0.0,
    step_us=0.0,
    queue_depth=10**6,
)
STILL = Jitter(kernel=0.0, host=0.0, transfer=0.0, outlier_share=0.0, ends=False)


def job(**changes: Any) -> Scenario:
    """A two-layer job; `changes` replace whole tables."""
    tables: dict[str, Any] = {
        "name": "test",
        "seed": 7,
        "model": SMALL,
        "layout": Layout(dp=4),
        "batch": Batch(micro_batch_size=2, seq_len=1024),
    }
    return Scenario(**(tables | changes))


def ideal_pipeline(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Scenario:
    """Even stages, nothing but computing: the embedding and output layer are of no account with 8 words."""
    return job(
        model=Model(layers=2 * stages * chunks, hidden=2048, heads=16, ffn=8192, vocab=8),
        layout=Layout(pp=stages, schedule=schedule, chunks=chunks),  # type: ignore[arg-type]
        batch=Batch(micro_batches=micro_batches, seq_len=4096),
        cluster=Cluster(infinite=True),
        host=IDEAL_HOST,
        jitter=STILL,
        recording=Recording(steps=2, start_spread_us=0.0),
    )


def read(path: Path) -> dict[str, Any]:
    """The trace as json reads it; numbers with decimals stay text, so that nothing is rounded."""
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    return loaded


def ns(micros: Any) -> int:
    """Kineto's microseconds as integer nanoseconds."""
    whole, _, rest = str(micros).partition(".")
    return int(whole) * 1000 + int((rest + "000")[:3])


def events(path: Path, *cats: str) -> list[dict[str, Any]]:
    """Complete events of some categories in time order, with `start` and `end` in ns after the simulation's start."""
    trace = read(path)
    zero = trace.get("baseTimeNanoseconds", 0)
    found = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] in cats]
    for event in found:
        event["start"] = ns(event["ts"]) + zero - ORIGIN_NS
        event["end"] = event["start"] + ns(event["dur"])
    return sorted(found, key=lambda event: (event["start"], event["end"]))


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
