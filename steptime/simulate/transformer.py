"""The work of a transformer: which kernels a layer runs forward and backward, with FLOPs, bytes and shapes.

Model FLOPs count a causal mask as half and attention's backward as twice its forward; `hfu_flops` holds what the
hardware does besides (the fifth matmul of flash attention's backward).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from steptime.simulate.scenario import Batch, Layout, Shape, Training

TYPES = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float"}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}

_GEMM = {
    "bf16": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
    "fp16": "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN",
    "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_cublas",
}
_FLASH = "void pytorch_flash::flash_{}_kernel<Flash_{}_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >"
#: Nodes of the backward pass that communicate, as Megatron-LM and Megablocks call their functions.
_GATHERED, _SCATTERED = "_GatherFromSequenceParallelRegionBackward", "_ReduceScatterToSequenceParallelRegionBackward"
_COPIED, _EXCHANGED = "_CopyToModelParallelRegionBackward", "_AllToAllBackward"
_LOOP = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int, {})"
_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>"
_NORM_BACK = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, true>"


@dataclass(frozen=True, slots=True)
class Rows:
    """A dimension that follows the tokens of a micro-batch: `count` at the nominal length. of: tokens or experts."""

    count: int
    of: str = "tokens"


@dataclass(frozen=True, slots=True)
class Work:
    """One op with one kernel. power: how its time grows with the sequence (0, 1, 2); of: whose imbalance it follows.

    joins: the kernel waits for the oldest ring exchange that nothing has waited for.
    """

    op: str
    kernel: str
    leaf: str
    flops: int
    nbytes: float
    dims: tuple[object, ...]
    types: tuple[str, ...]
    concrete: tuple[str, ...] = ()
    rate: str = "bf16"
    hfu_flops: int = 0
    power: int = 1
    of: str = "tokens"
    joins: bool = False
    share: str = "matmul"


@dataclass(frozen=True, slots=True)
class Comm:
    """Communication inside a layer: nbytes of the full tensor (ring: of one message). asynchronous: `Work.joins`."""

    kind: str
    group: str
    nbytes: float
    asynchronous: bool = False
    of: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Something the forward does and its counterpart in the backward.

    forward in order; backward in order, by autograd node `node`; weight: the weight gradient, which zero-bubble
    schedules do later; heavy: what selective recompute runs again.
    """

    forward: tuple[Work | Comm, ...]
    backward: tuple[Work | Comm, ...]
    node: str
    weight: tuple[Work, ...] = ()
    heavy: bool = False


