"""The verdict of a gate: is the candidate slower than the baseline, and how is that known?"""

from __future__ import annotations

import msgspec


class RunSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How much runs of this job differ: standard deviation of the logarithm of a run's usual step time.

    degrees: of freedom in it. own_sd: what of it the runs' own steps explain.
    """

    log_sd: float
    degrees: int
    own_sd: float


class GatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its name, counted steps, usual step time (mean of the middle 30 % of the steps) and plain mean, ns."""

    name: str
    steps: int
    usual_ns: int
    mean_ns: int


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was judged.

    status: ``pass``, ``regressed`` or ``cannot tell``. baseline, candidate: means over the runs, in `unit` (``ns`` a
    step, ``share`` of a step or ``mfu``). change, low, high, detectable: relative where `relative`, else in `unit`;
    low and high are one-sided limits at 98.9 %; detectable is what would have been caught in 90 % of the cases. limit:
    what was allowed, as it was written. why: what the status rests on.
    """

    name: str
    status: str
    unit: str = "ns"
    relative: bool = False
    baseline: float | None = None
    candidate: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    limit: str | None = None
    why: str


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Why two runs can't be compared, and what to do."""

    kind: str
    reason: str
    remedy: str


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Mean time a step of a slice or leaf on both sides, ns. None: not told by the traces of that side."""

    name: str
    title: str
    baseline_ns: int | None
    candidate_ns: int | None
    change_ns: int | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate found out. reason: one line that begins with the status; remedy: what to do, where it can't tell.

    judged: the step time first, then slow steps, then budgets. moved: slices and leaves by what they cost, the largest
    change first. cause: the change of the typical runs in words. run_sd: run-to-run standard deviation as a share of
    the step; degrees: of freedom in it, None where it is assumed. accepted: regressions that were let through, and
    those of which the acceptance is over.
    """

    status: str
    exit_code: int
    reason: str
    remedy: str | None = None
    judged: list[Judged] = []
    mismatches: list[Mismatch] = []
    moved: list[Moved] = []
    cause: list[str] = []
    accepted: list[str] = []
    candidate: list[GatedRun] = []
    baseline: list[GatedRun] = []
    run_sd: float | None = None
    degrees: int | None = None
    notes: list[str] = []
