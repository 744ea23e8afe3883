"""Evidence of the job as a whole: how many micro-batches the pipeline would need, its slowest stage, who is late."""

from __future__ import annotations

from math import ceil
from statistics import mean

from steptime.diagnose.reading import Reading
from steptime.diagnose.say import plural, share_text, time_text
from steptime.model import Evidence, Pipeline, RankSteps, StepTime, Straggler

#: The bubble that more micro-batches should bring a pipeline to.
GOOD_BUBBLE = 0.1
_MOST = 4


def micro_batches(reading: Reading) -> list[Evidence]:
    """The schedule's own bubble by the closed form, and the number of micro-batches that makes it small."""
    found = reading.report.pipeline
    if found is None or found.closed_form_share is None or found.micro_batches < 1 or len(found.stages) < 2:
        return []
    own = found.closed_form_share
    said = f"{plural(found.micro_batches, 'micro-batch', 'micro-batches')} over {plural(len(found.stages), 'stage')}"
    said += f", so {_form(found, found.micro_batches)} = {share_text(own)} of the pipelined phase is the schedule's own"
    if own > GOOD_BUBBLE:
        wanted = wanted_micro_batches(found)
        stages = len(found.stages)
        less = (stages - 1) / (found.chunks * wanted + stages - 1)
        said += f"; {wanted} would make it {share_text(less)}"
    return [Evidence(text=said)]


def wanted_micro_batches(found: Pipeline) -> int:
    """The least number of micro-batches with which ``(p-1)/(v*m+p-1)`` is at most `GOOD_BUBBLE`.

    An interleaved schedule takes only multiples of the number of stages (Megatron-LM and PyTorch refuse others).
    """
    stages = len(found.stages)
    # In integers: 9 (p-1) <= v*m for a tenth.
    least = ceil(round((1 / GOOD_BUBBLE - 1) * (stages - 1), 9) / found.chunks)
    return least if found.chunks == 1 else ceil(least / stages) * stages


def _form(found: Pipeline, number: int) -> str:
    stages = len(found.stages)
    rounds = f"{found.chunks}*{number}" if found.chunks > 1 else str(number)
    return f"({stages}-1)/({rounds}+{stages}-1)"


def slowest_stage(reading: Reading) -> list[Evidence]:
    """The stage whose micro-batch takes longest, against the others."""
    found = reading.report.pipeline
    if found is None or len(found.stages) < 2:
        return []
    if not len(found.stages) == len(found.forward_ns) == len(found.backward_ns):
        return []
    times = [forward + backward for forward, backward in zip(found.forward_ns, found.backward_ns, strict=True)]
    at = max(range(len(times)), key=lambda stage: times[stage])
    others = mean(ns for stage, ns in enumerate(times) if stage != at)
    if others <= 0 or times[at] <= others:
        return []
    them = "the other stage's" if len(times) == 2 else "the other stages' mean"
    text = f"stage {at} ({_ranks(found.stages[at])}) takes {time_text(times[at])} for a micro-batch, forward and "
    text += f"backward, {times[at] / others:.2f} times {them} {time_text(others)}"
    return [Evidence(text=text)]


def late_ranks(reading: Reading) -> list[Evidence]:
    """Who held up the others and with what; or that nobody is named, and why."""
    report = reading.report
    if report.alignment is None:
        return []
    if report.stragglers:
        return [held_up(reading, one) for one in report.stragglers[:_MOST]]
    if report.alignment.unjudged is not None:
        return [Evidence(text=f"nobody is named: {report.alignment.unjudged}")]
    return [Evidence(text="nobody is named: no rank is late again and again beyond what clocks and jitter explain")]


def held_up(reading: Reading, one: Straggler) -> Evidence:
    """A verdict on who was late, and of the steps the one with most of what it was late with."""
    each = time_text(one.lost_ns / max(len(one.steps), 1))
    text = f"{_who(one)} costs each other rank {each} a step, in {plural(len(one.steps), 'step')}: {one.cause}"
    text += f" ({one.leaf})" if one.leaf is not None else ""
    text += "".join(f", also {what}" for what in one.also)
    step = _worst(reading, one)
    if step is None:
        return Evidence(text=text, rank=one.rank)
    return Evidence(text=text, rank=one.rank, step=step.step, start_ns=step.start_ns, dur_ns=step.dur_ns)


def _who(one: Straggler) -> str:
    if one.rank is not None:
        return f"rank {one.rank}" + ("" if one.recorded else " (its file is not there)")
    if one.host is not None:
        return f"host {one.host}"
    return _ranks(one.ranks) if one.ranks else "a different rank each time"


def _worst(reading: Reading, one: Straggler) -> StepTime | None:
    """Of the steps in which the rank was late, the one that has most of what it was late with."""
    own: list[RankSteps] = [rank for rank in reading.report.ranks if rank.rank == one.rank]
    steps = [step for rank in own for step in rank.steps if step.step in one.steps]
    return max(steps, key=lambda step: step.leaves_ns.get(one.leaf or "", 0), default=None)


def _ranks(ranks: list[int]) -> str:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{', ...' if len(runs) > 8 else ''}"
