"""What logs of a run tell about how much of the time it trained, what stopped it, and what that cost.

Times are int nanoseconds (points in time: since 1970 UTC), shares are 0 to 1, and None means "these logs don't tell",
never zero.
"""

from __future__ import annotations

import msgspec

from steptime.errors import AccountingError
from steptime.model.inputs import Tool

#: 1: first version (2026-12).
GOODPUT_SCHEMA_VERSION = 1
GOODPUT_KIND = "goodput"


class LogInput(msgspec.Struct, frozen=True, kw_only=True):
    """One log that was read. bad_lines could not be used, and bad_examples quotes the first few with the reason."""

    path: str
    kind: str
    lines: int
    bad_lines: int = 0
    bad_examples: list[str] = []
    duplicates: int = 0
    notes: list[str] = []


class LostPart(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the time of the run went. why: what about it these logs can't tell; None if nothing."""

    id: str
    title: str
    ns: int
    share: float | None
    why: str | None = None


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """One interruption, in order of time. The parts are what it cost; of two at once the first one owns the time.

    cause: id of the cause, said: the log's own words, source: file and line. outage: index of the stretch in which the
    run was down; several interruptions with the same one overlap. lost_ns: None if these logs don't tell.
    """

    time_ns: int
    cause: str
    title: str
    said: str
    planned: bool
    source: str
    host: str | None = None
    detected_ns: int | None = None
    resumed_ns: int | None = None
    outage: int
    detection_ns: int = 0
    restart_ns: int = 0
    unsplit_ns: int = 0
    planned_ns: int = 0
    unknown_ns: int = 0
    lost_ns: int | None = None


class CauseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Interruptions of one cause. share: of all unexpected ones; None for planned ones. down_ns: time the run stood."""

    id: str
    title: str
    group: str
    planned: bool
    count: int
    share: float | None
    down_ns: int
    lost_ns: int | None


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Failures over hours (of the run, or of its GPUs together), as mean time between them with its exact Poisson
    interval.

    mtbf_h and high_h are None without a failure: then only low_h is known.
    """

    failures: int
    exposure_h: float
    mtbf_h: float | None
    low_h: float
    high_h: float | None
    confidence: float = 0.95


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Whether failures come more often as the run goes on (Laplace's test). verdict: ``worse``, ``better``, ``steady``,
    or ``cannot tell`` with why. u: the statistic, above 0 if they come late; p: its two-sided probability by chance.
    """

    verdict: str
    u: float | None = None
    p: float | None = None
    first_half: int = 0
    second_half: int = 0
    why: str | None = None


class HostCount(msgspec.Struct, frozen=True, kw_only=True):
    """A host that failed more than once. chance: that some host would fail so often if all were alike; None if it is
    not known how many hosts there are.
    """

    host: str
    count: int
    chance: float | None
    causes: list[str]


class CheckpointHabit(msgspec.Struct, frozen=True, kw_only=True):
    """How the run saved. interval_ns: usual training between two pauses; young_ns: Young's interval for this run's
    MTBF and pause. source: ``log`` or ``options``.
    """

    count: int
    pause_ns: int
    interval_ns: int | None
    young_ns: int | None
    source: str


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The run in GPU-hours and money. used_share: MFU times what of the time trained; used_bound says ``upper bound``
    and lost_bound ``lower bound`` where a part of what was lost is not known. Money is None without a price.
    """

    gpus: int | None
    gpu_hours: float | None
    lost_gpu_hours: float | None
    price: float | None = None
    money: float | None = None
    lost_money: float | None = None
    mfu: float | None = None
    mfu_source: str | None = None
    used_share: float | None = None
    used_bound: str | None = None
    lost_bound: str | None = None


class ReferenceFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a published run: the number (None if the source gives words only), as the source says it, where."""

    id: str
    value: float | None
    text: str
    source: str


class ReferenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A published run, with the figures that its sources state and no others; notes say where sources disagree.

    uninterrupted_days: how long its FLOPs take at its stated rate if nothing stops it; None if one of them is missing.
    """

    id: str
    name: str
    figures: list[ReferenceFigure]
    causes: list[ReferenceFigure] = []
    notes: list[str] = []
    uninterrupted_days: float | None = None


class RunSegments(msgspec.Struct, frozen=True, kw_only=True):
    """The run in time order, in columns of one entry a segment: start_ns counts from the run's begin; part indexes
    `parts`; interruption is an index, -1 for none. dropped: segments left out because they were the shortest.
    """

    parts: list[str]
    start_ns: list[int]
    dur_ns: list[int]
    part: list[int]
    interruption: list[int]
    dropped: int = 0


class RunProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The run in stretches of equal length (the last may be shorter): ns[part][stretch] of every part of `parts`."""

    parts: list[str]
    stretch_ns: int
    ns: list[list[int]]


class GoodputReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the logs of one run tell. `check` enforces the accounting law: productive and parts add up to the whole.

    start_ns, end_ns, total_ns: the run; None if no log says when it began or ended, with the reason in cannot_tell.
    eta: 1 - sum(d + r) / T, the share of time the run was not down. productive_ns: what is left when lost work and
    pauses are taken off, too; productive_share is None where lost work is not known. eta_low and eta_high differ where
    it is not known when interruptions were over.
    """

    kind: str = GOODPUT_KIND
    schema_version: int = GOODPUT_SCHEMA_VERSION
    tool: Tool
    inputs: list[LogInput]
    start_ns: int | None
    end_ns: int | None
    dated: bool = True
    total_ns: int | None
    productive_ns: int | None
    parts: list[LostPart]
    eta: float | None
    eta_low: float | None
    eta_high: float | None
    productive_share: float | None
    interruptions: list[Interruption]
    outages: int
    causes: list[CauseTotal]
    mtbf: Rate | None
    mtbf_gpu: Rate | None
    mean_uptime_ns: int | None
    trend: Trend
    hosts: list[HostCount]
    hosts_known: int = 0
    checkpoints: CheckpointHabit | None
    logged: list[str] = []
    cost: Cost
    segments: RunSegments
    profile: RunProfile | None = None
    references: list[ReferenceRun]
    cannot_tell: list[str]
    warnings: list[str]

    def check(self) -> None:
        """Enforce the accounting law.

        Raises:
            AccountingError: a part is negative, or the parts do not add up to the whole.
        """
        for part in self.parts:
            if part.ns < 0:
                raise AccountingError(f"goodput: part {part.id} is negative ({part.ns} ns)")
        if self.total_ns is None or self.productive_ns is None:
            return
        spent = self.productive_ns + sum(part.ns for part in self.parts)
        if self.productive_ns < 0 or spent != self.total_ns:
            raise AccountingError(f"goodput: parts hold {spent} ns, the run lasted {self.total_ns} ns")
