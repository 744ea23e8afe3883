"""What a job takes under changes: two ranks worked out by hand, and what is said where the replay can't be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.errors import UsageError
from steptime.model.what_if import WhatIf
from steptime.pipeline import analyze, what_if
from steptime.ranks.counted import count_steps
from steptime.report.what_if import markdown, terminal
from steptime.whatif import outcome
from steptime.whatif.job_replay import JobReplay
from steptime.whatif.requests import remove
from tests.builders import TraceBuilder
from tests.whatif.replayed import replayed

US = 1_000
STEPS = 6


def two_ranks(folder: Path) -> Path:
    """Six steps of 1,000 µs; all times in µs from the step's beginning.

    Rank 0: kernel from 20 to 120, all-reduce from 122, optimizer from 474 to 604; rank 1, which is slower: kernel from
    20 to 420, all-reduce from 422, optimizer from 474 to 574. The all-reduce ends at 472 on both, 50 after the last
    came. Each host launches at 10, 20 and 30, waits for the device (it comes back 2 µs after its last kernel), and 4 µs
    later for data until 995.
    """
    for rank, computes, updates in ((0, 100, 130), (1, 400, 100)):
        trace = TraceBuilder(rank=rank, world_size=2)
        for number in range(STEPS):
            at = 1000 * number
            back = at + 474 + updates + 2
            trace.step(number, at, 1000)
            trace.kernel("sm90_xmma_gemm_bf16", at + 20, computes, launch_at=at + 10)
            trace.collective("allreduce", at + 22 + computes, 450 - computes, 7, launch_at=at + 20, ranks=[0, 1])
            trace.optimizer(at + 28, 10)
            trace.kernel("adam", at + 474, updates, launch_at=at + 30)
            trace.runtime("cudaDeviceSynchronize", at + 40, back - at - 40)
            trace.loader(back + 4, at + 995 - back - 4)
        trace.write(folder / f"rank{rank}.json")
    return folder


# From the end E of one all-reduce to the next. The optimizer starts at E+2; the host comes back 2 after it, is 9 in
# Python besides its loader (415 on rank 1, 385 on rank 0), launches 10 later; a kernel starts 10 after its launch, the
# all-reduce 2 after that, and takes 50 from when the last rank came.
@pytest.mark.parametrize(
    ("removals", "scales", "step_us"),
    [
        # Rank 1: 2+100+2 +9+0+10 +10+400+2 = 535, rank 0 comes at 265.
        (["host/data_loader"], [], 585),
        # Rank 1 loads (385) and computes (100) as long as rank 0, which is last: 2+130+2 +9+385+10 +10+100+2 = 650.
        (["straggler:rank=1"], [], 700),
        # Rank 1: 2+100+2 +9+415+10 +10+200+2 = 750, rank 0 comes at 600.
        ([], ["matmul=0.5"], 800),
        ([], ["kernel:_gemm_=0.5"], 800),
        # Without the kernels the all-reduce starts 10 after its own launch, which is 10 after theirs: both ranks take
        # 2+100+2 +9+415+10 +10+10 = 2+130+2 +9+385+10 +10+10 = 558.
        (["kernel:gemm"], [], 608),
        # Rank 0 is last: 2+130+2 +9+0+10 +10+100+2 = 265; rank 1 comes at 235.
        (["loader", "straggler:rank=1"], [], 315),
        # Nobody pays for the transfer: 50 less.
        (["allreduce"], [], 950),
    ],
)
def test_two_ranks_by_hand(tmp_path: Path, removals: list[str], scales: list[str], step_us: int) -> None:
    result = what_if([two_ranks(tmp_path)], removals, scales)
    assert (result.measured_ns, result.replayed_ns, result.error_share) == (1000 * US, 1000 * US, 0.0)
    assert result.together.step_ns == pytest.approx(step_us * US, abs=0.5)
    assert result.path_steps == len(result.steps)
    # Each part of the path is in the table, before and after.
    assert sum(one.before_ns for one in result.path) == result.path_before_ns == 1000 * US * result.path_steps
    assert sum(one.after_ns for one in result.path) == result.path_after_ns
    assert result.path_after_ns / result.path_steps == pytest.approx(step_us * US, rel=0.01)


@pytest.fixture
def both(tmp_path: Path) -> WhatIf:
    return what_if([two_ranks(tmp_path)], ["loader", "straggler:rank=1"])


def test_where_the_time_goes_and_what_is_next(both: WhatIf) -> None:
    per_step = {
        one.leaf: (one.before_ns / both.path_steps / US, one.after_ns / both.path_steps / US) for one in both.path
    }
    # Before, all of it on rank 1; after, on rank 0, whose optimizer takes 130 and whose kernel takes 100.
    assert per_step["host/data_loader"][1] == 0
    assert per_step["kernels/optimizer"][1] == pytest.approx(130, abs=1)
    assert per_step["kernels/matmul"][1] == pytest.approx(100, abs=1)
    assert per_step["exposed_comm/allreduce"] == pytest.approx((50, 50), abs=1)
    assert per_step["kernels/matmul"][0] == pytest.approx(400, abs=1)
    assert both.bottleneck_before is not None
    assert both.bottleneck_before.leaf == "host/data_loader"
    assert both.bottleneck is not None
    assert (both.bottleneck.leaf, both.bottleneck.rank, both.bottleneck.where) == ("kernels/optimizer", 0, "stream 7")


def test_each_alone_and_one_after_the_other(both: WhatIf) -> None:
    assert [one.step_ns for one in both.each] == pytest.approx([585 * US, 700 * US], abs=0.5)
    assert [one.step_ns for one in both.so_far] == pytest.approx([585 * US, 315 * US], abs=0.5)
    assert both.together == both.so_far[-1]
    text = terminal(both, each=True, width=100)
    assert "Step 1.00 ms → 315 µs (−685 µs, −68.5 %)." in text
    assert "−415 µs" in text
    assert "+ straggler:rank=1" in text
    assert "Next bottleneck: kernels/optimizer (optimizer), 130 µs a step" in text
    assert max(map(len, text.splitlines())) <= 100
    page = markdown(both, each=True)
    assert "| −415 µs |" in page
    assert "Next bottleneck: kernels/optimizer" in page


def test_subtraction_stands_beside(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path)
    result = what_if([folder], ["allreduce", "exposed_comm/allreduce"])
    report = analyze(folder)
    ledger = sum(step.leaves_ns.get("exposed_comm/allreduce", 0) for rank in report.ranks for step in rank.steps)
    counted = sum(len(rank.steps) for rank in report.ranks)
    # Counted once, though asked for twice; the transfer is 50 on both ranks.
    assert result.together.subtracted_ns == pytest.approx(1000 * US - ledger / counted)
    assert result.together.subtracted_ns == pytest.approx(950 * US, abs=US)


def test_a_replay_that_is_off_predicts_nothing(tmp_path: Path) -> None:
    made = replayed(sorted(two_ranks(tmp_path).iterdir()))
    job = JobReplay(count_steps(made.rows, None), made.alignment, None)
    job.error_share = 0.031
    result = outcome.what_if(made.report, job, (made.rows, made.alignment), [remove("loader")])
    assert result.refused is not None
    assert result.together.step_ns is None
    assert result.bottleneck is None
    text = terminal(result, each=True, width=100)
    assert "No prediction: the replay of the unchanged job misses its measured steps by 3.1 %" in text
    assert "a rough figure, since what waits behind it is not replayed." in " ".join(text.split())
    assert "→" not in text


def test_delays_that_nothing_explains_are_told(tmp_path: Path) -> None:
    """A kernel of 300 µs starts 200 µs late in a step of 1,000, with no reason in the trace; nothing else waits."""
    trace = TraceBuilder()
    for number in range(STEPS):
        at = 1000 * number
        trace.step(number, at, 1000)
        trace.kernel("sm90_xmma_gemm_bf16", at + 20, 300, launch_at=at + 10)
        trace.kernel("elementwise_kernel", at + 520, 300, launch_at=at + 20)
        trace.runtime("cudaDeviceSynchronize", at + 40, 790)
    trace.write(tmp_path / "rank0.json")
    result = what_if([tmp_path], ["matmul"])
    assert result.unexplained_share == pytest.approx(0.2, abs=0.01)
    assert "20.0 % of its critical path are delays that nothing recorded explains" in " ".join(
        terminal(result, width=100).split()
    )
    # The kernel's 300 µs are gone, but its follower is launched at 20 only and so is ready at 30, not at 20; from there
    # the delay stays.
    assert result.together.step_ns == pytest.approx(710 * US, abs=2 * US)


def test_nothing_to_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to change: give --remove NAME"):
        what_if([tmp_path], [])


def test_what_is_not_there_changes_nothing_and_is_said(tmp_path: Path) -> None:
    result = what_if([two_ranks(tmp_path)], ["checkpoint"])
    assert result.together.step_ns == result.measured_ns
    text = terminal(result, width=100)
    assert "nothing changes" in text
    assert "! checkpoint: there is none of it in these traces" in text
