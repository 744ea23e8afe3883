"""Real jobs of the usual parallel layouts on the CPU (gloo), profiled, with a known fault.

`python -m tests.real_run.layouts OUT_DIR --layout=1f1b` runs one, one process a rank, and writes

* ``rank{r}.pt.trace.json.gz``: the profiler's Chrome trace of each rank;
* ``truth.json``: what was injected, by rank and by the number N of ``ProfilerStep#N`` (format: `LayoutTruth`).

The model is a chain of blocks (two linear layers each), so that every layout takes the same one. Faults:

* ``compute``: the slow rank multiplies matrices for about `inject_ms` a step at the beginning of its forward passes,
  in a `record_function` range of the name `INJECTED`; how often is measured at the start, while nobody else computes;
* ``loader``: its dataset sleeps `inject_ms` in each batch;
* ``stage``: in a pipeline the stage of the slow rank has twice the layers, on all its replicas.

Nothing here knows of the analyser: the truth comes from the job's own clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tests.real_run.launch import run_ranks, to_arguments

# torch is imported where a rank needs it: the parent process and the tests, which only read `Layout`, do without.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

INJECTED = "injected"
PIPELINES = ("gpipe", "1f1b", "interleaved")
CHOICES = {"layout": ("ddp", "fsdp", "tp", *PIPELINES), "fault": ("none", "compute", "loader", "stage")}

Pass = Callable[["torch.Tensor"], None]


class LayoutTruth(TypedDict):
    """Contents of ``truth.json``. injected_ns, arrival_ns by rank, then by step number as text: what was injected, and
    when the last gradient was ready (CLOCK_MONOTONIC, one clock for all ranks of a host).

    stage_of: the (first) pipeline stage of each rank; empty without a pipeline.
    """

    layout: str
    fault: str
    slow_rank: int
    recorded_steps: list[int]
    stage_of: dict[str, int]
    injected_ns: dict[str, dict[str, int]]
    arrival_ns: dict[str, dict[str, int]]


@dataclass
class Note:
    """What a rank measures: by step, in nanoseconds."""

    injected_ns: dict[int, int]
    arrival_ns: dict[int, int]
    step: int = 0

    def injected(self, ns: int) -> None:
        self.injected_ns[self.step] = self.injected_ns.get(self.step, 0) + ns

    def arrived(self, _: torch.Tensor) -> None:
        self.arrival_ns[self.step] = time.perf_counter_ns()

    def texts(self) -> dict[str, dict[int, int]]:
        return {"injected_ns": self.injected_ns, "arrival_ns": self.arrival_ns}


@dataclass(frozen=True)
class Layout:
    """One job. Each field is an option of the command line."""

    layout: str = "ddp"
    fault: str = "none"
    ranks: int = 4
    replicas: int = 1  # pipelines: data-parallel copies of each stage, on neighbouring ranks
    slow_rank: int = 2
    inject_ms: float = 300.0
    warmup_steps: int = 3  # steps before the recording: one that the profiler skips, the rest to warm it up
    steps: int = 5  # recorded steps
    layers: int = 2  # blocks; of each stage (each model chunk of an interleaved one) in a pipeline
    width: int = 256
    batch: int = 96  # rows of a batch, a multiple of the micro-batches
    micro_batches: int = 6


def run_layout(out: Path, settings: Layout) -> LayoutTruth:
    """Run all ranks and return (and write) the truth.

    Raises:
        RuntimeError: a rank failed or did not end in time.
    """
    run_ranks(Path(__file__), out, settings.ranks, to_arguments(vars(settings)))
    parts = {}
    for rank in range(settings.ranks):
        part = out / f"truth-{rank}.json"
        parts[str(rank)] = json.loads(part.read_text())
        part.unlink()
    truth = LayoutTruth(
        layout=settings.layout,
        fault=settings.fault,
        slow_rank=settings.slow_rank,
        recorded_steps=list(range(settings.warmup_steps, settings.warmup_steps + settings.steps)),
        stage_of={rank: part["stage"] for rank, part in parts.items() if part["stage"] is not None},
        injected_ns={rank: part["injected_ns"] for rank, part in parts.items()},
        arrival_ns={rank: part["arrival_ns"] for rank, part in parts.items()},
    )
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def trace_paths(out: Path, settings: Layout) -> list[Path]:
    """The traces that a job writes, by rank."""
    return [out / f"rank{rank}.pt.trace.json.gz" for rank in range(settings.ranks)]


def train(out: Path, settings: Layout, rank: int) -> None:
    """Train and record one rank, in this process."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.manual_seed(0)
    meeting = (out / "rendezvous").resolve().as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=settings.ranks)
    modules, passes, stage = _build(settings, rank)
    parameters = [parameter for one in modules for parameter in one.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    slow = rank == settings.slow_rank
    note = Note({}, {})
    dist.barrier()
    if slow and settings.fault == "compute":
        _slow_down(modules, settings, note)
    sleeps = slow and settings.fault == "loader"
    # The first parameter's gradient is the last one of a step.
    parameters[0].register_hook(note.arrived)  # type: ignore[no-untyped-call]
    batches = iter(DataLoader(_build_dataset(settings, note, sleeps), batch_size=settings.batch))
    recorder = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=settings.warmup_steps - 1, active=settings.steps, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(out / f"rank{rank}.pt.trace.json.gz")),
    )
    dist.barrier()
    with recorder as prof:
        for step in range(settings.warmup_steps + settings.steps):
            note.step = step
            batch = next(batches)
            optimizer.zero_grad()
            passes(batch)
            optimizer.step()
            prof.step()
    (out / f"truth-{rank}.json").write_text(json.dumps({"stage": stage, **note.texts()}))
    dist.barrier()
    dist.destroy_process_group()


