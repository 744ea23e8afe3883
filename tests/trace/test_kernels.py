"""Kernel names and ops against families written down by hand.

The names come from recorded traces and from the libraries' own sources; the family beside each is what the kernel does
according to that library, not what the code under test answered.
"""

from __future__ import annotations

import gzip
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from steptime.taxonomy import LEAVES
from steptime.trace.kernels import (
    ATEN_PATTERNS,
    CONTEXT,
    FAMILIES,
    FAMILY_CODE,
    FAMILY_TABLE,
    GENERIC,
    INDUCTOR_PATTERNS,
    LIBRARY_PATTERNS,
    OP_PATTERNS,
    OP_WORDS,
    Pattern,
    classify,
    classify_ops,
    cpu_op_leaf,
    family_of,
    kernel_family,
    op_family,
)

ALL_ROWS = INDUCTOR_PATTERNS + LIBRARY_PATTERNS + ATEN_PATTERNS

NAMES: dict[str, list[str]] = {
    "gemm": [
        "ampere_sgemm_128x64_tn",
        "volta_sgemm_64x32_sliced1x4_nn",
        "ampere_gcgemm_64x64_nt",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn",
        "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_stages_32x1_nn",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
        "__5x_cublas",
        "nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN",
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>"
        "(cublasLt::cublasSplitKParams<float>, float const*)",
        "void splitKreduce_kernel<float, float, float>(cublasSplitKParams<float>, float const*, float const*)",
        "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*)",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const>>(int)",
        "void gemmk1_kernel<float, 256, 5, false, false, false, false",
        "void scal_kernel<float, float, 1, false, 6, 5, 5, 3>(cublasTransposeParams<float>, float const*, float*)",
        "void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*, float const*, int, int)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(cutlass_80::Params)",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
        "void cutlass::Kernel2<cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align1>(Params)",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
        "cute::tuple<int, int, int, int>>>>(Params)",
        "kernel_cutlass_kernel___main__HopperWgmmaGemmPersistentKernel_object_at__CopyAtom_ThrID10_TVLayoutSrc1819201",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1",
        "Cijk_Ailk_Bjlk_SB_MT128x64x16_SN_1LDSB0_APM1_ABV0_ACED0",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u, 4096u, 1u, 64u, 128u>(float*)",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1",
        "fused_moe_kernel",
        "void marlin::Marlin<__nv_bfloat16, 4, 256, 1, 8, 8, 4>(int4 const*, int4 const*)",
        "triton_tem_fused_addmm_relu_3",
        "triton_mm",
        "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int)",
    ],
    "gemv": [
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false",
        "void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024, cublasGemvParams<float>>(float)",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>(float)",
        "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>(float const*, float, int)",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false"
        "(cublasGemvParams<float>)",
    ],
    "conv": [
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int)",
        "void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0, false>(int, int, int, float const*)",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "cudnn_infer_volta_scudnn_128x64_3dconv_fprop_medium_nn_v1",
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_wgrad_idx_exp_interior_nhwc_nt_v1",
        "turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage5",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(P)",
        "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemm",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, float const*)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::Params<float>)",
        "cask_cudnn::computeWgradSplitKOffsetsKernel(cask_cudnn::ComputeSplitKOffsetsParams)",
        "void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int, int, int)",
        "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8_ws1x1_wr1x1_ta1x4x1x4_1x16x1x16",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1",
        "miopenGcnAsmConv1x1U",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1_bk0nk1_mn",
        "naive_conv_ab_nonpacked_fwd_nchw_float_double_float",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(float)",
        "triton_tem_fused_convolution_2",
    ],
    "layout": [
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(float const*)",
        "void nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(float const*)",
        "batched_transpose_32x16_half",
        "transpose_NCHW2CNHW_V2_2D_WG_off64",
        "void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params, float const*)",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false>, true, false>(Params)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, 4, 1, true>(Params)",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>, false, true>(P)",
        "void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8, 4, 2, 2>>(Params)",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwd"
        "Sm90<2, cute::tuple<cute::C<1>>>>>>(Params)",
        "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<128>>, cutlass::half_t>>(P)",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptrbf16",
        "kernel_cutlass_kernel___main__BlackwellFusedMultiHeadAttentionForward_object_at__TiledMMA_ThrLayoutVMNK1111",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "cudnn_generated_fort_native_sdpa_sm80_flash_bprop_f16_knob_26_64x64x128",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>)",
        "fmha_cutlassB_f32_aligned_64x64_k64_dropout_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<float>)",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelINS_32BlockFmhaPipelineQRKSVSAsyncINS_24BlockFmhaPipelineProblem",
        "_ZN5aiter25fmha_fwd_hd128_bf16_causalE",
        "attn_fwd",
        "_attn_fwd",
        "kernel_unified_attention_3d",
        "void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16, 128>(float*, float*)",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<64>>(Params)",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u>(Params)",
        "void transformer_engine::fused_attn::cu_seqlens_to_offsets(unsigned long, unsigned long, int*)",
        "triton_tem_fused_flex_attention_0",
        "triton_tem_fused_flex_attention_backward_2",
    ],
    "norm": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>(long, long",
        "void at::native::(anonymous namespace)::cuComputePartGradGammaBeta<float, float, true>(float const*)",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long, float, float const*)",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float, float, float, int>(float)",
        "void at::native::elementwise_kernel_manual_unroll<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
        "(anonymous namespace)::GroupNormKernelImplInternal<float>(at::Tensor const&)>>(int)",
        "void cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 0>(float, float, float, float)",
        "MIOpenBatchNormFwdTrainSpatialFinalMeanVariance",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2dFwdPipeline",
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
        "void layer_norm::ln_bwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16>, true, true>(layer_norm::BwdParams)",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<float>>(Params)",
        "void cuApplyLayerNorm<float, float, float>(float*, float*, float*, float const*, int, int, float)",
        "_rms_norm_forward_kernel",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true>(float*, float const*)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(float*)",
        "void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>(__half*, __half const*)",
    ],
    "loss": [
        "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*)",
        "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, float*, long*)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::mse_kernel_cuda(at::TensorIteratorBase&)>(int)",
        "liger_cross_entropy_kernel",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::tanh_backward_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#2}>>(int)",
        "void at::native::unrolled_elementwise_kernel<at::native::BinaryFunctor<double, double, double, at::native::"
        "binary_internal::MulFunctor<double> >, at::detail::Array<char*, 3> >(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel("
        "at::TensorIterator&, c10::Scalar const&)>(int)",
        "void cudnn::ops::scalePackedTensor_kernel<float, float>(cudnnTensor4dStruct, float*, float)",
        "SubTensorOpWithScalar1d",
        "void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel<c10::BFloat16>, true>(c10::BFloat16*)",
        "_swiglu_forward_kernel",
    ],
    "fill": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*",
        "void (anonymous namespace)::elementwise_kernel_with_index<int",
        "__amd_rocclr_fillBufferAligned",
    ],
    "copy": [
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::OpaqueType<4u>",
        "void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator&",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel"
        "_cuda(at::TensorIteratorBase&)>>(int)",
        "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel(char const*)",
        "__amd_rocclr_copyBuffer",
        "_copy_page_indices_kernel",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>(float)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<int, at::native::ArgMaxOps<int>, unsigned int>>",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>(long*)",
    ],
    "foreach": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>>(P)",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int>(int)",
        "triton_for_fused_0",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>(P)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float, float>(long, int)",
        "void multi_tensor_apply_kernel<TensorListMetadata<5>, transformer_engine::multi_tensor_adam::AdamFunctorMaster"
        "<float, float, float, int>>(long)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>, float*, float, float>(long)",
        "void multi_tensor_apply_kernel<TensorListMetadata<3>, SGDFunctor<3, float, float>, float, float>(long)",
        "void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>(__nv_bfloat16*, __nv_bfloat16*)",
    ],
    "embedding": [
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float, float, float",
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, long, 2ul",
        "void bounds_check_indices_kernel<long, false>(at::GenericPackedTensorAccessor<long>)",
        "void permute_pooled_embs_kernel<float>(float const*, long const*, long const*)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*)",
        "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long const*)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(P)",
    ],
    "index": [
        "void at::native::index_elementwise_kernel<128, 4<at::native::OpaqueType<4> >>>(int)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::_cuda_scatter_gather_internal_kernel>",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long)",
        "void at::native::(anonymous namespace)::searchsorted_cuda_kernel<float, long>(long*, float const*)",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int)",
        "void fbgemm_gpu::_block_bucketize_sparse_features_cuda_kernel1<int, int>(int, int)",
    ],
    "sort_scan": [
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false",
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::AgentScanPolicy<128, 15, long>>(long)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float>)",
        "void at::native::bitonicSortKVInPlace<-2, -1, 16, 16, float, long>(at::cuda::detail::TensorInfo<float>)",
        "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*)",
    ],
    "rng": [
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(long)",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(P)",
    ],
    "pooling": [
        "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(int, float const*)",
        "void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*, float*, int, int)",
        "mloPoolingG",
    ],
    "resample": [
        "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int, float, float)"
    ],
    "rotary": ["void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "_triton_rope"],
    "kv_cache": [
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>(P)",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16>(P)",
    ],
    "moe_routing": [
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*)",
        "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, int>(float const*, bool const*)",
        "void moe::dev::routing::routingRenormalize::routingIndicesHistogramScoresKernel<KernelParams<float>>(P)",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*)",
        "_finalize_matmul_scatter_bf16",
    ],
    "quantization": [
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)",
        "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)1, float>(int)",
        "void fbgemm_gpu::(anonymous namespace)::_FP8rowwise_to_float_cuda_kernel<float>(unsigned char const*, int)",
        "void transformer_engine::cast_transpose_fused_kernel_notaligned<false, false, float>(Param)",
        "void kQuantizeBlockwise<__nv_bfloat16, 4096, 4, 0, 0>(float*, __nv_bfloat16*)",
    ],
    "sampling": [
        "void at::native::(anonymous namespace)::sampleMultinomialOnce<float, float>(long*, long, int)",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2>(float*)",
    ],
    "inductor_pointwise": ["triton_poi_fused_gelu_view_9", "triton_poi_fused_add_addmm_native_dropout_view_13"],
    "inductor_reduction": [
        "triton_red_fused_gelu_gelu_backward_sum_view_5",
        "triton_per_fused_add_addmm_native_dropout_native_layer_norm_native_layer_norm_backward_transpose_view_11",
    ],
    "inductor_fused": ["triton__0d1d2d3d4d5d6d"],
    "state_space": [
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1, false, true>>(SSMParamsBase)",
        "_chunk_scan_fwd_kernel",
    ],
    "fft": ["void regular_fft<512u, EPT<8u>, (padding_t)1>(kernel_arguments_t<unsigned int>)"],
    "nccl": [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e5m2(ncclSymkDevWorkArgs4K)",
        "mscclKernel_Sum_half_LL128(ncclDevComm*, mscclAlgo*, mscclWork*)",
    ],
    "symmetric_memory": [
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, c10::BFloat16*, unsigned long)",
        "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**, unsigned long)",
    ],
    "nvshmem": ["nvshmemi_barrier_on_stream_kernel"],
    "expert_parallel": [
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)",
        "void deep_ep::intranode::notify_dispatch<(int)2>(const int *, int *, const int *, int *)",
    ],
    "custom_allreduce": [
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)",
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int, int)",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>>(half const*)",
    ],
    "comm_barrier": ["at::cuda::(anonymous namespace)::spin_kernel(long)"],
    "fused_comm": [
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, half>(Params)",
    ],
    "fused_comm_gemm": ["kernel_consumer_gemm_rs_persistent"],
    "linear_algebra": ["void getrf_pivot<float, 256>(float*)"],
}

