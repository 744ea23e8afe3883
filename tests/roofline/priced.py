"""Built steps on an H100 whose ops have shapes, so that their price can be worked out by hand.

Figures of the H100 SXM are NVIDIA's (H100 white paper and data sheet): dense 989.4 TFLOP/s BF16, 494.7 TF32, 66.9 FP32,
1978.9 FP8; 3350 GB/s; 50 MiB of L2; 132 multiprocessors.

Step k = 1, 2, 3 has the device window [0, length) + 100 + (k - 1) length, without a gap if its kernels leave none;
step 1 is an edge step, so two steps count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.builders import Json, Micros, TraceBuilder
from tests.timeline.built import ADD, NEW_GEMM

H100 = "NVIDIA H100 80GB HBM3"
BF16_PEAK, TF32_PEAK, FP32_PEAK, FP8_PEAK = 989.4e12, 494.7e12, 66.9e12, 1978.9e12
BF16, FP32, FP8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"

#: Kernels that say nothing of their type beside the operands', FP32 on the plain cores, and TF32.
NVJET = "nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN"
SGEMM = "ampere_sgemm_128x64_tn"
TF32 = NEW_GEMM
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16>(float*)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, true>(Flash_fwd_params)"

#: [8192, 8192] x [8192, 8192] needs 2 * 8192^3 = 1,099,511,627,776 operations:
#: 1,111,291.3 ns at 989.4 TFLOP/s, 2,222,582.6 at 494.7, 16,435,151.4 at 66.9, 555,617.6 at 1978.9.
SQUARE = [[8192, 8192], [8192, 8192]]
SQUARE_FLOPS = 1_099_511_627_776
SQUARE_BF16, SQUARE_TF32, SQUARE_FP32, SQUARE_FP8 = 1_111_291, 2_222_582, 16_435_151, 555_617


class Run(NamedTuple):
    """A kernel [start, end) of the step, in microseconds after its window's start."""

    kernel: str
    start: Micros
    end: Micros
    stream: int = 7
    grid: Sequence[int] = (132, 1, 1)


class Call(NamedTuple):
    """An op with what it launches; `around` are ops that call it, outermost first, as (name, shapes, types)."""

    op: str
    shapes: Sequence[object] | None
    types: Sequence[str]
    runs: Sequence[Run]
    concrete: Sequence[str] | None = None
    around: Sequence[tuple[str, Sequence[object], Sequence[str]]] = ()


def matmul(*runs: Run, types: str = BF16, shapes: Sequence[object] | None = SQUARE) -> Call:
    """``aten::mm`` on two matrices of one type; without shapes it has no price."""
    return Call("aten::mm", shapes, [types, types], runs)


def add(*runs: Run, shape: Sequence[int] = (8192, 8192)) -> Call:
    """``a + b``: three bytes moved for each byte of one, no FLOPs."""
    return Call("aten::add", [list(shape), list(shape), []], [BF16, BF16, "Scalar"], runs)


def filler(start: Micros, end: Micros) -> Call:
    """An addition without shapes that ends the step."""
    return Call("aten::add", None, (), [Run(ADD, start, end)])


def _op(trace: TraceBuilder, call: Call, host: Micros, for_: Micros, thread: int) -> None:
    args: Json = {} if call.concrete is None else {"Concrete Inputs": list(call.concrete)}
    trace.op(call.op, host, for_, thread, shapes=call.shapes, types=call.types or None, args=args)


def put(trace: TraceBuilder, call: Call, host: Micros, start: Micros, thread: int = 1) -> None:
    """The op [host, host + 16) with its kernels after `start`; an op around it is 1 us wider on both sides."""
    for depth, (name, shapes, types) in enumerate(call.around):
        wider = len(call.around) - depth
        trace.op(name, host - wider, 16 + 2 * wider, thread, shapes=shapes, types=types)
    _op(trace, call, host, 16, thread)
    for at, run in enumerate(call.runs):
        trace.kernel(
            run.kernel,
            start + run.start,
            run.end - run.start,
            run.stream,
            launch_at=host + 1 + 2 * at,
            launch_for=1,
            thread=thread,
            grid=run.grid,
        )


def three_steps(trace: TraceBuilder, length: Micros, fill: Callable[[Micros, Micros], None]) -> TraceBuilder:
    """Steps 1 to 3; `fill(host, start)` puts what one consists of, its host part in [host + 10, ...)."""
    for k in range(3):
        host = 1000 + k * length
        trace.step(k + 1, at=host, for_=length)
        fill(host, host + 100)
    return trace


def job(length: Micros, *calls: Call, device: str = H100, extra: Json | None = None) -> TraceBuilder:
    """Three equal steps of these calls, launched one after the other from 10 us after the step's mark."""
    trace = TraceBuilder(device_name=device, extra=extra or {})

    def fill(host: Micros, start: Micros) -> None:
        for at, call in enumerate(calls):
            put(trace, call, host + 12 + 22 * at, start)

    return three_steps(trace, length, fill)
