"""`python -m tests.capture.faulty_places OUT CASE…`: trainings in one process whose capture directory is at fault.

Each trains `STEPS` steps with its captures in ``OUT/CASE/captures``. The cases are the functions below, and ``plain``.
Prints one line of JSON a case: how many steps were done, what was logged, whether `torch.save` is the original one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import steptime
from steptime.capture.request import captured_files

FIRST, STEPS, ASKED_AT = 100, 40, 3
SMALL_BYTES = 4096
NOBODY = 65534


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def full() -> Iterator[None]:
    """No file may grow beyond `SMALL_BYTES`, as on a disk with so much left."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def readonly() -> Iterator[None]:
    """Run as a user who may not write."""
    Path("captures").mkdir()
    Path("captures").chmod(0o555)
    if mighty := os.geteuid() == 0:
        os.seteuid(NOBODY)
    yield
    if mighty:
        os.seteuid(0)


@contextlib.contextmanager
def file() -> Iterator[None]:
    """There is a file in its place."""
    Path("captures").write_text("in the way")
    yield


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    """The job runs a profiler of its own."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


AROUND: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "full": full,
    "readonly": readonly,
    "file": file,
    "profiled": profiled,
}


def deleted() -> None:
    """The directory goes while a capture runs."""
    shutil.rmtree("captures")


def long() -> None:
    """A step takes longer than a capture may."""
    time.sleep(1.2)


SECOND_STEP: dict[str, Callable[[], None]] = {"deleted": deleted, "long": long}


def marked() -> None:
    """A step collects garbage and saves twice: once with `torch.save`, once in the context of the watch."""
    gc.collect()
    torch.save({"weights": torch.ones(3)}, "weights.pt")


def _second_step() -> int | None:
    found = captured_files("captures")
    return None if found is None or found.plan is None else found.plan.first_recorded + 1


def train(case: str) -> None:
    settings = steptime.WatchSettings(
        automatic=False,
        steps=8,
        poll_s=0.05,
        signal_number=signal.SIGUSR1 if case == "signalled" else None,
        max_seconds=1.0 if case == "long" else 60.0,
        max_bytes=1000 if case == "big" else 1 << 30,
    )
    happens = SECOND_STEP.get(case)
    with steptime.watch("captures", settings, first_step=FIRST) as watch:
        for step in range(STEPS):
            if step == ASKED_AT:
                os.kill(os.getpid(), signal.SIGUSR1) if case == "signalled" else watch.capture("the test asks")
            if happens is not None and watch.number == _second_step():
                happens()
            if case == "marked":
                marked()
                with watch.checkpoint():
                    time.sleep(0.001)
            time.sleep(0.02)
            torch.ones(8, 8).mm(torch.ones(8, 8))
            watch.step()
    heard.texts.append(f"{watch.number - FIRST} steps")


heard = _Heard()

if __name__ == "__main__":
    logging.getLogger("steptime").addHandler(heard)
    original = torch.save
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        os.chdir(folder)
        heard.texts.clear()
        with AROUND.get(name, contextlib.nullcontext)():
            train(name)
        sys.stdout.write(json.dumps({"heard": heard.texts, "restored": torch.save is original}) + "\n")
