"""FLOPs per token and MFU, by named convention.

Public tools divide by the same peak and still print MFU 12 % apart for one run, because they count different FLOPs.
So every figure here carries its convention's statement. Symbols: L layers, H query heads, S sequence length, d_qk and
d_v the widths of a query and a value head; a multiply-add is 2 FLOPs and the backward pass costs twice the forward,
hence the factor 6.

Attention per token, forward and backward, is ``6 * H * (d_qk + d_v) * pairs``, summed over the layers; grouped
key-value heads do not change it. `pairs` is the number of tokens that one token attends to: min(window, S) without the
causal mask, and with it the mean over the sequence, w - w*w/(2S) for w = min(window, S), which is S/2 without a window.
(Megatron-LM itself ignores windows.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steptime.errors import UsageError
from steptime.roofline.shape import ModelShape

#: What may be run again in the backward pass; the FLOPs of it count in HFU only.
RECOMPUTE = ("none", "selective", "full")

#: Megatron pads the vocabulary to a multiple of this (--make-vocab-size-divisible-by), times tensor-parallel size.
_MEGATRON_VOCAB_MULTIPLE = 128
#: The integer factors that a wrong number of tokens makes: ranks, micro-batches, accumulation steps.
_FACTORS = range(2, 65)
#: Two counts of one run differ by this much for honest reasons, so a ratio this near to an integer is one.
_FACTOR_TOLERANCE = 0.03
#: Above 8 a relative tolerance alone would call any ratio an integer.
_FACTOR_SLACK = 0.25


@dataclass(frozen=True, slots=True)
class Convention:
    """A public way to count model FLOPs; the texts are printed beside each MFU that uses it."""

    name: str
    #: Matrix weights that a token is multiplied with, in parameters.
    weights: Callable[[ModelShape], int]
    weights_text: str
    attention: bool
    causal: bool
    embedding_text: str
    #: Where the formula stands.
    source: str

    @property
    def attention_text(self) -> str:
        """Whether attention is counted, and which part of the score matrix."""
        if not self.attention:
            return "attention not counted"
        return "attention counted, causal half" if self.causal else "attention counted in full (no causal half)"

    @property
    def causal_factor(self) -> float | None:
        """The share of the score matrix that is counted; None where attention is not."""
        if not self.attention:
            return None
        return 0.5 if self.causal else 1.0


def _torchtitan_weights(model: ModelShape) -> int:
    return model.active_parameters - model.embedding_parameters


def _megatron_weights(model: ModelShape) -> int:
    # Routers are left out and the norms inside MLA are counted, as in its num_floating_point_operations.
    rows = -(-model.vocab // _MEGATRON_VOCAB_MULTIPLE) * _MEGATRON_VOCAB_MULTIPLE
    return model.counted + model.layer_matmul_parameters + model.low_rank_norms + rows * model.hidden


def _nanotron_weights(model: ModelShape) -> int:
    return model.counted + model.layer_matmul_parameters + model.head_parameters


def _all_weights(model: ModelShape) -> int:
    return model.active_parameters


CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention(
            "torchtitan",
            _torchtitan_weights,
            "6 x parameters in use (routed experts by top k; norms and biases included)",
            attention=True,
            causal=False,
            embedding_text="input embedding not counted unless tied, output head counted",
            source="pytorch/torchtitan, torchtitan/models/utils.py",
        ),
        Convention(
            "megatron",
            _megatron_weights,
            "6 x matrix weights in use (routers not counted)",
            attention=True,
            causal=True,
            embedding_text="input embedding not counted, output head counted with the vocabulary padded to 128",
            source="NVIDIA/Megatron-LM, megatron/training/training.py, num_floating_point_operations",
        ),
        Convention(
            "palm",
            _all_weights,
            "6 x all parameters in use",
            attention=True,
            causal=False,
            embedding_text="embeddings counted",
            source="PaLM paper (arXiv:2204.02311), appendix B: 6N + 12LHQT",
        ),
        Convention(
            "nanotron",
            _nanotron_weights,
            "6 x matrix weights in use (routers not counted)",
            attention=True,
            causal=False,
            embedding_text="input embedding not counted, output head counted",
            source="huggingface/nanotron, get_flops",
        ),
        Convention(
            "6n",
            _all_weights,
            "6 x all parameters in use",
            attention=False,
            causal=False,
            embedding_text="embeddings counted",
            source="scaling-law rule C = 6ND (arXiv:2001.08361)",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class FlopsPerToken:
    """FLOPs of one token in training. MFU uses `model`, HFU `hardware`; both are forward plus backward."""

    convention: Convention
    #: Weights and attention, forward and backward, without recompute.
    matmul: int
    attention: int
    #: FLOPs that run a second time (recompute); part of `hardware` only.
    recomputed: int
    recompute: str
    statement: str

    @property
    def model(self) -> int:
        """Forward and backward without recompute: the numerator of MFU."""
        return self.matmul + self.attention

    @property
    def forward(self) -> int:
        """The forward pass alone: a third."""
        return self.model // 3

    @property
    def hardware(self) -> int:
        """With recompute: the numerator of HFU."""
        return self.model + self.recomputed


def flops_per_token(model: ModelShape, seq_len: int, convention: str, recompute: str = "none") -> FlopsPerToken:
    """FLOPs that `convention` counts for one token of a sequence of `seq_len` tokens.

    `recompute` "full" runs the whole forward again, so `hardware` is 4/3 of `model` (8N for 6N); "selective" runs only
    the attention core again, a third of `attention` (the HFU column of arXiv:2205.05198 adds the whole of it). A model
    known only by its parameter count has no attention in any convention; the statement says so.

    Raises:
        UsageError: no such convention or recompute, or a sequence without tokens.
    """
    chosen = CONVENTIONS.get(convention.lower())
    if chosen is None:
        raise UsageError(f"MFU convention {convention!r} is not known: choose one of {', '.join(CONVENTIONS)}")
    if recompute not in RECOMPUTE:
        raise UsageError(f"recompute {recompute!r} is not known: choose one of {', '.join(RECOMPUTE)}")
    if seq_len < 1:
        raise UsageError(f"--seq-len {seq_len}: a sequence has at least one token")
    matmul = 6 * chosen.weights(model)
    attention = _attention(model, seq_len, causal=chosen.causal) if chosen.attention else 0
    recomputed = {"none": 0, "selective": attention // 3, "full": (matmul + attention) // 3}[recompute]
    return FlopsPerToken(
        chosen, matmul, attention, recomputed, recompute, _statement(chosen, model, seq_len, recompute)
    )


def _attention(model: ModelShape, seq_len: int, *, causal: bool) -> int:
    """FLOPs of attention for one token, forward and backward, over all layers."""
    per_pair = 6 * model.heads * (model.qk_head_dim + model.v_head_dim)
    total = 0
    for layer in model.layers:
        reach = min(layer.window or seq_len, seq_len)
        if causal:
            total += per_pair * (2 * seq_len * reach - reach * reach) // (2 * seq_len)
        else:
            total += per_pair * reach
    return total


def _statement(convention: Convention, model: ModelShape, seq_len: int, recompute: str) -> str:
    attention = convention.attention_text
    if convention.attention and not model.layers:
        attention = "attention not counted, because only a parameter count is known"
    elif convention.attention:
        windowed = sum(1 for layer in model.layers if layer.window is not None and layer.window < seq_len)
        attention += f" at {seq_len} tokens"
        if windowed:
            attention += f", {windowed} of {len(model.layers)} layers by their sliding window"
    embedding = convention.embedding_text if model.layers else "the count is taken as it is"
    rerun = {"none": "no recompute", "selective": "attention run again in HFU", "full": "forward run again in HFU"}
    return f"{convention.name}: {convention.weights_text}; {attention}; {embedding}; {rerun[recompute]}"


def mfu(flops_per_step: float, step_seconds: float, gpus: int, peak: float) -> float:
    """Model FLOPs utilization, F / (T * D * P), as a share (0 to 1; above 1 means that an input is wrong).

    `flops_per_step` is FLOPs of one update over all GPUs, `peak` the dense peak of one GPU in FLOP/s.

    Raises:
        UsageError: one of the divisors is not positive, or the FLOPs are negative.
    """
    for name, value in (("step time", step_seconds), ("number of GPUs", gpus), ("peak", peak)):
        if not value > 0:
            raise UsageError(f"MFU needs a positive {name}, not {value}: check --peak and --gpu")
    if not flops_per_step >= 0:
        raise UsageError(f"MFU needs FLOPs of at least 0, not {flops_per_step}: check --model and --tokens-per-step")
    return flops_per_step / (step_seconds * gpus * peak)


def integer_factor(a: float, b: float) -> int | None:
    """The k in 2 to 64 by which one of two positive numbers is the other's multiple, or None.

    Within 3 % of k, and never more than 0.25 away from it.
    """
    if not (a > 0 and b > 0):
        return None
    ratio = max(a, b) / min(a, b)
    if ratio > _FACTORS.stop:
        return None
    factor = round(ratio)
    near = abs(ratio - factor) <= min(_FACTOR_TOLERANCE * factor, _FACTOR_SLACK)
    return factor if factor in _FACTORS and near else None


def check_tokens(model_flops: float, counted_flops: float, gpus: int) -> str | None:
    """One line when the tokens a step are wrong by a whole factor, else None.

    `model_flops` is FLOPs per token times ``--tokens-per-step``, `counted_flops` what the trace's shapes add up to over
    all `gpus`; both of one update.
    """
    factor = integer_factor(model_flops, counted_flops)
    if factor is None:
        return None
    if model_flops > counted_flops:
        return (
            f"--tokens-per-step is about {factor} times what the trace counts: "
            "give the tokens of one update over all GPUs, and check that every rank was analysed"
        )
    whose = "one GPU or one micro-batch" if factor == gpus else "one micro-batch"
    return (
        f"--tokens-per-step is about 1/{factor} of what the trace counts: it looks like the tokens of {whose}; "
        "give the tokens of one update over all GPUs"
    )
