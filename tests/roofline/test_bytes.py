"""Bytes of memory-bound ops, worked out by hand from the shapes, and of products and attention."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from steptime.roofline.flops import cost, parse_signature
from tests.roofline.recorded_ops import from_schema, literal, price

aten = torch.ops.aten
BF16 = "c10::BFloat16"
HALF = "c10::Half"
F, L, I, B, S, LIST = "float", "long int", "int", "bool", "Scalar", "ScalarList"  # noqa: E741  (types of a column)

# op, shapes, types, concrete values, bytes read, bytes written
CASES: list[tuple[str, list[Any], list[str], list[str], int, int]] = [
    # Elementwise: every operand once, the broadcast result once.
    ("aten::add", [[64, 32], [64, 32], []], [F, F, S], ["", "", "1"], 2 * 64 * 32 * 4, 64 * 32 * 4),
    ("aten::add", [[64, 32], [32], []], [BF16, BF16, S], ["", "", "1"], (64 * 32 + 32) * 2, 64 * 32 * 2),
    ("aten::mul", [[64, 1], [1, 32]], [F, F], ["", ""], (64 + 32) * 4, 64 * 32 * 4),
    ("aten::add_", [[64, 32], [64, 32], []], [BF16, F, S], ["", "", "1"], 64 * 32 * 6, 64 * 32 * 2),
    ("aten::mul_", [[64], []], [F, S], ["", "0.5"], 256, 256),
    ("aten::div", [[64], []], [F, L], ["", ""], 256 + 8, 256),
    ("aten::gelu", [[8, 128], []], [BF16, ""], ["", ""], 2048, 2048),
    ("aten::relu_", [[8, 128]], [F], [""], 4096, 4096),
    ("aten::clamp_min", [[8, 128], [], [8, 128]], [F, S, F], ["", "0", ""], 4096, 4096),
    ("aten::eq", [[100], [100]], [L, L], ["", ""], 1600, 100),
    ("aten::gt", [[100], []], [F, S], ["", "0"], 400, 100),
    ("aten::addcmul_", [[50], [50], [50], []], [F, F, F, S], ["", "", "", "1"], 600, 200),
    ("aten::where", [[4, 25], [4, 25], []], [B, BF16, F], ["", "", ""], 100 + 200 + 4, 200),
    ("aten::masked_fill", [[10, 10], [10, 10], []], [HALF, B, S], ["", "", "-1."], 300, 200),
    ("aten::threshold_backward", [[64], [64], []], [F, F, S], ["", "", "0"], 512, 256),
    ("aten::silu_backward", [[64], [64]], [BF16, BF16], ["", ""], 256, 128),
    # Copies.
    ("aten::copy_", [[64, 2], [64, 2], []], [BF16, F, S], ["", "", "False"], 512, 256),
    ("aten::_to_copy", [[128], [], [], [], [], [], []], [F, S, "", "", "", S, ""], ["", "15"] + [""] * 5, 512, 256),
    ("aten::_to_copy", [[128], [], [], [], [], [], []], [F, "", "", "", "", S, ""], [""] * 7, 512, 512),
    ("aten::clone", [[128], []], [BF16, S], ["", "0"], 256, 256),
    ("aten::fill_", [[128], []], [F, S], ["", "0."], 0, 512),
    ("aten::zero_", [[128]], [BF16], [""], 0, 256),
    ("aten::repeat", [[16], []], [F, LIST], ["", "[2, 3]"], 64, 384),
    ("aten::constant_pad_nd", [[2, 3, 4], [], []], [F, LIST, S], ["", "[1, 2, 0, 1]", "0."], 96, 2 * 4 * 7 * 4),
    ("aten::native_dropout", [[100], [], []], [BF16, S, S], ["", "0.1", "True"], 200, 300),
    ("aten::native_dropout_backward", [[100], [100], []], [BF16, B, S], ["", "", "1.1"], 300, 200),
    # Reductions.
    ("aten::sum", [[8, 16], []], [F, ""], ["", ""], 512, 4),
    ("aten::sum", [[8, 16], [], [], []], [BF16, LIST, S, ""], ["", "[0]", "False", ""], 256, 32),
    ("aten::sum", [[8, 16], [], [], []], [B, LIST, S, ""], ["", "[-1]", "False", ""], 128, 64),
    ("aten::sum", [[8, 16], [], [], []], [BF16, LIST, S, S], ["", "[0, 1]", "False", "6"], 256, 4),
    ("aten::mean", [[8, 16, 4], [], [], []], [F, LIST, S, ""], ["", "[-1, -2]", "True", ""], 2048, 32),
    ("aten::max", [[8, 16], [], []], [F, S, S], ["", "1", "False"], 512, 8 * 12),
    ("aten::argmax", [[8, 16], [], []], [F, S, S], ["", "-1", "False"], 512, 64),
    ("aten::linalg_vector_norm", [[8, 16], [], [], [], []], [F, S, "", S, ""], ["", "2", "", "False", ""], 512, 4),
    ("aten::cumsum", [[8, 16], [], []], [I, S, ""], ["", "1", ""], 512, 1024),
    # Normalisations: mean and inverse deviation are FP32.
    (
        "aten::native_layer_norm", [[32, 64], [], [64], [64], []], [BF16, LIST, BF16, BF16, S],
        ["", "[64]", "", "", "1e-05"], 32 * 64 * 2 + 256, 32 * 64 * 2 + 2 * 32 * 4,
    ),
    (
        "aten::native_layer_norm_backward",
        [[32, 64], [32, 64], [], [32, 1], [32, 1], [64], [64], []], [BF16, BF16, LIST, F, F, BF16, BF16, LIST],
        ["", "", "[64]", "", "", "", "", "[True, True, True]"],
        2 * 32 * 64 * 2 + 2 * 32 * 4 + 128, 32 * 64 * 2 + 256,
    ),
    (
        "aten::_fused_rms_norm", [[32, 64], [], [64], []], [BF16, LIST, BF16, S], ["", "[64]", "", "1e-05"],
        32 * 64 * 2 + 128, 32 * 64 * 2 + 32 * 4,
    ),
    (
        "aten::_fused_rms_norm_backward", [[32, 64], [32, 64], [], [32, 1], [64], []], [F, F, LIST, F, F, LIST],
        ["", "", "[64]", "", "", "[True, False]"], 2 * 32 * 64 * 4 + 128 + 256, 32 * 64 * 4,
    ),
    (
        "aten::native_group_norm", [[8, 16, 4, 4], [16], [16], [], [], [], [], []], [F, F, F, S, S, S, S, S],
        ["", "", "", "8", "16", "16", "4", "1e-05"], 8 * 256 * 4 + 128, 8 * 256 * 4 + 2 * 8 * 4 * 4,
    ),
    (
        "aten::cudnn_batch_norm", [[8, 16, 4, 4], [16], [16], [16], [16], [], [], []], [BF16, F, F, F, F, S, S, S],
        ["", "", "", "", "", "True", "0.1", "1e-05"],
        # Input and four vectors; result, saved mean and deviation, and the updated running ones.
        8 * 256 * 2 + 4 * 64, 8 * 256 * 2 + 2 * 64 + 2 * 64,
    ),
    (
        "aten::native_batch_norm_backward",
        [[8, 16, 4, 4], [8, 16, 4, 4], [16], [16], [16], [16], [16], [], [], []], [F] * 7 + [S, S, LIST],
        [""] * 7 + ["True", "1e-05", "[True, True, True]"], 2 * 8192 + 3 * 64, 8192 + 128,
    ),
    # Softmax and losses.
    ("aten::_softmax", [[16, 100], [], []], [BF16, S, S], ["", "-1", "False"], 3200, 3200),
    ("aten::_log_softmax", [[16, 100], [], []], [BF16, S, S], ["", "1", "True"], 3200, 6400),
    (
        "aten::_log_softmax_backward_data", [[16, 100], [16, 100], [], []], [F, F, S, S], ["", "", "1", "15"],
        12800, 3200,
    ),
    ("aten::nll_loss_forward", [[16, 100], [16], [], [], []], [F, L, "", S, S], ["", "", "", "1", "-100"], 192, 8),
    (
        "aten::nll_loss_backward", [[], [16, 100], [16], [], [], [], []], [F, F, L, "", S, S, F],
        ["", "", "", "", "1", "-100", ""], 4 + 128 + 4, 64,
    ),
    (
        "aten::cross_entropy_loss", [[16, 100], [16], [], [], [], []], [F, L, "", S, S, S],
        ["", "", "", "1", "-100", "0."], 6400 + 128 + 64, 6400 + 8,
    ),
    ("aten::mse_loss", [[5, 128], [5, 128], []], [F, F, S], ["", "", "1"], 5120, 4),
    # Indexing: rows of the index, not of the table.
    ("aten::embedding", [[25136, 2880], [888], [], [], []], [BF16, L, S, S, S], ["", "", "-1", "False", "False"],
     888 * 8 + 888 * 5760, 888 * 5760),
    ("aten::embedding_dense_backward", [[4, 256, 512], [4, 256], [], [], []], [F, L, S, S, S],
     ["", "", "8192", "-1", "False"], 4 * 256 * 512 * 4 + 4 * 256 * 8, 4 * 256 * 512 * 4),
    ("aten::_embedding_bag", [[1000, 16], [300], [33]] + [[]] * 6, [F, L, L, S, S, S, "", S, S],
     ["", "", "", "False", "0", "False", "", "True", "-1"], 300 * 8 + 33 * 8 + 300 * 64, 32 * 64),
    ("aten::gather", [[100, 50], [], [100, 3], []], [F, S, L, S], ["", "1", "", "False"], 300 * 12, 1200),
    ("aten::index_select", [[100, 50], [], [7]], [BF16, S, L], ["", "1", ""], 56 + 700 * 2, 1400),
    ("aten::scatter_add_", [[100, 50], [], [100, 3], [100, 3]], [F, S, L, F], ["", "1", "", ""], 300 * 16, 1200),
    ("aten::index_add_", [[100, 50], [], [7], [7, 50], []], [F, S, L, F, S], ["", "0", "", "", "1"],
     56 + 2 * 1400, 1400),
    ("aten::cat", [[], [], [18500]], ["TensorList", S, F], ["", "0", ""], 74000, 74000),
    # Pooling and upsampling.
    ("aten::max_pool2d_with_indices", [[2, 4, 112, 112], [], [], [], [], []], [F, LIST, LIST, LIST, LIST, S],
     ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"], 8 * 112 * 112 * 4, 8 * 56 * 56 * 12),
    ("aten::max_pool2d_with_indices_backward",
     [[2, 4, 56, 56], [2, 4, 112, 112], [], [], [], [], [], [2, 4, 56, 56]], [F, F, LIST, LIST, LIST, LIST, S, L],
     ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False", ""], 8 * 56 * 56 * 12, 8 * 112 * 112 * 4),
    ("aten::avg_pool2d", [[2, 4, 9, 9], [], [], [], [], [], []], [BF16, LIST, LIST, LIST, S, S, ""],
     ["", "[2, 2]", "[]", "[0, 0]", "True", "True", ""], 8 * 81 * 2, 8 * 25 * 2),
    ("aten::_adaptive_avg_pool2d", [[2, 4, 9, 9], []], [F, LIST], ["", "[3, 3]"], 8 * 81 * 4, 8 * 9 * 4),
    ("aten::upsample_bilinear2d", [[2, 4, 9, 9], [], [], [], []], [F, LIST, S, "", ""],
     ["", "[18, 18]", "False", "", ""], 8 * 81 * 4, 8 * 324 * 4),
    ("aten::upsample_nearest2d_backward", [[2, 4, 18, 18], [], [], [], []], [F, LIST, LIST, "", ""],
     ["", "[18, 18]", "[2, 4, 9, 9]", "", ""], 8 * 324 * 4, 8 * 81 * 4),
    # Products: both operands and what is added once, the result once.
    ("aten::mm", [[64, 32], [32, 48]], [BF16, BF16], ["", ""], (64 * 32 + 32 * 48) * 2, 64 * 48 * 2),
    ("aten::addmm", [[48], [64, 32], [32, 48], [], []], [F, F, F, S, S], ["", "", "", "1", "1"],
     (48 + 64 * 32 + 32 * 48) * 4, 64 * 48 * 4),
    ("aten::linear", [[4, 16, 32], [48, 32], [48]], [HALF] * 3, ["", "", ""], (64 * 32 + 48 * 32 + 48) * 2, 64 * 96),
    ("aten::bmm", [[6, 8, 16], [6, 16, 24]], [F, F], ["", ""], 6 * (8 * 16 + 16 * 24) * 4, 6 * 8 * 24 * 4),
    ("aten::convolution", [[2, 8, 14, 14], [16, 8, 3, 3], [16]] + [[]] * 6, [F, F, F, LIST, LIST, LIST, S, LIST, S],
     ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
     (2 * 8 * 196 + 16 * 8 * 9 + 16) * 4, 2 * 16 * 196 * 4),
    ("aten::convolution", [[2, 8, 7, 7], [8, 4, 4, 4], []] + [[]] * 6, [F, F, "", LIST, LIST, LIST, S, LIST, S],
     ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "2"],
     # Transposed, two groups of four result channels: (7 - 1) * 2 - 2 + 4 = 14 positions a side.
     (2 * 8 * 49 + 8 * 4 * 16) * 4, 2 * 8 * 196 * 4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "concrete", "reads", "writes"), CASES, ids=[f"{n} {c[0]}" for n, c in enumerate(CASES)]
)
def test_bytes_by_hand(  # noqa: PLR0913  (a row of the table)
    op: str, shapes: list[Any], dtypes: list[str], concrete: list[str], reads: int, writes: int
) -> None:
    assert len(shapes) == len(dtypes) == len(concrete)
    found = literal(op, shapes, dtypes, concrete)
    assert (found.read_bytes, found.write_bytes, found.bytes) == (reads, writes, reads + writes)
    if found.kind == "memory":
        assert (found.model_flops, found.hardware_flops) == (0, 0)
    assert found.direction == ("backward" if "backward" in op else "forward")


def test_flash_moves_four_tensors_and_the_math_path_its_scores() -> None:
    shape, scores = [2, 4, 128, 64], 2 * 4 * 128 * 128
    one = 2 * 4 * 128 * 64 * 2
    tail = ["0.", "False", "", "", "False"]
    flash = literal("aten::_scaled_dot_product_flash_attention", [shape] * 3 + [[]] * 4, [BF16] * 3 + [S] * 4,
                    ["", "", "", "0.", "False", "False", ""])  # fmt: skip
    assert (flash.read_bytes, flash.write_bytes) == (3 * one, one)
    math = literal("aten::_scaled_dot_product_attention_math", [shape] * 3 + [[]] * 6,
                   [BF16] * 3 + ["", S, S, "", "", S], ["", "", "", "", *tail])  # fmt: skip
    # q k^T writes the scores, the softmax reads and writes them, the second product reads them.
    assert (math.read_bytes, math.write_bytes) == (3 * one + 2 * scores * 2, one + 2 * scores * 2)


ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool>"
)
ADD = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>, "
    "std::plus<float>, float>"
)
COPY = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 2, 1, 1>, "
    "at::native::Copy<float, c10::BFloat16> >"
)
PARAMS = [[128, 128], [128]]
COUNT = 128 * 128 + 128
ADAM_SHAPES: list[Any] = [PARAMS] * 4 + [[], [[], []]] + [[]] * 9
ADAM_TYPES = ["TensorList"] * 6 + [S] * 7 + ["", ""]
ADAM_VALUES = [""] * 6 + ["0.001", "0.9", "0.999", "0.01", "1e-08", "False", "False", "", ""]


def test_fused_adam_reads_four_and_writes_three_values_a_parameter() -> None:
    found = literal("aten::_fused_adamw_", ADAM_SHAPES, ADAM_TYPES, ADAM_VALUES, [ADAM])
    # And two step counters.
    assert (found.read_bytes, found.write_bytes) == (4 * COUNT * 4 + 8, 3 * COUNT * 4)
    assert (found.kind, found.model_flops) == ("memory", 0)


def test_amsgrad_and_a_gradient_scale_add_to_it() -> None:
    shapes = [PARAMS] * 5 + ADAM_SHAPES[5:]
    amsgrad = literal("aten::_fused_adam_", shapes, ADAM_TYPES, ADAM_VALUES, [ADAM])
    assert (amsgrad.read_bytes, amsgrad.write_bytes) == (5 * COUNT * 4 + 8, 4 * COUNT * 4)
    scaled = literal("aten::_fused_adam_", ADAM_SHAPES, [*ADAM_TYPES[:13], F, F], ADAM_VALUES, [ADAM])
    assert scaled.write_bytes == 4 * COUNT * 4


def test_lists_have_no_type_without_a_kernel_and_no_shapes_when_long() -> None:
    untyped = literal("aten::_fused_adamw_", ADAM_SHAPES, ADAM_TYPES, ADAM_VALUES)
    assert (untyped.bytes, untyped.notes) == (None, ("element type not recorded",))
    long = literal("aten::_fused_adamw_", [[]] * 15, ADAM_TYPES, ADAM_VALUES, [ADAM])
    assert (long.bytes, long.notes) == (None, ("shapes of the lists not recorded",))


@pytest.mark.parametrize(("first", "reads"), [("False", 3), ("True", 2)])
def test_fused_sgd_with_momentum(first: str, reads: int) -> None:
    values = ["", "", "", "0.", "0.9", "0.1", "0.", "False", "False", first, "", ""]
    found = literal(
        "aten::_fused_sgd_", [PARAMS] * 3 + [[]] * 9, ["TensorList"] * 3 + [S] * 7 + ["", ""], values, [ADAM]
    )
    assert (found.read_bytes, found.write_bytes) == (reads * COUNT * 4, 2 * COUNT * 4)


FOREACH: list[tuple[str, list[Any], int, int]] = [
    ("_foreach_add_", [PARAMS, PARAMS, []], 2 * COUNT, COUNT),
    ("_foreach_mul_", [PARAMS, []], COUNT, COUNT),
    ("_foreach_lerp_", [PARAMS, PARAMS, []], 2 * COUNT, COUNT),
    ("_foreach_addcmul_", [PARAMS, PARAMS, PARAMS, []], 3 * COUNT, COUNT),
    ("_foreach_addcdiv_", [PARAMS, PARAMS, PARAMS, []], 3 * COUNT, COUNT),
    ("_foreach_sqrt", [PARAMS], COUNT, COUNT),
    ("_foreach_zero_", [PARAMS], 0, COUNT),
    ("_foreach_norm", [PARAMS, [], []], COUNT, 2),
]


@pytest.mark.parametrize(("name", "shapes", "reads", "writes"), FOREACH, ids=[case[0] for case in FOREACH])
def test_foreach_optimizers_move_their_lists(name: str, shapes: list[Any], reads: int, writes: int) -> None:
    dtypes = ["TensorList" if shape else S for shape in shapes]
    found = literal(f"aten::{name}", shapes, dtypes, [""] * len(shapes), [ADD])
    assert (found.read_bytes, found.write_bytes) == (2 * reads, 2 * writes)


def test_a_foreach_copy_reads_one_type_and_writes_another() -> None:
    found = literal(
        "aten::_foreach_copy_", [PARAMS, PARAMS, []], ["TensorList", "TensorList", S], ["", "", "False"], [COPY]
    )
    assert (found.read_bytes, found.write_bytes) == (COUNT * 2, COUNT * 4)


def test_the_copy_kernel_shows_the_size_of_what_is_concatenated() -> None:
    kernel = "void at::native::CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int, 1, 128, 1>"
    args = ("aten::cat", [[[4, 8], [2, 8]], []], ["TensorList", S], ["", "0"])
    assert literal(*args, [kernel]).bytes == 2 * 48 * 2
    assert literal(*args).bytes is None


def test_an_expanded_operand_is_read_once() -> None:
    sig = parse_signature("aten::add", "[[64, 32], [64, 32], []]", '["float", "float", "Scalar"]', '["", "", "1"]',
                          "[[32, 1], [0, 0], []]")  # fmt: skip
    assert sig is not None
    found = price(sig)
    assert (found.read_bytes, found.write_bytes) == (64 * 32 * 4 + 4, 64 * 32 * 4)


UNKNOWN: list[tuple[str, list[Any], list[str], list[str]]] = [
    ("aten::add", [[64], [64], []], ["c10::Mystery", F, S], ["", "", "1"]),
    ("aten::sum", [[8, 16], [], [], []], [F, "", S, ""], []),
    ("aten::remainder", [[351], []], [L, S], []),
    ("aten::exp", [[8]], [L], [""]),
    ("aten::mul", [[8], []], [L, S], ["", "0.5"]),
    ("aten::native_layer_norm_backward",
     [[32, 64], [32, 64], [], [32, 1], [32, 1], [64], [64], []], [F, F, "", F, F, F, F, ""], []),
    ("aten::_to_copy", [[128], [], [], [], [], [], []], [F, S, "", "", "", S, ""], []),
    ("aten::max_pool2d_with_indices", [[2, 4, 9, 9]] + [[]] * 5, [F, "", "", "", "", S], []),
    ("aten::index_select", [[100, 50], [], [7]], [F, S, L], []),
    ("aten::fill_", [[128], []], [], []),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "dtypes", "concrete"), UNKNOWN, ids=[case[0] for case in UNKNOWN])
def test_what_was_not_recorded_is_unknown_and_not_guessed(
    op: str, shapes: list[Any], dtypes: list[str], concrete: list[str]
) -> None:
    assert literal(op, shapes, dtypes, concrete).bytes is None


def test_an_index_of_unrecorded_kind_has_no_cost() -> None:
    # `index` takes a list of optional masks or positions, of which neither type nor shape is recorded.
    sig = parse_signature("aten::index", "[[16, 27, 27], []]", json.dumps([F, ""]), json.dumps(["", ""]))
    assert sig is not None
    assert cost(sig) is None


def test_backward_of_a_schema_with_an_out_tensor() -> None:
    # Order from PyTorch's schema: gradient, input, statistics, weight, then the mask.
    x, vector, stats = (torch.empty(shape, device="meta") for shape in ((8, 16, 4, 4), (16,), (8, 4)))
    given = {"grad_out": x, "input": x, "mean": stats, "rstd": stats, "weight": vector, "N": 8, "C": 16, "HxW": 16,
             "group": 4, "output_mask": [True, False, True]}  # fmt: skip
    found = price(from_schema(aten.native_group_norm_backward.default, **given))
    assert (found.read_bytes, found.write_bytes) == (2 * 8192 + 2 * 128 + 64, 8192 + 64)
