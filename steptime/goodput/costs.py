"""What the run was paid for and used, and how it saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.goodput.account import PARTS, UNKNOWN
from steptime.goodput.lost_work import Rhythm
from steptime.model.goodput import CheckpointHabit, Cost, LostPart, Rate

HOUR_NS = 3600 * 10**9
UNKNOWN_PART = PARTS[UNKNOWN]


@dataclass(frozen=True, slots=True)
class Money:
    """MFU of the steps (with where it is from), and the price of a GPU-hour."""

    mfu: float | None = None
    mfu_source: str | None = None
    price: float | None = None


def cost_of(
    total_ns: int | None,
    parts: Sequence[LostPart],
    gpus: int | None,
    money: Money,
    eta: float | None,
    productive_share: float | None,
) -> Cost:
    """GPU-hours, money and what of the peak that was paid for did useful work.

    MFU is of the steps while they run; times the share of time in which they ran and were kept, it is what was used of
    everything that was paid for. Where lost work is not known, the share of time not down bounds it from above; where
    another part is not, the share that trained does.
    """
    hours = total_ns / HOUR_NS * gpus if total_ns is not None and gpus else None
    # What may have been training is not called lost.
    lost_ns = sum(part.ns for part in parts if part.id != UNKNOWN_PART)
    all_known = productive_share is not None and not any(part.why for part in parts)
    lost_hours = lost_ns / HOUR_NS * gpus if hours is not None and gpus else None
    share = productive_share if productive_share is not None else eta
    used = money.mfu * share if money.mfu is not None and share is not None else None
    return Cost(
        gpus=gpus,
        gpu_hours=hours,
        lost_gpu_hours=lost_hours,
        price=money.price,
        money=None if hours is None or money.price is None else hours * money.price,
        lost_money=None if lost_hours is None or money.price is None else lost_hours * money.price,
        mfu=money.mfu,
        mfu_source=money.mfu_source,
        used_share=used,
        lost_bound="lower bound" if lost_hours is not None and not all_known else None,
        used_bound="upper bound" if used is not None and not all_known else None,
    )


def young_ns(pause_ns: float, mtbf_ns: float) -> float:
    """Young's interval between checkpoints, sqrt(2 * pause * MTBF) (Young 1974)."""
    return math.sqrt(2 * pause_ns * mtbf_ns)


def checkpoint_habit(
    pauses: Sequence[tuple[int, int]], rhythm: Rhythm | None, mtbf: Rate | None, stretches: Sequence[tuple[int, int]]
) -> CheckpointHabit | None:
    """How the run saved: median pause, and median training between two pauses of one stretch of running."""
    if pauses:
        lengths = np.array([end - begin for begin, end in pauses], np.int64)
        between = [
            begin - end
            for low, high in stretches
            for (_, end), (begin, _) in _pairs([one for one in pauses if low <= one[0] and one[1] <= high])
        ]
        pause, interval, source = int(np.median(lengths)), int(np.median(between)) if between else None, "log"
    elif rhythm is not None:
        pause, interval, source = rhythm.pause_ns, rhythm.every_ns, "options"
    else:
        return None
    mean_h = None if mtbf is None else mtbf.mtbf_h
    return CheckpointHabit(
        count=len(pauses),
        pause_ns=pause,
        interval_ns=interval,
        young_ns=round(young_ns(pause, mean_h * HOUR_NS)) if mean_h is not None and pause > 0 else None,
        source=source,
    )


def _pairs(pauses: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(zip(pauses, pauses[1:], strict=False))
