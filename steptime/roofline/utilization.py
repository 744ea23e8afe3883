"""MFU: from the trace's own FLOPs or the model's, reconciled, or why it can't be told (DESIGN 1.2, 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from steptime.errors import UsageError
from steptime.roofline.pricing import Roof
from steptime.roofline.useful import (
    MAX_ABOVE_PEAK,
    MIN_COVERAGE,
    Counts,
    count_useful,
    with_model,
    with_trace,
    without_useful,
)
from steptime.timeline.summary import DeviceTimeline

if TYPE_CHECKING:
    from steptime.roofline.shape import ModelShape

#: The conventions whose MFU stands beside the ledger's.
SHOWN = ("torchtitan", "megatron", "palm", "6n")
#: Trace and model FLOPs further apart than this are explained, or said to be unexplained.
GAP = 0.03


@dataclass(frozen=True, slots=True)
class ModelAsk:
    """What the user said about the model: a config, preset or parameter count, and the tokens of one update."""

    model: str | None = None
    params: str | None = None
    tokens_per_step: int | None = None
    seq_len: int | None = None

    def shape(self) -> ModelShape | None:
        """The model, or None if none was given.

        Raises:
            UsageError: both or a wrong one was given, or tokens are missing.
        """
        if self.model is None and self.params is None:
            if self.tokens_per_step is not None:
                raise UsageError("--tokens-per-step needs --model or --params: without a model it says nothing")
            return None
        if self.model is not None and self.params is not None:
            raise UsageError("--model and --params both give the model: leave one out")
        if self.tokens_per_step is None:
            raise UsageError("--model and --params need --tokens-per-step, the tokens of one update over all GPUs")
        # Few runs name a model, and every run pays for what is imported.
        from steptime.roofline.models import load_model, parse_parameters

        return load_model(self.model) if self.model is not None else parse_parameters(self.params or "")


class Utilization(msgspec.Struct):
    """What the report says about useful work. `timelines` are the given ones with productive time taken out.

    source: ``trace``, ``model`` or None; mfu_by: MFU by convention; model_flops: of one rank-step; notes: conventions,
    peak and its source; warnings: why something is missing or does not agree.
    """

    timelines: list[DeviceTimeline]
    counts: Counts
    source: str | None = None
    model_flops: int | None = None
    mfu_by: dict[str, float] = msgspec.field(default_factory=dict)
    above_peak_ns: int | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)


def utilization(
    timelines: Sequence[tuple[DeviceTimeline, list[int]]], roof: Roof, ask: ModelAsk, gpus: int
) -> Utilization:
    """Decide where FLOPs come from and take productive time out of the leaves.

    Args:
        timelines: each rank's timeline with the indices of its counted steps.
        roof: the roof of the device.
        ask: what the user said about the model.
        gpus: GPUs of the job, over which one update's tokens are spread.
    """
    counts = count_useful(timelines)
    rank_steps = sum(len(chosen) for _, chosen in timelines)
    total_ns = sum(timeline.steps[at].dur_ns for timeline, chosen in timelines for at in chosen)
    result = Utilization([without_useful(timeline) for timeline, _ in timelines], counts)
    if all(timeline.device is None for timeline, _ in timelines):
        result.warnings.append("MFU is not given: these ranks ran on the CPU, which has no peak to compare with")
        return result
    by_model = _model(result, roof, ask, gpus, total_ns / max(rank_steps, 1))
    reason = _why_not_trace(counts, roof, total_ns)
    if reason is None and counts.model_flops is not None:
        result.source = "trace"
        result.model_flops = counts.model_flops // rank_steps
        result.above_peak_ns = counts.above_peak_ns
        result.timelines = [with_trace(timeline) for timeline, _ in timelines]
        result.notes.append(f"from the trace: model FLOPs of {counts.coverage or 0:.1%} of matmul and attention time")
    elif by_model is not None and roof.peak is not None:
        result.source = "model"
        result.model_flops = by_model
        ideal_ns = int(1e9 * by_model / roof.peak)
        result.timelines = [with_model(timeline, ideal_ns) for timeline, _ in timelines]
        result.warnings.append(f"FLOPs come from the model, since those of the trace don't do: {reason}")
    else:
        result.warnings.append(f"MFU is not given: {reason or 'no op with FLOPs was recorded'}")
    if roof.peak is not None:
        result.notes.append(f"peak {roof.peak / 1e12:g} TFLOP/s dense {roof.dtype} ({roof.source})")
    result.notes.extend(roof.notes)
    if by_model is not None and counts.model_flops is not None and rank_steps:
        result.warnings.extend(_gap(counts, counts.model_flops / rank_steps, by_model, gpus, ask))
    return result


def _why_not_trace(counts: Counts, roof: Roof, total_ns: int) -> str | None:
    """Why the trace's FLOPs can't be turned into MFU; None if they can."""
    if roof.peak is None:
        return roof.why or "the peak of the device is not known: give --peak 989.4e12:bf16"
    if counts.coverage is None:
        return "no matmul, convolution or attention kernel ran"
    if counts.model_flops is None or counts.coverage < MIN_COVERAGE:
        return (
            f"only {counts.coverage:.1%} of matmul and attention time has known FLOPs ({MIN_COVERAGE:.0%} are needed): "
            "record with record_shapes=True, or give --model with --tokens-per-step (CUDA graphs record no shapes)"
        )
    if counts.above_peak_ns > MAX_ABOVE_PEAK * total_ns:
        return (
            f"ops would run above the peak for {counts.above_peak_ns / total_ns:.1%} of the time, so FLOPs, dtype or "
            f"peak are wrong; worst: {'; '.join(counts.above)}: check --peak and --dtype"
        )
    return None


def _model(result: Utilization, roof: Roof, ask: ModelAsk, gpus: int, step_ns: float) -> int | None:
    """FLOPs of one GPU's step by the model; fills `mfu_by` and its notes."""
    shape = ask.shape()
    if shape is None or ask.tokens_per_step is None:
        return None
    from steptime.roofline.conventions import flops_per_token, mfu

    names = SHOWN if shape.layers else ("6n",)
    if shape.layers and ask.seq_len is None:
        result.warnings.append("attention is not in the model's FLOPs: give --seq-len to count it")
        names = ("6n",)
    own = None
    for name in names:
        per_token = flops_per_token(shape, ask.seq_len or 1, name)
        flops = per_token.model * ask.tokens_per_step
        # The ledger counts what the mathematics needs: causal attention half, lookups not at all (DESIGN 1.2).
        own = flops // gpus if name == ("megatron" if "megatron" in names else "6n") else own
        result.notes.append(per_token.statement)
        if roof.peak is not None and step_ns > 0:
            result.mfu_by[name] = mfu(flops, step_ns / 1e9, gpus, roof.peak)
    return own


