"""The discrete-event engine: when everything in a plan happens.

Hosts run ahead of their device until they must wait (a sync, a full launch queue). A stream runs its kernels in launch
order; a kernel starts once its launch is through, the stream is free and what it waits for has ended. An exchange's
kernels occupy their streams from their own arrival; it transfers from the last member's arrival on. All times are int64
ns on one true clock, arrays over the ranks of a lane, so 1,024 ranks cost little more than one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from steptime.simulate.meeting import US, Meetings, Run, Speeds
from steptime.simulate.noise import Noise
from steptime.simulate.plan import (
    I64,
    Close,
    Kernel,
    Lane,
    Launch,
    Mask,
    Open,
    Pause,
    Plan,
    Record,
    Span,
    Sync,
)
from steptime.simulate.scenario import Host, Jitter

#: The launch queue holds at least this many.
_LEAST_DEPTH = 64


@dataclass(slots=True, eq=False)
class Happened:
    """A host event: when, and on which ranks (None: all). cause: of `Pause`."""

    span: Span | None
    start: I64
    end: I64
    present: Mask | None = None
    cause: str = ""


@dataclass(slots=True, eq=False)
class LaneRun:
    """All that happened on a lane. record_start, record_end int64 [lane]: the recording on the true clock."""

    lane: Lane
    host_ns: I64
    host: list[Happened] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    record_start: I64 | None = None
    record_end: I64 | None = None


class Stuck(RuntimeError):
    """No lane can go on: the plan waits for itself. A defect of the plan."""


def run(plan: Plan, host: Host, jitter: Jitter, noise: Noise, speeds: Speeds) -> list[LaneRun]:
    """Simulate a plan from time 0 to its end; one result a lane, in the order of the plan's lanes.

    Raises:
        Stuck: the plan can't proceed.
    """
    engine = _Engine(plan, host, jitter, noise, speeds)
    return engine.run()


class _Engine:
    def __init__(self, plan: Plan, host: Host, jitter: Jitter, noise: Noise, speeds: Speeds) -> None:
        self.plan = plan
        self.host = host
        self.jitter = jitter
        self.noise = noise
        self.speeds = speeds
        self.meetings = Meetings(plan.world, jitter, noise, speeds)
        self.lanes = [_LaneState(self, lane) for lane in plan.lanes]

    def run(self) -> list[LaneRun]:
        while True:
            moved = False
            for lane in self.lanes:
                moved |= lane.advance_host()
                moved |= lane.advance_device()
            if not moved:
                break
        if any(not lane.finished for lane in self.lanes):
            raise Stuck("; ".join(lane.where() for lane in self.lanes if not lane.finished))
        return [lane.result for lane in self.lanes]


class _LaneState:
    """One lane while it runs."""

    def __init__(self, engine: _Engine, lane: Lane) -> None:
        self.engine = engine
        self.lane = lane
        self.ranks = lane.ranks
        self.ids = lane.ranks.astype(np.uint64)
        count = len(lane.ranks)
        self.result = LaneRun(lane, np.zeros(count, np.int64))
        self.at = 0
        self.queues: dict[int, deque[Run]] = {}
        self.free: dict[int, I64] = {}
        self.open: dict[int, I64] = {}
        self.called = self.result.host_ns
        steps = 1 + max((kernel.step for kernel in lane.kernels), default=0)
        self.depth = engine.host.queue_depth or max(len(lane.kernels) // (3 * steps), _LEAST_DEPTH)

    @property
    def finished(self) -> bool:
        return self.at == len(self.lane.program) and not any(self.queues.values())

    def where(self) -> str:
        """What holds the lane, for the message of `Stuck`."""
        heads = [f"stream {stream}: {queue[0].kernel.key}" for stream, queue in self.queues.items() if queue]
        return f"stage {self.lane.stage} at {self.at} of {len(self.lane.program)}; {', '.join(heads)}"

    # Host

    def advance_host(self) -> bool:
        """Run the program until the host must wait for something not yet known."""
        before = self.at
        program = self.lane.program
        steps = {Open: self._open, Close: self._close, Launch: self._launch, Pause: self._pause, Sync: self._sync}
        while self.at < len(program):
            item = program[self.at]
            done = self._record(item) if isinstance(item, Record) else steps[type(item)](item)  # type: ignore[operator]
            if not done:
                break
            self.at += 1
        return self.at > before

    def _open(self, item: Open) -> bool:
        self.open[id(item.span)] = self.result.host_ns
        return True

    def _close(self, item: Close) -> bool:
        start = self.open.pop(id(item.span))
        self.result.host.append(Happened(item.span, start, self.result.host_ns))
        return True

    def _launch(self, item: Launch) -> bool:
        runs, depth = self.result.runs, self.depth
        blocked_until: I64 | None = None
        if len(runs) >= depth:
            blocked_until = runs[len(runs) - depth].start
            if blocked_until is None:
                return False
        host, kernel, present = self.engine.host, item.kernel, item.kernel.present
        if item.call is None:
            self._enqueue(kernel, self.called)
            return True
        factor = self.engine.noise.factor(self.engine.jitter.host, ("op", kernel.key), self.ids)
        factor = factor * self.engine.speeds.launching(self.ranks, kernel.step)

        def cost(us: float) -> I64:
            spent = np.rint(np.broadcast_to(us * US * factor, self.ranks.shape)).astype(np.int64)
            result: I64 = spent if present is None else np.where(present, spent, 0)
            return result

        begin = self.result.host_ns
        called = begin + cost(host.op_us)
        returned = called + cost(host.launch_us)
        if blocked_until is not None:
            held = np.maximum(returned, blocked_until)
            # A rank that lacks the launch is held in the next one that it has.
            returned = held if present is None else np.where(present, held, returned)
        end = returned + cost(host.after_us)
        self.result.host.append(Happened(item.call, called, returned, present))
        if item.op is not None:
            self.result.host.append(Happened(item.op, begin, end, present))
        self.result.host_ns = end + cost(host.python_us)
        self.called = called
        self._enqueue(kernel, called)
        return True

    def _enqueue(self, kernel: Kernel, called: I64) -> None:
        run = Run(kernel, called, called + int(self.engine.host.latency_us * US))
        self.result.runs.append(run)
        self.queues.setdefault(kernel.stream, deque()).append(run)

    def _pause(self, item: Pause) -> bool:
        spent = np.broadcast_to(np.asarray(item.ns, np.float64), self.ranks.shape)
        if item.jitter:
            spent = spent * self.engine.noise.factor(self.engine.jitter.host, ("pause", item.key), self.ids)
        start = self.result.host_ns
        end = start + np.rint(spent).astype(np.int64)
        if (end > start).any():
            self.result.host.append(Happened(item.span, start, end, end > start, item.cause))
        self.result.host_ns = end
        return True

    def _sync(self, item: Sync) -> bool:
        wanted = [item.stream] if item.stream is not None else list(self.queues)
        if any(self.queues.get(stream) for stream in wanted):
            return False
        start = self.result.host_ns
        drained = start + int(self.engine.host.launch_us * US)
        for stream in wanted:
            if stream in self.free:
                drained = np.maximum(drained, self.free[stream] + 2 * US)
        end = drained if item.present is None else np.where(item.present, drained, start)
        self.result.host.append(Happened(item.call, start, end, item.present, item.cause))
        self.result.host_ns = end
        return True

    def _record(self, item: Record) -> bool:
        if item.on:
            if item.hold_ns is not None:
                held = self.result.host_ns + item.hold_ns
                self.result.host.append(Happened(None, self.result.host_ns, held, cause="capture_skew"))
                self.result.host_ns = held
            self.result.record_start = self.result.host_ns
        else:
            self.result.record_end = self.result.host_ns
        return True

    # Device

    def advance_device(self) -> bool:
        """Run every stream as far as what is known allows."""
        moved = False
        again = True
        while again:
            again = False
            for stream, queue in self.queues.items():
                while queue and self._step(stream, queue[0]):
                    queue.popleft()
                    moved = again = True
        return moved

    def _step(self, stream: int, run: Run) -> bool:
        """Start the head of a stream; True once its end is known."""
        kernel = run.kernel
        if run.start is None:
            ends = [self.result.runs[index].end for index in kernel.waits]
            if any(end is None for end in ends):
                return False
            start = run.ready
            gap = int(self.engine.host.gap_us * US)
            if stream in self.free:
                start = np.maximum(start, self.free[stream] + gap)
            for end in ends:
                start = np.maximum(start, end + gap)  # type: ignore[operator]
            run.start = start
        if kernel.exchange is not None:
            if not self.engine.meetings.meet(self.ranks, run):
                return False
        elif run.end is None:
            run.end = run.start + self._length(kernel)
        assert run.end is not None
        if kernel.present is not None:
            before = self.free.get(stream, np.zeros(len(self.ranks), np.int64))
            self.free[stream] = np.where(kernel.present, run.end, before)
        else:
            self.free[stream] = run.end
        return True

    def _length(self, kernel: Kernel) -> I64:
        factor = self.engine.noise.factor(self.engine.jitter.kernel, ("kernel", kernel.key), self.ids)
        speed = self.engine.speeds.compute(self.ranks, kernel.step) if kernel.category == "kernel" else 1.0
        load = kernel.load if kernel.load is not None else 1.0
        spent = np.broadcast_to(kernel.base_ns * factor * speed * load, self.ranks.shape)
        result: I64 = np.maximum(np.rint(spent).astype(np.int64), 1)
        return result
