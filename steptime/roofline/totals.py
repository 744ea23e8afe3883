"""The job with its useful work: MFU, HFU, and what each slice is worth in MFU."""

from __future__ import annotations

import msgspec

from steptime.model import Job, LeafTotal, SliceTotal
from steptime.roofline.pricing import Roof
from steptime.roofline.utilization import Utilization


def with_utilization(job: Job, useful: Utilization, roof: Roof) -> Job:
    """Fill in what the FLOPs say. `mfu` is the ledger's productive share, exactly."""
    productive_ns = job.total_ns - sum(part.ns or 0 for part in job.slices)
    known = useful.source is not None and job.total_ns > 0
    mfu = productive_ns / job.total_ns if known else None
    hardware = useful.counts.hardware_flops
    hfu = hardware / (roof.peak * job.total_ns / 1e9) if useful.source == "trace" and hardware and roof.peak else None
    return msgspec.structs.replace(
        job,
        peak_flops=roof.peaks or None,
        reference_dtype=roof.dtype if roof.peak is not None else None,
        mfu=mfu,
        mfu_by=useful.mfu_by or None,
        mfu_notes=useful.notes,
        hfu=hfu,
        model_flops_per_step=useful.model_flops,
        flops_source=useful.source,
        flops_coverage=useful.counts.coverage,
        productive_ns=productive_ns,
        above_peak_ns=useful.above_peak_ns,
        slices=[_slice(part, mfu, job.total_ns) for part in job.slices],
    )


def _if_removed(mfu: float | None, recoverable_ns: int | None, total_ns: int) -> float | None:
    """MFU of the same work in the time that is left: an upper bound, something else may wait behind."""
    if mfu is None or recoverable_ns is None or recoverable_ns >= total_ns:
        return None
    return mfu * total_ns / (total_ns - recoverable_ns)


def _slice(part: SliceTotal, mfu: float | None, total_ns: int) -> SliceTotal:
    leaves: list[LeafTotal] = [
        msgspec.structs.replace(leaf, mfu_if_removed=_if_removed(mfu, leaf.recoverable_ns, total_ns))
        for leaf in part.leaves
    ]
    return msgspec.structs.replace(part, leaves=leaves, mfu_if_removed=_if_removed(mfu, part.recoverable_ns, total_ns))
