"""Why a rank was late: its leaves against the median of its peers, in the steps where it was late (DESIGN 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.blame import column_of
from steptime.ranks.collectives import Matches
from steptime.ranks.counted import Row
from steptime.ranks.waits import Waits
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.trace.events import I64

F64 = NDArray[np.float64]

#: A cause must explain this share of the lateness; below, it is "not separable".
EXPLAINS = 0.5
#: A further cause is worth a name from this share of the lateness on; several explain it if they hold this much of it.
ALSO, TOGETHER = 0.2, 0.8
#: Counts of kernels differ by less than this between ranks that do the same (autotuning, rare allocations).
SAME_COUNT = 0.01

SLOWER, MORE, LINK = "slower kernels", "more work", "slow link"
UNKNOWN, NOT_RECORDED = "not separable", "not recorded"
#: Kept by messages whose other end is not known: somebody else is the culprit. Never said of a rank that is named.
KEPT = "kept"

#: Host causes whose length does not depend on how far the host runs ahead of the device.
_OWN_LENGTH = [
    LEAF_CODE[f"host/{name}"] for name in ("data_loader", "python", "gc", "checkpoint", "compile", "launch_bound")
]

_COMPUTE = [code for code, leaf in enumerate(LEAVES) if leaf.slice in ("kernels", "recompute")]
_MESSAGES = LEAF_CODE["exposed_comm/p2p_transfer"]
_TRANSFER = [code for code, leaf in enumerate(LEAVES) if leaf.slice == "exposed_comm" and code != _MESSAGES]
_IDLE = [
    code for code, leaf in enumerate(LEAVES) if leaf.slice in ("host", "unexplained") and leaf.id != "capture_skew"
]
_PRODUCTIVE = len(LEAVES)


class Leaves(msgspec.Struct, frozen=True):
    """What every row spent on every leaf in every step of the job.

    ns float64 [r, s, leaves + 1], the last one is productive time; transfer without the waits. host float64 [r, s,
    leaves]: what the host spent on it, idle device or not; NaN where that is not known. known bool [r, s]: the row has
    the step. unpaired bool [r]: the other ends of most of its sends and receives are not known, so that their waits
    still stand in exposed communication. stage int64 [r]: the pipeline stage of each row, -1 where it has none.
    """

    ns: F64
    host: F64
    known: NDArray[np.bool_]
    unpaired: NDArray[np.bool_]
    stage: I64


class Cause(msgspec.Struct, frozen=True):
    """Why: what, the leaf it shows in ("slice/leaf", None if several or none), and ns more than the peers a step.

    shared: the peers' hosts do it as long, hidden behind work that their devices still had queued. also: what else
    holds a good part of the lateness, most first.
    """

    what: str
    leaf: str | None
    ns: float
    shared: bool = False
    also: tuple[str, ...] = ()


def leaf_table(rows: Sequence[Row], at: I64, waits: Waits, matches: Matches, stage: I64 | None = None) -> Leaves:
    """Leaves of all rows by step. `rows` are as aligned: their waits still stand in exposed communication."""
    ns = np.zeros((*at.shape, len(LEAVES) + 1))
    host = np.full((*at.shape, len(LEAVES)), np.nan)
    for index, row in enumerate(rows):
        for column, own in enumerate(at[index].tolist()):
            if own < 0:
                continue
            step = row.timeline.steps[own]
            ns[index, column, _PRODUCTIVE] = step.productive_ns
            for key, value in step.leaves_ns.items():
                ns[index, column, LEAF_CODE[key]] = value
            if row.timeline.host_ns is not None:
                host[index, column] = row.timeline.host_ns[own]
    column_at = column_of(rows, at)[waits.row, waits.step]
    inside = column_at >= 0
    np.subtract.at(ns, (waits.row[inside], column_at[inside], waits.leaf[inside]), waits.ns[inside])
    of_stage = np.full(len(rows), -1, np.int64) if stage is None else stage
    return Leaves(ns, host, at >= 0, unpaired(rows, matches), of_stage)


def unpaired(rows: Sequence[Row], matches: Matches) -> NDArray[np.bool_]:
    """Whether most sends and receives of each row lack their other end, bool [r]."""
    sent = np.array([_messages(row) for row in rows], np.int64)
    paired = np.bincount(matches.row[matches.pair[matches.match]], minlength=len(rows))
    result: NDArray[np.bool_] = 2 * paired < sent
    return result


def _messages(row: Row) -> int:
    instances = row.timeline.instances
    return int(np.count_nonzero(instances.leaf == _MESSAGES)) if instances is not None else 0


def explain(  # noqa: PLR0913  the job, and who was how late when
    rows: Sequence[Row],
    leaves: Leaves,
    at: I64,
    culprits: Sequence[int],
    columns: Sequence[int],
    lost_ns: float = 0.0,
) -> Cause:
    """The cause that sets `culprits` (row indices) most apart from the others in the given steps.

    `lost_ns`: what they cost the others in such a step: what differs by far less did not do it.
    """
    own = list(culprits)
    known: NDArray[np.bool_] = np.all(at[:, list(columns)] >= 0, axis=1)
    peers = _peers(rows, leaves.stage, own, known)
    if not peers or not len(columns):
        return Cause(UNKNOWN, None, 0.0)
    excess = _excess(leaves.ns, own, peers, columns)
    causes = [Cause(LEAVES[code].id, LEAVES[code].key, float(excess[code])) for code in _IDLE]
    mine, theirs = (np.array([_work(rows[index], at[index, list(columns)]) for index in some]) for some in (own, peers))
    added = _added_share(
        [_totals(rows[one], at[one, list(columns)]) for one in own],
        [_totals(rows[one], at[one, list(columns)]) for one in peers],
    )
    causes.append(_compute_cause(mine, theirs, excess, added))
    messages = KEPT if leaves.unpaired[own].any() else LINK
    causes += [Cause(LINK, None, float(excess[_TRANSFER].sum())), Cause(messages, None, float(excess[_MESSAGES]))]
    best, *rest = sorted(causes, key=lambda cause: -cause.ns)
    late_ns = max(sum(cause.ns for cause in causes if cause.ns > 0), lost_ns)
    more = [cause for cause in rest if cause.ns >= ALSO * late_ns and cause.what not in (LINK, KEPT)]
    explained = best.ns >= EXPLAINS * late_ns
    together = bool(more) and best.ns + sum(cause.ns for cause in more) >= TOGETHER * late_ns
    if best.ns <= 0 or not (explained or together):
        return Cause(UNKNOWN, None, best.ns)
    # What the host does at the end of a step keeps the device waiting in the window of the next.
    before = [max(column - 1, 0) for column in columns]
    longer = np.maximum(*(_excess(leaves.host, own, peers, some) for some in (columns, before)))
    shared = any(LEAVES[code].key == best.leaf and longer[code] < EXPLAINS * best.ns for code in _OWN_LENGTH)
    return msgspec.structs.replace(best, shared=shared, also=tuple(cause.what for cause in more))


def _excess(spent: F64, own: Sequence[int], peers: Sequence[int], columns: Sequence[int]) -> F64:
    """Median over the steps of the culprits' mean less the peers' median, float64 [leaves] as in `spent`.

    The median: one outlier among the steps is not what made them late in the others.
    """
    chosen = spent[:, list(columns)]
    apart = chosen[list(own)].mean(axis=0) - np.median(chosen[list(peers)], axis=0)
    result: F64 = np.median(apart, axis=0)
    return result


def _peers(rows: Sequence[Row], stage: I64, own: Sequence[int], known: NDArray[np.bool_]) -> list[int]:
    """Rows that do the same kind of work: of the same stage, or whose kernels are of the same names, else all others.

    known bool [r]: the row has the steps.
    """
    others = [index for index in range(len(rows)) if index not in own and known[index]]
    if stage[own[0]] >= 0:
        return [index for index in others if stage[index] == stage[own[0]]]
    mine = _names(rows[own[0]])
    alike = [index for index in others if _alike(mine, _names(rows[index]))]
    return alike or others


def _names(row: Row) -> set[str]:
    ledger = row.timeline.ledger
    computes = np.isin(ledger.leaf, _COMPUTE)
    return {ledger.texts[what] for what in np.unique(ledger.what[computes]).tolist() if what >= 0}


def _alike(left: set[str], right: set[str]) -> bool:
    return len(left & right) >= 0.9 * len(left | right)


def _compute_cause(mine: F64, theirs: F64, excess: F64, added: float) -> Cause:
    """Slower kernels or more of them.

    mine, theirs float64 [rows, 4]: `_work` of the culprits and of their peers; added: from `_added_share`.
    """
    code = max(_COMPUTE, key=lambda one: excess[one])
    leaf = LEAVES[code].key if excess[code] > 0 else None
    count, flops, bytes_, time = mine.mean(axis=0) / np.maximum(np.median(theirs, axis=0), 1.0)
    longer = time - 1.0
    more = max(count, flops, bytes_) - 1.0 > max(EXPLAINS * longer, SAME_COUNT) or added > EXPLAINS
    return Cause(MORE if more else SLOWER, leaf, float(excess[[*_COMPUTE, _PRODUCTIVE]].sum()))


Totals = dict[str, tuple[float, float]]


def _totals(row: Row, steps: I64) -> Totals:
    """How often each kernel ran in the given steps, and its time, by name."""
    ledger = row.timeline.ledger
    mine = np.flatnonzero(np.isin(ledger.step, steps) & np.isin(ledger.leaf, _COMPUTE) & (ledger.what >= 0))
    names, which = np.unique(ledger.what[mine], return_inverse=True)
    count, time = (np.bincount(which.ravel(), column[mine]) for column in (ledger.count, ledger.dur_ns))
    return {ledger.texts[name]: (float(n), float(ns)) for name, n, ns in zip(names.tolist(), count, time, strict=True)}


def _added_share(mine: Sequence[Totals], theirs: Sequence[Totals]) -> float:
    """Share of the culprits' excess time that is kernels which the peers ran less often, kernel by kernel.

    A few long kernels more are more work, however little they change the number of all.
    """
    added = excess = 0.0
    for name in sorted({name for one in mine for name in one}):
        (count, time), (usual, usual_time) = (
            tuple(float(middle([one.get(name, (0.0, 0.0))[at] for one in some])) for at in (0, 1))
            for middle, some in ((np.mean, mine), (np.median, theirs))
        )
        longer = max(time - usual_time, 0.0)
        excess += longer
        if count > usual:
            added += min(longer, (count - usual) * time / count)
    return added / excess if excess else 0.0


def _work(row: Row, steps: I64) -> list[float]:
    """Kernels, FLOPs, bytes and kernel time of a row in the given steps; 0 where the trace has no shapes."""
    ledger = row.timeline.ledger
    mine = np.isin(ledger.step, steps) & np.isin(ledger.leaf, _COMPUTE)
    count, time = float(ledger.count[mine].sum()), float(ledger.dur_ns[mine].sum())
    groups = row.timeline.groups
    flops = moved = 0.0
    if groups is not None:
        for index in np.flatnonzero(np.isin(groups.step, steps)).tolist():
            price = groups.prices[int(groups.call[index])]
            flops += int(groups.ops[index]) * (price.hardware_flops or 0)
            moved += int(groups.ops[index]) * (price.bytes or 0)
    return [count, flops, moved, time or float(ledger.ns[mine].sum())]
