"""Published training runs to compare one's own with, each figure with its source."""

from __future__ import annotations

from pathlib import Path

import msgspec

from steptime.model.goodput import ReferenceFigure, ReferenceRun

DAY_S = 86_400
_TABLE = Path(__file__).with_name("runs.toml")


class _Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    text: str
    source: str
    value: float | None = None


class _Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    figures: list[_Figure]
    causes: list[_Figure] = []
    notes: list[str] = []


def reference_runs() -> list[ReferenceRun]:
    """The runs of ``runs.toml``, in its order."""
    table = msgspec.toml.decode(_TABLE.read_bytes(), type=dict[str, _Run])
    return [
        ReferenceRun(
            id=key,
            name=run.name,
            figures=[_shown(figure) for figure in run.figures],
            causes=[_shown(figure) for figure in run.causes],
            notes=run.notes,
            uninterrupted_days=_uninterrupted({figure.id: figure.value for figure in run.figures}),
        )
        for key, run in table.items()
    ]


def _uninterrupted(figures: dict[str, float | None]) -> float | None:
    flops, rate, gpus = (figures.get(name) for name in ("total_flops", "flops_per_gpu", "gpus"))
    return None if not flops or not rate or not gpus else uninterrupted_days(flops, rate, round(gpus))


def _shown(row: _Figure) -> ReferenceFigure:
    return ReferenceFigure(id=row.id, value=row.value, text=row.text, source=row.source)


def uninterrupted_days(total_flops: float, flops_per_gpu_s: float, gpus: int) -> float:
    """Days that a run of that many FLOPs takes if nothing ever stops it: F / (rate of a GPU * GPUs)."""
    return total_flops / (flops_per_gpu_s * gpus) / DAY_S
