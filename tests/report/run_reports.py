"""Plans and watches for the tests of the views, one with everything in it and one with as little as there can be."""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np

from steptime.goodput.metrics_file import Metrics
from steptime.goodput.planning import Job, Writing, plan
from steptime.goodput.watching import WatchAsk, watch
from steptime.model.inputs import Tool
from steptime.model.plan import Layout, Plan, PlanAsk
from steptime.model.watch import Watch
from tests.goodput.curves import curve
from tests.goodput.test_memory import LLAMA_8B

TOOL = Tool(name="steptime", version="9.9")
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m|`*_\u202e"
_ASK = PlanAsk(gpus=16_384, mtbf_gpu_s=50_677 * 3600.0, pause_s=33, restart_s=600, runs=60)


@functools.cache
def full_plan(name: str = "Llama 3 8B") -> Plan:
    """Every part: an interval today, spares, a comparison of ways to write, bytes and a fit."""
    writing = Writing(pause_s=33, size_bytes=6.55e13, write_bytes_per_s=2e12, copy_bytes_per_s=4e9)
    ask = msgspec.structs.replace(_ASK, interval_s=7200.0, spares=20, repair_s=86_400.0, weibull_shape=0.8)
    model = msgspec.structs.replace(LLAMA_8B, name=name)
    layout = Layout(gpus=16_384, tensor=2, pipeline=2, zero=1, sequence=8192)
    return plan(ask, writing, TOOL, Job(model, layout, "H100 SXM", 80 * 2**30))


@functools.cache
def bare_plan() -> Plan:
    """Only what is required."""
    return plan(_ASK, Writing(pause_s=33), TOOL)


@functools.cache
def full_watch(name: str = "metrics.jsonl") -> Watch:
    """Spikes, a loss that ends as NaN, a skipped step, a drop, a plateau, a target and bad lines."""
    made = curve(5)
    rows = len(made.loss)
    rng = np.random.default_rng(0)
    loss, grad, rate = made.loss.copy(), made.grad_norm.copy(), rng.normal(1000, 8, rows)
    loss[3000:4500] = loss[3000] + rng.normal(0, 0.02, 1500)
    loss[5000:5006] += 1.5
    loss[-100:] = math.nan
    grad[4990:4995] *= 12
    grad[2000] = math.inf
    rate[3000:3400] *= 0.7
    metrics = Metrics(
        path=name,
        kind="jsonl",
        time_ns=1_700_000_000_000_000_000 + 2_500_000_000 * np.arange(rows),
        step=5 * np.arange(rows),
        values={"loss": loss, "grad_norm": grad, "tps": rate, "mfu": rate / 2500, "update_ratio": np.full(rows, 1e-3)},
        logged_nan={"loss": np.isnan(loss)},
        bad_lines=1,
        bad_examples=(f"line 7: not JSON: {name}",),
        notes=("the header stands 2 times in the file",),
    )
    return watch(metrics, WatchAsk(checkpoint_every=1000, target_loss=3.0), TOOL)


@functools.cache
def bare_watch() -> Watch:
    """Three rows of one column."""
    metrics = Metrics(
        path="short.csv",
        kind="csv",
        time_ns=np.full(3, np.iinfo(np.int64).min),
        step=np.arange(3),
        values={"loss": np.array([3.0, 2.5, 2.0])},
    )
    return watch(metrics, WatchAsk(), TOOL)
