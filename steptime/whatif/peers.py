"""Changes that compare rows: a rank as fast as its peers, nobody late, every step the same, even stages."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.errors import UsageError
from steptime.taxonomy import LEAVES
from steptime.trace.events import I64
from steptime.whatif.chunks import OUTSIDE
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.rank_nodes import HELD, STALL, WORK
from steptime.whatif.scenario import COMMUNICATES, COMPUTES, F64, Change, Mask, Place, Scenario

#: A rank computes like its peers if it takes at most so much of their time.
ALIKE = 1.03
#: A leaf that peers have next to nothing of is one that the rank alone has.
OWN_ALONE = 0.02


class _Totals:
    """Time by (row, column, leaf) under a scenario, float64 [r, columns, leaves + 1]; `PRODUCTIVE` comes last."""

    def __init__(self, job: JobGraph, place: Place, made: Scenario) -> None:
        parts = job.parts
        first = np.append(0, np.cumsum(job.ends.steps))[:-1]
        inside = (parts.step >= 0) & (parts.step < job.ends.steps[parts.row])
        self.part = np.flatnonzero(inside)
        self.row = parts.row[self.part].astype(np.int64)
        self.column = place.column[first[self.row] + parts.step[self.part]]
        self.leaf = parts.leaf[self.part].astype(np.int64)
        self.ns = np.zeros((len(place.rank), int(place.column.max()) + 1, len(LEAVES) + 1))
        np.add.at(self.ns, (self.row, self.column, self.leaf), parts.ns[self.part] * made.factor[self.part])
        self.counted = np.zeros(self.ns.shape[:2], np.bool_)
        row_of = np.repeat(np.arange(len(place.rank)), job.ends.steps)
        self.counted[row_of, place.column] = True
        self.wanted = np.zeros_like(self.counted)
        self.wanted[row_of, place.column] = place.counted

    def scaled(self, made: Scenario, ratio: F64) -> Scenario:
        """The scenario with each part's factor times the ratio of its (row, column, leaf)."""
        factor = made.factor.copy()
        factor[self.part] *= ratio[self.row, self.column, self.leaf]
        return msgspec.structs.replace(made, factor=factor)


def _ratio(target: NDArray[Any], own: F64) -> F64:
    result: F64 = np.divide(target, own, out=np.ones_like(own), where=own > 0)
    return result


def _peers(totals: _Totals, rows: I64) -> F64:
    """Median over those of `rows` that have the step, float64 [columns, leaves + 1]; NaN where none has."""
    return _median(totals.counted[rows], totals.ns[rows])


def _median(there: Mask, values: F64) -> F64:
    """Median over rows, float64 [columns, x]; NaN where no row is `there`, bool [rows, columns]."""
    values = np.where(there[:, :, None], values, np.nan)
    known = there.any(axis=0)
    result = np.full(values.shape[1:], np.nan)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result


