"""Writes one lane's program: ops with their kernels, collectives, copies, syncs and annotations, with their numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from steptime.simulate.catalog import Gpu
from steptime.simulate.effects import Effects
from steptime.simulate.plan import (
    BACKWARD,
    COMPUTE_STREAM,
    F64,
    I64,
    MAIN,
    Close,
    Exchange,
    Group,
    Json,
    Kernel,
    Lane,
    Launch,
    Mask,
    Open,
    Pause,
    Record,
    Span,
    Sync,
)
from steptime.simulate.scenario import Scenario
from steptime.simulate.transformer import BYTES, TYPES, Rows, Work

#: A kernel takes at least this long, ns.
LEAST_NS = 2_000.0
#: Share of a matmul's rate that is left when a dimension does not divide into 16 bytes (cuBLAS falls back).
MISALIGNED = 0.45

#: Collective -> annotation, name inside the current and the older NCCL kernel, leaf.
COLLECTIVES = {
    "allreduce": ("nccl:all_reduce", "AllReduce_Sum_bf16_RING_LL", "AllReduce_RING_LL_Sum_bf16", "allreduce"),
    "_allgather_base": ("nccl:_all_gather_base", "AllGather_RING_LL", "AllGather_RING_LL_Sum_int8_t", "allgather"),
    "_reduce_scatter_base": (
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_bf16_RING_LL",
        "ReduceScatter_RING_LL_Sum_bf16",
        "reduce_scatter",
    ),
    "all_to_all": ("nccl:all_to_all", "SendRecv", "SendRecv_RING_SIMPLE_Sum_int8_t", "all_to_all"),
    "broadcast": ("nccl:broadcast", "Broadcast_RING_LL", "Broadcast_RING_LL_Sum_int8_t", "broadcast"),
    "ring": ("nccl:coalesced", "SendRecv", "SendRecv_RING_SIMPLE_Sum_int8_t", "p2p_transfer"),
    "send": ("nccl:send", "SendRecv", "SendRecv_RING_SIMPLE_Sum_int8_t", "p2p_transfer"),
    "recv": ("nccl:recv", "SendRecv", "SendRecv_RING_SIMPLE_Sum_int8_t", "p2p_transfer"),
}


def token(kind: str, *parts: object) -> str:
    """A placeholder that the writer fills in for each rank."""
    return f"@{kind}:{':'.join(map(str, parts))}@"


class Program:
    """The program of one lane under construction. step: index of the current step; now: which micro-batch."""

    def __init__(self, lane: Lane, scenario: Scenario, effects: Effects, gpu: Gpu) -> None:
        self.lane = lane
        self.scenario = scenario
        self.effects = effects
        self.gpu = gpu
        self.thread = MAIN
        self.step = 0
        self.micro_batch = 0
        self.sequence = 0
        self.pending: set[int] = set()
        self.rings: deque[int] = deque()
        self.last_compute: tuple[int, ...] = ()
        self._external = 0
        self._correlation = 100
        self._counts: dict[tuple[object, ...], int] = {}
        self._numbers: dict[str, int] = {}
        self._graph: list[Kernel] | None = None
        self.full = scenario.training.detail == "full"

    # Host events

    def _key(self, *parts: object) -> tuple[object, ...]:
        """A name for this occurrence that stays the same if the job changes elsewhere."""
        name = (self.lane.stage, self.step, self.micro_batch, *parts)
        self._counts[name] = self._counts.get(name, 0) + 1
        return (*name, self._counts[name])

    def _next_external(self) -> int:
        self._external += 1
        return self._external

    def span_of(self, cat: str, name: str, args: Json | None = None) -> Span:
        """A host event of the current thread with an id of its own."""
        return Span(cat, name, self.thread, {"Record function id": 0} | (args or {}), self._next_external())

    @contextmanager
    def span(self, cat: str, name: str, args: Json | None = None) -> Iterator[Span]:
        """Everything inside happens within a host event; inside a CUDA graph nothing is recorded on the host."""
        made = self.span_of(cat, name, args)
        if self._graph is not None:
            yield made
            return
        self.lane.program.append(Open(made))
        yield made
        self.lane.program.append(Close(made))

    @contextmanager
    def node(self, name: str, sequence: int) -> Iterator[None]:
        """One node of the backward pass."""
        args: Json = {"Sequence number": sequence, "Fwd thread id": 1}
        with self.span("cpu_op", f"autograd::engine::evaluate_function: {name}", dict(args)):
            if self.full:
                with self.span("cpu_op", name, dict(args)):
                    yield
            else:
                yield

    def call(self, name: str, external: int | None = None) -> Span:
        """A call into the runtime with a correlation of its own."""
        self._correlation += 1
        cat = "cuda_runtime" if name.startswith("cuda") else "cuda_driver"
        return Span(cat, name, self.thread, {"cbid": 211}, external, self._correlation)

    def pause(self, ns: float | F64, cause: str, what: str, span: Span | None = None) -> None:
        """The host does `cause` for a while."""
        if np.any(np.asarray(ns) > 0):
            self.lane.program.append(Pause(ns, cause, self._key(cause, what), span))

    def sync(self, call: str, stream: int | None, present: Mask | None = None, cause: str = "sync") -> None:
        """The host waits for a stream, or for the device."""
        self.lane.program.append(Sync(self.call(call), stream, present, cause))

    def record(self, on: bool, hold_ns: I64 | None = None) -> None:
        """Recording starts or stops."""
        self.lane.program.append(Record(on, hold_ns))

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Everything inside is one CUDA graph: kernels without ops, all started by one call."""
        self._graph = []
        yield
        kernels, self._graph = self._graph, None
        launch = self.call("cudaGraphLaunch")
        for at, kernel in enumerate(kernels):
            kernel.external_id, kernel.correlation = None, launch.correlation or 0
            kernel.args |= {"graph id": 1, "graph node id": at + 1}
            self.lane.program.append(Launch(kernel, None if at else launch, None))

    # Device work

    def _kernel(self, kernel: Kernel, op: Span, call: str, *, inside: bool = False) -> Kernel:
        """Launch a kernel from an op that spans just the launch, or `inside` one that is already open."""
        if self._graph is not None:
            self._graph.append(kernel)
            self.lane.kernels.append(kernel)
            return kernel
        launch = self.call(call, op.external_id)
        kernel.external_id, kernel.correlation = launch.external_id, launch.correlation or 0
        self.lane.kernels.append(kernel)
        self.lane.program.append(Launch(kernel, launch, None if inside else op))
        return kernel

    def _load(self, work: Work) -> F64 | None:
        table = self.effects.tokens if work.of == "tokens" else self.effects.experts
        load = table[self.lane.ranks, self.step, self.micro_batch]
        if work.of == "experts":
            load = load * self.effects.tokens[self.lane.ranks, self.step, self.micro_batch]
        if not work.power or np.all(load == 1.0):
            return None
        result: F64 = load**work.power
        return result

    def _dims(self, dims: object, uniform: bool) -> object:
        if isinstance(dims, Rows):
            if uniform:
                return dims.count
            return token("N", dims.of, self.step, self.micro_batch, dims.count)
        if isinstance(dims, tuple):
            return [self._dims(part, uniform) for part in dims]
        return dims

    def base_ns(self, work: Work) -> float:
        """What a kernel takes at the set efficiencies: the slower of computing and moving."""
        cluster = self.scenario.cluster
        share = cluster.attention_share if work.share == "attention" else cluster.matmul_share
        if work.leaf == "matmul" and _misaligned(work):
            share *= MISALIGNED
        peak = self.gpu.peak_flops.get(work.rate) or self.gpu.peak_flops["fp16"]
        computing = work.hfu_flops / (peak * share) if work.hfu_flops else 0.0
        moving = work.nbytes / (self.gpu.memory_bytes_per_s * cluster.memory_share)
        return max(max(computing, moving) * 1e9, LEAST_NS)

    def work(self, work: Work, phase: str, *, again: bool = False, numbered: bool = False) -> int:
        """One op with its kernel on the compute stream; returns the kernel's index.

        again: recomputation. numbered: a forward op, with an autograd sequence number.
        """
        load = self._load(work)
        args: Json = {}
        if numbered or again:
            self.sequence += 1
            args |= {"Sequence number": self.sequence, "Fwd thread id": 0}
        if self.scenario.recording.shapes:
            args |= {"Input Dims": self._dims(work.dims, load is None), "Input type": list(work.types)}
            if work.concrete:
                args["Concrete Inputs"] = list(work.concrete)
        op = self.span_of("cpu_op", work.op, args)
        waits = set(self.pending)
        self.pending.clear()
        if work.joins and self.rings:
            waits.add(self.rings.popleft())
        kernel = Kernel(
            index=len(self.lane.kernels),
            name=work.kernel,
            stream=COMPUTE_STREAM,
            base_ns=self.base_ns(work),
            leaf="recompute/recompute" if again else f"kernels/{work.leaf}",
            step=self.step,
            key=self._key(phase, work.op),
            waits=tuple(sorted(waits)),
            flops=0 if again else work.flops,
            hfu_flops=work.hfu_flops,
            rate=work.rate,
            load=load,
            args=_grid(self.gpu, work),
        )
        self._kernel(kernel, op, "cudaLaunchKernel")
        self.last_compute = (kernel.index,)
        return kernel.index

    def copy(self, name: str, nbytes: int, present: Mask | None = None, op: str = "aten::copy_") -> int:
        """An asynchronous copy on the compute stream."""
        to_device = "HtoD" in name
        args: Json = {"bytes": nbytes, "memory bandwidth (GB/s)": 20.0}
        kernel = Kernel(
            index=len(self.lane.kernels),
            name=name,
            stream=COMPUTE_STREAM,
            base_ns=1_500.0 + nbytes / 25e9 * 1e9,
            leaf="host/h2d_copy" if to_device else "host/d2h_copy",
            step=self.step,
            key=self._key("copy", name),
            present=present,
            category="gpu_memcpy",
            args=args,
        )
        self._kernel(kernel, self.span_of("cpu_op", op), "cudaMemcpyAsync")
        return kernel.index

    def item(self, present: Mask | None) -> None:
        """`.item()` on some ranks: a copy to the host and a wait for it. Absent ranks skip all of it."""
        everyone = present is None or bool(present.all())
        self.copy("Memcpy DtoH (Device -> Pageable)", 4, None if everyone else present, "aten::_local_scalar_dense")
        self.sync("cudaStreamSynchronize", COMPUTE_STREAM, None if everyone else present)

    # Exchanges

    def exchange(
        self,
        exchange: Exchange,
        stream: int,
        *,
        name: str | None = None,
        waits: tuple[int, ...] | None = None,
        asynchronous: bool = False,
    ) -> int:
        """One side of an exchange on its own stream; returns the kernel's index.

        It waits for the compute launched so far (or `waits`); unless asynchronous, the next compute waits for it.
        name: of the collective where the kind does not tell it (send, recv).
        """
        kind = name or exchange.kind
        if exchange.sides == 1:
            group = exchange.group.name
            exchange.number = self._numbers[group] = self._numbers.get(group, 0) + 1
        annotation, current, older, leaf = COLLECTIVES[kind]
        legacy = self.scenario.recording.dialect == "integer"
        args = {} if legacy else self._collective_args(exchange, kind)
        bare = legacy or kind == "ring" or (kind in ("send", "recv") and not self.scenario.recording.p2p_metadata)
        if bare and not legacy:
            annotation = "nccl:coalesced"
        shown = f"ncclKernel_{older}(ncclDevComm*, unsigned long, ncclWork*)"
        if not legacy:
            shown = f"ncclDevKernel_{current}(ncclDevKernelArgsStorage<4096ul>)"
        host_args = {} if bare else args | {"Rank": token("R")}
        made = Kernel(
            index=len(self.lane.kernels),
            name=shown,
            stream=stream,
            base_ns=0.0,
            leaf=f"exposed_comm/{leaf}",
            step=self.step,
            key=self._key("comm", *exchange.key),
            waits=self.last_compute if waits is None else waits,
            exchange=exchange,
            args={"grid": [24, 1, 1], "block": [544, 1, 1]} | ({} if bare else args),
        )
        if kind == "ring" and not legacy and self.scenario.recording.p2p_metadata:
            peers = {way: token("X", exchange.group.description, step) for way, step in (("send", 1), ("recv", -1))}
            self._batched(made, [(way, self._message_args(exchange, way, peer)) for way, peer in peers.items()])
        elif self.scenario.recording.p2p_batched and kind in ("send", "recv"):
            self._batched(made, [(kind, host_args)])
        else:
            with (
                self.span("cpu_op", "record_param_comms", host_args) as outer,
                self.span("user_annotation", annotation),
            ):
                self._kernel(made, outer, "cudaLaunchKernelExC", inside=True)
        if not asynchronous:
            self.pending.add(made.index)
        return made.index

    def _batched(self, kernel: Kernel, messages: list[tuple[str, Json]]) -> None:
        """A batch: messages are registered with their metadata, then launched together without."""
        for kind, host_args in messages:
            with self.span("cpu_op", f"c10d::{kind}"), self.span("cpu_op", "record_param_comms", host_args):
                pass
        kernel.args = {key: kernel.args[key] for key in ("grid", "block")}
        with self.span("user_annotation", "nccl:coalesced") as outer:
            self._kernel(kernel, outer, "cudaLaunchKernelExC", inside=True)

    def _message_args(self, exchange: Exchange, way: str, peer: str) -> Json:
        """Of one message of a ring."""
        args = self._collective_args(exchange, "ring") | {"Collective name": way, "Rank": token("R")}
        return args | {"Dst Rank" if way == "send" else "Src Rank": peer}

    def _collective_args(self, exchange: Exchange, kind: str) -> Json:
        group: Group = exchange.group
        whole = max(int(exchange.nbytes) // BYTES[self.scenario.training.dtype], 1)
        part = max(whole // group.size, 1)
        sizes = {"_allgather_base": (part, whole), "_reduce_scatter_base": (whole, part)}.get(kind, (whole, whole))
        args: Json = {
            "Collective name": kind,
            "In msg nelems": sizes[0],
            "Out msg nelems": sizes[1],
            "Group size": group.size,
            "dtype": {"c10::BFloat16": "BFloat16", "c10::Half": "Half"}.get(
                TYPES[self.scenario.training.dtype], "Float"
            ),
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group.name,
            "Process Group Description": group.description,
            "Process Group Ranks": token("G", group.description),
        }
        if kind in ("send", "recv"):
            args["Dst Rank" if kind == "send" else "Src Rank"] = token("P", exchange.key[1], exchange.key[2])
        if self.scenario.recording.seq:
            args["Seq"] = exchange.number
        return args

    def backward_thread(self, on: bool) -> None:
        """The autograd thread takes over, or hands back."""
        self.thread = BACKWARD if on else MAIN


def _misaligned(work: Work) -> bool:
    """Whether a side of the two matrices is no multiple of 8; the number of experts in front is no side."""
    sides = [size for dims in work.dims[:2] if isinstance(dims, tuple) for size in dims[-2:]]
    return any(isinstance(size, int) and size % 8 for size in sides)


def _grid(gpu: Gpu, work: Work) -> Json:
    blocks = gpu.multiprocessors if work.leaf == "matmul" else 4 * gpu.multiprocessors
    return {"grid": [blocks, 1, 1], "block": [384 if work.leaf == "matmul" else 256, 1, 1]}
