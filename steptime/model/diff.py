"""What changed between two reports: the change of the mean step, split into parts that add up to it exactly.

Times of the split are integers in units of ``1 / units_per_ns`` ns of a mean rank-step, where `Diff.units_per_ns` is
the least common multiple of both numbers of rank-steps: a mean is seldom a whole number of nanoseconds, and rounded
parts would not add up.
"""

from __future__ import annotations

import msgspec

from steptime.model.ranks import Straggler

#: 1: first version (2026-11).
DIFF_SCHEMA_VERSION = 1

APPEARED, VANISHED, BOTH = "appeared", "vanished", "both"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step before and after. `parts` add up to it in all three columns; empty where it is not split.

    key: ``productive``, a slice, ``slice/leaf``, or the name of what is in the leaf; what: ``productive``, ``slice``,
    ``leaf``, ``kernel``, ``collective`` (a group), ``cause``, or ``other`` (what the reports do not list). before,
    after: None where a report can't tell it, its time then stands in another part; change_units: after - before, None
    counted as 0. status: ``appeared`` or ``vanished`` where only one report has it, else ``both``. calls: a rank-step;
    dur_ns: how long they ran in a rank-step, hidden time included; overlap: share of that under other work. changed:
    which of ``calls``, ``duration`` (of one call) and ``overlap`` differ, or ``leaf`` where the other report has the
    kernel in another leaf. rank: the one rank that nearly all of the change of a leaf comes from, None where there is
    no such rank. why: of a part that a report can't tell.
    """

    key: str
    what: str
    before_units: int | None
    after_units: int | None
    change_units: int
    status: str = BOTH
    calls_before: float | None = None
    calls_after: float | None = None
    dur_before_ns: float | None = None
    dur_after_ns: float | None = None
    overlap_before: float | None = None
    overlap_after: float | None = None
    changed: list[str] = []
    rank: int | None = None
    why: str | None = None
    parts: list[Part] = []


class OpChange(msgspec.Struct, frozen=True, kw_only=True):
    """Equal calls of one op on the roofline, before and after; a second view of time that `Part` splits already.

    changed: as of a `Part`, or ``shape`` where calls of the op in one direction appeared in some shapes or dtypes and
    vanished in others. peak_share: attained over the peak roof.
    """

    op: str
    shapes: str
    dtype: str | None
    direction: str
    recomputed: bool
    status: str
    before_units: int
    after_units: int
    change_units: int
    calls_before: float | None
    calls_after: float | None
    dur_before_ns: float | None
    dur_after_ns: float | None
    overlap_before: float | None
    overlap_after: float | None
    bound_before: str | None
    bound_after: str | None
    peak_share_before: float | None
    peak_share_after: float | None
    changed: list[str] = []


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the runs themselves differ. name: see `steptime.diff.config.NAMES`; None: not known of that run."""

    name: str
    before: str | None
    after: str | None


class StragglerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict about a late rank that only one report has, or both (`before`, `after`: None where it has not).

    change_ns: of what it costs each other rank in a mean counted step.
    """

    status: str
    before: Straggler | None
    after: Straggler | None
    change_ns: float


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One of the parts that make most of the change: for the first sentence.

    key: a leaf, or ``productive``, or a slice where its leaves only say where in the schedule. item: what is in it and
    makes at least half of its change, if there is such a part. straggler: the verdict that explains at least half of
    the waits.
    """

    key: str
    change_units: int
    item: Part | None = None
    rank: int | None = None
    straggler: Straggler | None = None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two jobs. name: its first input, or how the caller calls it; total_ns: of all counted rank-steps."""

    name: str
    total_ns: int
    rank_steps: int
    ranks: int
    steps: int
    median_step_ns: int
    mfu: float | None
    device: str | None
    one_window: bool


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from one report to another, largest first.

    whole: the mean step, whose parts are useful work and the slices, theirs the leaves, and theirs what is in a leaf.
    reasons: the parts that make most of the change, largest first.
    """

    schema_version: int = DIFF_SCHEMA_VERSION
    before: Side
    after: Side
    units_per_ns: int
    whole: Part
    reasons: list[Reason]
    config: list[ConfigChange] = []
    stragglers: list[StragglerChange] = []
    ops: list[OpChange] = []
    notes: list[str] = []

    def ns(self, units: int) -> float:
        """Nanoseconds of a mean rank-step."""
        return units / self.units_per_ns

    @property
    def leaves(self) -> list[Part]:
        """Useful work, leaves, and slices that have none: their changes add up to that of the whole."""
        return [leaf for part in self.whole.parts for leaf in (part.parts or [part])]
