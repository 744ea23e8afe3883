"""In what two runs differ: hardware, software, and how the job is laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from steptime.model import Report
from steptime.model.diff import ConfigChange

#: Model FLOPs that differ by less are the same model on the same batch, with sequences of other lengths.
_FLOPS_DIFFER = 0.005
_MATRIX = ("matmul", "convolution", "attention")


def config_changes(a: Report, b: Report) -> list[ConfigChange]:
    """What differs, in the order of `NAMES`; None where a run's report does not say."""
    found = []
    for name, value in NAMES.items():
        before, after = value(a), value(b)
        if before != after and not (name == "model_flops" and _same_flops(a, b)):
            found.append(ConfigChange(name=name, before=before, after=after))
    return found


def _same_flops(a: Report, b: Report) -> bool:
    before, after = a.job.model_flops_per_step, b.job.model_flops_per_step
    return before is not None and after is not None and abs(after - before) <= _FLOPS_DIFFER * max(before, after)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _joined(values: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(values)) or None


def _software(name: str) -> Callable[[Report], str | None]:
    """A version that the traces hold, of all files."""
    return lambda report: _joined(one.software[name] for one in report.inputs if name in one.software)


def _recorded(name: str) -> Callable[[Report], str | None]:
    """Whether the files recorded something that makes the host slower or tells more."""

    def said(report: Report) -> str | None:
        held = {bool(getattr(one.quality, name)) for one in report.inputs if one.quality is not None}
        return None if not held else "yes" if held == {True} else "no" if held == {False} else "some files"

    return said


def _graphs(report: Report) -> str | None:
    """Whether CUDA graphs launch the work of the device."""
    counts = [one.quality.graph_launched for one in report.inputs if one.quality is not None]
    known = [count for count in counts if count is not None]
    return None if not known else "used" if any(known) else "not used"


def _dtypes(report: Report) -> str | None:
    return _joined(sorted({row.dtype for row in report.roofline if row.kind in _MATRIX and row.dtype is not None}))


def _tokens(report: Report) -> str | None:
    tokens = report.facts.get("job.tokens_per_step")
    return None if tokens is None else f"{tokens:.0f}"


def _flops(report: Report) -> str | None:
    flops = report.job.model_flops_per_step
    return None if flops is None else f"{flops:.4g}"


def _pipeline(name: str) -> Callable[[Report], str | None]:
    return lambda report: None if report.pipeline is None else _text(getattr(report.pipeline, name))


def _stages(report: Report) -> str | None:
    if report.pipeline is None:
        return None
    return "; ".join(",".join(map(str, stage)) for stage in report.pipeline.stages)


def _groups(report: Report) -> str | None:
    """Groups of communication with their sizes, where these are known."""
    sizes: dict[str, set[int]] = {}
    for one in report.collectives:
        sizes.setdefault(one.group or "default", set()).update({one.members} if one.members is not None else ())
    return _joined(
        name + (f" ({'/'.join(map(str, sorted(members)))} ranks)" if members else "")
        for name, members in sorted(sizes.items())
    )


#: What is compared, and how a report says it.
NAMES: dict[str, Callable[[Report], str | None]] = {
    "gpu": lambda report: report.job.device,
    "driver": _software("driver"),
    "cuda": _software("cuda"),
    "hip": _software("hip"),
    "torch": _software("torch"),
    "nccl": _software("nccl"),
    "world_size": lambda report: _text(report.job.world_size),
    "ranks_analyzed": lambda report: _text(report.job.ranks_analyzed),
    "reference_dtype": lambda report: report.job.reference_dtype,
    "matrix_dtypes": _dtypes,
    "tokens_per_step": _tokens,
    "model_flops": _flops,
    "pipeline_stages": _stages,
    "pipeline_schedule": _pipeline("schedule"),
    "pipeline_chunks": _pipeline("chunks"),
    "micro_batches": _pipeline("micro_batches"),
    "groups": _groups,
    "cuda_graphs": _graphs,
    "steps": lambda report: _text(len(report.job.steps)),
    "step_source": lambda report: report.job.step_source,
    "trace_dialect": lambda report: _joined(one.quality.dialect for one in report.inputs if one.quality is not None),
    "stacks_recorded": _recorded("stacks"),
    "shapes_recorded": _recorded("shapes"),
    "steptime": lambda report: report.tool.version,
}
