"""Names of host spans against causes written down by hand, from traces and from the APIs' references."""

from __future__ import annotations

import re

import pytest

from steptime.trace.host_calls import HOST_PATTERNS, HostPattern, host_cause, is_loader, source_line, step_number

NAMES: dict[str, list[str]] = {
    "data_loader": [
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "## wait_for_training_batch ##",
        "## wait_for_batch ##",
        "## load_batch ##",
        "torch/utils/data/dataloader.py(703): __next__",
        "torch/utils/data/_utils/fetch.py(25): fetch",
        "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py(703): __next__",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
    ],
    "allocator": [
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaMallocHost",
        "cudaFreeHost",
        "cudaMallocAsync",
        "cudaHostRegister",
        "hipMalloc",
        "hipFree",
        "hipHostMalloc",
        "hipExtMallocWithFlags",
        "cuMemCreate",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuMemAddressReserve",
        "cuMemRelease",
        "cuMemAlloc_v2",
        "hipMemCreate",
    ],
    "sync": [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cuCtxSynchronize",
        "cuStreamSynchronize_ptsz",
        "hipDeviceSynchronize",
        "hipEventSynchronize",
        "cudaMemcpy",
        "hipMemcpy",
        "hipMemcpyWithStream",
        "hipMemcpyDtoH",
        "cuMemcpyDtoH_v2",
        "<built-in function _cuda_synchronize>",
        "torch/cuda/__init__.py(1030): synchronize",
    ],
    "sync_op": [
        "aten::item",
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::is_nonzero",
        "aten::_unique2",
        "aten::unique_consecutive",
        "aten::equal",
        "aten::masked_select",
        "<built-in method item of Tensor object at 0x7ce27810c0a0>",
    ],
    "compile": [
        "_compile.compile_inner (dynamo_timed)",
        "CachingAutotuner.benchmark_all_configs (dynamo_timed)",
        "torch/_dynamo/convert_frame.py(1100): _compile",
        "torch/_inductor/compile_fx.py(700): _compile_fx_inner",
        "torch/_inductor/runtime/triton_heuristics.py(1050): benchmark_all_configs",
        "triton/compiler/compiler.py(300): compile",
        "cuModuleLoadData",
        "cuModuleLoadDataEx",
        "cuLibraryLoadData",
        "hipModuleLoadData",
        "nvrtcCompileProgram",
        "Lazy Function Loading",
    ],
    "gc": ["steptime::gc", "<built-in function collect>"],
    "checkpoint": [
        "steptime::checkpoint",
        "torch/serialization.py(944): save",
        "torch/serialization.py(1200): _save",
        "torch/distributed/checkpoint/state_dict_saver.py(166): save",
        "torch/distributed/checkpoint/state_dict_saver.py(350): _save_state_dict",
        "torch/distributed/checkpoint/filesystem.py(700): write_data",
        "megatron/training/checkpointing.py(300): save_checkpoint",
        "transformers/trainer.py(2900): _save_checkpoint",
        "checkpoint_save",
        "save_checkpoint",
    ],
    "optimizer": ["Optimizer.step#AdamW.step", "Optimizer.step#EMAOptimizer.step"],
}

SILENT = [
    "",
    "cudaLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch",
    "hipExtModuleLaunchKernel",
    "cudaMemcpyAsync",
    "hipMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cudaMemsetAsync",
    "hipMemset",
    "cudaStreamWaitEvent",
    "hipStreamWaitEvent",
    "cudaEventQuery",
    "cudaEventRecord",
    "cudaDeviceGetStreamPriorityRange",
    "cudaPointerGetAttributes",
    "Activity Buffer Request",
    "Torch-Compiled Region: 0/0",
    "## Call CompiledFxGraph fyzmmikkhz7re2hlhxahq56a5f ##",
    "CompiledFunctionBackward",
    "TorchDynamo Cache Lookup",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper Prologue",
    "torch/_dynamo/eval_frame.py(738): _fn",
    "torch/_inductor/output_code.py(590): __call__",
    "torch/_inductor/runtime/triton_heuristics.py(1242): run",
    "triton/runtime/jit.py(709): run",
    "triton/compiler/compiler.py(487): launch_metadata",
    # Activation checkpointing saves no checkpoint.
    "torch/utils/checkpoint.py(343): checkpoint",
    "torch/utils/checkpoint.py(1500): recompute_fn",
    "torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py(144): forward",
    "CheckpointFunction",
    "CheckpointFunctionBackward",
    "nn.Module: CheckpointWrapper_0",
    "torch/autograd/function.py(35): save_for_backward",
    "torch/serialization.py(1500): load",
    "megatron/training/checkpointing.py(900): load_checkpoint",
    "Optimizer.zero_grad#SGD.zero_grad",
    "_collect_type_vars",
    "typing_extensions.py(3178): _collect_type_vars",
    "<built-in function compile>",
    "aten::to",
    "aten::copy_",
    "## wait_sparse_data_dist ##",
    "ProfilerStep#12",
    "train.py(12): main",
]


@pytest.mark.parametrize(("name", "cause"), [(name, cause) for cause, names in NAMES.items() for name in names])
def test_host_cause(name: str, cause: str) -> None:
    assert host_cause(name) == cause
    assert is_loader(name) is (cause == "data_loader")


@pytest.mark.parametrize("name", SILENT)
def test_no_cause(name: str) -> None:
    assert host_cause(name) is None
    assert not is_loader(name)


@pytest.mark.parametrize("row", HOST_PATTERNS, ids=lambda row: f"{row.cause}:{row.example[:30]}")
def test_each_row_decides_its_own_example(row: HostPattern) -> None:
    assert re.search(row.pattern, row.example)
    assert host_cause(row.example) == row.cause


def test_every_cause_has_literal_names() -> None:
    assert {row.cause for row in HOST_PATTERNS} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ProfilerStep#12", 12),
        ("ProfilerStep#0", 0),
        ("ProfilerStep#", None),
        ("ProfilerStep#12x", None),
        ("my ProfilerStep#12", None),
        ("ProfilerStep", None),
    ],
)
def test_step_number(name: str, number: int | None) -> None:
    assert step_number(name) == number


@pytest.mark.parametrize(
    ("frame", "user"),
    [
        ("train_ddp.py(41): train_step", True),
        ("/home/me/project/train.py(7): <module>", True),
        ("moca/library/profiling/profile.py(80): run", True),
        ("profile.py(3): main", True),
        ("transformers/models/bert/modeling_bert.py(120): forward", True),
        ("vllm/v1/worker/gpu_model_runner.py(2500): execute_model", True),
        ("torch/nn/modules/module.py(1501): _call_impl", False),
        ("torch/optim/adamw.py(180): step", False),
        ("threading.py(637): wait", False),
        ("multiprocessing/process.py(314): _bootstrap", False),
        ("typing_extensions.py(3178): _collect_type_vars", False),
        ("numpy/_core/fromnumeric.py(10): _wrapreduction", False),
        ("/opt/conda/lib/python3.11/site-packages/somelib/x.py(1): f", False),
        ("/usr/lib/python3.10/json/decoder.py(300): decode", False),
        ("/tmp/torchinductor_root/ob/cobhwrc24.py(132): call", False),
        ("<built-in method item of Tensor object at 0x7ce27810c0a0>", False),
        ("<frozen importlib._bootstrap>(1000): _find_and_load", False),
        ("<string>(2): __init__", False),
        ("nn.Module: Linear_0", False),
        ("aten::mm", False),
        ("", False),
    ],
)
def test_source_line(frame: str, user: bool) -> None:
    assert source_line(frame) is user
