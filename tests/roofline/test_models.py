"""Expected counts are published: the parameter total of the checkpoint on the HuggingFace hub, or a paper's figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.errors import UsageError
from steptime.roofline.models import load_model, parse_parameters, preset_names

_LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def _write(folder: Path, **keys: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(keys))
    return str(path)


# --- presets ---


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # number of elements of the checkpoint, as the hub shows it
        ("Llama 2 7B", 6_738_415_616),
        ("Llama 2 13B", 13_015_864_320),
        ("Llama 2 70B", 68_976_648_192),
        ("Llama 3 8B", 8_030_261_248),
        ("Llama 3 70B", 70_553_706_496),
        ("Llama 3.1 405B", 405_853_388_800),
        ("BLOOM-176B", 176_247_271_424),
        ("Mistral 7B", 7_241_732_096),
        ("Mixtral 8x7B", 46_702_792_704),
        ("Qwen 2.5 0.5B", 494_032_768),
        ("Qwen 2.5 1.5B", 1_543_714_304),
        ("Qwen 2.5 3B", 3_085_938_688),
        ("Qwen 2.5 7B", 7_615_616_512),
        ("Qwen 2.5 14B", 14_770_033_664),
        ("Qwen 2.5 32B", 32_763_876_352),
        ("Qwen 2.5 72B", 72_706_203_648),
        # tensor by tensor recount of deepseek-ai/DeepSeek-V3 without the MTP module and FP8 scales; its README: 671B
        ("DeepSeek-V3", 671_026_419_200),
    ],
)
def test_total_is_the_checkpoint(name: str, total: int) -> None:
    assert load_model(name).total_parameters == total


@pytest.mark.parametrize(
    ("name", "total", "digits"),
    [
        # GPT-3 paper, table D.1: 174,600 million parameters
        ("GPT-3 175B", 174.6e9, 1e8),
        # same shape, 15 more rows of vocabulary and 2 of positions; paper, table 1: 175B
        ("OPT-175B", 175e9, 1e9),
    ],
)
def test_total_is_the_papers(name: str, total: float, digits: float) -> None:
    assert load_model(name).total_parameters == pytest.approx(total, abs=digits / 2)


@pytest.mark.parametrize(
    ("name", "active", "off"),
    [
        # Mixtral paper (arXiv:2401.04088): 13B active; announcement: 12.9B
        ("Mixtral 8x7B", 12.9e9, 0.05e9),
        # DeepSeek-V3 report (arXiv:2412.19437): 37B active
        ("DeepSeek-V3", 37e9, 0.6e9),
        ("Llama 3 8B", 8.03e9, 0.005e9),
    ],
)
def test_active_parameters(name: str, active: float, off: float) -> None:
    assert load_model(name).active_parameters == pytest.approx(active, abs=off)


def test_deepseek_active_without_the_input_embedding() -> None:
    # README_WEIGHTS of deepseek-ai/DeepSeek-V3: 36.6B active, including 0.9B for the output head, none for the input.
    model = load_model("DeepSeek-V3")
    assert model.matmul_parameters == pytest.approx(36.6e9, abs=0.05e9)
    assert model.head_parameters == pytest.approx(0.9e9, abs=0.05e9)
    assert "multi-token prediction" in model.notes[0]


def test_embeddings_tied_and_untied() -> None:
    # Qwen2.5 model cards: 7B has 6.53B without embeddings of 7.61B, 0.5B has 0.36B of 0.49B. The 7B's input and output
    # tables are apart, the 0.5B's are one.
    untied, tied = load_model("Qwen 2.5 7B"), load_model("Qwen 2.5 0.5B")
    assert untied.total_parameters - 2 * untied.table_parameters == pytest.approx(6.53e9, abs=0.005e9)
    assert tied.total_parameters - tied.table_parameters == pytest.approx(0.36e9, abs=0.005e9)
    assert (untied.embedding_parameters, tied.embedding_parameters) == (untied.table_parameters, 0)
    assert tied.matmul_parameters > tied.total_parameters - tied.table_parameters


def test_llama_parts_by_hand() -> None:
    # 32 x (4096 x (4096 + 1024 + 1024 + 4096) + 3 x 4096 x 14336) + 128256 x 4096; the rest are 65 norms of 4096.
    model = load_model("Llama 3 8B")
    assert model.matmul_parameters == 32 * (4096 * 10240 + 3 * 4096 * 14336) + 128256 * 4096 == 7_504_658_432
    assert model.total_parameters - model.matmul_parameters - model.embedding_parameters == 65 * 4096


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama 3 8b", "Llama 3 8B"),
        ("Llama-3.1-8B", "Llama 3 8B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama 3 8B"),
        ("meta-llama/Llama-2-70b-chat-hf", "Llama 2 70B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen 2.5 7B"),
        ("mistralai/Mixtral-8x7B-v0.1", "Mixtral 8x7B"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("gpt3", "GPT-3 175B"),
        ("bigscience/bloom", "BLOOM-176B"),
        ("llama 3 405b", "Llama 3.1 405B"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert load_model(text).name == name


def test_every_preset_loads_and_says_where_it_comes_from() -> None:
    shapes = [load_model(name) for name in preset_names()]
    assert len(shapes) == 19
    assert all(shape.source for shape in shapes)
    assert "32 layers" in shapes[0].describe()


# --- unknown names, counts ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lama 3 8b", "did you mean Llama 3 8B"),
        ("mixtral 8x8b", "did you mean Mixtral 8x7B"),
        ("qqqq", "presets are Llama 2 7B"),
        ("missing/config.json", "no such file"),
        ("8", "write 8e9 or 8B"),
        ("0", "write 8e9 or 8B"),
        ("1e400", "write 8e9 or 8B"),
        ("1.2.3e9", "write 8e9 or 8B"),
        ("", "name a config.json"),
    ],
)
def test_an_unknown_model(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        load_model(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "count"), [("8e9", 8e9), ("8B", 8e9), ("1.5b", 1.5e9), ("350M", 350e6), ("1T", 1e12), ("4_000_000", 4e6)]
)
def test_a_count(text: str, count: float) -> None:
    shape = load_model(text)
    assert shape == parse_parameters(text)
    assert shape.total_parameters == shape.active_parameters == shape.matmul_parameters == count
    assert (shape.embedding_parameters, shape.layers) == (0, ())
    assert "attention can't be counted" in shape.notes[0]


# --- config.json ---


def test_a_file_and_its_folder(tmp_path: Path) -> None:
    path = _write(tmp_path, **_LLAMA)
    for text in (path, str(tmp_path)):
        shape = load_model(text)
        assert shape.total_parameters == 8_030_261_248
        assert shape.source == path
    tied = load_model(_write(tmp_path, **_LLAMA, tie_word_embeddings=True))
    assert tied.total_parameters == 8_030_261_248 - 128256 * 4096
    assert tied.matmul_parameters == load_model("Llama 3 8B").matmul_parameters


@pytest.mark.parametrize(
    ("keys", "total"),
    [
        # openai-community/gpt2
        (
            {
                "model_type": "gpt2",
                "n_embd": 768,
                "n_layer": 12,
                "n_head": 12,
                "n_positions": 1024,
                "vocab_size": 50257,
            },
            124_439_808,
        ),
        # facebook/opt-125m
        (
            {
                "model_type": "opt",
                "hidden_size": 768,
                "word_embed_proj_dim": 768,
                "ffn_dim": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "max_position_embeddings": 2048,
                "vocab_size": 50272,
                "do_layer_norm_before": True,
            },
            125_239_296,
        ),
        # bigscience/bloom-560m
        (
            {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880},
            559_214_592,
        ),
        # EleutherAI/gpt-neox-20b, model card
        (
            {
                "model_type": "gpt_neox",
                "hidden_size": 6144,
                "intermediate_size": 24576,
                "num_hidden_layers": 44,
                "num_attention_heads": 64,
                "vocab_size": 50432,
            },
            20_554_567_680,
        ),
        # openai/gpt-oss-20b
        (
            {
                "model_type": "gpt_oss",
                "hidden_size": 2880,
                "intermediate_size": 2880,
                "num_hidden_layers": 24,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "num_local_experts": 32,
                "num_experts_per_tok": 4,
                "vocab_size": 201088,
                "sliding_window": 128,
            },
            20_914_757_184,
        ),
        # Qwen/Qwen1.5-MoE-A2.7B
        (
            {
                "model_type": "qwen2_moe",
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "vocab_size": 151936,
            },
            14_315_784_192,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_architectures(tmp_path: Path, keys: dict[str, object], total: int) -> None:
    assert load_model(_write(tmp_path, **keys)).total_parameters == total


def test_published_active_sizes(tmp_path: Path) -> None:
    # Qwen3-30B-A3B: 30.5B, of which 3.3B active (model card). DeepSeek-V2: 236B, 21B active (arXiv:2405.04434).
    qwen = load_model(
        _write(
            tmp_path,
            model_type="qwen3_moe",
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            vocab_size=151936,
        )
    )
    assert qwen.total_parameters == pytest.approx(30.5e9, abs=0.05e9)
    assert qwen.active_parameters == pytest.approx(3.3e9, abs=0.06e9)
    deepseek = load_model(
        _write(
            tmp_path,
            model_type="deepseek_v2",
            hidden_size=5120,
            intermediate_size=12288,
            moe_intermediate_size=1536,
            num_hidden_layers=60,
            num_attention_heads=128,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_routed_experts=160,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
            vocab_size=102400,
        )
    )
    assert deepseek.total_parameters == pytest.approx(236e9, abs=0.5e9)
    assert deepseek.active_parameters == pytest.approx(21e9, abs=0.5e9)


def test_windows_by_layer(tmp_path: Path) -> None:
    # transformers: Mistral windows every layer, Qwen2 those from max_window_layers on and only when switched on,
    # gpt-oss every second one beginning with the first; layer_types overrules.
    mistral = {**_LLAMA, "model_type": "mistral", "num_hidden_layers": 4}
    qwen = {**mistral, "model_type": "qwen2", "sliding_window": 1024, "max_window_layers": 3}
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    cases: list[tuple[dict[str, object], list[int | None]]] = [
        (mistral, [4096] * 4),
        ({**mistral, "sliding_window": None}, [None] * 4),
        (qwen, [None] * 4),
        ({**qwen, "use_sliding_window": True}, [None, None, None, 1024]),
        ({**qwen, "layer_types": kinds}, [None, 1024, None, None]),
        ({**mistral, "model_type": "gpt_oss", "num_local_experts": 4}, [128, None, 128, None]),
        ({**_LLAMA, "num_hidden_layers": 2}, [None] * 2),
    ]
    for keys, windows in cases:
        assert [layer.window for layer in load_model(_write(tmp_path, **keys)).layers] == windows


def test_head_width_and_key_value_heads(tmp_path: Path) -> None:
    shape = load_model(_write(tmp_path, **_LLAMA, head_dim=64))
    assert (shape.qk_head_dim, shape.kv_heads) == (64, 8)
    assert shape.layers[0].attention == 2 * 4096 * 64 * (32 + 8)
    old = {key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"}
    assert load_model(_write(tmp_path, **old)).kv_heads == 32
    assert (
        load_model(_write(tmp_path, **{**_LLAMA, "model_type": "mistral", "num_key_value_heads": None})).kv_heads == 32
    )


def test_latent_attention_shape() -> None:
    # DeepSeek-V3: query and key heads are 128 + 64 wide, value heads 128; 3 dense layers, then 58 mixtures.
    shape = load_model("DeepSeek-V3")
    assert (shape.qk_head_dim, shape.v_head_dim) == (192, 128)
    assert sum(layer.router > 0 for layer in shape.layers) == 58


def test_a_language_model_inside_another(tmp_path: Path) -> None:
    shape = load_model(_write(tmp_path, model_type="llava", text_config=_LLAMA))
    assert shape.total_parameters == 8_030_261_248
    assert "only the language model" in shape.notes[0]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not one that steptime can count"),
        ({"hidden_size": 1}, "model_type None"),
        ({**_LLAMA, "hidden_size": None}, "hidden_size is missing"),
        ({**_LLAMA, "hidden_size": "4096"}, "not a positive whole number"),
        ({**_LLAMA, "hidden_size": True}, "not a positive whole number"),
        ({**_LLAMA, "num_hidden_layers": 0}, "not a positive whole number"),
        ({**_LLAMA, "num_key_value_heads": 5}, "can't share 5"),
        ({**_LLAMA, "tie_word_embeddings": "yes"}, "not true or false"),
        ({**_LLAMA, "layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({**_LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "only 2 experts"),
        ({**_LLAMA, "model_type": "qwen2_moe"}, "moe_intermediate_size is missing"),
        ({"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512}, "OPT-350m"),
    ],
)
def test_a_config_that_can_not_be_counted(tmp_path: Path, keys: dict[str, object], said: str) -> None:
    path = _write(tmp_path, **keys)
    with pytest.raises(UsageError, match=said) as error:
        load_model(path)
    assert str(error.value).startswith(path)
    assert "--params" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"not a model's config\.json"):
        load_model(str(path))


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load_model(str(tmp_path))
