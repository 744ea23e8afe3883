"""The demo: its files are what its scenario gives, and its report is the walkthrough of a job at 28 % MFU.

"Your 8,000-GPU run is at 28% MFU. Walk me through how you would find the missing time": what the scenario injects is
what the report must name, in the walkthrough's order.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.simulate import Truth, load_scenario, simulate

#: Where the mathematics library of another platform rounds a length differently, times move by single nanoseconds.
ROUNDING_US = 1.0


@pytest.fixture(scope="module")
def demo(repo: Path) -> Path:
    return repo / "traces" / "demo_28_mfu"


@pytest.fixture(scope="module")
def again(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """The scenario, simulated anew."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, simulate(load_scenario(repo / "traces" / "scenarios" / "demo.toml"), folder)


@pytest.fixture(scope="module")
def report(demo: Path) -> steptime.Report:
    return steptime.analyze([demo])


def _trace(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


def _untimed(trace: dict[str, Any]) -> dict[str, Any]:
    events = [
        {key: value for key, value in event.items() if key not in ("ts", "dur")} for event in trace["traceEvents"]
    ]
    return trace | {"traceEvents": events}


def test_the_files_are_what_the_scenario_gives(demo: Path, again: tuple[Path, Truth]) -> None:
    """Compared decompressed, since libraries compress differently."""
    folder, _ = again
    names = sorted(path.name for path in demo.iterdir())
    assert names == sorted(path.name for path in folder.glob("rank*.json.gz"))
    assert len(names) == 16
    for name in ("rank2.json.gz", "rank11.json.gz"):
        kept, made = _trace(demo / name), _trace(folder / name)
        assert _untimed(kept) == _untimed(made)
        for key in ("ts", "dur"):
            before = [event.get(key, 0.0) for event in kept["traceEvents"]]
            assert [event.get(key, 0.0) for event in made["traceEvents"]] == pytest.approx(
                before, rel=0, abs=ROUNDING_US
            )


def test_mfu_is_what_arithmetic_gives(report: steptime.Report, again: tuple[Path, Truth]) -> None:
    """Six FLOPs a parameter and token, and attention's causal half, over the peak of 16 H100 (989.4 TFLOP/s, dense)."""
    hidden, layers, head, ffn, sequence = 4096, 8, 128, 14336, 2048
    layer = hidden * (hidden + 2 * 8 * head) + hidden * hidden + 3 * hidden * ffn
    parameters = layers * layer + hidden * 32000
    tokens = 8 * 8 * 1 * sequence
    attention = 12 * layers * hidden * sequence / 2
    flops = (6 * parameters + attention) * tokens
    seconds = again[1].step_time_ns / 1e9
    assert report.job.mfu == pytest.approx(flops / (seconds * 16 * 989.4e12), abs=0.001)
    assert report.job.mfu == pytest.approx(0.282, abs=0.0005)


def test_the_parts_are_the_simulators(report: steptime.Report, again: tuple[Path, Truth]) -> None:
    """Bubble and waits for late ranks together: the truth books a wait by whom it is for, not by who caused that."""
    steps = [step for rank in again[1].ranks for step in rank.steps if step.step in report.job.steps]
    total = sum(step.dur_ns for step in steps)
    parts = {part.id: part.share or 0.0 for part in report.job.slices}
    assert list(parts)[:6] == ["kernels", "exposed_comm", "pipeline_bubble", "recompute", "stragglers", "host"]
    for together in (("kernels",), ("exposed_comm",), ("recompute",), ("host",), ("pipeline_bubble", "stragglers")):
        true = sum(ns for step in steps for key, ns in step.leaves_ns.items() if key.split("/")[0] in together)
        assert sum(parts[one] for one in together) == pytest.approx(true / total, abs=0.001), together


def test_every_fault_is_named(report: steptime.Report, again: tuple[Path, Truth]) -> None:
    assert {fault.kind for fault in again[1].faults} == {
        "no_prefetch",
        "recompute",
        "slow_gpu",
        "few_micro_batches",
        "slow_loader",
    }
    found = [finding.id for finding in report.findings]
    assert {"recompute-on", "pipeline-bubble", "allgather-exposed", "wait-for-rank"} == set(found[:4])
    assert {(one.rank, one.cause) for one in report.stragglers} == {(2, "data_loader"), (11, "slower kernels")}
    assert {one.rank for one in report.stragglers} == set(again[1].culprits)


def test_the_findings_say_what_to_do_with_numbers(report: steptime.Report) -> None:
    said = {finding.id: " ".join(one.text for one in finding.evidence) for finding in report.findings}
    # Two stages and four micro-batches: 1/5; nine would make it 1/10.
    assert "4 micro-batches over 2 stages, so (2-1)/(4+2-1) = 20.0 %" in said["pipeline-bubble"]
    assert "9 would make it 10.0 %" in said["pipeline-bubble"]
    assert re.search(r"rank 2 costs .* in 2 steps: data_loader \(host/data_loader\)", said["wait-for-rank"])
    assert re.search(r"rank 11 costs .* in 4 steps: slower kernels \(kernels/matmul\)", said["wait-for-rank"])
    # Stage 1 has the loss head besides as many layers.
    assert "stage 1 (ranks 8-15)" in said["stage-imbalance"]


def test_the_files_are_small_enough_for_a_repository(demo: Path) -> None:
    assert sum(path.stat().st_size for path in demo.iterdir()) < 5_000_000
