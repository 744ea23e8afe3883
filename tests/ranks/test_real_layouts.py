"""Real jobs over gloo on this machine's CPU: who is named in a data-parallel one, and what is seen of other layouts.

The truth is measured inside the job (`layouts.LayoutTruth`): what was injected, and when each rank had its last
gradient. A machine that is busy with something else may hold up any rank; then the job is run again.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pytest

import steptime
from steptime.ranks.alignment import Alignment, align
from steptime.ranks.counted import Row
from steptime.ranks.moves import attribute_waits
from steptime.ranks.stragglers import verdicts
from steptime.taxonomy import LEAVES
from tests.ranks.summaries import rows_of
from tests.real_run.launch import one_was_late
from tests.real_run.layouts import Layout, LayoutTruth, run_layout, trace_paths

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

TRIES = 3
SLOW = 2
#: Of the injected time: what the other ranks' own clocks may differ from it, and what the found wait may.
UNDISTURBED, TOLERANCE = 0.08, 0.10


class Run(NamedTuple):
    """One job, and its ranks as the cross-rank stage sees them."""

    paths: list[Path]
    truth: LayoutTruth
    rows: list[Row]
    alignment: Alignment

    def injected_ns(self) -> dict[int, int]:
        """By step, without the first recorded one: its wait is also the recordings' start."""
        injected = self.truth["injected_ns"][str(SLOW)]
        return {step: injected[str(step)] for step in self.truth["recorded_steps"][1:]}

    def late_ns(self, rank: int, step: int) -> int:
        """How much later than `rank` the slow one had its last gradient, by the job's own clock."""
        arrivals = self.truth["arrival_ns"]
        return arrivals[str(SLOW)][str(step)] - arrivals[str(rank)][str(step)]

    def others(self) -> list[int]:
        return [row.rank for row in self.rows if row.rank != SLOW]

    def kinds(self, rank: int) -> Counter[tuple[str, str]]:
        """Kind and group of the communication of a rank."""
        instances = self.rows[rank].timeline.instances
        assert instances is not None
        pairs = zip(instances.leaf.tolist(), instances.group.tolist(), strict=True)
        return Counter((LEAVES[leaf].id, instances.groups[group].description) for leaf, group in pairs)


def _run(folder: Path, settings: Layout) -> Run:
    truth = run_layout(folder, settings)
    paths = trace_paths(folder, settings)
    rows = rows_of(paths)
    return Run(paths, truth, rows, align(rows))


