"""How much of a rank's longer compute is slower kernels, and how much is more work: call by call where shapes tell.

Equal calls (op, shapes, recomputed or not) that take longer are slower; calls that the peers make less often, or not
at all, are more work. Both can hold at once: what is new to a rank runs at the pace of what it has in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from steptime.ranks.counted import Row
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.trace.events import I64

#: Leaves of compute.
COMPUTE = [code for code, leaf in enumerate(LEAVES) if leaf.slice in ("kernels", "recompute")]
#: A kernel that is slowed by communication, or computes in a slower dtype, has a second leaf for what that costs.
_SECOND = (LEAF_CODE["kernels/comm_contention"], LEAF_CODE["kernels/precision"])

#: Counts of kernels differ by less than this between ranks that do the same (autotuning, rare allocations).
SAME_COUNT = 0.01
#: More work that accounts for this share of the longer time is what it is due to.
_MOSTLY = 0.5
#: Calls with recorded shapes must hold this share of the compute, else names and totals decide.
_SHAPED = 0.7
#: Larger or smaller calls of an op take longer than their FLOPs or bytes say by up to this factor, without any fault.
_PACE = 1.2
#: Calls in common must take this share of a rank's time to tell its pace; those of one op this share of them.
_COMMON, _COMMON_OF_OP = 0.1, 0.05

Totals = dict[tuple[str, str, bool], tuple[float, float]]


class Done(msgspec.Struct, frozen=True):
    """The compute of one row in some steps.

    by_name, by_call: how often each kernel ran (or each call was made) and its time in ns, by kernel name and by (op,
    shapes, recomputed). by_op: FLOPs, bytes, calls and time of each op with shapes. count, flops, bytes, time_ns: in
    all; FLOPs and bytes are 0 where the trace has no shapes.
    """

    by_name: Totals
    by_call: Totals
    by_op: dict[str, tuple[float, float, float, float]]
    count: float
    flops: float
    bytes: float
    time_ns: float


def work_done(row: Row, steps: I64) -> Done:
    """What a row computed in the given steps (its own indices)."""
    ledger = row.timeline.ledger
    mine = np.flatnonzero(np.isin(ledger.step, steps) & np.isin(ledger.leaf, COMPUTE))
    calls = np.where(np.isin(ledger.leaf, _SECOND), 0, ledger.count)
    count, time_ns = float(calls[mine].sum()), float(ledger.dur_ns[mine].sum())
    named = mine[ledger.what[mine] >= 0]
    names, which = np.unique(ledger.what[named], return_inverse=True)
    counts, times = (np.bincount(which.ravel(), column[named]) for column in (calls, ledger.dur_ns))
    by_name: Totals = {
        (ledger.texts[name], "", False): (float(n), float(ns))
        for name, n, ns in zip(names.tolist(), counts, times, strict=True)
    }
    by_call: Totals = {}
    by_op: dict[str, tuple[float, float, float, float]] = {}
    groups = row.timeline.groups
    if groups is not None:
        for at in np.flatnonzero(np.isin(groups.step, steps)).tolist():
            call, ops, ns = int(groups.call[at]), int(groups.ops[at]), float(groups.dur_ns[at])
            price, text = groups.prices[call], groups.texts[call]
            key = (text.op, text.shapes, bool(groups.recomputed[at]))
            known = by_call.get(key, (0.0, 0.0))
            by_call[key] = (known[0] + ops, known[1] + ns)
            known_flops, known_bytes, known_ops, known_ns = by_op.get(text.op, (0.0, 0.0, 0.0, 0.0))
            flops, moved = ops * (price.hardware_flops or 0), ops * (price.bytes or 0)
            by_op[text.op] = (known_flops + flops, known_bytes + moved, known_ops + ops, known_ns + ns)
    all_flops, all_bytes = (float(sum(one[at] for one in by_op.values())) for at in (0, 1))
    return Done(by_name, by_call, by_op, count, all_flops, all_bytes, time_ns or float(ledger.ns[mine].sum()))


def more_share(mine: Sequence[Done], theirs: Sequence[Done]) -> float:
    """Share of the longer compute that is more work, the rest being slower kernels.

    Below 0 or above 1 where a rank has less to do but is slower by more than that, or the other way round.

    Args:
        mine: of the rows that were late.
        theirs: of their peers.
    """
    if _shaped(mine) and _shaped(theirs):
        found = _by_calls(_middle([one.by_call for one in mine], np.mean), [one.by_call for one in theirs])
        return found if found is not None else _by_work(mine, theirs)
    return _by_totals(mine, theirs)


def _shaped(some: Sequence[Done]) -> bool:
    share = [sum(ns for _, ns in one.by_call.values()) / max(one.time_ns, 1.0) for one in some]
    return bool(np.median(share) >= _SHAPED)


def _middle(some: Sequence[Totals], middle: Callable[[Sequence[float]], np.floating[Any]]) -> Totals:
    """Counts and times of each key by `middle` (a mean or a median) over the rows."""
    found: Totals = {}
    for key in sorted({key for one in some for key in one}):
        counts, times = zip(*(one.get(key, (0.0, 0.0)) for one in some), strict=True)
        found[key] = (float(middle(counts)), float(middle(times)))
    return found


def _by_calls(mine: Totals, peers: Sequence[Totals]) -> float | None:
    """From equal calls; None where too few are equal to tell the pace of the others."""
    theirs = _middle(peers, np.median)
    common = {key for key, (count, _) in mine.items() if count > 0 and theirs.get(key, (0.0, 0.0))[0] > 0}
    own_ns = sum(ns for _, ns in mine.values())
    pace: dict[str, list[float]] = {}
    slower = more = 0.0
    for key in sorted(common):
        (count, ns), (usual, usual_ns) = mine[key], theirs[key]
        each, usual_each = ns / count, usual_ns / usual
        slower += min(count, usual) * (each - usual_each)
        more += (count - usual) * (each if count > usual else usual_each)
        sums = pace.setdefault(key[0], [0.0, 0.0])
        sums[0] += ns
        sums[1] += count * usual_each
    in_common = sum(ns for ns, _ in pace.values())
    new = [key for key in mine if key not in common]
    if new and in_common < _COMMON * own_ns:
        return None
    whole = in_common / max(sum(usual for _, usual in pace.values()), 1.0)
    for key in new:
        ns = mine[key][1]
        own, usual = pace.get(key[0], (0.0, 0.0))
        factor = own / usual if own >= _COMMON_OF_OP * in_common and usual > 0 else whole
        slower += ns - ns / max(factor, 1.0)
        more += ns / max(factor, 1.0)
    # Each peer may have calls that no other has, such as sequences of its own length.
    more -= float(np.median([sum(ns for key, (_, ns) in one.items() if key not in common) for one in peers]))
    return more / (slower + more) if slower + more > 0 else 0.0


def _by_work(mine: Sequence[Done], theirs: Sequence[Done]) -> float:
    """From FLOPs (else bytes, else calls) op by op, where no calls are equal; within `_PACE` all of it is more work."""
    slower = more = time = expected = 0.0
    for op in sorted({op for one in mine for op in one.by_op}):
        none = (0.0, 0.0, 0.0, 0.0)
        own = np.array([one.by_op.get(op, none) for one in mine]).mean(axis=0)
        usual = np.median(np.array([one.by_op.get(op, none) for one in theirs]), axis=0)
        work = next((own[at] / usual[at] for at in range(3) if own[at] and usual[at]), None)
        needed = own[3] if work is None else usual[3] * work
        slower += own[3] - needed
        more += needed - usual[3]
        time += own[3]
        expected += needed
    if time <= _PACE * expected:
        return 1.0
    return float(more / (slower + more)) if slower + more > 0 else 0.0


def _by_totals(mine: Sequence[Done], theirs: Sequence[Done]) -> float:
    """All or nothing, from totals and counts by name: without shapes a longer kernel may be larger or slower."""
    own = np.array([(one.count, one.flops, one.bytes, one.time_ns) for one in mine]).mean(axis=0)
    usual = np.median(np.array([(one.count, one.flops, one.bytes, one.time_ns) for one in theirs]), axis=0)
    count, flops, moved, time = own / np.maximum(usual, 1.0)
    added = _added_share([one.by_name for one in mine], [one.by_name for one in theirs])
    return float(max(count, flops, moved) - 1.0 > max(_MOSTLY * (time - 1.0), SAME_COUNT) or added > _MOSTLY)


def _added_share(mine: Sequence[Totals], theirs: Sequence[Totals]) -> float:
    """Share of the excess time that is kernels which the peers ran less often, kernel by kernel.

    A few long kernels more are more work, however little they change the number of all.
    """
    own, usual = _middle(mine, np.mean), _middle(theirs, np.median)
    added = excess = 0.0
    for name, (count, time) in own.items():
        usually, usual_time = usual.get(name, (0.0, 0.0))
        longer = max(time - usual_time, 0.0)
        excess += longer
        if count > usually:
            added += min(longer, (count - usually) * time / count)
    return added / excess if excess else 0.0
