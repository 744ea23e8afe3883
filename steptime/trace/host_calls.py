"""Names of host spans (ops, annotations, runtime calls, Python frames) -> what they do to a device that waits.

Only names that are evidence for one cause are here: launches, queries, stream-ordered waits (`cudaStreamWaitEvent`)
and asynchronous copies are none, and neither is a call that merely runs compiled code.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple


class HostPattern(NamedTuple):
    """One row: a regex searched in the name, the cause it tells, and a real name that it is there for."""

    cause: str
    pattern: str
    example: str


# ABI variants that some builds of CUPTI and roctracer leave in a name.
_VARIANT = r"(?:_v\d+|_ptsz|_ptds|_spt)*$"

#: Order matters: a rare precise name before the wide ones. Causes: ``data_loader``, ``allocator``, ``sync`` (the call
#: that blocks), ``sync_op`` (the op that asked for it), ``compile``, ``gc``, ``checkpoint``, ``optimizer``.
#: Sources: the CUDA runtime, driver and HIP API references; torch/utils/data, torch/optim, torch/serialization.py,
#: torch/distributed/checkpoint, torch/_dynamo/utils.py (`dynamo_timed`), torchrec's train pipeline.
HOST_PATTERNS: tuple[HostPattern, ...] = (
    HostPattern("gc", r"^steptime::gc\b|^gc \(dynamo_timed\)$", "steptime::gc"),
    HostPattern("gc", r"^<built-in function collect>$|(?:^|/)gc\.collect\b", "<built-in function collect>"),
    HostPattern("checkpoint", r"^steptime::checkpoint\b", "steptime::checkpoint"),
    HostPattern(
        "checkpoint", r"torch/serialization\.py\(\d+\): _?(?:legacy_)?save$", "torch/serialization.py(944): save"
    ),
    HostPattern(
        "checkpoint",
        r"torch/distributed/checkpoint/\S+\.py\(\d+\): \w*(?:save|write)\w*$",
        "torch/distributed/checkpoint/state_dict_saver.py(166): save",
    ),
    HostPattern(
        "checkpoint",
        r"(?i)(?:^|[^a-z])(?:_?(?:async_)?save_(?:\w+_)?checkpoint|checkpoint_save|save_to_checkpoint|dump_checkpoint)\b",
        "megatron/training/checkpointing.py(300): save_checkpoint",
    ),
    HostPattern(
        "data_loader",
        r"^enumerate\(DataLoader\)#",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ),
    HostPattern(
        "data_loader",
        r"^(?:## )?(?:wait_for_(?:training_)?batch|load_batch|data_load|train_dataloader_next)(?: ##)?$"
        r"|\.(?:train|val)_dataloader_next$",
        "## wait_for_training_batch ##",
    ),
    HostPattern(
        "data_loader",
        r"(?:^|/)(?:torch/utils/data|torchdata|webdataset|nvidia/dali|streaming/base)/\S+\.py\(\d+\): ",
        "torch/utils/data/dataloader.py(703): __next__",
    ),
    HostPattern("optimizer", r"^Optimizer\.step#", "Optimizer.step#AdamW.step"),
    HostPattern(
        "allocator",
        r"^(?:cuda|hip)(?:Ext)?(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister)\w*$",
        "cudaMalloc",
    ),
    HostPattern(
        "allocator",
        r"^(?:cu|hip)Mem(?:Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Map|Unmap|SetAccess|AddressReserve|"
        r"AddressFree|Release|RetainAllocationHandle|PoolCreate|PoolDestroy|PoolTrimTo)\w*$",
        "cuMemSetAccess",
    ),
    HostPattern("allocator", r"^cudaMemPool(?:Create|Destroy|TrimTo)\w*$", "cudaMemPoolTrimTo"),
    HostPattern(
        "sync",
        r"^(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize" + _VARIANT,
        "cudaStreamSynchronize",
    ),
    HostPattern(
        "sync",
        r"^(?:cuda|hip)Memcpy(?:2D|3D)?(?:ToSymbol|FromSymbol|ToArray|FromArray|Peer|DtoH|HtoD|DtoD|WithStream)?"
        + _VARIANT,
        "hipMemcpyWithStream",
    ),
    HostPattern("sync", r"^cuMemcpy(?:2D|3D)?(?:DtoH|HtoD|DtoD|Peer)?" + _VARIANT, "cuMemcpyDtoH_v2"),
    HostPattern(
        "sync",
        r"^<built-in function _cuda_synchronize>$|^<built-in method synchronize of torch\.|"
        r"torch/cuda/(?:__init__|streams)\.py\(\d+\): synchronize$",
        "<built-in function _cuda_synchronize>",
    ),
    HostPattern(
        "sync_op",
        r"^aten::(?:item|_local_scalar_dense|nonzero|nonzero_numpy|is_nonzero|_?unique\w*|equal|masked_select|allclose)$",
        "aten::_local_scalar_dense",
    ),
    HostPattern(
        "sync_op",
        r"^<built-in method (?:item|nonzero|tolist|cpu|unique|__bool__) of (?:Tensor|Parameter) object",
        "<built-in method item of Tensor object at 0x7ce27810c0a0>",
    ),
    HostPattern("compile", r"\(dynamo_timed\)$|^do_bench|^_CALLABLE$", "_compile.compile_inner (dynamo_timed)"),
    HostPattern(
        "compile",
        r"^(?:cu|hip)(?:Module|Library)Load\w*$|^cuLink(?:Create|Add|Complete)\w*$|^(?:nvrtc|hiprtc|nvJitLink)\w+$",
        "cuModuleLoadData",
    ),
    HostPattern(
        "compile",
        r"^Lazy Function Loading$|^Runtime Triggered Module Loading$|^cu(?:Module|Library)GetFunction$",
        "Lazy Function Loading",
    ),
    HostPattern(
        "compile",
        r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_transformation)\.py\(\d+\): ",
        "torch/_dynamo/convert_frame.py(1100): _compile",
    ),
    HostPattern(
        "compile",
        r"torch/_inductor/(?:compile_fx|graph|scheduler|select_algorithm|async_compile|codecache|lowering)\.py\(\d+\): "
        r"|torch/_inductor/codegen/",
        "torch/_inductor/compile_fx.py(700): _compile_fx_inner",
    ),
    HostPattern(
        "compile",
        r"torch/_inductor/runtime/\w+\.py\(\d+\): (?:benchmark\w*|autotune\w*|bench|\w*precompile\w*|"
        r"coordinate_descent\w*|do_bench\w*)$",
        "torch/_inductor/runtime/triton_heuristics.py(1050): benchmark_all_configs",
    ),
    HostPattern(
        "compile",
        r"triton/(?:compiler/compiler|runtime/jit)\.py\(\d+\): (?:compile|_do_compile|_init_handles|make_\w+|"
        r"ast_to_ttir)$|triton/runtime/autotuner\.py\(\d+\): (?:_bench|benchmark)$|triton/testing\.py\(\d+\): do_bench",
        "triton/compiler/compiler.py(444): _init_handles",
    ),
    HostPattern(
        "compile",
        r"flashinfer/autotuner\.py\(\d+\): \w*profile_\w+$|torch/utils/cpp_extension\.py\(\d+\): ",
        "flashinfer/autotuner.py(600): _profile_single_kernel",
    ),
)

_COMPILED = tuple((row.cause, re.compile(row.pattern)) for row in HOST_PATTERNS)


def host_cause(name: str) -> str | None:
    """Cause that a host span's name is evidence for (see `HOST_PATTERNS`); None for all others."""
    return next((cause for cause, regex in _COMPILED if regex.search(name)), None)


