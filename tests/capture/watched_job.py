"""A real data-parallel job on the CPU with `steptime.watch` in its loop, and a known fault.

`python tests/capture/watched_job.py OUT --rank=R …` trains one rank. Every step sleeps a while on every rank; from
`slow_at` on, the loader of `slow_rank` sleeps longer. A rank can kill itself. Nothing here knows of the analyser.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 90


@dataclass(frozen=True)
class Settings:
    """One job. Each field is an option of the command line; -1 for never and nobody."""

    ranks: int = 4
    steps: int = 84
    step_ms: float = 50.0
    jitter: float = 0.0  # standard deviation of what a step sleeps, as a share of it, drawn by each rank
    seed: int = 0
    slow_rank: int = -1
    slow_at: int = 60
    slow_ms: float = 60.0
    dying_rank: int = -1
    dies_at: int = -1
    automatic: int = 1
    distributed: int = 1  # 0: ranks that know of each other only by their environment, and begin together


@dataclass(frozen=True)
class Ended:
    """How each rank ended: exit codes, and what they logged."""

    codes: list[int]
    errors: list[str]


def run_job(out: Path, settings: Settings) -> Ended:
    """Run all ranks as processes of their own. Raises subprocess.TimeoutExpired if one does not end."""
    out.mkdir(parents=True, exist_ok=True)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in vars(settings).items()]
    repo = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(repo)}
    processes = []
    for rank in range(settings.ranks):
        log = (out / f"log-{rank}.txt").open("w")
        command = [sys.executable, __file__, str(out), f"--rank={rank}", *options]
        place = {"RANK": str(rank), "WORLD_SIZE": str(settings.ranks)}
        processes.append(subprocess.Popen(command, env={**environment, **place}, stdout=log, stderr=log))
        log.close()
    deadline = time.monotonic() + DEADLINE_S
    try:
        codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Ended(codes, [(out / f"log-{rank}.txt").read_text() for rank in range(settings.ranks)])


def train(out: Path, settings: Settings, rank: int) -> None:
    """Train one rank; when a peer is gone, go on alone."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    import steptime

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return settings.steps

        def __getitem__(self, index: int) -> Any:
            if rank == settings.slow_rank and index >= settings.slow_at:
                time.sleep(settings.slow_ms / 1e3)
            return torch.zeros(64) + index

    torch.set_num_threads(1)
    drawn = random.Random(1000 * settings.seed + rank)
    model: torch.nn.Module = (alone := torch.nn.Linear(64, 64))
    if settings.distributed:
        meeting = (out / "rendezvous").resolve().as_uri()
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=settings.ranks)
        model = DistributedDataParallel(alone)
    else:
        (out / f"ready-{rank}").touch()
        while len(list(out.glob("ready-*"))) < settings.ranks:
            time.sleep(0.01)
    optimizer = torch.optim.SGD(alone.parameters(), lr=1e-6)
    watching = steptime.WatchSettings(automatic=bool(settings.automatic), poll_s=0.2)
    began_ns = []
    with steptime.watch(out / "captures", watching) as watch:
        for step, rows in enumerate(DataLoader(Rows(), batch_size=1)):
            began_ns.append(time.perf_counter_ns())
            if rank == settings.dying_rank and step == settings.dies_at:
                os.kill(os.getpid(), 9)
            time.sleep(settings.step_ms / 1e3 * max(drawn.gauss(1.0, settings.jitter), 0.1))
            try:
                model(rows).sum().backward()
            except RuntimeError:
                model = alone
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
    (out / f"done-{rank}.json").write_text(json.dumps(began_ns))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    for name, default in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args())
    out, rank = options.pop("out"), options.pop("rank")
    train(out, Settings(**options), rank)


if __name__ == "__main__":
    main()
