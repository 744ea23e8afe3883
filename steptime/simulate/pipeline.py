"""Messages between pipeline stages: who sends what to whom in which order."""

from __future__ import annotations

from collections import deque

import numpy as np

from steptime.simulate.plan import Exchange, Group
from steptime.simulate.program import Program
from steptime.simulate.scenario import Layout
from steptime.simulate.schedules import Action, schedule

#: Stream of each direction and role, so that no message waits for one that goes another way.
STREAMS = {("F", "send"): 40, ("F", "recv"): 44, ("B", "send"): 48, ("B", "recv"): 52}

Message = tuple[str, int, int]


class Mail:
    """All messages of a job. A message is (direction, piece that made it, micro-batch).

    Receives are posted in the order in which the sender sends, so that no two stages wait for each other.
    """

    def __init__(self, layout: Layout, micro_batches: int, group: Group | None, per_stage: int) -> None:
        self.layout = layout
        self.group = group
        self.per_stage = per_stage
        self.nbytes = 0.0
        self.counts: dict[tuple[int, int], int] = {}
        self.exchanges: dict[tuple[object, ...], Exchange] = {}
        self.posted: dict[tuple[int, str, int], dict[Message, int]] = {}
        self.queues: dict[tuple[int, str, int], deque[Message]] = {}
        pieces = layout.pp * layout.chunks
        self.orders: dict[tuple[str, int, int], list[Message]] = {}
        for stage in range(layout.pp):
            for action in schedule(layout.schedule, stage, layout.pp, micro_batches, layout.chunks):
                target = self._target(stage, action)
                if action.kind in "FB" and target is not None:
                    order = self.orders.setdefault((action.kind, stage, target), [])
                    order.append((action.kind, self._piece(stage, action), action.micro_batch))
        self.pieces = pieces

    def _piece(self, stage: int, action: Action) -> int:
        return action.chunk * self.layout.pp + stage

    def _target(self, stage: int, action: Action) -> int | None:
        """The stage that needs the result of an action, None at the model's end."""
        piece = self._piece(stage, action) + (1 if action.kind == "F" else -1)
        return piece % self.layout.pp if 0 <= piece < self.layout.pp * self.layout.chunks else None

    def shared(self, what: str, step: int, group: Group) -> Exchange:
        """A collective in which all lanes take part."""
        key = (what, step)
        if key not in self.exchanges:
            self.exchanges[key] = Exchange("allreduce", group, 8.0, key, sides=self.layout.pp, number=step)
        return self.exchanges[key]

    def _exchange(self, step: int, message: Message, source: int, target: int, nbytes: float) -> Exchange:
        key = ("p2p", source, target, step, *message)
        if key not in self.exchanges:
            assert self.group is not None
            pair = np.arange(len(self.group.label))
            near, far = source * self.per_stage, target * self.per_stage
            own = np.arange(self.per_stage)
            pair[near + own], pair[far + own] = far + own, near + own
            self.counts[source, target] = self.counts.get((source, target), 0) + 1
            number = self.counts[source, target]
            self.exchanges[key] = Exchange("p2p", self.group, nbytes, key, sides=2, pair=pair, number=number)
        return self.exchanges[key]

    def send(self, program: Program, kind: str, action: Action) -> None:
        """Send the result of an action on, if somebody needs it; the compute does not wait for it."""
        stage = program.lane.stage
        target = self._target(stage, action)
        if target is None or target == stage:
            return
        message = (kind, self._piece(stage, action), action.micro_batch)
        exchange = self._exchange(program.step, message, stage, target, self.nbytes)
        program.exchange(exchange, STREAMS[kind, "send"], name="send", asynchronous=True)

    def receive(self, program: Program, kind: str, action: Action) -> None:
        """Wait for what an action needs; receives that the sender sends before it are posted first."""
        stage = program.lane.stage
        piece = self._piece(stage, action) + (-1 if kind == "F" else 1)
        if not 0 <= piece < self.pieces or piece % self.layout.pp == stage:
            return
        source = piece % self.layout.pp
        wanted = (kind, piece, action.micro_batch)
        where = (program.step, kind, stage * self.layout.pp + source)
        if where not in self.queues:
            self.queues[where] = deque(self.orders[kind, source, stage])
            self.posted[where] = {}
        # PyTorch's NCCL stream waits for the compute launched before, so that a receive does not spin under it.
        early = () if self.layout.early_receives else None
        queue, posted = self.queues[where], self.posted[where]
        while wanted not in posted:
            message = queue.popleft()
            exchange = self._exchange(program.step, message, source, stage, self.nbytes)
            posted[message] = program.exchange(
                exchange, STREAMS[kind, "recv"], name="recv", waits=early, asynchronous=True
            )
        program.pending.add(posted[wanted])
