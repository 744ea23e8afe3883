"""What must hold of every simulated job: time adds up, collectives wait for the last, the fault is the only change."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from steptime.simulate import Truth, simulate
from steptime.simulate.scenario import Batch, Cluster, Fault, Jitter, Layout, Model, Recording, Scenario, Training
from steptime.taxonomy import LEAF_CODE
from tests.simulate.jobs import DEVICE, STILL, events, ideal_pipeline, job

_MOE = Model(layers=2, hidden=1024, heads=8, ffn=1024, vocab=8192, experts=4)
LAYOUTS: dict[str, Scenario] = {
    "dp": job(),
    "fsdp": job(layout=Layout(dp=4, fsdp=True)),
    "tp": job(layout=Layout(dp=2, tp=2)),
    "sequence": job(layout=Layout(dp=2, tp=2, sequence_parallel=True, fsdp=True)),
    "ring": job(layout=Layout(cp=4)),
    "experts": job(layout=Layout(dp=4, ep=2), model=_MOE),
    "gpipe": job(layout=Layout(pp=2, dp=2, schedule="gpipe"), batch=Batch(micro_batches=4)),
    "1f1b": job(layout=Layout(pp=2, dp=2, fsdp=True), batch=Batch(micro_batches=4)),
    "interleaved": job(
        layout=Layout(pp=2, schedule="interleaved", chunks=2), model=Model(layers=4), batch=Batch(micro_batches=4)
    ),
    "zero-bubble": job(layout=Layout(pp=2, schedule="zero-bubble"), batch=Batch(micro_batches=4)),
    "two hosts": job(layout=Layout(dp=4), cluster=Cluster(gpus_per_host=2)),
    "everything": job(
        layout=Layout(dp=2, tp=2, pp=2),
        batch=Batch(micro_batches=4),
        training=Training(clip_grad=True, broadcast_buffers=True, recompute="full", log_every=1, detail="full"),
    ),
    "graph": job(layout=Layout(dp=2), training=Training(cuda_graph=True)),
}


@pytest.fixture(scope="module", params=list(LAYOUTS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Truth, Path]:
    out = tmp_path_factory.mktemp(request.param.replace(" ", "_"))
    return simulate(LAYOUTS[request.param], out), out


def test_productive_time_and_leaves_add_up(made: tuple[Truth, Path]) -> None:
    for rank in made[0].ranks:
        ends = [step.start_ns + step.dur_ns for step in rank.steps]
        assert [step.start_ns for step in rank.steps[1:]] == ends[:-1]
        for step in rank.steps:
            assert step.productive_ns + sum(step.leaves_ns.values()) == step.dur_ns
            assert set(step.leaves_ns) <= set(LEAF_CODE)
            assert min(step.leaves_ns.values()) > 0
            waits = sum(ns for key, ns in step.leaves_ns.items() if key.startswith(("stragglers", "pipeline")))
            assert sum(step.waits_ns.values()) == waits


def test_no_collective_ends_before_its_last_member_came(made: tuple[Truth, Path]) -> None:
    barriers = [one for one in made[0].collectives if one.kind not in ("broadcast", "ring")]
    assert barriers or made[0].world_size == 1
    for one in barriers:
        assert min(one.end_ns) >= max(one.start_ns)
        assert one.start_ns[one.ranks.index(one.last_rank)] == max(one.start_ns)


def test_streams_run_in_launch_order_one_kernel_at_a_time(made: tuple[Truth, Path]) -> None:
    for path in made[1].glob("rank*.json.gz"):
        launches = {call["args"]["correlation"]: call for call in events(path, "cuda_runtime")}
        free: dict[int, int] = {}
        order: dict[int, int] = {}
        for event in events(path, *DEVICE):
            stream, correlation = event["tid"], event["args"]["correlation"]
            assert event["start"] >= free.get(stream, -(2**62))
            assert correlation >= order.get(stream, 0)
            free[stream], order[stream] = event["end"], correlation
            if correlation in launches:
                assert event["start"] > launches[correlation]["start"]


def test_the_trace_shows_the_true_times(made: tuple[Truth, Path]) -> None:
    # The clocks of these jobs are right, so communication kernels stand at the true times.
    truth, out = made
    seen = {
        rank.rank: {(event["start"], event["end"]) for event in events(out / f"rank{rank.rank}.json.gz", "kernel")}
        for rank in truth.ranks
    }
    steps = [step for step in truth.ranks[0].steps if not step.edge]
    checked = 0
    for one in truth.collectives:
        for rank, start, end in zip(one.ranks, one.start_ns, one.end_ns, strict=True):
            if start > steps[0].start_ns:
                assert (start, end) in seen[rank]
                checked += 1
    assert checked > 10


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    scenario = job(layout=Layout(dp=2, tp=2))
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        simulate(scenario, tmp_path / name, seed)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["rank0.json.gz", "rank1.json.gz", "rank2.json.gz", "rank3.json.gz", "truth.json"]
    for name in names:
        content = [(tmp_path / folder / name).read_bytes() for folder in "abc"]
        assert content[0] == content[1] != content[2]


def test_without_the_fault_nothing_else_changes(tmp_path: Path) -> None:
    # A GPU that loses a fifth of its speed takes 1 / 0.8 as long for each kernel; every other kernel is the same.
    simulate(job(fault=[Fault(kind="slow_gpu", ranks=[2], size=0.2)]), tmp_path / "slow")
    simulate(job(), tmp_path / "clean")
    for rank in range(4):
        slow, clean = (
            {
                (event["name"], event["args"]["correlation"]): event["end"] - event["start"]
                for event in events(tmp_path / folder / f"rank{rank}.json.gz", "kernel")
                if "nccl" not in event["name"]
            }
            for folder in ("slow", "clean")
        )
        shared = slow.keys() & clean.keys()
        assert len(shared) > 100
        factor = 1.25 if rank == 2 else 1.0
        assert all(abs(slow[key] - factor * clean[key]) <= 1 for key in shared)


def test_saved_time_is_the_difference_of_the_two_jobs(tmp_path: Path) -> None:
    fault = Fault(kind="slow_loader", size=30.0)
    truth = simulate(job(fault=[fault]), tmp_path / "slow")
    clean = simulate(job(), tmp_path / "clean")
    assert truth.saved_ns == truth.step_time_ns - truth.step_time_without_ns > 0
    assert truth.step_time_without_ns == clean.step_time_ns
    durations = [step.dur_ns for rank in clean.ranks for step in rank.steps if not step.edge]
    assert abs(clean.step_time_ns - statistics.fmean(durations)) < 1
    assert truth.top_leaf == "host/data_loader"
    assert (clean.saved_ns, clean.top_leaf, clean.culprits) == (0, None, [])


@pytest.mark.parametrize("layout", [Layout(dp=4), Layout(dp=2, tp=2), Layout(dp=4, fsdp=True)])
def test_everybody_waits_for_the_slow_gpu(layout: Layout, tmp_path: Path) -> None:
    fault = Fault(kind="slow_gpu", ranks=[1], size=0.3)
    truth = simulate(job(layout=layout, fault=[fault], jitter=STILL), tmp_path)
    assert truth.culprits == [1]
    assert truth.struck == {10: [1], 11: [1], 12: [1]}
    waited = {
        rank.rank: sum(s.leaves_ns.get("stragglers/wait_for_rank", 0) for s in rank.steps) for rank in truth.ranks
    }
    assert max(waited, key=lambda rank: -waited[rank]) == 1
    assert all(waited[rank] > 20 * waited[1] for rank in waited if rank != 1)


@pytest.mark.parametrize(("gpus_per_host", "most_us"), [(4, 20), (2, 200)])
def test_ends_of_one_collective_differ(gpus_per_host: int, most_us: int, tmp_path: Path) -> None:
    cluster = Cluster(gpus_per_host=gpus_per_host)
    truth = simulate(job(cluster=cluster, training=Training(bucket_mb=0.2)), tmp_path)
    spreads = [max(one.end_ns) - min(one.end_ns) for one in truth.collectives]
    assert len(spreads) > 200
    assert max(spreads) <= most_us * 1000
    # A heavy tail: the largest is several times the median.
    assert max(spreads) > 3 * statistics.median(spreads) > 0


def test_the_root_of_a_broadcast_does_not_wait(tmp_path: Path) -> None:
    fault = Fault(kind="slow_gpu", ranks=[3], size=0.4)
    training = Training(broadcast_buffers=True)
    truth = simulate(job(fault=[fault], training=training, layout=Layout(dp=4, pp=1)), tmp_path)
    broadcasts = [one for one in truth.collectives if one.kind == "broadcast"]
    assert broadcasts
    assert all(one.end_ns[0] - one.start_ns[0] < 100_000 for one in broadcasts)
    assert all(end >= one.start_ns[0] for one in broadcasts for end in one.end_ns)


def _bubble_share(truth: Truth) -> float:
    """Bubble over the pipelined phase (the step without its optimizer), all ranks together."""
    steps = [step for rank in truth.ranks for step in rank.steps if not step.edge]
    bubble = sum(step.leaves_ns.get("pipeline_bubble/unsplit", 0) for step in steps)
    return bubble / sum(step.dur_ns - step.leaves_ns["kernels/optimizer"] for step in steps)


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches", "chunks"),
    [("gpipe", 4, 8, 1), ("1f1b", 4, 8, 1), ("1f1b", 4, 4, 1), ("1f1b", 2, 6, 1), ("interleaved", 4, 8, 2)],
)
def test_the_bubble_is_the_closed_form(
    schedule: str, stages: int, micro_batches: int, chunks: int, tmp_path: Path
) -> None:
    # (p - 1) / (v m + p - 1): arXiv:2104.04473, section 2.2, as a share of the pipelined phase.
    truth = simulate(ideal_pipeline(schedule, stages, micro_batches, chunks), tmp_path)
    closed = (stages - 1) / (chunks * micro_batches + stages - 1)
    assert _bubble_share(truth) == pytest.approx(closed, rel=0.01)


def test_zero_bubble_has_less_of_it(tmp_path: Path) -> None:
    share = _bubble_share(simulate(ideal_pipeline("zero-bubble", 4, 8), tmp_path))
    # ZB-H1 leaves about a third to a half of 1F1B's (arXiv:2401.10241, table 1), here 3/11.
    assert 3 / 11 / 3 < share < 3 / 11 * 0.7


def test_prefetch_hides_what_no_prefetch_shows(tmp_path: Path) -> None:
    scenario = job(
        layout=Layout(dp=4, fsdp=True),
        model=Model(layers=4, hidden=2048, heads=16, ffn=8192, vocab=8192),
        batch=Batch(micro_batch_size=4, seq_len=2048),
        fault=[Fault(kind="no_prefetch")],
        jitter=STILL,
    )
    truth = simulate(scenario, tmp_path)
    assert truth.top_leaf == "exposed_comm/allgather"
    # What comes into the open is what the step takes longer. Where a scatter that began before runs beside a gather,
    # the time is the scatter's.
    exposed = sum(ns for key, ns in truth.shrinks_ns.items() if key.startswith("exposed_comm"))
    assert exposed == pytest.approx(truth.saved_ns, rel=0.02)


def test_a_thousand_ranks(tmp_path: Path) -> None:
    scenario = job(
        layout=Layout(dp=1024, fsdp=True),
        batch=Batch(micro_batch_size=8, seq_len=4096),
        fault=[Fault(kind="slow_gpu", ranks=[77], size=0.3)],
        recording=Recording(steps=3),
        jitter=Jitter(outlier_share=0.0),
    )
    truth = simulate(scenario, tmp_path)
    assert (truth.world_size, len(truth.ranks), truth.culprits) == (1024, 1024, [77])
    assert len(list(tmp_path.glob("rank*.json.gz"))) == 1024
    step = truth.ranks[500].steps[1]
    assert max(step.waits_ns, key=lambda rank: step.waits_ns[rank]) == 77
