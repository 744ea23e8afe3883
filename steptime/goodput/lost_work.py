"""How much training each interruption threw away: what was done after the checkpoint from which the run went on.

Four ways, the first that the logs allow decides: when the last checkpoint was saved; when its step was done, from the
run's own metrics; the steps of the log itself (the last one, that of the checkpoint) at the pace between two
interruptions; a length of step or a rhythm of checkpoints that the user gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.goodput.account import Outage
from steptime.goodput.incidents import Incident, Progress


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Checkpoints as the user says they were: after `every_ns` of training, a pause of `pause_ns`."""

    every_ns: int
    pause_ns: int = 0

    def pauses(self, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """The whole pauses of one stretch of running, from its begin."""
        return [(end - self.pause_ns, end) for end in self._ends(begin_ns, end_ns)]

    def last(self, begin_ns: int, end_ns: int) -> int:
        """When the last checkpoint of a stretch was whole; the begin of the stretch if none was."""
        ends = self._ends(begin_ns, end_ns)
        return ends[-1] if ends else begin_ns

    def _ends(self, begin_ns: int, end_ns: int) -> range:
        cycle = self.every_ns + self.pause_ns
        return range(begin_ns + cycle, end_ns + 1, cycle)


@dataclass(frozen=True, slots=True)
class Known:
    """What tells lost work beside the interruptions themselves.

    saves_ns: ends of the pauses in the log, in order; start_step: the step at the begin of the run.
    """

    progress: Progress | None = None
    saves_ns: tuple[int, ...] = ()
    start_step: int | None = None
    step_ns: float | None = None
    rhythm: Rhythm | None = None


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What ran between two outages. step: the one it began with; None if unknown. sure: whether its begin is known."""

    begin_ns: int
    end_ns: int
    step: int | None
    sure: bool


def running(start_ns: int, end_ns: int, outages: Sequence[Outage]) -> list[tuple[int, int]]:
    """The stretches between outages: entry i is what ran before outage i, the last one ran to the end."""
    begins = [start_ns, *(outage.end_ns for outage in outages)]
    ends = [*(outage.begin_ns for outage in outages), end_ns]
    return list(zip(begins, ends, strict=True))


def lost_windows(
    start_ns: int, end_ns: int, incidents: Sequence[Incident], outages: Sequence[Outage], known: Known
) -> dict[int, tuple[int, int] | None]:
    """By index of the interruption that began an outage: the work it threw away as (begin, end); None if unknown.

    What ran before the outage before it is never counted again: a run that fails twice before it saves loses only
    what it did in between.
    """
    windows: dict[int, tuple[int, int] | None] = {}
    stretches = _stretches(start_ns, end_ns, incidents, outages, known)
    pace_ns = known.step_ns or _usual_pace(stretches, incidents, outages)
    for outage, stretch in zip(outages, stretches, strict=True):
        first = outage.members[0]
        saved = _saved_ns(incidents[first], stretch, known, pace_ns)
        ends = stretch.begin_ns, stretch.end_ns
        windows[first] = None if saved is None else (min(max(saved, ends[0]), ends[1]), ends[1])
    return windows


def _stretches(
    start_ns: int, end_ns: int, incidents: Sequence[Incident], outages: Sequence[Outage], known: Known
) -> list[_Stretch]:
    """One for each outage: what ran before it."""
    found: list[_Stretch] = []
    step, sure = known.start_step, True
    for outage, (begin, end) in zip(outages, running(start_ns, end_ns, outages), strict=False):
        found.append(_Stretch(begin, end, step, sure))
        steps = [saved for at in outage.members if (saved := incidents[at].checkpoint_step) is not None]
        step, sure = (steps[-1] if steps else None), outage.known
    return found


def _usual_pace(
    stretches: Sequence[_Stretch], incidents: Sequence[Incident], outages: Sequence[Outage]
) -> float | None:
    """Median time of a step over the stretches whose first and last step the log gives."""
    paces = []
    for stretch, outage in zip(stretches, outages, strict=True):
        last = incidents[outage.members[0]].step
        if stretch.sure and stretch.step is not None and last is not None and last > stretch.step:
            paces.append((stretch.end_ns - stretch.begin_ns) / (last - stretch.step))
    return float(np.median(paces)) if paces else None


def _saved_ns(incident: Incident, stretch: _Stretch, known: Known, pace_ns: float | None) -> int | None:
    """When the state from which the run went on had been reached; None if nothing tells."""
    if incident.checkpoint_ns is not None:
        return incident.checkpoint_ns
    step, saved = incident.step, incident.checkpoint_step
    begin, end = stretch.begin_ns, stretch.end_ns
    if saved is not None and known.progress is not None:
        return _when_done(known.progress, saved, begin, end)
    if saved is not None and stretch.step is not None and saved <= stretch.step:
        return begin if stretch.sure else None
    if step is not None and saved is not None:
        if known.step_ns is None and stretch.sure and stretch.step is not None and step > stretch.step:
            # The pace of the stretch itself: it began at one step and ended at another.
            return begin + round((end - begin) * (saved - stretch.step) / (step - stretch.step))
        return None if pace_ns is None else end - round((step - saved) * pace_ns)
    if saved is not None:
        if known.step_ns is None or stretch.step is None or not stretch.sure:
            return None
        return begin + round((saved - stretch.step) * known.step_ns)
    if known.saves_ns and stretch.sure:
        saves = [ns for ns in known.saves_ns if begin <= ns <= end]
        return saves[-1] if saves else begin
    if known.rhythm is not None and stretch.sure:
        # Who stops a run on purpose saves first.
        return end if incident.cause.planned else known.rhythm.last(begin, end)
    return None


def _when_done(progress: Progress, step: int, begin_ns: int, end_ns: int) -> int:
    """When `step` was done in the stretch, between two logged steps in proportion; its begin if it was before."""
    inside = (progress.time_ns >= begin_ns) & (progress.time_ns <= end_ns)
    times, steps = progress.time_ns[inside], progress.step[inside]
    if not len(times) or step < steps[0]:
        if len(times):
            return max(begin_ns, int(times[0] - round((steps[0] - step) * progress.pace_ns)))
        return begin_ns
    after = int(np.searchsorted(steps, step, side="right"))
    at = after - 1
    if after == len(steps):
        return min(end_ns, int(times[at] + round((step - steps[at]) * progress.pace_ns)))
    share = (step - steps[at]) / (steps[after] - steps[at])
    return int(times[at] + round(share * (times[after] - times[at])))
