"""A job replayed with some of its times changed: what a step then takes, and where its time then is."""

from __future__ import annotations

import msgspec

from steptime.model.inputs import Tool

#: 1: first version (2026-11).
WHAT_IF_SCHEMA_VERSION = 1
WHAT_IF_KIND = "what-if"


class PathLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one leaf (``productive`` or a key) on the critical path of all its steps, before and after."""

    leaf: str
    before_ns: int
    after_ns: int


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The leaf with most of a critical path besides useful work.

    ns: of it on the path, share: of the path. Most of that lies in one place: rank (None: a transfer is of all its
    members) and where, with place_ns.
    """

    leaf: str
    ns: int
    share: float
    rank: int | None
    where: str
    place_ns: int


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Some changes together. Times are means of a counted step.

    step_ns, mfu: as replayed, with the same useful work; None where the replay is not to be trusted, MFU also where it
    is not known. subtracted_ns: what plain subtraction of the ledger's time would leave of the step; None where the
    ledger has no such figure.
    """

    asked: list[str]
    step_ns: float | None
    mfu: float | None
    subtracted_ns: float | None
    notes: list[str] = []


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """A job under changes.

    measured_ns: the mean counted step; replayed_ns: the same as the unchanged graph gives it; error_share: by how much
    its single steps differ, mean. refused: why the replay predicts nothing; None if it does. unexplained_share: of the
    unchanged critical path, delays without a cause in the traces: they stay in every prediction.

    meanings: what each request comes to in this job. each: every change alone; so_far: the first of them, the first
    two, and so on. together: all of them. path: the critical path before and after, leaves largest first after, which
    add up to path_before_ns and path_after_ns over `path_steps` steps; empty without one. bottleneck_before,
    bottleneck: the largest of each, None without.
    """

    kind: str = WHAT_IF_KIND
    schema_version: int = WHAT_IF_SCHEMA_VERSION
    tool: Tool
    inputs: list[str]
    ranks_analyzed: int
    world_size: int | None
    steps: list[int]
    measured_ns: float
    replayed_ns: float
    error_share: float
    refused: str | None
    mfu: float | None
    unexplained_share: float | None
    meanings: list[str]
    each: list[Predicted]
    so_far: list[Predicted]
    together: Predicted
    path_steps: int = 0
    path_before_ns: int = 0
    path_after_ns: int = 0
    path: list[PathLeaf] = []
    bottleneck_before: Bottleneck | None = None
    bottleneck: Bottleneck | None = None
    warnings: list[str] = []
