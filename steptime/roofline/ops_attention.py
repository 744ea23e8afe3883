"""Scaled dot-product attention: every backend, forward and backward, priced from the shapes of q, k and v.

A (query, key) pair costs 2·(d_qk + d_v) operations forward. Pairs that a causal or window mask removes are not needed
and not counted; the diagonal counts half, so that a square causal mask is exactly one half of the full count (the
convention of Megatron-LM). A window that keeps `left` earlier keys counts left + 1 keys a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from steptime.roofline.compute_dtype import compute_dtype
from steptime.roofline.op_cost import OpCost, Rule, nbytes, times, total
from steptime.roofline.signature import Operand, Signature


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an op's schema has its arguments; -1: not there.

    q: place of the query, followed by key and value. rows_first: shape [batch, sequence, heads, dim], else
    [batch, heads, sequence, dim]. mask: a mask or bias tensor. causal: a flag; causal_type: the mask number of
    `_efficient_attention_*`. window: left (right follows); window_size: keys kept, this one included. lengths: the
    cumulative sequence lengths of q (k follows), then the longest q and k at `longest`. unknown: arguments that, when
    given, hide which keys are used. ends_aligned: a causal mask of unequal lengths ends in the lower right corner.
    kind of work: `backward`, `math` (the score matrix goes through memory, and the mask saves nothing).
    """

    q: int = 0
    rows_first: bool = False
    mask: int = -1
    causal: int = -1
    causal_type: int = -1
    window: int = -1
    window_size: int = -1
    lengths: int = -1
    longest: int = -1
    unknown: tuple[int, ...] = ()
    ends_aligned: bool = False
    backward: bool = False
    math: bool = False


#: FlashAttention 3 registers its forward under two names.
_FLASH_3_FORWARD = _Places(
    causal=24,
    window=25,
    lengths=7,
    longest=12,
    unknown=(3, 5, 10, 11, 14, 15, 16),
    rows_first=True,
    ends_aligned=True,
)