OPS: list[tuple[str, str | None]] = [
    ("aten::mm", "gemm"),
    ("aten::addmm", "gemm"),
    ("aten::_scaled_mm", "gemm"),
    ("aten::linear", "gemm"),
    ("MmBackward0", "gemm"),
    ("autograd::engine::evaluate_function: AddmmBackward0", "gemm"),
    ("AddmmBackward", "gemm"),
    ("vllm::rocm_unquantized_gemm", "gemm"),
    ("aten::mv", "gemv"),
    ("aten::convolution_backward", "conv"),
    ("aten::cudnn_convolution_backward_input", "conv"),
    ("aten::miopen_convolution", "conv"),
    ("ConvolutionBackward0", "conv"),
    ("aten::_scaled_dot_product_flash_attention", "attention"),
    ("aten::_efficient_attention_backward", "attention"),
    ("ScaledDotProductEfficientAttentionBackward0", "attention"),
    ("flash_attn::_flash_attn_forward", "attention"),
    ("FlashAttnFuncBackward", "attention"),
    ("vllm::unified_attention_with_output", "attention"),
    ("aten::native_layer_norm", "norm"),
    ("NativeLayerNormBackward0", "norm"),
    ("aten::cudnn_batch_norm_backward", "norm"),
    ("_C::fused_add_rms_norm", "norm"),
    ("aten::_softmax_backward_data", "softmax"),
    ("LogSoftmaxBackward0", "softmax"),
    ("aten::nll_loss_forward", "loss"),
    ("BinaryCrossEntropyWithLogitsBackward0", "loss"),
    ("aten::embedding_dense_backward", "embedding"),
    ("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", "embedding"),
    ("torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>", "embedding"),
    ("MaxPool2DWithIndicesBackward0", "pooling"),
    ("aten::add_", "elementwise"),
    ("ReluBackward0", "elementwise"),
    ("aten::_to_copy", "copy"),
    ("aten::cat", "copy"),
    ("aten::zero_", "fill"),
    ("aten::sum", "reduction"),
    ("aten::index_put_", "index"),
    ("aten::native_dropout", "rng"),
    ("aten::_foreach_add_", "foreach"),
    ("aten::_fused_adamw_", "optimizer"),
    ("aten::_fused_adam", "optimizer"),
    ("Optimizer.step#AdamW.step", "optimizer"),
    ("## optimizer ##", "optimizer"),
    ("record_param_comms", "collective"),
    ("c10d::allreduce_", "collective"),
    ("nccl:all_to_all", "collective"),
    ("_C::rotary_embedding", "rotary"),
    ("_C::static_scaled_fp8_quant", "quantization"),
    ("triton_poi_fused_gelu_view_9", "inductor_pointwise"),
    ("triton_tem_fused_mm_1", "gemm"),
    # Containers, views, waits and marks do no work of their own kind.
    ("## Call CompiledFxGraph fyzmmikkhz7re2hlhxahq56a5f ##", None),
    ("CompiledFunctionBackward", None),
    ("ProfilerStep#12", None),
    ("Optimizer.zero_grad#SGD.zero_grad", None),
    ("DistributedDataParallel.forward", None),
    ("Attention_Forward", None),
    ("aten::view", None),
    ("aten::t", None),
    ("aten::empty", None),
]


