"""Kernel names, launching ops and CPU ops -> families of work: tables, and the rule that joins them.

The kernel's name decides; where it is silent or generic, what launched it decides (`family_of`). A name or op that no
row knows is None (code -1), never a guess; what stays unknown ends in the family ``other``.
Functions are meant for unique names: a file has at most some thousand of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Family(NamedTuple):
    """A kind of device work. `leaf` is the id of a leaf of slice ``kernels``, or ``"comm"`` for communication."""

    id: str
    leaf: str
    detail: str | None = None


#: The int code of a family is its index here. Fused compute + communication kernels count as compute (they do the work
#: of both and nothing separates it) and carry the detail ``fused_comm``.
FAMILIES: tuple[Family, ...] = (
    *(Family(name, "matmul") for name in ("gemm", "gemv", "conv", "rnn")),
    Family("attention", "attention"),
    *(Family(name, "memory_bound") for name in ("norm", "softmax", "rotary", "loss", "embedding", "kv_cache")),
    *(Family(name, "memory_bound") for name in ("elementwise", "foreach", "copy", "fill", "layout", "reduction")),
    *(Family(name, "memory_bound") for name in ("index", "sort_scan", "rng", "pooling", "resample", "sampling")),
    *(Family(name, "memory_bound") for name in ("moe_routing", "quantization")),
    *(Family(name, "memory_bound") for name in ("inductor_pointwise", "inductor_reduction", "inductor_fused")),
    Family("optimizer", "optimizer"),
    *(Family(name, "other_compute") for name in ("fft", "linear_algebra", "state_space", "other")),
    Family("fused_comm_gemm", "matmul", "fused_comm"),
    Family("fused_comm", "other_compute", "fused_comm"),
    *(Family(name, "comm") for name in ("nccl", "symmetric_memory", "nvshmem", "expert_parallel")),
    *(Family(name, "comm") for name in ("custom_allreduce", "comm_barrier", "collective")),
)

FAMILY_CODE: dict[str, int] = {family.id: code for code, family in enumerate(FAMILIES)}


class Pattern(NamedTuple):
    """One row: words searched for in a lower-cased name, the family they tell, and a real name it is there for."""

    family: str
    words: tuple[str, ...]
    example: str


def _rows(table: str) -> tuple[Pattern, ...]:
    """Read rows of ``family: word word ... = example``; an indented line belongs to the row above."""
    rows = []
    for row in re.split(r"\n(?=\w)", table.strip()):
        family, _, rest = row.partition(": ")
        words, _, example = rest.partition(" = ")
        rows.append(Pattern(family, tuple(words.split()), example))
    return tuple(rows)


# In all tables: words are plain text (found ten times faster than a regex), ``^`` stands for the start of the name
# without its return type, and the first row with any of its words in the name decides, so ORDER MATTERS.

#: Names made by TorchInductor. What no prefix row takes is a template, named after its operations. ``triton__0d1d`` is
#: from before torch 2.1, where the name holds only the signature and matmul templates had to be asked for.
#: Source: torch/_inductor/codegen/triton.py and select_algorithm.py.
INDUCTOR_PATTERNS = _rows("""
inductor_reduction: ^triton_red_ ^triton_per_ ^triton_spl = triton_red_fused_gelu_gelu_backward_sum_view_5
inductor_pointwise: ^triton_poi_ = triton_poi_fused_gelu_view_9
foreach: ^triton_for_ = triton_for_fused_0
inductor_fused: ^triton__0d ^triton__1d = triton__0d1d2d3d4d5d6d
attention: flex attention = triton_tem_fused_flex_attention_0
conv: convolution = triton_tem_fused_convolution_2
gemm: mm_ _mm = triton_tem_fused_addmm_relu_3
""")

#: Names of libraries: communication, then what contains another row's word (an attention kernel is written in CUTLASS,
#: a convolution is an implicit GEMM), then the plain words. Sources: the libraries' kernels, an example in each row.
LIBRARY_PATTERNS = _rows("""
fused_comm_gemm: gemm_rs ag_gemm gemm_allreduce gemm_reduce_scatter allgather_gemm flux:: allgathergemm
    gemmreducescatter gemmallreduce = kernel_consumer_gemm_rs_persistent
