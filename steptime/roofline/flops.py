"""FLOPs and bytes of one op from its recorded arguments: `cost(signature)`.

A multiplication and an addition are two operations. The figures equal `torch.utils.flop_counter` on the same ops and
shapes, with these deliberate differences:

* a causal mask halves attention, a window counts its band (`flop_counter` counts the full square);
* attention's backward needs four products, 2 x the forward: `model_flops`. `flop_counter` counts the fifth, which
  flash kernels run to compute the scores again: `hardware_flops`;
* packed sequences whose lengths are not recorded are unknown (`flop_counter` takes each as long as the longest);
* the weight gradient of a grouped convolution costs as much as its forward (`flop_counter` counts it `groups` times);
* matrix-vector products and dots count 2 a multiply-add (`flop_counter`: 0), and so do `_int_mm`, grouped products,
  the CPU's flash attention and the convolutions that a backend names its own way;
* FP4 operands hold two values an element, so k is twice what their shape says; complex operands are unknown.

Neither counts biases, scalings, softmax, normalisations, activations, losses and optimizers: 0.

Ops nest (`linear` calls `addmm`). Every level is priced as a whole, so **count one level only**: for products and
attention the outermost op with a cost, since attention that is decomposed is attention; for a memory-bound kernel the
innermost op that encloses its launch. Autograd nodes, `aten::to`, `aten::einsum` (whose equation is not recorded) and
views have no cost of their own: None. A backward product is an `mm` like any other; only its autograd node tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptime.roofline import (
    ops_attention,
    ops_convolution,
    ops_elementwise,
    ops_indexing,
    ops_matmul,
    ops_norm,
    ops_optimizer,
    ops_reduction,
)
from steptime.roofline.op_cost import OpCost, Rule
from steptime.roofline.ops_triton import triton
from steptime.roofline.signature import Signature, parse_signature

__all__ = ["RULES", "OpCost", "Signature", "cost", "parse_signature"]

RULES: dict[str, Rule] = {
    **ops_matmul.RULES,
    **ops_convolution.RULES,
    **ops_attention.RULES,
    **ops_norm.RULES,
    **ops_elementwise.RULES,
    **ops_indexing.RULES,
    **ops_optimizer.RULES,
    **ops_reduction.RULES,
}


def cost(signature: Signature, kernels: Sequence[str] = ()) -> OpCost | None:
    """What one call of an op costs, or None for an op that is unknown, a container, or recorded without shapes.

    kernels: names of the device kernels that it launched; they refine the arithmetic type, and give the element size of
    lists of tensors. Within an `OpCost`, None stands for what the recorded arguments do not tell.
    """
    if signature.op.startswith("triton_"):
        return triton(signature, kernels)
    op = signature.op
    if op.startswith("extern_kernels."):
        op = f"aten::{op.removeprefix('extern_kernels.')}"
        signature = Signature(
            op, signature.shapes, signature.dtypes, signature.concrete, signature.strides, signature.extra
        )
    rule = RULES.get(op)
    return None if rule is None or not signature.shapes else rule(signature, kernels)