@pytest.fixture(scope="module", params=["compute", "loader"])
def slowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four data-parallel ranks, of which one is slowed by about 400 ms a step."""
    for _ in range(TRIES):
        run = _run(tmp_path_factory.mktemp("slowed"), Layout(fault=request.param, slow_rank=SLOW, inject_ms=400.0))
        injected = run.injected_ns()
        off = [median(abs(run.late_ns(rank, step) - ns) / ns for step, ns in injected.items()) for rank in run.others()]
        if max(off) <= UNDISTURBED:
            return run
    pytest.skip(f"the machine is too busy: in {TRIES} jobs other load, too, decided how long the others waited")


def test_slowed_rank_is_named_with_its_cause(slowed: Run) -> None:
    (straggler,) = [one for one in verdicts(slowed.rows, slowed.alignment) if one.kind == "straggler"]
    expected = {"compute": ("more work", "kernels/matmul"), "loader": ("data_loader", "host/data_loader")}
    assert straggler.rank == SLOW
    assert (straggler.cause, straggler.leaf) == expected[slowed.truth["fault"]]
    assert set(slowed.injected_ns()) <= set(straggler.steps)


def test_others_wait_for_it_as_long_as_was_injected(slowed: Run) -> None:
    injected = slowed.injected_ns()
    waits = attribute_waits(slowed.rows, slowed.alignment)
    for rank in slowed.others():
        mine = waits[rank]
        found = []
        for at, step in enumerate(slowed.rows[rank].timeline.steps):
            if step.step in injected:
                pieces = (mine.step == at) & (mine.culprit == SLOW)
                found.append(int(mine.ns[pieces].sum()) / injected[step.step])
        assert len(found) == len(injected)
        assert median(found) == pytest.approx(1.0, abs=TOLERANCE)


def test_clean_run_names_nobody(tmp_path: Path) -> None:
    for attempt in range(TRIES):
        run = _run(tmp_path / str(attempt), Layout(batch=384))
        if not one_was_late(list(run.truth["arrival_ns"].values()), run.truth["recorded_steps"]):
            break
    else:
        pytest.skip(f"the machine is too busy: in {TRIES} jobs one rank had less of it than the others")
    assert run.alignment.refused == 0
    assert run.alignment.collectives.matches.unmatched == 0
    assert [one for one in verdicts(run.rows, run.alignment) if one.kind == "straggler"] == []


def test_fully_sharded_layers_gather_and_reduce_scatter(tmp_path: Path) -> None:
    settings = Layout(layout="fsdp", steps=4)
    run = _run(tmp_path, settings)
    # Each of the blocks is gathered before its forward and its backward pass, but the last one stays until the latter.
    for rank in range(settings.ranks):
        kinds = run.kinds(rank)
        assert set(kinds) == {("allgather", "default_pg"), ("reduce_scatter", "default_pg")}
        assert kinds["reduce_scatter", "default_pg"] == settings.layers * settings.steps
        assert kinds["allgather", "default_pg"] >= settings.layers * settings.steps
    _all_matched(run, settings.ranks)


def test_tensor_parallel_layers_all_reduce(tmp_path: Path) -> None:
    settings = Layout(layout="tp", steps=4)
    run = _run(tmp_path, settings)
    # One all-reduce a block in the forward pass, one in the backward pass; none for the input, which needs no gradient.
    for rank in range(settings.ranks):
        assert run.kinds(rank) == {("allreduce", "default_pg"): (2 * settings.layers - 1) * settings.steps}
        assert all(step.leaves_ns.get("recompute/recompute", 0) == 0 for step in run.rows[rank].timeline.steps)
    _all_matched(run, settings.ranks)


PIPELINES = [
    Layout(layout="gpipe", ranks=3, steps=3),
    Layout(layout="1f1b", ranks=4, steps=3),
    Layout(layout="interleaved", ranks=3, steps=3),
    Layout(layout="1f1b", ranks=4, replicas=2, steps=3),
]


@pytest.mark.parametrize("settings", PIPELINES, ids=lambda one: f"{one.layout}-{one.ranks}-{one.replicas}")
def test_a_pipeline_is_recognised_from_its_messages(tmp_path: Path, settings: Layout) -> None:
    run = _run(tmp_path, settings)
    _every_message_found_its_other_end(run, settings)
    pipeline = steptime.analyze(run.paths).pipeline
    assert pipeline is not None
    stages = range(settings.ranks // settings.replicas)
    expected = [[rank for rank in range(settings.ranks) if run.truth["stage_of"][str(rank)] == one] for one in stages]
    assert pipeline.stages == expected
    assert (pipeline.schedule, pipeline.micro_batches) == (settings.layout, settings.micro_batches)
    assert pipeline.chunks == (2 if settings.layout == "interleaved" else 1)


def _every_message_found_its_other_end(run: Run, settings: Layout) -> None:
    stages = settings.ranks // settings.replicas
    chunks = 2 if settings.layout == "interleaved" else 1
    matches = run.alignment.collectives.matches
    # Each micro-batch crosses every border between chunks once on its way forward and once back.
    messages = 2 * (stages * chunks - 1) * settings.micro_batches * settings.steps * settings.replicas
    assert np.count_nonzero(matches.pair) == messages
    assert (np.diff(matches.first)[matches.pair] == 2).all()
    assert matches.unmatched == 0
    group = "mesh_pp" if settings.replicas > 1 else "default_pg"
    for rank in range(settings.ranks):
        found = dict(run.kinds(rank).keys())
        assert found["p2p_transfer"] == group
    # A message can't be there before it was sent.
    first = matches.first[:-1][matches.pair]
    for one in first.tolist():
        ends = [(run.rows[int(matches.row[at])], int(matches.instance[at]), at) for at in (one, one + 1)]
        sends = [bool(_sends(row)[instance]) for row, instance, _ in ends]
        assert sorted(sends) == [False, True]
        sender, receiver = (ends[sends.index(True)][2], ends[sends.index(False)][2])
        assert matches.start_ns[sender] < matches.end_ns[receiver]


def test_slow_replica_of_a_stage_is_named(tmp_path: Path) -> None:
    settings = Layout(layout="1f1b", replicas=2, fault="compute", slow_rank=SLOW, steps=8, inject_ms=400.0)
    for attempt in range(TRIES):
        run = _run(tmp_path / str(attempt), settings)
        # Its replica does the same at the same time, but for what was injected.
        off = [abs(run.late_ns(SLOW + 1, step) - ns) / ns for step, ns in run.injected_ns().items()]
        if median(off) <= 2 * UNDISTURBED:
            break
    else:
        pytest.skip(f"the machine is too busy: in {TRIES} jobs other load, too, decided who was late")
    found = [one for one in steptime.analyze(run.paths).stragglers if one.kind == "straggler"]
    first = max(found, key=lambda one: one.lost_ns)
    assert (first.rank, first.cause, first.leaf) == (SLOW, "more work", "kernels/matmul")


def test_heavy_stage_is_imbalance_of_that_stage(tmp_path: Path) -> None:
    # On two cores ranks 0 and 2 share one, which lengthens the passes of both: the heavy stage must be one of them.
    settings = Layout(layout="1f1b", ranks=3, fault="stage", slow_rank=2, width=1024, steps=5)
    report = steptime.analyze(_run(tmp_path, settings).paths)
    pipeline = report.pipeline
    assert pipeline is not None
    lengths = [sum(one) for one in zip(pipeline.forward_ns, pipeline.backward_ns, strict=True)]
    assert lengths.index(max(lengths)) == 2
    steps = [step for rank in report.ranks for step in rank.steps]
    assert sum(step.leaves_ns.get("pipeline_bubble/stage_imbalance", 0) for step in steps) > 0
    assert [one for one in report.stragglers if one.kind == "straggler"] == []


def _sends(row: Row) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    instances = row.timeline.instances
    assert instances is not None
    return instances.sends


def _all_matched(run: Run, ranks: int) -> None:
    matches = run.alignment.collectives.matches
    assert (matches.unmatched, matches.refused) == (0, 0)
    assert (np.diff(matches.first) == ranks).all()