fused_comm: allreduce_fusion fused_allreduce fused_all_reduce allreducefusion allreduce_rms allreducerms
    = void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>(float*)
nccl: nccldevkernel ncclkernel ncclsym mscclkernel mscclppkernel rccl_
    = ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
moe_routing: get_dispatch_layout _finalize_matmul = void deep_ep::layout::get_dispatch_layout<256, 4, 8>(float*)
expert_parallel: deep_ep:: hybrid_ep:: epdispatch epcombine pplx:: moe_comm
    = void deep_ep::internode_ll::dispatch<true, false, 7168>(float*)
nvshmem: nvshmem rocshmem = nvshmemi_barrier_on_stream_kernel
custom_allreduce: cross_device_reduce oneshotallreduce twoshotallreduce quickreduce allreduce_prototype lamport
    userbuffers allreduce_kernel reduce_scatter_cross allgather_lastdim
    = void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, ...)
symmetric_memory: multimem_ symmetric_memory put_signal wait_signal one_shot_ two_shot_ all_to_all alltoall all_gather
    reduce_scatter = void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(float*)
comm_barrier: spin_kernel barrier_kernel barrier_all device_sync_kernel
    = at::cuda::(anonymous namespace)::spin_kernel(long)
attention: flash_fwd flash_bwd flashattn flash_attn flash_attention flashattention flash:: flash_mla flashmla
    splitkv_mla fmha attentionkernel attentionbackward native_sdpa _sdpa_ multiheadattention masked_multihead
    multi_head_attention fused_attn attn_fwd attn_bwd paged_attention pagedattention unified_attention flex_attention
    batchprefill batchdecode singleprefill singledecode mergestate merge_attn _fwd_grouped_kernel_stage
    _fwd_kernel_stage2 aiter::mla mla_a8w8 mla_decode mla_prefill = kernel_unified_attention_3d
state_space: selective_scan causal_conv1d chunk_scan chunk_state state_passing gated_delta _bmm_chunk chunk_fwd_kernel
    mamba = void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16>>(float*)
layout: nchwtonhwc nhwctonchw batched_transpose transpose_nchw transpose_cnhw nchw2 nhwc2 im2col im2d2col col2im
    tensortransform transpose_fp32 = void cudnn::ops::nchwToNhwcKernel<float, float, float, false>(float*)
conv: fprop dgrad wgrad bwd_weight bwd_data grouped_conv convolve convolution winograd implicit_gemm implicitgemm
    scudnn 884cudnn 1688cudnn 16816cudnn hcudnn cudnn::cnn:: cask_cudnn cutlass_cudnn fft2d_ direct_conv igemm_fwd
    igemm_bwd igemm_wrw miopenconv miopengcn sp3asm asmconv naive_conv convdirect conv2d_ conv3d_ gridwise_conv
    gridwise_generic_conv = igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2
gemm: gemmsn_ gemmk1_ epilogue::impl::globalkernel
    = void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const>>(float*)
gemv: gemv wvsplitk llmm1 cublasdotparams = void gemv2T_kernel_val<int, int, float, float, float, float, 128>(float*)
gemm: gemm nvjet cijk_ matmul splitkreduce cublas ^bmm_ grouped_mm scaled_mm scal_kernel< trsm syrk flatmm marlin
    machete fused_moe_kernel fused_moe_gptq fusedmoe _xdl bmm_kernel _mm_kernel
    = nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN
optimizer: fusedoptimizer adamfunctor adamw adam_kernel adam_cuda fused_adam multi_tensor_adam lambstage lambfunctor
    sgdfunctor adagradfunctor novogradfunctor larcfunctor lionfunctor koptimizer kpreconditionoptimizer
    = void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(float*)
foreach: multi_tensor_apply multi_tensor_l2norm
    = void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>(float*)
kv_cache: reshape_and_cache and_cache_mla appendpagedkv copy_blocks swap_blocks set_kv_buffer store_kvcache
    = void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(float*)
moe_routing: moe_align topkgating topk_gating moe_sort moesorting moe_sum dev::routing dev::finalize expandinputrows
    finalizemoe routing bitmatrix _topk_forward _topk_backward moe_permute unpermute grouped_topk row_id_map
    sort_chunks expert_offsets = void vllm::moe::moe_align_block_size_kernel<int>(float*)
