"""A real data-parallel training job on the CPU, profiled, with a known fault.

`python -m tests.real_run.job OUT_DIR` starts one process per rank (gloo, rendezvous through a file in OUT_DIR, so no
port can clash). Each rank trains a small transformer under DistributedDataParallel. On one rank the dataset sleeps in
some batches, and the sleep is measured around the call with `perf_counter_ns`. The job writes

* ``rank{r}.pt.trace.json.gz``: the profiler's Chrome trace of each rank;
* ``truth.json``: what was injected, keyed by rank and by the number N of ``ProfilerStep#N`` (format: `Truth`).

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
from typing import TYPE_CHECKING, Any, TypedDict, cast

from tests.real_run.launch import run_ranks, to_arguments

# torch is imported where a rank needs it: the parent process and the tests, which only read `Settings`, do without.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset


class RankTruth(TypedDict):
    """What one rank measured with `perf_counter_ns`. Keys are step numbers as text, values nanoseconds."""

    sleep_ns: dict[str, int]  # only the steps in which the dataset slept
    loader_ns: dict[str, int]  # around ``next(batches)``: the sleep, indexing and collating
    arrival_ns: dict[str, int]  # when the last gradient was ready; CLOCK_MONOTONIC, one clock for all ranks of a host


class Truth(TypedDict):
    """Contents of ``truth.json``. `recorded_steps` are the numbers N that have a ``ProfilerStep#N`` in the traces."""

    checkpointing: str
    slow_rank: int
    recorded_steps: list[int]
    ranks: dict[str, RankTruth]


@dataclass(frozen=True)
class Settings:
    """One job. Each field is an option of the command line."""

    ranks: int = 2
    slow_rank: int = 1  # -1: nobody sleeps
    sleep_ms: float = 20.0
    sleep_every: int = 2  # the dataset sleeps in every n-th batch of the slow rank
    checkpointing: str = "off"  # off, reentrant, nonreentrant
    optimizer: str = "sgd"  # sgd, adamw
    warmup_steps: int = 3  # steps before the recording: one that the profiler skips, the rest to warm it up
    steps: int = 12  # recorded steps
    layers: int = 2
    width: int = 256
    sequence: int = 32
    batch: int = 4
    with_stack: bool = False
    bucket_mb: float = 4.0
    op_ms: float = 0.0  # an op of the model sleeps so long a step on every rank, half of it in the backward pass,
    slow_op_rank: int = -1  # and longer on this one
    slow_op_ms: float = 0.0


CHOICES = {"checkpointing": ("off", "reentrant", "nonreentrant"), "optimizer": ("sgd", "adamw")}


def run_job(out: Path, settings: Settings) -> Truth:
    """Run all ranks as processes of their own and return (and write) the truth.

    Raises:
        RuntimeError: a rank failed or did not end in time; its last lines of output are in the message.
    """
    run_ranks(Path(__file__), out, settings.ranks, to_arguments(vars(settings)))
    truth = _collect_truth(out, settings)
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def _collect_truth(out: Path, settings: Settings) -> Truth:
    parts = {}
    for rank in range(settings.ranks):
        part = out / f"truth-{rank}.json"
        parts[str(rank)] = json.loads(part.read_text())
        part.unlink()
    recorded = list(range(settings.warmup_steps, settings.warmup_steps + settings.steps))
    return Truth(
        checkpointing=settings.checkpointing, slow_rank=settings.slow_rank, recorded_steps=recorded, ranks=parts
    )


