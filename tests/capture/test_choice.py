"""Which ranks of a big job are captured."""

from __future__ import annotations

from steptime.capture.choice import choose


def test_a_small_job_is_captured_whole() -> None:
    assert choose(16, {}).ranks == []


def test_the_slowest_the_typical_and_one_of_each_stage() -> None:
    times = dict.fromkeys(range(64), 100.0) | {37: 130.0, 5: 99.0}
    stages = [list(range(at, at + 16)) for at in range(0, 64, 16)]
    choice = choose(64, times, stages)
    # 37 is the slowest and stands for stage 2, rank 0 is typical and stands for stage 0; 16 and 48 for the others.
    assert choice.ranks == [0, 16, 37, 48]
    assert "the slowest (37)" in choice.why
    assert "4 pipeline stages" in choice.why


def test_ranks_that_wait_for_each_other_are_sampled() -> None:
    choice = choose(64, dict.fromkeys(range(64), 100.0))
    assert choice.ranks == [0, 8, 16, 24, 32, 40, 48, 56]
    assert "alike" in choice.why
    assert "slowest" not in choice.why
    assert "no step times are known" in choose(64, {}).why


def test_ranks_that_do_not_exist_are_not_asked_for() -> None:
    assert max(choose(32, {40: 2.0, 3: 1.0}).ranks) < 32
