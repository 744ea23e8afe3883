"""Where step time can go: the slices, the leaves that they split into, and the codes of leaves in arrays."""

from __future__ import annotations

from typing import NamedTuple


class Slice(NamedTuple):
    """A row of the report: one of the places where the step time goes."""

    id: str
    title: str
    meaning: str


SLICES: tuple[Slice, ...] = (
    Slice("kernels", "kernels", "computing on the device"),
    Slice("exposed_comm", "exposed communication", "collectives and copies between GPUs that nothing hides"),
    Slice("pipeline_bubble", "pipeline bubble", "waiting for other pipeline stages"),
    Slice("recompute", "recompute", "forward kernels run again for the backward pass"),
    Slice("stragglers", "stragglers", "waiting in a collective for a late rank"),
    Slice("host", "host", "device idle or copying because of what the host did"),
    Slice("unexplained", "unexplained", "device idle without evidence for a cause"),
)


class Leaf(NamedTuple):
    """A named cause. Every nanosecond of every step is productive or in exactly one leaf."""

    id: str
    slice: str
    title: str

    @property
    def key(self) -> str:
        """``"slice/leaf"``, the key of `StepTime.leaves_ns`."""
        return f"{self.slice}/{self.id}"


#: Order matters: it is the order of rows inside a slice, and the int code of a leaf is its index here.
LEAVES: tuple[Leaf, ...] = (
    Leaf("matmul", "kernels", "matrix multiplication and convolution"),
    Leaf("attention", "kernels", "attention"),
    Leaf("memory_bound", "kernels", "norms, elementwise, softmax, loss, embedding"),
    Leaf("optimizer", "kernels", "optimizer"),
    Leaf("precision", "kernels", "precision slower than the reference"),
    Leaf("comm_contention", "kernels", "slowed by communication on the same SMs"),
    Leaf("other_compute", "kernels", "other kernels"),
    Leaf("allreduce", "exposed_comm", "all-reduce"),
    Leaf("allgather", "exposed_comm", "all-gather"),
    Leaf("reduce_scatter", "exposed_comm", "reduce-scatter"),
    Leaf("all_to_all", "exposed_comm", "all-to-all"),
    Leaf("broadcast", "exposed_comm", "broadcast"),
    Leaf("reduce", "exposed_comm", "reduce, gather, scatter"),
    Leaf("barrier", "exposed_comm", "barrier"),
    Leaf("p2p_transfer", "exposed_comm", "send and receive, copies between GPUs"),
    Leaf("other_comm", "exposed_comm", "communication of unknown kind"),
    Leaf("warmup", "pipeline_bubble", "warm-up"),
    Leaf("steady", "pipeline_bubble", "steady phase"),
    Leaf("drain", "pipeline_bubble", "drain"),
    Leaf("stage_imbalance", "pipeline_bubble", "unequal stages"),
    Leaf("unsplit", "pipeline_bubble", "not separable"),
    Leaf("recompute", "recompute", "activation recompute"),
    Leaf("wait_for_rank", "stragglers", "wait for a late rank"),
    Leaf("data_loader", "host", "data loader"),
    Leaf("launch_bound", "host", "launching kernels too slowly"),
    Leaf("kernel_gap", "host", "gaps between queued kernels"),
    Leaf("sync", "host", "host-device synchronisation"),
    Leaf("allocator", "host", "device memory allocation"),
    Leaf("gc", "host", "Python garbage collection"),
    Leaf("compile", "host", "compilation, autotuning, lazy loading"),
    Leaf("checkpoint", "host", "checkpoint"),
    Leaf("h2d_copy", "host", "copies from the host"),
    Leaf("d2h_copy", "host", "copies to the host"),
    Leaf("python", "host", "Python between operations"),
    Leaf("profiler_overhead", "host", "the profiler's own cost"),
    Leaf("unexplained", "unexplained", "no evidence for any cause"),
    Leaf("queue_stalled", "unexplained", "work was queued, the device did not start it"),
    Leaf("capture_skew", "unexplained", "recordings started at different times"),
    Leaf("events_missing", "unexplained", "the profiler lost device events"),
)

LEAF_CODE: dict[str, int] = {leaf.key: code for code, leaf in enumerate(LEAVES)}
