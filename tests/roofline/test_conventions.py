"""Expected FLOPs and MFU are published figures or worked out by hand beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.errors import UsageError
from steptime.roofline.conventions import CONVENTIONS, check_tokens, flops_per_token, integer_factor, mfu
from steptime.roofline.hardware import gpu_named
from steptime.roofline.models import Layer, ModelShape, load_model, parse_parameters

_DAY_S = 86_400


def _peak(row: str) -> float:
    flops = gpu_named(row).peak("bf16").flops
    assert flops is not None
    return flops


# --- published runs ---


@pytest.mark.parametrize(
    ("convention", "gflops"),
    [
        # Formulas of torchtitan, nanotron and Megatron-LM evaluated for Llama 3 8B at 8192 tokens: 57.9 and 51.5 GF.
        ("torchtitan", 57.9),
        ("nanotron", 57.9),
        ("megatron", 51.5),
        # 6 x 8.030e9 = 48.2, + 12 x 32 layers x 32 heads x 128 x 8192 = 12.9
        ("palm", 61.1),
        ("6n", 48.2),
    ],
)
def test_llama_3_8b(convention: str, gflops: float) -> None:
    flops = flops_per_token(load_model("Llama 3 8B"), 8192, convention)
    assert flops.model / 1e9 == pytest.approx(gflops, abs=0.05)


def test_llama_3_8b_parts() -> None:
    # 6 x 7 504 658 432 weights; 12 x 32 x 4096 x 8192 attention, half of it under the causal mask.
    full = flops_per_token(load_model("Llama 3 8B"), 8192, "nanotron")
    half = flops_per_token(load_model("Llama 3 8B"), 8192, "megatron")
    assert (full.matmul, full.attention) == (45_027_950_592, 12_884_901_888)
    assert (half.matmul, half.attention) == (45_027_950_592, 6_442_450_944)


def test_deepseek_v3_training_cost() -> None:
    # "Insights into DeepSeek-V3" (arXiv:2505.09343), table 2: 250 GFLOPs a token at 4096 tokens.
    flops = flops_per_token(load_model("DeepSeek-V3"), 4096, "megatron")
    assert flops.model == pytest.approx(250e9, abs=0.5e9)


def test_llama_3_405b_budget() -> None:
    # Llama 3 paper (arXiv:2407.21783), section 3: 3.8e25 FLOPs for 15.6T tokens.
    flops = flops_per_token(load_model("Llama 3.1 405B"), 8192, "6n")
    assert flops.model * 15.6e12 == pytest.approx(3.8e25, rel=0.005)


def test_llama_3_405b_mfu_and_days() -> None:
    # Same paper, table 4: 400 TFLOP/s a GPU on 16 384 H100; 400 / 989.4 = 40.4 %, and 3.8e25 FLOPs take 67 days.
    gpus, rate = 16_384, 400e12
    assert mfu(rate * gpus, 1.0, gpus, _peak("H100 SXM")) == pytest.approx(0.404, abs=0.0005)
    days = flops_per_token(load_model("Llama 3.1 405B"), 8192, "6n").model * 15.6e12 / (rate * gpus) / _DAY_S
    assert days == pytest.approx(67, abs=0.5)


@pytest.mark.parametrize(
    ("tflops", "share"),
    [
        # OPT paper (arXiv:2205.01068): 147 TFLOP/s a GPU; BLOOM paper (arXiv:2211.05100): 156, both on A100 80 GB.
        (147, 0.47),
        (156, 0.50),
    ],
)
def test_opt_and_bloom(tflops: float, share: float) -> None:
    assert mfu(tflops * 1e12, 1.0, 1, _peak("A100 SXM 80")) == pytest.approx(share, abs=0.005)


def test_a100_at_150_tflops_is_48_percent() -> None:
    # B22: halving the dense 312 once more gave 96 %.
    assert mfu(150e12, 1.0, 1, _peak("A100 SXM 80")) == pytest.approx(0.48, abs=0.002)


def test_bf16_run_on_h100_uses_the_bf16_peak() -> None:
    # B20: TF32's 494.7 under a BF16 run doubled MFU.
    assert mfu(494.7e12, 1.0, 1, _peak("H100 SXM")) == pytest.approx(0.5)


def test_gpt_3_budget() -> None:
    # GPT-3 paper, table D.1: 3.14e23 FLOPs for 300B tokens.
    flops = flops_per_token(load_model("GPT-3 175B"), 2048, "6n")
    assert flops.model * 300e9 == pytest.approx(3.14e23, rel=0.002)


# --- attention ---


def _windowed(layers: int, window: int) -> ModelShape:
    """Attention only: 2 heads of 16, every second layer with a window."""
    plain = Layer(attention=0, mlp=0)
    stack = tuple(replace(plain, window=window) if at % 2 else plain for at in range(layers))
    return ModelShape("windowed", "test", stack, hidden=32, heads=2, kv_heads=2, qk_head_dim=16, v_head_dim=16)


def test_every_second_layer_windowed() -> None:
    # B24: 24 layers, every second one with window 4096, s = 32768: (32768 + 4096) / 2 instead of 32768 on average.
    flops = flops_per_token(_windowed(24, 4096), 32_768, "torchtitan")
    assert flops.attention == 6 * 2 * 32 * 12 * (32_768 + 4096)
    assert "12 of 24 layers by their sliding window" in flops.statement


@pytest.mark.parametrize("convention", ["torchtitan", "megatron", "palm", "nanotron"])
def test_a_window_wider_than_the_sequence_changes_nothing(convention: str) -> None:
    wide, plain = _windowed(4, 8192), _windowed(4, 4096)
    none = replace(plain, layers=tuple(replace(layer, window=None) for layer in plain.layers))
    assert flops_per_token(wide, 4096, convention).attention == flops_per_token(none, 4096, convention).attention


def test_causal_window_against_the_mask() -> None:
    # Brute force over the mask: position i sees the `window` positions up to i; a position counts itself half, so that
    # the unlimited mask is s * s / 2.
    seq_len, window = 64, 16
    full = sum(min(i, window - 1) + 0.5 for i in range(seq_len))
    pairs = full + 0.5 * max(seq_len - window, 0)
    flops = flops_per_token(_windowed(2, window), seq_len, "megatron")
    assert flops.attention == pytest.approx(6 * 2 * 32 * (seq_len / 2 + pairs / seq_len), rel=0.005)


def test_grouped_heads_do_not_change_attention() -> None:
    eight = flops_per_token(load_model("Llama 3 8B"), 4096, "palm").attention
    assert eight == flops_per_token(replace(load_model("Llama 3 8B"), kv_heads=32), 4096, "palm").attention


def test_head_widths_of_latent_attention() -> None:
    # 6 x 61 layers x 128 heads x (192 + 128) x 4096
    flops = flops_per_token(load_model("DeepSeek-V3"), 4096, "torchtitan")
    assert flops.attention == 6 * 61 * 128 * 320 * 4096


def test_megatron_pads_the_vocabulary() -> None:
    # GPT-3's 50257 rows become 393 x 128 = 50304.
    model = load_model("GPT-3 175B")
    padded = flops_per_token(model, 2048, "megatron").matmul - flops_per_token(model, 2048, "nanotron").matmul
    assert padded == 6 * (50_304 - 50_257) * 12_288


# --- recompute ---


def test_recompute_counts_in_hfu_only() -> None:
    # B30: a full second forward is 4/3 of the work (8N for 6N); MFU's FLOPs stay.
    model = load_model("Llama 3 8B")
    for convention in CONVENTIONS:
        none, full = (flops_per_token(model, 8192, convention, how) for how in ("none", "full"))
        assert none.model == none.hardware == full.model
        assert full.hardware == pytest.approx(4 / 3 * none.model)
        assert none.forward == pytest.approx(none.model / 3)
    assert flops_per_token(parse_parameters("1e9"), 2048, "6n", "full").hardware == 8 * 10**9


def test_selective_recompute_repeats_attention() -> None:
    # 2 of the 6 matmul passes of the attention core: 12.88 GF / 3.
    flops = flops_per_token(load_model("Llama 3 8B"), 8192, "torchtitan", "selective")
    assert flops.recomputed == 12_884_901_888 // 3


# --- what is printed ---


def test_statements_say_what_was_counted() -> None:
    model = load_model("Llama 3 8B")
    assert "in full (no causal half) at 8192" in flops_per_token(model, 8192, "torchtitan").statement
    assert "causal half" in flops_per_token(model, 8192, "megatron").statement
    assert "embeddings counted" in flops_per_token(model, 8192, "palm").statement
    assert "attention not counted" in flops_per_token(model, 8192, "6n").statement
    assert "attention run again in HFU" in flops_per_token(model, 8192, "palm", "selective").statement
    assert [convention.causal_factor for convention in CONVENTIONS.values()] == [1.0, 0.5, 1.0, 1.0, None]


@pytest.mark.parametrize("convention", ["torchtitan", "megatron", "palm", "nanotron", "6n"])
def test_a_bare_count_is_6n_and_says_so(convention: str) -> None:
    flops = flops_per_token(parse_parameters("8e9"), 8192, convention)
    assert (flops.model, flops.attention) == (48 * 10**9, 0)
    assert "attention not counted" in flops.statement
    assert "the count is taken as it is" in flops.statement


@pytest.mark.parametrize(
    ("convention", "seq_len", "recompute", "said"),
    [
        ("chinchilla", 8192, "none", "choose one of torchtitan, megatron, palm, nanotron, 6n"),
        ("palm", 0, "none", "at least one token"),
        ("palm", 8192, "some", "choose one of none, selective, full"),
    ],
)
def test_wrong_requests(convention: str, seq_len: int, recompute: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        flops_per_token(load_model("Llama 3 8B"), seq_len, convention, recompute)


# --- MFU and the check of the tokens ---


@pytest.mark.parametrize(
    ("flops", "seconds", "gpus", "peak"),
    [(1.0, 0.0, 1, 1.0), (1.0, 1.0, 0, 1.0), (1.0, 1.0, 1, 0.0), (-1.0, 1.0, 1, 1.0)],
)
def test_mfu_refuses_nonsense(flops: float, seconds: float, gpus: int, peak: float) -> None:
    with pytest.raises(UsageError, match="MFU needs"):
        mfu(flops, seconds, gpus, peak)


def test_mfu_refuses_nan() -> None:
    with pytest.raises(UsageError, match="positive step time"):
        mfu(1.0, float("nan"), 1, 1.0)


@pytest.mark.parametrize(
    ("a", "b", "factor"),
    [
        (8.0, 1.0, 8),
        (1.0, 8.0, 8),
        (2.0, 1.0, 2),
        (2.05, 1.0, 2),
        (64.0, 1.0, 64),
        (8.2, 1.0, 8),
        (1.0, 1.0, None),
        (1.3, 1.0, None),
        (2.1, 1.0, None),
        (8.4, 1.0, None),
        (32.5, 1.0, None),
        (65.0, 1.0, None),
        (0.0, 1.0, None),
        (float("nan"), 1.0, None),
        (float("inf"), 1.0, None),
        (1.0, 0.0, None),
    ],
)
def test_integer_factor(a: float, b: float, factor: int | None) -> None:
    assert integer_factor(a, b) == factor


def test_tokens_of_one_gpu_are_noticed() -> None:
    said = check_tokens(1e15, 8.1e15, gpus=8)
    assert said is not None
    assert "1/8" in said
    assert "one GPU or one micro-batch" in said
    assert "one GPU or" not in (check_tokens(1e15, 4e15, gpus=8) or "one GPU or")
    assert "4 times" in (check_tokens(4e15, 1e15, gpus=8) or "")
    assert check_tokens(1e15, 1.2e15, gpus=8) is None
