"""Single ops as real traces have them, and the reading of their arguments.

The entries are copied from public traces (a PyTorch 2.x run on an RTX 3060, an H100 and an MI300X; a 2021 run on a V100
class GPU); the expected figures are worked out by hand from the shapes.
"""

from __future__ import annotations

import json
import time

import pytest

from steptime.roofline.compute_dtype import compute_dtype, kernel_dtype
from steptime.roofline.flops import RULES, cost, parse_signature
from steptime.roofline.signature import Operand
from tests.roofline.recorded_ops import literal, price

BF16 = "c10::BFloat16"


def test_efficient_attention_of_a_compiled_model() -> None:
    shape = [4, 256, 8, 64]
    forward = literal(
        "aten::_efficient_attention_forward", [shape] * 3 + [[]] * 11,
        ["float"] * 3 + [""] * 5 + ["Scalar"] * 3 + [""] * 3,
        [""] * 8 + ["0.10000000000000001", "0", "True", "", "", ""],
    )  # fmt: skip
    # 4 x 8 heads, 256 x 256 pairs, 2 * (64 + 64) operations a pair.
    assert forward.model_flops == 4 * 8 * 256 * 256 * 256
    assert forward.notes == ()
    backward = literal(
        "aten::_efficient_attention_backward",
        [shape] * 4 + [[], shape, [], [], [], [], [4, 8, 256]] + [[]] * 9,
        ["float"] * 4 + ["", "float", "", "", "Scalar", "Scalar", "float", "Scalar", "long int", "long int"]
        + ["Scalar", "Scalar", "", "", "", "Scalar"],
        [""] * 8 + ["8", "8", "", "0.10000000000000001", "", "", "0", "False", "", "", "", "False"],
    )  # fmt: skip
    assert backward.model_flops == 2 * 4 * 8 * 256 * 256 * 256
    assert backward.hardware_flops == 5 * 4 * 8 * 256 * 256 * 128


def test_causal_flash_attention_on_an_h100_at_both_levels() -> None:
    # A causal square of 559: 16 x 16 heads, 559^2 / 2 pairs, 256 operations each.
    flops = 16 * 16 * 559 * 559 * 128
    wide, tall = [16, 16, 559, 64], [16, 559, 16, 64]
    outer = literal(
        "aten::_scaled_dot_product_flash_attention", [wide] * 3 + [[]] * 4, [BF16] * 3 + ["Scalar"] * 4,
        ["", "", "", "0.", "True", "False", "0.125"],
    )  # fmt: skip
    inner = literal(
        "aten::_flash_attention_forward", [tall] * 3 + [[]] * 12,
        [BF16] * 3 + ["", ""] + ["Scalar"] * 6 + [""] * 4,
        ["", "", "", "", "", "559", "559", "0.", "True", "False", "0.125", "", "", "", ""],
    )  # fmt: skip
    for found in (outer, inner):
        assert (found.model_flops, found.hardware_flops, found.notes) == (flops, flops, ("causal",))
        assert found.bytes == 4 * 16 * 559 * 16 * 64 * 2


def test_convolution_and_its_backward_on_an_mi300() -> None:
    forward = literal(
        "aten::miopen_convolution", [[10, 256, 14, 14], [512, 256, 3, 3]] + [[]] * 7,
        [BF16, BF16, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "Scalar", "Scalar"],
        ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False"],
    )  # fmt: skip
    # Padding 1, stride 2: 7 x 7 positions.
    assert forward.model_flops == 2 * 10 * 7 * 7 * 512 * 256 * 9
    assert forward.write_bytes == 10 * 512 * 7 * 7 * 2
    backward = literal(
        "aten::convolution_backward", [[10, 512, 7, 7], [10, 512, 7, 7], [512, 512, 3, 3]] + [[]] * 8,
        [BF16] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"],
        ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"],
    )  # fmt: skip
    assert backward.model_flops == 2 * (2 * 10 * 7 * 7 * 512 * 512 * 9)
    x, weight = 10 * 512 * 49, 512 * 512 * 9
    # The data gradient reads gradient and weight, the weight gradient reads gradient and input.
    assert (backward.read_bytes, backward.write_bytes) == (2 * (3 * x + weight), 2 * (x + weight))


