"""Normalisations, softmax and losses. Composite ops are priced as their fused form."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from steptime.roofline.memory_cost import accumulate_bytes, memory
from steptime.roofline.op_cost import OpCost, Rule, nbytes, times, total
from steptime.roofline.signature import Operand, Signature


def _same(operand: Operand) -> int | None:
    """Bytes of a new tensor like this one."""
    return times(operand.numel, operand.element_bytes)


def _tensors(sig: Signature, places: Sequence[int]) -> int | None:
    return total(nbytes(sig.tensor(place)) for place in places)


def _layer_norm(statistics: int) -> Rule:
    """`(input, normalized_shape, weight, bias, ...)`, which keeps `statistics` values a row for the backward."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        x = sig.tensor(0)
        if x is None:
            return None
        rows = _rows(sig, x)
        kept = 0 if statistics == 0 else times(rows, times(statistics, accumulate_bytes(x.dtype)))
        affine = (2,) if "rms" in sig.op else (2, 3)
        return memory(sig, total((x.nbytes, _tensors(sig, affine))), total((_same(x), kept)), x.dtype)

    return rule


def _rows(sig: Signature, x: Operand) -> int | None:
    """Rows that are normalised: by the recorded shape, else by the weight's."""
    shape = sig.integers(1)
    if shape is None:
        weight = sig.tensor(2)
        shape = None if weight is None else list(weight.shape)
    size = None if shape is None else prod(shape)
    return x.numel // size if size else None


def _masked_gradients(sig: Signature, mask_index: int, sizes: Sequence[int | None]) -> int | None:
    """Bytes of the gradients that an output mask asks for; None when the mask was not recorded."""
    mask = sig.booleans(mask_index)
    if mask is None or len(mask) != len(sizes):
        return None
    return total(size for wanted, size in zip(mask, sizes, strict=True) if wanted)


def _layer_norm_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad, input, normalized_shape, mean, rstd, weight, bias, output_mask)`; the bias is not read."""
    grad, x, weight = sig.tensor(0), sig.tensor(1), sig.tensor(5)
    if grad is None or x is None:
        return None
    reads = total((grad.nbytes, x.nbytes, _tensors(sig, (3, 4, 5))))
    vector = 0 if weight is None else _same(weight)
    return memory(sig, reads, _masked_gradients(sig, 7, (_same(x), vector, vector)), x.dtype)


def _rms_norm_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad, input, normalized_shape, rstd, weight, output_mask)`."""
    grad, x, weight = sig.tensor(0), sig.tensor(1), sig.tensor(4)
    if grad is None or x is None:
        return None
    reads = total((grad.nbytes, x.nbytes, _tensors(sig, (3, 4))))
    return memory(sig, reads, _masked_gradients(sig, 5, (_same(x), 0 if weight is None else _same(weight))), x.dtype)


def _group_norm(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`native_group_norm(input, weight, bias, N, C, HxW, group, eps)`: mean and rstd in the input's type."""
    x = sig.tensor(0)
    if x is None:
        return None
    batch, groups = sig.integer(3), sig.integer(6)
    kept = times(None if batch is None or groups is None else 2 * batch * groups, x.element_bytes)
    return memory(sig, total((x.nbytes, _tensors(sig, (1, 2)))), total((_same(x), kept)), x.dtype)


def _composite_group_norm(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`group_norm(input, num_groups, weight, bias, ...)` as its fused form."""
    x, groups = sig.tensor(0), sig.integer(1)
    if x is None or not x.shape:
        return None
    kept = times(None if groups is None else 2 * x.shape[0] * groups, x.element_bytes)
    return memory(sig, total((x.nbytes, _tensors(sig, (2, 3)))), total((_same(x), kept)), x.dtype)


def _group_norm_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad, input, mean, rstd, weight, N, C, HxW, group, output_mask)`."""
    grad, x, weight = sig.tensor(0), sig.tensor(1), sig.tensor(4)
    if grad is None or x is None:
        return None
    reads = total((grad.nbytes, x.nbytes, _tensors(sig, (2, 3, 4))))
    vector = 0 if weight is None else _same(weight)
    return memory(sig, reads, _masked_gradients(sig, 9, (_same(x), vector, vector)), x.dtype)


def _batch_norm(training_index: int) -> Rule:
    """`(input, weight, bias, running_mean, running_var, training, ...)`.

    Training keeps mean and inverse deviation a channel, and updates the running ones where they are given. The flag
    is recorded as a value; without it the bytes of the (small) statistics, and so the sum, are not known.
    """

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        x = sig.tensor(0)
        if x is None or len(x.shape) < 2:
            return None
        training = True if training_index < 0 else sig.boolean(training_index)
        reads = total((x.nbytes, _tensors(sig, (1, 2, 3, 4))))
        if training is None:
            return memory(sig, reads, None, x.dtype)
        kept = times(2 * x.shape[1], accumulate_bytes(x.dtype)) if training else 0
        running = _tensors(sig, (3, 4)) if training else 0
        return memory(sig, reads, total((_same(x), kept, running)), x.dtype)

    return rule


def _batch_norm_backward(order: tuple[int, int], weight_index: int, statistics: Sequence[int], mask: int) -> Rule:
    """`order`: places of gradient and input. mask -1: all three gradients are always written (cuDNN and MIOpen)."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        grad, x, weight = sig.tensor(order[0]), sig.tensor(order[1]), sig.tensor(weight_index)
        if grad is None or x is None:
            return None
        reads = total((grad.nbytes, x.nbytes, nbytes(weight), _tensors(sig, statistics)))
        vector = 0 if weight is None else _same(weight)
        sizes = (_same(x), vector, vector)
        writes = total(sizes) if mask < 0 else _masked_gradients(sig, mask, sizes)
        return memory(sig, reads, writes, x.dtype)

    return rule


def _softmax(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`_softmax(self, dim, half_to_float)` and, by name, `softmax(self, dim, dtype)`."""
    x = sig.tensor(0)
    if x is None:
        return None
    size = x.element_bytes
    if sig.op.startswith("aten::_"):
        size = 4 if sig.boolean(2) else size
    elif sig.dtype(2) not in ("", "Int"):
        wanted = sig.scalar_type(2)
        size = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}.get(wanted or "")
    return memory(sig, x.nbytes, times(x.numel, size), x.dtype)


