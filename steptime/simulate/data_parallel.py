"""How gradients and parameters travel between data-parallel ranks: DDP's buckets, or FSDP's gathers and scatters."""

from __future__ import annotations

from typing import Protocol

from steptime.simulate.plan import Exchange, Group
from steptime.simulate.program import Program
from steptime.simulate.scenario import Training
from steptime.simulate.transformer import BYTES

REDUCE_STREAM, GATHER_STREAM = 20, 24


class DataParallel(Protocol):
    """What a pass calls around each unit (a layer, the embedding, the output layer)."""

    def before(self, unit: str, parameters: int, phase: str) -> None:
        """The unit is about to run, in phase ``forward`` or ``backward``."""

    def after_backward(self, unit: str, parameters: int, last: bool) -> None:
        """The unit's gradients are there; `last`: of this update."""

    def finish(self) -> None:
        """The backward pass is over: the optimizer waits for what is still under way."""


class Alone:
    """No data parallelism."""

    def before(self, unit: str, parameters: int, phase: str) -> None:
        """Nothing to gather."""

    def after_backward(self, unit: str, parameters: int, last: bool) -> None:
        """Nothing to reduce."""

    def finish(self) -> None:
        """Nothing is under way."""


class _Collectives:
    """Collectives of one lane on its data-parallel group."""

    def __init__(self, program: Program, group: Group, training: Training) -> None:
        self.program = program
        self.group = group
        self.size = BYTES[training.dtype]
        self.flying: list[int] = []

    def launch(self, kind: str, what: str, nbytes: float, stream: int, waits: tuple[int, ...] | None = None) -> int:
        """One asynchronous collective; returns its kernel's index."""
        program = self.program
        key = (kind, program.lane.stage, program.step, program.micro_batch, what)
        exchange = Exchange(kind, self.group, nbytes, key)
        return program.exchange(exchange, stream, waits=waits, asynchronous=True)

    def join(self) -> None:
        """The next compute waits for everything under way."""
        self.program.pending.update(self.flying)
        self.flying.clear()


class Buckets(_Collectives):
    """DDP: gradients are all-reduced in buckets while the backward pass goes on."""

    def __init__(self, program: Program, group: Group, training: Training) -> None:
        super().__init__(program, group, training)
        self.bucket = training.bucket_mb * 1e6
        self.syncs = training.bucket_syncs
        self.filled = 0.0
        self.sent = 0

    def before(self, unit: str, parameters: int, phase: str) -> None:
        """Parameters are whole on every rank."""

    def after_backward(self, unit: str, parameters: int, last: bool) -> None:  # noqa: ARG002  buckets know no units
        """Fill buckets, and send those that are full."""
        if not last:
            return
        self.filled += parameters * self.size
        while self.filled >= self.bucket:
            self.filled -= self.bucket
            self._send(self.bucket)

    def _send(self, nbytes: float) -> None:
        self.flying.append(self.launch("allreduce", f"bucket {self.sent}", nbytes, REDUCE_STREAM))
        self.sent += 1
        if self.syncs:
            self.program.sync("cudaDeviceSynchronize", None)

    def finish(self) -> None:
        """Send the last bucket and wait for all."""
        if self.filled >= 1.0:
            self._send(self.filled)
        self.filled, self.sent = 0.0, 0
        self.join()


class Shards(_Collectives):
    """FSDP: parameters are gathered before a unit runs, gradients scattered after its backward.

    With prefetch a gather runs under the unit before (memory for one gathered unit ahead); without, it starts only when
    that unit has ended.
    """

    def __init__(self, program: Program, group: Group, training: Training) -> None:
        super().__init__(program, group, training)
        self.prefetch = training.prefetch
        self.reshard = training.reshard
        self.before_that: tuple[int, ...] | None = None

    def before(self, unit: str, parameters: int, phase: str) -> None:
        """Gather the unit's parameters; the unit's first kernel waits for them."""
        if phase == "backward" and not self.reshard:
            return
        program = self.program
        free = self.before_that if self.prefetch else program.last_compute
        self.before_that = program.last_compute
        gathered = self.launch("_allgather_base", f"{phase} {unit}", float(parameters * self.size), GATHER_STREAM, free)
        program.pending.add(gathered)

    def after_backward(self, unit: str, parameters: int, last: bool) -> None:  # noqa: ARG002  FSDP scatters every time
        """Scatter the unit's gradients."""
        self.flying.append(self.launch("_reduce_scatter_base", unit, float(parameters * self.size), REDUCE_STREAM))

    def finish(self) -> None:
        """The optimizer waits for all scattered gradients, and the next gather for the optimizer."""
        self.join()
        self.before_that = None