def _slow_down(modules: list[torch.nn.Module], settings: Layout, note: Note) -> None:
    """Let each forward pass of the modules begin with products that are none of the model's."""
    import torch
    from torch.profiler import record_function

    square = torch.randn(512, 512)
    passes = len(modules) * (settings.micro_batches if settings.layout in PIPELINES else 1)
    for _ in range(20):
        torch.mm(square, square)
    before = time.perf_counter_ns()
    for _ in range(50):
        torch.mm(square, square)
    products = max(1, round(settings.inject_ms * 1e6 / passes * 50 / (time.perf_counter_ns() - before)))

    def multiply(*_: object) -> None:
        before = time.perf_counter_ns()
        with record_function(INJECTED):
            for _at in range(products):
                torch.mm(square, square)
        note.injected(time.perf_counter_ns() - before)

    for one in modules:
        one.register_forward_pre_hook(multiply)


def _build_dataset(settings: Layout, note: Note, sleeps: bool) -> Dataset[torch.Tensor]:
    """The samples of one rank, in the order of the batches; a sleep is in the first sample of its batch."""
    import torch
    from torch.utils.data import Dataset

    count = (settings.warmup_steps + settings.steps) * settings.batch
    rows = torch.randn(count, settings.width)

    class Samples(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> torch.Tensor:
            batch, position = divmod(index, settings.batch)
            if sleeps and position == 0:
                before = time.perf_counter_ns()
                time.sleep(settings.inject_ms / 1e3)
                note.injected(time.perf_counter_ns() - before)
            return rows[index]

    return Samples()


def _blocks(settings: Layout, count: int) -> torch.nn.Sequential:
    import torch

    width = settings.width
    made = []
    for _ in range(count):
        up, down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        made.append(torch.nn.Sequential(up, torch.nn.GELU(), down))
    return torch.nn.Sequential(*made)


def _build(settings: Layout, rank: int) -> tuple[list[torch.nn.Module], Pass, int | None]:
    """The modules of one rank, its forward and backward pass over a batch, and its stage in a pipeline."""
    if settings.layout in PIPELINES:
        return _build_pipeline(settings, rank)
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    model: Any = _blocks(settings, settings.layers)
    if settings.layout == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif settings.layout == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (settings.ranks,), mesh_dim_names=("dp",))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (settings.ranks,), mesh_dim_names=("tp",))
        for block in model:
            parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def passes(batch: torch.Tensor) -> None:
        torch.autograd.backward(torch.nn.functional.mse_loss(model(batch), batch))

    return [model], passes, None


def _build_pipeline(settings: Layout, rank: int) -> tuple[list[torch.nn.Module], Pass, int]:
    """One stage, or two model chunks of an interleaved schedule; with replicas each chunk is under DDP."""
    import torch
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh

    count = settings.ranks // settings.replicas
    here = rank // settings.replicas
    heavy = settings.slow_rank // settings.replicas if settings.fault == "stage" else -1
    layers = settings.layers * (2 if here == heavy else 1)
    group, replicas = None, None
    if settings.replicas > 1:
        mesh = init_device_mesh("cpu", (count, settings.replicas), mesh_dim_names=("pp", "dp"))
        group, replicas = mesh.get_group("pp"), mesh.get_group("dp")
    chunks = 2 if settings.layout == "interleaved" else 1
    modules: list[Any] = [_blocks(settings, layers) for _ in range(chunks)]
    if replicas is not None:
        modules = [torch.nn.parallel.DistributedDataParallel(one, process_group=replicas) for one in modules]
    device = torch.device("cpu")
    stages: Any = [
        pipelining.PipelineStage(one, here + count * at, count * chunks, device, group=group)
        for at, one in enumerate(modules)
    ]
    kinds: dict[str, Any] = {
        "gpipe": pipelining.ScheduleGPipe,
        "1f1b": pipelining.Schedule1F1B,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
    }
    runs = kinds[settings.layout](
        stages if chunks > 1 else stages[0], settings.micro_batches, loss_fn=torch.nn.functional.mse_loss
    )

    def passes(batch: torch.Tensor) -> None:
        if here == 0:
            runs.step(batch)
        elif here == count - 1:
            runs.step(target=batch, losses=[])
        else:
            runs.step()

    return modules, passes, here


def main(arguments: list[str]) -> None:
    """Command line: without ``--rank`` it runs the whole job, with it only that rank."""
    parser = argparse.ArgumentParser(description="a profiled parallel training job on the CPU with a known fault")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=None, help="run only this rank (the job starts them by itself)")
    for name, value in vars(Layout()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, choices=CHOICES.get(name))
    options = vars(parser.parse_args(arguments))
    out, rank = options.pop("out"), options.pop("rank")
    settings = Layout(**options)
    if rank is None:
        run_layout(out, settings)
    else:
        train(out, settings, rank)


if __name__ == "__main__":
    main(sys.argv[1:])
