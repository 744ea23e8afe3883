"""The replay of the job: how well it gives back what was measured, and what several fixes together would buy."""

from __future__ import annotations

import msgspec


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """Some findings fixed together: their ids in the order of fixing, and the mean step and MFU that are left.

    naive_step_time_ns: what subtracting their costs would leave.
    """

    findings: list[str]
    step_time_ns: int
    mfu: float | None
    naive_step_time_ns: int | None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How the gains were computed.

    error_share: by how much the counted steps of the unchanged replay differ from the measured ones, as a share of
    them; modelled_error_share: the same if every start had the usual gap or latency and no stall of its own: how much
    of the steps is delays that a replay only repeats. stalled_share: share of the critical path that nothing recorded
    explains. why: why gains are upper bounds all the same, None if they are replayed. ladder: one fix more each time.
    """

    error_share: float | None = None
    modelled_error_share: float | None = None
    stalled_share: float | None = None
    why: str | None = None
    ladder: list[Rung] = []
