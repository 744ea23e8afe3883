"""Attention and scaled products that only a GPU runs: argument places from PyTorch's own schemas, FLOPs from the
formulas that `torch.utils.flop_counter` registered for them, on meta tensors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from steptime.roofline.flops import cost
from steptime.roofline.ops_attention import doubled_pairs
from tests.roofline.recorded_ops import counted, from_schema, literal, price, registered

aten = torch.ops.aten
BF16 = "c10::BFloat16"


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# batch, query heads, key heads, queries, keys, dimension of q and k, dimension of v
SIZES = [
    (2, 4, 4, 64, 64, 32, 32),
    (1, 8, 2, 128, 128, 64, 64),
    (2, 4, 4, 16, 80, 32, 32),
    (1, 4, 1, 80, 16, 64, 48),
]


def _forward_op(name: str, size: tuple[int, ...], **values: Any) -> tuple[Any, dict[str, Any], torch.Tensor]:
    """The op, its arguments and its result for [batch, heads, sequence, dim] or [batch, sequence, heads, dim]."""
    b, hq, hk, sq, sk, dq, dv = size
    rows_first = name in ("_flash_attention_forward", "_efficient_attention_forward")
    shapes = [(b, hq, sq, dq), (b, hk, sk, dq), (b, hk, sk, dv), (b, hq, sq, dv)]
    if rows_first:
        shapes = [(s[0], s[2], s[1], s[3]) for s in shapes]
    q, k, v, out = (meta(*shape) for shape in shapes)
    given = {"query": q, "key": k, "value": v, **values}
    return getattr(aten, name).default, given, out


def _length_arguments(name: str, size: tuple[int, ...]) -> dict[str, Any]:
    if name == "_flash_attention_forward":
        return {"cum_seq_q": None, "cum_seq_k": None, "max_q": size[3], "max_k": size[4]}
    return {}


def _expected(name: str, size: tuple[int, ...]) -> int:
    """The counter's figure. Its flash and efficient formulas take the batch-heads-sequence layout only."""
    op, given, out = _forward_op(name, size)
    if name.endswith("_attention_forward"):
        op, given, out = _forward_op("_scaled_dot_product_flash_attention", size)
    return registered(op, out, **given)


FORWARD = [
    ("_scaled_dot_product_flash_attention", {"dropout_p": 0.0}, {"is_causal": True}),
    (
        "_scaled_dot_product_efficient_attention",
        {"attn_bias": None, "compute_log_sumexp": True},
        {"is_causal": True},
    ),
    ("_scaled_dot_product_cudnn_attention", {"attn_bias": None, "compute_log_sumexp": True}, {"is_causal": True}),
    (
        "_flash_attention_forward",
        {"dropout_p": 0.0, "is_causal": False, "return_debug_mask": False},
        {"is_causal": True},
    ),
    (
        "_efficient_attention_forward",
        {
            "bias": None, "cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": None, "max_seqlen_k": None,
            "dropout_p": 0.0, "custom_mask_type": 0,
        },
        {"custom_mask_type": 1},
    ),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("name", "values", "_causal"), FORWARD, ids=[case[0] for case in FORWARD])
def test_forward_equals_the_registered_formula(
    name: str, values: dict[str, Any], _causal: dict[str, Any], size: tuple[int, ...]
) -> None:
    op, given, _ = _forward_op(name, size, **_length_arguments(name, size), **values)
    found = price(from_schema(op, **given))
    expected = _expected(name, size)
    assert (found.kind, found.direction, found.dtype) == ("attention", "forward", "bf16")
    assert (found.model_flops, found.hardware_flops) == (expected, expected)
    assert found.notes == ((f"gqa {size[1]}:{size[2]}",) if size[1] != size[2] else ())


