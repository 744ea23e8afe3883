"""A training process on the CPU whose dataset sleeps: `python train.py TRUTH SLEEP_S [GO]`, until it is killed.

It knows nothing of steptime. Each sleep is written to TRUTH as it ends: start and length, ns since the epoch. With GO
it imports torch, but takes no step before that file exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

TRUTH, SLEEP_S, GO = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]


class Slow(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.truth = TRUTH.open("w", buffering=1)

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        start = time.time_ns()
        time.sleep(SLEEP_S)
        self.truth.write(f"{start} {time.time_ns() - start}\n")
        return torch.ones(32)


class InOrder(torch.utils.data.Sampler[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(1 << 30))


def main() -> None:
    torch.set_num_threads(1)
    data = Slow()
    if GO:
        TRUTH.write_text("ready\n")
        while not Path(GO[0]).exists():
            time.sleep(0.02)
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(data, batch_size=1, sampler=InOrder()):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
