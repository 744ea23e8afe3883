"""Training runs that are lived through step by step, and what they log: the truth comes with them.

A step takes 10 s. The run logs after every `every` steps and saves after every `save` steps, which stops it for `pause`
seconds. It fails right after a step was logged; what it then lost is the steps since the last save.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

PACE = 10
START = 1_714_521_600  # 2024-05-01 00:00:00 UTC


@dataclass
class Lived:
    """What was logged as (time, step), and the truth in seconds between the first and the last line."""

    rows: list[tuple[float, int]] = field(default_factory=list)
    down: int = 0
    lost: int = 0
    paused: int = 0
    failures: int = 0

    @property
    def total(self) -> float:
        """From the first line to the last."""
        return self.rows[-1][0] - self.rows[0][0]


def live(steps: int, failures: dict[int, int], *, every: int = 1, save: int = 100, pause: int = 0) -> Lived:
    """Run to `steps`; failures: by step after which it fails for the first time, seconds until it steps again."""
    lived = Lived()
    now, step, saved = float(START), 0, 0
    left = dict(failures)
    # When the state of the last save had been reached; nothing before the first line counts.
    since = now + every * PACE
    while step < steps:
        step += 1
        now += PACE
        if step % every == 0:
            lived.rows.append((now, step))
        if step % save == 0 and step < steps:
            now += pause
            lived.paused += pause
            saved, since = step, now
        if step in left:
            lived.lost += round(now - since)
            lived.down += left[step]
            lived.failures += 1
            now += left.pop(step)
            step, since = saved, now
    return lived


def write_jsonl(lived: Lived, path: Path) -> None:
    """One JSON object a line."""
    lines = [json.dumps({"step": step, "timestamp": time, "loss": 2.0}) for time, step in lived.rows]
    path.write_text("\n".join(lines) + "\n")


def write_csv(lived: Lived, path: Path) -> None:
    """A header and a line for each row."""
    path.write_text("time,step,loss\n" + "".join(f"{time},{step},2.0\n" for time, step in lived.rows))


def write_events(lived: Lived, path: Path) -> None:
    """Event files of the real writer: one for each start of the run, as a run leaves them."""
    from torch.utils.tensorboard import SummaryWriter

    starts = [
        0,
        *(at for at in range(1, len(lived.rows)) if lived.rows[at][1] <= lived.rows[at - 1][1]),
        len(lived.rows),
    ]
    for begin, end in zip(starts, starts[1:], strict=False):
        writer = SummaryWriter(str(path))
        for time, step in lived.rows[begin:end]:
            writer.add_scalar("train/loss", 2.0, step, walltime=time)
        writer.close()