def _softmax_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad_output, output, dim, input_dtype)`; in 2021 the last was the input itself."""
    grad, out = sig.tensor(0), sig.tensor(1)
    if grad is None or out is None:
        return None
    given = sig.tensor(3)
    wanted = given.dtype if given else sig.scalar_type(3)
    size = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}.get(wanted or "")
    return memory(sig, total((grad.nbytes, out.nbytes)), times(out.numel, size), out.dtype)


def _reduction_is_none(sig: Signature, index: int) -> bool | None:
    value = sig.integer(index)
    return None if value is None else value == 0


def _nll_forward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(log_probabilities, target, weight, reduction, ...)`: one value of each row is read, with its target."""
    x, target = sig.tensor(0), sig.tensor(1)
    each = _reduction_is_none(sig, 3)
    if x is None or target is None:
        return None
    reads = total((target.nbytes, times(target.numel, x.element_bytes), nbytes(sig.tensor(2))))
    count = None if each is None else (target.numel if each else 1) + 1
    return memory(sig, reads, times(count, x.element_bytes), x.dtype)


def _nll_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad, self, target, weight, reduction, ignore_index, total_weight)`: one value a row.

    The zeros around it are an op of their own (`aten::zero_`).
    """
    grad, x, target = sig.tensor(0), sig.tensor(1), sig.tensor(2)
    if x is None or target is None:
        return None
    reads = total((nbytes(grad), target.nbytes, nbytes(sig.tensor(3)), nbytes(sig.tensor(6))))
    return memory(sig, reads, times(target.numel, x.element_bytes), x.dtype)


def _cross_entropy(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`cross_entropy_loss` as its two kernels: a log-softmax that is written, and one value of each row read back."""
    x, target = sig.tensor(0), sig.tensor(1)
    if x is None or target is None or target.numel == x.numel:
        return None
    each = _reduction_is_none(sig, 3)
    picked = times(target.numel, x.element_bytes)
    count = None if each is None else (target.numel if each else 1) + 1
    reads = total((x.nbytes, target.nbytes, picked, nbytes(sig.tensor(2))))
    return memory(sig, reads, total((_same(x), times(count, x.element_bytes))), x.dtype)


def _pair_loss(reduction: int) -> Rule:
    """A loss of an input and a target of its shape (further tensors are weights)."""

    def rule(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
        x, target = sig.tensor(0), sig.tensor(1)
        each = _reduction_is_none(sig, reduction)
        if x is None or target is None:
            return None
        count = None if each is None else x.numel if each else 1
        return memory(sig, total(y.nbytes for y in sig.tensors()), times(count, x.element_bytes), x.dtype)

    return rule


def _pair_loss_backward(sig: Signature, _kernels: Sequence[str]) -> OpCost | None:
    """`(grad, self, target, ...)`, with an out= tensor possibly last."""
    grad, x, target = sig.tensor(0), sig.tensor(1), sig.tensor(2)
    if grad is None or x is None or target is None:
        return None
    return memory(sig, total((grad.nbytes, x.nbytes, target.nbytes)), _same(x), x.dtype)


RULES: dict[str, Rule] = {
    "aten::native_layer_norm": _layer_norm(2),
    "aten::layer_norm": _layer_norm(2),
    "aten::_fused_rms_norm": _layer_norm(1),
    "aten::rms_norm": _layer_norm(1),
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::group_norm": _composite_group_norm,
    "aten::native_group_norm_backward": _group_norm_backward,
    "aten::native_batch_norm": _batch_norm(5),
    "aten::cudnn_batch_norm": _batch_norm(5),
    "aten::miopen_batch_norm": _batch_norm(5),
    "aten::batch_norm": _batch_norm(5),
    "aten::_batch_norm_with_update": _batch_norm(-1),
    "aten::_native_batch_norm_legit": _batch_norm(5),
    "aten::native_batch_norm_backward": _batch_norm_backward((0, 1), 2, (5, 6), 9),
    "aten::batch_norm_backward": _batch_norm_backward((0, 1), 2, (5, 6), 9),
    "aten::cudnn_batch_norm_backward": _batch_norm_backward((1, 0), 2, (5, 6), -1),
    "aten::miopen_batch_norm_backward": _batch_norm_backward((1, 0), 2, (5, 6), -1),
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::softmax": _softmax,
    "aten::log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::nll_loss_forward": _nll_forward,
    "aten::nll_loss2d_forward": _nll_forward,
    "aten::nll_loss_backward": _nll_backward,
    "aten::nll_loss2d_backward": _nll_backward,
    "aten::cross_entropy_loss": _cross_entropy,
    "aten::mse_loss": _pair_loss(2),
    "aten::l1_loss": _pair_loss(2),
    "aten::smooth_l1_loss": _pair_loss(2),
    "aten::binary_cross_entropy": _pair_loss(3),
    "aten::binary_cross_entropy_with_logits": _pair_loss(4),
    "aten::mse_loss_backward": _pair_loss_backward,
    "aten::smooth_l1_loss_backward": _pair_loss_backward,
    "aten::binary_cross_entropy_backward": _pair_loss_backward,
}
