"""A data-parallel culprit behind a pipeline, and a ring of messages that is no pipeline (issue 4, acceptance 7).

In a pipeline a throttled rank keeps its whole pipeline, stage by stage, and each of those ranks comes late to the
all-reduce of its own stage. The truth is the rank that the scenario strikes; the others only pass its lateness on.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import steptime
from steptime.model import Report
from steptime.simulate import Scenario, Truth, simulate

_JOB = """
[model]
layers = 4
hidden = 2048
heads = 16
ffn = 8192
vocab = 2000
[batch]
micro_batches = 8
seq_len = 2048
[recording]
steps = 8
p2p_metadata = {metadata}
[jitter]
outlier_share = 0
[layout]
{layout}
"""
_RING = Path(__file__).parents[2] / "traces" / "scenarios" / "cp_ring.toml"


def _analyzed(text: str, folder: Path) -> tuple[Truth, Report]:
    scenario = msgspec.toml.decode(text, type=Scenario)
    return simulate(scenario, folder, scenario.seed), steptime.analyze([folder])


def _fault(kind: str, rank: int, size: float) -> str:
    return f'[[fault]]\nkind = "{kind}"\nranks = [{rank}]\nsize = {size}\n'


@pytest.mark.parametrize(
    ("layout", "metadata", "fault", "culprit", "cause"),
    [
        # Two hosts; ranks 1, 5, 9 and 13 are one pipeline, 8 to 11 one stage.
        ("pp = 4\ndp = 4", True, "slow_gpu", 9, "slower kernels"),
        ("pp = 4\ndp = 2", True, "slow_loader", 1, "data_loader"),
        ('pp = 2\ndp = 4\nchunks = 2\nschedule = "interleaved"', True, "slow_gpu", 3, "slower kernels"),
        # The messages can't be followed: who was kept by one is not named, and the throttled rank still is.
        ("pp = 2\ndp = 4", False, "slow_gpu", 6, "slower kernels"),
    ],
)
def test_the_culprit_is_named_and_its_pipeline_is_not(
    layout: str, metadata: bool, fault: str, culprit: int, cause: str, tmp_path: Path
) -> None:
    size = {"slow_gpu": 0.25, "slow_loader": 25}[fault]
    text = _JOB.format(layout=layout, metadata=str(metadata).lower())
    truth, report = _analyzed(text + _fault(fault, culprit, size), tmp_path)
    assert truth.culprits == [culprit]
    assert [(one.kind, one.rank, one.cause) for one in report.stragglers] == [("straggler", culprit, cause)]


@pytest.mark.parametrize("metadata", [True, False])
def test_a_clean_pipeline_names_nobody_and_calls_no_rank_slow(metadata: bool, tmp_path: Path) -> None:
    """The last stage has the output layer, so its kernels take longer: more work by plan, no slow rank."""
    text = _JOB.format(layout="pp = 4\ndp = 2", metadata=str(metadata).lower()).replace("vocab = 2000", "vocab = 32000")
    _, report = _analyzed(text, tmp_path)
    assert [one for one in report.stragglers if one.kind == "straggler"] == []
    assert {finding.id for finding in report.findings} & {"slow-rank", "one-rank-host", "wait-for-rank"} == set()


@pytest.mark.parametrize("metadata", [True, False])
def test_a_ring_of_context_parallel_ranks_is_no_pipeline(metadata: bool, tmp_path: Path) -> None:
    text = _RING.read_text().replace("p2p_metadata = false", f"p2p_metadata = {str(metadata).lower()}")
    _, report = _analyzed(text, tmp_path)
    assert report.pipeline is None
    assert report.stragglers == []
    for rank in report.ranks:
        for step in rank.steps:
            step.check()
            assert [key for key in step.leaves_ns if key.startswith("pipeline_bubble/")] == []
            assert step.leaves_ns["exposed_comm/p2p_transfer"] > 0
    assert {finding.id for finding in report.findings} & {"pipeline-bubble", "stage-imbalance"} == set()
