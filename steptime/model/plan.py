"""What a plan holds: how often a job of so many GPUs fails, the checkpoint interval that follows, and what fits.

Times are float seconds (they are planned, not measured), sizes int bytes, shares 0 to 1. None means "can't tell from
what was given", never zero.
"""

from __future__ import annotations

import msgspec

from steptime.model.inputs import Tool

#: 1: first version (2026-11).
PLAN_SCHEMA_VERSION = 1
PLAN_KIND = "goodput plan"


class PlanAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned.

    mtbf_gpu_s: mean time between failures of one GPU with its share of host and network, that stop the job.
    pause_s: how long training stands still for one checkpoint. write_s: how long it is written after that, while
    training goes on; until then it can't be restored. 0 for a checkpoint that is written in its pause.
    restart_s: from a failure to the first new step: detection, replacement, loading.
    weibull_shape: of the gaps between failures of the job; 1 is exponential, below 1 failures come in clusters.
    spares: hosts that can replace a failed one at once, None for as many as are needed; repair_s: until a failed host
    is a spare again. interval_s: the work between two checkpoints today, None if not told.
    """

    gpus: int
    mtbf_gpu_s: float
    pause_s: float
    restart_s: float
    write_s: float = 0.0
    weibull_shape: float = 1.0
    spares: int | None = None
    repair_s: float = 0.0
    interval_s: float | None = None
    horizon_s: float = 54 * 86400.0
    runs: int = 1000
    seed: int = 0

    @property
    def mtbf_job_s(self) -> float:
        """A synchronous job stops when any of its GPUs does: the mean over the number of GPUs."""
        return self.mtbf_gpu_s / self.gpus

    @property
    def is_async(self) -> bool:
        """Whether a checkpoint is written while training goes on."""
        return self.write_s > 0


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput by interval, in columns, from simulated runs with the same failures for every interval.

    low, high: 95 % confidence interval of the mean. run_low, run_high: 5th and 95th percentile of single runs.
    first_order: by the first-order formula, the share of time left for work.
    """

    interval_s: list[float]
    goodput: list[float]
    low: list[float]
    high: list[float]
    run_low: list[float]
    run_high: list[float]
    first_order: list[float] = []


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the time of an average run; they add up to 1."""

    work: float
    checkpoint: float
    lost: float
    restart: float
    spare_wait: float


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One interval, simulated: goodput with its 95 % confidence interval, and where the time goes.

    checkpoints, failures: the mean number of them in a run.
    """

    interval_s: float
    goodput: float
    low: float
    high: float
    run_low: float
    run_high: float
    split: Split
    checkpoints: float
    failures: float


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best interval on the grid.

    Those from `from_s` to `to_s` can't be told from it (paired, 95 %); those from `flat_from_s` to `flat_to_s` lose at
    most a tenth of a point against it.
    """

    at: Chosen
    from_s: float
    to_s: float
    flat_from_s: float
    flat_to_s: float


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The plan with one thing changed, at the best interval that this change gives.

    gain: goodput minus that of the plan as asked, at its best interval, on the same failures where they are the same.
    """

    title: str
    gpus: int
    mtbf_job_s: float
    pause_s: float
    restart_s: float
    write_s: float
    interval_s: float
    goodput: float
    low: float
    high: float
    gain: float


class FirstOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first-order overhead per unit of useful work at one interval: pause/τ + (τ/2 + restart)/MTBF."""

    interval_s: float
    checkpoint: float
    rework: float
    restart: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.checkpoint + self.rework + self.restart


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """As much of a model as its bytes depend on; widths are of one layer, and 0 layers mean that none is known.

    query_width, key_width, value_width, attention_width: elements a token has of each (the last: what attention puts
    out). mlp_width: of the feed-forward half, experts in use together. gated: three matrices there, not two; such
    models are taken to train without dropout. table_parameters, head_parameters: the embedding and the output head.
    """

    name: str
    source: str
    parameters: int
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    query_width: int = 0
    key_width: int = 0
    value_width: int = 0
    attention_width: int = 0
    mlp_width: int = 0
    gated: bool = True
    vocab: int = 0
    table_parameters: int = 0
    head_parameters: int = 0
    tied: bool = False


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is spread over GPUs, and what one of them works on at a time.

    zero: ZeRO's stage (0 to 3). recompute: ``none``, ``selective`` (the core of attention, as FlashAttention does it)
    or ``full``. sequence_parallel: Megatron's, which splits over the tensor-parallel ranks what they else all hold.
    fused_gate: the activated gate is not kept, as in a fused kernel (Megatron, Liger, torch.compile).
    """

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    micro_batch: int = 1
    sequence: int = 4096
    recompute: str = "selective"
    sequence_parallel: bool = True
    fused_gate: bool = False

    @property
    def data(self) -> int:
        """Ranks that work on different data."""
        return self.gpus // (self.tensor * self.pipeline)


class BytesPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of something that takes bytes, with the formula in words."""

    name: str
    bytes: int
    formula: str


class CheckpointBytes(msgspec.Struct, frozen=True, kw_only=True):
    """The states of a model of `parameters`, in parts; `total` is what the plan writes."""

    model: str
    parameters: int
    parts: list[BytesPart]
    total: int
    without_gradients: int


class RankBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank holds under one choice of sharding and recompute.

    verdict: ``fits``, ``tight`` (the margin for what no formula counts is used up) or ``does not fit``.
    """

    zero: int
    recompute: str
    parts: list[BytesPart]
    total: int
    verdict: str


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The byte inventory of the fullest rank, for each ZeRO stage and each kind of recompute.

    chosen: the row that was asked for. stage: which pipeline stage that rank belongs to. margin: the share of the
    memory that is kept for what no formula counts.
    """

    model: str
    source: str
    parameters: int
    gpu: str
    memory_bytes: int
    margin: float
    layout: Layout
    stage: str
    chosen: RankBytes
    table: list[RankBytes]
    notes: list[str]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``goodput plan`` found out.

    young_s, daly_s: the classical intervals. exact_s, exact_goodput: the best interval of the renewal-reward
    expectation and its goodput, None where failures are not exponential or spares can run out. warnings: what makes the
    figures less sure than they look.
    """

    schema_version: int = PLAN_SCHEMA_VERSION
    kind: str = PLAN_KIND
    tool: Tool
    ask: PlanAsk
    mtbf_job_s: float
    young_s: float
    daly_s: float
    first_order: FirstOrder
    exact_s: float | None
    exact_goodput: float | None
    curve: Curve
    best: Best
    today: Chosen | None
    sensitivity: list[Scenario]
    writing: list[Scenario]
    checkpoint: CheckpointBytes | None = None
    fit: Fit | None = None
    notes: list[str] = []
    warnings: list[str] = []