@pytest.mark.parametrize("size", [SIZES[0], SIZES[1]], ids=str)
@pytest.mark.parametrize(("name", "values", "causal"), FORWARD, ids=[case[0] for case in FORWARD])
def test_a_causal_square_needs_half_of_the_registered_formula(
    name: str, values: dict[str, Any], causal: dict[str, Any], size: tuple[int, ...]
) -> None:
    op, given, _ = _forward_op(name, size, **{**_length_arguments(name, size), **values, **causal})
    found = price(from_schema(op, **given))
    expected = _expected(name, size)
    assert found.model_flops is not None
    assert 2 * found.model_flops == expected
    assert found.hardware_flops == found.model_flops
    assert "causal" in found.notes


def _backward_op(name: str, size: tuple[int, ...], *, causal: bool) -> tuple[Any, dict[str, Any]]:
    b, hq, hk, sq, sk, dq, dv = size
    op = getattr(aten, f"{name}_backward").default
    names = [argument.name for argument in op._schema.arguments]
    lse = meta(b, hq, sq, dtype=torch.float32)
    out = meta(b, hq, sq, dv)
    seed = meta(dtype=torch.int64)
    every = {
        "grad_out": out, "grad_out_": out, "query": meta(b, hq, sq, dq), "key": meta(b, hk, sk, dq),
        "value": meta(b, hk, sk, dv), "out": out, "logsumexp": lse, "cum_seq_q": None, "cum_seq_k": None,
        "max_q": sq, "max_k": sk, "dropout_p": 0.0, "is_causal": causal, "philox_seed": seed, "philox_offset": seed,
        "attn_bias": None, "grad_input_mask": [True, True, True, False],
    }  # fmt: skip
    return op, {key: value for key, value in every.items() if key in names}


BACKWARD = [case[0] for case in FORWARD[:3]]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", BACKWARD)
def test_backward_runs_the_registered_formula_and_needs_twice_the_forward(name: str, size: tuple[int, ...]) -> None:
    op, given = _backward_op(name, size, causal=False)
    found = price(from_schema(op, **given))
    assert (found.kind, found.direction) == ("attention", "backward")
    # The registered formula has five products: what runs. The mathematics needs four.
    assert found.hardware_flops == registered(op, None, **given)
    assert found.model_flops == 2 * _expected(name, size)