def _flat() -> list[tuple[str, str]]:
    return [(name, family) for family, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("name", "family"), _flat())
def test_kernel_family(name: str, family: str) -> None:
    assert kernel_family(name) == family


def test_enough_literal_names() -> None:
    assert len(_flat()) >= 120
    assert len({name for name, _ in _flat()}) == len(_flat())


@pytest.mark.parametrize("name", ["", "kernel", "my_kernel", "_Z3foov", "void f<float>(float*)", "step", "triton_"])
def test_a_silent_name_is_none(name: str) -> None:
    assert kernel_family(name) is None


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: f"{row.family}:{row.words[0]}")
def test_each_row_decides_its_own_example(row: Pattern) -> None:
    assert kernel_family(row.example) == row.family


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: f"{row.family}:{row.words[0]}")
def test_each_row_is_well_formed(row: Pattern) -> None:
    assert row.family in FAMILY_CODE
    assert row.words
    assert all(word == word.lower() for word in row.words)
    assert any(word.lstrip("^") in row.example.lower() for word in row.words)


@pytest.mark.parametrize("table", [INDUCTOR_PATTERNS, LIBRARY_PATTERNS, ATEN_PATTERNS, OP_PATTERNS])
def test_no_word_is_shadowed_by_an_earlier_row(table: tuple[Pattern, ...]) -> None:
    earlier: list[str] = []
    for row in table:
        shadowed = [(old, word) for word in row.words for old in earlier if old in word]
        assert not shadowed, row.family
        earlier.extend(row.words)


