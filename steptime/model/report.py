"""The whole report."""

from __future__ import annotations

import msgspec

from steptime.model.findings import ChecklistItem, Finding
from steptime.model.inputs import Input, Tool
from steptime.model.job import Cause, Collective, Job, Kernel, OpRoof
from steptime.model.path import CriticalPath
from steptime.model.ranks import Alignment, Pipeline, Straggler
from steptime.model.replay import Replay
from steptime.model.steps import OtherStep, RankSteps, StepTimeline

#: 1: first version (2026-11).
SCHEMA_VERSION = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that one analysis found out. `alignment` is None for one rank: nobody to compare with.
    pipeline: None if there is none, or none that can be recognised. critical_path: None where the job was not replayed.

    replay: None if the job was not to be replayed.
    facts: documented numbers that rules rest on and no other part holds; None where the traces don't tell.
    not_evaluated: rules whose numbers are unknown, with the reason.
    """

    schema_version: int = SCHEMA_VERSION
    tool: Tool
    inputs: list[Input]
    job: Job
    ranks: list[RankSteps]
    causes: list[Cause]
    kernels: list[Kernel]
    collectives: list[Collective]
    other_steps: list[OtherStep] = []
    roofline: list[OpRoof] = []
    timelines: list[StepTimeline] = []
    facts: dict[str, float | None] = {}
    alignment: Alignment | None = None
    stragglers: list[Straggler] = []
    pipeline: Pipeline | None = None
    critical_path: CriticalPath | None = None
    findings: list[Finding] = []
    replay: Replay | None = None
    not_evaluated: dict[str, str] = {}
    checklist: list[ChecklistItem] = []
    warnings: list[str]
