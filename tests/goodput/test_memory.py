"""The byte inventory against published arithmetic, and against what PyTorch keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from steptime.errors import UsageError
from steptime.goodput.memory import (
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    checkpoint_bytes,
    fit,
    layer_activations,
    rank_bytes,
)
from steptime.model.plan import Layout, ModelSize, RankBytes

GB = 10**9
STATES = ("weights", "gradients", "optimizer states")


def gpt(hidden: int, heads: int, layers: int, vocab: int = 51_200, parameters: int = 0) -> ModelSize:
    """A model of GPT's shape: four times as wide in the feed-forward half, every head with its own keys and values."""
    table = vocab * hidden
    return ModelSize(
        name="gpt",
        source="test",
        parameters=parameters or 12 * layers * hidden**2 + table,
        layers=layers,
        hidden=hidden,
        heads=heads,
        query_width=hidden,
        key_width=hidden,
        value_width=hidden,
        attention_width=hidden,
        mlp_width=4 * hidden,
        gated=False,
        vocab=vocab,
        table_parameters=table,
        head_parameters=table,
        tied=True,
    )


#: Llama 3 8B: 8,030,261,248 parameters, the sum of its published shapes.
LLAMA_8B = ModelSize(
    name="Llama 3 8B",
    source="config.json",
    parameters=8_030_261_248,
    layers=32,
    hidden=4096,
    heads=32,
    query_width=4096,
    key_width=1024,
    value_width=1024,
    attention_width=4096,
    mlp_width=14_336,
    vocab=128_256,
    table_parameters=128_256 * 4096,
    head_parameters=128_256 * 4096,
)


def _states(rank: RankBytes) -> dict[str, int]:
    return {part.name: part.bytes for part in rank.parts if part.name in STATES}


