"""A real job of two gloo ranks: the rank whose dataset sleeps is named with its cause, and nobody in a clean run.

The truth is measured inside the job (`job.Truth`): the sleep, and how much later the slow rank had its last gradient.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median

import pytest

from steptime.ranks.alignment import align
from steptime.ranks.counted import Row
from steptime.ranks.moves import attribute_waits
from steptime.ranks.stragglers import verdicts
from tests.ranks.summaries import rows_of
from tests.real_run.job import Settings, Truth, run_job
from tests.real_run.launch import one_was_late

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

WAITING, SLOW, TRIES = 0, 1, 4
#: Of the sleep: what the slow rank's own clock may differ from it.
UNDISTURBED = 0.08


def _run(folder: Path, settings: Settings) -> tuple[Truth, list[Row]]:
    truth = run_job(folder, settings)
    return truth, rows_of([folder / f"rank{rank}.pt.trace.json.gz" for rank in (WAITING, SLOW)])


def _late_ns(truth: Truth, step: int) -> int:
    arrivals = [truth["ranks"][str(rank)]["arrival_ns"][str(step)] for rank in (WAITING, SLOW)]
    return arrivals[SLOW] - arrivals[WAITING]


def _asleep(truth: Truth) -> dict[int, int]:
    """ns slept by step, without the first recorded one: its wait is also the recordings' start."""
    slept = truth["ranks"][str(SLOW)]["sleep_ns"]
    return {step: slept[str(step)] for step in truth["recorded_steps"][1:] if str(step) in slept}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Truth, list[Row]]:
    for _ in range(TRIES):
        truth, rows = _run(tmp_path_factory.mktemp("slow"), Settings(slow_rank=SLOW, sleep_ms=120.0))
        slept = _asleep(truth)
        # Other load on the machine may decide who is late: then the sleep is not the truth.
        if all(abs(_late_ns(truth, step) - ns) <= UNDISTURBED * ns for step, ns in slept.items()):
            return truth, rows
    pytest.skip(f"the machine is too busy: in {TRIES} jobs the injected sleep did not decide which rank waits")


def test_sleeping_loader_is_named(slow: tuple[Truth, list[Row]]) -> None:
    truth, rows = slow
    (straggler,) = [one for one in verdicts(rows, align(rows)) if one.kind == "straggler"]
    assert (straggler.rank, straggler.cause, straggler.leaf) == (SLOW, "data_loader", "host/data_loader")
    assert set(_asleep(truth)) <= set(straggler.steps)


def test_wait_is_the_injected_time(slow: tuple[Truth, list[Row]]) -> None:
    truth, rows = slow
    waits = attribute_waits(rows, align(rows))[WAITING]
    slept = _asleep(truth)
    found = []
    for at, step in enumerate(rows[WAITING].timeline.steps):
        if step.step in slept:
            mine = (waits.step == at) & (waits.culprit == SLOW)
            found.append(int(waits.ns[mine].sum()) / slept[step.step])
    assert len(found) >= 5
    assert median(found) == pytest.approx(1.0, abs=0.10)


def test_clean_run_names_nobody(tmp_path: Path) -> None:
    for attempt in range(TRIES):
        truth, rows = _run(tmp_path / str(attempt), Settings(slow_rank=-1))
        if not one_was_late([rank["arrival_ns"] for rank in truth["ranks"].values()], truth["recorded_steps"]):
            break
    else:
        pytest.skip(f"the machine is too busy: in {TRIES} jobs one rank had less of it than the other")
    alignment = align(rows)
    assert alignment.refused == 0
    assert [one for one in verdicts(rows, alignment) if one.kind == "straggler"] == []
