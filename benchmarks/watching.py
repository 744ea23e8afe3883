"""What `steptime.watch` costs a training loop while nothing is captured."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptime.capture.watch import Watch

STEPS = 20_000
SPUN_STEPS, SPUN_NS = 500, 1_000_000


@contextlib.contextmanager
def _watch() -> Iterator[Watch]:
    """A watch that is idle: it looks for a fall of the pace as ever, but for one that a busy machine does not make."""
    import steptime

    settings = steptime.WatchSettings(slower=100.0)
    with tempfile.TemporaryDirectory() as folder, steptime.watch(Path(folder) / "captures", settings) as watch:
        yield watch


def _nothing() -> None:
    pass


def _each_ns(call: Callable[[], None]) -> float:
    """Nanoseconds of one call, the loop's own included."""
    before = time.perf_counter_ns()
    for _ in range(STEPS):
        call()
    return (time.perf_counter_ns() - before) / STEPS


def _loop_ns(call: Callable[[], None], steps: int = SPUN_STEPS) -> int:
    """Processor time of the whole process, threads included, for steps of a millisecond that compute."""
    before = time.process_time_ns()
    for _ in range(steps):
        end = time.thread_time_ns() + SPUN_NS
        while time.thread_time_ns() < end:
            pass
        call()
    return time.process_time_ns() - before


def step_and_nothing_ns(repeat: int) -> tuple[float, float]:
    """Median nanoseconds of `Watch.step` and of an empty call, in alternating rounds; the watch's thread runs."""
    steps, calls = [], []
    with _watch() as watch:
        for _ in range(max(repeat, 5)):
            steps.append(_each_ns(watch.step))
            calls.append(_each_ns(_nothing))
    return median(steps), median(calls)


def whole_loop(repeat: int) -> tuple[float, float]:
    """Median processor nanoseconds of a step of 1 ms with a watch and its thread, and without, alternating."""
    watched, alone = [], []
    for _ in range(max(repeat, 5)):
        with _watch() as watch:
            _loop_ns(watch.step, 100)  # Its thread makes the directory and writes the first step times.
            watched.append(_loop_ns(watch.step))
        alone.append(_loop_ns(_nothing))
    return median(watched) / SPUN_STEPS, median(alone) / SPUN_STEPS
