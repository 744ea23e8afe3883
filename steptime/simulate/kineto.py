"""Writes what happened on a rank as the Kineto trace that its profiler would have written.

The text of a lane's events is the same on all its ranks but for times and a few values, so each event is made once as a
template and filled in by rank. Formats: `current` (2.4 and later: decimal microseconds after `baseTimeNanoseconds`,
collective metadata on kernels) and `integer` (1.12 to 2.3: whole absolute microseconds, no collective metadata).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steptime.simulate.catalog import Gpu
from steptime.simulate.effects import Effects
from steptime.simulate.engine import LaneRun
from steptime.simulate.noise import Noise
from steptime.simulate.plan import BACKWARD, COMPUTE_STREAM, F64, I64, Json, Kernel, Mask, Plan, Span
from steptime.simulate.scenario import Scenario

#: 227 times 7,889,238 s: how Kineto rounds the start of the program.
BASE_NS = 227 * 7_889_238_000_000_000
#: Absolute time of the simulation's time 0.
ORIGIN_NS = BASE_NS + 5_111_842_086_750_000
#: Longer lists of ranks are cut with "..." (torch/csrc/profiler/util.cpp).
_LONG_LIST = 30

_TOKEN = re.compile(r'"@([A-Z]):([^@"]*)@"')
_PID, _TID, _GPU = "~P~", ("~M~", "~B~"), "~G~"


@dataclass(frozen=True, slots=True)
class Clock:
    """One host's clock: what it shows at the true time t is t + offset_ns + t * drift_ppm / 1e6."""

    offset_ns: int
    drift_ppm: float

    def shown(self, true_ns: I64) -> I64:
        """Clock readings of true times, int64 ns after `ORIGIN_NS`."""
        result: I64 = true_ns + self.offset_ns + np.rint(true_ns * (self.drift_ppm * 1e-6)).astype(np.int64)
        return result


def make_clocks(scenario: Scenario, hosts: int) -> list[Clock]:
    """The clocks of all hosts; the first one is right unless the scenario gives it an offset."""
    given, noise = scenario.clocks, Noise(scenario.seed)
    clocks = []
    for host in range(hosts):
        offset, drift = 0.0, 0.0
        if host:
            offset = (2 * noise.one("clock", host) - 1) * given.offset_ms
            drift = (2 * noise.one("drift", host) - 1) * given.drift_ppm
        if given.offsets_ms is not None and host < len(given.offsets_ms):
            offset = given.offsets_ms[host]
        if given.drifts_ppm is not None and host < len(given.drifts_ppm):
            drift = given.drifts_ppm[host]
        clocks.append(Clock(round(offset * 1e6), drift))
    return clocks


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Templates of m events with their times on the lane's ranks: start, end int64 [m, lane]; there bool [m, lane]."""

    texts: list[str]
    start: I64
    end: I64
    there: Mask