def test_op_words_are_unique() -> None:
    counts = Counter(word for row in OP_WORDS for word in row.words)
    assert [word for word, count in counts.items() if count > 1] == []
    assert {row.family for row in OP_WORDS + OP_PATTERNS} <= set(FAMILY_CODE)


def test_the_namespace_fbgemm_is_no_gemm() -> None:
    assert kernel_family("void fbgemm_gpu::some_new_kernel<float>(float*)") is None


@pytest.mark.parametrize(("op", "family"), OPS)
def test_op_family(op: str, family: str | None) -> None:
    assert op_family(op) == family


def test_families_lead_to_leaves_of_kernels() -> None:
    leaves = {leaf.id for leaf in LEAVES if leaf.slice == "kernels"}
    assert {family.leaf for family in FAMILIES} <= leaves | {"comm"}
    assert len(FAMILY_CODE) == len(FAMILIES)
    by_id = {family.id: family for family in FAMILIES}
    assert by_id["conv"].leaf == "matmul"
    assert by_id["norm"].leaf == "memory_bound"
    assert by_id["nccl"].leaf == "comm"
    assert by_id["fused_comm"].detail == "fused_comm"
    assert by_id["fused_comm"].leaf != "comm"


@pytest.mark.parametrize(
    ("name", "op", "expected"),
    [
        ("elementwise", "optimizer", "optimizer"),
        ("foreach", "optimizer", "optimizer"),
        ("reduction", "optimizer", "optimizer"),
        ("gemm", "optimizer", "optimizer"),
        ("nccl", "optimizer", "nccl"),
        ("conv", "optimizer", "conv"),
        ("foreach", "foreach", "foreach"),
        ("gemm", "attention", "attention"),
        ("softmax", "attention", "attention"),
        ("kv_cache", "attention", "kv_cache"),
        ("gemm", "conv", "gemm"),
        ("gemm", None, "gemm"),
        (None, "norm", "norm"),
        (None, "collective", "collective"),
        (None, None, "other"),
    ],
)
def test_family_of(name: str | None, op: str | None, expected: str) -> None:
    assert family_of(name, op) == expected
    row = FAMILY_CODE[name] if name else -1
    column = FAMILY_CODE[op] if op else -1
    assert FAMILIES[FAMILY_TABLE[row, column]].id == expected


