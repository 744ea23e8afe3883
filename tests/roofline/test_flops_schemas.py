"""The tables of argument places, held against the schemas of the installed PyTorch, name by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from steptime.roofline import ops_attention, ops_convolution
from steptime.roofline.flops import RULES

ATTENTION_NAMES = {
    "q": {"query"},
    "mask": {"attn_mask", "attn_bias", "bias"},
    "causal": {"is_causal"},
    "causal_type": {"custom_mask_type"},
    "window": {"window_size_left"},
    "window_size": {"window_size"},
    "lengths": {"cum_seq_q", "cu_seqlens_q"},
    "longest": {"max_q", "max_seqlen_q"},
}
CONVOLUTION_NAMES = ("stride", "padding", "dilation", "bias", "transposed", "output_padding", "groups")


def _overloads(op: str) -> list[list[str]]:
    """The argument names of each overload that allocates its result."""
    packet = getattr(torch.ops.aten, op.removeprefix("aten::"))
    schemas = [getattr(packet, name)._schema for name in packet.overloads() if not name.endswith("out")]
    return [[argument.name for argument in schema.arguments] for schema in schemas]


@pytest.mark.parametrize("op", [op for op in ops_attention._OPS if op.startswith("aten::")])
def test_attention_places(op: str) -> None:
    # The first overload is the plain one; the quantized ones come after.
    names, places = _overloads(op)[0], ops_attention._OPS[op]
    for name, allowed in ATTENTION_NAMES.items():
        index = getattr(places, name)
        if index >= 0:
            assert names[index] in allowed
        else:
            # A place that the table lacks is not in the schema either.
            assert not allowed & set(names)
    assert all(names[index] in ("seqused_k", "seqlen_k", "block_table") for index in places.unknown)
    assert ("grad_out" in names or "grad_out_" in names) == places.backward


@pytest.mark.parametrize(("op", "arity"), ops_attention._QUANTIZED)
def test_quantized_overloads_are_told_by_their_number_of_arguments(op: str, arity: int) -> None:
    names = next(names for names in _overloads(op) if "q_descale" in names)
    places = ops_attention._QUANTIZED[(op, arity)]
    assert len(names) == arity
    assert names[places.causal] == "is_causal"
    assert places.window < 0 or names[places.window] == "window_size_left"
    assert all(names[index] == "seqused_k" for index in places.unknown)


@pytest.mark.parametrize("op", [op for op in ops_convolution._FORWARD if op.startswith("aten::")])
def test_convolution_places(op: str) -> None:
    places = ops_convolution._FORWARD[op]
    named: dict[str, Any] = {name: getattr(places, name) for name in CONVOLUTION_NAMES}
    for names in _overloads(op):
        assert names[1] == "weight"
        for name, index in named.items():
            if not isinstance(index, bool) and index >= 0:
                assert names[index] == name
    assert set(places._fields) == set(CONVOLUTION_NAMES)


def test_the_tables_name_every_place() -> None:
    flags = {"rows_first", "ends_aligned", "backward", "math", "unknown"}
    assert {field.name for field in fields(ops_attention._Places)} == set(ATTENTION_NAMES) | flags


def test_every_aten_rule_names_an_op_that_exists() -> None:
    # Ops of earlier releases: cuDNN and MIOpen gradients became one `convolution_backward` in 1.11.
    retired = ("convolution_backward", "convolution_transpose_backward", "convolution_backward_input")
    gone = {f"aten::{lib}_{name}" for lib in ("cudnn", "miopen") for name in (*retired, "convolution_backward_weight")}
    for op in RULES:
        if op.startswith("aten::") and op not in gone:
            name = op.removeprefix("aten::")
            # The elementwise table gives every op an in-place form, which a few do not have.
            assert hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, name.removesuffix("_")), op