norm: layernorm layer_norm rmsnorm rms_norm ln_fwd ln_bwd bn_fw bn_bw batchnorm batch_norm groupnorm group_norm
    instancenorm gammabeta computegradinput normalization:: fused_qk_norm l2norm_
    = void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(float*)
pooling: pooling mlopool = void cudnn::pooling_fw_4d_kernel<float, float, cudnn::maxpooling_func<float>>(float*)
elementwise: cudnn::ops:: subtensorop op1dtensor op2dtensor op3dtensor op4dtensor optensor cudnn_tensor_op
    = SubTensorOpWithCastTensor1d
rnn: persistrnn rnn_block blockpersist cudnn_rnn = RNN_blockPersist_fp_LSTM
quantization: quantiz dequant _quant_kernel fp4_quant fp8_quant group_quant per_token_quant cvt_fp16_to_fp4
    cast_transpose amax hfp8 fp8rowwise fp8_qparam scale_1x128 scaled_cast cast_kernel
    = void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(float*)
rotary: rotary _rope rope_ = void vllm::rotary_embedding_kernel<c10::BFloat16, true>(float*)
embedding: embedding _embs_ bounds_check_indices lxu_cache grad_indice_weights find_long_segments linearize_index
    linear_index lru_cache lfu_cache
    = void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 2ul>(float*)
index: permute_2d permute_1d permute_indices jagged bucketize offsets_range recat_ to_dense_representation
    reduce_segments compute_cuda_kernel batched_unary fast_gather
    = void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(float*)
sampling: sampling topk_topp top_p_ penalties penalty rejection_ greedy_sample
    = void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>(float*)
elementwise: act_and_mul swiglu geglu doactivation bias_gelu bias_swiglu bias_dropout element_mul nvfuser_
    cudacodegen:: silu gelu addbias add_bias = void vllm::act_and_mul_kernel<c10::BFloat16>(float*)
copy: copybuffer copy_page copy_kernel transpose concat_ catkernel memcpy permute_kernel pack_kernel
    = __amd_rocclr_copyBuffer
fill: fillbuffer memset zero_kernel = __amd_rocclr_fillBufferAligned
reduction: devicereduce devicesegmentedreduce reducebykey
    = void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>(float*)
sort_scan: radixsort devicescan devicemerge deviceselect devicecompact rocprim cub:: thrust onesweep
    = void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800>(float*)
linear_algebra: magma_ getrf getrs potrf geqrf syevd syevj heevd gesvd trtri larft laswp ormqr cusolver rocsolver
    = void getrf_pivot<float, 256>(float*)
""")

#: Names of PyTorch's own kernels, and plain words for names that no library row knows. The functor inside a generic
#: loop (``elementwise_kernel<..., mse_kernel>``) comes before the loop. Source: aten/src/ATen/native/cuda.
ATEN_PATTERNS = _rows("""
optimizer: fusedoptimizer fusedadam fusedsgd fusedadagrad
    = void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>
foreach: multi_tensor_apply
    = void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>
elementwise: binaryfunctor unaryfunctor cudafunctor addfunctor mulscalarfunctor comparefunctor
    = void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(float*)
quantization: hfp8 fake_quant quantiz
    = void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_hfp8_to_float_gpu(at::Tensor const&)>(float*)
attention: rescale_qkv _sdpa = void at::native::(anonymous namespace)::transform_bias_rescale_qkv_kernel<...>
norm: layer_norm layernorm batch_norm batchnorm group_norm groupnorm rms_norm gammabeta rowwisemoments
    computeinternalgradients fusedparams weight_norm renorm computegradinput gradgamma
    = void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(float*)
loss: nll_loss mse_kernel mse_backward cross_entropy ctc_loss smooth_l1 huber margin kl_div classnll entropy_with
    = void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(float*)
softmax: softmax = void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)
embedding: embedding indexselect = void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(float*)
pooling: max_pool avg_pool average_pool averagepool avgpool maxpool
    = void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float*)
resample: upsample grid_sampler reflection_pad replication_pad roi_align affine_grid
    = void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(float*)
