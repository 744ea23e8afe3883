"""What someone on call needs of a report: the verdict in three sentences, what to do now, what to capture next."""

from __future__ import annotations

import msgspec

from steptime.model.inputs import Tool
from steptime.model.job import Spread

#: 1: first version (2026-11).
ON_CALL_SCHEMA_VERSION = 1
ON_CALL_KIND = "on call"

SLOW, CLEAR, CANNOT_TELL = "slow", "clear", "cannot tell"


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that makes the job slow, and who.

    kind: ``straggler``, ``jitter``, ``once`` or ``unclear`` as of a `Straggler`; ``some ranks`` or ``all ranks`` of a
    host leaf; ``group`` of a slow link; ``grown`` of a leaf that takes longer than in the baseline. cause: as of a
    `Straggler`, or the leaf's id. ranks: who is meant, empty: no rank in particular. cost_ns: of a mean step; share:
    of the mean step. steps: in which it was seen, empty: all; since_step: the first of them where the steps recorded
    before it were free of it, else None. device: the one rank's, on its host. recorded: whether the culprit's own
    trace is there. new_ns: how much more of the mean step its leaf takes than in the baseline (of a late rank: waiting
    for late ranks), at most cost_ns; None without a baseline.
    """

    kind: str
    cause: str
    leaf: str | None
    ranks: list[int]
    host: str | None
    cost_ns: int
    share: float
    steps: list[int] = []
    since_step: int | None = None
    device: int | None = None
    recorded: bool = True
    new_ns: int | None = None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do in the next ten minutes. finding: the id of the finding that it comes from, if any."""

    text: str
    ranks: list[int] = []
    host: str | None = None
    cause: str | None = None
    finding: str | None = None


class LeafChange(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf (or ``productive``) of the mean step in the baseline and now, ns."""

    leaf: str
    before_ns: int
    after_ns: int


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What the hook's step times tell: the median step before and after the last lasting change.

    step: the first slow one; unix_ns: when it ended, None if not known. ranks: whose step times were read.
    """

    step: int
    unix_ns: int | None
    before_ns: int
    after_ns: int
    ranks: int


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """A process or host that could not be traced: who, why, and the one-line remedy."""

    who: str
    reason: str
    remedy: str = ""


class OnCall(msgspec.Struct, frozen=True, kw_only=True):
    """The summary for a chat channel.

    status: ``slow``, ``clear`` or ``cannot tell``. verdict: three sentences: what is slow; who and why; since when.
    suspects: most costly first. captures: what to record next if this is not enough. changes: against the baseline,
    largest first, None without one. doubts: what these traces can't tell. shares: of every leaf and of ``productive``
    in the mean step.
    """

    schema_version: int = ON_CALL_SCHEMA_VERSION
    kind: str = ON_CALL_KIND
    tool: Tool
    status: str
    verdict: list[str]
    suspects: list[Suspect]
    actions: list[Action]
    captures: list[str]
    changes: list[LeafChange] | None = None
    doubts: list[str] = []
    missed: list[Missed] = []
    job: str | None = None
    device: str | None
    world_size: int | None
    ranks_analyzed: int
    step_time_ns: Spread
    mean_step_ns: int
    baseline_mean_step_ns: int | None = None
    mfu: float | None = None
    shares: dict[str, float] = {}
    pace: Pace | None = None
