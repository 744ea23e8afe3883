"""Pipeline schedules: what each stage does in which order.

Sources: GPipe (arXiv:1811.06965); 1F1B, PipeDream-Flush (arXiv:2006.09503); interleaved 1F1B (arXiv:2104.04473);
ZB-H1 (arXiv:2401.10241).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """kind: ``F`` forward, ``B`` backward (for its input only where ``W`` follows), ``W`` weight gradient."""

    kind: str
    micro_batch: int
    chunk: int = 0


def schedule(name: str, stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """The actions of one stage in order."""
    if name == "gpipe":
        return _gpipe(micro_batches)
    if name == "interleaved":
        return _interleaved(stage, stages, micro_batches, chunks)
    if name == "zero-bubble":
        return _zero_bubble(stage, stages, micro_batches)
    return _one_forward_one_backward(stage, stages, micro_batches)


def _gpipe(micro_batches: int) -> list[Action]:
    return [Action("F", at) for at in range(micro_batches)] + [Action("B", at) for at in range(micro_batches)]


def _one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    ahead = min(stages - stage - 1, micro_batches)
    actions = [Action("F", at) for at in range(ahead)]
    for at in range(micro_batches - ahead):
        actions += [Action("F", ahead + at), Action("B", at)]
    return actions + [Action("B", at) for at in range(micro_batches - ahead, micro_batches)]


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """Micro-batches go round the stages in bunches of `stages`, chunk after chunk."""
    total = micro_batches * chunks

    def placed(kind: str, number: int) -> Action:
        bunch, inside = divmod(number, stages * chunks)
        chunk = inside // stages
        chunk = chunks - 1 - chunk if kind == "B" else chunk
        return Action(kind, bunch * stages + number % stages, chunk)

    ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    actions = [placed("F", number) for number in range(ahead)]
    for number in range(total - ahead):
        actions += [placed("F", ahead + number), placed("B", number)]
    return actions + [placed("B", number) for number in range(total - ahead, total)]


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """1F1B whose weight gradients lag by `stage` micro-batches, so that they fill the drain (ZB-H1)."""
    actions: list[Action] = []
    for action in _one_forward_one_backward(stage, stages, micro_batches):
        actions.append(action)
        if action.kind == "B" and action.micro_batch >= stage:
            actions.append(Action("W", action.micro_batch - stage))
    done = sum(action.kind == "W" for action in actions)
    return actions + [Action("W", at) for at in range(done, micro_batches)]
