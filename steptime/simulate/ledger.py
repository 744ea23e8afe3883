"""Where each rank's time went by construction, from the true times and causes that only the simulator knows.

The definitions are the report's (windows from completion to completion of the compute stream, computing before
communicating before copying, the host blamed only for work that was not launched yet); the causes are those the
simulator itself put in: a pause knows what it was, a kernel whether it is recomputation, an exchange who came last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from steptime.simulate.catalog import Gpu
from steptime.simulate.engine import LaneRun
from steptime.simulate.meeting import Run
from steptime.simulate.plan import COMPUTE_STREAM, I64
from steptime.simulate.scenario import Scenario

#: Cause of a host pause -> leaf; what is not here is dispatch.
PAUSES = {
    "data_loader": "host/data_loader",
    "gc": "host/gc",
    "python": "host/python",
    "allocator": "host/allocator",
    "checkpoint": "host/checkpoint",
    "sync": "host/sync",
    "capture_skew": "unexplained/capture_skew",
}
LAUNCH, GAP, WAIT = "host/launch_bound", "host/kernel_gap", "stragglers/wait_for_rank"
BUBBLE = "pipeline_bubble/unsplit"
#: A sync returns this long after the device went idle, ns.
_JUST = 5_000


@dataclass(slots=True)
class StepLedger:
    """One rank's step. waits_ns: exposed waiting in exchanges, by the rank that arrived last."""

    step: int
    start_ns: int
    dur_ns: int
    productive_ns: int = 0
    leaves_ns: dict[str, int] = field(default_factory=dict)
    waits_ns: dict[int, int] = field(default_factory=dict)


