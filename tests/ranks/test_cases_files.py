"""Cases A19, B14, B15, B16 and B17's kind, and a late rank without a file: what the whole report says of them.

`test_waits` and `test_known_jobs` check the same traces inside the cross-rank stage, wait by wait. Built traces: rank 1
computes 1.5 ms longer than rank 0, which arrives first and waits; both all-reduces end together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import steptime
from steptime.model import Report, StepTime
from steptime.simulate import Scenario, simulate
from tests.builders import TraceBuilder

WAIT, SKEW = "stragglers/wait_for_rank", "unexplained/capture_skew"
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
STEP_US = 10_000
_JOB = """
[model]
layers = 4
hidden = 2048
[recording]
steps = 5
[jitter]
outlier_share = 0
[layout]
{layout}
[[fault]]
kind = "slow_gpu"
ranks = [3]
size = 0.25
"""


def _counted(report: Report) -> list[list[StepTime]]:
    """The steps of each rank that are no edge."""
    return [[step for step in rank.steps if not step.edge] for rank in report.ranks]


def _ids(report: Report) -> set[str]:
    return {finding.id for finding in report.findings}


def _two_ranks(folder: Path, clock_us: int = 0, late_us: int = 1_500, lost_first: bool = False) -> Report:
    """Rank 1 computes `late_us` longer and its clock is `clock_us` ahead; its first all-reduce may be lost."""
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        shift, compute = clock_us * rank + 50_000, 5_000 + late_us * rank
        for number in range(6):
            at = number * STEP_US + shift
            trace.step(number, at=at, for_=9_900)
            trace.op("aten::mm", at=at + 5, for_=20)
            trace.kernel(GEMM, at=at + 20, for_=compute, launch_at=at + 10)
            if not (lost_first and rank and not number):
                begin, end = 20 + compute, 6_020 + late_us
                trace.collective(
                    "allreduce", at=at + begin, for_=end - begin, launch_at=at + 40, nelems=1 << 20, stream=20
                )
            trace.kernel(GEMM, at=at + 6_020 + late_us, for_=200, launch_at=at + 60)
        trace.write(folder / f"rank{rank}.json.gz")
    return steptime.analyze([folder])


@pytest.mark.parametrize("clock_us", [0, -4_000, 4_000])
def test_b14_b16_the_short_all_reduce_is_the_late_rank_whatever_the_clocks(clock_us: int, tmp_path: Path) -> None:
    report = _two_ranks(tmp_path, clock_us)
    zero, one = report.ranks
    assert (zero.clock_offset_ns, one.clock_offset_ns) != (None, None)
    assert (one.clock_offset_ns or 0) - (zero.clock_offset_ns or 0) == pytest.approx(clock_us * 1000, abs=5_000)
    assert report.alignment is not None
    assert report.alignment.error_ns < 100_000
    assert [(late.kind, late.rank, late.cause) for late in report.stragglers] == [("straggler", 1, "slower kernels")]
    for step in _counted(report)[0]:
        assert step.leaves_ns[WAIT] == 1_500_000
        assert step.leaves_ns["exposed_comm/allreduce"] == 1_000_000
    for step in _counted(report)[1]:
        assert WAIT not in step.leaves_ns
        assert step.leaves_ns["exposed_comm/allreduce"] == 1_000_000
    # Rank 0's own leaves blame nobody; the finding does, and asks to look at rank 1's clock.
    finding = next(finding for finding in report.findings if finding.id == "wait-for-rank")
    assert any("waiting for rank 1" in item.text for item in finding.evidence)
    slow = next(finding for finding in report.findings if finding.id == "slow-rank")
    assert {item.rank for item in slow.evidence} == {None, 1}


@pytest.mark.parametrize("lost_first", [False, True])
@pytest.mark.parametrize("clock_us", [0, 5_000])
def test_b17_balanced_ranks_accuse_nobody(clock_us: int, lost_first: bool, tmp_path: Path) -> None:
    """Other tools shift their matching when one collective is lost, and always name the one that "arrives last"."""
    report = _two_ranks(tmp_path, clock_us, late_us=0, lost_first=lost_first)
    assert report.stragglers == []
    assert report.alignment is not None
    assert report.alignment.unjudged is None
    assert _ids(report) & {"slow-rank", "one-rank-host", "wait-for-rank"} == set()
    for steps in _counted(report):
        assert [step.leaves_ns.get(WAIT, 0) for step in steps] == [0] * len(steps)
        assert [step.leaves_ns["exposed_comm/allreduce"] for step in steps] == [1_000_000] * len(steps)


def test_b17_a_lost_collective_does_not_turn_the_verdict(tmp_path: Path) -> None:
    report = _two_ranks(tmp_path, 5_000, lost_first=True)
    assert [(late.kind, late.rank) for late in report.stragglers] == [("straggler", 1)]


@pytest.mark.parametrize("metadata", [True, False])
def test_b17_an_all_to_all_of_send_recv_kernels_is_no_message(metadata: bool, tmp_path: Path) -> None:
    """The kernel of an all-to-all is called SendRecv; only its host side tells its kind."""
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        for number in range(4):
            at = number * STEP_US
            trace.step(number, at=at, for_=9_900)
            trace.op("aten::mm", at=at + 5, for_=20)
            trace.kernel(GEMM, at=at + 20, for_=5_000, launch_at=at + 10)
            trace.collective("all_to_all", at=at + 5_020, for_=1_000, launch_at=at + 40, metadata=metadata)
            trace.kernel(GEMM, at=at + 6_020, for_=200, launch_at=at + 60)
        trace.write(tmp_path / f"rank{rank}.json.gz")
    report = steptime.analyze([tmp_path])
    assert report.pipeline is None
    for steps in _counted(report):
        for step in steps:
            assert step.leaves_ns["exposed_comm/all_to_all"] == 1_000_000
            assert "exposed_comm/p2p_transfer" not in step.leaves_ns
    assert {"all-to-all-exposed"} == _ids(report) & {"all-to-all-exposed", "p2p-exposed", "pipeline-bubble"}


def test_b15_the_first_collective_shows_when_recordings_began(tmp_path: Path) -> None:
    """Rank 1's recording begins 17 s later; rank 0's first all-gather lasts that long, the others 14 us."""
    late = 17_000_000
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        begin = late * rank
        trace.step(1, at=begin, for_=late * (1 - rank) + 1_000)
        trace.kernel(GEMM, at=begin + 20, for_=500, launch_at=begin + 10)
        trace.collective("_allgather_base", at=begin + 520, for_=late + 14 - begin, launch_at=begin + 40)
        trace.kernel(GEMM, at=late + 534, for_=100, launch_at=begin + 60)
        for number in (2, 3, 4):
            at = late + number * 1_000
            trace.step(number, at=at, for_=1_000)
            trace.kernel(GEMM, at=at + 20, for_=500, launch_at=at + 10)
            trace.collective("_allgather_base", at=at + 520, for_=14, launch_at=at + 40)
            trace.kernel(GEMM, at=at + 534, for_=100, launch_at=at + 60)
        trace.write(tmp_path / f"rank{rank}.json.gz")
    report = steptime.analyze([tmp_path])
    assert report.stragglers == []
    assert report.ranks[0].steps[0].leaves_ns[SKEW] == late * 1000
    # It is an edge step's, so no figure of the job holds it: the all-gathers that count last 14 us each.
    assert report.job.steps == [2, 3, 4]
    assert [(one.kind, one.count, one.dur_ns) for one in report.collectives] == [("allgather", 6, 6 * 14_000)]
    assert _ids(report) & {"wait-for-rank", "first-collective", "allgather-exposed", "allgather-remainder"} == set()


@pytest.mark.parametrize("name", ["rollover", "one_absolute", "skew_4ms"])
def test_a19_ranks_with_different_time_bases(repo: Path, name: str) -> None:
    folder = repo.parent / "shared" / "cases" / "A19"
    if not folder.is_dir():
        pytest.skip("cases/A19 is not beside this checkout")
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())["inputs"][f"{name}/"]
    report = steptime.analyze([folder / name])
    assert [(late.kind, late.rank) for late in report.stragglers] == [("straggler", expected["straggler"])]
    for rank, steps in enumerate(_counted(report)):
        wait = expected["wait_us_per_step"][f"rank{rank}"] * 1000
        assert [step.leaves_ns.get(WAIT, 0) for step in steps] == [wait] * len(steps)


@pytest.mark.parametrize("layout", ["dp = 6", "dp = 6\nfsdp = true", "dp = 3\ntp = 2"])
def test_a_late_rank_without_a_file_and_a_file_of_another_left_out(layout: str, tmp_path: Path) -> None:
    scenario = msgspec.toml.decode(_JOB.format(layout=layout), type=Scenario)
    simulate(scenario, tmp_path, scenario.seed)
    files = sorted(tmp_path.glob("rank*.json.gz"))
    for left_out in range(6):
        report = steptime.analyze([path for path in files if path.name != f"rank{left_out}.json.gz"])
        (late,) = report.stragglers
        assert (late.kind, late.rank, late.recorded) == ("straggler", 3, left_out != 3)
        assert late.cause == ("slower kernels" if left_out != 3 else "not recorded")
        assert "ranks-missing" in _ids(report)
        if left_out == 3:
            # Nothing moves to a culprit whose lateness was not recorded: it stays in exposed communication.
            said = [cause.what for cause in report.causes if cause.leaf == WAIT]
            assert "waiting for rank 3" not in said
            waits = sum(step.leaves_ns.get(WAIT, 0) for rank in report.ranks for step in rank.steps)
            total = sum(step.dur_ns for rank in report.ranks for step in rank.steps)
            # With tensor parallelism some groups are whole, whose members wait for each other's jitter.
            assert waits <= (0.005 * total if "tp" in layout else 0)
            assert "slow-rank" not in _ids(report)