def ranks(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:
    """`change.ranks` take as long as their peers, the ranks of the same stage.

    Kernels are compared one by one where the peers launch as many, leaves by their totals of the step otherwise.

    Raises:
        UsageError: a rank that is not there, or that has no peers.
    """
    for rank in change.ranks:
        if rank not in place.rank:
            raise UsageError(f"{change.asked}: rank {rank} is not among the traces")
    totals = _Totals(job, place, made)
    ratio = np.ones_like(totals.ns)
    own = np.isin(place.rank, change.ranks)
    kernels = _Kernels(job, totals, made)
    factor, gone = made.factor.copy(), made.gone.copy()
    for row in np.flatnonzero(own).tolist():
        peers = np.flatnonzero(~own & (place.stage == place.stage[row]))
        if not len(peers):
            raise UsageError(f"{change.asked}: no other rank does the same work: nobody to compare with")
        target = _peers(totals, peers)
        target = np.where(np.isnan(target), totals.ns[row], np.minimum(target, totals.ns[row]))
        ratio[row] = _ratio(target, totals.ns[row])
        alone = np.flatnonzero(target.sum(axis=0) < OWN_ALONE * totals.ns[row].sum(axis=0))
        gone |= (job.edge_kind == HELD) & (job.edge_row() == row) & np.isin(job.edge_leaf, alone)
        factor[(job.parts.row == row) & np.isin(job.parts.also, alone)] = 0.0
        slower = target[:, COMPUTES].sum(axis=1) * ALIKE < totals.ns[row][:, COMPUTES].sum(axis=1)
        kernels.bring(factor, ratio, (row, peers), slower)
    return totals.scaled(msgspec.structs.replace(made, factor=factor, gone=gone), ratio)


class _Kernels:
    """Every computing activity by its place in its row and step, to be compared with those of other rows.

    node int64 [k] by row, column, then order in the chain; ns float64 [k]; row, column int64 [k].
    """

    def __init__(self, job: JobGraph, totals: _Totals, made: Scenario) -> None:
        parts = job.parts
        inside = (parts.kind[totals.part] == WORK) & (totals.leaf != STALL) & ~np.isin(totals.leaf, COMMUNICATES)
        self.at = np.flatnonzero(inside)
        self.part = totals.part[self.at]
        # One number for row, column and node: rows of a matrix take ten times as long to sort.
        nodes, columns = len(job.graph.work_ns), totals.counted.shape[1]
        key = (totals.row[self.at] * columns + totals.column[self.at]) * nodes + parts.index[self.part]
        distinct, which = np.unique(key, return_inverse=True)
        self.which = which.ravel()
        self.row, self.column = np.divmod(distinct // nodes, columns)
        self.ns = np.zeros(len(distinct))
        np.add.at(self.ns, self.which, parts.ns[self.part] * made.factor[self.part])
        self.totals = totals

    def bring(self, factor: F64, ratio: F64, rows: tuple[int, I64], columns: Mask) -> None:
        """Bring the kernels of a row to the median of its peers' in the given columns; other ratios there become 1.

        Steps with as many kernels are compared together: a kernel is as much slower than its peers' in all of them, and
        keeps what it varies from step to step, as theirs do. Each step takes as long as its peers' all the same.
        """
        row, peers = rows
        several: dict[int, list[tuple[int, I64, F64]]] = {}
        for column in np.flatnonzero(columns).tolist():
            own = self._of(row, column)
            theirs = [self._of(peer, column) for peer in peers.tolist()]
            theirs = [one for one in theirs if len(one) == len(own)]
            if len(own) and theirs:
                median = np.median([self.ns[one] for one in theirs], axis=0)
                several.setdefault(len(own), []).append((column, own, median))
        for same in several.values():
            target = np.ones(len(self.ns))
            profile = _ratio(
                np.sum([one[2] for one in same], axis=0), np.sum([self.ns[one[1]] for one in same], axis=0)
            )
            for _, own, median in same:
                target[own] = profile * median.sum() / max(float((self.ns[own] * profile).sum()), 1.0)
            mine = np.flatnonzero(np.isin(self.which, np.concatenate([own for _, own, _ in same])))
            factor[self.part[mine]] *= target[self.which[mine]]
            for column, own, _ in same:
                ratio[row, column, np.unique(self.totals.leaf[self.at[np.isin(self.which, own)]])] = 1.0

    def _of(self, row: int, column: int) -> I64:
        result: I64 = np.flatnonzero((self.row == row) & (self.column == column))
        return result


def nobody_late(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:  # noqa: ARG001
    """Every rank takes at most as long as the median of its stage, leaf by leaf, step by step."""
    totals = _Totals(job, place, made)
    ratio = np.ones_like(totals.ns)
    for stage in np.unique(place.stage).tolist():
        rows = np.flatnonzero(place.stage == stage)
        target = _peers(totals, rows)
        target[:, COMMUNICATES] = np.nan
        own = totals.ns[rows]
        ratio[rows] = _ratio(np.where(np.isnan(target), own, np.minimum(target, own)), own)
    return totals.scaled(made, ratio)


def even(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:  # noqa: ARG001
    """Every rank and step takes the median of all counted ones of its stage, leaf by leaf."""
    totals = _Totals(job, place, made)
    ratio = np.ones_like(totals.ns)
    for stage in np.unique(place.stage).tolist():
        rows = np.flatnonzero(place.stage == stage)
        chosen = totals.wanted[rows]
        own = totals.ns[rows]
        ratio[rows] = _ratio(np.broadcast_to(np.median(own[chosen], axis=0), own.shape), own)
    return totals.scaled(made, ratio)


def stages(job: JobGraph, place: Place, made: Scenario, change: Change) -> Scenario:
    """All stages compute as long, what they compute in all stays the same.

    Forward and backward passes of every chunk take as long as those of all others, where the passes are known.

    Raises:
        UsageError: there are no stages.
    """
    stages = np.unique(place.stage)
    if len(stages) < 2:
        raise UsageError(f"{change.asked}: these traces show no pipeline stages")
    totals = _Totals(job, place, made)
    mine = np.flatnonzero(np.isin(totals.leaf, COMPUTES))
    part, row, column = totals.part[mine], totals.row[mine], totals.column[mine]
    chunk = place.chunk[job.parts.index[part]]

    def by_stage(chunk: I64) -> F64:
        """Usual time of each stage by column and chunk, what is in none last; 0 where nobody has the step."""
        ns = np.zeros((*totals.counted.shape, int(place.chunk.max(initial=OUTSIDE)) + 2))
        np.add.at(ns, (row, column, chunk), job.parts.ns[part] * made.factor[part])
        rows = [np.flatnonzero(place.stage == stage) for stage in stages]
        return np.nan_to_num(np.stack([_median(totals.counted[one], ns[one]) for one in rows]))

    # Where the passes of one stage are not known, those of the others say nothing.
    complete = np.all(by_stage(chunk)[..., :-1] > 0, axis=(0, 2))
    chunk = np.where(complete[column], chunk, OUTSIDE)
    each = by_stage(chunk)
    target = np.empty_like(each)
    for same in (slice(0, -1, 2), slice(1, -1, 2), slice(-1, None)):
        if each[..., same].size:
            target[..., same] = each[..., same].mean(axis=(0, 2), keepdims=True)
    share = _ratio(target, each)
    factor = made.factor.copy()
    factor[part] *= share[np.searchsorted(stages, place.stage[row]), column, chunk]
    return msgspec.structs.replace(made, factor=factor)
