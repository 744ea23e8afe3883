"""Exchanges between ranks: they transfer from the last member's arrival on, and end a little apart on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from steptime.simulate.noise import Noise
from steptime.simulate.plan import F64, I64, Exchange, Kernel, Mask
from steptime.simulate.scenario import Jitter

#: Nanoseconds in a microsecond.
US = 1_000
_NEVER = np.iinfo(np.int64).min


class Speeds(Protocol):
    """What the hardware does, faults included."""

    def compute(self, ranks: I64, step: int) -> F64 | float:
        """Factor on kernel times of each rank in a step."""

    def launching(self, ranks: I64, step: int) -> F64 | float:
        """Factor on what an op costs each rank's host in a step."""

    def transfer_ns(self, exchange: Exchange) -> F64:
        """Transfer time of an exchange for each rank of the job, float64 [world]."""


@dataclass(slots=True, eq=False)
class Run:
    """A kernel of a lane. launch: when its call began; ready: when the device may start it.

    last: last arrival of its exchange; late: the rank that arrived last. None while unknown.
    """

    kernel: Kernel
    launch: I64
    ready: I64
    start: I64 | None = None
    end: I64 | None = None
    last: I64 | None = None
    late: I64 | None = None


class Meetings:
    """All exchanges under way."""

    def __init__(self, world: int, jitter: Jitter, noise: Noise, speeds: Speeds) -> None:
        self.world = world
        self.jitter = jitter
        self.noise = noise
        self.speeds = speeds
        self._met: dict[int, list[tuple[I64, Run]]] = {}

    def meet(self, ranks: I64, run: Run) -> bool:
        """A side of an exchange has started its kernel; once all have, set the ends of all. True when they are set."""
        if run.end is not None:
            return True
        exchange = run.kernel.exchange
        if exchange is None:
            raise ValueError(f"kernel {run.kernel.key} is no exchange")
        sides = self._met.setdefault(id(exchange), [])
        if all(known is not run for _, known in sides):
            sides.append((ranks, run))
        if len(sides) < exchange.sides:
            return False
        self._transfer(exchange, sides)
        del self._met[id(exchange)]
        return True

    def _transfer(self, exchange: Exchange, sides: list[tuple[I64, Run]]) -> None:
        arrival = np.full(self.world, _NEVER, np.int64)
        for ranks, run in sides:
            arrival[ranks] = _started(run)
        last, late = _last_arrival(exchange, arrival)
        length, spread = self._length(exchange, np.concatenate([ranks for ranks, _ in sides]))
        roots = _roots(exchange)
        for ranks, run in sides:
            run.last, run.late = last[ranks], late[ranks]
            run.end = last[ranks] + length[ranks] + spread[ranks]
            if roots is not None:
                # A root has sent everything as soon as it has itself arrived: nobody keeps it.
                run.end = np.where(roots[ranks], _started(run) + length[ranks], run.end)

    def _length(self, exchange: Exchange, ranks: I64) -> tuple[I64, I64]:
        """Transfer time and what each rank ends later than the first, int64 [world]."""
        group = exchange.group
        which = group.label if exchange.pair is None else np.minimum(np.arange(self.world), exchange.pair)
        factor = self.noise.factor(self.jitter.transfer, ("transfer", exchange.key), which.astype(np.uint64))
        length = np.zeros(self.world)
        length[ranks] = (self.speeds.transfer_ns(exchange) * factor)[ranks]
        if exchange.load is not None:
            length *= exchange.load
        spread = np.zeros(self.world)
        if self.jitter.ends and exchange.pair is None and group.size > 1:
            crosses = np.zeros(self.world, np.bool_)
            crosses[group.order] = np.repeat(group.crosses, group.size)
            spread[ranks] = self._spread(exchange, ranks, crosses[ranks])
        return np.rint(length).astype(np.int64), np.rint(spread).astype(np.int64)

    def _spread(self, exchange: Exchange, ranks: I64, crosses: Mask) -> F64:
        """Later ends: log-normal with a heavy tail, at most 20 us in a host and 200 us between hosts."""
        draw = self.noise.normal(("ends", exchange.key), ranks.astype(np.uint64))
        inside, between = 1.5 * np.exp(0.9 * draw), 8.0 * np.exp(1.1 * draw)
        result: F64 = US * np.where(crosses, np.minimum(between, 200.0), np.minimum(inside, 20.0))
        return result


def _started(run: Run) -> I64:
    if run.start is None:
        raise ValueError(f"kernel {run.kernel.key} has not started")
    return run.start


def _last_arrival(exchange: Exchange, arrival: I64) -> tuple[I64, I64]:
    """The instant from which each rank's transfer can go on, and the rank that set it; int64 [world] each."""
    own = np.arange(len(arrival))
    group = exchange.group
    if exchange.pair is not None:
        other = arrival[exchange.pair]
        return np.maximum(arrival, other), np.where(other > arrival, exchange.pair, own)
    rows = group.order.reshape(len(group.starts), group.size)
    times = arrival[rows]
    last, late = np.empty_like(arrival), np.empty_like(arrival)
    if exchange.kind == "ring":
        near = np.stack([np.roll(times, 1, 1), times, np.roll(times, -1, 1)])
        who = np.stack([np.roll(rows, 1, 1), rows, np.roll(rows, -1, 1)])
        pick = near.argmax(0)[None]
        last[rows], late[rows] = np.take_along_axis(near, pick, 0)[0], np.take_along_axis(who, pick, 0)[0]
        return last, late
    if exchange.kind == "broadcast":
        root = np.broadcast_to(times[:, :1], times.shape)
        last[rows] = np.maximum(root, times)
        late[rows] = np.where(root > times, rows[:, :1], rows)
        return last, late
    pick = times.argmax(1)[:, None]
    last[rows] = np.broadcast_to(np.take_along_axis(times, pick, 1), times.shape)
    late[rows] = np.broadcast_to(np.take_along_axis(rows, pick, 1), times.shape)
    return last, late


def _roots(exchange: Exchange) -> Mask | None:
    """The roots of a broadcast, bool [world]; None for other kinds."""
    if exchange.kind != "broadcast":
        return None
    found = np.zeros(len(exchange.group.label), np.bool_)
    found[exchange.group.order[exchange.group.starts]] = True
    return found
