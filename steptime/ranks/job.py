"""Totals of the job over the counted steps: slices, leaves, causes, kernels and collectives, in exact integers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from steptime.model import (
    Cause,
    Collective,
    Job,
    Kernel,
    LeafTotal,
    OtherStep,
    RankSteps,
    SliceTotal,
    Spread,
    StepTimeline,
)
from steptime.ranks.counted import Counted, Row, ranks_missing
from steptime.taxonomy import LEAF_CODE, LEAVES, SLICES, Leaf
from steptime.timeline.unprofiled import COST_PER_OP_NS
from steptime.trace.events import I64

CAUSES_KEPT = 60
KERNELS_KEPT = 200

#: Leaves whose time is wholly lost, so that all of it may come back: an upper bound, since something may wait behind.
#: Not the schedule's own bubble, of which more micro-batches leave a part, nor communication, which must run and may
#: be hidden: what of these may come back is not known from the trace, so it is None.
_RECOVERABLE = frozenset(
    (
        "data_loader",
        "launch_bound",
        "sync",
        "allocator",
        "gc",
        "compile",
        "checkpoint",
        "h2d_copy",
        "d2h_copy",
        "python",
        "precision",
        "stage_imbalance",
        "wait_for_rank",
    )
)

WHY_STRAGGLERS = "it needs all ranks on one clock: waits for late ranks stand in exposed communication"
WHY_MISSING = "ranks are missing: waits for them stand in exposed communication"
WHY_RECOMPUTE = "forward work inside a compiled backward or a CUDA graph can't be told from the backward's own"


def job_totals(counted: Counted, world_size: int | None, aligned: bool, bubble_unknown: str | None) -> Job:
    """Sum the counted steps. Shares are of the total duration; `mfu` stays None without FLOPs.

    Args:
        counted: the steps.
        world_size: how many ranks the job has, if known.
        aligned: whether the ranks were compared, so that waits for each other stand in a slice of their own.
        bubble_unknown: why waits between pipeline stages can't be told, None if they can.
    """
    pairs = counted.pairs
    durations = np.array([step.dur_ns for _, step in pairs], np.int64)
    leaves_ns: dict[str, int] = dict.fromkeys(LEAF_CODE, 0)
    for _, step in pairs:
        for key, ns in step.leaves_ns.items():
            leaves_ns[key] += ns
    total_ns = int(durations.sum())
    sources = list(dict.fromkeys(row.file.step_source for row in counted.rows))
    unknown = _unknown(counted, leaves_ns, world_size, aligned)
    if bubble_unknown is not None and leaves_ns["exposed_comm/p2p_transfer"]:
        unknown["pipeline_bubble"] = bubble_unknown
    return Job(
        world_size=world_size,
        ranks_analyzed=len({row.rank for row in counted.rows}),
        rank_steps=len(pairs),
        device=_device(counted.rows),
        step_source="; ".join(sources),
        steps=sorted({step.step for _, step in pairs}),
        step_time_ns=_spread(durations),
        total_ns=total_ns,
        slices=[_slice(counted, entry.id, leaves_ns, total_ns, unknown.get(entry.id)) for entry in SLICES],
    )


def _spread(durations: I64) -> Spread:
    low, middle, high = (int(round(float(value))) for value in np.percentile(durations, (10, 50, 90)))
    return Spread(median=middle, p10=low, p90=high)


def _device(rows: Sequence[Row]) -> str | None:
    names = [row.timeline.name or "GPU of unknown name" for row in rows if row.timeline.device is not None]
    return ", ".join(dict.fromkeys(names)) or None


def _communicates(leaves_ns: dict[str, int], world_size: int | None) -> bool:
    return world_size not in (None, 1) or any(ns for key, ns in leaves_ns.items() if key.startswith("exposed_comm/"))


def _unknown(counted: Counted, leaves_ns: dict[str, int], world_size: int | None, aligned: bool) -> dict[str, str]:
    """Slices that can't be told, with the reason."""
    unknown: dict[str, str] = {}
    if _communicates(leaves_ns, world_size):
        if not aligned:
            unknown["stragglers"] = WHY_STRAGGLERS
        elif ranks_missing(counted.rows, world_size) and not leaves_ns["stragglers/wait_for_rank"]:
            unknown["stragglers"] = WHY_MISSING
    if not leaves_ns["recompute/recompute"] and not all(row.file.recompute_visible for row in counted.rows):
        unknown["recompute"] = WHY_RECOMPUTE
    return unknown


