"""A HuggingFace ``config.json`` as a `ModelShape`.

Only architectures whose every parameter is accounted for here are read: a near guess would pass for a count. Each
family below follows its class in ``transformers`` (``models/<type>/configuration_*.py`` and ``modeling_*.py``), whose
defaults apply where the file leaves a key out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from steptime.errors import UsageError
from steptime.roofline.shape import Layer, ModelShape

_REMEDY = "or give the parameter count with --params"


class Config:
    """The keys of one file, read with their type checked; `origin` names the file in errors."""

    def __init__(self, keys: Mapping[str, object], origin: str) -> None:
        self.keys = keys
        self.origin = origin

    def fault(self, what: str) -> UsageError:
        """The error for a fault in this file."""
        return UsageError(f"{self.origin}: {what}: give a complete config.json, {_REMEDY}")

    def has(self, *names: str) -> bool:
        """Is one of these keys there and not null?"""
        return any(self.keys.get(name) is not None for name in names)

    def count(self, *names: str, default: int | None = None) -> int:
        """A positive whole number under the first of `names` that is there."""
        for name in names:
            value = self.keys.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self.fault(f"{name} = {value!r} is not a positive whole number")
            return value
        if default is None:
            raise self.fault(f"{' or '.join(names)} is missing")
        return default

    def amount(self, name: str, default: int = 0) -> int:
        """As `count`, but zero is allowed."""
        value = self.keys.get(name, default)
        return 0 if value in (None, 0) else self.count(name, default=default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A truth value."""
        value = self.keys.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(f"{name} = {value!r} is not true or false")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers; empty where absent."""
        value = self.keys.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.fault(f"{name} is not a list of whole numbers")
        return value


@dataclass(frozen=True, slots=True)
class _Family:
    """What a llama-like architecture does by default, and which biases and norms it adds."""

    kv_heads: int | None = None
    window: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    #: Attention bias, expert bias and one attention sink a head.
    gpt_oss: bool = False
    experts: int = 0
    top_k: int = 0
    expert_width: str = "moe_intermediate_size"
    shared_width: int = 0


#: Defaults of the configuration classes. `kv_heads` None means: as many as heads.
_LLAMA_LIKE = {
    "llama": _Family(),
    "mistral": _Family(kv_heads=8, window=4096),
    "mixtral": _Family(kv_heads=8, experts=8, top_k=2, expert_width="intermediate_size"),
    "qwen2": _Family(kv_heads=32, window=4096, qkv_bias=True),
    "qwen2_moe": _Family(kv_heads=16, window=4096, qkv_bias=True, experts=60, top_k=4, shared_width=5632),
    "qwen3": _Family(kv_heads=32, window=4096, qk_norm=True),
    "qwen3_moe": _Family(kv_heads=4, window=4096, qk_norm=True, experts=128, top_k=8),
    "gpt_oss": _Family(kv_heads=8, window=128, gpt_oss=True, experts=128, top_k=4, expert_width="intermediate_size"),
}


def shape_from_config(keys: Mapping[str, object], name: str, origin: str) -> ModelShape:
    """The shape that a parsed ``config.json`` describes.

    Raises:
        UsageError: the architecture is not one of `ARCHITECTURES`, or a key is missing or makes no sense.
    """
    inner = keys.get("text_config")
    if isinstance(inner, Mapping):
        shape = shape_from_config(inner, name, origin)
        return replace(shape, notes=(*shape.notes, "only the language model is counted (text_config)"))
    config = Config(keys, origin)
    kind = keys.get("model_type")
    read = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if read is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UsageError(f"{origin}: model_type {kind!r} is not one that steptime can count ({known}): {_REMEDY[3:]}")
    return replace(read(config), name=name, source=origin)


def _llama_like(config: Config) -> ModelShape:
    family = _LLAMA_LIKE[str(config.keys["model_type"])]
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    # An explicit null means multi-head attention, in every family.
    absent = family.kv_heads if "num_key_value_heads" not in config.keys else None
    kv_heads = config.count("num_key_value_heads", default=absent or heads)
    default_width = 64 if family.gpt_oss else 128 if family.qk_norm else max(hidden // heads, 1)
    width = config.count("head_dim", default=default_width)
    if heads % kv_heads:
        raise config.fault(f"{heads} heads can't share {kv_heads} key-value heads")
    queries, keys = heads * width, kv_heads * width
    all_bias = family.gpt_oss or config.flag("attention_bias")
    vectors = 2 * hidden
    vectors += queries + 2 * keys if family.qkv_bias or all_bias else 0
    vectors += hidden if all_bias else 0
    vectors += 2 * width if family.qk_norm else 0
    vectors += heads if family.gpt_oss else 0
    attention = hidden * (2 * queries + 2 * keys)
    count = config.count("num_hidden_layers")
    layers = []
    for index, window in enumerate(_windows(config, family, count)):
        mlp = _mlp(config, family, hidden, index)
        layers.append(replace(mlp, attention=attention, vectors=vectors + mlp.vectors, window=window))
    return ModelShape(
        name="",
        source="",
        layers=tuple(layers),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        qk_head_dim=width,
        v_head_dim=width,
        vocab=config.count("vocab_size"),
        tied=config.flag("tie_word_embeddings"),
        outer_vectors=hidden,
    )


def _mlp(config: Config, family: _Family, hidden: int, index: int) -> Layer:
    """The feed-forward half of one layer: gated (3 matrices), dense or a mixture of experts."""
    sparse = family.experts and index not in config.numbers("mlp_only_layers")
    if not sparse or (index + 1) % config.count("decoder_sparse_step", default=1):
        width = config.count("intermediate_size")
        bias = 2 * width + hidden if config.flag("mlp_bias") else 0
        return Layer(attention=0, mlp=3 * hidden * width, vectors=bias)
    experts = config.count("num_local_experts", "num_experts", default=family.experts)
    top_k = config.count("num_experts_per_tok", "experts_per_token", default=family.top_k)
    if top_k > experts:
        raise config.fault(f"{top_k} experts for a token, but only {experts} experts")
    width = config.count(family.expert_width)
    shared = config.amount("shared_expert_intermediate_size", default=family.shared_width)
    expert = 3 * hidden * width
    bias = 2 * width + hidden if family.gpt_oss else 0
    return Layer(
        attention=0,
        mlp=top_k * expert + 3 * hidden * shared,
        mlp_idle=(experts - top_k) * expert,
        # A shared expert has a gate of its own: one row.
        router=hidden * (experts + (1 if shared else 0)),
        vectors=top_k * bias + (experts if family.gpt_oss else 0),
        vectors_idle=(experts - top_k) * bias,
    )


def _windows(config: Config, family: _Family, count: int) -> list[int | None]:
    """How far back each layer attends; None without a limit."""
    window = config.keys.get("sliding_window", family.window)
    kinds = config.keys.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != count or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise config.fault(f"layer_types are not {count} times full_attention or sliding_attention")
        limit = config.count("sliding_window", default=family.window) if "sliding_attention" in kinds else None
        return [limit if kind == "sliding_attention" else None for kind in kinds]
    qwen = family.qkv_bias or family.qk_norm
    if window is None or (qwen and not config.flag("use_sliding_window")):
        return [None] * count
    limit = config.count("sliding_window", default=family.window)
    if family.gpt_oss:
        return [None if index % 2 else limit for index in range(count)]
    # Qwen: the first `max_window_layers` layers attend to everything.
    first = config.count("max_window_layers", default=28) if qwen else 0
    return [limit if index >= first else None for index in range(count)]


def _deepseek(config: Config) -> ModelShape:
    """DeepSeek V2 and V3: latent attention (MLA), first layers dense, routed and shared experts."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    rope, v_width = config.count("qk_rope_head_dim"), config.count("v_head_dim")
    qk_width = config.count("qk_nope_head_dim") + rope
    q_rank, kv_rank = config.amount("q_lora_rank"), config.count("kv_lora_rank")
    q = q_rank * (hidden + heads * qk_width) if q_rank else hidden * heads * qk_width
    kv = hidden * (kv_rank + rope) + kv_rank * heads * (qk_width - rope + v_width)
    attention = q + kv + heads * v_width * hidden
    if config.flag("attention_bias"):
        raise config.fault("attention_bias is not counted for this architecture")
    dense = config.amount("first_k_dense_replace")
    step = config.count("moe_layer_freq", default=1)
    experts, top_k = config.count("n_routed_experts"), config.count("num_experts_per_tok")
    if top_k > experts:
        raise config.fault(f"{top_k} experts for a token, but only {experts} experts")
    expert = 3 * hidden * config.count("moe_intermediate_size")
    norms = 2 * hidden + q_rank + kv_rank
    # V3 corrects the router's scores by a bias an expert.
    correction = experts if config.keys["model_type"] == "deepseek_v3" else 0
    plain = Layer(
        attention,
        3 * hidden * config.count("intermediate_size"),
        vectors=norms,
        low_rank_norms=q_rank + kv_rank,
    )
    mixture = replace(
        plain,
        mlp=expert * (top_k + config.amount("n_shared_experts")),
        mlp_idle=expert * (experts - top_k),
        router=hidden * experts,
        vectors=norms + correction,
    )
    count = config.count("num_hidden_layers")
    notes = ("the multi-token prediction module is not counted",) if config.amount("num_nextn_predict_layers") else ()
    return ModelShape(
        name="",
        source="",
        layers=tuple(plain if index < dense or index % step else mixture for index in range(count)),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        qk_head_dim=qk_width,
        v_head_dim=v_width,
        vocab=config.count("vocab_size"),
        tied=config.flag("tie_word_embeddings"),
        outer_vectors=hidden,
        notes=notes,
    )


