"""Matrix products: 2·m·n·k operations for every product, biases and scalings not counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from steptime.roofline.compute_dtype import compute_dtype
from steptime.roofline.op_cost import OpCost, Rule, nbytes, times, total
from steptime.roofline.signature import ELEMENT_BYTES, Operand, Signature

_PACKED_PAIR = "c10::Float4_e2m1fn_x2"

# A beta of zero, as "Concrete Inputs" writes it: the added matrix is not read.
_ZERO = ("0", "0.")


class Product(NamedTuple):
    """One matrix product: multiply-add pairs, and elements of the result."""

    pairs: int
    out: int


Shape = tuple[int, ...]


def broadcast(first: Shape, second: Shape) -> Shape | None:
    """The shape that two shapes broadcast to; None when they do not."""
    if len(first) < len(second):
        first, second = second, first
    padded = (1,) * (len(first) - len(second)) + second
    sizes = []
    for a, b in zip(first, padded, strict=True):
        if a != b and 1 not in (a, b):
            return None
        sizes.append(b if a == 1 else a)
    return tuple(sizes)


def matmul_product(a: Shape, b: Shape) -> Product | None:
    """`torch.matmul` of two shapes: dot, matrix-vector, matrix-matrix or batched with broadcasting."""
    if not a or not b or a[-1] != (b[0] if len(b) == 1 else b[-2]):
        return None
    if len(b) == 1:
        return Product(prod(a), prod(a[:-1]))
    if len(a) == 1:
        return Product(prod(b), prod(b[:-2]) * b[-1])
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        return None
    out = prod(batch) * a[-2] * b[-1]
    return Product(out * a[-1], out)


def _same_rank(rank: int) -> Callable[[Shape, Shape], Product | None]:
    def product(a: Shape, b: Shape) -> Product | None:
        if len(a) != rank or len(b) != rank or a[: rank - 2] != b[: rank - 2]:
            return None
        return matmul_product(a, b)

    return product


def _summed_batches(a: Shape, b: Shape) -> Product | None:
    each = _same_rank(3)(a, b)
    return None if each is None or a[0] == 0 else Product(each.pairs, each.out // a[0])


def _linear(x: Shape, weight: Shape) -> Product | None:
    if not x or len(weight) not in (1, 2) or x[-1] != weight[-1]:
        return None
    out = prod(x[:-1]) * prod(weight[:-1])
    return Product(out * x[-1], out)


def grouped_product(a: Shape, b: Shape, groups: int | None) -> Product | None:
    """A grouped product. Only the size of each group is unknown, so totals are exact if the offsets cover all rows.

    [M, K] x [G, K, N]: the groups share the rows; [G, M, K] x [K, N]: the columns; [M, K] x [K, N]: the contraction.
    """
    if not a or len(b) < 2 or a[-1] != b[-2]:
        return None
    if (len(a), len(b)) == (2, 2):
        return None if groups is None else Product(a[0] * a[1] * b[1], groups * a[0] * b[1])
    if (len(a), len(b)) == (2, 3):
        return Product(a[0] * a[1] * b[2], a[0] * b[2])
    if (len(a), len(b)) == (3, 2):
        return Product(a[1] * a[2] * b[1], a[1] * b[1])
    return _same_rank(3)(a, b)


def _cost(
    sig: Signature,
    kernels: Sequence[str],
    operands: tuple[Operand, Operand],
    product: Product,
    moved: tuple[int | None, str],
) -> OpCost:
    """Build the cost of a product. `moved` is (bytes read beside the two operands, type name of the result)."""
    a, b = operands
    other_reads, out_dtype = moved
    notes: tuple[str, ...] = ()
    dtype = compute_dtype(a.dtype, kernels)
    flops: int | None = 2 * product.pairs
    if a.dtype == _PACKED_PAIR:
        flops, notes = 4 * product.pairs, ("two values a byte",)
    elif "complex" in a.dtype:
        flops, dtype, notes = None, None, ("complex",)
    elif compute_dtype(a.dtype) != compute_dtype(b.dtype):
        dtype, notes = compute_dtype("", kernels), ("operands of two types",)
    direction = "backward" if "backward" in sig.op else "forward"
    reads = total((a.nbytes, b.nbytes, other_reads))
    writes = times(product.out, ELEMENT_BYTES.get(out_dtype))
    return OpCost("matmul", direction, flops, flops, reads, writes, dtype, notes)


def _plain(first: int, arity: int, shape_rule: Callable[[Shape, Shape], Product | None]) -> Rule:
    """A rule for `op([added,] a, b, ...)` with a and b at `first`, and `arity` schema arguments.

    One more is the result dtype of the `.dtype` overloads (after b), or the tensor of `out=` (last; empty if it is
    still to be resized). More than that, or another size, are leftovers of the interpreter's stack in old traces.
    """

    def rule(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
        a, b = sig.tensor(first), sig.tensor(first + 1)
        if a is None or b is None or sig.arity > arity + 1:
            return None
        product = shape_rule(a.shape, b.shape)
        if product is None:
            return None
        added: int | None = 0
        if first == 1 and sig.text(3) not in _ZERO:
            added = nbytes(sig.tensor(0))
        out_dtype = a.dtype
        if sig.arity == arity + 1:
            out = sig.tensor(arity)
            if out is not None and out.numel not in (0, product.out):
                return None
            out_dtype = out.dtype if out else (sig.scalar_type(first + 2) or "")
        return _cost(sig, kernels, (a, b), product, (added, out_dtype))

    return rule


def _linear_rule(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    x, weight = sig.tensor(0), sig.tensor(1)
    product = None if x is None or weight is None else _linear(x.shape, weight.shape)
    if x is None or weight is None or product is None or sig.arity > 4:
        return None
    return _cost(sig, kernels, (x, weight), product, (nbytes(sig.tensor(2)), x.dtype))


def _int_mm(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    a, b = sig.tensor(0), sig.tensor(1)
    product = None if a is None or b is None else _same_rank(2)(a.shape, b.shape)
    if a is None or b is None or product is None:
        return None
    return _cost(sig, kernels, (a, b), product, (0, "int"))


def _scaled(out_dtype_index: int, offsets_index: int | None) -> Rule:
    """A scaled or grouped product; scales, bias and offsets are read, `out_dtype` absent means the type of a."""

    def rule(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
        a, b = sig.tensor(0), sig.tensor(1)
        if a is None or b is None:
            return None
        if offsets_index is None:
            product = _same_rank(2)(a.shape, b.shape)
        else:
            offsets = sig.tensor(offsets_index)
            product = grouped_product(a.shape, b.shape, offsets.shape[0] if offsets and offsets.shape else None)
        if product is None:
            return None
        small = [nbytes(sig.tensor(index)) for index in range(2, min(out_dtype_index, sig.arity))]
        asked = sig.text(out_dtype_index)
        out_dtype = a.dtype if asked == "" else (sig.scalar_type(out_dtype_index) or "")
        return _cost(sig, kernels, (a, b), product, (total(small), out_dtype))

    return rule


def three_matrices(shapes: Sequence[Shape]) -> int | None:
    """Multiply-add pairs of a product known only by the shapes of its three matrices, in any order or transposition.

    None unless each of three dimensions belongs to exactly two matrices.
    """
    if len(shapes) != 3 or any(len(shape) != 2 for shape in shapes):
        return None
    m, n, k = sorted(size for shape in shapes for size in shape)[::2]
    if sorted(tuple(sorted(shape)) for shape in shapes) != sorted([(m, n), (m, k), (n, k)]):
        return None
    return m * n * k


def _flat(operand: Operand) -> Shape:
    return (prod(operand.shape[:-1]), operand.shape[-1]) if len(operand.shape) > 1 else operand.shape


def _te_gemm(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
    """TransformerEngine's `te_gemm_ts`: A at 0, then B and D, one place later each in the form with scaling modes."""
    b_index, out_index = (5, 10) if sig.arity == 22 else (6, 12)
    a, b, out = sig.tensor(0), sig.tensor(b_index), sig.tensor(out_index)
    if sig.arity not in (22, 24) or a is None or b is None or out is None:
        return None
    pairs = three_matrices([_flat(a), _flat(b), _flat(out)])
    return None if pairs is None else _cost(sig, kernels, (a, b), Product(pairs, out.numel), (0, out.dtype))


