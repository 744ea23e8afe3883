"""What to do about a suspect in the next ten minutes, by cause; who and which GPU are filled in by `move`."""

from __future__ import annotations

from steptime.model.on_call import Suspect

_MOVES: dict[str, str] = {
    "slower kernels": "Check clocks, power and temperature of {who}: nvidia-smi{gpu} -q -d "
    "PERFORMANCE,CLOCK,TEMPERATURE; if it is throttled or has "
    "Xid or ECC errors in dmesg, drain the host and restart the job without it.",
    "more work": "Compare the batch of {who} with another rank's: longer sequences, more samples, or more tokens to "
    "its experts; the input's sharding or packing is where to even it out.",
    "slow link": "Check the links of {who}: ibstat and its error counters, nvidia-smi nvlink -e, and NCCL_DEBUG=INFO "
    "for a fall back to sockets; a host with a bad port is drained.",
    "not recorded": "Look at {who}: its trace is not there, so why it is late is not known; see what to capture next.",
    "not separable": "Look at {who} with top and nvidia-smi first: what makes it late can't be told from the traces.",
    "data_loader": "Look at the data loader of {who}: the storage it reads (iostat -x 1, the file system's own "
    "latency), its workers (top: at 100 % or gone?), and free memory.",
    "python": "Look at what Python does between the operations on {who}: py-spy dump --pid PID a few times; garbage "
    "collection, logging, a blocking write or a checkpoint are the usual ones.",
    "gc": "Garbage collection stops {who}: call gc.freeze() after set-up and gc.collect() every some hundred steps "
    "with gc.disable(), at the same step on all ranks.",
    "checkpoint": "A checkpoint holds up {who}: look at the storage that it writes to, and whether it is written in "
    "the background.",
    "allocator": "Memory is allocated and freed during the steps of {who}: nvidia-smi shows how full it is; shapes "
    "that change, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, are where to look.",
    "compile": "Kernels are compiled or loaded during the steps of {who}: look for recompilations "
    "(TORCH_LOGS=recompiles) and for shapes that change.",
    "sync": "The host of {who} waits for the device in the middle of the step: look for .item(), .cpu() and prints "
    "that came with the last change.",
    "launch_bound": "The host of {who} launches kernels too slowly: look for other load on its CPUs (top), a lowered "
    "CPU clock, and threads that compete (OMP_NUM_THREADS).",
}
_COMM = (
    "Communication takes longer on {who}: check the links (ibstat, nvidia-smi nvlink -e), other jobs on the same "
    "switches, and NCCL_DEBUG=INFO for a changed ring or a fall back to sockets."
)
_KERNELS = (
    "Kernels take longer on {who}: check the clocks (nvidia-smi{gpu} -q -d PERFORMANCE,CLOCK), and what changed in the "
    "code, the batch and the versions since the baseline."
)
_ELSE = "Ask what changed on {who} when it became slow: code, data, versions, the host's other load."


def who(suspect: Suspect) -> str:
    """The ranks and the host that are meant, as words."""
    place = f" on host {suspect.host}" if suspect.host else ""
    if not suspect.ranks:
        return "all ranks"
    if len(suspect.ranks) == 1:
        return f"rank {suspect.ranks[0]}{place}"
    return f"ranks {rank_list(suspect.ranks)}{place}"


def rank_list(ranks: list[int]) -> str:
    """``0-3, 7``; more than eight runs are cut."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:8])
    return shown + (f" and {len(runs) - 8} more" if len(runs) > 8 else "")


def move(suspect: Suspect) -> str:
    """The first thing to do about it."""
    text = _MOVES.get(suspect.cause)
    if text is None:
        slice_id = (suspect.leaf or "").partition("/")[0]
        text = {"exposed_comm": _COMM, "kernels": _KERNELS}.get(slice_id, _ELSE)
    text = text.replace("{gpu}", "" if suspect.device is None else f" -i {suspect.device}")
    # A host's name may hold braces: it is put in last, and never read as a format.
    return text.replace("{who}", who(suspect))