def _classic(config: Config, *, inner: int, tied: bool, positions: int = 0, outer_norms: int = 1) -> ModelShape:
    """Full attention, two feed-forward matrices, a bias on every matrix, two layer norms a layer (GPT-2 and kin)."""
    hidden = config.count("hidden_size", "n_embd", "n_embed")
    heads = config.count("num_attention_heads", "n_head")
    if hidden % heads:
        raise config.fault(f"hidden size {hidden} is not a multiple of {heads} heads")
    biases = 4 * hidden + inner + hidden
    layer = Layer(attention=4 * hidden * hidden, mlp=2 * hidden * inner, vectors=biases + 4 * hidden)
    return ModelShape(
        name="",
        source="",
        layers=(layer,) * config.count("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        qk_head_dim=hidden // heads,
        v_head_dim=hidden // heads,
        vocab=config.count("vocab_size"),
        tied=config.flag("tie_word_embeddings", default=tied),
        positions=positions * hidden,
        outer_vectors=2 * hidden * outer_norms,
        gated=False,
    )


def _gpt2(config: Config) -> ModelShape:
    inner = config.count("n_inner", default=4 * config.count("n_embd", "hidden_size"))
    return _classic(config, inner=inner, tied=True, positions=config.count("n_positions", "n_ctx", default=1024))


def _opt(config: Config) -> ModelShape:
    hidden = config.count("hidden_size")
    if config.count("word_embed_proj_dim", default=hidden) != hidden or not config.flag(
        "do_layer_norm_before", default=True
    ):
        raise config.fault("a projected embedding or a norm after the layer (OPT-350m) is not counted")
    # OPT's position table starts at row 2.
    positions = config.count("max_position_embeddings", default=2048) + 2
    return _classic(config, inner=config.count("ffn_dim"), tied=True, positions=positions)


def _bloom(config: Config) -> ModelShape:
    # Two outer norms: one follows the embedding. Positions are ALiBi, without parameters.
    return _classic(config, inner=4 * config.count("hidden_size", "n_embed"), tied=True, outer_norms=2)


def _gpt_neox(config: Config) -> ModelShape:
    if not config.flag("attention_bias", default=True):
        raise config.fault("attention_bias = false is not counted for this architecture")
    return _classic(config, inner=config.count("intermediate_size"), tied=False)


#: One row an architecture: the `model_type` of ``config.json`` and what reads it.
ARCHITECTURES: dict[str, Callable[[Config], ModelShape]] = {
    **dict.fromkeys(_LLAMA_LIKE, _llama_like),
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "opt": _opt,
    "bloom": _bloom,
    "gpt_neox": _gpt_neox,
}
