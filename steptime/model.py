"""The vocabulary of a report: what a step is, and what a report holds.

Plain frozen structs without logic, except `StepTime.check` (the accounting law) and sums. All times are int
nanoseconds, all shares are 0 to 1, and ``None`` means "not measurable from these traces", never zero.
The JSON form is these structs, field for field (`store`).
"""

from __future__ import annotations

import msgspec

from steptime.errors import AccountingError
from steptime.taxonomy import LEAF_CODE

#: 1: first version (2026-11).
SCHEMA_VERSION = 1


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


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What wrote the report."""

    name: str = "steptime"
    version: str


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace file can and cannot tell. Counts are events."""

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


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One trace file that was analysed. base_ns: what the file's own time stamps count from."""

    path: str
    rank: int | None
    bytes: int
    events: int
    base_ns: int | None = None
    quality: Quality | None = None
    warnings: list[str] = []


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


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on one device, step by step."""

    rank: int
    host: str | None
    device: int | None
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    steps: list[StepTime]


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

    confidence: ``high``, ``medium`` or ``low``. gain: ``upper bound`` unless a replay of the job computed it.
    """

    id: str
    slice: str
    title: str
    cost_ns: int | None
    share: float | None
    mfu_if_fixed: float | None = None
    step_time_if_fixed_ns: int | None = None
    gain: str = "upper bound"
    confidence: str
    evidence: list[Evidence] = []
    advice: str


class ChecklistItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ten checks of the walkthrough. status: ``pass``, ``fail`` or ``cannot tell``."""

    item: str
    status: str
    why: str


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """Who held up the job, and why.

    kind: ``straggler`` (the same rank across steps), ``jitter`` (another rank each time), ``once`` or ``unclear``.
    rank: None for jitter, or where a whole host is meant; ranks: all that are meant. cause: "slower kernels", "more
    work", "slow link", the id of a host leaf, "not recorded" or "not separable"; leaf: where it shows. through: ranks
    that it kept and that then kept others. steps: in which it led. lost_ns: what it cost each other rank over those
    steps, share: of their usual length. recorded: whether the rank's own file is among the inputs.
    """

    kind: str
    rank: int | None
    ranks: list[int]
    host: str | None
    cause: str
    leaf: str | None
    steps: list[int]
    lost_ns: int
    share: float
    through: list[int] = []
    recorded: bool = True


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks were put on one clock.

    matched, unmatched, refused: communication activities with partners, without, and contradicted by them; error_ns:
    how far a rank's clock may be off at most. unjudged: why nobody could be called a straggler; None if it was judged.
    """

    matched: int
    unmatched: int
    refused: int
    error_ns: int
    unjudged: str | None = None


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind and group, over the counted steps. `exposed_ns` is the part that no compute hides."""

    kind: str
    group: str | None
    count: int
    dur_ns: int
    exposed_ns: int


class OtherStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is not a training step: what it cost and how often it comes."""

    rank: int
    step: int
    dur_ns: int
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that one analysis found out. `alignment` is None for one rank: nobody to compare with.

    facts: documented numbers that rules rest on and no other part holds; None where the traces don't tell.
    not_evaluated: rules whose numbers are unknown, with the reason.
    """

    schema_version: int = SCHEMA_VERSION
    tool: Tool
    inputs: list[Input]
    job: Job
    ranks: list[RankSteps]
    causes: list[Cause]
    kernels: list[Kernel]
    collectives: list[Collective]
    other_steps: list[OtherStep] = []
    roofline: list[OpRoof] = []
    timelines: list[StepTimeline] = []
    facts: dict[str, float | None] = {}
    alignment: Alignment | None = None
    stragglers: list[Straggler] = []
    findings: list[Finding] = []
    not_evaluated: dict[str, str] = {}
    checklist: list[ChecklistItem] = []
    warnings: list[str]
