"""The job: totals over the counted (rank, step) pairs."""

from __future__ import annotations

import msgspec


class LeafTotal(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf summed over the counted (rank, step) pairs. `ns` None: can't be told from these traces."""

    id: str
    ns: int | None
    share: float | None
    recoverable_ns: int | None = None
    mfu_if_removed: float | None = None
    detail: dict[str, int | float | str | None] = {}


class SliceTotal(msgspec.Struct, frozen=True, kw_only=True):
    """A slice summed over the counted (rank, step) pairs. `ns` None: can't be told from these traces."""

    id: str
    ns: int | None
    share: float | None
    recoverable_ns: int | None = None
    mfu_if_removed: float | None = None
    leaves: list[LeafTotal] = []


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median, 10th and 90th percentile, in nanoseconds."""

    median: int
    p10: int
    p90: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job: integer totals over the counted (rank, step) pairs."""

    world_size: int | None
    ranks_analyzed: int
    rank_steps: int
    device: str | None
    peak_flops: dict[str, float] | None = None
    reference_dtype: str | None = None
    step_source: str
    steps: list[int]
    step_time_ns: Spread
    total_ns: int
    mfu: float | None = None
    mfu_by: dict[str, float] | None = None
    mfu_notes: list[str] = []
    hfu: float | None = None
    model_flops_per_step: int | None = None
    flops_source: str | None = None
    flops_coverage: float | None = None
    productive_ns: int = 0
    above_peak_ns: int | None = None
    slices: list[SliceTotal]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One named cause: what inside a leaf, where in the program, and its cost over the counted steps.

    `what` is a kernel, a collective or a host activity; `where` the source line (with stacks), else the innermost
    op or annotation, else None. `rank_steps` counts the (rank, step) pairs in which it occurred.
    """

    leaf: str
    what: str
    where: str | None
    ns: int
    share: float
    count: int
    rank_steps: int


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one name in one leaf, over the counted steps. `owned_ns` <= `dur_ns`: the part nothing else owned."""

    name: str
    leaf: str
    count: int
    dur_ns: int
    owned_ns: int


class OpRoof(msgspec.Struct, frozen=True, kw_only=True):
    """Equal calls of one op against the roofline, over the counted steps. None: can't be known.

    kind: ``matmul``, ``convolution``, ``attention`` or ``memory``. count: calls; kernels: kernels they launched;
    kernel: the one that took longest. flops: hardware FLOPs of all calls; model_flops: those the mathematics needs;
    bytes: of all calls. bound: ``compute``, ``memory`` or ``launch``. peak_share: attained over the peak roof.
    attainable_ns: time at the achievable roof; headroom_ns: owned time beyond it. cache_resident: its data may have
    come from the last cache, so that the memory roof does not hold. checks: named faults (see the rules); notes:
    causal, window, gqa.
    """

    op: str
    shapes: str
    dtype: str | None
    kind: str
    direction: str
    recomputed: bool = False
    count: int
    kernels: int
    kernel: str
    dur_ns: int
    owned_ns: int
    flops: int | None
    model_flops: int | None
    bytes: int | None
    intensity: float | None = None
    bound: str | None = None
    attained_flops: float | None = None
    attained_bytes_per_s: float | None = None
    peak_share: float | None = None
    attainable_ns: int | None = None
    headroom_ns: int | None = None
    cache_resident: bool = False
    checks: list[str] = []
    notes: list[str] = []


class SlowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that needs longer than the others of its kind for equal bytes, waits excluded.

    ranks: its members; hosts: where they are, empty if not recorded. ratio: its transfer time over the median of the
    `compared` other groups of the same size and spread over hosts; lost_ns: what of its members' exposed time that
    makes, over the counted steps; waits_ns: what other ranks waited for its members because of it, at most.
    """

    ranks: list[int]
    hosts: list[str]
    ratio: float
    compared: int
    lost_ns: int
    waits_ns: int = 0


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind and group name, over the counted steps. `exposed_ns` is the part that no compute hides.

    What only several ranks' files tell, None where they don't: wait_ns was exposed too, but stands in the rows of late
    ranks. Of `measured` collectives (counted once, not once a rank) with `members` ranks each: bytes, their messages as
    NCCL's tests count them; transfer_ns, from the last arrival on; algorithm_bytes_per_s = bytes / transfer_ns;
    bus_bytes_per_s: the same by what each rank must send. link_share: of that, over all links of a GPU in one
    direction; None where the group spans hosts or no such rate is known. large_bus_bytes_per_s: of those of 16 MiB or
    more beside which no other communication ran, the median byte's. why: what is missing, where they are None.
    """

    kind: str
    group: str | None
    count: int
    dur_ns: int
    exposed_ns: int
    wait_ns: int | None = None
    measured: int = 0
    members: int | None = None
    bytes: int | None = None
    transfer_ns: int | None = None
    algorithm_bytes_per_s: float | None = None
    bus_bytes_per_s: float | None = None
    link_share: float | None = None
    large_bus_bytes_per_s: float | None = None
    slow_groups: list[SlowGroup] = []
    why: str | None = None
