"""The config text that asks a process for a trace (keys: libkineto's Config.cpp and its docs)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: kineto's own: a shorter one leaves CUPTI too little time to start on a large job.
WARMUP_S = 5


@dataclass(frozen=True)
class Iterations:
    """Record `count` optimizer steps, from the next step on whose number is a multiple of `roundup`."""

    count: int
    roundup: int = 1


@dataclass(frozen=True)
class Duration:
    """Record so long, from an instant on that all processes share (ms since the epoch), or as soon as may be (0)."""

    ms: int
    start_ms: int = 0


def config_text(ask: Iterations | Duration, log_file: Path, record_shapes: bool, with_stacks: bool) -> str:
    """The text, one key a line.

    log_file: ends in ``.json``; the process puts ``_PID`` before that.
    """
    if isinstance(ask, Iterations):
        lines = [
            "PROFILE_START_ITERATION=0",
            f"PROFILE_START_ITERATION_ROUNDUP={ask.roundup}",
            f"ACTIVITIES_ITERATIONS={ask.count}",
        ]
    else:
        lines = [
            f"PROFILE_START_TIME={ask.start_ms}",
            f"ACTIVITIES_DURATION_MSECS={ask.ms}",
            f"ACTIVITIES_WARMUP_PERIOD_SECS={WARMUP_S}",
        ]
    options = [
        f"PROFILE_REPORT_INPUT_SHAPES={str(record_shapes).lower()}",
        f"PROFILE_WITH_STACK={str(with_stacks).lower()}",
    ]
    return "\n".join([f"ACTIVITIES_LOG_FILE={log_file}", *lines, *options]) + "\n"