class LaneLedger:
    """The ledgers of a lane's ranks."""

    def __init__(self, lane: LaneRun, scenario: Scenario, gpu: Gpu) -> None:
        self.lane = lane
        self.gpu = gpu
        recording = scenario.recording
        self.first = recording.first_step - recording.warmup
        self.recorded = range(recording.warmup, recording.warmup + recording.steps)
        self.call_ns = int(scenario.host.launch_us * 1e3)
        self.reference = gpu.peak_flops.get("bf16") or gpu.peak_flops["fp16"]
        count = len(lane.lane.ranks)
        runs = lane.runs
        self.kernels = [run.kernel for run in runs]
        self.start = np.array([run.start for run in runs], np.int64).reshape(-1, count)
        self.end = np.array([run.end for run in runs], np.int64).reshape(-1, count)
        self.launch = np.array([run.launch for run in runs], np.int64).reshape(-1, count)
        self.last = np.array([_known(run, run.last, run.start) for run in runs], np.int64).reshape(-1, count)
        own = lane.lane.ranks
        self.late = np.array([own if run.late is None else run.late for run in runs], np.int64).reshape(-1, count)
        step = np.array([kernel.step for kernel in self.kernels])
        main = np.array([kernel.stream == COMPUTE_STREAM for kernel in self.kernels])
        self.present = np.ones_like(self.start, np.bool_)
        for at, kernel in enumerate(self.kernels):
            if kernel.present is not None:
                self.present[at] = kernel.present
        self.bounds = np.stack(
            [np.max(self.end[main & (step == at)], axis=0, initial=0) for at in range(-1, self.recorded.stop)]
        )
        self.bounds = np.maximum.accumulate(self.bounds, axis=0)
        self.returned = {
            event.span.correlation: event.end
            for event in lane.host
            if event.span is not None and event.span.correlation is not None
        }

    def ledger(self, at: int) -> list[StepLedger]:
        """The recorded steps of the lane's rank number `at`."""
        bounds = self.bounds[self.recorded.start : self.recorded.stop + 1, at]
        steps = [
            StepLedger(self.first + number, int(low), int(high - low))
            for number, low, high in zip(self.recorded, bounds[:-1], bounds[1:], strict=True)
        ]
        edges, owner = self._owners(at, bounds)
        length = np.diff(edges)
        step = np.searchsorted(bounds, edges[:-1], side="right") - 1
        idle = np.flatnonzero(owner < 0)
        busy = np.flatnonzero(owner >= 0)
        self._busy(at, steps, (edges[:-1][busy], length[busy], step[busy], owner[busy]))
        worked = np.append(0, np.cumsum(np.where(owner >= 0, length, 0)))
        self._idle(at, steps, bounds, (edges[idle], edges[idle + 1]), (edges, worked))
        return steps

    def _owners(self, at: int, bounds: I64) -> tuple[I64, I64]:
        """Elementary segments of the recorded windows and the kernel that owns each, -1 if idle."""
        start, end = self.start[:, at], self.end[:, at]
        inside = np.flatnonzero(self.present[:, at] & (end > bounds[0]) & (start < bounds[-1]) & (end > start))
        last = self.last[inside, at]
        edges = np.unique(np.concatenate([bounds, start[inside], end[inside], last]))
        edges = edges[(edges >= bounds[0]) & (edges <= bounds[-1])]
        owner = np.full(max(len(edges) - 1, 0), -1, np.int64)
        classes = np.array([_class(self.kernels[row].category, self.kernels[row].exchange) for row in inside.tolist()])
        stream = np.array([self.kernels[row].stream for row in inside.tolist()], np.int64)
        order = np.lexsort((stream, start[inside] - end[inside], start[inside], classes))
        low = np.searchsorted(edges, start[inside]).tolist()
        high = np.searchsorted(edges, end[inside]).tolist()
        rows = inside.tolist()
        for place in order.tolist():
            part = owner[low[place] : high[place]]
            part[part < 0] = rows[place]
        return edges, owner

    def _busy(self, at: int, steps: list[StepLedger], parts: tuple[I64, I64, I64, I64]) -> None:
        start, length, step, owner = parts
        rank = int(self.lane.lane.ranks[at])
        owned: dict[tuple[int, int], int] = defaultdict(int)
        for begin, ns, number, row in zip(*(part.tolist() for part in (start, length, step, owner)), strict=True):
            kernel = self.kernels[row]
            if kernel.exchange is None:
                owned[number, row] += ns
                continue
            late = int(self.late[row, at])
            if begin >= self.last[row, at] or late == rank:
                _add(steps[number].leaves_ns, kernel.leaf, ns)
                continue
            # Waiting for another stage is how a schedule fills and drains, in a message as in a collective.
            abroad = not np.isin(late, self.lane.lane.ranks)
            _add(steps[number].leaves_ns, BUBBLE if abroad else WAIT, ns)
            _add(steps[number].waits_ns, late, ns)
        for (number, row), ns in owned.items():
            self._computed(at, steps[number], row, ns)

    def _computed(self, at: int, step: StepLedger, row: int, ns: int) -> None:
        """Owned time of a compute kernel: productive at the reference peak, lost precision, the rest its leaf."""
        kernel = self.kernels[row]
        load = 1.0 if kernel.load is None else float(kernel.load[at])
        flops = int(kernel.flops * load)
        productive = min(int(1e9 * flops / self.reference), ns)
        peak = self.gpu.peak_flops.get(kernel.rate, self.reference)
        precision = min(max(int(1e9 * flops / peak) - int(1e9 * flops / self.reference), 0), ns - productive)
        step.productive_ns += productive
        _add(step.leaves_ns, "kernels/precision", precision)
        _add(step.leaves_ns, kernel.leaf, ns - productive - precision)

    def _idle(
        self, at: int, steps: list[StepLedger], bounds: I64, spans: tuple[I64, I64], worked: tuple[I64, I64]
    ) -> None:
        """Idle time by what held the launch of the work that ends it. worked: instants, and device work until then."""
        begin, finish = _joined(*spans, bounds)
        if not len(begin):
            return
        rows = np.flatnonzero(self.present[:, at] & (self.end[:, at] > self.start[:, at]))
        order = rows[np.argsort(self.start[rows, at], kind="stable")]
        place = np.minimum(np.searchsorted(self.start[order, at], finish), len(order) - 1)
        row = order[place]
        called = np.clip(self.launch[row, at], begin, finish)
        back = [self.returned[self.kernels[kernel].correlation][at] for kernel in row.tolist()]
        returned = np.clip(np.array(back, np.int64), called, finish)
        step = np.searchsorted(bounds, begin, side="right") - 1
        left = called - begin
        for event in self.lane.host:
            leaf = PAUSES.get(event.cause)
            if leaf is None or (event.present is not None and not event.present[at]):
                continue
            shared = np.minimum(called, event.end[at]) - np.maximum(begin, event.start[at])
            for piece in np.flatnonzero(shared > 0).tolist():
                _add(steps[int(step[piece])].leaves_ns, leaf, int(shared[piece]))
                left[piece] -= shared[piece]
        slow = left + returned - called
        drained = self._drained(at, bounds, (begin, slow), worked)
        for piece, number in enumerate(step.tolist()):
            _add(steps[number].leaves_ns, "host/sync", int(drained[piece]))
            _add(steps[number].leaves_ns, LAUNCH, int(slow[piece] - drained[piece]))
            _add(steps[number].leaves_ns, GAP, int(finish[piece] - returned[piece]))

    def _drained(self, at: int, bounds: I64, idle: tuple[I64, I64], worked: tuple[I64, I64]) -> I64:
        """How much of each idle piece a sync is to blame for, int64 [pieces].

        A sync drains the queue. What launching costs later in the step is the sync's doing, up to the time that it held
        the host while the device worked.

        Args:
            at: the rank's number in the lane.
            bounds: of the steps.
            idle: where pieces begin, and what launching costs in each.
            worked: instants, and how long the device has worked until then.
        """
        begin, slow = idle
        result = np.zeros(len(begin), np.int64)
        syncs = [
            (int(event.end[at]), int(np.interp(event.end[at], *worked) - np.interp(event.start[at], *worked)))
            for event in self.lane.host
            if event.cause == "sync" and (event.present is None or event.present[at])
        ]
        for back, credit in syncs:
            stop = bounds[min(int(np.searchsorted(bounds, back, side="right")), len(bounds) - 1)]
            for piece in range(int(np.searchsorted(begin, back - _JUST)), len(begin)):
                if credit <= 0 or begin[piece] >= stop:
                    break
                paid = min(credit, int(slow[piece] - result[piece]))
                result[piece] += paid
                credit -= paid
        return result


def _known(run: Run, value: I64 | None, default: I64 | None) -> I64:
    found = value if value is not None else default
    if found is None:
        raise RuntimeError(f"kernel {run.kernel.key} never ran")
    return found


def _class(category: str, exchange: object) -> int:
    """Computing before communicating before copying."""
    if category != "kernel":
        return 2
    return 1 if exchange is not None else 0


def _joined(begin: I64, end: I64, bounds: I64) -> tuple[I64, I64]:
    """Touching idle segments joined, unless a step ends between them."""
    if not len(begin):
        return begin, end
    new = np.append(True, (begin[1:] != end[:-1]) | np.isin(begin[1:], bounds))
    return begin[new], end[np.append(np.flatnonzero(new)[1:] - 1, len(begin) - 1)]


def _add(table: dict[str, int] | dict[int, int], key: object, ns: int) -> None:
    if ns:
        table[key] = table.get(key, 0) + ns  # type: ignore[index, call-overload]
