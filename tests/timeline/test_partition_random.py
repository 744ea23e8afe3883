"""Random small traces, accounted for once by steptime and once nanosecond by nanosecond, straight from the design.

Ownership (DESIGN 1.2): compute before communication before copies; inside a class who started first, then the longer,
then the lower stream. Windows (DESIGN 1.1): from completion to completion on the stream with most compute time. What
follows of either here is written without a look at the analyser: it goes through the instants one by one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import steptime
from steptime.model import StepTime
from tests.builders import TraceBuilder

#: kind -> (priority, leaf). Copies between GPUs are communication (DESIGN 2.1); sets and copies on the device are
#: memory-bound work of the lowest priority.
KINDS = {
    "ampere_sgemm_128x64_tn": (0, "kernels/matmul"),
    "flash_fwd_kernel": (0, "kernels/attention"),
    "vectorized_elementwise_kernel": (0, "kernels/memory_bound"),
    "allreduce": (1, "exposed_comm/allreduce"),
    "_allgather_base": (1, "exposed_comm/allgather"),
    "PtoP": (1, "exposed_comm/p2p_transfer"),
    "HtoD": (2, "host/h2d_copy"),
    "DtoH": (2, "host/d2h_copy"),
    "DtoD": (2, "kernels/memory_bound"),
    "memset": (2, "kernels/memory_bound"),
}
BUSY = {leaf for _, leaf in KINDS.values()} | {"kernels/comm_contention"}


@dataclass(frozen=True)
class Act:
    """One device activity; times in ns after the origin. `launch` None: not recorded."""

    kind: str
    start: int
    end: int
    stream: int
    launch: int | None

    @property
    def rank(self) -> tuple[int, int, int, int]:
        return (KINDS[self.kind][0], self.start, self.start - self.end, self.stream)


@dataclass(frozen=True)
class Trace:
    acts: list[Act]
    edges: list[int]  # marks [edges[k], edges[k+1])
    ops: list[tuple[int, int]]
    optimizer: bool


@st.composite
def traces(draw: st.DrawFn, *, all_launched: bool) -> Trace:
    acts: list[Act] = []
    for stream in draw(st.lists(st.integers(7, 12), min_size=1, max_size=3, unique=True)):
        start = end = draw(st.integers(0, 200))
        for _ in range(draw(st.integers(1, 8))):
            # A stream starts its work in order; one may begin under the tail of the one before (dependent launch).
            start = draw(st.integers(max(start, end - 5), end + 60))
            end = max(end, start) + draw(st.integers(1, 80))
            recorded = all_launched or draw(st.integers(0, 4)) > 0
            launch = max(start - draw(st.integers(0, 90)), 0) if recorded else None
            acts.append(Act(draw(st.sampled_from(sorted(KINDS))), start, end, stream, launch))
    # Marks at launches, so that each step launches something.
    times = sorted({act.launch for act in acts if act.launch is not None} or {30})
    edges = sorted(draw(st.sets(st.sampled_from(times), min_size=1, max_size=4))) + [times[-1] + 1]
    spans = st.tuples(st.integers(0, 500), st.integers(1, 90)).map(lambda pair: (pair[0], pair[0] + pair[1]))
    return Trace(acts, edges, draw(st.lists(spans, max_size=4)), draw(st.booleans()))


def built(trace: Trace) -> TraceBuilder:
    builder = TraceBuilder(world_size=2)
    for number, (start, end) in enumerate(zip(trace.edges, trace.edges[1:], strict=False), 3):
        builder.step(number, start / 1000, (end - start) / 1000)
        if trace.optimizer:
            # On a thread of its own: what it launched would be optimizer work.
            builder.optimizer(start / 1000, 0.001, thread=3)
    for start, end in trace.ops:
        builder.op("aten::add", start / 1000, (end - start) / 1000, thread=2)
    for act in trace.acts:
        at, for_ = act.start / 1000, (act.end - act.start) / 1000
        launch_at = None if act.launch is None else act.launch / 1000
        if act.kind == "memset":
            builder.memset(at, for_, act.stream, launch_at=launch_at, launch_for=0.001)
        elif act.kind in ("PtoP", "HtoD", "DtoH", "DtoD"):
            builder.copy(act.kind, at, for_, act.stream, launch_at=launch_at, launch_for=0.001)
        elif KINDS[act.kind][0] == 1:
            builder.collective(act.kind, at, for_, act.stream, launch_at=None, metadata=False)
            # The call alone: the builder's host side of a collective is microseconds long.
            if launch_at is not None:
                _launch_last(builder, launch_at)
        else:
            builder.kernel(act.kind, at, for_, act.stream, launch_at=launch_at, launch_for=0.001)
    return builder


def _launch_last(builder: TraceBuilder, launch_at: float) -> None:
    last = builder._events[-1]
    builder.runtime("cudaLaunchKernelExC", launch_at, 0.001)
    call = builder._events[-1]
    call.args["correlation"] = call.correlation = last.correlation


def steps_of(trace: Trace, folder: Path) -> list[StepTime]:
    report = steptime.analyze(str(built(trace).write(folder / "rank0.json")))
    (rank,) = report.ranks
    assert len(rank.steps) == len(trace.edges) - 1
    return rank.steps


def owner(acts: list[Act], instant: int) -> Act | None:
    return min((act for act in acts if act.start <= instant < act.end), key=lambda act: act.rank, default=None)


def owned(acts: list[Act], start: int, end: int) -> Counter[str]:
    """Owned time by leaf in [start, end), and the idle time."""
    found: Counter[str] = Counter()
    for instant in range(start, end):
        act = owner(acts, instant)
        found[KINDS[act.kind][1] if act else "idle"] += 1
    return found


def windows(trace: Trace) -> list[int]:
    """Boundaries of the steps, after the origin."""
    compute: Counter[int] = Counter()
    for act in trace.acts:
        if KINDS[act.kind][0] == 0:
            compute[act.stream] += act.end - act.start
    busiest = compute.most_common(2)
    assume(busiest and (len(busiest) == 1 or busiest[0][1] > busiest[1][1]))
    main = busiest[0][0]
    launched = [(act, act.launch) for act in trace.acts if act.launch is not None]
    before = [act for act, launch in launched if launch < trace.edges[0]]
    # The design does not say what work is that was launched before the first step and starts in the midst of it.
    first = min((act.start for act, launch in launched if launch >= trace.edges[0]), default=0)
    assume(all(act.start < first for act in before))
    found = [max([trace.edges[0], *(act.end for act in before)])]
    for start, end in zip(trace.edges, trace.edges[1:], strict=False):
        inside = [act for act, launch in launched if start <= launch < end]
        ends = [act.end for act in inside if act.stream == main] or [act.end for act in inside]
        found.append(max(*ends, found[-1]))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@given(trace=traces(all_launched=False))
def test_every_instant_has_its_owner(trace: Trace, folder: Path) -> None:
    for step in steps_of(trace, folder):
        step.check()
        start = step.start_ns - TraceBuilder.origin_ns
        expected = owned(trace.acts, start, start + step.dur_ns)
        got = Counter(step.leaves_ns)
        idle = sum(ns for leaf, ns in got.items() if leaf not in BUSY)
        assert idle == expected.pop("idle", 0)
        # What contention takes, it takes from compute.
        slowed = got.pop("kernels/comm_contention", 0)
        for leaf in BUSY - {"kernels/comm_contention"}:
            if not (slowed and leaf.startswith("kernels/")):
                assert got[leaf] == expected[leaf], leaf
        kernels = [sum(ns for leaf, ns in one.items() if leaf.startswith("kernels/")) for one in (got, expected)]
        assert kernels[0] + slowed == kernels[1]


#: The first step has no work on the main stream; a copy launched before its mark ends after its own copy.
QUEUED_AHEAD = Trace(
    acts=[
        Act("DtoD", 139, 144, 7, 138),
        Act("DtoD", 140, 143, 8, 139),
        Act("ampere_sgemm_128x64_tn", 130, 136, 9, 120),
    ],
    edges=[139, 140],
    ops=[],
    optimizer=False,
)


@given(trace=traces(all_launched=True))
@example(trace=QUEUED_AHEAD)
def test_windows_run_from_completion_to_completion(trace: Trace, folder: Path) -> None:
    expected = windows(trace)
    steps = steps_of(trace, folder)
    starts = [step.start_ns - TraceBuilder.origin_ns for step in steps]
    assert [*starts, starts[-1] + steps[-1].dur_ns] == expected
    assert [step.edge for step in steps][0]


@given(trace=traces(all_launched=False))
def test_steps_tile(trace: Trace, folder: Path) -> None:
    steps = steps_of(trace, folder)
    for step, following in zip(steps, steps[1:], strict=False):
        assert step.start_ns + step.dur_ns == following.start_ns
