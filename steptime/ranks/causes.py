"""Why a rank was late: its leaves against the median of its peers, in the steps where it was late (DESIGN 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.blame import column_of
from steptime.ranks.collectives import Matches
from steptime.ranks.counted import Row
from steptime.ranks.longer import COMPUTE, more_share, work_done
from steptime.ranks.waits import Waits
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.trace.events import I64
from steptime.trace.host_calls import host_cause

F64 = NDArray[np.float64]

#: A cause must explain this share of the lateness; below, it is "not separable".
EXPLAINS = 0.5
#: A further cause is worth a name from this share of the lateness on, or from this share of a usual step; several
#: explain the lateness if they hold this much of it.
ALSO, ALSO_OF_STEP, TOGETHER = 0.2, 0.05, 0.8
#: Student's t for p = 5e-5 (one side) by degrees of freedom: 200 clean jobs of many ranks accuse nobody.
DEGREES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 1000)
CRITICAL = (100.0, 28.0, 15.5, 11.2, 9.1, 7.1, 6.2, 5.2, 4.8, 4.4, 4.1, 3.9)

SLOWER, MORE, LINK = "slower kernels", "more work", "slow link"
UNKNOWN, NOT_RECORDED = "not separable", "not recorded"
#: Kept by messages whose other end is not known: somebody else is the culprit. Never said of a rank that is named.
KEPT = "kept"

#: Host causes whose length does not depend on how far the host runs ahead of the device.
_OWN_LENGTH = [
    LEAF_CODE[f"host/{name}"]
    for name in ("data_loader", "python", "gc", "checkpoint", "compile", "allocator", "launch_bound")
]

_MESSAGES = LEAF_CODE["exposed_comm/p2p_transfer"]
_TRANSFER = [code for code, leaf in enumerate(LEAVES) if leaf.slice == "exposed_comm" and code != _MESSAGES]
_IDLE = [
    code for code, leaf in enumerate(LEAVES) if leaf.slice in ("host", "unexplained") and leaf.id != "capture_skew"
]
_PRODUCTIVE = len(LEAVES)
_SYNC = LEAF_CODE["host/sync"]
#: Where time of reading a value stands besides `sync`: see `_asked_for`.
_ASKED = [LEAF_CODE[f"host/{name}"] for name in ("launch_bound", "kernel_gap", "d2h_copy")]
#: How CUPTI calls a copy to memory that is not pinned: its caller waits for it (CUDA, API synchronization behavior).
_FETCH = "Memcpy DtoH (Device -> Pageable)"


class Leaves(msgspec.Struct, frozen=True):
    """What every row spent on every leaf in every step of the job.

    ns float64 [r, s, leaves + 1], the last one is productive time; transfer without the waits. host float64 [r, s,
    leaves]: what the host spent on it, idle device or not; NaN where that is not known. known bool [r, s]: the row has
    the step. unpaired bool [r]: the other ends of most of its sends and receives are not known, so that their waits
    still stand in exposed communication. stage int64 [r]: the pipeline stage of each row, -1 where it has none. at
    int64 [r, s]: index of each step in each row's own list, -1 where the row lacks it. usual_ns: of a step. whole
    bool [r, s]: the row has the step, and its true start.

    What goes with reading a value from the device (to dispatch the copy, to start it, the copy) is in ``host/sync``: it
    is no cause of its own.
    """

    ns: F64
    host: F64
    unpaired: NDArray[np.bool_]
    stage: I64
    at: I64
    usual_ns: float
    whole: NDArray[np.bool_]


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
        asked_ns = _asked_for(row)
        for column, own in enumerate(at[index].tolist()):
            if own < 0:
                continue
            step = row.timeline.steps[own]
            ns[index, column, _PRODUCTIVE] = step.productive_ns
            for key, value in step.leaves_ns.items():
                ns[index, column, LEAF_CODE[key]] = value
            for code, asked in zip(_ASKED, asked_ns[:, own].tolist(), strict=True):
                ns[index, column, code] -= asked
                ns[index, column, _SYNC] += asked
            if row.timeline.host_ns is not None:
                host[index, column] = row.timeline.host_ns[own]
    column_at = column_of(rows, at)[waits.row, waits.step]
    inside = column_at >= 0
    np.subtract.at(ns, (waits.row[inside], column_at[inside], waits.leaf[inside]), waits.ns[inside])
    of_stage = np.full(len(rows), -1, np.int64) if stage is None else stage
    lengths = [step.dur_ns for row in rows for step in row.timeline.steps]
    usual_ns = float(np.median(lengths)) if lengths else 0.0
    whole = [
        [own >= 0 and not row.timeline.steps[own].edge for own in one]
        for row, one in zip(rows, at.tolist(), strict=True)
    ]
    return Leaves(ns, host, unpaired(rows, matches), of_stage, at, usual_ns, np.array(whole, np.bool_))


def _asked_for(row: Row) -> I64:
    """What a row spent on fetching values by step, besides the waiting itself, int64 [_ASKED, steps]."""
    ledger = row.timeline.ledger
    asks = np.array([host_cause(text) == "sync_op" for text in ledger.texts] + [False], np.bool_)
    fetches = np.array([text.startswith(_FETCH) for text in ledger.texts] + [False], np.bool_)
    result = np.zeros((len(_ASKED), len(row.timeline.steps)), np.int64)
    for at, code in enumerate(_ASKED):
        mine = np.flatnonzero((ledger.leaf == code) & (asks | fetches)[ledger.where])
        np.add.at(result[at], ledger.step[mine], ledger.ns[mine])
    return result


def unpaired(rows: Sequence[Row], matches: Matches) -> NDArray[np.bool_]:
    """Whether most sends and receives of each row lack their other end, bool [r]."""
    sent = np.array([_messages(row) for row in rows], np.int64)
    paired = np.bincount(matches.row[matches.pair[matches.match]], minlength=len(rows))
    result: NDArray[np.bool_] = 2 * paired < sent
    return result


def _messages(row: Row) -> int:
    instances = row.timeline.instances
    return int(np.count_nonzero(instances.leaf == _MESSAGES)) if instances is not None else 0


def explain(
    rows: Sequence[Row], leaves: Leaves, culprits: Sequence[int], columns: Sequence[int], lost_ns: float = 0.0
) -> Cause:
    """The cause that sets `culprits` (row indices) most apart from the others in the given steps.

    `lost_ns`: what they cost the others in such a step: what differs by far less did not do it.
    """
    own, at = list(culprits), leaves.at
    known: NDArray[np.bool_] = np.all(at[:, list(columns)] >= 0, axis=1)
    peers = _peers(rows, leaves.stage, own, known)
    if not peers or not len(columns):
        return Cause(UNKNOWN, None, 0.0)
    excess = _excess(leaves.ns, own, peers, columns)
    causes = [Cause(LEAVES[code].id, LEAVES[code].key, float(excess[code])) for code in _IDLE]
    mine, theirs = ([work_done(rows[one], at[one, list(columns)]) for one in some] for some in (own, peers))
    causes += _compute_causes(excess, more_share(mine, theirs))
    messages = KEPT if leaves.unpaired[own].any() else LINK
    causes += [Cause(LINK, None, float(excess[_TRANSFER].sum())), Cause(messages, None, float(excess[_MESSAGES]))]
    best, *rest = sorted(causes, key=lambda cause: -cause.ns)
    late_ns = max(sum(cause.ns for cause in causes if cause.ns > 0), lost_ns)
    least_ns = ALSO * late_ns
    more = [cause for cause in rest if cause.ns >= least_ns and cause.what not in (LINK, KEPT)]
    explained = best.ns >= EXPLAINS * late_ns
    together = bool(more) and best.ns + sum(cause.ns for cause in more) >= TOGETHER * late_ns
    if best.ns <= 0 or not (explained or together):
        stall = common_stall(leaves, [*own, *peers], columns, late_ns)
        return Cause(UNKNOWN, None, best.ns) if stall is None else msgspec.structs.replace(stall, shared=True)
    least_ns = min(least_ns, ALSO_OF_STEP * leaves.usual_ns)
    more = [cause for cause in rest if cause.ns >= least_ns and cause.what not in (LINK, KEPT)]
    # What the host does at the end of a step keeps the device waiting in the window of the next.
    before = [max(column - 1, 0) for column in columns]
    longer = np.maximum(*(_excess(leaves.host, own, peers, some) for some in (columns, before)))
    chance = _chance(leaves, own, peers, columns)
    also = tuple(cause.what for cause in more if not _everywhere(cause, longer, chance))
    return msgspec.structs.replace(best, shared=_everywhere(best, longer, chance), also=also)


def _everywhere(cause: Cause, longer: F64, chance: F64) -> bool:
    """Whether the peers' hosts do it nearly as long, seen or not: by less of the lateness, or less than chance gives.

    longer, chance float64 [leaves]: what the culprits' hosts do more, and what a host may by chance.
    """
    least = np.maximum(chance, EXPLAINS * cause.ns)
    # Without numbers for the spread, what explains the lateness is all that can be asked.
    least = np.where(np.isnan(least), EXPLAINS * cause.ns, least)
    return any(LEAVES[code].key == cause.leaf and longer[code] < least[code] for code in _OWN_LENGTH)


def _chance(leaves: Leaves, own: Sequence[int], peers: Sequence[int], columns: Sequence[int]) -> F64:
    """How much longer than its peers a host may do something by chance, float64 [leaves]; NaN: not known.

    `CRITICAL` standard errors, from how much it differs from step to step on the other rows that do it about as long.
    None for what the peers do not even half as long: that is no chance.
    """
    each = np.delete(np.where(leaves.whole[:, :, None], leaves.host, np.nan), own, axis=0)
    count = np.count_nonzero(~np.isnan(each), axis=1)
    mean = np.nansum(each, axis=1) / np.maximum(count, 1)
    usual = np.median(leaves.host[np.ix_(list(peers), list(columns))], axis=(0, 1))
    like = mean >= usual / 2
    degrees = np.where(like, np.maximum(count - 1, 0), 0).sum(axis=0)
    squares = np.where(like, np.nansum((each - mean[:, None, :]) ** 2, axis=1), 0.0).sum(axis=0)
    # The peers' median is itself not known better than by their number.
    steps = len(columns) / (1.0 + 1.0 / len(peers))
    error = np.sqrt(squares / np.maximum(degrees, 1) / steps)
    chance = np.where(degrees > 0, error * np.interp(degrees, DEGREES, CRITICAL), np.nan)
    result: F64 = np.where(leaves.host[np.ix_(list(own), list(columns))].mean(axis=(0, 1)) > 2 * usual, 0.0, chance)
    return result


def common_stall(leaves: Leaves, rows: Sequence[int], columns: Sequence[int], late_ns: float) -> Cause | None:
    """What the hosts of all these rows do for so long, their devices idle, that being late by `late_ns` may be chance.

    Each stalls in its own time, and who comes last after a few steps is no fault of its own. None: there is no such.
    """
    chosen = np.ix_(list(rows), list(columns))
    idle = np.median(leaves.ns[chosen].mean(axis=1), axis=0)
    spent = np.median(leaves.host[chosen].mean(axis=1), axis=0)
    found = [
        code
        for code in _OWN_LENGTH
        if idle[code] >= ALSO_OF_STEP * leaves.usual_ns and spent[code] >= EXPLAINS * late_ns
    ]
    if not found:
        return None
    code = max(found, key=lambda one: spent[one])
    return Cause(LEAVES[code].id, LEAVES[code].key, float(idle[code]))


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
    computes = np.isin(ledger.leaf, COMPUTE)
    return {ledger.texts[what] for what in np.unique(ledger.what[computes]).tolist() if what >= 0}


def _alike(left: set[str], right: set[str]) -> bool:
    return len(left & right) >= 0.9 * len(left | right)


def _compute_causes(excess: F64, more: float) -> list[Cause]:
    """Slower kernels, more of them, or both. more: share of the longer compute that is more work."""
    code = max(COMPUTE, key=lambda one: excess[one])
    leaf = LEAVES[code].key if excess[code] > 0 else None
    longer = float(excess[[*COMPUTE, _PRODUCTIVE]].sum())
    return [Cause(SLOWER, leaf, (1.0 - more) * longer), Cause(MORE, leaf, more * longer)]
