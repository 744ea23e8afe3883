"""What every view says of the pipeline, and its stages as a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from steptime.model import Pipeline, PipelineActions, Report
from steptime.report import units
from steptime.report.names import brief
from steptime.report.plain_table import Table

_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B", "zero-bubble": "zero-bubble"}
#: A stage that takes this much longer than the others' mean is worth a sentence.
_LONGER = 1.05


def pipeline(report: Report) -> list[str]:
    """Stages, schedule and bubble in sentences; empty where no pipeline was recognised."""
    found = report.pipeline
    if found is None or not found.stages:
        return []
    said = [_shape(found), *_bubble(found)]
    if found.why is not None:
        said.append(f"Can't tell how the bubble splits: {brief(found.why, 300)}.")
    return said + _longest(found)


def _shape(found: Pipeline) -> str:
    sizes = sorted({len(stage) for stage in found.stages})
    each = units.plural(sizes[0], "rank") if len(sizes) == 1 else f"{sizes[0]} to {units.plural(sizes[-1], 'rank')}"
    kind = "in an order of no known schedule"
    if found.schedule is not None:
        kind = f"in the order of {_SCHEDULES.get(found.schedule) or brief(found.schedule, 40)}"
    chunks = f", {found.chunks} chunks of the model on each" if found.chunks > 1 else ""
    micro_batches = units.plural(found.micro_batches, "micro-batch", "micro-batches")
    return f"{units.plural(len(found.stages), 'stage')} of {each}{chunks}; {micro_batches} a step, {kind}."


def _bubble(found: Pipeline) -> list[str]:
    phase = "" if found.phase_ns is None else f" (mean {units.time(found.phase_ns)})"
    known = "can't tell how much" if found.bubble_share is None else units.share(min(found.bubble_share, 1.0))
    said = [f"Bubble: {known} of the pipelined phase{phase} was spent waiting"]
    if found.schedule_share is not None:
        said.append(f"this order with equal stages would give {units.share(min(found.schedule_share, 1.0))}")
    if found.closed_form_share is not None:
        stages = len(found.stages)
        rounds = f"{found.chunks}×{found.micro_batches}" if found.chunks > 1 else str(found.micro_batches)
        form = f"({stages}-1)/({rounds}+{stages}-1)"
        said.append(f"the closed form {form} gives {units.share(min(found.closed_form_share, 1.0))}")
    return [f"{said[0]}; {', '.join(said[1:])}." if said[1:] else f"{said[0]}."]


def _longest(found: Pipeline) -> list[str]:
    """The stage whose micro-batch takes clearly longest: the others wait for it in every round."""
    times = _both(found)
    if len(times) < 2:
        return []
    at = max(range(len(times)), key=lambda one: times[one])
    others = mean(ns for one, ns in enumerate(times) if one != at)
    if others <= 0 or times[at] < _LONGER * others:
        return []
    ranks = units.ranges(found.stages[at])
    name = f"Stage {at} (rank{'s' if len(found.stages[at]) > 1 else ''} {ranks})"
    return [
        f"{name} computes longest: {units.time(times[at])} a micro-batch, forward and backward, "
        f"{times[at] / others:.2f} times {'the other stage' if len(times) == 2 else 'the mean of the other stages'}."
    ]


def _both(found: Pipeline) -> list[int]:
    """Forward and backward of each stage together; empty where not every stage has both."""
    if not len(found.forward_ns) == len(found.backward_ns) == len(found.stages):
        return []
    return [forward + backward for forward, backward in zip(found.forward_ns, found.backward_ns, strict=True)]


def stages_table(report: Report, most: int) -> Table | None:
    """The stages: what a micro-batch takes on each, and how much of the drawn step its passes fill."""
    found = report.pipeline
    if found is None or len(found.stages) < 2:
        return None
    times = _both(found)
    usual = mean(times) if times else 0
    filled = {} if found.actions is None else filled_shares(found.actions)
    rows = [
        [
            str(at),
            units.time(found.forward_ns[at]) if times else "?",
            units.time(found.backward_ns[at]) if times else "?",
            units.difference(times[at] / usual - 1) if usual > 0 else "?",
            *([units.share(filled[at]) if at in filled else "?"] if filled else []),
            units.ranges(ranks),
        ]
        for at, ranks in enumerate(found.stages[:most])
    ]
    head = ["stage", "forward", "backward", "against mean", *(["filled"] if filled else []), "ranks"]
    return Table(head, rows, numbers=len(head) - 1, more=max(len(found.stages) - most, 0))


def filled_shares(actions: PipelineActions) -> dict[int, float]:
    """For each stage the share of the drawn phase in which one of its passes runs."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for stage, start, dur in zip(actions.stage, actions.start_ns, actions.dur_ns, strict=True):
        spans.setdefault(stage, []).append((start, start + dur))
    length = max((end for of in spans.values() for _, end in of), default=0)
    return {stage: _covered(of) / length for stage, of in spans.items()} if length > 0 else {}


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    covered, reached = 0, 0
    for start, end in sorted(spans):
        covered += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return covered