def test_the_2021_format_says_what_it_does_not_know() -> None:
    lists = ["GenericList"] * 3 + ["Int", "Bool", "Bool", "Bool"]
    forward = literal(
        "aten::cudnn_convolution", [[32, 3, 224, 224], [64, 3, 7, 7]] + [[]] * 7, ["float", "float", *lists]
    )
    assert (forward.kind, forward.model_flops, forward.bytes) == ("convolution", None, None)
    assert forward.notes == ("arguments not recorded",)
    # The gradient of the result is an input of the backward, so its size is known: 1x1 kernel, 7 x 7 positions.
    data = literal(
        "aten::cudnn_convolution_backward_input",
        [[], [32, 2048, 7, 7], [2048, 512, 1, 1]] + [[]] * 7, ["GenericList", "float", "float", *lists],
    )  # fmt: skip
    assert data.model_flops == 2 * 32 * 7 * 7 * 2048 * 512
    addmm = literal(
        "aten::addmm", [[1000], [32, 2048], [2048, 1000], [], []], ["float", "float", "float", "Int", "Int"]
    )
    assert (addmm.model_flops, addmm.dtype) == (2 * 32 * 2048 * 1000, "fp32")


def test_without_types_the_kernel_tells_the_arithmetic_but_not_the_bytes() -> None:
    shapes = [[1000], [32, 2048], [2048, 1000], [], []]
    assert literal("aten::addmm", shapes, []).dtype is None
    found = literal("aten::addmm", shapes, [], kernels=["volta_sgemm_64x64_tn"])
    assert (found.model_flops, found.dtype, found.bytes) == (2 * 32 * 2048 * 1000, "fp32", None)


def test_leftovers_of_the_interpreters_stack_are_not_arguments() -> None:
    shapes = [[512, 2842], [512], [2048, 1421], [2048, 1421], []]
    sig = parse_signature("aten::pow", json.dumps(shapes), json.dumps(["float"] * 4 + ["Scalar"]))
    assert sig is not None
    assert cost(sig) is None
    sig = parse_signature("aten::linear", "[[2048,3906],[2048,512],[2494,512],[2494]]", json.dumps(["float"] * 4))
    assert sig is not None
    assert cost(sig) is None


def test_out_variants_and_result_types() -> None:
    out = literal("aten::mm", [[4, 8], [8, 6], [4, 6]], ["float"] * 3, ["", "", ""])
    assert (out.model_flops, out.write_bytes) == (2 * 4 * 8 * 6, 4 * 6 * 4)
    wide = literal("aten::mm", [[4, 8], [8, 6], []], [BF16, BF16, "Scalar"], ["", "", "6"])
    assert (wide.write_bytes, wide.dtype) == (4 * 6 * 4, "bf16")
    unread = literal(
        "aten::addmm", [[4, 6], [4, 8], [8, 6], [], []], ["float"] * 3 + ["Scalar"] * 2, ["", "", "", "0", "1"]
    )
    assert unread.read_bytes == (4 * 8 + 8 * 6) * 4


def test_inductors_products() -> None:
    extern = literal("extern_kernels.mm", [[4, 8], [8, 6], [4, 6]], ["float"] * 3)
    assert extern.model_flops == 2 * 4 * 8 * 6
    template = literal("triton_tem_fused_mm_t_3", [[64, 32], [48, 32], [64, 48]], [BF16] * 3)
    assert (template.kind, template.model_flops) == ("matmul", 2 * 64 * 32 * 48)
    assert template.bytes == 2 * (64 * 32 + 48 * 32 + 64 * 48)
    for shapes in ([[64, 32], [48, 32]], [[64, 32], [48, 32], [64, 48], [48, 1]], [[4, 4], [2, 2], [8, 8]]):
        sig = parse_signature("triton_tem_fused_mm_t_3", json.dumps(shapes), json.dumps([BF16] * len(shapes)))
        assert sig is not None
        assert cost(sig) is None