# Positions from the schemas of PyTorch 2.13, flash-attn 2.8 and FlashAttention-3; earlier releases only lack the tail.
_OPS = {
    "aten::scaled_dot_product_attention": _Places(mask=3, causal=5),
    "aten::_scaled_dot_product_flash_attention": _Places(causal=4, ends_aligned=True),
    "aten::_scaled_dot_product_flash_attention_backward": _Places(
        1, causal=11, lengths=6, longest=8, ends_aligned=True, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention": _Places(mask=3, causal=6),
    "aten::_scaled_dot_product_efficient_attention_backward": _Places(1, mask=4, causal=11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention": _Places(mask=3, causal=6),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Places(
        1, mask=8, causal=14, lengths=9, longest=11, backward=True
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Places(mask=3, causal=5),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Places(
        1, mask=4, causal=13, lengths=8, longest=10, backward=True
    ),
    "aten::_scaled_dot_product_attention_math": _Places(mask=3, causal=5, math=True),
    "aten::_scaled_dot_product_attention_math_for_mps": _Places(mask=3, causal=5, math=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Places(mask=5, causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Places(1, mask=8, causal=7, backward=True),
    "aten::_flash_attention_forward": _Places(
        causal=8, window=11, lengths=3, longest=5, unknown=(13, 15), rows_first=True, ends_aligned=True
    ),
    "aten::_flash_attention_backward": _Places(
        1, causal=11, window=15, lengths=6, longest=8, backward=True, rows_first=True, ends_aligned=True
    ),
    "aten::_efficient_attention_forward": _Places(
        rows_first=True, mask=3, causal_type=9, window_size=13, lengths=4, longest=6, unknown=(12,)
    ),
    "aten::_efficient_attention_backward": _Places(
        1, rows_first=True, mask=4, causal_type=14, window_size=18, lengths=6, longest=8, backward=True
    ),
    "aten::_cudnn_attention_forward": _Places(mask=3, causal=10, lengths=4, longest=6),
    "aten::_cudnn_attention_backward": _Places(1, mask=8, causal=14, lengths=9, longest=11, backward=True),
    "flash_attn::_flash_attn_forward": _Places(causal=5, window=6, rows_first=True, ends_aligned=True),
    "flash_attn::_flash_attn_backward": _Places(
        1, causal=11, window=12, backward=True, rows_first=True, ends_aligned=True
    ),
    "flash_attn::_flash_attn_varlen_forward": _Places(
        causal=9, window=10, lengths=3, longest=5, unknown=(15, 16, 17), rows_first=True, ends_aligned=True
    ),
    "flash_attn::_flash_attn_varlen_backward": _Places(
        1, causal=15, window=16, lengths=9, longest=11, backward=True, rows_first=True, ends_aligned=True
    ),
    "flash_attn_3::fwd": _FLASH_3_FORWARD,
    "flash_attn_3::bwd": _Places(
        1,
        causal=16,
        window=17,
        lengths=9,
        longest=13,
        unknown=(11, 12),
        backward=True,
        rows_first=True,
        ends_aligned=True,
    ),
    "flash_attn_3::_flash_attn_forward": _FLASH_3_FORWARD,
    "flash_attn_3::_flash_attn_backward": _Places(
        1,
        causal=16,
        window=17,
        lengths=6,
        longest=10,
        unknown=(8, 9),
        backward=True,
        rows_first=True,
        ends_aligned=True,
    ),
}

# Overloads with three FP8 scales before the tail; the trace does not name overloads, only their number of arguments.
_QUANTIZED = {
    ("aten::_scaled_dot_product_flash_attention", 10): _Places(causal=7, ends_aligned=True),
    ("aten::_flash_attention_forward", 18): _Places(
        causal=8, window=14, lengths=3, longest=5, unknown=(16,), rows_first=True, ends_aligned=True
    ),
}


class _Sizes(NamedTuple):
    """batch, query heads, key heads, query length, key length, dimension of q and k, dimension of v."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    d_qk: int
    d_v: int


def _attention(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    places = _QUANTIZED.get((sig.op, sig.arity)) or _OPS[sig.op]
    q, k, v = sig.tensor(places.q), sig.tensor(places.q + 1), sig.tensor(places.q + 2)
    if q is None or k is None or v is None:
        return None
    notes: list[str] = []
    sizes = _varlen_sizes(sig, places, (q, k, v)) if _entries(sig, places) > 1 else _sizes(places, (q, k, v))
    hidden = sizes is None or any(sig.tensor(index) is not None for index in places.unknown)
    if sizes is not None and sizes.heads != sizes.key_heads:
        notes.append(f"gqa {sizes.heads}:{sizes.key_heads}")
    doubled = None if sizes is None or hidden else _doubled_pairs(sig, places, sizes, notes)
    if hidden:
        notes.append("lengths not recorded")
    model, hardware = _flops(places, sizes, doubled)
    reads, writes = _traffic(sig, places, (q, k, v), sizes)
    direction = "backward" if places.backward else "forward"
    return OpCost("attention", direction, model, hardware, reads, writes, compute_dtype(q.dtype, kernels), tuple(notes))


def _sizes(places: _Places, operands: tuple[Operand, Operand, Operand]) -> _Sizes | None:
    q, k, v = (operand.shape for operand in operands)
    if len(q) < 2 or not len(q) == len(k) == len(v) or q[-1] != k[-1]:
        return None
    if places.rows_first:
        if len(q) != 4:
            return None
        q, k, v = ((s[0], s[2], s[1], s[3]) for s in (q, k, v))
    if k[:-1] != v[:-1]:
        return None
    if len(q) == 4:
        if q[0] != k[0] or not k[1] or q[1] % k[1]:
            return None
        return _Sizes(q[0], q[1], k[1], q[2], k[2], q[3], v[3])
    return _Sizes(prod(q[:-2]), 1, 1, q[-2], k[-2], q[-1], v[-1]) if q[:-2] == k[:-2] else None


def _entries(sig: Signature, places: _Places) -> int:
    """Entries of the cumulative lengths: one more than the packed sequences, 0 for dense tensors."""
    lengths = sig.tensor(places.lengths)
    return lengths.shape[0] if lengths and len(lengths.shape) == 1 else 0


def _varlen_sizes(sig: Signature, places: _Places, operands: tuple[Operand, Operand, Operand]) -> _Sizes | None:
    """Sizes of packed sequences, known only if there is one, or if all are as long as the longest."""
    count = _entries(sig, places) - 1
    rows: list[tuple[int, int, int]] = []
    for operand, longest in zip(operands, (places.longest, places.longest + 1, places.longest + 1), strict=True):
        shape = operand.shape[1:] if len(operand.shape) == 4 and operand.shape[0] == 1 else operand.shape
        if len(shape) != 3:
            return None
        length = shape[0] if count == 1 else sig.integer(longest)
        if length is None or length * count != shape[0]:
            return None
        rows.append((length, shape[1], shape[2]))
    (sq, hq, dq), (sk, hk, dk), (sv, hv, dv) = rows
    if dq != dk or sk != sv or hk != hv or not hk or hq % hk:
        return None
    return _Sizes(count, hq, hk, sq, sk, dq, dv)


def _doubled_pairs(sig: Signature, places: _Places, sizes: _Sizes, notes: list[str]) -> int | None:
    """Twice the (query, key) pairs that the mask leaves, for one head; None when the mask was not recorded."""
    bounds = _bounds(sig, places)
    if bounds is None:
        notes.append("mask not recorded")
        return None
    left, right, ends_aligned = bounds
    if places.mask >= 0 and sig.tensor(places.mask) is not None:
        notes.append("mask tensor counted in full")
    if right == 0:
        notes.append("causal")
    if left is not None:
        notes.append(f"window {left + 1}" if right == 0 else f"window {left},{'all' if right is None else right}")
    return doubled_pairs(sizes.queries, sizes.keys, (left, right), ends_aligned=ends_aligned)


def _bounds(sig: Signature, places: _Places) -> tuple[int | None, int | None, bool] | None:
    """Earlier and later keys that a query sees (None: all), and whether the mask ends in the lower right corner."""
    left: int | None = None
    right: int | None = None
    ends_aligned = places.ends_aligned
    if places.causal >= 0:
        causal = sig.boolean(places.causal)
        if causal is None:
            return None
        right = 0 if causal else None
    if places.causal_type >= 0:
        # 0: none, 1: causal from the upper left corner, 2: from the lower right (CustomMaskType in ATen).
        number = sig.integer(places.causal_type)
        if number not in (0, 1, 2):
            return None
        right, ends_aligned = (0 if number else None), number == 2
    if places.window >= 0:
        left = _limit(sig, places.window)
        later = _limit(sig, places.window + 1)
        right = right if later is None or right == 0 else later
    if places.window_size >= 0:
        kept = sig.integer(places.window_size)
        left = kept - 1 if kept else None
    return left, right, ends_aligned


def _limit(sig: Signature, index: int) -> int | None:
    """A window argument: -1 and None are no limit."""
    value = sig.integer(index)
    return None if value is None or value < 0 else value


def doubled_pairs(queries: int, keys: int, window: tuple[int | None, int | None], *, ends_aligned: bool) -> int:
    """Twice the area of a band mask over queries x keys, an integer since its edges have slope one.

    window: keys seen before and after the diagonal (None: all). The diagonal starts at the upper left corner, or, with
    ends_aligned, ends at the lower right. One query with aligned ends sees every key before it, in full.
    """
    left, right = window
    offset = keys - queries if ends_aligned else 0
    if queries == 1 and ends_aligned and right == 0:
        right = None
    area = 2 * queries * keys
    if left is not None:
        start = offset - (left + 1)
        area -= _ramp(queries + start, keys) - _ramp(start, keys)
    if right is not None:
        start = keys - offset - right
        area -= _ramp(start, keys) - _ramp(start - queries, keys)
    return max(area, 0)


def _ramp(x: int, top: int) -> int:
    """Twice the integral up to x of a ramp that rises with slope one from 0 and stays at `top`."""
    if x <= 0:
        return 0
    return x * x if x <= top else 2 * top * x - top * top


def _flops(places: _Places, sizes: _Sizes | None, doubled: int | None) -> tuple[int | None, int | None]:
    if sizes is None or doubled is None:
        return None, None
    heads = sizes.batch * sizes.heads
    forward = doubled * heads * (sizes.d_qk + sizes.d_v)
    if places.backward:
        # Four products of the gradient, and one that computes the scores again.
        return 2 * forward, doubled * heads * (3 * sizes.d_qk + 2 * sizes.d_v)
    if places.math:
        return forward, 2 * sizes.queries * sizes.keys * heads * (sizes.d_qk + sizes.d_v)
    return forward, forward


def _traffic(
    sig: Signature, places: _Places, operands: tuple[Operand, Operand, Operand], sizes: _Sizes | None
) -> tuple[int | None, int | None]:
    """Bytes read and written: q, k, v, the mask and the result once each; log-sum-exp and seeds are not counted."""
    q, _, v = operands
    inputs = total(operand.nbytes for operand in operands)
    mask = nbytes(sig.tensor(places.mask)) if places.mask >= 0 else 0
    result = times(q.numel // q.shape[-1] * v.shape[-1] if q.shape[-1] else 0, q.element_bytes)
    if places.backward:
        gradients = total(times(operand.numel, operand.element_bytes) for operand in operands)
        return total((inputs, mask, result, result)), gradients
    if not places.math:
        return total((inputs, mask)), result
    if sizes is None:
        return None, None
    # Written by q·kᵀ, read and written by the softmax, read by the product with v.
    scores = times(2 * sizes.batch * sizes.heads * sizes.queries * sizes.keys, q.element_bytes)
    return total((inputs, mask, scores)), total((result, scores))


RULES: dict[str, Rule] = dict.fromkeys(_OPS, _attention)
