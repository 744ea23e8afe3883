"""Since when a job is slow, from the step times that its hook keeps: one lasting change of the median step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from steptime.model.on_call import Pace

#: Steps on either side of a change: fewer are a spell, not a change.
_LEAST_STEPS = 5
#: The median must rise by this share, and by so many median deviations of the steps before, to be a change.
_SLOWER, _DEVIATIONS = 0.05, 4.0


def slowdown(durations_ns: Sequence[Sequence[int]], last_step: int, last_unix_ns: int | None = None) -> Pace | None:
    """The last lasting slow-down in the step times of some ranks; None where there is none, or too few steps.

    The split is the one that leaves the least absolute deviation from the medians of its two sides.

    Args:
        durations_ns: of each rank its last steps, oldest first; all end with `last_step`.
        last_step: the number of the last step that ended.
        last_unix_ns: when it ended.
    """
    kept = min((len(one) for one in durations_ns), default=0)
    if kept < 2 * _LEAST_STEPS:
        return None
    # Ranks wait for each other: the median over them is the job's step, free of one rank's odd one.
    series = [median(one[len(one) - kept + at] for one in durations_ns) for at in range(kept)]
    cut = min(range(_LEAST_STEPS, kept - _LEAST_STEPS + 1), key=lambda at: _spread(series[:at]) + _spread(series[at:]))
    before, after = median(series[:cut]), median(series[cut:])
    deviation = median(abs(one - before) for one in series[:cut])
    if after - before < max(_SLOWER * before, _DEVIATIONS * deviation):
        return None
    return Pace(
        step=last_step - (kept - cut) + 1,
        unix_ns=None if last_unix_ns is None else round(last_unix_ns - sum(series[cut:])),
        before_ns=round(before),
        after_ns=round(after),
        ranks=len(durations_ns),
    )


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(one - middle) for one in values)
