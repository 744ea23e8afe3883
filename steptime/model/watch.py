"""What a watch over a run's own log holds: spikes, values that are no numbers, plateaus, drops, and a target.

Steps are the run's own numbers. Everything called an alert was known at that step: nothing after it was looked at.
Times are float seconds since the first row; None where the log has no times.
"""

from __future__ import annotations

import msgspec

from steptime.model.inputs import Tool

#: 1: first version (2026-11).
WATCH_SCHEMA_VERSION = 1
WATCH_KIND = "goodput watch"


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that was watched.

    what: ``loss``, ``grad_norm``, ``throughput``, ``mfu`` or ``update_ratio``; column: its name in the log. rows: how
    many rows have it. usual: the median of the last rows. noise: of one row around its usual value, a share of it for
    all but the loss; None where there are too few rows. watched_from: the first step at which an alert was possible.
    Figures are of the rows that hold a number, and None if none does.
    The drawn columns hold at most a few thousand rows: the extremes of each part of the run.
    """

    what: str
    column: str
    rows: int
    first: float | None
    last: float | None
    lowest: float | None
    highest: float | None
    usual: float | None
    noise: float | None
    watched_from: int | None
    drawn_step: list[int]
    drawn_value: list[float]


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """A value far above what the rows before it let expect.

    start_step: its first row. alert_step: when an alert could fire. end_step: back at the usual value, None if it did
    not come back. score: the peak's height above usual over the noise. rewind_step: the last checkpoint before it, None
    without a checkpoint interval or before the first one; redone_steps: from there to the alert.
    warned_step: when the gradient norm gave an alert shortly before, if it did.
    """

    what: str
    start_step: int
    alert_step: int
    peak_step: int
    end_step: int | None
    usual: float
    peak: float
    score: float
    alert_s: float | None
    rewind_step: int | None
    redone_steps: int | None
    warned_step: int | None = None


class NonFinite(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in a row whose value is no number. kind: ``NaN`` or ``infinite``; ended: numbers came again."""

    what: str
    kind: str
    first_step: int
    last_step: int
    rows: int
    ended: bool
    rewind_step: int | None


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that stayed below its usual value. share: how far below, 0 to 1, at the median of the rows until the end.

    end_step: back at the usual value; None if it did not come back. rows: how many.
    """

    what: str
    start_step: int
    alert_step: int
    end_step: int | None
    usual: float
    level: float
    share: float
    rows: int


class Plateau(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch in which the smoothed loss fell by no more than its noise. to_step None: until the log ends."""

    from_step: int
    alert_step: int
    to_step: int | None
    loss: float
    rows: int


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """When the loss reached a target.

    step: where the median of the last `smoothed_rows` rows was first at or below it; None if it never was.
    single_step: where one row was. lowest: of the median.
    """

    loss: float
    smoothed_rows: int
    step: int | None
    time_s: float | None
    single_step: int | None
    lowest: float | None


class UpdateRatio(msgspec.Struct, frozen=True, kw_only=True):
    """How far an update moves the weights, relative to their size: median, and the extremes with their steps."""

    first: float
    median: float
    last: float
    lowest: float
    lowest_step: int
    highest: float
    highest_step: int


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``goodput watch`` found out. step_backs: how often the step counter went back (a restart).

    missing: what is not in the log, by the name that `Series.what` would have.
    """

    schema_version: int = WATCH_SCHEMA_VERSION
    kind: str = WATCH_KIND
    tool: Tool
    path: str
    rows: int
    first_step: int
    last_step: int
    duration_s: float | None
    checkpoint_every: int | None
    step_backs: int
    series: list[Series]
    missing: list[str]
    spikes: list[Spike]
    non_finite: list[NonFinite]
    drops: list[Drop]
    plateaus: list[Plateau]
    target: Target | None
    update_ratio: UpdateRatio | None
    bad_lines: int
    bad_examples: list[str]
    notes: list[str]
    warnings: list[str]