def is_loader(name: str) -> bool:
    """Whether the span waits for, or makes, the next batch."""
    return host_cause(name) == "data_loader"


_STEP = re.compile(r"ProfilerStep#(\d+)")


def step_number(name: str) -> int | None:
    """12 for ``ProfilerStep#12``, None for anything else."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


_FRAME = re.compile(r"(.+?)\(\d+\): ")
_FOREIGN = re.compile(r"site-packages/|dist-packages/|/lib/python3|torchinductor_|^<|<eval_with_key>")

#: Top-level packages whose frames are not the user's: the framework, what it is made of, and plain infrastructure.
#: Model and trainer libraries (transformers, megatron, vllm) count as user code: their lines can be acted on.
_LIBRARIES = frozenset(
    ("torch", "functorch", "torchgen", "torchvision", "torchaudio", "torchdata", "triton", "numpy", "scipy", "pandas")
    + ("PIL", "cv2", "tqdm", "typing_extensions", "sympy", "networkx", "jinja2", "fsspec", "pyarrow", "packaging")
    + ("apex", "transformer_engine", "flash_attn", "flashinfer", "xformers", "fbgemm_gpu", "cupy", "numba", "einops")
)

# Kineto cuts the longest entry of sys.path off a file's name, so the standard library shows up as "threading.py". These
# of its modules are also likely names of the user's own scripts.
_STDLIB = frozenset(sys.stdlib_module_names) - {"test", "profile", "trace", "code", "cmd", "this"}
_NOT_USER = _LIBRARIES | _STDLIB


def source_line(frame: str) -> bool:
    """Whether a Python frame (``train.py(12): step``) is user code, not torch, the standard library or a built-in."""
    match = _FRAME.match(frame)
    if match is None or _FOREIGN.search(frame):
        return False
    top = match.group(1).lstrip("/").partition("/")[0]
    return top.removesuffix(".py") not in _NOT_USER
