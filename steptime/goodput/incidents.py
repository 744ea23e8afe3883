"""What a log tells of a run: interruptions, pauses for checkpoints, and when the run began and ended.

All times are int nanoseconds since 1970 UTC; None is "the log does not say".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from steptime.goodput.causes import Cause
from steptime.goodput.lines import Refused


@dataclass(frozen=True, slots=True)
class Incident:
    """One interruption of the run.

    time_ns: when useful training stopped. detected_ns: when that was noticed and the job was stopped or its restart
    begun. resumed_ns: when useful training went on. checkpoint_ns, checkpoint_step: the last checkpoint before it, from
    which training went on; step: the last step before it. text: the cause as the log words it; source: file and line.
    """

    time_ns: int
    cause: Cause
    text: str
    source: str
    detected_ns: int | None = None
    resumed_ns: int | None = None
    checkpoint_ns: int | None = None
    checkpoint_step: int | None = None
    step: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Which step was done when: int64 columns of one entry a row, in order of time. pace_ns: time of one step."""

    time_ns: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    pace_ns: float


@dataclass(slots=True)
class RunLog:
    """What one log tells. kind: what sort of log it is, in words.

    pauses: (begin, end) of each pause for a checkpoint; None if the log can't hold them. start_step: the step at the
    begin of the run. hidden: kinds of lost time that such a log can't show. gpus: as the log says. logged: what
    a metrics file holds beside the step.
    """

    path: str
    kind: str
    incidents: list[Incident] = field(default_factory=list)
    pauses: list[tuple[int, int]] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    start_step: int | None = None
    progress: Progress | None = None
    hidden: tuple[str, ...] = ()
    gpus: int | None = None
    logged: tuple[str, ...] = ()
    lines: int = 0
    duplicates: int = 0
    refused: Refused = field(default_factory=Refused)
    notes: list[str] = field(default_factory=list)