class Writer:
    """Writes the traces of a job."""

    def __init__(self, scenario: Scenario, effects: Effects, gpu: Gpu, plan: Plan) -> None:
        self.scenario = scenario
        self.effects = effects
        self.gpu = gpu
        self.plan = plan
        self.current = scenario.recording.dialect == "current"
        self.clocks = make_clocks(scenario, int(plan.hosts.max()) + 1)

    def write(self, lane: LaneRun, out: Path, written: Callable[[Path], None]) -> None:
        """Write one file for each rank of a lane as ``out/rankN.json.gz``."""
        host, device = self._host_block(lane), self._device_block(lane)
        flows = self._flow_block(lane) if self.scenario.recording.flows else None
        for at, rank in enumerate(lane.lane.ranks.tolist()):
            path = out / f"rank{rank}.json.gz"
            text = self._rank_text(lane, at, rank, (host, device, flows))
            level = self.scenario.recording.compression
            path.write_bytes(gzip.compress(text.encode(), compresslevel=level, mtime=0))
            written(path)

    # Templates

    def _times(self, both: bool = True) -> str:
        number = "%d.%03d" if self.current else "%d"
        return f'"ts": {number}, "dur": {number}' if both else f'"ts": {number}'

    def _event(self, cat: str, name: str, place: tuple[str, str], args: Json) -> str:
        front = json.dumps({"ph": "X", "cat": cat, "name": name})[:-1].replace("%", "%%")
        back = json.dumps(args).replace("%", "%%")
        return f'{front}, "pid": {place[0]}, "tid": {place[1]}, {self._times()}, "args": {back}}}'

    def _span(self, span: Span, index: int) -> str:
        args: Json = {}
        if span.external_id is not None:
            args["External id"] = span.external_id
        args |= span.args
        if span.correlation is not None:
            args["correlation"] = span.correlation
        else:
            args["Ev Idx"] = index
        return self._event(span.cat, span.name, (_PID, _TID[span.thread == BACKWARD]), args)

    def _kernel(self, kernel: Kernel) -> str:
        args: Json = {}
        if kernel.external_id is not None:
            args["External id"] = kernel.external_id
        args |= {"device": _GPU, "context": 1, "stream": kernel.stream, "correlation": kernel.correlation}
        if kernel.category == "kernel":
            args |= self._launch_shape(kernel)
        args |= kernel.args
        text = self._event(kernel.category, kernel.name, (_GPU, str(kernel.stream)), args)
        return text.replace(f'"{_GPU}"', _GPU)

    def _launch_shape(self, kernel: Kernel) -> Json:
        grid, block = kernel.args.get("grid"), kernel.args.get("block")
        blocks = int(np.prod(grid)) if isinstance(grid, list) else 1
        threads = int(np.prod(block)) if isinstance(block, list) else 1
        per_sm = blocks / self.gpu.multiprocessors
        return {
            "queued": 0,
            "registers per thread": 168 if kernel.stream == COMPUTE_STREAM else 96,
            "shared memory": 0,
            "blocks per SM": round(per_sm, 6),
            "warps per SM": round(per_sm * threads / 32, 6),
            "est. achieved occupancy %": 0,
        }

    def _host_block(self, lane: LaneRun) -> _Block:
        events = [event for event in lane.host if event.span is not None]
        texts = [self._span(event.span, at) for at, event in enumerate(events) if event.span is not None]
        count = len(lane.lane.ranks)
        start = np.array([event.start for event in events], np.int64).reshape(-1, count)
        end = np.array([event.end for event in events], np.int64).reshape(-1, count)
        there = np.array(
            [np.ones(count, np.bool_) if event.present is None else event.present for event in events], np.bool_
        ).reshape(-1, count)
        return _Block(texts, start, end, there & self._recorded(lane, start, end))

    def _device_block(self, lane: LaneRun) -> _Block:
        count = len(lane.lane.ranks)
        texts = [self._kernel(run.kernel) for run in lane.runs]
        start = np.array([run.start for run in lane.runs], np.int64).reshape(-1, count)
        end = np.array([run.end for run in lane.runs], np.int64).reshape(-1, count)
        there = self._recorded(lane, start, end)
        for at, run in enumerate(lane.runs):
            if run.kernel.present is not None:
                there[at] &= run.kernel.present
        return _Block(texts, start, end, there & ~self._lost(lane))

    def _flow_block(self, lane: LaneRun) -> _Block:
        """``ac2g`` arrows from launches to what they launched."""
        texts, starts = [], []
        threads = {event.span.correlation: event.span.thread for event in lane.host if event.span is not None}
        for run in lane.runs:
            kernel = run.kernel
            name = '"cat": "ac2g", "name": "ac2g"'
            tid = _TID[threads.get(kernel.correlation) == BACKWARD]
            head = f'{{"ph": "s", "id": {kernel.correlation}, "pid": {_PID}, "tid": {tid}, '
            texts.append(f"{head}{self._times(False)}, {name}}}")
            head = f'{{"ph": "f", "id": {kernel.correlation}, "pid": {_GPU}, "tid": {kernel.stream}, '
            texts.append(f'{head}{self._times(False)}, {name}, "bp": "e"}}')
            starts += [run.launch, run.start]
        device = self._device_block(lane)
        start = np.array(starts, np.int64).reshape(-1, len(lane.lane.ranks))
        return _Block(texts, start, start, np.repeat(device.there, 2, axis=0))

    def _recorded(self, lane: LaneRun, start: I64, end: I64) -> Mask:
        assert lane.record_start is not None
        assert lane.record_end is not None
        head = lane.record_start + self.effects.head_ns[lane.lane.ranks]
        result: Mask = (start >= head) & (end <= lane.record_end)
        return result

    def _lost(self, lane: LaneRun) -> Mask:
        """Kernels that the recording lost, bool [kernels, lane]."""
        ranks = lane.lane.ranks
        share: F64 = self.effects.drop[ranks]
        lost = np.zeros((len(lane.runs), len(ranks)), np.bool_)
        if share.any():
            noise = Noise(self.scenario.seed)
            for at, run in enumerate(lane.runs):
                lost[at] = noise.uniform(("lost", run.kernel.key), ranks.astype(np.uint64)) < share
        return lost

    # One rank

    def _rank_text(self, lane: LaneRun, at: int, rank: int, blocks: tuple[_Block, _Block, _Block | None]) -> str:
        clock = self.clocks[int(self.plan.hosts[rank])]
        host, device, flows = blocks
        parts = [self._filled(block, at, clock, both=True) for block in (host, device)]
        if flows is not None:
            parts.append(self._filled(flows, at, clock, both=False))
        parts.append(",\n".join(self._marks(lane, at, rank, clock)))
        body = ",\n".join(part for part in parts if part)
        pid = 4000 + 10 * (rank % self.scenario.cluster.gpus_per_host)
        local = rank % self.scenario.cluster.gpus_per_host
        for mark, value in ((_PID, pid), (_TID[0], pid), (_TID[1], pid + 1), (_GPU, local)):
            body = body.replace(mark, str(value))
        body = _TOKEN.sub(_Filler(self, rank), body)
        head = json.dumps(self._head(rank))[1:-1]
        return f'{{{head}, "traceEvents": [\n{body}\n], "traceName": "rank{rank}.json"}}\n'

    def _filled(self, block: _Block, at: int, clock: Clock, both: bool) -> str:
        kept = np.flatnonzero(block.there[:, at])
        if not len(kept):
            return ""
        start, end = clock.shown(block.start[kept, at]), clock.shown(block.end[kept, at])
        template = ",\n".join([block.texts[row] for row in kept.tolist()])
        return template % tuple(self._numbers(start, end, both))

    def _numbers(self, start: I64, end: I64, both: bool) -> list[int]:
        """The numbers of the templates in order."""
        if not self.current:
            start, end = (start + ORIGIN_NS) // 1000, (end + ORIGIN_NS) // 1000
            columns = [start, end - start] if both else [start]
        else:
            shown = divmod(start + (ORIGIN_NS - BASE_NS), 1000)
            columns = [*shown, *divmod(end - start, 1000)] if both else [*shown]
        numbers: list[int] = np.stack(columns, axis=1).ravel().tolist()
        return numbers

    def _decimal(self, ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03}" if self.current else str(ns // 1000)

    def _marks(self, lane: LaneRun, at: int, rank: int, clock: Clock) -> Iterable[str]:
        """Names of processes and the recording window."""
        assert lane.record_start is not None
        assert lane.record_end is not None
        head = lane.record_start + self.effects.head_ns[lane.lane.ranks]
        edges = clock.shown(np.array([head[at], lane.record_end[at]], np.int64))
        zero = BASE_NS if self.current else 0
        ts = self._decimal(int(edges[0]) + ORIGIN_NS - zero)
        dur = self._decimal(int(edges[1] - edges[0]))
        local = rank % self.scenario.cluster.gpus_per_host
        for pid, label in ((_PID, "CPU"), (str(local), f"GPU {local}")):
            for name, args in (("process_name", '{"name": "python"}'), ("process_labels", f'{{"labels": "{label}"}}')):
                yield f'{{"name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": 0, "args": {args}}}'
        yield (
            f'{{"ph": "X", "cat": "Trace", "ts": {ts}, "dur": {dur}, "pid": "Spans", "tid": "PyTorch Profiler", '
            '"name": "PyTorch Profiler (0)", "args": {"Op count": 0}}'
        )
        yield (
            '{"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", '
            f'"tid": "Trace PyTorch Profiler", "ts": {ts}}}'
        )
        end = self._decimal(int(edges[1]) + ORIGIN_NS - zero)
        yield f'{{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": {end}}}'

    def _head(self, rank: int) -> Json:
        head: Json = {"schemaVersion": 1, "deviceProperties": [self._device(rank)]}
        info: Json = {"backend": "nccl", "rank": rank, "world_size": self.plan.world}
        if self.current:
            groups = [
                {"pg_name": g.name, "pg_desc": g.description, "pg_size": g.size, "ranks": g.members(rank)}
                for g in self.plan.groups
            ]
            info |= {"pg_count": len(groups), "pg_config": groups, "nccl_version": "2.27.5"}
        head["distributedInfo"] = info
        if self.scenario.recording.shapes:
            head["record_shapes"] = 1
        head |= {"host_name": f"host{int(self.plan.hosts[rank])}", "displayTimeUnit": "ms"}
        if self.current:
            head["baseTimeNanoseconds"] = BASE_NS + int(self.effects.base_ns[rank])
        return head

    def _device(self, rank: int) -> Json:
        major, minor = self.gpu.compute
        return {
            "id": rank % self.scenario.cluster.gpus_per_host,
            "name": self.gpu.reported,
            "totalGlobalMem": self.gpu.memory_bytes,
            "computeMajor": major,
            "computeMinor": minor,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "warpSize": 32,
            "numSms": self.gpu.multiprocessors,
        }