conv: depthwise conv_ = void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3>(float*)
layout: im2col col2im vol2col col2vol = void at::native::im2col_kernel<float>(float*)
sampling: multinomial samplemulti = void at::native::(anonymous namespace)::sampleMultinomialOnce<float>(float*)
rng: distribution_ dropout bernoulli randperm philox curand random
    = void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>(float*)
sort_scan: sortkv _sort sort_ topk kthvalue cumsum _scan scan_ radix cub::
    = void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(float*)
elementwise: masked_fill copysign
    = void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel(...)
fill: fillfunctor fill_kernel kernel_with_index arange linspace eye_kernel
    = void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(float*)
index: index_ indexfunc indexing scatter gather masked_select nonzero searchsorted unique repeat_interleave unfold
    histogram take_ put_kernel flip roll_cuda segment_reduce coalesce
    = void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)
copy: copy_kernel copy_device_to_device catarray copy_out chunk_cat direct_copy transpose
    = void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)
fft: fft = void regular_fft<512u, EPT<8u>, (padding_t)1>(kernel_arguments_t<unsigned int>)
linear_algebra: triangular_solve cholesky lu_solve linalg_lu apply_lu = void at::native::apply_lu_solve(float*)
reduction: reduce = void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float*)
elementwise: elementwise pointwise lstm_cell gru_cell tril triu kernelpointwise where_kernel
    = void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(float*)
""")

_OP_PREFIX = "autograd::engine::evaluate_function: "

#: Launching ops and annotations, by a part of the name in lower case without blanks. Sources: the registrations of
#: aten, fbgemm, vllm, flash_attn and transformer_engine, and torch/optim's profiler annotation.
OP_PATTERNS = _rows("""
optimizer: ^optimizer.step# ^##optimizer## _fused_adam _fused_sgd _fused_adagrad fused_adam fused_lamb
    multi_tensor_adam multi_tensor_sgd multi_tensor_lamb adamw_step
attention: scaled_dot_product scaleddotproduct flash_attn flash_attention flashattn efficient_attention cudnn_attention
    flex_attention flexattention fused_attention fusedattn fmha unified_attention paged_attention _fa2_c:: _fa3_c::
    memory_efficient_attention xformers_flash flash_mla
collective: record_param_comms ^c10d:: c10d_functional ^nccl: ^gloo: ^mpi: ^symm_mem:: vllm::all_reduce
    vllm::all_gather vllm::reduce_scatter torch.ops.deep_ep
foreach: _foreach_
rotary: rotary _rope rope_ fusedrope
kv_cache: reshape_and_cache concat_and_cache
embedding: splitlookup embedding bounds_check_indices pooled_embs pooledembs
gemm: unquantized_gemm scaled_mm grouped_mm _gemm gemm_ cutlass_moe_mm marlin
quantization: quantiz fp8_quant cast_to_fp8 cast_transpose fake_quant hfp8 fp8rowwise
moe_routing: moe_align topk_softmax moe_sum grouped_topk moe_permute moe_unpermute
conv: convolution conv1d conv2d conv3d conv_transpose conv_depthwise
norm: layer_norm layernorm rms_norm rmsnorm batch_norm batchnorm group_norm groupnorm instance_norm weight_norm
    syncbatchnorm
softmax: softmax
loss: nll_loss nllloss cross_entropy crossentropy mse_loss mseloss l1_loss huber_loss ctc_loss kl_div margin_loss
pooling: max_pool avg_pool maxpool avgpool
resample: upsample grid_sampler interpolate reflection_pad replication_pad roi_align
index: fbgemm::permute fbgemm::block_bucketize fbgemm::asynchronous fbgemm::offsets jagged fbgemm::segment
inductor_fused: cpp_fused_
fft: aten::fft_ aten::_fft_
reduction: linalg_norm linalg_vector_norm linalg_matrix_norm
linear_algebra: aten::linalg_ aten::_linalg_ cholesky triangular_solve
rnn: cudnn_rnn miopen_rnn aten::lstm aten::gru
""")

#: Launching ops by the whole word that is left without namespace, outer underscores and direction.
OP_WORDS = _rows("""
gemm: mm addmm bmm baddbmm addbmm matmul linear einsum tensordot int_mm addmm_activation sparse_mm sparse_addmm addr
    ger inner bilinear weight_int4pack_mm weight_int8pack_mm mkldnn_linear linear_dynamic
