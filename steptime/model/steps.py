"""A step split into leaves, its picture, and the steps of one rank."""

from __future__ import annotations

import msgspec

from steptime.errors import AccountingError
from steptime.taxonomy import LEAF_CODE


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's step, split so that every nanosecond is in exactly one place.

    `leaves_ns` maps ``"slice/leaf"`` to nanoseconds; leaves with zero are left out.
    """

    step: int
    class_: str = msgspec.field(name="class", default="train")
    edge: bool = False
    start_ns: int
    dur_ns: int
    productive_ns: int = 0
    leaves_ns: dict[str, int]
    note: str | None = None

    def check(self) -> None:
        """Enforce the accounting law.

        Raises:
            AccountingError: a leaf is unknown or negative, or the parts do not add up to `dur_ns`.
        """
        for key, ns in self.leaves_ns.items():
            if key not in LEAF_CODE:
                raise AccountingError(f"step {self.step}: unknown leaf {key!r}")
            if ns < 0:
                raise AccountingError(f"step {self.step}: leaf {key} is negative ({ns} ns)")
        if self.productive_ns < 0:
            raise AccountingError(f"step {self.step}: productive time is negative ({self.productive_ns} ns)")
        spent = self.productive_ns + sum(self.leaves_ns.values())
        if spent != self.dur_ns:
            raise AccountingError(f"step {self.step}: parts hold {spent} ns, the step lasted {self.dur_ns} ns")


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank in time order, in columns: what owned the device, and what ran on each stream.

    `why`: ``typical`` or ``slowest``. tracks: names of rows ("owner", "stream 7"). The columns have one entry a
    segment: track and name are indices into `tracks` and `names`, leaf is the leaf's key index into `leaves`, start_ns
    counts from `step_start_ns`. `dropped`: segments left out because they were the shortest of too many.
    """

    rank: int
    device: int | None
    step: int
    why: str
    step_start_ns: int
    dur_ns: int
    tracks: list[str]
    names: list[str]
    leaves: list[str]
    track: list[int]
    start_ns: list[int]
    segment_ns: list[int]
    leaf: list[int]
    name: list[int]
    dropped: int = 0


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on one device, step by step."""

    rank: int
    host: str | None
    device: int | None
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    steps: list[StepTime]


class OtherStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is not a training step: what it cost and how often it comes."""

    rank: int
    step: int
    dur_ns: int
    reason: str