class _Filler:
    """Fills in what differs between the ranks of a lane; see `program.token`."""

    def __init__(self, writer: Writer, rank: int) -> None:
        self.writer = writer
        self.rank = rank
        self.known: dict[str, str] = {}

    def __call__(self, match: re.Match[str]) -> str:
        text = match.group(0)
        if text not in self.known:
            self.known[text] = self._value(match.group(1), match.group(2).split(":"))
        return self.known[text]

    def _value(self, kind: str, parts: list[str]) -> str:
        writer, rank = self.writer, self.rank
        if kind == "R":
            return str(rank)
        if kind == "P":
            per_stage = writer.plan.world // writer.scenario.layout.pp
            source, target = int(parts[0]), int(parts[1])
            # torch.distributed counts peers in their group, but PyTorch records ranks of the job (saveNcclMeta).
            step = (target - source) * per_stage
            return str(rank + (step if rank // per_stage == source else -step))
        if kind == "X":
            members = next(group for group in writer.plan.groups if group.description == parts[0]).members(rank)
            at = list(members).index(rank)
            return str(members[(at + int(parts[1])) % len(members)])
        if kind == "G":
            group = next(group for group in writer.plan.groups if group.description == parts[0])
            return json.dumps(_list_text(group.members(rank)))
        of, step_index, micro_batch, count = parts[0], int(parts[1]), int(parts[2]), int(parts[3])
        load = writer.effects.tokens[rank, step_index, micro_batch]
        if of == "experts":
            load *= writer.effects.experts[rank, step_index, micro_batch]
        return str(round(count * float(load)))


def _list_text(ranks: list[int]) -> str:
    if len(ranks) <= _LONG_LIST:
        return str(ranks)
    return f"[{', '.join(map(str, ranks[: _LONG_LIST - 1]))}, ..., {ranks[-1]}]"