def _te_linear(weight_index: int, input_index: int | None) -> Rule:
    """TransformerEngine's autograd functions: a weight [out, in], and an input whose last dimension is `in`.

    Where the input stands depends on the release (FP8 copies of the weight come between), so it is found by shape.
    """

    def rule(sig: Signature, kernels: Sequence[str]) -> OpCost | None:
        weight = sig.tensor(weight_index)
        if weight is None or len(weight.shape) != 2:
            return None
        places = range(weight_index + 1, min(weight_index + 4, sig.arity)) if input_index is None else (input_index,)
        inputs = [
            x for x in (sig.tensor(i) for i in places) if x and len(x.shape) > 1 and x.shape[-1] == weight.shape[1]
        ]
        other = [x for x in inputs if x.shape != weight.shape] or inputs
        product = _linear(other[0].shape, weight.shape) if len(other) == 1 else None
        return None if product is None else _cost(sig, kernels, (other[0], weight), product, (0, other[0].dtype))

    return rule


RULES: dict[str, Rule] = {
    "aten::mm": _plain(0, 2, _same_rank(2)),
    "aten::bmm": _plain(0, 2, _same_rank(3)),
    "aten::addmm": _plain(1, 5, _same_rank(2)),
    "aten::addmm_": _plain(1, 5, _same_rank(2)),
    "aten::_addmm_activation": _plain(1, 6, _same_rank(2)),
    "aten::baddbmm": _plain(1, 5, _same_rank(3)),
    "aten::baddbmm_": _plain(1, 5, _same_rank(3)),
    "aten::addbmm": _plain(1, 5, _summed_batches),
    "aten::mv": _plain(0, 2, matmul_product),
    "aten::addmv": _plain(1, 5, matmul_product),
    "aten::dot": _plain(0, 2, matmul_product),
    "aten::matmul": _plain(0, 2, matmul_product),
    "aten::linear": _linear_rule,
    "aten::mkldnn_linear": _linear_rule,
    "aten::_int_mm": _int_mm,
    "aten::_scaled_mm": _scaled(6, None),
    "aten::_scaled_mm_v2": _scaled(9, None),
    "aten::_grouped_mm": _scaled(4, 2),
    "aten::_scaled_grouped_mm": _scaled(7, 4),
    "aten::_scaled_grouped_mm_v2": _scaled(10, 8),
    "tex_ts::te_gemm_ts": _te_gemm,
    "_Linear": _te_linear(0, None),
    "_LayerNormLinear": _te_linear(3, 0),
}
