"""The job with its useful work: MFU, HFU, and what each slice is worth in MFU."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.model import Job, LeafTotal, OpRoof, SliceTotal
from steptime.roofline.pricing import Roof
from steptime.roofline.utilization import Utilization
from steptime.trace.kernels import op_family

#: Kinds of calls -> the leaf that their time is in.
_LEAF_OF_KIND = {"matmul": "matmul", "convolution": "matmul", "attention": "attention", "memory": "memory_bound"}
#: Below this share of a leaf's time with a known roof, its headroom is not the leaf's.
_MIN_KNOWN = 0.9


def headroom_ns(rows: Sequence[OpRoof], roof: Roof) -> dict[str, int]:
    """What each kernel leaf could give back at the achievable roof, for leaves of which nearly all time has one.

    A compute roof that nobody is known to have reached promises nothing. Optimizers and recomputed calls are in leaves
    of their own.
    """
    known: dict[str, int] = {}
    owned: dict[str, int] = {}
    room: dict[str, int] = {}
    for row in rows:
        leaf = _LEAF_OF_KIND.get(row.kind)
        if leaf is None or row.recomputed or op_family(row.op) == "optimizer":
            continue
        owned[leaf] = owned.get(leaf, 0) + row.owned_ns
        reachable = row.bound == "memory" or roof.achievable_of(row.dtype) is not None
        if row.cache_resident or (row.headroom_ns is not None and reachable):
            known[leaf] = known.get(leaf, 0) + row.owned_ns
            room[leaf] = room.get(leaf, 0) + (row.headroom_ns or 0)
    return {leaf: room[leaf] for leaf in room if known[leaf] >= _MIN_KNOWN * owned[leaf]}


def with_utilization(job: Job, useful: Utilization, roof: Roof, rows: Sequence[OpRoof]) -> Job:
    """Fill in what the FLOPs and the roofline say. `mfu` is the ledger's productive share, exactly."""
    room = headroom_ns(rows, roof)
    productive_ns = job.total_ns - sum(part.ns or 0 for part in job.slices)
    known = useful.source is not None and job.total_ns > 0
    mfu = productive_ns / job.total_ns if known else None
    hfu = useful.counts.hardware_ns / job.total_ns if useful.source == "trace" and job.total_ns else None
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
        slices=[_slice(_with_room(part, room), mfu, job.total_ns) for part in job.slices],
    )


def _with_room(part: SliceTotal, room: dict[str, int]) -> SliceTotal:
    """The slice with what its kernel leaves could give back; never more than they hold."""
    if part.id != "kernels":
        return part
    leaves = [
        msgspec.structs.replace(leaf, recoverable_ns=min(room[leaf.id], leaf.ns or 0)) if leaf.id in room else leaf
        for leaf in part.leaves
    ]
    return msgspec.structs.replace(part, leaves=leaves)


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