@pytest.mark.parametrize("name", BACKWARD)
def test_causal_backward_halves_both(name: str) -> None:
    size = SIZES[0]
    op, given = _backward_op(name, size, causal=False)
    full, causal = price(from_schema(op, **given)), price(from_schema(op, **{**given, "is_causal": True}))
    assert full.model_flops is not None
    assert full.hardware_flops is not None
    assert (causal.model_flops, causal.hardware_flops) == (full.model_flops // 2, full.hardware_flops // 2)


def test_four_of_five_products_when_all_dimensions_agree() -> None:
    op, given = _backward_op("_scaled_dot_product_flash_attention", SIZES[0], causal=False)
    found = price(from_schema(op, **given))
    assert found.model_flops is not None
    assert found.hardware_flops is not None
    assert found.hardware_flops * 4 == found.model_flops * 5


OVERRIDEABLE = ["_scaled_dot_product_attention_math", "_scaled_dot_product_fused_attention_overrideable"]


@pytest.mark.parametrize("name", [*OVERRIDEABLE, "scaled_dot_product_attention"])
def test_causal_is_read_at_its_place_in_ops_without_a_formula(name: str) -> None:
    op, given, _ = _forward_op(name, SIZES[0])
    found = price(from_schema(op, **given, is_causal=True))
    assert found.model_flops == _expected("_scaled_dot_product_flash_attention", SIZES[0]) // 2


def _flash_arguments(q: torch.Tensor, k: torch.Tensor, **values: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "query": q, "key": k, "value": k, "cum_seq_q": None, "cum_seq_k": None, "max_q": q.shape[1],
        "max_k": k.shape[1], "dropout_p": 0.0, "is_causal": True, "return_debug_mask": False,
    }  # fmt: skip
    return {**base, **values}


def test_a_sliding_window_counts_its_band() -> None:
    q = meta(1, 1024, 4, 64)
    sig = from_schema(
        aten._flash_attention_forward.default, **_flash_arguments(q, q, window_size_left=255, window_size_right=0)
    )
    found = price(sig)
    # 256 keys a query, less the triangle that the first 256 queries lack: 256 * 1024 - 256^2 / 2 pairs.
    assert found.model_flops == (256 * 1024 - 256 * 256 // 2) * 2 * (64 + 64) * 4
    assert found.notes == ("causal", "window 256")


def test_packed_sequences_of_unrecorded_lengths_are_unknown() -> None:
    q = meta(1024, 4, 64)
    lengths = meta(5, dtype=torch.int32)
    values = {"cum_seq_q": lengths, "cum_seq_k": lengths, "max_q": 400, "max_k": 400}
    found = price(from_schema(aten._flash_attention_forward.default, **_flash_arguments(q, q, **values)))
    assert (found.model_flops, found.hardware_flops) == (None, None)
    assert found.notes == ("lengths not recorded",)
    # The bytes do not depend on the lengths: q, k, v and the result, 1024 x 4 x 64 values of two bytes.
    assert found.bytes == 4 * 1024 * 4 * 64 * 2


def test_packed_sequences_that_must_all_have_the_greatest_length_are_known() -> None:
    q, dense = meta(1024, 4, 64), meta(4, 256, 4, 64)
    lengths = meta(5, dtype=torch.int32)
    values = {"cum_seq_q": lengths, "cum_seq_k": lengths, "max_q": 256, "max_k": 256}
    packed = price(from_schema(aten._flash_attention_forward.default, **_flash_arguments(q, q, **values)))
    padded = price(from_schema(aten._flash_attention_forward.default, **_flash_arguments(dense, dense)))
    assert packed.model_flops == padded.model_flops


def test_one_packed_sequence_is_known() -> None:
    q = meta(300, 4, 64)
    lengths = meta(2, dtype=torch.int32)
    values = {"cum_seq_q": lengths, "cum_seq_k": lengths, "max_q": 512, "max_k": 512}
    found = price(from_schema(aten._flash_attention_forward.default, **_flash_arguments(q, q, **values)))
    assert found.model_flops == 300 * 300 // 2 * 2 * (64 + 64) * 4


def test_a_mask_tensor_is_counted_in_full_and_said() -> None:
    op, given, _ = _forward_op("scaled_dot_product_attention", SIZES[0])
    found = price(from_schema(op, **given, attn_mask=meta(64, 64, dtype=torch.bool)))
    assert found.model_flops == _expected("_scaled_dot_product_flash_attention", SIZES[0])
    assert found.notes == ("mask tensor counted in full",)


def test_a_mask_flag_that_was_not_recorded_leaves_flops_unknown() -> None:
    shape = [2, 4, 64, 32]
    found = literal("aten::_scaled_dot_product_flash_attention", [shape] * 3 + [[]] * 4, [BF16] * 3 + ["Scalar"] * 4)
    assert found.model_flops is None
    assert found.notes == ("mask not recorded",)


# FlashAttention 2 and 3 as their packages register them; places by their published schemas.
FA2_FORWARD = (["", "", "", "0.", "0.125", "True", "-1", "-1", "0.", "", "False"], ["Scalar"] * 6 + ["", "Scalar"])
Q, KV = [2, 128, 8, 64], [2, 128, 2, 64]
CAUSAL = 128 * 128 // 2 * 2 * (64 + 64) * 8 * 2


def test_flash_attention_2_forward_and_backward() -> None:
    concrete, tail = FA2_FORWARD
    forward = literal("flash_attn::_flash_attn_forward", [Q, KV, KV] + [[]] * 8, [BF16] * 3 + tail, concrete)
    assert (forward.model_flops, forward.notes) == (CAUSAL, ("gqa 8:2", "causal"))
    shapes = [Q, Q, KV, KV, Q, [2, 8, 128], Q, KV, KV] + [[]] * 9
    dtypes = [BF16] * 5 + ["float"] + [BF16] * 3 + ["Scalar"] * 6 + ["", "Scalar", ""]
    concrete = [""] * 9 + ["0.", "0.125", "True", "-1", "-1", "0.", "", "False", ""]
    backward = literal("flash_attn::_flash_attn_backward", shapes, dtypes, concrete)
    assert (backward.model_flops, backward.hardware_flops) == (2 * CAUSAL, CAUSAL * 5 // 2)
    # Reads gradient, q, k, v and the result, writes three gradients, in two bytes.
    q, kv = 2 * 128 * 8 * 64, 2 * 128 * 2 * 64
    assert (backward.read_bytes, backward.write_bytes) == (2 * (3 * q + 2 * kv), 2 * (q + 2 * kv))


def test_flash_attention_2_packed() -> None:
    shapes = [[256, 8, 64], [256, 2, 64], [256, 2, 64], [3], [3]] + [[]] * 14
    dtypes = [BF16] * 3 + ["int"] * 2 + ["Scalar"] * 8 + ["", "Scalar", "", "", "", "Scalar"]
    concrete = [""] * 5 + ["128", "128", "0.", "0.125", "True", "-1", "-1", "0.", "", "False", "", "", "", "False"]
    found = literal("flash_attn::_flash_attn_varlen_forward", shapes, dtypes, concrete)
    assert found.model_flops == CAUSAL
    concrete[5] = concrete[6] = "200"
    unknown = literal("flash_attn::_flash_attn_varlen_forward", shapes, dtypes, concrete)
    assert (unknown.model_flops, unknown.notes) == (None, ("lengths not recorded",))


def test_flash_attention_3_forward_backward_and_paged() -> None:
    shapes: list[Any] = [Q, KV, KV] + [[]] * 31
    dtypes = [BF16] * 3 + [""] * 20 + ["Scalar"] * 11
    concrete = [""] * 23 + ["0.125", "True", "-1", "-1", "0", "0.", "False", "", "1", "", "0"]
    assert literal("flash_attn_3::fwd", shapes, dtypes, concrete).model_flops == CAUSAL
    shapes[14], dtypes[14] = [2, 1], "int"
    paged = literal("flash_attn_3::fwd", shapes, dtypes, concrete)
    assert (paged.model_flops, paged.notes) == (None, ("gqa 8:2", "lengths not recorded"))
    shapes = [Q, Q, KV, KV, Q, [2, 8, 128], Q, KV, KV] + [[]] * 13
    dtypes = [BF16] * 5 + ["float"] + [BF16] * 3 + [""] * 6 + ["Scalar"] * 7
    concrete = [""] * 15 + ["0.125", "True", "-1", "-1", "0.", "False", "0"]
    assert literal("flash_attn_3::bwd", shapes, dtypes, concrete).model_flops == 2 * CAUSAL


def brute_force(queries: int, keys: int, window: tuple[int | None, int | None], offset: int) -> int:
    """Twice the pairs that a mask keeps, counted one by one; a pair on the causal edge counts half (so: once)."""
    left, right = window
    total = 0
    for i in range(queries):
        for j in range(keys):
            if (left is not None and j < i + offset - left) or (right is not None and j > i + offset + right):
                continue
            total += 1 if right is not None and j == i + offset + right else 2
    return total


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (5, 12), (12, 5), (3, 4), (40, 40)])
@pytest.mark.parametrize("ends_aligned", [False, True])
def test_the_causal_area_is_the_count_of_pairs_with_half_a_diagonal(
    queries: int, keys: int, ends_aligned: bool
) -> None:
    offset = keys - queries if ends_aligned else 0
    area = doubled_pairs(queries, keys, (None, 0), ends_aligned=ends_aligned)
    assert area == brute_force(queries, keys, (None, 0), offset)


def test_one_query_at_the_end_sees_all_keys() -> None:
    assert doubled_pairs(1, 1000, (None, 0), ends_aligned=True) == 2000


@pytest.mark.parametrize("window", [(0, 0), (3, 0), (15, 0), (63, 0), (200, 0)])
def test_a_causal_window_is_at_most_half_a_key_a_query_off(window: tuple[int, int]) -> None:
    # The continuous area and the discrete count differ only at the band's two edges.
    area = doubled_pairs(64, 64, window, ends_aligned=True)
    assert abs(area - brute_force(64, 64, window, 0)) <= 64


SCALED = [((64, 32), (32, 48)), ((16, 128), (128, 16))]


@pytest.mark.parametrize(("a", "b"), SCALED)
def test_scaled_products_equal_the_registered_formula(a: tuple[int, int], b: tuple[int, int]) -> None:
    fp8 = torch.float8_e4m3fn
    scale = meta(dtype=torch.float32)
    given = {"self": meta(*a, dtype=fp8), "mat2": meta(*b, dtype=fp8), "scale_a": scale, "scale_b": scale}
    found = price(from_schema(aten._scaled_mm.default, **given, out_dtype=15))
    assert found.model_flops == registered(aten._scaled_mm.default, None, **given)
    assert (found.kind, found.dtype) == ("matmul", "fp8")
    # One byte a value, two FP32 scales; the result is BF16 (scalar type 15).
    assert (found.read_bytes, found.write_bytes) == (a[0] * a[1] + b[0] * b[1] + 8, 2 * a[0] * b[1])


GROUPED = [
    ((96, 32), (3, 32, 48), 96 * 32 * 48, 96 * 48),
    ((3, 8, 32), (32, 60), 8 * 32 * 60, 8 * 60),
    ((3, 8, 32), (3, 32, 16), 3 * 8 * 32 * 16, 3 * 8 * 16),
    ((8, 90), (90, 16), 8 * 90 * 16, 3 * 8 * 16),
]


@pytest.mark.parametrize(("a", "b", "pairs", "out"), GROUPED, ids=["rows", "columns", "batch", "contraction"])
def test_grouped_products_need_only_the_totals(a: Any, b: Any, pairs: int, out: int) -> None:
    # By hand: the groups' sizes add up to the shared dimension.
    offsets = None if len(a) == len(b) == 3 else meta(3, dtype=torch.int32)
    found = price(from_schema(aten._grouped_mm.default, **{"self": meta(*a), "mat2": meta(*b), "offs": offsets}))
    assert (found.model_flops, found.write_bytes) == (2 * pairs, 2 * out)


def test_unequal_groups_add_up_to_the_same_as_separate_products() -> None:
    given = {"self": meta(96, 32), "mat2": meta(3, 32, 48), "offs": meta(3, dtype=torch.int32)}

    def separate() -> None:
        for rows in (10, 50, 36):
            torch.mm(torch.ones(rows, 32), torch.ones(32, 48))

    assert price(from_schema(aten._grouped_mm.default, **given)).model_flops == counted(separate)


def test_packed_fp4_holds_two_values_a_byte() -> None:
    # Deliberate difference: 64 recorded columns are 128 values.
    fp4, scale = "c10::Float4_e2m1fn_x2", "c10::Float8_e8m0fnu"
    shapes: list[Any] = [[16, 64], [64, 32], [64], [128], [], [], [], []]
    found = literal("aten::_scaled_mm", shapes, [fp4, fp4, scale, scale, "", "", "Scalar", "Scalar"],
                    ["", "", "", "", "", "", "15", "False"])  # fmt: skip
    assert (found.model_flops, found.dtype) == (2 * 16 * 128 * 32, "fp4")


def test_containers_views_and_unknown_ops_have_no_cost() -> None:
    for op in ("MmBackward0", "aten::view", "aten::einsum", "aten::to", "mine::op", "ProfilerStep#3"):
        sig = from_schema(aten.mm.default, **{"self": meta(4, 4), "mat2": meta(4, 4)})
        assert cost(type(sig)(op, sig.shapes, sig.dtypes, sig.concrete)) is None