def _counts_attention(ask: ModelAsk) -> bool:
    """Whether the model's FLOPs hold attention: a bare parameter count never does."""
    return ask.seq_len is not None and ask.params is None


def _gap(counts: Counts, traced: float, modelled: int, gpus: int, ask: ModelAsk) -> list[str]:
    """Why the trace's FLOPs and the model's differ, where they do by more than `GAP`."""
    if not modelled or abs(traced / modelled - 1) <= GAP:
        return []
    text = f"the trace counts {traced / 1e9:.2f} GFLOP a step and GPU, the model {modelled / 1e9:.2f}"
    from steptime.roofline.conventions import check_tokens

    tokens = check_tokens(modelled * gpus, traced * gpus, gpus)
    if tokens is not None:
        return [f"{text}: {tokens}"]
    if not _counts_attention(ask) and traced > modelled and counts.attention_flops:
        without = traced - counts.attention_flops / max(counts.rank_steps, 1)
        if abs(without / modelled - 1) <= GAP:
            return [f"{text}: the difference is attention, which 6N leaves out; give --model and --seq-len to count it"]
    if 0.6 < traced / modelled < 0.72:
        return [f"{text}: about two thirds, as with frozen weights or LoRA (no weight gradients)"]
    if counts.coverage is not None and counts.coverage < MIN_COVERAGE:
        return [f"{text}: {1 - counts.coverage:.1%} of matmul and attention time has no shapes"]
    return [f"{text}: why is not known (padding, a different model or other tokens per step are possible)"]
