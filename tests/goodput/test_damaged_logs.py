"""Logs of every format, cut and damaged at many places: one clear line or a report whose parts add up, nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from steptime.errors import StepTimeError
from steptime.goodput.assess import assess
from steptime.store import dumps
from tests.goodput.test_interruption_logs import SITUATIONS, written
from tests.goodput.test_kubernetes import RUN, as_documents, as_lines, as_list
from tests.goodput.test_slurm import HEAD, line
from tests.goodput.training_runs import live

_SLURM = "\n".join([HEAD, line("NODE_FAIL", "00:00:00", "06:00:00"), line("COMPLETED", "06:10:00", "23:00:00"), ""])
_LIVED = live(60, {30: 600}, save=20)
SAMPLES = {
    "interruptions.csv": written(SITUATIONS["overlapping failures"], "csv"),
    "interruptions.jsonl": written(SITUATIONS["overlapping failures"], "jsonl"),
    "sacct.txt": _SLURM,
    "sacct_fixed.txt": (
        "JobID           JobName      State               Start                 End \n"
        "------------ ---------- ---------- ------------------- ------------------- \n"
        "4242           pretrain  NODE_FAIL 2024-05-01T00:00:00 2024-05-01T06:00:00 \n"
        "4242           pretrain  COMPLETED 2024-05-01T12:30:00 2024-05-02T00:00:00 \n"
    ),
    "events.json": as_list(RUN[:8]),
    "events.jsonl": as_lines(RUN[:8]),
    "events_watched.json": as_documents(RUN[:8]),
    "metrics.jsonl": "".join(json.dumps({"step": step, "ts": time, "loss": 2.0}) + "\n" for time, step in _LIVED.rows),
    "metrics.csv": "time,step,loss\n" + "".join(f"{time},{step},2.0\n" for time, step in _LIVED.rows),
}


def _survives(path: Path, data: bytes) -> bool:
    """Whether a report came out, which then keeps the law and can be written; refusals are one line."""
    path.write_bytes(data)
    report, said = None, ""
    try:
        report = assess([str(path)])
    except StepTimeError as error:
        said = str(error)
    if report is None:
        assert len(said.splitlines()) == 1
        return False
    report.check()
    assert dumps(report)
    return True


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_anywhere(name: str, tmp_path: Path) -> None:
    data = SAMPLES[name].encode()
    assert _survives(tmp_path / name, data)
    step = max(len(data) // 60, 1)
    for end in range(0, len(data), step):
        _survives(tmp_path / name, data[:end])


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_anywhere(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    data = SAMPLES[name].encode()
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            kind = rng.randrange(3)
            if kind == 0:
                damaged[at] = rng.randrange(256)
            elif kind == 1:
                del damaged[at : at + rng.randint(1, 40)]
            else:
                damaged[at:at] = damaged[at : at + rng.randint(1, 80)]
        _survives(tmp_path / name, bytes(damaged))
