"""Useful work of random steps, against a count microsecond by microsecond (DESIGN 1.2).

Some ops run on a second stream, take two kernels, have FP32 operands, have no shapes, or are shorter than they can be.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Micros, TraceBuilder
from tests.roofline.priced import (
    BF16,
    BF16_PEAK,
    FP32,
    FP32_PEAK,
    H100,
    NVJET,
    SGEMM,
    Run,
    filler,
    matmul,
    put,
    three_steps,
)
from tests.timeline.built import report_of, steps_of


class Op(NamedTuple):
    """A random op: edge of its square product in units of 512, type, lengths of its kernels in us, its stream."""

    edge: int
    fp32: bool
    lengths: list[int]
    stream: int
    shaped: bool


@st.composite
def random_op(draw: st.DrawFn) -> Op:
    fp32 = draw(st.booleans())
    edge = draw(st.integers(1, 5 if fp32 else 12))
    at_least = at_peak(2 * (512 * edge) ** 3, FP32_PEAK if fp32 else BF16_PEAK) // 1000 + 1
    # Mostly long enough for its work, at times too short for it.
    long = draw(st.sampled_from([at_least] * 7 + [1])) + draw(st.integers(0, 300))
    lengths = draw(st.permutations([long, *draw(st.lists(st.integers(1, 200), max_size=1))]))
    stream = draw(st.sampled_from([7, 7, 7, 8]))
    return Op(edge, fp32, list(lengths), stream, draw(st.sampled_from([True] * 9 + [False])))


def at_peak(flops: int, peak: float) -> int:
    return int(Fraction(10**9 * flops) / Fraction(peak))


def random_trace(ops: list[Op]) -> tuple[TraceBuilder, list[tuple[int, int, int, int]], int]:
    """Three equal steps; the kernels of one as (op, start, end, stream) in us, and the step's length.

    Every stream runs its kernels one after the other. An addition ends the step after everything else; it is long
    enough to make its stream the main one.
    """
    clock = {7: 0, 8: 3}
    kernels: list[tuple[int, int, int, int]] = []
    for at, op in enumerate(ops):
        for took in op.lengths:
            kernels.append((at, clock[op.stream], clock[op.stream] + took, op.stream))
            clock[op.stream] += took
    last = max(clock.values())
    length = 2 * last + 2000
    calls = []
    for at, op in enumerate(ops):
        runs = [Run(SGEMM if op.fp32 else NVJET, *kernel[1:]) for kernel in kernels if kernel[0] == at]
        size = 512 * op.edge
        shapes = [[size, size], [size, size]] if op.shaped else None
        calls.append(matmul(*runs, types=FP32 if op.fp32 else BF16, shapes=shapes))
    trace = TraceBuilder(device_name=H100)

    def fill(host: Micros, start: Micros) -> None:
        for at, call in enumerate(calls):
            put(trace, call, host + 1 + 10 * at, start + 100)
        put(trace, filler(-100, 0), host + 90, start + 100)
        put(trace, filler(last, length - 100), host + 90 + 10 * len(ops) + 20, start + 100)

    return three_steps(trace, length, fill), kernels, length


def owned_by_op(kernels: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """Microsecond by microsecond: who started first, then the longer, then the lower stream."""
    owned: dict[int, int] = {}
    for instant in range(max(end for _, _, end, _ in kernels)):
        running = [(start, start - end, stream, at) for at, start, end, stream in kernels if start <= instant < end]
        if running:
            at = min(running)[3]
            owned[at] = owned.get(at, 0) + 1000
    return owned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("useful")


@given(ops=st.lists(random_op(), min_size=1, max_size=4))
def test_random_ops_against_brute_force(ops: list[Op], folder: Path) -> None:
    trace, kernels, _ = random_trace(ops)
    report = report_of(trace, folder)
    owned = owned_by_op(kernels)
    useful = precision = 0
    for at, op in enumerate(ops):
        flops = 2 * (512 * op.edge) ** 3 if op.shaped else 0
        ideal, own = at_peak(flops, BF16_PEAK), at_peak(flops, FP32_PEAK if op.fp32 else BF16_PEAK)
        mine = min(ideal, owned.get(at, 0))
        useful += mine
        precision += min(own - ideal, owned.get(at, 0) - mine)
    known = sum(owned.get(at, 0) for at, op in enumerate(ops) if op.shaped)
    assert report.job.flops_coverage == known / sum(owned.values())
    matmul_ns = sum(owned.values())
    left = matmul_ns - useful - precision
    for number in (2, 3):
        step = steps_of(report)[number]
        found = (
            step.productive_ns,
            step.leaves_ns.get("kernels/precision", 0),
            step.leaves_ns.get("kernels/matmul", 0),
        )
        # Whether the FLOPs are believed is the subject of other tests: either way the split is exact.
        expected = (0, 0, matmul_ns) if report.job.mfu is None else (useful, precision, left)
        assert found == expected
    if report.job.mfu is not None:
        assert report.job.mfu == report.job.productive_ns / report.job.total_ns
        assert known >= 0.98 * sum(owned.values())
