"""The critical path: the one sequence of work and waits across the ranks that made the steps as long as they are."""

from __future__ import annotations

import msgspec


class PathStep(msgspec.Struct, frozen=True, kw_only=True):
    """A counted step on the path: start_ns counts from the path's start, on the job's clock.

    It ends with the last rank's step, and begins where the step before it did so.
    """

    step: int
    start_ns: int
    dur_ns: int


class PathPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the path runs. where: ``host`` (the training threads), ``host thread 2``, ``stream 7``, ``meeting`` (a
    transfer after all members of a collective or message had come) or ``not recorded``.
    """

    rank: int
    device: int | None
    where: str


class PathTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the path by rank (None: a transfer is of all its members), place and leaf (``productive`` or a key)."""

    rank: int | None
    device: int | None
    where: str
    leaf: str
    ns: int


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """The path back from the end of the last counted step, cut into the counted steps, as the replay has it.

    totals, largest first, add up to `length_ns`, and so do the lengths of `steps`. The columns have one entry a segment
    in order of time: place, leaf and name are indices into `places`, `leaves` and `names`; step is the index in
    `steps`; start_ns counts from the path's start on the job's clock, own_ns is the same instant on the clock of the
    rank's own trace; nodes: kernels, calls or gaps in it, named by the longest. Segments add up to `length_ns`, too,
    with dropped_ns of the `dropped` shortest, which are left out where there are too many.
    """

    length_ns: int
    steps: list[PathStep]
    totals: list[PathTotal]
    places: list[PathPlace]
    leaves: list[str]
    names: list[str]
    place: list[int]
    leaf: list[int]
    name: list[int]
    step: list[int]
    start_ns: list[int]
    own_ns: list[int]
    dur_ns: list[int]
    nodes: list[int]
    dropped: int = 0
    dropped_ns: int = 0
