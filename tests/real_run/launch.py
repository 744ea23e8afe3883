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


def to_arguments(settings: Mapping[str, object]) -> list[str]:
    """The command line of some settings: one option a field."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def _start(script: Path, out: Path, rank: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(script), str(out), f"--rank={rank}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # A script's own folder comes first in its path; the package of the tests lies two folders above.
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parents[2]), environment.get("PYTHONPATH", "")])
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
