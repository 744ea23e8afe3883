"""Names of communication against kinds written down by hand, from traces and from the sources of c10d and NCCL."""

from __future__ import annotations

import pytest

from steptime.taxonomy import LEAVES
from steptime.trace.collectives import collective_leaf, is_host_communication

NAMES: dict[str, list[str]] = {
    "allreduce": [
        "allreduce",
        "allreduce_coalesced",
        "all_reduce",
        "ALLREDUCE",
        "nccl:all_reduce",
        "gloo:all_reduce",
        "gloo:sparse_all_reduce",
        "mpi:all_reduce",
        "c10d::allreduce_",
        "c10d::allreduce_coalesced_",
        "_c10d_functional::all_reduce",
        "_c10d_functional::all_reduce_",
        "vllm::all_reduce",
        "symm_mem::multimem_all_reduce_",
        "symm_mem::one_shot_all_reduce",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e5m2(ncclSymkDevWorkArgs4K)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    ],
    "allgather": [
        "allgather",
        "_allgather_base",
        "allgather_into_tensor_coalesced",
        "all_gather_into_tensor",
        "nccl:_all_gather_base",
        "nccl:all_gather_into_tensor_coalesced",
        "gloo:all_gather",
        "c10d::_allgather_base_",
        "_c10d_functional::all_gather_into_tensor",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "reduce_scatter": [
        "_reduce_scatter_base",
        "reduce_scatter",
        "reduce_scatter_tensor_coalesced",
        "nccl:_reduce_scatter_base",
        "c10d::reduce_scatter_tensor_coalesced_",
        "_c10d_functional_autograd::reduce_scatter_tensor",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int, int)",
    ],
    "all_to_all": [
        "all_to_all",
        "all_to_allv",
        "all_to_all_single",
        "alltoall_base",
        "nccl:all_to_all",
        "c10d::alltoall_base_",
        "ncclDevKernel_AllToAll_Simple(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
    ],
    "broadcast": [
        "broadcast",
        "_broadcast_oop",
        "nccl:broadcast",
        "c10d::broadcast_",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    ],
    "reduce": [
        "reduce",
        "_reduce_oop",
        "gather",
        "scatter",
        "nccl:reduce",
        "gloo:gather",
        "c10d::scatter_",
        "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "barrier": [
        "barrier",
        "gloo:barrier",
        "c10d::monitored_barrier_",
        "nccl:all_reduce_barrier",
        "at::cuda::(anonymous namespace)::spin_kernel(long)",
        "nvshmemi_barrier_on_stream_kernel",
    ],
    "p2p_transfer": [
        "send",
        "recv",
        "isend",
        "nccl:send 0->1",
        "nccl:recv 0<-1",
        "gloo:recvAnySource",
        "c10d::recv_any_source_",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "Memcpy PtoP (Device -> Device)",
    ],
    "other_comm": [
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "nccl:coalesced",
        "mscclKernel_Sum_half_LL128(ncclDevComm*, mscclAlgo*, mscclWork*)",
    ],
}

NOT_COMMUNICATION = [
    "",
    "wait",
    "_c10d_functional::wait_tensor",
    "aten::scatter_",
    "aten::gather",
    "aten::sum",
    "FSDP::all_gather",
    "FSDP::all_gather_copy_out",
    "FSDP::pre_forward (layers.0)",
    "## reduce_scatter_base_bw (all_gather) ##",
    "## alltoall_fwd_single ##",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
    "void at::native::vectorized_gather_kernel<16, long>(char*)",
    "reduce_segments",
    "scatter_add",
    "recompute_fn",
    "broadcast_tensors",
    "send_email",
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy DtoD (Device -> Device)",
    "ampere_sgemm_128x64_tn",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, half>(Params)",
]


@pytest.mark.parametrize(("text", "leaf"), [(text, leaf) for leaf, texts in NAMES.items() for text in texts])
def test_collective_leaf(text: str, leaf: str) -> None:
    assert collective_leaf(text) == leaf


@pytest.mark.parametrize("text", NOT_COMMUNICATION)
def test_no_collective(text: str) -> None:
    assert collective_leaf(text) is None


def test_leaves_are_those_of_exposed_comm() -> None:
    assert set(NAMES) == {leaf.id for leaf in LEAVES if leaf.slice == "exposed_comm"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gloo:all_reduce", True),
        ("gloo:send", True),
        ("mpi:all_reduce", True),
        ("nccl:all_reduce", False),
        ("c10d::allreduce_", False),
        ("gloomy", False),
        ("", False),
    ],
)
def test_is_host_communication(name: str, expected: bool) -> None:
    assert is_host_communication(name) is expected
