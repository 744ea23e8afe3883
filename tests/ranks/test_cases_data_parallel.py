"""Cases C07, C10, C20, C21 and C24 as simulated data-parallel jobs: who or what is named, and what is not said.

The cases are people's bug reports, retold in shared/cases. The truth is the simulator's: which rank was struck, and how
much shorter the same job is without the fault.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import steptime
from steptime.model import Finding, Report, Straggler
from steptime.simulate import Scenario, Truth, simulate

_JOB = """
[model]
layers = 4
hidden = 2048
heads = 16
ffn = 8192
vocab = {vocab}
[batch]
micro_batch_size = {size}
seq_len = 2048
[recording]
steps = {steps}
[jitter]
outlier_share = 0
[training]
bucket_mb = {bucket}
[layout]
{layout}
"""


def _job(layout: str, fault: str = "", *, vocab: int = 32000, size: int = 4, steps: int = 5, bucket: int = 25) -> str:
    text = _JOB.format(layout=layout, vocab=vocab, size=size, steps=steps, bucket=bucket)
    return text + (f"[[fault]]\n{fault}\n" if fault else "")


def _analyzed(text: str, folder: Path) -> tuple[Truth, Report]:
    scenario = msgspec.toml.decode(text, type=Scenario)
    return simulate(scenario, folder, scenario.seed), steptime.analyze([folder])


def _findings(report: Report) -> dict[str, Finding]:
    return {finding.id: finding for finding in report.findings}


def _verdicts(stragglers: list[Straggler]) -> list[tuple[str, list[int], str, str | None]]:
    return [(one.kind, one.ranks, one.cause, one.leaf) for one in stragglers]


def _share(truth: Truth, leaf: str) -> float:
    """What the fault adds to a leaf, of the step time."""
    return truth.shrinks_ns[leaf] / truth.step_time_ns


@pytest.mark.parametrize("layout", ["dp = 8", "dp = 8\nfsdp = true", "dp = 4\ntp = 2"])
def test_c07_overheated_gpu(layout: str, tmp_path: Path) -> None:
    """All kernels of rank 3 take 1.4 times as long: 1 - 1 / 1.4 of its speed is lost."""
    fault = 'kind = "slow_gpu"\nranks = [3]\nsize = 0.2857'
    truth, report = _analyzed(_job(layout, fault), tmp_path)
    assert _verdicts(report.stragglers) == [("straggler", [3], "slower kernels", "kernels/matmul")]
    found = _findings(report)
    assert "clock is low (heat, power cap)" in found["slow-rank"].advice
    assert {item.rank for item in found["slow-rank"].evidence} == {None, 3}
    # What fixing it would give stands with the wait; it is the largest finding.
    assert report.findings[0].id == "wait-for-rank"
    assert report.findings[0].share == pytest.approx(_share(truth, "stragglers/wait_for_rank"), abs=0.02)
    assert "one-rank-host" not in found


def test_c07_more_work_is_no_slow_gpu(tmp_path: Path) -> None:
    fault = 'kind = "uneven_sequences"\nranks = [3]\nsize = 0.4'
    _, report = _analyzed(_job("dp = 8", fault), tmp_path)
    assert _verdicts(report.stragglers) == [("straggler", [3], "more work", "kernels/matmul")]
    assert "slow-rank" not in _findings(report)


@pytest.mark.parametrize("ranks", [8, 16])
def test_c10_fsdp_all_gather_not_prefetched(ranks: int, tmp_path: Path) -> None:
    truth, report = _analyzed(_job(f"dp = {ranks}\nfsdp = true", 'kind = "no_prefetch"'), tmp_path)
    assert report.stragglers == []
    found = _findings(report)["allgather-exposed"]
    assert report.findings[0] == found
    assert "forward_prefetch" in found.advice
    assert truth.top_leaf == "exposed_comm/allgather"
    # An upper bound: all that stands in the open between layers, of which prefetch hides most.
    steps = [step for rank in truth.ranks for step in rank.steps if not step.edge]
    exposed = sum(step.leaves_ns["exposed_comm/allgather"] for step in steps) / sum(step.dur_ns for step in steps)
    assert found.share == pytest.approx(exposed, abs=0.01)
    assert exposed > _share(truth, "exposed_comm/allgather")


@pytest.mark.parametrize("layout", ["dp = 8\nfsdp = true", "dp = 4\ntp = 2\nsequence_parallel = true"])
def test_c10_prefetch_is_not_advised_where_it_is_on_or_where_activations_are_gathered(
    layout: str, tmp_path: Path
) -> None:
    _, report = _analyzed(_job(layout), tmp_path)
    assert report.stragglers == []
    assert not [finding.id for finding in report.findings if "prefetch" in finding.advice]


@pytest.mark.parametrize("layout", ["dp = 4", "dp = 4\nfsdp = true"])
def test_c20_checkpoint_save_on_rank_0(layout: str, tmp_path: Path) -> None:
    """Rank 0 saves for 1.5 s at the end of steps 11 and 15; the others wait in the first collective after it."""
    fault = 'kind = "checkpoint"\nevery = 4\nsize = 1500'
    truth, report = _analyzed(_job(layout, fault, steps=9), tmp_path)
    assert truth.culprits == [0]
    (verdict,) = report.stragglers
    assert (verdict.rank, verdict.cause, verdict.leaf) == (0, "checkpoint", "host/checkpoint")
    # Twice in nine steps: too few to call it the usual.
    assert verdict.kind == "unclear"
    assert verdict.steps == [12, 16]
    assert verdict.lost_ns == pytest.approx(2 * 1_500_000_000, rel=0.05)
    found = _findings(report)
    assert {item.rank for item in found["one-rank-host"].evidence} == {None, 0}
    assert "steps.other_period 4, steps.checkpoints 2" in found["other-steps"].evidence[0].text


def test_c20_a_save_without_an_event_may_be_one(tmp_path: Path) -> None:
    fault = 'kind = "python"\nranks = [0]\nevery = 4\nsize = 1500'
    _, report = _analyzed(_job("dp = 4", fault, steps=9), tmp_path)
    assert _verdicts(report.stragglers) == [("unclear", [0], "python", "host/python")]
    found = _findings(report)
    assert "no event says what it does" in found["python-between-ops"].advice
    assert "checkpoint" in found["python-between-ops"].advice
    assert "checkpoint-pause" not in found


def test_c21_last_ddp_bucket_exposed(tmp_path: Path) -> None:
    """Buckets of 200 MB over two hosts: all but the last hide under the backward pass."""
    truth, report = _analyzed(_job("dp = 16", vocab=2000, size=2, bucket=200), tmp_path)
    assert report.stragglers == []
    found = _findings(report)["last-bucket"]
    known = [step.leaves_ns["exposed_comm/allreduce"] for rank in truth.ranks for step in rank.steps if not step.edge]
    assert found.cost_ns == pytest.approx(sum(known), rel=0.02)
    assert "lower bucket_cap_mb" in found.advice
    assert "expected and no bug" in found.advice
    # 4 layers of 4 h^2 (attention) and 3 x 4 h^2 (gated), the embedding and the output layer, in BF16, in 3 buckets.
    megabytes = (4 * 16 * 2048**2 + 2 * 2000 * 2048) * 2 / 3 / 1e6
    assert f"{megabytes:.1f} MB on average" in found.evidence[0].text
    assert "allreduce-exposed" not in _findings(report)


@pytest.mark.parametrize("size", [1, 4])
def test_c24_the_device_is_synchronised_for_each_bucket(size: int, tmp_path: Path) -> None:
    truth, report = _analyzed(_job("dp = 4", 'kind = "bucket_sync"', size=size), tmp_path)
    found = _findings(report)["sync-serializes"]
    buckets = len({one.start_ns[0] for one in truth.collectives if one.step == truth.collectives[-1].step})
    assert f"host.device_syncs_per_step {buckets}," in found.evidence[0].text
    assert "cudaDeviceSynchronize" in found.evidence[1].text
    assert "Stream.wait_event" in found.advice
    # The waits themselves leave the device idle a little; that no bucket hides costs more.
    for rank, true in zip(report.ranks, truth.ranks, strict=True):
        for step, known in zip(rank.steps, true.steps, strict=True):
            if not known.edge:
                for leaf in ("host/sync", "exposed_comm/allreduce"):
                    assert step.leaves_ns[leaf] == pytest.approx(known.leaves_ns[leaf], abs=0.02 * known.dur_ns)


def test_c24_one_synchronisation_a_step_is_not_one_for_each_bucket(tmp_path: Path) -> None:
    _, report = _analyzed(_job("dp = 4"), tmp_path)
    assert {"sync-serializes", "sync-device", "sync"} & set(_findings(report)) == set()
