"""Parts of the built traces, and the comparison of a step with a table that was worked out by hand.

The tables of ``test_built_*.py`` come from the rules of the design, applied by hand to the times in the test; nothing
of them comes from the code. Times of traces are microseconds, tables are nanoseconds and must be met exactly.
"""

from __future__ import annotations

from pathlib import Path

from steptime.model import Report, StepTime
from steptime.pipeline import Options, analyze
from tests.builders import Micros, TraceBuilder

GEMM = "ampere_sgemm_128x64_tn"
NEW_GEMM = "cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(float*)"
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(float*)"


def launch(  # noqa: PLR0913  what a launch consists of
    trace: TraceBuilder,
    kernel: str,
    host: Micros,
    start: Micros,
    end: Micros,
    *,
    stream: int = 7,
    thread: int = 1,
    op: str = "aten::mm",
) -> None:
    """An op [host - 2, host + 8) with a launch call [host, host + 5), and its kernel [start, end)."""
    trace.op(op, at=host - 2, for_=10, thread=thread)
    trace.kernel(kernel, at=start, for_=end - start, stream=stream, launch_at=host, thread=thread)


def plain(  # noqa: PLR0913  what a step consists of
    trace: TraceBuilder, number: int, host: Micros, device: Micros, *, mark: Micros = 1000, kernels: int = 2
) -> None:
    """A step without surprises: mark [host, host + mark), GEMMs from device + 2 to device + 1000, queued early.

    If the device was busy until `device`, its table is 998 of matmul and 2 of kernel_gap.
    """
    trace.step(number, at=host, for_=mark)
    for i in range(kernels):
        end = device + 1000 if i == kernels - 1 else device + 100 * (i + 1)
        launch(trace, GEMM, host + 10 + 12 * i, device + (100 * i if i else 2), end)


PLAIN = {"kernels/matmul": 998_000, "host/kernel_gap": 2_000}


def late_step(  # noqa: PLR0913  what an idle interval consists of
    trace: TraceBuilder,
    *,
    idle: tuple[Micros, Micros],
    call: tuple[Micros, Micros],
    kernel: str = GEMM,
    thread: int = 1,
    clock: Micros = 0,
) -> TraceBuilder:
    """Steps 1 to 3, of which step 2 holds one idle interval [a, b) = `idle`; its window is [1100, b + 400).

    The kernel before the interval runs [1102, a) and was launched long ago, [1010, 1015). The one after it runs
    [b, b + 400) and is launched by the call [L0, L1) = `call` on `thread`. What the host did between, the test has
    added to `trace`. So step 2 holds matmul (a - 1102) + 400 and kernel_gap 2, and the split of [a, b).
    `clock` is added to all device times.
    """
    a, b = idle
    end = b + 400
    plain(trace, 1, 0, 100 + clock)
    trace.step(2, at=1000, for_=end - 1100)
    launch(trace, GEMM, 1010, 1102 + clock, a + clock)
    trace.kernel(kernel, at=b + clock, for_=400, launch_at=call[0], launch_for=call[1] - call[0], thread=thread)
    plain(trace, 3, end - 100, end + clock)
    return trace


def report_of(trace: TraceBuilder, folder: Path, options: Options | None = None) -> Report:
    """Write the trace, analyse it, and check the law on every step."""
    path = trace.write(folder / "built_rank0.json")
    report = analyze(str(path), options or Options())
    for row in report.ranks:
        for step in row.steps:
            step.check()
            assert step.productive_ns + sum(step.leaves_ns.values()) == step.dur_ns
    return report


def steps_of(report: Report, device: int = 0) -> dict[int, StepTime]:
    """The steps of rank 0 on that device, by number."""
    (row,) = [row for row in report.ranks if row.rank == 0 and row.device == device]
    return {step.step: step for step in row.steps}


def assert_step(step: StepTime, dur_ns: int, leaves_ns: dict[str, int]) -> None:
    """The step is exactly what the table says."""
    assert sum(leaves_ns.values()) == dur_ns, "the table does not add up"
    assert (step.dur_ns, step.productive_ns, step.leaves_ns) == (dur_ns, 0, leaves_ns)
