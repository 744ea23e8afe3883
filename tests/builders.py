"""Build the Kineto trace of one rank in a few lines, so that a test can state its truth beside it.

    t = TraceBuilder(rank=0, world_size=2)
    t.step(5, at=0, for_=10_000)
    t.op("aten::mm", at=15, for_=20, shapes=[[64, 64], [64, 64]])
    t.kernel("gemm", at=100, for_=500, launch_at=20)
    t.write(tmp_path / "rank0.json.gz")

All times are microseconds after `TraceBuilder.origin_ns`; fractions are kept to the nanosecond. What comes out is
what Kineto writes (kineto_schema.md): launches and device events share a correlation and an ``ac2g`` flow, and carry
the ``External id`` of the innermost op around the launch. Events appear in the order of the calls. The builder knows
nothing of the analyser.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal

Micros = int | float
Json = dict[str, object]

#: 227 times 7,889,238 s: how Kineto rounds the start of the program (kineto_schema.md, section 2).
BASE_NS = 227 * 7_889_238_000_000_000
#: Absolute time of ``at=0``, epoch scale, so that a reader that goes through float64 microseconds is caught.
ORIGIN_NS = BASE_NS + 5_111_842_086_750_000

#: Categories of PyTorch up to 1.10 (kineto_schema.md, section 9).
LEGACY_CATEGORIES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "kernel": "Kernel",
    "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
COPY_KINDS = {
    "HtoD": "Memcpy HtoD ({host} -> Device)",
    "DtoH": "Memcpy DtoH (Device -> {host})",
    "DtoD": "Memcpy DtoD (Device -> Device)",
    "PtoP": "Memcpy PtoP (Device -> Device)",
}
#: Host op name -> (name inside an NCCL kernel, name of the annotation).
COLLECTIVES = {
    "allreduce": ("AllReduce_Sum_f32_RING_LL", "nccl:all_reduce"),
    "_allgather_base": ("AllGather_RING_LL", "nccl:_all_gather_base"),
    "_reduce_scatter_base": ("ReduceScatter_Sum_f32_RING_LL", "nccl:_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "nccl:all_to_all"),
    "broadcast": ("Broadcast_RING_LL", "nccl:broadcast"),
    "send": ("SendRecv", "nccl:send"),
    "recv": ("SendRecv", "nccl:recv"),
}


def to_ns(micros: Micros) -> int:
    """Microseconds to whole nanoseconds, through decimal text."""
    return int((Decimal(str(micros)) * 1000).to_integral_value())


@dataclass(slots=True)
class _Event:
    """One complete activity; times in ns after the origin."""

    cat: str
    name: str
    pid: int | str
    tid: int | str
    start: int
    dur: int
    args: Json
    correlation: int | None = None
    external_id: int | None = None  # set for ops and annotations, looked up for launches and device events

    @property
    def is_launch(self) -> bool:
        return self.cat in ("cuda_runtime", "cuda_driver")

    def encloses(self, other: _Event) -> bool:
        return self.tid == other.tid and self.start <= other.start and other.start + other.dur <= self.start + self.dur


@dataclass(kw_only=True)
class TraceBuilder:
    """A trace of one rank. Every method that adds something returns the builder.

    Threads are small numbers; thread n has the tid ``pid + n - 1``, and 1 is the main thread. `dialect` is
    ``"current"`` (2.4 and later), ``"integer"`` (1.12 to 2.3: whole absolute microseconds, no base) or ``"legacy"``
    (up to 1.10). With `devices` = 0 the rank has no GPU. `distributed_info` False leaves ``distributedInfo`` out;
    `bare_array` writes only the list of events. `extra` holds further top-level keys.
    """

    rank: int = 0
    world_size: int = 1
    dialect: Literal["current", "integer", "legacy"] = "current"
    devices: int = 1
    device_name: str = "Built GPU"
    backend: str = "nccl"
    distributed_info: bool = True
    bare_array: bool = False
    pid: int = 4000
    base_ns: int = BASE_NS
    origin_ns: int = ORIGIN_NS
    extra: Json = field(default_factory=dict)
    _events: list[_Event] = field(default_factory=list, init=False, repr=False)
    _raw: list[Json] = field(default_factory=list, init=False, repr=False)
    _correlation: int = field(default=100, init=False, repr=False)
    _external_id: int = field(default=0, init=False, repr=False)

    # Host

    def step(self, number: int, at: Micros, for_: Micros, thread: int = 1) -> TraceBuilder:
        """The mark ``ProfilerStep#number``."""
        return self.annotation(f"ProfilerStep#{number}", at, for_, thread)

    def annotation(self, name: str, at: Micros, for_: Micros, thread: int = 1) -> TraceBuilder:
        """A ``record_function`` span."""
        self._host("user_annotation", name, at, for_, thread, {"Record function id": 0})
        return self

    def loader(self, at: Micros, for_: Micros, thread: int = 1, *, workers: int = 0) -> TraceBuilder:
        """The main thread inside ``next()`` of a DataLoader with that many workers."""
        kind = "MultiProcessing" if workers else "SingleProcess"
        return self.annotation(f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__", at, for_, thread)

    def optimizer(self, at: Micros, for_: Micros, thread: int = 1, *, cls: str = "AdamW") -> TraceBuilder:
        """The span of ``optimizer.step()``."""
        return self.annotation(f"Optimizer.step#{cls}.step", at, for_, thread)

    def op(  # noqa: PLR0913  one keyword for each field of the format
        self,
        name: str,
        at: Micros,
        for_: Micros,
        thread: int = 1,
        *,
        seq: int | None = None,
        fwd_thread: int = 0,
        shapes: Sequence[object] | None = None,
        types: Sequence[str] | None = None,
        args: Json | None = None,
    ) -> TraceBuilder:
        """A ``cpu_op``. `seq` and `fwd_thread` are its autograd numbers (none without `seq`: grad mode off).

        A node of the backward pass has `fwd_thread` >= 1 and the name ``autograd::engine::evaluate_function: ...``.
        """
        all_args: Json = {"Record function id": 0}
        if seq is not None:
            all_args |= {"Sequence number": seq, "Fwd thread id": fwd_thread}
        if shapes is not None:
            all_args |= {"Input Dims": shapes, "Input type": list(types or ["float"] * len(shapes))}
        self._host("cpu_op", name, at, for_, thread, all_args | (args or {}))
        return self

    def runtime(self, name: str, at: Micros, for_: Micros, thread: int = 1) -> TraceBuilder:
        """A call into the CUDA runtime or driver that starts nothing on the device (or whose kernel was lost)."""
        self._launch(name, at, for_, thread)
        return self

    def frame(self, name: str, at: Micros, for_: Micros, thread: int = 1) -> TraceBuilder:
        """A Python frame, ``"train.py(33): step"``."""
        parent = self._innermost("python_function", at, for_, thread)
        number = 1 + sum(event.cat == "python_function" for event in self._events)
        args: Json = {"Python id": number, "Python parent id": parent.args["Python id"] if parent else None}
        self._host("python_function", name, at, for_, thread, args)
        return self

    def gloo(self, kind: str, at: Micros, for_: Micros, thread: int = 2, *, nelems: int = 1024) -> TraceBuilder:
        """A collective of a CPU-only rank: ``gloo:all_reduce`` on a worker thread."""
        args: Json = {"Record function id": 0, "Input Dims": [[nelems]], "Input type": ["float"]}
        self._host("user_annotation", f"gloo:{kind}", at, for_, thread, args)
        return self

    def overhead(self, name: str, at: Micros, for_: Micros) -> TraceBuilder:
        """The profiler's own work (``cat`` ``overhead``)."""
        self._add(_Event("overhead", name, -1, 0, to_ns(at), to_ns(for_), {}))
        return self

    # Device

    def kernel(  # noqa: PLR0913  one keyword for each field of the format
        self,
        name: str,
        at: Micros,
        for_: Micros,
        stream: int = 7,
        *,
        launch_at: Micros | None = None,
        launch_for: Micros = 5,
        thread: int = 1,
        device: int = 0,
        call: str = "cudaLaunchKernel",
        grid: Sequence[int] = (132, 1, 1),
        block: Sequence[int] = (256, 1, 1),
        args: Json | None = None,
    ) -> TraceBuilder:
        """A kernel; with `launch_at` also the call that launched it (without: the launch was not recorded)."""
        correlation = self._launch_if(call, launch_at, launch_for, thread)
        shape: Json = {"queued": 0, "registers per thread": 32, "grid": list(grid), "block": list(block)}
        self._device("kernel", name, (at, for_), (device, stream), correlation, shape | (args or {}))
        return self

    def copy(  # noqa: PLR0913  one keyword for each field of the format
        self,
        kind: str,
        at: Micros,
        for_: Micros,
        stream: int = 7,
        *,
        nbytes: int = 4096,
        pinned: bool = True,
        launch_at: Micros | None = None,
        launch_for: Micros = 5,
        thread: int = 1,
        device: int = 0,
        call: str = "cudaMemcpyAsync",
    ) -> TraceBuilder:
        """A copy of `kind` HtoD, DtoH, DtoD or PtoP."""
        correlation = self._launch_if(call, launch_at, launch_for, thread)
        name = COPY_KINDS[kind].format(host="Pinned" if pinned else "Pageable")
        self._device("gpu_memcpy", name, (at, for_), (device, stream), correlation, {"bytes": nbytes})
        return self

    def memset(  # noqa: PLR0913  one keyword for each field of the format
        self,
        at: Micros,
        for_: Micros,
        stream: int = 7,
        *,
        nbytes: int = 512,
        launch_at: Micros | None = None,
        launch_for: Micros = 5,
        thread: int = 1,
        device: int = 0,
    ) -> TraceBuilder:
        """A memset."""
        correlation = self._launch_if("cudaMemsetAsync", launch_at, launch_for, thread)
        self._device("gpu_memset", "Memset (Device)", (at, for_), (device, stream), correlation, {"bytes": nbytes})
        return self

    def graph_launch(  # noqa: PLR0913  one keyword for each field of the format
        self,
        at: Micros,
        for_: Micros,
        kernels: Iterable[tuple[str, Micros, Micros]],
        stream: int = 7,
        *,
        thread: int = 1,
        device: int = 0,
    ) -> TraceBuilder:
        """One ``cudaGraphLaunch`` and its kernels (name, at, for), all with one correlation."""
        correlation = self._launch("cudaGraphLaunch", at, for_, thread)
        for node, (name, start, length) in enumerate(kernels, start=1):
            args: Json = {"queued": 0, "grid": [132, 1, 1], "block": [256, 1, 1], "graph id": 1, "graph node id": node}
            self._device("kernel", name, (start, length), (device, stream), correlation, args)
        return self

    def collective(  # noqa: PLR0913  one keyword for each field of the format
        self,
        kind: str,
        at: Micros,
        for_: Micros,
        stream: int = 20,
        *,
        launch_at: Micros | None = None,
        launch_for: Micros = 5,
        thread: int = 1,
        device: int = 0,
        group: str = "0",
        description: str = "default_pg",
        ranks: Sequence[int] | None = None,
        nelems: int = 1024,
        out_nelems: int | None = None,
        seq: int | None = None,
        peer: int | None = None,
        metadata: bool = True,
    ) -> TraceBuilder:
        """An NCCL collective (`kind` is a key of `COLLECTIVES`): the kernel, and with `launch_at` its host side.

        The host side is ``record_param_comms`` around an annotation around the launch. `metadata` False leaves
        the arguments out, as before 2024 and in coalesced groups; `peer` is the other end of a send or recv.
        """
        kernel, annotation = COLLECTIVES[kind]
        members = list(range(self.world_size)) if ranks is None else list(ranks)
        args: Json = {
            "Collective name": kind,
            "In msg nelems": nelems,
            "Out msg nelems": nelems if out_nelems is None else out_nelems,
            "Group size": len(members),
            "dtype": "Float",
            "Process Group Name": group,
            "Process Group Description": description,
            "Process Group Ranks": str(members),
        }
        if seq is not None:
            args["Seq"] = seq
        if kind in ("send", "recv"):
            args["Dst Rank" if kind == "send" else "Src Rank"] = peer
        if not metadata:
            args = {}
        if launch_at is not None:
            self.op("record_param_comms", launch_at - 2, launch_for + 4, thread, args=args | {"Rank": self.rank})
            self.annotation(annotation, launch_at - 1, launch_for + 2, thread)
        correlation = self._launch_if("cudaLaunchKernelExC", launch_at, launch_for, thread)
        name = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
        shape: Json = {"queued": 0, "grid": [24, 1, 1], "block": [544, 1, 1]}
        self._device("kernel", name, (at, for_), (device, stream), correlation, shape | args)
        return self

    def sync_record(  # noqa: PLR0913  one keyword for each field of the format
        self,
        kind: str,
        at: Micros,
        for_: Micros,
        stream: int = 7,
        *,
        wait_on_stream: int | None = None,
        device: int = 0,
    ) -> TraceBuilder:
        """A ``cuda_sync`` record on a device row: it waits, it does no work."""
        args: Json = {"cuda_sync_kind": kind}
        if wait_on_stream is not None:
            args["wait_on_stream"] = wait_on_stream
        self._device("cuda_sync", kind, (at, for_), (device, stream), self._next_correlation(), args)
        return self

    def gpu_annotation(self, name: str, at: Micros, for_: Micros, stream: int = 7, device: int = 0) -> TraceBuilder:
        """The shadow of an annotation on a stream: never busy time."""
        self._add(_Event("gpu_user_annotation", name, device, stream, to_ns(at), to_ns(for_), {"External id": 1}))
        return self

    def raw(self, event: Json) -> TraceBuilder:
        """Any event, written as it is, after all others."""
        self._raw.append(event)
        return self

    # Output

    def at_ns(self, at: Micros) -> int:
        """The absolute time of `at`, ns since the epoch: what a reader must find."""
        return self.origin_ns + to_ns(at)

    def dumps(self) -> bytes:
        """The file as bytes of JSON."""
        events = ",\n".join(self._lines())
        if self.bare_array:
            return f"[\n{events}\n]\n".encode()
        head = json.dumps(self._head())[1:-1]
        tail = json.dumps({"traceName": f"/tmp/rank{self.rank}.json"})[1:-1]
        return f'{{{head}, "traceEvents": [\n{events}\n], {tail}}}\n'.encode()

    def write(self, path: Path) -> Path:
        """Write the file, compressed if its name ends in ``.gz``, and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self.dumps()
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        return path

    # Inside

    def _add(self, event: _Event) -> None:
        if event.dur < 0:
            raise ValueError(f"{event.name}: negative duration")
        if self.dialect != "current" and (event.start % 1000 or event.dur % 1000):
            raise ValueError(f"{event.name}: the {self.dialect} dialect has whole microseconds only")
        self._events.append(event)

    def _host(self, cat: str, name: str, at: Micros, for_: Micros, thread: int, args: Json) -> None:
        event = _Event(cat, name, self.pid, self.pid + thread - 1, to_ns(at), to_ns(for_), args)
        if cat in ("cpu_op", "user_annotation"):
            self._external_id += 1
            event.external_id = self._external_id
        self._add(event)

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(self, call: str, at: Micros, for_: Micros, thread: int) -> int:
        cat = "cuda_runtime" if call.startswith(("cuda", "hip")) else "cuda_driver"
        correlation = self._next_correlation()
        args: Json = {"cbid": 211, "correlation": correlation}
        tid = self.pid + thread - 1
        self._add(_Event(cat, call, self.pid, tid, to_ns(at), to_ns(for_), args, correlation))
        return correlation

    def _launch_if(self, call: str, at: Micros | None, for_: Micros, thread: int) -> int:
        return self._next_correlation() if at is None else self._launch(call, at, for_, thread)

    def _device(
        self, cat: str, name: str, span: tuple[Micros, Micros], place: tuple[int, int], correlation: int, args: Json
    ) -> None:
        device, stream = place
        at, for_ = span
        where: Json = {"device": device, "context": 1, "stream": stream, "correlation": correlation}
        self._add(_Event(cat, name, device, stream, to_ns(at), to_ns(for_), where | args, correlation))

    def _innermost(self, cat: str, at: Micros, for_: Micros, thread: int) -> _Event | None:
        probe = _Event(cat, "", self.pid, self.pid + thread - 1, to_ns(at), to_ns(for_), {})
        around = [event for event in self._events if event.cat == cat and event.encloses(probe)]
        return min(around, key=lambda event: event.dur, default=None)

    def _link(self) -> None:
        """Give launches, and what they launched, the External id of the innermost op around the launch."""
        op_of: dict[int, int] = {}
        ops = [event for event in self._events if event.cat == "cpu_op"]
        for launch in self._events:
            if launch.is_launch and launch.correlation is not None:
                around = [op for op in ops if op.encloses(launch)]
                if around:
                    op_of[launch.correlation] = min(around, key=lambda op: op.dur).external_id or 0
        for event in self._events:
            if event.correlation is not None and event.cat != "cuda_sync":
                event.external_id = op_of.get(event.correlation)

    def _lines(self) -> Iterable[str]:
        self._link()
        launches = {event.correlation: event for event in self._events if event.is_launch}
        for event in self._events:
            yield self._complete(event)
            launch = launches.get(event.correlation) if event.correlation is not None else None
            if event.cat in ("kernel", "gpu_memcpy", "gpu_memset"):
                yield self._flow("f", event)
                if launch is not None:
                    yield self._flow("s", launch)
        yield from self._marks()
        yield from (json.dumps(event) for event in self._raw)

    def _complete(self, event: _Event) -> str:
        legacy = self.dialect == "legacy"
        args = dict(event.args)
        if event.external_id is not None:
            own = event.cat in ("cpu_op", "user_annotation")
            key = "external id" if legacy and not own else "External id"
            args = {key: event.external_id, **args}
        cat = LEGACY_CATEGORIES.get(event.cat, event.cat) if legacy else event.cat
        front = json.dumps({"ph": "X", "cat": cat, "name": event.name, "pid": event.pid, "tid": self._tid(event)})
        times = f'"ts": {self._ts(event.start)}, "dur": {self._decimal(event.dur)}'
        return f'{front[:-1]}, {times}, "args": {json.dumps(args)}}}'

    def _tid(self, event: _Event) -> int | str:
        if self.dialect != "legacy":
            return event.tid
        return f"stream {event.tid}" if event.pid != self.pid else str(event.tid)

    def _flow(self, ph: str, event: _Event) -> str:
        cat, name = ("async", "launch") if self.dialect == "legacy" else ("ac2g", "ac2g")
        tid = self._tid(event) if ph == "f" else event.tid
        front = json.dumps({"ph": ph, "id": event.correlation, "pid": event.pid, "tid": tid})
        back = json.dumps({"cat": cat, "name": name} | ({"bp": "e"} if ph == "f" else {}))
        return f'{front[:-1]}, "ts": {self._ts(event.start)}, {back[1:]}'

    def _marks(self) -> Iterable[str]:
        """Names of processes and the recording window."""
        start = min((event.start for event in self._events), default=0)
        end = max((event.start + event.dur for event in self._events), default=0)
        ts = self._ts(start)
        labels = [(self.pid, "CPU")] + [(device, f"GPU {device}") for device in range(self.devices)]
        for pid, label in labels:
            for name, args in (("process_name", {"name": "python"}), ("process_labels", {"labels": label})):
                yield f'{{"name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": 0, "args": {json.dumps(args)}}}'
        yield (
            f'{{"ph": "X", "cat": "Trace", "ts": {ts}, "dur": {self._decimal(end - start)}, "pid": "Spans", '
            '"tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}'
        )
        yield (
            '{"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", '
            f'"tid": "Trace PyTorch Profiler", "ts": {ts}}}'
        )
        yield f'{{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": {self._ts(end)}}}'

    def _ts(self, start: int) -> str:
        absolute = self.origin_ns + start
        return self._decimal(absolute - self.base_ns if self.dialect == "current" else absolute)

    def _decimal(self, ns: int) -> str:
        """Nanoseconds as Kineto writes microseconds: three decimals, or none before 2.4."""
        whole, rest = divmod(ns, 1000)
        return f"{whole}.{rest:03}" if self.dialect == "current" else str(whole)

    def _head(self) -> Json:
        head: Json = {"schemaVersion": 1, "deviceProperties": [self._properties(i) for i in range(self.devices)]}
        if self.distributed_info and self.dialect != "legacy":
            members = list(range(self.world_size))
            group: Json = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": self.world_size, "ranks": members}
            info: Json = {"backend": self.backend, "rank": self.rank, "world_size": self.world_size}
            groups: Json = {"pg_count": 1, "pg_config": [group]} if self.dialect == "current" else {}
            head["distributedInfo"] = info | groups
        if any("Input Dims" in event.args for event in self._events):
            head["record_shapes"] = 1
        if any(event.cat == "python_function" for event in self._events):
            head["with_stack"] = 1
        head["displayTimeUnit"] = "ms"
        if self.dialect == "current":
            head["baseTimeNanoseconds"] = self.base_ns
        return head | self.extra

    def _properties(self, device: int) -> Json:
        return {
            "id": device,
            "name": self.device_name,
            "totalGlobalMem": 85_027_979_264,
            "computeMajor": 9,
            "computeMinor": 0,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65_536,
            "warpSize": 32,
            "sharedMemPerBlock": 49_152,
            "numSms": 132,
            "regsPerMultiprocessor": 65_536,
            "sharedMemPerBlockOptin": 232_448,
            "sharedMemPerMultiprocessor": 233_472,
        }