def test_the_states_of_llama_3_405b_are_six_and_a_half_terabytes() -> None:
    """16 bytes a parameter: 405e9 · 16 = 6.48e12. Without gradients, which no restart needs: 405e9 · 14 = 5.67e12."""
    checkpoint = checkpoint_bytes(ModelSize(name="405B", source="test", parameters=405 * 10**9))
    assert checkpoint.total == 6_480 * GB
    assert round(checkpoint.total / 1e12, 1) == 6.5
    assert checkpoint.without_gradients == 5_670 * GB
    assert [part.bytes / checkpoint.parameters for part in checkpoint.parts] == [2, 2, 4, 4, 4]
    assert sum(part.bytes for part in checkpoint.parts) == checkpoint.total


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_figure_of_the_zero_paper(zero: int, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, figure 1: Ψ = 7.5e9, 64 ranks, K = 12. 16Ψ = 120 GB;

    4Ψ + 12Ψ/64 = 30 + 1.41 = 31.4; 2Ψ + 14Ψ/64 = 15 + 1.64 = 16.6; 16Ψ/64 = 1.9 GB.
    """
    model = ModelSize(name="7.5B", source="test", parameters=7_500_000_000)
    rank, _ = rank_bytes(model, Layout(gpus=64), zero, "none", 32 * GB)
    assert sum(_states(rank).values()) / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("zero", "expected", "verdict"),
    [
        # 2Ψ + 2Ψ + 12Ψ = 128.5 GB of states alone.
        (0, (16.06, 16.06, 96.36), DOES_NOT_FIT),
        # 12Ψ/8 = 12.05: 44.2 GB. Then activations: see below.
        (1, (16.06, 16.06, 12.05), FITS),
        (2, (16.06, 2.01, 12.05), FITS),
        (3, (2.01, 2.01, 12.05), FITS),
    ],
)
def test_llama_8b_on_eight_gpus_by_zero_stage(zero: int, expected: tuple[float, ...], verdict: str) -> None:
    """Ψ = 8.03e9 on 8 data-parallel GPUs of 80 GB: 2Ψ = 16.06, 12Ψ = 96.36 GB, an eighth from its stage on."""
    rank, _ = rank_bytes(LLAMA_8B, Layout(gpus=8, sequence=4096), zero, "selective", 80 * GB)
    assert [size / GB for size in _states(rank).values()] == pytest.approx(expected, abs=0.01)
    assert rank.verdict == verdict


def test_llama_8b_on_eight_gpus_by_tensor_parallelism() -> None:
    """All states over t = 8: 16Ψ/8 = 16.06 GB, with no help from ZeRO, as there is one data-parallel rank."""
    layout = Layout(gpus=8, tensor=8, sequence=8192)
    ranks = [rank_bytes(LLAMA_8B, layout, zero, "selective", 80 * GB)[0] for zero in range(4)]
    assert [sum(_states(rank).values()) / GB for rank in ranks] == pytest.approx([16.06] * 4, abs=0.01)
    assert {rank.verdict for rank in ranks} == {FITS}


def test_llama_8b_keeps_what_its_layers_compute() -> None:
    """By hand, one sequence of 8,192 tokens, FlashAttention: bytes a token and layer.

    Norms 4h = 16,384; first matrices 4h = 16,384; q, k, v, o: 2 · (4096 + 1024 + 1024 + 4096) = 20,480; gate: 8f =
    114,688; 167,936 in all, times 8,192 tokens and 32 layers = 44.0 GB. The head: 4h + 4v = 529,408 a token, 4.34 GB.
    """
    rank, _ = rank_bytes(LLAMA_8B, Layout(gpus=8, sequence=8192), 1, "selective", 80 * GB)
    parts = {part.name: part.bytes for part in rank.parts}
    assert parts["activations"] == 167_936 * 8192 * 32
    assert parts["output head"] == 529_408 * 8192
    # 44.2 GB of states, 44.0 and 4.3 GB: too much for 80 GB, and full recompute is what makes it fit.
    assert rank.verdict == DOES_NOT_FIT
    full, _ = rank_bytes(LLAMA_8B, Layout(gpus=8, sequence=8192), 1, "full", 80 * GB)
    parts = {part.name: part.bytes for part in full.parts}
    assert parts["activations"] == 2 * 4096 * 8192 * 32
    assert parts["layer being recomputed"] == 167_936 * 8192
    assert full.verdict == FITS


@pytest.mark.parametrize(
    ("hidden", "heads", "sequence", "micro_batch"), [(12_288, 96, 2048, 1), (6144, 64, 2048, 4), (256, 8, 64, 3)]
)
def test_a_layer_of_gpt_keeps_what_the_paper_says(hidden: int, heads: int, sequence: int, micro_batch: int) -> None:
    """Korthikanti et al. 2023: sbh(34 + 5as/h), equation 1; sbh(10 + 24/t + 5as/(ht)), 2; sbh/t·(34 + 5as/h), 4;

    selective recompute leaves out the term of the scores, 34sbh/t (6); a full one keeps 2sbh a layer.
    """
    model = gpt(hidden, heads, 4)
    sbh, scores = sequence * micro_batch * hidden, 5 * heads * sequence / hidden

    def kept(tensor: int, recompute: str, split: bool) -> float:
        layout = Layout(gpus=8, tensor=tensor, micro_batch=micro_batch, sequence=sequence, sequence_parallel=split)
        return layer_activations(model, layout, recompute)[0]

    assert kept(1, "none", True) == pytest.approx(sbh * (34 + scores))
    assert kept(8, "none", False) == pytest.approx(sbh * (10 + 24 / 8 + scores / 8))
    assert kept(8, "none", True) == pytest.approx(sbh / 8 * (34 + scores))
    assert kept(8, "selective", True) == pytest.approx(34 * sbh / 8)
    full, _ = rank_bytes(model, Layout(gpus=1, micro_batch=micro_batch, sequence=sequence), 0, "full", GB)
    assert next(part.bytes for part in full.parts if part.name == "activations") == 2 * sbh * 4


@pytest.mark.parametrize(("hidden", "heads", "term", "saved"), [(12_288, 96, 80, 0.70), (20_480, 128, 64, 0.65)])
def test_selective_recompute_saves_what_the_paper_says(hidden: int, heads: int, term: int, saved: float) -> None:
    """Section 5: for GPT-3 and MT-NLG at s = 2,048 the term 5as/h is 80 and 64; without it, 70 and 65 % less."""
    model, layout = gpt(hidden, heads, 1), Layout(gpus=1, sequence=2048)
    none, selective = layer_activations(model, layout, "none")[0], layer_activations(model, layout, "selective")[0]
    assert (none - selective) / (2048 * hidden) == pytest.approx(term)
    assert 1 - selective / none == pytest.approx(saved, abs=0.006)


def test_llama_3_405b_fits_where_it_was_trained() -> None:
    """Llama 3 paper, table 4 and section 3.3.2: 16,384 GPUs of 80 GB as TP 8, PP 16, DP 128, sequences of 8,192 tokens.

    States and gradients are sharded and weights are not gathered anew for the backward pass (ZeRO 2), and it trained
    "without activation checkpointing". By hand, a token and layer: 8h = 131,072; q, k, v, o: 2 (16,384 + 1,024 + 1,024
    + 16,384) = 69,632; a fused gate, 6f = 319,488; 520,192 bytes, over 8 ranks, times 8,192 tokens, 8 layers and 16
    micro-batches: 68.2 GB, and 7.3 GB of states. Without the fused kernel 8f, 82.1 GB, and it does not fit.
    """
    wide, vocab = 16_384, 128_256
    model = ModelSize(
        name="Llama 3.1 405B",
        source="table 3",
        parameters=405_853_388_800,
        layers=126,
        hidden=wide,
        heads=128,
        query_width=wide,
        key_width=1024,
        value_width=1024,
        attention_width=wide,
        mlp_width=53_248,
        vocab=vocab,
        table_parameters=vocab * wide,
        head_parameters=vocab * wide,
    )
    layout = Layout(gpus=16_384, tensor=8, pipeline=16, sequence=8192, fused_gate=True)
    assert layout.data == 128
    rank, stage = rank_bytes(model, layout, 2, "selective", 80 * 2**30)
    activations = next(part.bytes for part in rank.parts if part.name == "activations")
    assert activations == 520_192 // 8 * 8192 * 8 * 16
    assert activations / GB == pytest.approx(68.2, abs=0.05)
    assert sum(_states(rank).values()) / GB == pytest.approx(7.3, abs=0.05)
    assert (stage, rank.verdict) == ("first", FITS)
    eager = rank_bytes(model, Layout(gpus=16_384, tensor=8, pipeline=16, sequence=8192), 2, "selective", 80 * 2**30)[0]
    assert eager.verdict == DOES_NOT_FIT


def test_the_first_stage_of_a_pipeline_holds_all_layers_of_one_micro_batch() -> None:
    """1F1B keeps p micro-batches of L/p layers on the first stage: as much as without one (section 4.2.3)."""
    model = gpt(1024, 16, 8)
    found = {}
    for stages in (1, 2, 4):
        layout = Layout(gpus=8, pipeline=stages, sequence=512)
        rank, name = rank_bytes(model, layout, 0, "none", GB)
        found[stages] = next(part.bytes for part in rank.parts if part.name == "activations")
        assert name == ("" if stages == 1 else "first")
    assert found[1] == found[2] == found[4]


def test_the_last_stage_is_looked_at_too() -> None:
    """A huge vocabulary on a small model: logits outweigh the micro-batches of the first stage."""
    rank, name = rank_bytes(gpt(64, 4, 2, vocab=500_000), Layout(gpus=2, pipeline=2, sequence=4096), 0, "full", GB)
    assert name == "last"
    assert "output head" in [part.name for part in rank.parts]


class _Kept(nn.Module):
    """One Llama layer of plain PyTorch, without rotation, which keeps nothing in a fused kernel."""

    def __init__(self, model: ModelSize, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        hidden, wide = model.hidden, model.mlp_width
        self.heads = model.heads
        self.width = model.query_width // model.heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q = nn.Linear(hidden, model.query_width, bias=False)
        self.k = nn.Linear(hidden, model.key_width, bias=False)
        self.v = nn.Linear(hidden, model.value_width, bias=False)
        self.o = nn.Linear(model.attention_width, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, wide, bias=False), nn.Linear(hidden, wide, bias=False)
        self.down = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape

        def split(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(batch, sequence, -1, self.width).transpose(1, 2)

        normed = self.norm1(x)
        q, k, v = split(self.q(normed)), split(self.k(normed)), split(self.v(normed))
        if self.fused:
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            attended = torch.softmax((q * self.width**-0.5) @ k.transpose(-1, -2), -1) @ v
        x = x + self.o(attended.transpose(1, 2).reshape(batch, sequence, -1))
        normed = self.norm2(x)
        out: torch.Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return out


@pytest.mark.parametrize("kind", ["selective", "none"])
def test_a_gated_layer_keeps_what_pytorch_keeps(kind: str) -> None:
    """Against the distinct storages that autograd saves in a Llama-like layer in BF16, weights left out.

    Beyond the formula there are the norms' statistics and the logarithm that FlashAttention keeps: a few bytes a token,
    less than 2 % at this width.
    """
    model = ModelSize(
        name="small",
        source="test",
        parameters=0,
        layers=1,
        hidden=512,
        heads=8,
        query_width=512,
        key_width=512,
        value_width=512,
        attention_width=512,
        mlp_width=1408,
    )
    layer = _Kept(model, fused=kind == "selective").to(torch.bfloat16)
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(saved)
        return saved

    x = torch.randn(2, 256, 512, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        layer(x)
    counted, _ = layer_activations(model, Layout(gpus=1, micro_batch=2, sequence=256), kind)
    assert sum(kept.values()) == pytest.approx(counted, rel=0.02)
    assert sum(kept.values()) >= counted


def test_the_table_has_every_choice_and_the_chosen_one() -> None:
    found = fit(LLAMA_8B, Layout(gpus=8, zero=2, sequence=8192, recompute="full"), "H100", 80 * GB)
    assert [(row.zero, row.recompute) for row in found.table] == [
        (zero, kind) for zero in range(4) for kind in ("none", "selective", "full")
    ]
    assert found.chosen in found.table
    assert (found.chosen.zero, found.chosen.recompute) == (2, "full")
    for row in found.table:
        assert row.total == sum(part.bytes for part in row.parts)
    by_stage = [row.total for row in found.table if row.recompute == "full"]
    assert by_stage == sorted(by_stage, reverse=True)


def test_the_margin_is_neither_a_fit_nor_none() -> None:
    model = ModelSize(name="1B", source="test", parameters=10**9)
    verdicts = [rank_bytes(model, Layout(gpus=1), 0, "none", size * GB)[0].verdict for size in (15, 16, 17, 18)]
    assert verdicts == [DOES_NOT_FIT, TIGHT, TIGHT, FITS]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(gpus=8, tensor=3), "can't be divided"),
        (Layout(gpus=64, pipeline=64), "only 32 layers"),
        (Layout(gpus=64, tensor=64), "does not divide the 32 heads"),
    ],
)
def test_what_can_not_be_divided_is_refused(layout: Layout, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fit(LLAMA_8B, layout, "H100", 80 * GB)


def test_a_bare_count_has_states_and_says_what_is_missing() -> None:
    found = fit(ModelSize(name="8e9", source="user", parameters=8 * 10**9), Layout(gpus=8), "H100", 80 * GB)
    assert {part.name for part in found.chosen.parts} == set(STATES)
    assert any("not counted" in note for note in found.notes)