def _slice(counted: Counted, slice_id: str, leaves_ns: dict[str, int], total_ns: int, why: str | None) -> SliceTotal:
    members = [leaf for leaf in LEAVES if leaf.slice == slice_id]
    if why is not None:
        leaves = [LeafTotal(id=members[0].id, ns=None, share=None, detail={"why": why})]
        return SliceTotal(id=slice_id, ns=None, share=None, leaves=leaves)
    leaves = [_leaf(counted, leaf, leaves_ns[leaf.key], total_ns) for leaf in members if leaves_ns[leaf.key]]
    ns = sum(leaf.ns or 0 for leaf in leaves)
    known = [leaf.recoverable_ns for leaf in leaves]
    recoverable = None if None in known else sum(value or 0 for value in known)
    return SliceTotal(
        id=slice_id, ns=ns, share=ns / total_ns if total_ns else 0.0, recoverable_ns=recoverable, leaves=leaves
    )


def _leaf(counted: Counted, leaf: Leaf, ns: int, total_ns: int) -> LeafTotal:
    detail: dict[str, int | float | str | None] = {}
    if leaf.id == "launch_bound":
        ops = sum(
            int(row.timeline.host_ops[chosen].sum()) for row, chosen in zip(counted.rows, counted.steps, strict=True)
        )
        detail = {
            "profiler_inflation_ns": min(ns, ops * COST_PER_OP_NS),
            "basis": "at most 4 us a recorded op",
        }
    whole = leaf.id in _RECOVERABLE or leaf.slice == "recompute"
    return LeafTotal(
        id=leaf.id,
        ns=ns,
        share=ns / total_ns if total_ns else 0.0,
        recoverable_ns=ns if whole else None,
        detail=detail,
    )


def rank_rows(counted: Counted, wanted: tuple[int, int] | None) -> list[RankSteps]:
    """Every rank on every device with all its steps (those asked for), captures of one rank joined."""
    joined: dict[tuple[int, int | None], RankSteps] = {}
    low, high = wanted if wanted is not None else (-(2**62), 2**62)
    for row in counted.rows:
        steps = [step for step in row.timeline.steps if low <= step.step <= high]
        key = (row.rank, row.timeline.device)
        before = joined[key].steps if key in joined else []
        joined[key] = RankSteps(
            rank=row.rank, host=row.file.meta.host, device=row.timeline.device, steps=before + steps
        )
    return [joined[key] for key in sorted(joined, key=lambda key: (key[0], -1 if key[1] is None else key[1]))]


def pictures(counted: Counted) -> list[StepTimeline]:
    """A typical step (of the first rank), the slowest step of all, and whatever else was asked to be drawn."""
    drawn = [
        msgspec.structs.replace(picture, rank=row.rank, device=row.timeline.device)
        for row in counted.rows
        for picture in row.timeline.pictures
    ]
    typical = [picture for picture in drawn if picture.why == "typical"][:1]
    slowest = sorted((picture for picture in drawn if picture.why == "slowest"), key=lambda picture: -picture.dur_ns)[
        :1
    ]
    return [*typical, *slowest, *(picture for picture in drawn if not picture.why)]


def other_steps(counted: Counted) -> list[OtherStep]:
    """Steps that are no training steps."""
    return [
        OtherStep(rank=row.rank, step=step.step, dur_ns=step.dur_ns, reason=step.note or "")
        for row in counted.rows
        for step in row.timeline.steps
        if step.class_ == "other"
    ]


def job_facts(counted: Counted, tokens_per_step: int | None) -> dict[str, float | None]:
    """Facts over the counted steps (see `diagnose.metrics`); those that no file tells are left out."""
    sums: dict[str, int] = {}
    rank_steps = 0
    for row, chosen in zip(counted.rows, counted.steps, strict=True):
        rank_steps += len(chosen)
        for name, values in row.timeline.facts.items():
            sums[name] = sums.get(name, 0) + int(values[chosen].sum())
    found: dict[str, float | None] = {name: float(total) for name, total in sums.items() if name.endswith("_ns")}
    kernels, dur_ns = sums.pop("kernels.count", 0), found.pop("kernels.dur_ns", None)
    if kernels and dur_ns is not None:
        found |= {"kernels.per_step": kernels / rank_steps, "kernels.mean_ns": dur_ns / kernels}
    if "norms.count" in sums:
        found["norms.per_step"] = sums["norms.count"] / rank_steps
    for name in ("reserved_bytes", "allocated_bytes"):
        most = max((getattr(row.file.meta, name) for row in counted.rows), default=-1)
        found |= {f"allocator.{name}": float(most)} if most >= 0 else {}
    return found | ({"job.tokens_per_step": float(tokens_per_step)} if tokens_per_step is not None else {})


