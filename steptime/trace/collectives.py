"""Names of communication -> leaf ids of slice ``exposed_comm``: what kind of collective a text names.

The same collective is called ``all_gather_into_tensor`` by torch.distributed, ``_allgather_base`` in a trace's
metadata, ``nccl:_all_gather_base`` by the host annotation and ``ncclDevKernel_AllGather_RING_LL`` on the device.
"""

from __future__ import annotations

import re

from steptime.trace.kernels import FAMILIES, FAMILY_CODE, kernel_family

#: The kind that a name without its prefix starts with, letters only. Order matters: longer words before their parts.
#: Sources: torch/csrc/distributed/c10d (OpType, ProcessGroupNCCL, ProcessGroupGloo), nccl/src/device.
_KINDS: tuple[tuple[str, str], ...] = (
    ("allreducebarrier", "barrier"),
    ("allreduce", "allreduce"),
    ("sparseallreduce", "allreduce"),
    ("allgather", "allgather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("barrier", "barrier"),
    ("monitoredbarrier", "barrier"),
    ("sendrecv", "p2p_transfer"),
    ("send", "p2p_transfer"),
    ("recv", "p2p_transfer"),
    ("isend", "p2p_transfer"),
    ("irecv", "p2p_transfer"),
    ("batchisendirecv", "p2p_transfer"),
    ("reduce", "reduce"),
    ("gather", "reduce"),
    ("scatter", "reduce"),
)

#: What may follow the kind in a bare name, letters only; anything else is not a collective's name.
_SUFFIX = re.compile(r"(?:base|single|coalesced|intotensor|tensor|oop|vd?|anysource|object|list|async|out)*")

_KERNEL = re.compile(r"(?:void )?(?:nccl(?:Symk?)?(?:Dev)?Kernel|mscclKernel)_?")
_NAMESPACE = re.compile(
    r"(?:(?:nccl|ncclx|gloo|mpi|ucc|xccl|hccl|rccl):|(?:c10d|_?c10d_functional(?:_autograd)?)::)(?!:)"
)
_ONE_KERNEL = re.compile(r"(?:symm_mem::)?_?(?:multimem|one_shot|two_shot)_(?!copy)")

#: Device kernels that communicate outside NCCL, by a part of the name in lower case without underscores. Order matters.
_DEVICE: tuple[tuple[str, str], ...] = (
    ("memcpyptop", "p2p_transfer"),
    ("memcpypeer", "p2p_transfer"),
    ("deepep::", "all_to_all"),
    ("hybridep::", "all_to_all"),
    ("epdispatch", "all_to_all"),
    ("epcombine", "all_to_all"),
    ("pplx::", "all_to_all"),
    ("kuserbufferspush", "p2p_transfer"),
    ("kuserbufferspull", "p2p_transfer"),
    ("rrrs", "reduce_scatter"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "allgather"),
    ("alltoall", "all_to_all"),
    ("crossdevicereduce", "allreduce"),
    ("allreduce", "allreduce"),
    ("userbuffersfp16suminplace", "allreduce"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("devicesynckernel", "barrier"),
    ("spinkernel", "barrier"),
    ("putsignal", "p2p_transfer"),
    ("waitsignal", "p2p_transfer"),
)

# Wrappers of inference engines: the op's own name is that of torch.distributed.
_ENGINE = re.compile(r"(?:vllm|sglang|trtllm|_C_custom_ar)::")

# Annotations that hold more than the communication they name.
_ANNOTATION = ("#", "FSDP", "FullyShardedDataParallel")

_HOST_TRANSPORTS = ("gloo:", "mpi:", "ucc:")


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def _kind(key: str) -> str | None:
    return next((leaf for word, leaf in _KINDS if key.startswith(word)), None)


def _bare(text: str) -> str | None:
    """Leaf of a `Collective name` value or a function of torch.distributed; the whole text must be that name."""
    if not re.fullmatch(r"\w+", text):
        return None
    key = _letters(text)
    word = next((word for word, _ in _KINDS if key.startswith(word)), None)
    if word is None or not _SUFFIX.fullmatch(key, len(word)):
        return None
    return _kind(key)


def collective_leaf(text: str) -> str | None:
    """Leaf id of slice ``exposed_comm`` for a collective's name, host span or kernel.

    None where the text names no communication (also waits, and FSDP's own annotations, which hold copies too);
    ``other_comm`` for communication of a kind that the name does not tell, such as ``ncclDevKernel_Generic``.
    """
    name = text.strip()
    if name.startswith(_ANNOTATION):
        return None
    match = _KERNEL.match(name)
    if match:
        return _kind(_letters(name[match.end() :].partition("_")[0].partition("(")[0])) or "other_comm"
    match = _NAMESPACE.match(name)
    if match:
        key = _letters(name[match.end() :])
        return None if key.startswith("wait") else _kind(key) or ("other_comm" if "::" not in name else None)
    match = _ONE_KERNEL.match(name) or _ENGINE.match(name)
    return _bare(name[match.end() :] if match else name) or _device_leaf(name)


def _device_leaf(name: str) -> str | None:
    lower = name.lower()
    family = kernel_family(name)
    if not lower.startswith("memcpy") and (family is None or FAMILIES[FAMILY_CODE[family]].leaf != "comm"):
        return None
    key = re.sub(r"[_ ]", "", lower)
    leaf = next((leaf for word, leaf in _DEVICE if word in key), None)
    return leaf if leaf is not None or lower.startswith("memcpy") else "other_comm"


def is_host_communication(name: str) -> bool:
    """Whether a host span is communication done by the CPU itself (gloo, MPI, UCC), on whatever thread it runs."""
    return name.startswith(_HOST_TRANSPORTS)
