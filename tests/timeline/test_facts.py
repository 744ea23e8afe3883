"""Numbers that findings rest on. Built traces; every figure by hand from the meaning that `diagnose.metrics` documents.

Times are microseconds. Of three steps the first is an edge step, so two count; step k has the device window
[100, 1100) + 1000 (k - 1) unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import steptime
from steptime.diagnose.metrics import FACTS
from steptime.pipeline import ModelAsk, Options
from tests.builders import Micros, TraceBuilder
from tests.timeline.built import ADD, GEMM, launch, report_of

Fill = Callable[[TraceBuilder, Micros, Micros], None]


def facts_of(fill: Fill, folder: Path, steps: int = 3, options: Options | None = None) -> dict[str, float | None]:
    trace = TraceBuilder(world_size=2)
    for k in range(steps):
        trace.step(k + 1, at=1000 * k, for_=1000)
        fill(trace, 1000 * k, 1000 * k + 100)
    return report_of(trace, folder, options).facts


def queued(trace: TraceBuilder, host: Micros, start: Micros) -> None:
    """Two products, queued early, from start to start + 1000."""
    launch(trace, GEMM, host + 10, start, start + 400)
    launch(trace, ADD, host + 22, start + 400, start + 1000)


def test_kernels_a_step_and_their_mean(tmp_path: Path) -> None:
    facts = facts_of(queued, tmp_path)
    # 400 + 600 in two kernels.
    assert facts["kernels.per_step"] == 2
    assert facts["kernels.mean_ns"] == 500_000


def test_collectives_are_kernels_and_copies_are_none(tmp_path: Path) -> None:
    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        queued(trace, host, start)
        trace.copy("HtoD", at=start + 100, for_=50, stream=9, launch_at=host + 40)
        trace.collective("allreduce", at=start + 200, for_=200, launch_at=host + 60)

    facts = facts_of(fill, tmp_path)
    assert facts["kernels.per_step"] == 3
    assert facts["kernels.mean_ns"] == 400_000


def test_runs_of_kernels_shorter_than_their_launch(tmp_path: Path) -> None:
    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        trace.kernel(GEMM, at=start, for_=400, launch_at=host + 10)
        for at in range(3):
            # Calls [L, L + 8), kernels of 3 from L + 9, every 10.
            call = start + 410 + 10 * at
            trace.kernel(ADD, at=call + 9, for_=3, launch_at=call, launch_for=8)
        trace.kernel(GEMM, at=start + 450, for_=550, launch_at=start + 441, launch_for=8)

    facts = facts_of(fill, tmp_path)
    # The first ends 22 after the kernel before it, [400, 422); the others 10 after each other: 42 a step.
    assert facts["launch.runs_ns"] == 2 * 42_000


@pytest.mark.parametrize(
    ("wait", "took", "runs"),
    [
        (1, 7, True),
        (1, 8, False),  # as long as its call
        (20, 7, True),
        (21, 7, False),  # waited in the queue
    ],
)
def test_a_run_is_of_short_kernels_that_start_at_once(wait: int, took: int, runs: bool, tmp_path: Path) -> None:
    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        trace.kernel(GEMM, at=start, for_=400, launch_at=host + 10)
        trace.kernel(ADD, at=start + 500 + wait, for_=took, launch_at=start + 492, launch_for=8)
        trace.kernel(GEMM, at=start + 600, for_=400, launch_at=start + 530)

    # From the end of the kernel before it, 400, to its own.
    expected = 2000 * (100 + wait + took) if runs else 0
    assert facts_of(fill, tmp_path)["launch.runs_ns"] == expected


def test_the_last_allreduce_of_a_step(tmp_path: Path) -> None:
    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        launch(trace, GEMM, host + 10, start, start + 600)
        trace.collective("allreduce", at=start + 100, for_=520, launch_at=host + 30)
        trace.collective("allreduce", at=start + 640, for_=250, launch_at=host + 60)
        trace.collective("broadcast", at=start + 920, for_=20, launch_at=host + 90)
        launch(trace, ADD, host + 120, start + 800, start + 900)
        launch(trace, ADD, host + 140, start + 950, start + 1000)

    # The second runs [640, 890); compute hides [800, 890): 160 of it are exposed. The broadcast is no all-reduce.
    assert facts_of(fill, tmp_path)["collectives.last_exposed_ns"] == 2 * 160_000


def test_a_last_allreduce_that_is_hidden_costs_nothing(tmp_path: Path) -> None:
    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        trace.collective("allreduce", at=start, for_=100, launch_at=host + 30)
        launch(trace, GEMM, host + 50, start + 100, start + 1000)
        trace.collective("allreduce", at=start + 200, for_=700, launch_at=host + 70)

    assert facts_of(fill, tmp_path)["collectives.last_exposed_ns"] == 0


def test_the_first_collective_of_each_group(tmp_path: Path) -> None:
    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        for at in range(8):
            launch(trace, GEMM, host + 10 + 12 * at, start + 50 * at, start + 50 * at + 50)
        group = {"group": "0", "description": "dp"} if host == 0 else {"group": "1", "description": "tp"}
        trace.collective("allreduce", at=start + 400, for_=90, launch_at=host + 130, **group)  # type: ignore[arg-type]
        trace.collective("allreduce", at=start + 500, for_=60, launch_at=host + 160, **group)  # type: ignore[arg-type]
        launch(trace, ADD, host + 190, start + 560, start + 1000)

    # dp's first is in the edge step; tp's first in step 2, 90 exposed; its other ones are no first.
    assert facts_of(fill, tmp_path)["collectives.first_exposed_ns"] == 90_000


@pytest.mark.parametrize(
    ("ahead", "scatters", "layers"),
    [
        (0, False, 5),  # each gather stands between two layers: all but the first could have been started earlier
        (30, False, 0),  # started under the layer before, and still 20 too long: no matter of prefetch
        (0, True, 0),  # gathers and scatters by turns: activations, which nothing can fetch ahead
    ],
)
def test_parameters_that_are_gathered_only_when_needed(ahead: int, scatters: bool, layers: int, tmp_path: Path) -> None:
    """Case C10 in small: six layers, each a gather of 50 us and a GEMM of 100 us."""

    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        for at in range(6):
            begin, called = start + 150 * at, host + 14 * at
            early = ahead if at else 0
            trace.collective("_allgather_base", at=begin - early, for_=50, launch_at=called + 8, launch_for=2)
            launch(trace, GEMM, called + 13, begin + 50 - early, begin + (120 if scatters else 150))
            if scatters:
                trace.collective("_reduce_scatter_base", at=begin + 120, for_=30, stream=24)

    assert facts_of(fill, tmp_path)["collectives.unprefetched_ns"] == 2 * layers * 50_000


def without_collectives(trace: TraceBuilder, host: Micros, start: Micros) -> None:
    queued(trace, host, start)


def test_without_collectives_nothing_is_said_of_them(tmp_path: Path) -> None:
    facts = facts_of(without_collectives, tmp_path)
    for name in ("collectives.last_exposed_ns", "collectives.first_exposed_ns", "streams.alternating_ns"):
        assert name not in facts


def alternating(
    *, rounds: int = 4, comm_stream: int = 20, overlap: int = 0, late: int = 0, dependent: bool = False
) -> Fill:
    """`rounds` times compute [0, 100), an all-reduce [100, 180), idle up to 200; at the end compute up to 1000.

    All calls lie at the head of the step, those of the all-reduces after those of compute. `overlap`: the all-reduces
    start that much before the compute ends. `late`: each is launched that long before it starts. `dependent`: the
    compute after an all-reduce is launched after it.
    """

    def fill(trace: TraceBuilder, host: Micros, start: Micros) -> None:
        for at in range(rounds + 1):
            begin = start + 200 * at
            end = start + 1000 if at == rounds else begin + 100
            launch(trace, GEMM, host + (80 if dependent and at else 4) + 3 * at, begin, end)
        for at in range(rounds):
            comm_at = start + 200 * at + 100 - overlap
            call = comm_at - late if late else host + 60 + 4 * at
            trace.collective("allreduce", at=comm_at, for_=80, stream=comm_stream, launch_at=call, launch_for=1)

    return fill


def test_streams_that_alternate_and_never_overlap(tmp_path: Path) -> None:
    # Twelve all-reduces, none beside compute; each was in the queue long before it ran, and so was the compute after
    # it: 4 x 80 in each counted step, although another stream was free.
    assert facts_of(alternating(), tmp_path)["streams.alternating_ns"] == 2 * 320_000


@pytest.mark.parametrize(
    "fill",
    [
        alternating(overlap=10),  # they do overlap
        alternating(comm_stream=7),  # one stream: in turn by order
        alternating(late=15),  # launched when it was to start
        alternating(dependent=True),  # the compute after it may need its result
        alternating(rounds=2),  # six in all are too few to say
    ],
)
def test_streams_that_have_another_reason_to_take_turns(fill: Fill, tmp_path: Path) -> None:
    assert facts_of(fill, tmp_path)["streams.alternating_ns"] == 0


def normed(
    folder: Path, *, norms: int = 1, host_step: int = 1000, inside: str | None = None
) -> dict[str, float | None]:
    """Three steps with an update, of two kernels and as many more of ``_foreach_norm``; the host takes `host_step`."""
    trace = TraceBuilder()
    for k in range(3):
        host, start = host_step * k, 1000 * k + 250
        trace.step(k + 1, at=host, for_=host_step)
        launch(trace, GEMM, host + 10, start, start + 400)
        if inside is not None:
            trace.op(inside, at=host + 6, for_=20)
        for at in range(norms):
            launch(trace, ADD, host + 40 + 20 * at, start + 400 + at, start + 401 + at, op="aten::_foreach_norm")
        trace.optimizer(at=host + 140, for_=60)
        launch(trace, ADD, host + 150, start + 500, start + 1000)
    return report_of(trace, folder).facts


@pytest.mark.parametrize("norms", [0, 1, 3])
def test_gradient_norms_a_step(norms: int, tmp_path: Path) -> None:
    assert normed(tmp_path, norms=norms)["norms.per_step"] == norms


def test_gradient_norms_of_a_host_that_runs_ahead(tmp_path: Path) -> None:
    # The host is done with all three steps, 300 us each, before the device has finished the first. Every step computes
    # one norm, whenever the device comes to it.
    assert normed(tmp_path, host_step=300)["norms.per_step"] == 1


def test_in_a_compiled_graph_a_norm_may_hide(tmp_path: Path) -> None:
    assert "norms.per_step" not in normed(tmp_path, norms=0, inside="Torch-Compiled Region: CompiledFxGraph f1")


def test_without_an_update_nothing_is_said_of_norms(tmp_path: Path) -> None:
    assert "norms.per_step" not in facts_of(queued, tmp_path)


def memory_event(at: Micros, reserved: int, allocated: int, kind: int) -> dict[str, object]:
    args = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": 8, "Device Id": 0, "Device Type": kind}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 4000, "tid": 4000}
    return {**event, "ts": at, "args": args}


def test_the_allocator_s_peaks(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for k in range(3):
        trace.step(k + 1, at=1000 * k, for_=1000)
        queued(trace, 1000 * k, 1000 * k + 100)
    base = (trace.origin_ns - trace.base_ns) // 1000
    for at, (reserved, allocated) in enumerate([(4_000, 1_000), (9_000, 2_500), (8_000, 3_000)]):
        trace.raw(memory_event(base + 100 * at, reserved, allocated, kind=1))
    # Of the host's memory (device type 0) the allocator of the GPU holds nothing.
    trace.raw(memory_event(base + 400, 70_000, 60_000, kind=0))
    facts = report_of(trace, tmp_path).facts
    assert (facts["allocator.reserved_bytes"], facts["allocator.allocated_bytes"]) == (9_000, 3_000)


def test_without_memory_events_nothing_is_said_of_the_allocator(tmp_path: Path) -> None:
    assert not [name for name in facts_of(queued, tmp_path) if name.startswith("allocator.")]


def test_tokens_are_the_users(tmp_path: Path) -> None:
    options = Options(model=ModelAsk(params="8e9", tokens_per_step=4096))
    assert facts_of(queued, tmp_path, options=options)["job.tokens_per_step"] == 4096
    assert "job.tokens_per_step" not in facts_of(queued, tmp_path)


def test_totals_add_up_over_ranks_and_means_are_of_all(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank=rank, world_size=2)
        for k in range(3):
            host, start = 1000 * k, 1000 * k + 100
            trace.step(k + 1, at=host, for_=1000)
            queued(trace, host, start)
            if rank:
                launch(trace, ADD, host + 40, start + 100, start + 300, stream=8)
        trace.write(tmp_path / f"rank{rank}.json")
    facts = steptime.analyze(str(tmp_path)).facts
    # Two and three kernels; 1000 and 1200 long.
    assert facts["kernels.per_step"] == 2.5
    assert facts["kernels.mean_ns"] == 440_000


def test_every_fact_is_documented(tmp_path: Path) -> None:
    known = {fact.name for fact in FACTS}
    assert set(facts_of(alternating(), tmp_path)) <= known