def test_what_inductor_counts_itself_is_taken() -> None:
    extra = '{"kernel_backend": "triton", "kernel_flop": 123456, "kernel_num_gb": 0.001048576}'
    sig = parse_signature("triton_tem_fused_flex_attention_2", "[[2,8,128,64]]", f'["{BF16}"]', '[""]', "", extra)
    assert sig is not None
    found = price(sig)
    assert (found.kind, found.model_flops, found.bytes, found.read_bytes) == ("attention", 123456, 1048576, None)


def test_a_fused_kernel_moves_every_argument_once_unless_it_picks_parts() -> None:
    # From a compiled MLP: SiLU times gate, in place of one of the two.
    shapes = [[8, 4096, 8192], [32768, 8192], []]
    found = literal("triton_poi_fused__unsafe_view_mul_silu_2", shapes, [BF16, BF16, "Scalar"], ["", "", "268435456"])
    assert (found.kind, found.model_flops, found.bytes) == ("memory", 0, 2 * 2 * 32768 * 8192)
    picks = literal("triton_poi_fused_embedding_1", [[256, 512], [256, 512], []], ["float", "float", "Scalar"])
    assert (picks.bytes, picks.notes) == (None, ("arguments used in part",))


def test_transformer_engine() -> None:
    shapes: list[object] = [[]] * 22
    dtypes = ["Scalar"] * 22
    for place, shape, dtype in (
        (0, [512, 256], "unsigned char"),
        (5, [64, 256], "unsigned char"),
        (10, [64, 512], BF16),
    ):
        shapes[place], dtypes[place] = shape, dtype
    gemm = literal("tex_ts::te_gemm_ts", shapes, dtypes, kernels=["sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n"])
    assert (gemm.model_flops, gemm.dtype) == (2 * 512 * 256 * 64, "fp8")
    assert (gemm.read_bytes, gemm.write_bytes) == (512 * 256 + 64 * 256, 64 * 512 * 2)
    linear = literal("_Linear", [[512, 256], [16, 4, 256], [512]], [BF16] * 3)
    assert (linear.model_flops, linear.write_bytes) == (2 * 64 * 256 * 512, 64 * 512 * 2)
    fused = literal("_LayerNormLinear", [[16, 4, 256], [256], [256], [512, 256], [512]], [BF16] * 5)
    assert fused.model_flops == 2 * 64 * 256 * 512


KERNELS = [
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4", "tf32"),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(Params)", "tf32"),
    (
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x256_32x4_nhwc_align4>(Params)",
        "tf32",
    ),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "fp32"),
    ("volta_sgemm_128x32_tn", "fp32"),
    ("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", "fp32"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, Sm80>)", "fp32"),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(float)", "fp32"),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "fp16"),
    ("volta_h884gemm_64x64_ldg8_nn", "fp16"),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", "fp16"),
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", "fp16"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "bf16"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688bf16gemm_128x128_16x5_nn_align4>(Params)", "bf16"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "bf16"),
    ("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", "bf16"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN", "bf16"),
    ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "fp32"),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8", "bf16"),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "fp8"),
    ("void cudnn::ops::computeOffsetsKernel<false, false>(Params)", None),
]


@pytest.mark.parametrize(("name", "dtype"), KERNELS, ids=[name[:50] for name, _ in KERNELS])
def test_kernel_names_state_their_arithmetic(name: str, dtype: str | None) -> None:
    assert kernel_dtype(name) == dtype


def test_a_kernel_refines_only_what_it_can_be_about() -> None:
    tf32 = "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32"
    layout = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float*)"
    assert compute_dtype("float", [layout, tf32]) == "tf32"
    assert compute_dtype("float", [layout]) == "fp32"
    assert compute_dtype("float", ["something_else"]) == "fp32"
    assert compute_dtype("double", [tf32]) == "fp64"
    assert compute_dtype("c10::BFloat16", [tf32]) == "bf16"
    assert compute_dtype("c10::BFloat16", ["sm90_xmma_gemm_e4m3bf16_e4m3f32_f32"]) == "fp8"
    assert compute_dtype("long int", [tf32]) is None
    assert compute_dtype("a type of the future") is None


