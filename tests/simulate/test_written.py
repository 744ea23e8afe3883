"""The traces that the simulator writes: Kineto's form in each dialect, clocks, and the analyser's own reading."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.model import Report, StepTime
from steptime.simulate import Truth, simulate
from steptime.simulate.scenario import Batch, Clocks, Cluster, Fault, Layout, Model, Recording, Scenario, Training
from tests.simulate.jobs import ORIGIN_NS, events, job, ns, read

_MOE = Model(layers=2, hidden=1024, heads=8, ffn=1024, vocab=8192, experts=4)
_PIPED = {"layout": Layout(dp=2, pp=2), "batch": Batch(micro_batches=4)}


def _collectives(path: Path) -> list[dict[str, Any]]:
    return [event for event in events(path, "kernel") if "nccl" in event["name"]]


def test_current_form(tmp_path: Path) -> None:
    simulate(job(layout=Layout(dp=2, tp=2), recording=Recording(seq=True, flows=True)), tmp_path)
    trace = read(tmp_path / "rank3.json.gz")
    assert trace["baseTimeNanoseconds"] == 227 * 7889238 * 10**9  # kineto_schema, section 2
    assert trace["distributedInfo"]["rank"] == 3
    groups = {group["pg_desc"]: group["ranks"] for group in trace["distributedInfo"]["pg_config"]}
    assert groups == {"default_pg": [0, 1, 2, 3], "mesh_tp": [2, 3], "mesh_dp": [1, 3]}
    for event in trace["traceEvents"]:
        assert "@" not in str(event)
        assert "~" not in str(event)
        if event["ph"] == "X":
            assert len(event["ts"].partition(".")[2]) == 3
    kernels = _collectives(tmp_path / "rank3.json.gz")
    args = next(kernel["args"] for kernel in kernels if kernel["args"]["Process Group Description"] == "mesh_dp")
    assert (args["Collective name"], args["Process Group Ranks"], args["Group size"]) == ("allreduce", "[1, 3]", 2)
    assert "Rank" not in args  # kineto_schema, section 7: never on the kernel
    ops = [event for event in events(tmp_path / "rank3.json.gz", "cpu_op") if event["name"] == "record_param_comms"]
    assert {op["args"]["Rank"] for op in ops} == {3}
    seqs = [kernel["args"]["Seq"] for kernel in kernels if kernel["args"]["Process Group Description"] == "mesh_tp"]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    flows = Counter(event["ph"] for event in trace["traceEvents"] if event.get("cat") == "ac2g")
    assert flows["s"] == flows["f"] > 100


def test_launches_link_to_kernels_and_ops(tmp_path: Path) -> None:
    simulate(job(layout=Layout(dp=2)), tmp_path)
    path = tmp_path / "rank0.json.gz"
    calls = {call["args"]["correlation"]: call for call in events(path, "cuda_runtime")}
    ops = {op["args"]["External id"]: op for op in events(path, "cpu_op", "user_annotation")}
    linked = 0
    for kernel in events(path, "kernel"):
        call = calls.get(kernel["args"]["correlation"])
        if call is None:
            continue  # launched before the recording began
        op = ops[kernel["args"]["External id"]]
        assert op["start"] <= call["start"] <= call["end"] <= op["end"]
        assert op["tid"] == call["tid"]
        linked += 1
    assert linked > 100


def test_recomputed_ops_obey_the_rule(tmp_path: Path) -> None:
    # kineto_schema, section 5: a sequence number and forward thread 0 inside an autograd node's evaluation.
    simulate(job(layout=Layout(dp=2), training=Training(recompute="full")), tmp_path)
    ops = events(tmp_path / "rank0.json.gz", "cpu_op")
    nodes = [op for op in ops if op["name"].startswith("autograd::engine::evaluate_function")]
    again = [
        op
        for op in ops
        if op["args"].get("Fwd thread id") == 0
        and any(n["tid"] == op["tid"] and n["start"] <= op["start"] and op["end"] <= n["end"] for n in nodes)
    ]
    forward = [op for op in ops if op["args"].get("Fwd thread id") == 0 and op not in again]
    # Of the small model's forward, 2 layers of 7 kernels are run again; embedding and output (3 kernels) are not.
    assert len(again) == 3 * 2 * 7
    assert len(forward) == 3 * (2 * 7 + 3)


def test_older_form(tmp_path: Path) -> None:
    simulate(job(layout=Layout(dp=2), recording=Recording(dialect="integer")), tmp_path)
    trace = read(tmp_path / "rank0.json.gz")
    assert "baseTimeNanoseconds" not in trace
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all(isinstance(event["ts"], int) and isinstance(event["dur"], int) for event in spans)
    assert abs(spans[0]["ts"] * 1000 - ORIGIN_NS) < 10**10
    kernels = [event for event in spans if event["name"].startswith("ncclKernel_AllReduce")]
    assert kernels
    assert not any("Collective name" in event["args"] for event in spans)


def test_bare_messages(tmp_path: Path) -> None:
    simulate(job(**_PIPED, recording=Recording(p2p_metadata=False)), tmp_path / "bare")
    simulate(job(**_PIPED), tmp_path / "full")
    bare, full = (
        [k for k in _collectives(tmp_path / name / "rank2.json.gz") if "SendRecv" in k["name"]]
        for name in ("bare", "full")
    )
    assert len(bare) == len(full) > 0
    assert not any("Collective name" in kernel["args"] for kernel in bare)
    peers = {(k["args"]["Collective name"], k["args"].get("Src Rank", k["args"].get("Dst Rank"))) for k in full}
    assert peers == {("send", 0), ("recv", 0)}


def test_clocks_of_hosts(tmp_path: Path) -> None:
    clocks = Clocks(offsets_ms=[0.0, -50.0], drifts_ppm=[0.0, 40.0])
    truth = simulate(job(cluster=Cluster(gpus_per_host=2), clocks=clocks), tmp_path)
    assert [(clock.offset_ns, clock.drift_ppm) for clock in truth.clocks] == [(0, 0.0), (-50_000_000, 40.0)]
    last = truth.collectives[-1]
    for rank in range(4):
        shown = [(kernel["start"], kernel["end"]) for kernel in _collectives(tmp_path / f"rank{rank}.json.gz")]
        true = (last.start_ns[rank], last.end_ns[rank])
        offset = -50_000_000 if rank >= 2 else 0
        drift = 40e-6 if rank >= 2 else 0.0
        assert tuple(t + offset + round(t * drift) for t in true) in shown


def test_recordings_start_at_different_times(tmp_path: Path) -> None:
    simulate(job(recording=Recording(start_spread_us=5000.0)), tmp_path)
    starts = []
    for rank in range(4):
        trace = read(tmp_path / f"rank{rank}.json.gz")
        (mark,) = [event for event in trace["traceEvents"] if event.get("cat") == "Trace"]
        starts.append(ns(mark["ts"]))
    assert 500_000 < max(starts) - min(starts) < 7_000_000


def test_what_a_recording_loses(tmp_path: Path) -> None:
    for name in ("missing_events", "cut_head", "wrong_base"):
        simulate(job(fault=[Fault(kind=name, ranks=[1])]), tmp_path / name)
    simulate(job(), tmp_path / "clean")

    def kernels(name: str, rank: int) -> list[dict[str, Any]]:
        return events(tmp_path / name / f"rank{rank}.json.gz", "kernel")

    whole = len(kernels("clean", 1))
    assert 0.90 * whole < len(kernels("missing_events", 1)) < 0.99 * whole
    assert len(kernels("missing_events", 0)) == len(kernels("clean", 0))
    cut = kernels("cut_head", 1)
    assert cut[0]["start"] >= kernels("clean", 1)[0]["start"] + 4_900_000
    assert cut[-1]["start"] == kernels("clean", 1)[-1]["start"]
    bases = [read(tmp_path / "wrong_base" / f"rank{rank}.json.gz")["baseTimeNanoseconds"] for rank in (0, 1)]
    assert bases[1] - bases[0] == 7889238 * 10**9


def _merged(step: Any) -> Counter[str]:
    """Leaves by what one rank's file can tell: all communication is one, a pause without an event is Python's."""
    found: Counter[str] = Counter({"productive": step.productive_ns})
    for key, value in step.leaves_ns.items():
        if key.startswith(("exposed_comm", "stragglers", "pipeline_bubble")):
            found["communication"] += value
        elif key in ("kernels/comm_contention", "recompute/recompute") or key.startswith("kernels/"):
            found["kernels"] += value
        else:
            found["host/python" if key == "host/gc" else key] += value
    return found


READ: dict[str, Scenario] = {
    "dp": job(),
    "fsdp": job(layout=Layout(dp=4, fsdp=True)),
    "tp": job(layout=Layout(dp=2, tp=2, sequence_parallel=True)),
    "ring": job(layout=Layout(cp=4)),
    "experts": job(layout=Layout(dp=4, ep=2), model=_MOE),
    "pipeline": job(**_PIPED, training=Training(clip_grad=True, detail="full")),
    "recompute": job(training=Training(recompute="full")),
    "loader": job(fault=[Fault(kind="slow_loader", size=30.0)]),
    "gc": job(fault=[Fault(kind="gc_pause", size=30.0)]),
    "allocator": job(fault=[Fault(kind="allocator", size=4.0)]),
    "python": job(fault=[Fault(kind="python", size=20.0)]),
    "slow host": job(fault=[Fault(kind="slow_host", size=8.0)]),
    "syncs": job(fault=[Fault(kind="item_sync", size=20.0)]),
    "log": job(training=Training(log_every=1)),
    "fp32": job(fault=[Fault(kind="fp32")]),
    "optimizer": job(fault=[Fault(kind="unfused_optimizer")]),
    "sequences": job(fault=[Fault(kind="uneven_sequences", ranks=[1])]),
    "bad shapes": job(fault=[Fault(kind="bad_shapes")]),
}


@pytest.mark.parametrize("name", list(READ))
def test_the_analyser_reads_it_and_agrees(name: str, tmp_path: Path) -> None:
    truth = simulate(READ[name], tmp_path)
    report = steptime.analyze([str(tmp_path / f"rank{rank}.json.gz") for rank in range(truth.world_size)])
    assert [warning for source in report.inputs for warning in source.warnings] == []
    for source in report.inputs:
        assert source.quality is not None
        assert source.quality.launches_without_kernels == 0
        assert (source.quality.dropped, source.quality.clipped) == ({}, {})
    assert report.job.flops_coverage == 1.0
    _assert_agreement(truth, report)


def _assert_agreement(truth: Truth, report: Report) -> None:
    """Steps to the nanosecond, leaves within half a percent of the step (issue 4 asks for two)."""
    steps: dict[tuple[int, int], StepTime] = {(r.rank, s.step): s for r in report.ranks for s in r.steps}
    compared = 0
    for rank in truth.ranks:
        for step in rank.steps:
            if step.edge:
                continue
            found = steps[rank.rank, step.step]
            found.check()
            assert found.dur_ns == step.dur_ns
            ours, true = _merged(found), _merged(step)
            for key in ours.keys() | true.keys():
                assert abs(ours[key] - true[key]) < 0.005 * step.dur_ns, (rank.rank, step.step, key)
            compared += 1
    assert compared == 2 * truth.world_size


def test_a_host_ahead_of_its_device_is_held_in_a_launch_that_it_has(tmp_path: Path) -> None:
    # Rank 1's `.item()` copies are launches that rank 0 lacks: none of them may hold rank 0, whose trace shows nothing.
    faults = [Fault(kind="python", ranks=[1], size=30.0), Fault(kind="item_sync", ranks=[1], size=400.0)]
    simulate(job(layout=Layout(tp=2), fault=faults), tmp_path)
    spans = [(event["start"], event["end"]) for event in events(tmp_path / "rank0.json.gz", "cpu_op", "cuda_runtime")]
    ended, holes = spans[0][1], []
    for start, end in spans:
        holes.append(start - ended)
        ended = max(ended, end)
    assert max(holes) < 5_000_000
    assert max(end - start for start, end in spans) > 20_000_000
