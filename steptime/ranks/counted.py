"""Which (rank, step) pairs count: training steps that are whole and that every analysed rank has."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.errors import UsageError
from steptime.model import StepTime
from steptime.timeline.summary import DeviceTimeline, FileSummary


class Row(msgspec.Struct, frozen=True):
    """One rank on one device in one capture."""

    rank: int
    capture: int
    file: FileSummary
    timeline: DeviceTimeline

    @property
    def label(self) -> str:
        """How warnings name the row."""
        return f"rank {self.rank}"

    @property
    def clock(self) -> str | None:
        """The host whose clock the times are on, by its name; None where that is not known."""
        return self.file.meta.host if self.file.quality.clock_base != "unknown start" else None


def ranks_missing(rows: Sequence[Row], world_size: int | None) -> bool:
    """Whether the job is known to have more ranks than these rows."""
    return world_size is not None and world_size > len({row.rank for row in rows})


class Counted(msgspec.Struct, frozen=True):
    """The counted steps: for each row the indices of its counted steps; notes say what was left out and why."""

    rows: list[Row]
    steps: list[list[int]]
    notes: list[str]

    def with_timelines(self, timelines: Sequence[DeviceTimeline]) -> Counted:
        """The same steps on other timelines, one a row."""
        rows = [
            msgspec.structs.replace(row, timeline=timeline) for row, timeline in zip(self.rows, timelines, strict=True)
        ]
        return msgspec.structs.replace(self, rows=rows)

    @property
    def pairs(self) -> list[tuple[Row, StepTime]]:
        """All counted (row, step) pairs."""
        return [
            (row, row.timeline.steps[index])
            for row, chosen in zip(self.rows, self.steps, strict=True)
            for index in chosen
        ]


def count_steps(rows: Sequence[Row], wanted: tuple[int, int] | None) -> Counted:
    """Choose the steps that job figures rest on.

    Args:
        rows: all ranks and devices.
        wanted: first and last step number to use, both included; None for all.

    Raises:
        UsageError: `wanted` holds no recorded step.
    """
    recorded = [_numbers(row, wanted) for row in rows]
    if wanted is not None and not any(recorded):
        have = sorted({step.step for row in rows for step in row.timeline.steps})
        raise UsageError(
            f"--steps {wanted[0]}:{wanted[1]} holds no recorded step; recorded are {have[0]} to {have[-1]}"
        )
    shared = _shared(rows, recorded)
    notes = []
    if shared != set().union(*recorded):
        notes.append(
            f"{len(shared)} of {len(set().union(*recorded))} steps are recorded on all ranks: only these count"
        )
    edges = {key for row, keys in zip(rows, recorded, strict=True) for key in keys & shared if _step(row, key).edge}
    others = {key for row, keys in zip(rows, recorded, strict=True) for key in keys & shared if _is_other(row, key)}
    for chosen, note in (
        (shared - edges - others, None),
        (shared - others, "only edge steps were recorded: the first step's true start is unknown"),
        (shared, "no training step was recorded: figures are of other steps"),
    ):
        if chosen:
            notes.extend([note] if note else [])
            return Counted(list(rows), [_indices(row, chosen) for row in rows], notes)
    raise UsageError("the ranks have no step in common; analyse them one by one or give --step-marker")


_Key = tuple[int, int]


def _numbers(row: Row, wanted: tuple[int, int] | None) -> set[_Key]:
    low, high = wanted if wanted is not None else (-(2**62), 2**62)
    return {(row.capture, step.step) for step in row.timeline.steps if low <= step.step <= high}


def _shared(rows: Sequence[Row], recorded: list[set[_Key]]) -> set[_Key]:
    """Keys that every rank with that capture has; a capture that a rank lacks can't be shared."""
    by_rank: dict[int, set[_Key]] = {}
    for row, keys in zip(rows, recorded, strict=True):
        by_rank.setdefault(row.rank, set()).update(keys)
    return set.intersection(*by_rank.values()) if by_rank else set()


def _step(row: Row, key: _Key) -> StepTime:
    return next(step for step in row.timeline.steps if step.step == key[1])


def _is_other(row: Row, key: _Key) -> bool:
    return _step(row, key).class_ == "other"


def _indices(row: Row, chosen: set[_Key]) -> list[int]:
    return [index for index, step in enumerate(row.timeline.steps) if (row.capture, step.step) in chosen]
