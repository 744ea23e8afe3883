"""Start the ranks of a job as processes of their own, with nothing between them but a file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DEADLINE_S = 60


def run_ranks(script: Path, out: Path, ranks: int, arguments: Sequence[str]) -> None:
    """Run ``python SCRIPT OUT --rank=R ARGUMENTS`` once a rank and wait for all; `out` is made if need be.

    Raises:
        RuntimeError: a rank failed or did not end in `DEADLINE_S`; its last lines of output are in the message.
    """
    out.mkdir(parents=True, exist_ok=True)
    rendezvous = out / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    processes = [_start(script, out, rank, arguments) for rank in range(ranks)]
    deadline = time.monotonic() + DEADLINE_S
    try:
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if process.returncode != 0:
                raise RuntimeError(f"rank {rank} ended with {process.returncode}: {errors[-2000:]}")
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the job did not end within {DEADLINE_S} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    rendezvous.unlink(missing_ok=True)


#: A rank that is last in this share of the steps, by this share of a step on average, really is slower than the others.
OFTEN, NOTICEABLY = 0.5, 0.02


def one_was_late(arrival_ns: Sequence[Mapping[str, int]], steps: Sequence[int]) -> bool:
    """Whether the machine itself held up one rank of a job again and again, by the job's own clock.

    arrival_ns: of each rank, by step as text.
    """
    found = [[times[str(step)] for times in arrival_ns] for step in steps]
    last = [max(times) for times in found]
    length = (last[-1] - last[0]) / max(len(last) - 1, 1)
    leads = [(times.index(max(times)), max(times) - sorted(times)[-2]) for times in found]
    for rank in range(len(arrival_ns)):
        mine = [lead for who, lead in leads if who == rank]
        if len(mine) >= OFTEN * len(leads) and sum(mine) >= NOTICEABLY * length * len(leads):
            return True
    return False


def to_arguments(settings: Mapping[str, object]) -> list[str]:
    """The command line of some settings: one option a field."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def _start(script: Path, out: Path, rank: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(script), str(out), f"--rank={rank}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # A script's own folder comes first in its path; the package of the tests lies two folders above.
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parents[2]), environment.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if hasattr(os, "sched_setaffinity"):
        # Each rank keeps its share of the cores, whatever the scheduler makes of the others.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {cores[rank % len(cores)]})
    return process
