"""Real jobs of two gloo ranks with and without a fault: does the replay of the faulty one tell the other's step time?

What the other job takes is known from its own clock (`job.Truth`): from one step's last gradient to the next one's.
Faults sleep, so that they take no core from the other rank, and so does most of the model's own time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from numpy.typing import NDArray

from steptime.ranks.counted import Row
from steptime.ranks.together import together
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.summary import Request, summarize
from steptime.trace.events import I64
from steptime.trace.parse import parse
from steptime.whatif.graph import Weights
from steptime.whatif.job_graph import JobGraph, job_graph
from steptime.whatif.rank_nodes import EDGE, LAG, WORK, Parts
from steptime.whatif.replay import replay
from steptime.whatif.schedule import schedule
from steptime.whatif.step_times import step_lengths
from tests.real_run.job import Settings, Truth, run_job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

LOADER, SLOW = 1, 0
"""The rank whose loader sleeps, and the one whose ops take longer."""
TRIES, MOST_MS = 5, 14
CLEAN = Settings(slow_rank=-1, steps=14, sleep_every=1, op_ms=100.0, width=64, bucket_mb=0.3)
SLOW_LOADER = replace(CLEAN, slow_rank=LOADER, sleep_ms=80.0)
SLOW_OPS = replace(CLEAN, slow_op_rank=SLOW, slow_op_ms=50.0)
BOTH = replace(SLOW_LOADER, slow_op_rank=SLOW, slow_op_ms=50.0)
COMPUTE = np.array([leaf.key.startswith("kernels/") for leaf in LEAVES])


@dataclass(frozen=True)
class Pairs:
    """Step times by the jobs' own clocks, ns, and the graphs of their recordings."""

    measured_ns: dict[Settings, float]
    graphs: dict[Settings, JobGraph]
    steps_ns: dict[Settings, I64]


def own_step_ns(truth: Truth) -> float:
    """The median time from one step's last gradient to the next one's, by the job's own clock."""
    arrival = truth["ranks"]["0"]["arrival_ns"]
    when = [arrival[str(step)] for step in truth["recorded_steps"]]
    return median(after - before for before, after in zip(when, when[1:], strict=False))


def left_alone(truth: Truth, sleeps_ms: float) -> bool:
    """Whether the job had the machine: 8 to 12 ms a step beside its sleep were measured."""
    return own_step_ns(truth) <= (sleeps_ms + MOST_MS) * 1e6


def graph_of(out: Path) -> tuple[JobGraph, I64]:
    """The graph of two recordings, and the measured lengths of all steps, by rank, then step."""
    files = [summarize(parse(str(out / f"rank{rank}.pt.trace.json.gz")), Request(replayed=True)) for rank in (0, 1)]
    rows = [Row(rank, 0, file, file.devices[0]) for rank, file in enumerate(files)]
    joined = together(rows, 2)
    assert joined.seen is not None
    return job_graph(rows, joined.seen[0]), np.array([step.dur_ns for row in rows for step in row.timeline.steps])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    measured, graphs, steps = {}, {}, {}
    for settings, sleeps_ms in ((CLEAN, 100), (SLOW_LOADER, 180), (SLOW_OPS, 150), (BOTH, 180)):
        for _ in range(TRIES):
            out = tmp_path_factory.mktemp("job")
            truth = run_job(out, settings)
            if left_alone(truth, sleeps_ms):
                break
        else:
            pytest.skip(f"the machine is too busy: {TRIES} jobs took {MOST_MS} ms a step longer than their sleep")
        measured[settings] = own_step_ns(truth)
        graphs[settings], steps[settings] = graph_of(out)
    return Pairs(measured, graphs, steps)


def step_ns(graph: JobGraph, less: I64) -> I64:
    """Step times of all ranks, by rank, then step, once `less` is taken from each part."""
    changed = [graph.graph.lag_ns.copy(), graph.graph.work_ns.copy(), graph.graph.edge_lag_ns.copy()]
    for kind in (LAG, WORK, EDGE):
        mine = graph.parts.kind == kind
        np.subtract.at(changed[kind], graph.parts.index[mine], less[mine])
    lag, work, edge = (column[:, None] for column in changed)
    return step_lengths(graph.ends, replay(graph.graph, schedule(graph.graph), Weights(lag, work, edge)))[:, 0]


def loader(parts: Parts) -> I64:
    """All waiting for the data loader."""
    return np.where(parts.leaf == LEAF_CODE["host/data_loader"], parts.ns, 0)


def slowness(parts: Parts) -> I64:
    """What the compute of the slow rank takes more than that of the other, by step and leaf."""
    less = np.zeros(len(parts.ns), np.int64)

    def of(row: int, step: int, leaf: int) -> NDArray[np.intp]:
        return np.flatnonzero((parts.row == row) & (parts.step == step) & (parts.leaf == leaf))

    for step in np.unique(parts.step).tolist():
        for leaf in np.flatnonzero(COMPUTE).tolist():
            mine, other = of(SLOW, step, leaf), of(1 - SLOW, step, leaf)
            own, usual = int(parts.ns[mine].sum()), int(parts.ns[other].sum())
            if own > usual:
                less[mine] = parts.ns[mine] * (own - usual) // own
    return less


def test_unchanged_graphs_give_back_what_was_measured(pairs: Pairs) -> None:
    for settings, graph in pairs.graphs.items():
        replayed = step_ns(graph, np.zeros(len(graph.parts.ns), np.int64))
        assert np.abs(replayed - pairs.steps_ns[settings]).max() <= 0.01 * pairs.steps_ns[settings].min()


@pytest.mark.parametrize(
    ("faulty", "fixes", "other"),
    [
        (SLOW_LOADER, [loader], CLEAN),
        (SLOW_OPS, [slowness], CLEAN),
        (BOTH, [loader], SLOW_OPS),
        (BOTH, [slowness], SLOW_LOADER),
        (BOTH, [loader, slowness], CLEAN),
    ],
    ids=["loader", "slow_ops", "loader_of_both", "slow_ops_of_both", "all_of_both"],
)
def test_what_a_fix_brings_is_what_the_job_without_the_fault_took(
    pairs: Pairs, faulty: Settings, fixes: list[Callable[[Parts], I64]], other: Settings
) -> None:
    graph = pairs.graphs[faulty]
    less = sum((fix(graph.parts) for fix in fixes), np.zeros(len(graph.parts.ns), np.int64))
    predicted = step_ns(graph, less).reshape(2, -1)
    assert np.median(predicted[0]) == pytest.approx(pairs.measured_ns[other], rel=0.10)
    assert np.median(predicted[1]) == pytest.approx(pairs.measured_ns[other], rel=0.10)


def test_the_naive_difference_is_wrong_where_another_fault_waits_behind(pairs: Pairs) -> None:
    graph = pairs.graphs[BOTH]
    naive = np.median(pairs.steps_ns[BOTH]) - 80e6
    assert naive < 0.9 * pairs.measured_ns[SLOW_OPS]
    assert np.median(step_ns(graph, loader(graph.parts))) > 1.1 * naive
