"""Timing and verdicts: alternating repetitions, medians, and a figure beside the limit it must meet."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Figure:
    """One measured figure. `limit` None: shown for information, never missed."""

    name: str
    value: float
    unit: str = "x"
    bound: Literal["at most", "at least"] = "at most"
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure keeps its limit."""
        if self.limit is None:
            return True
        return self.value <= self.limit if self.bound == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        """One line: verdict, name, figure, limit, note."""
        verdict = "    " if self.limit is None else ("ok  " if self.met else "MISS")
        limit = "" if self.limit is None else f"{self.bound} {self.limit:g} {self.unit}"
        return f"{verdict} {self.name:<58} {self.value:9.2f} {self.unit:<5} {limit:<18} {self.note}".rstrip()


def alternate(actions: Sequence[Callable[[], object]], repeat: int) -> list[float]:
    """Median seconds of each action over `repeat` rounds; a round runs each once, so that load hits all alike.

    The result of an action is freed after its time was taken.
    """
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(repeat):
        for spent, action in zip(times, actions, strict=True):
            gc.collect()
            before = time.perf_counter()
            result = action()
            spent.append(time.perf_counter() - before)
            del result
    return [median(spent) for spent in times]


def run_process(arguments: Sequence[str]) -> None:
    """Run a Python process in the checkout to its end.

    Raises:
        subprocess.CalledProcessError: it failed; its errors were passed on.
    """
    # An installed package has its bytecode compiled; a checkout only where Python may write it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], cwd=REPO, check=True, stdout=subprocess.DEVNULL, env=environment)


@dataclass(frozen=True)
class ChildRun:
    """One analysis in a process of its own: seconds inside `analyze` (median) and peak memory of the process."""

    seconds: float
    peak_bytes: int


def analyze_in_child(path: Path, repeat: int) -> ChildRun:
    """Analyse `path` in a fresh process, `repeat` times (see `benchmarks.child`)."""
    command = [sys.executable, "-m", "benchmarks.child", str(path), str(repeat)]
    done = subprocess.run(command, cwd=REPO, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    return ChildRun(median(found["seconds"]), found["peak_bytes"])