gemv: mv addmv dot vdot
elementwise: add sub rsub mul div divide true_divide floor_divide remainder fmod pow sqrt rsqrt square exp exp2 expm1
    log log1p log2 log10 sin cos tan tanh atan atan2 sigmoid log_sigmoid relu relu6 leaky_relu elu celu selu silu mish
    gelu glu hardtanh hardswish hardsigmoid softplus threshold prelu clamp clamp_min clamp_max abs neg sign sgn floor
    ceil round trunc frac reciprocal erf erfinv lerp addcmul addcdiv maximum minimum where masked_fill eq ne lt le gt
    ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not nan_to_num isnan
    isinf isfinite logit tril triu polar complex conj_physical or and xor _or _and accumulate_grad thnn_fused_lstm_cell
    thnn_fused_gru_cell convex_sum
copy: copy to to_copy type_as contiguous clone cat stack concat concatenate hstack vstack repeat tile pad
    constant_pad_nd flatten_dense_tensors unflatten_dense_tensors split_with_sizes_copy chunk_cat pin_memory select
    slice split_with_sizes unbind copy_bucket_to_grad narrow_copy expand_copy broadcast_tensors float resolve_conj
    resolve_neg unsafe_view reshape
fill: fill zero zeros zeros_like ones ones_like full full_like arange linspace eye scalar_tensor new_zeros new_ones
    new_full tril_indices triu_indices
reduction: sum mean max min amax amin aminmax argmax argmin prod std var var_mean std_mean norm linalg_norm
    linalg_vector_norm all any nansum logsumexp count_nonzero value_selecting_reduction grad_sum_to_size
    amp_foreach_non_finite_check_and_unscale equal
index: index index_put index_put_impl unsafe_index index_select index_add index_copy index_fill gather scatter
    scatter_add scatter_reduce masked_select masked_scatter nonzero take put repeat_interleave bucketize searchsorted
    unique unique2 unique_consecutive flip roll unfold take_along_dim fast_gather to_dense_representation offsets_range
sort_scan: sort argsort topk kthvalue cumsum cumprod cummax cummin msort count_and_radix_sort diff
    asynchronous_complete_cumsum
rng: rand randn randint rand_like randn_like normal uniform random bernoulli exponential randperm dropout
    native_dropout fused_dropout
sampling: multinomial
loss: binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss
""")

_OP_OF_WORD = {word: row.family for row in OP_WORDS for word in row.words}

#: Families whose kernels say little about whose work they are: inside an optimizer or attention they are part of it.
GENERIC = frozenset(
    ("elementwise", "foreach", "copy", "fill", "reduction", "softmax", "rng", "index", "layout", "gemm", "gemv")
    + ("inductor_pointwise", "inductor_reduction", "inductor_fused", "linear_algebra", "sort_scan")
)

#: Op families that hold for everything generic launched inside, whatever the innermost op is.
CONTEXT = frozenset(("optimizer", "attention"))

# What tells the work stands early; the rest of a template's arguments (names have up to 3,000 characters) names types.
_NAME_LIMIT = 300
_ESSENCE_LIMIT = 120


class _Table:
    """Rows as one flat list of words, so that the search for the first hit runs without a Python loop."""

    def __init__(self, rows: Iterable[Pattern]) -> None:
        pairs = [(row.family, word) for row in rows for word in row.words]
        self.families = [family for family, _ in pairs]
        self.words = [word for _, word in pairs]

    def first(self, name: str) -> str | None:
        return next(compress(self.families, map(f"^{name}".__contains__, self.words)), None)


_INDUCTOR = _Table(INDUCTOR_PATTERNS)
_LIBRARY = _Table(LIBRARY_PATTERNS + ATEN_PATTERNS)
_ATEN = _Table(ATEN_PATTERNS)
_OPS = _Table(OP_PATTERNS)


def _essence(name: str) -> str:
    """The part of a kernel's name that tells its work: without return type, anonymous namespaces and argument list."""
    text = name[:_NAME_LIMIT].lower().removeprefix("void ").replace("(anonymous namespace)::", "")
    if text.startswith("std::enable_if"):
        text = text.rpartition("::type ")[2]
    return text.partition(">(")[0]