def test_generic_and_context_are_families() -> None:
    assert set(FAMILY_CODE) >= GENERIC
    assert set(FAMILY_CODE) >= CONTEXT


def test_classify_gives_codes_and_minus_one() -> None:
    codes = classify(["nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", "my_kernel", "attn_fwd"])
    assert codes.dtype == np.int16
    assert codes.tolist() == [FAMILY_CODE["gemm"], -1, FAMILY_CODE["attention"]]
    assert classify([]).shape == (0,)
    assert classify_ops(["aten::mm", "aten::view"]).tolist() == [FAMILY_CODE["gemm"], -1]


@pytest.mark.parametrize(
    ("op", "leaf"),
    [
        ("aten::mm", "matmul"),
        ("aten::mkldnn_convolution", "matmul"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::add_", "memory_bound"),
        ("aten::native_layer_norm", "memory_bound"),
        ("cpp_fused_add_relu_0", "memory_bound"),
        ("aten::_fused_adam", "optimizer"),
        ("c10d::allreduce_", "other_compute"),
        ("my_ops::secret", "other_compute"),
    ],
)
def test_cpu_op_leaf(op: str, leaf: str) -> None:
    assert cpu_op_leaf(op) == leaf


def test_three_thousand_names_are_quick() -> None:
    names = [f"{name} #{index}" for index in range(-(-3000 // len(_flat()))) for name, _ in _flat()][:3000]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        classify(names)
        seconds.append(time.perf_counter() - start)
    # About 30 ms on a 2026 server core; the bound leaves room for a busy machine and still catches a regex per row.
    assert min(seconds) < 0.15


# --- the public traces -----------------------------------------------------------------------------------------------

TRACES = Path(__file__).parents[3] / "shared" / "public_traces"
SKIPPED = ("bytedance_whatif", "mtia_inference_trace")
FILES = sorted(path for path in TRACES.rglob("*.json.gz") if not any(word in path.parts for word in SKIPPED))


class _Args(msgspec.Struct):
    correlation: object = None


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: object = ""
    pid: object = None
    tid: object = None
    ts: float | str = 0.0
    dur: float | str = 0.0
    args: _Args | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the key in the file


def _events(path: Path) -> list[_Event]:
    raw = gzip.decompress(path.read_bytes())
    if raw.lstrip()[:1] == b"[":
        return msgspec.json.decode(raw, type=list[_Event], strict=False)
    return msgspec.json.decode(raw, type=_File, strict=False).traceEvents


_Span = tuple[float, float, int, str]
_Thread = tuple[object, object]


def _collect(events: list[_Event]) -> tuple[list[tuple[str, float]], dict[_Thread, list[_Span]]]:
    """Kernels as (name, duration); per thread the spans (start, -duration, 1 if a launch, op name or kernel index)."""
    kernels: list[tuple[str, float]] = []
    launches: dict[object, tuple[_Thread, float]] = {}
    owner: list[object] = []
    spans: dict[_Thread, list[_Span]] = defaultdict(list)
    for event in events:
        correlation = event.args.correlation if event.args else None
        if event.ph != "X":
            continue
        match event.cat.lower():
            case "kernel":
                kernels.append((str(event.name), float(event.dur)))
                owner.append(correlation)
            case "cuda_runtime" | "cuda_driver" | "runtime":
                launches.setdefault(correlation, ((event.pid, event.tid), float(event.ts)))
            case "cpu_op" | "operator" | "user_annotation":
                spans[event.pid, event.tid].append((float(event.ts), -float(event.dur), 0, str(event.name)))
    for index, correlation in enumerate(owner):
        if correlation is not None and correlation in launches:
            thread, start = launches[correlation]
            spans[thread].append((start, 0.0, 1, str(index)))
    return kernels, spans


def _kernel_ops(events: list[_Event]) -> Iterator[tuple[str, float, list[str]]]:
    """(kernel name, duration, names of the ops open at its launch, outermost first); a plain sweep per thread."""
    kernels, spans = _collect(events)
    open_ops: dict[int, list[str]] = {}
    for thread in spans.values():
        stack: list[tuple[float, str]] = []
        for start, minus_dur, is_launch, what in sorted(thread):
            stack = [span for span in stack if span[0] >= start]
            if is_launch:
                open_ops[int(what)] = [name for _, name in stack]
            else:
                stack.append((start - minus_dur, what))
    for index, (name, duration) in enumerate(kernels):
        yield name, duration, open_ops.get(index, [])


@pytest.mark.skipif(not FILES, reason="the public traces are not beside this checkout")
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TRACES)))
def test_at_most_five_percent_of_kernel_time_is_other_compute(path: Path) -> None:
    leaf_of = {family.id: family.leaf for family in FAMILIES}
    spent: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for name, duration, ops in _kernel_ops(_events(path)):
        known = [family for family in map(op_family, reversed(ops)) if family in CONTEXT]
        op = known[0] if known else op_family(ops[-1]) if ops else None
        leaf = leaf_of[family_of(kernel_family(name), op)]
        spent[leaf] += round(duration * 1000)
        if leaf == "other_compute":
            unknown[name[:100]] += round(duration * 1000)
    assert spent["other_compute"] <= 0.05 * sum(spent.values()), unknown.most_common(5)
