"""What findings say a fix buys, against the simulator's job without the fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import steptime
from steptime.model import Finding, Report
from steptime.model.findings import REPLAYED, REPLAYED_BOUND
from steptime.simulate import simulate
from steptime.simulate.scenario import Scenario
from steptime.whatif.fixes import changes_for
from steptime.whatif.gains import with_replay
from steptime.whatif.scenario import APART, HIDDEN, LEAF, RANKS

#: Finding -> the faults of the demo that fixing it takes away.
_FAULTS = {
    "recompute-on": ("recompute",),
    "wait-for-rank": ("slow_gpu", "slow_loader"),
    "allgather-exposed": ("no_prefetch",),
}


@pytest.fixture(scope="module")
def demo(repo: Path) -> Report:
    return steptime.analyze([repo / "traces" / "demo_28_mfu"])


@pytest.fixture(scope="module")
def without(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], int]:
    """Step time of the demo's job without some of its faults, from the simulator: no figure of the analysis's own."""
    scenario = msgspec.toml.decode((repo / "traces" / "scenarios" / "demo.toml").read_bytes(), type=Scenario)

    def step_time_ns(kinds: tuple[str, ...]) -> int:
        faults = [fault for fault in scenario.fault if fault.kind not in kinds]
        folder = tmp_path_factory.mktemp("without")
        return simulate(msgspec.structs.replace(scenario, fault=faults), folder, scenario.seed).step_time_ns

    return step_time_ns


def _finding(report: Report, name: str) -> Finding:
    return next(one for one in report.findings if one.id == name)


def test_the_demo_s_ladder_is_what_mending_its_faults_gives_back(
    demo: Report, without: Callable[[tuple[str, ...]], int]
) -> None:
    assert demo.replay is not None
    assert demo.replay.why is None
    assert demo.replay.error_share is not None
    assert demo.replay.error_share < 0.01
    mended: tuple[str, ...] = ()
    errors, naive = [], []
    for rung in demo.replay.ladder[:3]:
        mended += _FAULTS[rung.findings[-1]]
        true_ns = without(mended)
        assert rung.naive_step_time_ns is not None
        errors.append(rung.step_time_ns / true_ns - 1)
        naive.append(rung.naive_step_time_ns / true_ns - 1)
    # Seen: +1.6, -0.2 and +0.1 %; by subtraction +4.7, +10.0 and +19.6 %.
    assert [abs(error) <= 0.03 for error in errors] == [True] * 3
    assert all(abs(error) < abs(other) for error, other in zip(errors, naive, strict=True))


def test_gains_stand_beside_what_subtraction_says(demo: Report) -> None:
    recompute, bubble = _finding(demo, "recompute-on"), _finding(demo, "pipeline-bubble")
    assert (recompute.gain, bubble.gain) == (REPLAYED, REPLAYED_BOUND)
    assert recompute.step_time_if_fixed_ns != recompute.naive_step_time_if_fixed_ns
    assert demo.job.mfu is not None
    assert recompute.mfu_if_fixed is not None
    step_ns = demo.job.total_ns / demo.job.rank_steps
    assert recompute.mfu_if_fixed == pytest.approx(demo.job.mfu * step_ns / (recompute.step_time_if_fixed_ns or 1))
    # No schedule is without a bubble: it is no rung.
    assert demo.replay is not None
    assert all("pipeline-bubble" not in rung.findings for rung in demo.replay.ladder)


def test_each_finding_changes_what_it_is_about(demo: Report) -> None:
    kinds = {
        name: {change.kind for change in changes_for(_finding(demo, name), demo)}
        for name in (*_FAULTS, "pipeline-bubble")
    }
    assert kinds == {
        "recompute-on": {LEAF},
        "wait-for-rank": {RANKS},
        "allgather-exposed": {HIDDEN},
        "pipeline-bubble": {APART},
    }
    late = next(change for change in changes_for(_finding(demo, "wait-for-rank"), demo) if change.kind == RANKS)
    assert late.ranks == (2, 11)


def test_without_a_replay_gains_stay_bounds_and_say_why(repo: Path) -> None:
    plain = steptime.analyze([repo / "traces" / "demo_28_mfu"], steptime.Options(replay=False))
    assert plain.replay is None
    assert {one.gain for one in plain.findings} <= {"upper bound", "not computed", "cannot tell"}
    refused = with_replay(plain, "there is no reason", [], None)
    assert refused.replay is not None
    assert refused.replay.why == "there is no reason"
    assert refused.findings == plain.findings
