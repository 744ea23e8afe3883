"""What was read, by which tool."""

from __future__ import annotations

import msgspec


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What wrote the report."""

    name: str = "steptime"
    version: str


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace file can and cannot tell. Counts are events.

    graph_launched: device events that CUDA graphs launched, None in reports of versions that did not count them.
    """

    dialect: str
    shapes: bool
    stacks: bool
    clock_base: str
    launches_without_kernels: int
    kernels_without_launches: int
    partial_first_step: bool
    partial_last_step: bool
    cut_head_events: int
    dropped: dict[str, int]
    clipped: dict[str, int]
    graph_launched: int | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One trace file that was analysed. base_ns: what the file's own time stamps count from.

    software: the versions that the file says, of ``driver`` (the CUDA it offers), ``cuda``, ``hip``,
    ``torch`` and ``nccl``.
    """

    path: str
    rank: int | None
    bytes: int
    events: int
    base_ns: int | None = None
    quality: Quality | None = None
    warnings: list[str] = []
    software: dict[str, str] = {}