class Tables:
    """Sums of the counted steps' ledger rows by leaf, what and where, across ranks."""

    def __init__(self, counted: Counted, total_ns: int) -> None:
        self.total_ns = total_ns
        self._sums: dict[tuple[int, str, str | None], list[int]] = {}
        for row, chosen in zip(counted.rows, counted.steps, strict=True):
            self._add(row, chosen)

    def _add(self, row: Row, chosen: list[int]) -> None:
        ledger = row.timeline.ledger
        inside = np.flatnonzero(np.isin(ledger.step, chosen))
        keys = np.stack([ledger.leaf[inside], ledger.what[inside], ledger.where[inside]]).astype(np.int64)
        if not len(inside):
            return
        distinct, which = np.unique(keys, axis=1, return_inverse=True)
        columns = (ledger.ns[inside], ledger.count[inside], ledger.dur_ns[inside], np.ones(len(inside), np.int64))
        sums = np.zeros((distinct.shape[1], 4), np.int64)
        for at, column in enumerate(columns):
            np.add.at(sums[:, at], which.ravel(), column)
        texts = ledger.texts
        for (leaf, what, where), values in zip(distinct.T.tolist(), sums.tolist(), strict=True):
            key = (leaf, texts[what] if what >= 0 else "", texts[where] if where >= 0 else None)
            known = self._sums.setdefault(key, [0, 0, 0, 0])
            for at, value in enumerate(values):
                known[at] += value

    def causes(self) -> list[Cause]:
        """The costliest causes, at most `CAUSES_KEPT`."""
        ranked = sorted(self._sums.items(), key=lambda item: (-item[1][0], item[0][0], item[0][1], item[0][2] or ""))
        return [
            Cause(
                leaf=LEAVES[leaf].key,
                what=what,
                where=where,
                ns=ns,
                share=ns / self.total_ns if self.total_ns else 0.0,
                count=count,
                rank_steps=rank_steps,
            )
            for (leaf, what, where), (ns, count, _, rank_steps) in ranked[:CAUSES_KEPT]
            if ns
        ]

    def kernels(self) -> list[Kernel]:
        """Kernels by name and leaf, costliest first, at most `KERNELS_KEPT`."""
        rows: dict[tuple[str, str], list[int]] = {}
        for (leaf, what, _), (ns, count, dur_ns, _) in self._sums.items():
            if LEAVES[leaf].slice in ("kernels", "recompute"):
                known = rows.setdefault((what, LEAVES[leaf].key), [0, 0, 0])
                for at, value in enumerate((count, dur_ns, ns)):
                    known[at] += value
        ranked = sorted(rows.items(), key=lambda item: (-item[1][2], -item[1][1], item[0]))[:KERNELS_KEPT]
        return [Kernel(name=name, leaf=leaf, count=c, dur_ns=d, owned_ns=o) for (name, leaf), (c, d, o) in ranked]

    def collectives(self) -> list[Collective]:
        """Communication by kind and group, most exposed first."""
        rows: dict[tuple[str, str | None], list[int]] = {}
        for (leaf, what, _), (ns, count, dur_ns, _) in self._sums.items():
            if LEAVES[leaf].slice == "exposed_comm":
                group = what.partition(" (")[2].removesuffix(")") or None
                known = rows.setdefault((LEAVES[leaf].id, group), [0, 0, 0])
                for at, value in enumerate((count, dur_ns, ns)):
                    known[at] += value
        ranked = sorted(rows.items(), key=lambda item: (-item[1][2], -item[1][1], item[0][0], item[0][1] or ""))
        return [Collective(kind=k, group=g, count=c, dur_ns=d, exposed_ns=e) for (k, g), (c, d, e) in ranked]
