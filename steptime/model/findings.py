"""What is wrong and what to do."""

from __future__ import annotations

import msgspec

#: How a gain was computed, see `Finding`.
REPLAYED, REPLAYED_BOUND, SUBTRACTED = "replayed", "replayed bound", "upper bound"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a finding can be looked up in a trace viewer; None where the finding is about the whole."""

    text: str
    rank: int | None = None
    step: int | None = None
    start_ns: int | None = None
    dur_ns: int | None = None
    event: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that fired: its cost over the counted steps, what fixing it could give, and what to do.

    confidence: ``high``, ``medium`` or ``low``. gain: ``replayed`` if a replay of the job computed what is left when it
    is fixed, ``replayed bound`` if no fix reaches all that was replayed (a pipeline without any bubble), else ``upper
    bound``: what subtraction leaves, as the naive figures always do. promised: which leaves' time it counts on, ns over
    the counted steps; no time is promised twice.
    """

    id: str
    slice: str
    title: str
    cost_ns: int | None
    share: float | None
    mfu_if_fixed: float | None = None
    step_time_if_fixed_ns: int | None = None
    naive_mfu_if_fixed: float | None = None
    naive_step_time_if_fixed_ns: int | None = None
    promised: dict[str, int] = {}
    gain: str = SUBTRACTED
    confidence: str
    evidence: list[Evidence] = []
    advice: str


class ChecklistItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ten checks of the walkthrough. status: ``pass``, ``fail`` or ``cannot tell``."""

    item: str
    status: str
    why: str
