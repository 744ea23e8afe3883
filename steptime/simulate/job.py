"""From a scenario to a plan: groups, lanes, and each lane's program step by step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from steptime.simulate.catalog import Gpu
from steptime.simulate.data_parallel import Alone, Buckets, DataParallel, Shards
from steptime.simulate.effects import Effects
from steptime.simulate.noise import Noise
from steptime.simulate.passes import Passes, Unit, chunk_units, update, zero_grad
from steptime.simulate.pipeline import Mail
from steptime.simulate.plan import I64, Exchange, Group, Lane, Plan, make_group
from steptime.simulate.program import Program
from steptime.simulate.scenario import Layout, Scenario, Shape, shape_of
from steptime.simulate.schedules import Action, schedule
from steptime.simulate.transformer import Transformer, Work

WORLD_STREAM = 16
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def make_plan(scenario: Scenario, effects: Effects, gpu: Gpu) -> Plan:
    """The whole job as programs of its lanes."""
    layout, recording = scenario.layout, scenario.recording
    hosts = np.arange(layout.world) // scenario.cluster.gpus_per_host
    groups = make_groups(layout, hosts)
    per_stage = layout.world // layout.pp
    mail = Mail(layout, scenario.batch.micro_batches, groups.get("pp"), per_stage)
    mail.nbytes = Transformer(shape_of(scenario.model), layout, scenario.batch, scenario.training).message_bytes
    lanes = []
    for stage in range(layout.pp):
        lane = Lane(stage, np.arange(stage * per_stage, (stage + 1) * per_stage))
        _Stage(lane, scenario, effects, gpu, (groups, mail)).write()
        lanes.append(lane)
    first = recording.first_step - recording.warmup
    recorded = range(recording.first_step, recording.first_step + recording.steps)
    return Plan(layout.world, hosts, lanes, list(groups.values()), first, recorded)


def make_groups(layout: Layout, hosts: I64) -> dict[str, Group]:
    """Process groups by the name of their dimension; those of one member are left out."""
    grid = np.arange(layout.world).reshape(layout.pp, layout.dp // layout.ep, layout.ep, layout.cp, layout.tp)
    dims = {"tp": (4,), "cp": (3,), "ep": (2,), "dp": (1, 2, 3), "pp": (0,)}
    groups = {"world": make_group("0", "default_pg", np.zeros(layout.world, np.int64), hosts)}
    for number, (name, axes) in enumerate(dims.items(), start=1):
        kept = [axis for axis in range(5) if axis not in axes]
        size = int(np.prod([grid.shape[axis] for axis in axes]))
        if size == 1:
            continue
        rows = grid.transpose(*kept, *axes).reshape(-1, size)
        label = np.empty(layout.world, np.int64)
        label[rows] = np.arange(len(rows))[:, None]
        groups[name] = make_group(str(number), f"mesh_{name}", label, hosts)
    return groups


def stage_layers(layout: Layout, shape: Shape) -> list[list[int]]:
    """Layers of each model chunk in order; chunk c of stage s is entry c * pp + s."""
    pieces = layout.pp * layout.chunks
    counts = layout.stage_layers
    if counts is None:
        counts = [shape.layers // pieces + (at < shape.layers % pieces) for at in range(pieces)]
    ends = np.cumsum([0, *counts]).tolist()
    return [list(range(low, high)) for low, high in zip(ends[:-1], ends[1:], strict=True)]


class _Stage:
    """Writes the program of one pipeline stage."""

    def __init__(
        self, lane: Lane, scenario: Scenario, effects: Effects, gpu: Gpu, shared: tuple[dict[str, Group], Mail]
    ) -> None:
        self.lane = lane
        self.scenario = scenario
        self.effects = effects
        self.groups, self.mail = shared
        self.program = Program(lane, scenario, effects, gpu)
        layout, training = scenario.layout, scenario.training
        shape = shape_of(scenario.model)
        self.model = Transformer(shape, layout, scenario.batch, training)
        pieces = stage_layers(layout, shape)
        self.chunks = [
            chunk_units(self.model, pieces[piece], piece == 0, piece == len(pieces) - 1)
            for piece in range(lane.stage, len(pieces), layout.pp)
        ]
        self.parallel = self._parallel()
        self.passes = Passes(self.program, training, self.groups, self.parallel, self._between)
        self.actions = schedule(layout.schedule, lane.stage, layout.pp, scenario.batch.micro_batches, layout.chunks)
        self.struck = False

    def _parallel(self) -> DataParallel:
        if "dp" not in self.groups:
            return Alone()
        kind = Shards if self.scenario.layout.fsdp else Buckets
        made: DataParallel = kind(self.program, self.groups["dp"], self.scenario.training)
        return made

    def write(self) -> None:
        """All steps, with the recording around those that are recorded."""
        recording = self.scenario.recording
        for step in range(recording.warmup + recording.steps):
            self.program.step, self.program.micro_batch = step, 0
            if step == recording.warmup:
                self.program.record(True, self._hold())
            if recording.step_marks:
                number = recording.first_step - recording.warmup + step
                with self.program.span("user_annotation", f"ProfilerStep#{number}"):
                    self._step()
            else:
                self._step()
        self.program.sync("cudaDeviceSynchronize", None)
        self.program.record(False)

    def _hold(self) -> I64 | None:
        spread = self.scenario.recording.start_spread_us
        if not spread:
            return None
        draw = Noise(self.scenario.seed).uniform(("recording",), self.lane.ranks.astype(np.uint64))
        return np.rint(draw * spread * 1e3).astype(np.int64)

    def _step(self) -> None:
        program, training = self.program, self.scenario.training
        program.pause(self.scenario.host.step_us * 1e3, "dispatch", "step")
        self.struck = False
        self._broadcast()
        for place, action in enumerate(self.actions):
            program.micro_batch = action.micro_batch
            self._act(action, place)
        program.micro_batch = 0
        self.parallel.finish()
        if training.clip_grad:
            self._clip()
        dp = self.scenario.layout.dp * self.scenario.layout.cp if self.scenario.layout.fsdp else 1
        units = [unit for chunk in self.chunks for unit in chunk]
        parameters = sum(unit.parameters for unit in units) / dp
        update(program, training, parameters, sum(len(unit.parts) for unit in units))
        zero_grad(program)
        if training.log_every and (program.step + 1) % training.log_every == 0:
            with program.span("cpu_op", "aten::item"):
                program.item(None)
        checkpoint = self.effects.checkpoint_ns[self.lane.ranks, program.step]
        program.pause(checkpoint, "checkpoint", "save", program.span_of("user_annotation", "steptime::checkpoint"))

    def _act(self, action: Action, place: int) -> None:
        stage, mail, passes = self.lane.stage, self.mail, self.passes
        units = self.chunks[action.chunk]
        whole = self.program.graph if self.scenario.training.cuda_graph else nullcontext
        last = self._is_last(action, place)
        if action.kind == "F":
            if stage == 0 and action.chunk == 0:
                self._load_batch()
            mail.receive(self.program, "F", action)
            with whole():
                passes.forward(units)
            mail.send(self.program, "F", action)
        elif action.kind == "B":
            mail.receive(self.program, "B", action)
            with whole():
                passes.backward(units, last, weights=self.scenario.layout.schedule != "zero-bubble")
            mail.send(self.program, "B", action)
        else:
            with whole():
                passes.weight(units, last)

    def _is_last(self, action: Action, place: int) -> bool:
        """Whether the chunk's gradients are whole after this action."""
        kind = "W" if self.scenario.layout.schedule == "zero-bubble" else "B"
        rest = self.actions[place + 1 :]
        return action.kind == kind and not any(a.kind == kind and a.chunk == action.chunk for a in rest)

    def _load_batch(self) -> None:
        program, host = self.program, self.scenario.host
        ranks, step = self.lane.ranks, program.step
        first = program.micro_batch == 0
        slow = self.effects.loader_ns[ranks, step] if first else 0.0
        loader = program.span_of("user_annotation", _LOADER)
        program.pause(host.loader_us * 1e3 + slow, "data_loader", "next", loader)
        tokens = self.model.tokens * 8
        program.copy("Memcpy HtoD (Pinned -> Device)", tokens)

    def _broadcast(self) -> None:
        """DDP sends buffers from the first rank of each group at the start of the forward."""
        if self.scenario.training.broadcast_buffers and "dp" in self.groups:
            program = self.program
            key = ("broadcast", self.lane.stage, program.step)
            program.exchange(Exchange("broadcast", self.groups["dp"], 1e6, key), 20)

    def _clip(self) -> None:
        """The gradient norm of the whole job: a kernel and a small all-reduce over all ranks."""
        program = self.program
        norm = Work(
            "aten::_foreach_norm",
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>, "
            "at::native::LpNormFunctor<c10::BFloat16, (at::native::NormType)1> >",
            "memory_bound",
            0,
            sum(unit.parameters for chunk in self.chunks for unit in chunk) * 2.0,
            (),
            (),
            power=0,
        )
        program.work(norm, "norm")
        if self.scenario.layout.world > 1:
            exchange = self.mail.shared("clip", program.step, self.groups["world"])
            program.exchange(exchange, WORLD_STREAM)

    def _between(self, unit: int) -> None:
        """Where faults of the host strike: in the first forward of the step, spread over its units."""
        program, effects = self.program, self.effects
        units: Sequence[Unit] = self.chunks[0]
        if program.micro_batch or self.struck or self.scenario.training.cuda_graph:
            return
        ranks, step = self.lane.ranks, program.step
        middle = len(units) // 2
        syncs = effects.syncs[ranks, step]
        for number in range(int(syncs.max(initial=0))):
            if unit == (number + 1) * len(units) // (int(syncs.max()) + 1):
                program.item(syncs > number)
        if unit == middle:
            program.pause(effects.gc_ns[ranks, step], "gc", "collect")
            program.pause(effects.python_ns[ranks, step], "python", "hole")
            self._retry()
        self.struck = unit == len(units) - 1

    def _retry(self) -> None:
        """The caching allocator frees what it holds, which waits for the device, and asks again."""
        program, effects = self.program, self.effects
        spent = effects.alloc_ns[self.lane.ranks, program.step]
        if not (spent > 0).any():
            return
        for _ in range(effects.alloc_count):
            program.sync("cudaFree", None, spent > 0, "allocator")
            program.pause(spent, "allocator", "malloc", program.call("cudaMalloc"))