def kernel_family(name: str) -> str | None:
    """Family id that a kernel's name tells; None where the name is silent. The name's prefix selects the table."""
    text = _essence(name)
    if text.startswith("at::native::"):
        return _ATEN.first(text.replace("at::native::", "")[:_ESSENCE_LIMIT])
    if text.startswith("triton_"):
        family = _INDUCTOR.first(text)
        if family is not None:
            return family
    # This namespace holds another library's word.
    return _LIBRARY.first(text.replace("fbgemm_gpu::", "")[:_ESSENCE_LIMIT])


def op_family(op: str) -> str | None:
    """Family id of what a launching op, autograd node or annotation does; None for containers and unknown ones."""
    text = op.removeprefix(_OP_PREFIX)
    lower = text[:_NAME_LIMIT].lower().replace(" ", "")
    if lower.startswith("triton_"):
        return kernel_family(text)
    return _OPS.first(lower) or _OP_OF_WORD.get(_op_word(text))


_NODE = re.compile(r"(\w+?)Backward\d*$")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=\d[A-Z])(?=[A-Z][a-z])")
_DIRECTION = re.compile(r"_(?:forward|backward)(?:_[a-z]+)?$")


def _op_word(op: str) -> str:
    """``aten::_softmax_backward_data`` -> ``softmax``, ``NativeDropoutBackward0`` -> ``native_dropout``."""
    name = op.rpartition("::")[2]
    node = _NODE.fullmatch(name)
    if node or name[:1].isupper():
        name = _HUMP.sub("_", node.group(1) if node else name)
    return _DIRECTION.sub("", name.lower().strip("_"))


def family_of(name_family: str | None, op_family: str | None) -> str:
    """Join what the kernel's name and its launch say.

    1. A specific name decides. 2. A generic name (`GENERIC`) inside an optimizer or attention (`CONTEXT`) is part of
    it: a foreach addition or a matmul of an optimizer is the optimizer's (it has no model FLOPs), a bmm or softmax of
    scaled_dot_product_attention is attention. 3. A silent name takes the op's family. 4. Otherwise ``other``.

    Args:
        name_family: `kernel_family` of the kernel.
        op_family: the innermost `CONTEXT` family among the open ops (for the optimizer also annotations) at the
            launch, else the `op_family` of the innermost op.
    """
    if name_family is None:
        return op_family or "other"
    if op_family in CONTEXT and name_family in GENERIC:
        return op_family
    return name_family


def _join_table() -> NDArray[np.int16]:
    ids: list[str | None] = [*(family.id for family in FAMILIES), None]
    rows = [[FAMILY_CODE[family_of(name, op)] for op in ids] for name in ids]
    return np.array(rows, dtype=np.int16)


#: `family_of` as codes, int16 [F + 1, F + 1]: ``FAMILY_TABLE[name_code, op_code]``; code -1 (silent) is the last row.
FAMILY_TABLE: NDArray[np.int16] = _join_table()


def classify(names: Sequence[str]) -> NDArray[np.int16]:
    """Family codes (index into `FAMILIES`) of unique kernel names, int16 [len(names)]; -1 where silent."""
    codes = [FAMILY_CODE.get(kernel_family(name) or "", -1) for name in names]
    return np.array(codes, dtype=np.int16)


def classify_ops(ops: Sequence[str]) -> NDArray[np.int16]:
    """Family codes of unique op and annotation names, int16 [len(ops)]; -1 where silent."""
    codes = [FAMILY_CODE.get(op_family(op) or "", -1) for op in ops]
    return np.array(codes, dtype=np.int16)


def cpu_op_leaf(op: str) -> str:
    """Leaf id of slice ``kernels`` for an op that computes on the CPU; ``other_compute`` where unknown."""
    family = op_family(op)
    leaf = FAMILIES[FAMILY_CODE[family]].leaf if family is not None else "other_compute"
    return "other_compute" if leaf == "comm" else leaf
