"""The ranks together: one clock, and who held up the job."""

from __future__ import annotations

import msgspec


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """Who held up the job, and why.

    kind: ``straggler`` (the same rank across steps), ``jitter`` (another rank each time, or any of them: all do the
    same and who is last is chance), ``once`` or ``unclear``. rank: None for jitter, or where a whole host is meant;
    ranks: all that are meant. cause: "slower kernels", "more work", "slow link", the id of a host leaf, "not recorded"
    or "not separable"; leaf: where it shows; also: what else holds a good part of the lateness. through: ranks that it
    kept and that then kept others. steps: in which it led. lost_ns: what it cost each other rank over those steps,
    share: of their usual length. recorded: whether the rank's own file is among the inputs.
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
    also: list[str] = []


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


class PipelineActions(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one pipeline in columns, one entry a forward or backward pass of a micro-batch through a stage.

    rank: the pipeline's rank of each stage; step: its number. stage, chunk, micro_batch: indices from 0 (micro_batch
    -1: unknown); backward: whether it is one; start_ns counts from the first forward pass.
    """

    step: int
    ranks: list[int]
    stage: list[int]
    chunk: list[int]
    micro_batch: list[int]
    backward: list[bool]
    start_ns: list[int]
    dur_ns: list[int]


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline, as its messages show it.

    stages: the ranks of each stage, in the order of the forward pass. schedule: ``gpipe``, ``1f1b``, ``interleaved``,
    ``zero-bubble``, or None if it is none of them; chunks: pieces of the model on each stage. forward_ns, backward_ns:
    by stage, the usual compute of one micro-batch. phase_ns: mean length of the pipelined phase, from the first forward
    pass of any stage to the last backward pass. Shares are of that phase, mean over its ranks: bubble_share was waited,
    schedule_share would be with equal stages in the recorded order, closed_form_share is ``(p-1) / (v*m + p-1)``. why:
    why the bubble could not be split; None if it was.
    """

    stages: list[list[int]]
    schedule: str | None
    chunks: int
    micro_batches: int
    forward_ns: list[int]
    backward_ns: list[int]
    phase_ns: int | None = None
    bubble_share: float | None = None
    schedule_share: float | None = None
    closed_form_share: float | None = None
    why: str | None = None
    actions: PipelineActions | None = None
