"""Fit before fast: the bytes of a model's states, and the byte inventory of a rank under a way of splitting the model.

Mixed precision with Adam: 16 bytes a parameter (ZeRO, Rajbhandari et al., SC 2020, section 3.1: 2Ψ weights, 2Ψ
gradients, 12Ψ optimizer states). Activations after Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models" (MLSys 2023, section 4), counted part by part, so that a gated feed-forward half and grouped keys
and values are counted as what they are. For GPT's shape the parts add up to the paper's sbh(34 + 5as/h).
"""

from __future__ import annotations

from typing import NamedTuple

from steptime.errors import UsageError
from steptime.model.plan import BytesPart, CheckpointBytes, Fit, Layout, ModelSize, RankBytes

WEIGHT_BYTES = 2
GRADIENT_BYTES = 2
#: A master copy in FP32 and two moments.
OPTIMIZER_BYTES = 12
STATE_BYTES = WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES
RECOMPUTE = ("none", "selective", "full")
ZERO_STAGES = (0, 1, 2, 3)
#: Kept free for the CUDA context, NCCL's buffers, workspaces and fragmentation, which no formula counts. An assumption.
MARGIN = 0.10
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"
_STATES = (
    ("weights", WEIGHT_BYTES, 3, "2 bytes a parameter (BF16)"),
    ("gradients", GRADIENT_BYTES, 2, "2 bytes a parameter (BF16)"),
    ("optimizer states", OPTIMIZER_BYTES, 1, "12 bytes a parameter (FP32 master copy and Adam's two moments)"),
)


class _Stage(NamedTuple):
    """The rank that is looked at: its place in the pipeline, its parameters, its layers, the micro-batches it holds."""

    name: str
    parameters: int
    layers: int
    in_flight: int
    has_head: bool
    has_table: bool


def checkpoint_bytes(model: ModelSize) -> CheckpointBytes:
    """The states of a model: 16 bytes a parameter, in parts."""
    parts = [
        BytesPart(name="weights (BF16)", bytes=2 * model.parameters, formula="2 bytes a parameter"),
        BytesPart(name="gradients (BF16)", bytes=2 * model.parameters, formula="2 bytes a parameter"),
        BytesPart(name="master weights (FP32)", bytes=4 * model.parameters, formula="4 bytes a parameter"),
        BytesPart(name="first moment (FP32)", bytes=4 * model.parameters, formula="4 bytes a parameter"),
        BytesPart(name="second moment (FP32)", bytes=4 * model.parameters, formula="4 bytes a parameter"),
    ]
    return CheckpointBytes(
        model=model.name,
        parameters=model.parameters,
        parts=parts,
        total=STATE_BYTES * model.parameters,
        without_gradients=(STATE_BYTES - GRADIENT_BYTES) * model.parameters,
    )


