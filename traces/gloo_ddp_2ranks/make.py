"""Make this sample again: ``python traces/gloo_ddp_2ranks/make.py`` (needs torch, see MADE.md).

Runs the job of ``tests/real_run/job.py``, puts the two traces beside this file, unedited, and writes what was
injected under the last heading of MADE.md.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.real_run.job import Settings, Truth, run_job  # noqa: E402  the checkout is not installed

SETTINGS = Settings(checkpointing="nonreentrant", slow_rank=1, sleep_ms=20.0, steps=8, layers=1, width=192)
HEADING = "## This recording\n"


def main() -> None:
    """Record, copy the traces, describe them."""
    with tempfile.TemporaryDirectory() as folder:
        truth = run_job(Path(folder), SETTINGS)
        for rank in range(SETTINGS.ranks):
            name = f"rank{rank}.pt.trace.json.gz"
            shutil.copyfile(Path(folder) / name, HERE / name)
    made = HERE / "MADE.md"
    prose, _, _ = made.read_text().partition(HEADING)
    made.write_text(prose + HEADING + _describe(truth))


def _describe(truth: Truth) -> str:
    lines = [
        f"\ntorch {version('torch')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, one thread a rank.\n",
        f"`{SETTINGS}`\n",
        "Measured by the job's own clock, in ms: the sleep, the whole `next(loader)`, and how much later than rank 0 "
        "rank 1 had its last gradient.\n",
        "| ProfilerStep | rank 0 loader | rank 1 sleep | rank 1 loader | rank 1 late by |",
        "|--:|--:|--:|--:|--:|",
    ]
    first, second = truth["ranks"]["0"], truth["ranks"]["1"]
    for number in truth["recorded_steps"]:
        step = str(number)
        late = second["arrival_ns"][step] - first["arrival_ns"][step]
        figures = (first["loader_ns"][step], second["sleep_ns"].get(step, 0), second["loader_ns"][step], late)
        lines.append(f"| {step} | " + " | ".join(f"{ns / 1e6:.3f}" for ns in figures) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
