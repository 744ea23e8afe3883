"""The vocabulary of a report: what a step is, and what a report holds.

Plain frozen structs without logic, except `StepTime.check` (the accounting law) and sums. All times are int
nanoseconds, all shares are 0 to 1, and ``None`` means "not measurable from these traces", never zero.
The JSON form is these structs, field for field (`store`).
"""

from __future__ import annotations

from steptime.model.diff import (
    DIFF_SCHEMA_VERSION,
    ConfigChange,
    Diff,
    OpChange,
    Part,
    Reason,
    Side,
    StragglerChange,
)
from steptime.model.findings import ChecklistItem, Evidence, Finding
from steptime.model.inputs import Input, Quality, Tool
from steptime.model.job import Cause, Collective, Job, Kernel, LeafTotal, OpRoof, SliceTotal, SlowGroup, Spread
from steptime.model.path import CriticalPath, PathPlace, PathStep, PathTotal
from steptime.model.ranks import Alignment, Pipeline, PipelineActions, Straggler
from steptime.model.replay import Replay, Rung
from steptime.model.report import SCHEMA_VERSION, Report
from steptime.model.steps import OtherStep, RankSteps, StepTime, StepTimeline

__all__ = [
    "ConfigChange",
    "DIFF_SCHEMA_VERSION",
    "Diff",
    "OpChange",
    "Part",
    "Reason",
    "Side",
    "StragglerChange",
    "Alignment",
    "Cause",
    "ChecklistItem",
    "Collective",
    "CriticalPath",
    "Evidence",
    "Finding",
    "Input",
    "Job",
    "Kernel",
    "LeafTotal",
    "OpRoof",
    "OtherStep",
    "PathPlace",
    "PathStep",
    "PathTotal",
    "Pipeline",
    "PipelineActions",
    "Quality",
    "RankSteps",
    "Replay",
    "Report",
    "Rung",
    "SCHEMA_VERSION",
    "SliceTotal",
    "SlowGroup",
    "Spread",
    "StepTime",
    "StepTimeline",
    "Straggler",
    "Tool",
]
