"""Forward, backward and weight-gradient passes of one model chunk for one micro-batch, op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steptime.simulate.data_parallel import DataParallel
from steptime.simulate.plan import Exchange, Group, Json
from steptime.simulate.program import Program
from steptime.simulate.scenario import Training
from steptime.simulate.transformer import Comm, Part, Transformer, Work

#: Stream of each kind of communication inside a layer.
STREAMS = {"tp": 28, "ep": 32, "cp": 36}


@dataclass(frozen=True, slots=True)
class Unit:
    """A layer, the embedding or the output layer, with its parameters on one rank."""

    name: str
    parts: list[Part]
    parameters: int
    checkpointed: bool


def chunk_units(model: Transformer, layers: Sequence[int], first: bool, last: bool) -> list[Unit]:
    """The units of one model chunk: its layers, with the embedding and the output layer at the model's ends."""
    full = model.training.recompute == "full"
    units = [Unit("embedding", model.embedding(), model.table_parameters, False)] if first else []
    parts = model.layer()
    units += [Unit(f"layers.{at}", parts, model.layer_parameters, full) for at in layers]
    return units + ([Unit("output", model.head(), model.table_parameters, False)] if last else [])


class Passes:
    """Emits the passes of a lane. between: called in the forward before each unit (faults strike there)."""

    def __init__(
        self,
        program: Program,
        training: Training,
        groups: dict[str, Group],
        parallel: DataParallel,
        between: Callable[[int], None],
    ) -> None:
        self.program = program
        self.training = training
        self.groups = groups
        self.parallel = parallel
        self.between = between

    def forward(self, units: Sequence[Unit]) -> None:
        """Forward pass of a chunk."""
        for at, unit in enumerate(units):
            self.between(at)
            self.parallel.before(unit.name, unit.parameters, "forward")
            for place, part in enumerate(unit.parts):
                for at_item, item in enumerate(part.forward):
                    self._item(item, f"forward {unit.name} {place}.{at_item}", numbered=True)

    def backward(self, units: Sequence[Unit], last: bool, weights: bool = True) -> None:
        """Backward pass of a chunk; without `weights` the weight gradients are left for `weight`.

        last: the last one of this update, after which gradients are reduced.
        """
        self.program.backward_thread(True)
        for unit in reversed(units):
            self.parallel.before(unit.name, unit.parameters, "backward")
            if unit.checkpointed:
                with self.program.node("CheckpointFunctionBackward", self._sequence()):
                    self._again(unit, unit.parts)
                    self._unit_backward(unit, weights)
            else:
                self._unit_backward(unit, weights)
            if weights:
                self.parallel.after_backward(unit.name, unit.parameters, last)
        self.program.backward_thread(False)

    def weight(self, units: Sequence[Unit], last: bool) -> None:
        """The weight gradients that a backward pass left out."""
        self.program.backward_thread(True)
        for unit in reversed(units):
            for place, part in reversed(list(enumerate(unit.parts))):
                if part.weight:
                    with self.program.node(part.node, self._sequence()):
                        self._all(part.weight, f"weight {unit.name} {place}")
            self.parallel.after_backward(unit.name, unit.parameters, last)
        self.program.backward_thread(False)

    def _sequence(self) -> int:
        self.program.sequence += 1
        return self.program.sequence

    def _unit_backward(self, unit: Unit, weights: bool) -> None:
        for place, part in reversed(list(enumerate(unit.parts))):
            what = f"backward {unit.name} {place}"
            items = (*part.backward, *(part.weight if weights else ()))
            if not part.node:
                self._all(items, what)
                continue
            with self.program.node(part.node, self._sequence()):
                if part.heavy and self.training.recompute == "selective":
                    self._again(unit, [part])
                self._all(items, what)

    def _again(self, unit: Unit, parts: Sequence[Part]) -> None:
        """The forward once more, for the backward."""
        for place, part in enumerate(parts):
            for at, item in enumerate(part.forward):
                self._item(item, f"again {unit.name} {place}.{at}", again=True)

    def _all(self, items: Sequence[Work | Comm], what: str) -> None:
        for at, item in enumerate(items):
            self._item(item, f"{what}.{at}")

    def _item(self, item: Work | Comm, what: str, *, numbered: bool = False, again: bool = False) -> None:
        if isinstance(item, Work):
            self.program.work(item, what, numbered=numbered, again=again)
        else:
            self._exchange(item, what)

    def _exchange(self, comm: Comm, what: str) -> None:
        program, group = self.program, self.groups[comm.group]
        key = (comm.kind, program.lane.stage, program.step, program.micro_batch, what)
        load = None
        if comm.of == "experts":
            load = program.effects.experts[:, program.step, program.micro_batch]
        exchange = Exchange(comm.kind, group, comm.nbytes, key, load=load)
        made = program.exchange(exchange, STREAMS[comm.group], asynchronous=comm.asynchronous)
        if comm.asynchronous:
            program.rings.append(made)


#: Bytes that an update moves for each parameter: gradient, master weight, two moments read, three written, weight.
_UPDATE_BYTES = 30.0
#: Kernels that one parameter tensor takes in a plain loop over tensors, and one list in the foreach form.
_LOOP_KERNELS, _FOREACH_KERNELS = 8, 10
_FUSED_CHUNK = 120e6


def update(program: Program, training: Training, parameters: float, tensors: int) -> None:
    """The optimizer's kernels over `parameters` of this rank in `tensors` tensors."""
    name, ops, count = {
        "fused": (
            "aten::_fused_adamw_",
            "FusedOptimizerTensorListMetadata<4>",
            max(round(parameters / _FUSED_CHUNK), 1),
        ),
        "foreach": ("aten::_foreach_addcmul_", "TensorListMetadata<3>", _FOREACH_KERNELS),
        "loop": ("aten::addcmul_", "", _LOOP_KERNELS * tensors),
    }[training.optimizer]
    kernel = f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::{ops} >"
    if training.optimizer == "loop":
        kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_scalar_kernel>"
    # Separate kernels read and write the same tensors again: three passes over what the fused one moves once.
    moved = parameters * _UPDATE_BYTES * (1.0 if training.optimizer == "fused" else 3.0) / count
    work = Work(name, kernel, "optimizer", 0, moved, (), (), power=0)
    with program.span("user_annotation", "Optimizer.step#AdamW.step", _no_args()):
        for at in range(count):
            program.work(work, f"update {at}")


def zero_grad(program: Program) -> None:
    """Gradients are set to None: an annotation, no kernel."""
    with program.span("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", _no_args()):
        program.pause(5_000.0, "dispatch", "zero_grad")


def _no_args() -> Json:
    return {}
