"""What a stream waited for on others, on built traces of which the waits are known. Times are in microseconds.

All kernels are launched long before they start, so that only the device's own order can explain when they do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.timeline.dependencies import Dependencies
from steptime.timeline.summary import Request, summarize
from steptime.trace.parse import parse
from tests.builders import TraceBuilder
from tests.timeline.built import ADAM, GEMM

_MAIN, _GATHERS, _SCATTERS = 7, 24, 20
_GATHER, _SCATTER = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"


def _known(trace: TraceBuilder, folder: Path) -> Dependencies:
    path = folder / "rank0.json.gz"
    trace.write(path)
    known = summarize(parse(str(path)), Request(replayed=True)).devices[0].dependencies
    assert known is not None
    return known


def _waits(known: Dependencies, stream: int, awaited: int) -> list[tuple[int, int]]:
    """Of one stream for another: (end of what was awaited, start of what waited), in us after the first start."""
    first = int(known.start_ns[0])
    pairs = zip(known.before.tolist(), known.after.tolist(), strict=True)
    return sorted(
        ((int(known.end_ns[before]) - first) // 1000, (int(known.start_ns[after]) - first) // 1000)
        for before, after in pairs
        if known.stream[after] == stream and known.stream[before] == awaited
    )


@pytest.mark.parametrize("late_us", [-2, 0, 1])
def test_of_two_collectives_that_end_together_the_one_is_believed_that_is_waited_for_without_doubt(
    tmp_path: Path, late_us: int
) -> None:
    """Six GEMMs need the gather before them. Beside three of these gathers runs a scatter that nobody needs before the
    optimizer, and that ends `late_us` after the gather: by the clock alone it could as well be what they waited for.
    """
    trace = TraceBuilder()
    trace.step(1, at=0, for_=400)
    awaited, host = [], 10
    for at in range(6):
        begin = 1000 + 300 * at
        trace.op("aten::mm", at=host - 2, for_=10)
        trace.kernel(_GATHER, at=begin - 100, for_=98, stream=_GATHERS, launch_at=host)
        if at >= 3:
            trace.kernel(_SCATTER, at=begin - 100, for_=98 + late_us, stream=_SCATTERS, launch_at=host + 21)
        trace.kernel(GEMM, at=begin, for_=200, stream=_MAIN, launch_at=host + 14)
        awaited.append((begin - 2 - 900, begin - 900))
        host += 40
    # The optimizer needs the last of them.
    trace.op("aten::_fused_adamw_", at=host - 2, for_=10)
    trace.kernel(ADAM, at=2702, for_=50, stream=_MAIN, launch_at=host)
    known = _known(trace, tmp_path)
    assert _waits(known, _MAIN, _GATHERS) == awaited
    assert _waits(known, _MAIN, _SCATTERS) == [(2498 + late_us - 900, 2702 - 900)]


def test_a_start_long_after_an_end_waited_for_something_else(tmp_path: Path) -> None:
    """Five GEMMs start 2 us after a gather; a sixth one 20 us after, when the usual is 2."""
    trace = TraceBuilder()
    trace.step(1, at=0, for_=400)
    for at in range(6):
        begin, host = 1000 + 300 * at, 10 + 40 * at
        trace.op("aten::mm", at=host - 2, for_=10)
        trace.kernel(_GATHER, at=begin - 100, for_=98, stream=_GATHERS, launch_at=host)
        trace.kernel(GEMM, at=begin + (18 if at == 2 else 0), for_=150, stream=_MAIN, launch_at=host + 14)
    seen = [start - end for end, start in _waits(_known(trace, tmp_path), _MAIN, _GATHERS)]
    # That it waits each time is the rule; what it was late by is no wait's lag (it stays a stall).
    assert seen.count(2) == 5
