"""A training process on the CPU whose data loader sleeps: `python slow_loader_job.py SLEEP_S RUN_S`.

It knows nothing of steptime. It writes one line once it trains.
"""

from __future__ import annotations

import sys
import time
from typing import Any


def main(sleep_s: float, run_s: float) -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset[Any]):
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> Any:
            time.sleep(sleep_s)
            return torch.full((64,), float(index))

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    end = time.monotonic() + run_s
    for step, rows in enumerate(DataLoader(Slow(), batch_size=1)):
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            sys.stdout.write("trains\n")
            sys.stdout.flush()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