class Transformer:
    """Builds the parts of a job's model on one rank."""

    def __init__(self, shape: Shape, layout: Layout, batch: Batch, training: Training) -> None:
        self.shape = shape
        self.layout = layout
        self.training = training
        self.sequences = batch.micro_batch_size
        self.seq_len = batch.seq_len // layout.cp
        self.tokens = self.sequences * self.seq_len
        self.size = BYTES[training.dtype]

    # Sizes

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer on one rank (before sharding)."""
        s, tp = self.shape, self.layout.tp
        attention = s.hidden * (s.heads + 2 * s.kv_heads) * s.head_dim + s.heads * s.head_dim * s.hidden
        copies = s.experts // self.layout.ep if s.experts else 1
        return (attention + 3 * s.hidden * s.ffn * copies) // tp + 2 * s.hidden

    @property
    def table_parameters(self) -> int:
        """Parameters of the embedding, or of the output layer, on one rank."""
        return self.shape.vocab * self.shape.hidden // self.layout.tp

    @property
    def message_bytes(self) -> float:
        """What one stage sends to the next for a micro-batch and rank."""
        split = self.layout.tp if self.layout.sequence_parallel else 1
        return self.tokens * self.shape.hidden * self.size / split

    # Kinds of work

    def _mm(self, out: int, inner: int, dtype: str | None = None) -> Part:
        """tokens x inner times inner x out, with both gradients."""
        dtype = dtype or self.training.dtype
        rows = Rows(self.tokens)

        def work(left: tuple[object, ...], right: tuple[object, ...]) -> Work:
            size = BYTES[dtype]
            moved = size * (self.tokens * (inner + out) + inner * out)
            flops = 2 * self.tokens * inner * out
            types = (TYPES[dtype],) * 2
            return Work(
                "aten::mm", _GEMM[dtype], "matmul", flops, moved, (left, right), types, rate=dtype, hfu_flops=flops
            )

        grad_input, grad_weight = work((rows, out), (out, inner)), work((out, rows), (rows, inner))
        return Part((work((rows, inner), (inner, out)),), (grad_input,), "MmBackward0", (grad_weight,))

    def _loop(self, op: str, functor: str, width: int, tensors: int) -> Work:
        """An elementwise kernel over tokens x width, `tensors` read or written."""
        rows = self.tokens // (self.layout.tp if self.layout.sequence_parallel else 1)
        name = _LOOP.format(functor, "std::array<char*, 3ul>")
        dims = ((Rows(rows), width),) * max(tensors - 1, 1)
        types = (TYPES[self.training.dtype],) * len(dims)
        return Work(op, name, "memory_bound", 0, tensors * rows * width * self.size, dims, types)

    def _norm(self) -> Part:
        rows, hidden = self.tokens, self.shape.hidden
        rows //= self.layout.tp if self.layout.sequence_parallel else 1
        kind = TYPES[self.training.dtype]
        dims = ((1, Rows(rows), hidden), (), (hidden,), ())
        types = (kind, "ScalarList", kind, "Scalar")
        concrete = ("", f"[{hidden}]", "", "1e-05")
        moved = rows * hidden * self.size
        forward = Work("aten::_fused_rms_norm", _NORM, "memory_bound", 0, 2 * moved, dims, types, concrete)
        back_dims = ((1, Rows(rows), hidden), (1, Rows(rows), hidden), (), (1, Rows(rows), 1), (hidden,), ())
        back_types = (kind, kind, "ScalarList", "float", kind, "")
        backward = Work(
            "aten::_fused_rms_norm_backward",
            _NORM_BACK,
            "memory_bound",
            0,
            3 * moved,
            back_dims,
            back_types,
            ("", "", f"[{hidden}]", "", "", "[True, True]"),
        )
        return Part((forward,), (backward,), "FusedRmsNormBackward0")

    def _attention(self, joins: bool) -> Part:
        """Causal flash attention over one ring chunk (all of it without context parallelism)."""
        s, length = self.shape, Rows(self.seq_len)
        heads, dim = s.heads // self.layout.tp, s.head_dim
        one = (self.sequences, heads, length, dim)
        kind = TYPES[self.training.dtype]
        flops = 2 * self.sequences * heads * self.seq_len * self.seq_len * dim
        moved = 4 * self.sequences * heads * self.seq_len * dim * self.size
        forward = Work(
            "aten::_scaled_dot_product_flash_attention",
            _FLASH.format("fwd", "fwd"),
            "attention",
            flops,
            moved,
            (one, one, one, (), (), (), ()),
            (kind, kind, kind, "Scalar", "Scalar", "Scalar", ""),
            ("", "", "", "0.", "True", "False", ""),
            rate=self.training.dtype,
            hfu_flops=flops,
            power=2,
            joins=joins,
            share="attention",
        )
        if self.training.dtype == "fp32":
            return self._attention_fp32(forward, one)
        backward = replace(
            forward,
            op="aten::_scaled_dot_product_flash_attention_backward",
            kernel=_FLASH.format("bwd_dq_dk_dv_loop_seqk_parallel", "bwd"),
            flops=2 * flops,
            hfu_flops=5 * flops // 2,
            nbytes=2 * moved,
            dims=(one, one, one, one, one, (self.sequences, heads, length), (), (), (), (), (), (), (2,), (), ()),
            types=(kind,) * 5 + ("float", "", "", "Scalar", "Scalar", "Scalar", "Scalar", "unsigned long", "", ""),
            concrete=("",) * 8 + (str(self.seq_len), str(self.seq_len), "0.", "True", "", "", ""),
        )
        return Part((forward,), (backward,), "ScaledDotProductFlashAttentionBackward0", heavy=True)

    def _attention_fp32(self, flash: Work, one: tuple[object, ...]) -> Part:
        """Flash attention has no FP32: the memory-efficient kernels take over."""
        forward = replace(
            flash,
            op="aten::_scaled_dot_product_efficient_attention",
            kernel="fmha_cutlassF_f32_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)",
            dims=(one, one, one, (), (), (), (), ()),
            types=("float", "float", "float", "", "Scalar", "Scalar", "Scalar", ""),
            concrete=("", "", "", "", "True", "0.", "True", ""),
        )
        lengths = (*one[:2], Rows(self.seq_len))
        backward = replace(
            forward,
            op="aten::_scaled_dot_product_efficient_attention_backward",
            kernel="fmha_cutlassB_f32_aligned_128x64_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)",
            flops=2 * flash.flops,
            hfu_flops=5 * flash.flops // 2,
            nbytes=2 * flash.nbytes,
            dims=(one, one, one, one, (), one, lengths, (), (), (), (), (), ()),
            types=(*("float",) * 4, "", "float", "float", "", "", "Scalar", "", "Scalar", ""),
            concrete=("",) * 9 + ("0.", "", "True", ""),
        )
        return Part((forward,), (backward,), "ScaledDotProductEfficientAttentionBackward0", heavy=True)

    def _grouped(self, out: int, inner: int) -> Part:
        """All local experts' matmul in one kernel."""
        s = self.shape
        rows, local = Rows(self.tokens * s.top_k, "experts"), s.experts // self.layout.ep
        kind = TYPES[self.training.dtype]
        moved = self.size * (rows.count * (inner + out) + local * inner * out)
        flops = 2 * rows.count * inner * out
        name = "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x_gemm_grouped<c10::BFloat16> >"

        def work(left: tuple[object, ...], right: tuple[object, ...]) -> Work:
            dims, types = (left, right, (local,), (), ()), (kind, kind, "int", "", "")
            return Work("aten::_grouped_mm", name, "matmul", flops, moved, dims, types, hfu_flops=flops, of="experts")

        forward = work((rows, inner), (local, inner, out))
        return Part(
            (forward,),
            (work((rows, out), (local, out, inner)),),
            "GroupedMmBackward0",
            (work((out, rows), (rows, inner)),),
        )

    # Layers

    def layer(self) -> list[Part]:
        """One transformer layer."""
        return [*self._attention_block(), *(self._experts() if self.shape.experts else self._mlp())]

    def _attention_block(self) -> Iterator[Part]:
        s, tp = self.shape, self.layout.tp
        full = self.training.detail == "full"
        yield self._norm()
        yield from self._enter()
        yield self._mm((s.heads + 2 * s.kv_heads) * s.head_dim // tp, s.hidden)
        if full:
            width = s.heads * s.head_dim // tp
            yield self._pointwise("aten::mul", "BinaryFunctor<c10::BFloat16, at::native::MulFunctor>", width, 3)
        for chunk in range(self.layout.cp):
            if chunk < self.layout.cp - 1:
                message = 2.0 * self.tokens * s.kv_heads * s.head_dim * self.size / tp
                ring = (Comm("ring", "cp", message, asynchronous=True),)
                yield Part(ring, ring, "")
            yield self._attention(joins=chunk > 0)
        yield self._mm(s.hidden, s.heads * s.head_dim // tp)
        yield from self._leave()
        if full:
            yield self._pointwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", s.hidden, 3)

    def _pointwise(self, op: str, functor: str, width: int, tensors: int) -> Part:
        node = {"aten::add": "AddBackward0", "aten::mul": "MulBackward0"}.get(op, "SiluBackward0")
        work = self._loop(op, functor, width, tensors)
        return Part((work,), (work,), node)

    def _mlp(self) -> Iterator[Part]:
        s, tp = self.shape, self.layout.tp
        full = self.training.detail == "full"
        if full:
            yield self._norm()
        yield from self._enter()
        yield self._mm(2 * s.ffn // tp, s.hidden)
        yield self._pointwise("aten::silu", "silu_kernel(at::TensorIteratorBase&)", s.ffn // tp, 3)
        yield self._mm(s.hidden, s.ffn // tp)
        yield from self._leave()
        if full:
            yield self._pointwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", s.hidden, 3)

    def _experts(self) -> Iterator[Part]:
        s = self.shape
        yield self._mm(s.experts, s.hidden)
        moved = float(self.tokens * s.top_k * s.hidden * self.size)
        exchange = (Comm("all_to_all", "ep", moved, of="experts"),) if self.layout.ep > 1 else ()
        yield Part(exchange, exchange, _EXCHANGED)
        yield self._grouped(2 * s.ffn, s.hidden)
        yield self._pointwise("aten::silu", "silu_kernel(at::TensorIteratorBase&)", s.ffn * s.top_k, 3)
        yield self._grouped(s.hidden, s.ffn)
        yield Part(exchange, exchange, _EXCHANGED)

    def _enter(self) -> Iterator[Part]:
        """Before a column-parallel matmul: gather the sequence, or (backward) sum the gradient."""
        if self.layout.tp == 1:
            return
        moved = float(self.tokens * self.shape.hidden * self.size)
        if self.layout.sequence_parallel:
            yield Part((Comm("_allgather_base", "tp", moved),), (Comm("_reduce_scatter_base", "tp", moved),), _GATHERED)
        else:
            yield Part((), (Comm("allreduce", "tp", moved),), _COPIED)

    def _leave(self) -> Iterator[Part]:
        """After a row-parallel matmul: sum, or scatter the sum along the sequence."""
        if self.layout.tp == 1:
            return
        moved = float(self.tokens * self.shape.hidden * self.size)
        if self.layout.sequence_parallel:
            yield Part(
                (Comm("_reduce_scatter_base", "tp", moved),), (Comm("_allgather_base", "tp", moved),), _SCATTERED
            )
        else:
            yield Part((Comm("allreduce", "tp", moved),), (), "")

    def embedding(self) -> list[Part]:
        """Token embedding of the first stage."""
        s = self.shape
        kind = TYPES[self.training.dtype]
        rows = Rows(self.seq_len)
        moved = 2.0 * self.tokens * s.hidden * self.size
        name = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int>"
        dims = ((s.vocab // self.layout.tp, s.hidden), (self.sequences, rows), (), (), ())
        types = (kind, "long int", "Scalar", "Scalar", "Scalar")
        forward = Work("aten::embedding", name, "memory_bound", 0, moved, dims, types, ("", "", "-1", "False", "False"))
        back = "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>"
        back_dims = ((self.sequences, rows, s.hidden), (self.sequences, rows), (), (), ())
        backward = Work("aten::embedding_dense_backward", back, "memory_bound", 0, 1.5 * moved, back_dims, types)
        return [Part((forward,), (backward,), "EmbeddingBackward0")]

    def head(self) -> list[Part]:
        """Final norm, output layer and loss of the last stage."""
        s, kind = self.shape, TYPES[self.training.dtype]
        width = s.vocab // self.layout.tp
        parts = [self._norm()] if self.training.detail == "full" else []
        parts.append(self._mm(width, s.hidden, self.training.head_dtype))
        name = "void at::native::(anonymous namespace)::cunn_SoftMax{}<4, c10::BFloat16, float, c10::BFloat16>"
        moved = 2.0 * self.tokens * width * self.size
        logits = (Rows(self.tokens), width)
        forward = Work(
            "aten::_log_softmax",
            name.format("Forward"),
            "memory_bound",
            0,
            moved,
            (logits, (), ()),
            (kind, "Scalar", "Scalar"),
            ("", "1", "False"),
        )
        backward = replace(
            forward,
            op="aten::_log_softmax_backward_data",
            kernel=name.format("Backward"),
            nbytes=1.5 * moved,
            dims=(logits, logits, (), ()),
            types=(kind, kind, "Scalar", "Scalar"),
            concrete=("", "", "1", "15"),
        )
        parts.append(Part((forward,), (backward,), "LogSoftmaxBackward0"))
        return parts