def train(out: Path, settings: Settings, rank: int) -> None:
    """Train and record one rank, in this process."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.manual_seed(0)
    meeting = (out / "rendezvous").resolve().as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=settings.ranks)
    own_ms = settings.op_ms + (settings.slow_op_ms if rank == settings.slow_op_rank else 0.0)
    model = DistributedDataParallel(_build_model(settings, own_ms), bucket_cap_mb=settings.bucket_mb)
    if settings.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sleep_ns: dict[str, int] = {}
    loader_ns: dict[str, int] = {}
    arrival_ns: dict[str, int] = {}

    # The embedding's gradient is the last one of a step: this is the moment before the last all_reduce is issued.
    # Each step begins with its entry in loader_ns, so the last one is the step that runs.
    def note_arrival(_: torch.Tensor) -> None:
        arrival_ns[str(len(loader_ns) - 1)] = time.perf_counter_ns()

    model.module.embed.weight.register_hook(note_arrival)
    loader = DataLoader(_build_dataset(settings, rank, sleep_ns), batch_size=settings.batch, num_workers=0)
    plan = schedule(wait=1, warmup=settings.warmup_steps - 1, active=settings.steps, repeat=1)
    recorder = profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        with_stack=settings.with_stack,
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(out / f"rank{rank}.pt.trace.json.gz")),
    )
    batches = iter(loader)
    dist.barrier()
    with recorder as prof:
        for step in range(settings.warmup_steps + settings.steps):
            before = time.perf_counter_ns()
            tokens = next(batches)
            loader_ns[str(step)] = time.perf_counter_ns() - before
            optimizer.zero_grad()
            logits = model(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            prof.step()
    part = RankTruth(sleep_ns=sleep_ns, loader_ns=loader_ns, arrival_ns=arrival_ns)
    (out / f"truth-{rank}.json").write_text(json.dumps(part))
    dist.destroy_process_group()


def _build_dataset(settings: Settings, rank: int, sleep_ns: dict[str, int]) -> Dataset[torch.Tensor]:
    """The samples of one rank. The sleep is in the first sample of a batch; sample order is the batch order."""
    import torch
    from torch.utils.data import Dataset

    count = (settings.warmup_steps + settings.steps) * settings.batch
    tokens = torch.randint(0, 512, (count, settings.sequence))

    class Samples(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> torch.Tensor:
            batch, position = divmod(index, settings.batch)
            if rank == settings.slow_rank and position == 0 and batch % settings.sleep_every == 0:
                before = time.perf_counter_ns()
                time.sleep(settings.sleep_ms / 1e3)
                sleep_ns[str(batch)] = time.perf_counter_ns() - before
            return tokens[index]

    return Samples()


def _sleeping_op() -> Callable[[torch.Tensor, float], torch.Tensor]:
    """An op that takes a known time without a core, in the forward pass and again in the backward pass."""
    import torch

    library = cast("Any", torch.library).Library("real_run", "DEF")
    library.define("sleep(Tensor x, float ms) -> Tensor")

    def run(x: torch.Tensor, ms: float) -> torch.Tensor:
        time.sleep(ms / 1e3)
        return x.clone()

    library.impl("sleep", run, "CPU")

    class Sleep(torch.autograd.Function):
        defined_by = library  # the op is gone with it

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, ms: float) -> torch.Tensor:
            ctx.ms = ms
            return cast("torch.Tensor", torch.ops.real_run.sleep(x, ms))

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
            return torch.ops.real_run.sleep(grads[0], ctx.ms), None

    return cast("Callable[[torch.Tensor, float], torch.Tensor]", Sleep.apply)


def _build_model(settings: Settings, op_ms: float) -> torch.nn.Module:
    """Embedding, blocks (each checkpointed if the settings say so), head; ops of the blocks sleep `op_ms` in all."""
    import torch
    from torch.utils.checkpoint import checkpoint

    width = settings.width
    sleep = _sleeping_op() if op_ms else None

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(width)
            self.qkv = torch.nn.Linear(width, 3 * width)
            self.out = torch.nn.Linear(width, width)
            self.mlp = torch.nn.Sequential(
                torch.nn.LayerNorm(width),
                torch.nn.Linear(width, 4 * width),
                torch.nn.GELU(),
                torch.nn.Linear(4 * width, width),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            if sleep is not None:
                x = sleep(x, op_ms / 2 / settings.layers)
            y: torch.Tensor = x + self.mlp(x)
            return y

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(512, width)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(settings.layers))
            self.head = torch.nn.Linear(width, 512)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for block in self.blocks:
                if settings.checkpointing == "off":
                    x = block(x)
                else:
                    x = checkpoint(block, x, use_reentrant=settings.checkpointing == "reentrant")
            logits: torch.Tensor = self.head(x)
            return logits

    return Model()


def main(arguments: list[str]) -> None:
    """Command line: without ``--rank`` it runs the whole job, with it only that rank."""
    parser = argparse.ArgumentParser(description="a profiled training job on the CPU with a known fault")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=None, help="run only this rank (the job starts them by itself)")
    for name, value in vars(Settings()).items():
        kind = _parse_flag if isinstance(value, bool) else type(value)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value, choices=CHOICES.get(name))
    options = vars(parser.parse_args(arguments))
    out, rank = options.pop("out"), options.pop("rank")
    settings = Settings(**options)
    if rank is None:
        run_job(out, settings)
    else:
        train(out, settings, rank)


def _parse_flag(text: str) -> bool:
    return {"True": True, "False": False}[text]


if __name__ == "__main__":
    main(sys.argv[1:])