def fit(model: ModelSize, layout: Layout, gpu: str, memory_bytes: int) -> Fit:
    """Whether the fullest rank fits into `memory_bytes`, as asked and for every ZeRO stage and kind of recompute.

    Raises:
        UsageError: the GPUs can't be divided that way, or the model has fewer layers or heads than it is divided by.
    """
    _check(model, layout)
    notes = [
        "expert and context parallelism are not laid out: every rank holds its part of all experts, and whole sequences"
    ]
    if not model.layers:
        notes.append("only a parameter count is known of the model: activations and logits are not counted")
    if model.layers % layout.pipeline:
        most = -(-model.layers // layout.pipeline)
        notes.append(f"{model.layers} layers do not divide by {layout.pipeline} stages: the first holds {most}")
    if layout.pipeline > 1:
        notes.append("the pipeline runs 1F1B with at least as many micro-batches as stages")
    table = [rank_bytes(model, layout, zero, kind, memory_bytes)[0] for zero in ZERO_STAGES for kind in RECOMPUTE]
    chosen, stage = rank_bytes(model, layout, layout.zero, layout.recompute, memory_bytes)
    return Fit(
        model=model.name,
        source=model.source,
        parameters=model.parameters,
        gpu=gpu,
        memory_bytes=memory_bytes,
        margin=MARGIN,
        layout=layout,
        stage=stage,
        chosen=chosen,
        table=table,
        notes=notes,
    )


def _check(model: ModelSize, layout: Layout) -> None:
    parts = layout.tensor * layout.pipeline
    if layout.gpus % parts:
        raise UsageError(
            f"{layout.gpus} GPUs can't be divided into {layout.tensor} x {layout.pipeline} (--tp x --pp): "
            f"give a multiple of {parts} with --gpus"
        )
    if model.layers and layout.pipeline > model.layers:
        raise UsageError(f"--pp {layout.pipeline}: {model.name} has only {model.layers} layers: give at most that")
    if model.layers and model.heads % layout.tensor:
        raise UsageError(f"--tp {layout.tensor}: does not divide the {model.heads} heads of {model.name}")


def rank_bytes(model: ModelSize, layout: Layout, zero: int, recompute: str, memory_bytes: int) -> tuple[RankBytes, str]:
    """What the fullest rank holds, and the name of its pipeline stage."""
    found = []
    for stage in _stages(model, layout):
        parts = [*_states(model, layout, zero, stage), *_activations(model, layout, recompute, stage)]
        parts = [part for part in parts if part.bytes]
        found.append((sum(part.bytes for part in parts), parts, stage.name))
    total, parts, name = max(found, key=lambda one: one[0])
    verdict = FITS if total <= (1 - MARGIN) * memory_bytes else TIGHT if total <= memory_bytes else DOES_NOT_FIT
    return RankBytes(zero=zero, recompute=recompute, parts=parts, total=total, verdict=verdict), name


def _stages(model: ModelSize, layout: Layout) -> list[_Stage]:
    """The first and the last stage: one holds the most micro-batches, the other the logits."""
    if layout.pipeline == 1:
        return [_Stage("", model.parameters, model.layers, 1, has_head=True, has_table=True)]
    if not model.layers:
        share = -(-model.parameters // layout.pipeline)
        return [_Stage("each", share, 0, 0, has_head=False, has_table=False)]
    inner = model.parameters - model.table_parameters - (0 if model.tied else model.head_parameters)
    layers = -(-model.layers // layout.pipeline)
    per_stage = inner * layers // model.layers
    return [
        _Stage("first", per_stage + model.table_parameters, layers, layout.pipeline, has_head=False, has_table=True),
        _Stage("last", per_stage + model.head_parameters, layers, 1, has_head=True, has_table=False),
    ]


def _states(model: ModelSize, layout: Layout, zero: int, stage: _Stage) -> list[BytesPart]:
    held = stage.parameters / layout.tensor
    parts = []
    for name, size, from_stage, formula in _STATES:
        sharded = zero >= from_stage and layout.data > 1
        said = f"{formula}, over {layout.data} data-parallel ranks" if sharded else formula
        parts.append(BytesPart(name=name, bytes=round(size * held / (layout.data if sharded else 1)), formula=said))
    if zero == 3 and layout.data > 1 and model.layers:
        inner = model.parameters - model.table_parameters - (0 if model.tied else model.head_parameters)
        layer = inner / model.layers / layout.tensor
        size = round((2 * WEIGHT_BYTES + GRADIENT_BYTES) * layer)
        said = "the weights of two layers and the gradients of one, whole"
        parts.append(BytesPart(name="gathered layers", bytes=size, formula=said))
    return parts


def _activations(model: ModelSize, layout: Layout, recompute: str, stage: _Stage) -> list[BytesPart]:
    if not model.layers:
        return []
    tokens = layout.micro_batch * layout.sequence
    tensor = layout.tensor
    spread = tensor if layout.sequence_parallel else 1
    whole, said = layer_activations(model, layout, "none" if recompute == "none" else "selective")
    parts = []
    if recompute == "full":
        kept, said = 2 * tokens * model.hidden / spread, "the input of each layer, 2sbh"
        working = BytesPart(name="layer being recomputed", bytes=round(whole), formula="what one layer keeps")
        parts.append(working)
    else:
        kept = whole
    held = stage.layers * stage.in_flight
    counted = f"{held} layers" if stage.in_flight == 1 else f"{stage.layers} layers x {stage.in_flight} micro-batches"
    parts.insert(0, BytesPart(name="activations", bytes=round(kept * held), formula=f"{counted}; {said}"))
    if stage.has_table and not model.gated:
        size = tokens * model.hidden * stage.in_flight / spread
        parts.append(BytesPart(name="embedding dropout", bytes=round(size), formula="sbh a micro-batch"))
    if stage.has_head:
        size = 4 * tokens * model.hidden / spread + 4 * tokens * model.vocab / tensor
        parts.append(BytesPart(name="output head", bytes=round(size), formula="4sbh, and logits in FP32, 4sbv"))
    return parts


def layer_activations(model: ModelSize, layout: Layout, recompute: str) -> tuple[float, str]:
    """Bytes that one layer keeps of one micro-batch for its backward pass, on one rank; and the formula in words.

    Korthikanti et al., section 4.1, in bytes, with 2 for an element and 1 for an element of a dropout mask. Held by
    all tensor-parallel ranks unless sequence-parallel: both norms' inputs (4sbh), the inputs of the first matrices of
    both halves (4sbh), two dropout masks (2sbh). Split over them: queries, keys, values, the input of the output
    projection, and the feed-forward half: input and output of GELU; or with a gate, both projections, the activated
    gate (not in a fused kernel) and the product. Scores that are written out (``none``): softmax, its mask and its
    product, 5as²b; without dropout softmax alone, 2as²b.
    """
    tokens = layout.micro_batch * layout.sequence
    spread = layout.tensor if layout.sequence_parallel else 1
    masks = 0 if model.gated else 2
    replicated = (8 + masks) * tokens * model.hidden
    attention = 2 * tokens * (model.query_width + model.key_width + model.value_width + model.attention_width)
    wide = 4 if not model.gated else 6 if layout.fused_gate else 8
    mlp = wide * tokens * model.mlp_width
    scores = (2 if model.gated else 5) * model.heads * layout.sequence * tokens if recompute == "none" else 0
    total = replicated / spread + (attention + mlp + scores) / layout.tensor
    said = f"{8 + masks}sbh + 2sb(q+k+v+o) + {wide}sbf"
    if scores:
        said += f" + {2 if model.gated else 5}as²b"
    if layout.tensor > 1:
        said = f"({said})/t" if layout.sequence_parallel else said.replace("sbh + ", "sbh + (", 1) + ")/t"
    return total, said