@pytest.mark.parametrize("text", ["", "null", "{}", "3", "[[1,2]", '"[1, 2]"', "not json"])
def test_shapes_that_are_no_list_are_no_signature(text: str) -> None:
    assert parse_signature("aten::mm", text, '["float"]') is None


def test_other_texts_that_do_not_fit_are_dropped() -> None:
    shapes = "[[2, 3], [3, 4]]"
    for types, concrete in (('["float"]', '[""]'), ("", ""), ("[1, 2]", "{}"), ('["float", null]', '["", 3]')):
        sig = parse_signature("aten::mm", shapes, types, concrete)
        assert sig is not None
        assert (sig.dtypes, sig.concrete) == ([], [])
        found = price(sig)
        assert (found.model_flops, found.bytes, found.dtype) == (48, None, None)


@pytest.mark.parametrize(
    "shapes", ["[]", "[[]]", "[null, 3]", '["a"]', "[[-1, 2], [2, 4]]", "[[1.5, 2], [2, 4]]", "[[[2]], []]"]
)
def test_no_rule_fails_on_arguments_it_does_not_expect(shapes: str) -> None:
    count = len(json.loads(shapes))
    for op in [*RULES, "triton_tem_fused_mm_1", "triton_poi_fused_add_0", "extern_kernels.mm"]:
        for dtypes in ([], ["float"] * count, ["Scalar"] * count, ["TensorList"] * count):
            sig = parse_signature(op, shapes, json.dumps(dtypes), json.dumps(["[1]"] * count))
            assert sig is not None
            found = cost(sig)
            assert found is None or found.model_flops in (None, 0)


def test_concrete_values_are_read_as_text_says() -> None:
    texts = ["", "[32, 64]", "[]", "True", "-100", "0.5", "[True, False]", "15"]
    sig = parse_signature("x", json.dumps([[]] * 8), json.dumps(["Scalar"] * 8), json.dumps(texts))
    assert sig is not None
    assert [sig.integers(i) for i in range(8)] == [None, [32, 64], [], None, [-100], None, None, [15]]
    assert [sig.integer(i) for i in (4, 5, 7)] == [-100, None, 15]
    assert (sig.boolean(3), sig.boolean(4), sig.booleans(6)) == (True, None, [True, False])
    assert sig.scalar_type(7) == "c10::BFloat16"


def test_a_repeated_element_is_stored_once() -> None:
    sig = parse_signature("x", "[[3, 4], [], [0, 2]]", '["float", "float", "float"]', "", "[[0, 1], [], [0, 1]]")
    assert sig is not None
    assert sig.tensor(0) == Operand((3, 4), "float", 4)
    assert sig.tensor(1) == Operand((), "float", 1)
    assert sig.tensor(2) == Operand((0, 2), "float", 0)


def test_five_thousand_signatures_take_less_than_a_fifth_of_a_second() -> None:
    dims = [4, 16, 512, 64]
    texts = (
        ("aten::addmm", [[512], [64, 512], [512, 512], [], []], ["float"] * 3 + ["Scalar"] * 2, ["", "", "", "1", "1"]),
        ("aten::add", [dims, dims, []], [BF16, BF16, "Scalar"], ["", "", "1"]),
        ("aten::_scaled_dot_product_flash_attention", [dims] * 3 + [[]] * 4, [BF16] * 3 + ["Scalar"] * 4,
         ["", "", "", "0.", "True", "False", ""]),
    )  # fmt: skip
    raw = [(op, *(json.dumps(part) for part in parts)) for op, *parts in texts]
    kernels = ["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment"]
    best = min(_seconds(raw, kernels) for _ in range(3))
    assert best < 0.2


def _seconds(raw: list[tuple[str, ...]], kernels: list[str]) -> float:
    start = time.perf_counter()
    for index in range(5000):
        sig = parse_signature(*raw[index % len(raw)])
        assert sig is not None
        assert cost(sig, kernels) is not None
    return time.perf_counter() - start
