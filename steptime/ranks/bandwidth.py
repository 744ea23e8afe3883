"""What the links gave: bandwidth of matched collectives, from the last arrival on, and groups slower than their like.

Sizes and factors are those of NCCL's tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md):
algorithm bandwidth is the message over the time; bus bandwidth multiplies it by what each member must send of a
message, so that it compares with one direction of a link whatever the number of members. The length of a kernel says
neither: it holds the wait for the last member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.model import Collective, Report
from steptime.ranks.alignment import NOBODY, Alignment
from steptime.ranks.counted import Counted, Row
from steptime.ranks.slow_groups import Transfers, Waited, slow_groups, with_waits
from steptime.ranks.waits import Waits, exposed_between
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.trace.events import I64

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Below this size latency counts, not the link: DDP's usual bucket of 25 MB is above.
LARGE_BYTES = 16 << 20
#: Clocks may be off by this share of a transfer at most.
EXACT_SHARE = 0.1

WHY_ONE_RANK = "only one rank was recorded: waits and transfer can't be told apart"
WHY_UNMATCHED = "they could not be matched across the ranks"
#: Why a match has no bandwidth, by code; 0: it has one.
_WHY = (
    "",
    "files of members are missing",
    "their clocks can't be compared",
    "the traces don't say how large they are, or the members' sizes differ",
    "they took no time that could be measured",
)
_INEXACT = "the clocks are not exact enough for such short transfers"

_ALLREDUCE, _BARRIER = LEAF_CODE["exposed_comm/allreduce"], LEAF_CODE["exposed_comm/barrier"]
_OTHER = LEAF_CODE["exposed_comm/other_comm"]
_SHARED = tuple(LEAF_CODE[f"exposed_comm/{name}"] for name in ("allgather", "reduce_scatter", "all_to_all"))


def bus_factor(leaf: I64, members: I64) -> F64:
    """Bus bandwidth over algorithm bandwidth, float64 [g]: 2(n-1)/n for an all-reduce, (n-1)/n for an all-gather,
    reduce-scatter and all-to-all, else 1.

    Args:
        leaf: int64 [g], codes of the kinds.
        members: int64 [g], n of each.
    """
    sent: F64 = (members - 1) / members
    return np.select([leaf == _ALLREDUCE, np.isin(leaf, _SHARED)], [2 * sent, sent], 1.0)


def with_bandwidth(
    report: Report,
    counted: Counted,
    seen: tuple[Alignment, Waits] | None,
    link_bytes_per_s: float | None,
) -> Report:
    """The report with the bandwidth of its collectives, and the facts that rest on it.

    Args:
        report: what is known so far.
        counted: the rows and their counted steps.
        seen: matched collectives and waits of the same rows; None where there was nobody to compare with.
        link_bytes_per_s: all links of one GPU in one direction, None if not known for every pair of GPUs of a host.
    """
    if seen is None:
        why = WHY_ONE_RANK if len({row.rank for row in counted.rows}) < 2 else WHY_UNMATCHED
        unknown = [msgspec.structs.replace(one, why=why) for one in report.collectives]
        return msgspec.structs.replace(report, collectives=unknown)
    alignment, waits = seen
    transfers, labels = _transfers(counted, alignment)
    slow = slow_groups(transfers, alignment.collectives.matches, counted.rows)
    moved = _moved(counted, waits)
    wait_ns = _by_label(moved, transfers)
    found = with_waits(slow.groups, counted.rows, Waited(moved.row, moved.origin, moved.ns))
    if len({row.timeline.name for row in counted.rows}) > 1:
        link_bytes_per_s = None
    code_of = {label: code for code, label in enumerate(labels)}
    collectives = []
    for one in report.collectives:
        code = code_of.get((one.kind, one.group), NOBODY)
        mine = transfers.counted & (transfers.label == code)
        known = _measured(one, transfers, mine, link_bytes_per_s)
        collectives.append(
            msgspec.structs.replace(known, wait_ns=wait_ns.get(code, 0), slow_groups=found.get(code, []))
        )
    facts: dict[str, float | None] = {}
    large = [one.large_bus_bytes_per_s for one in collectives if one.large_bus_bytes_per_s is not None]
    if large:
        facts["collectives.bus_bytes_per_s"] = min(large)
    if slow.ratio is not None:
        facts["collectives.slowest_group_ratio"] = slow.ratio
    return msgspec.structs.replace(report, collectives=collectives, facts=report.facts | facts)


def _transfers(counted: Counted, alignment: Alignment) -> tuple[Transfers, list[tuple[str, str | None]]]:
    """Every match with what its bandwidth rests on, and the kind and group name of each label."""
    collectives = alignment.collectives
    matches = collectives.matches
    head = matches.first[:-1]
    labels: dict[tuple[str, str | None], int] = {}
    inside, alone = np.zeros((2, len(matches.match)), np.bool_)
    label = np.full(len(matches.match), NOBODY, np.int64)
    last = alignment.clocks.own(matches.row, collectives.last_ns[matches.match])
    order = np.argsort(matches.row, kind="stable")
    bounds = np.searchsorted(matches.row[order], np.arange(len(counted.rows) + 1))
    for at, (row, chosen) in enumerate(zip(counted.rows, counted.steps, strict=True)):
        mine, instances = order[bounds[at] : bounds[at + 1]], row.timeline.instances
        if instances is None or not len(mine):
            continue
        instance = matches.instance[mine]
        inside[mine] = np.isin(instances.step[instance], chosen)
        begin = np.maximum(instances.start_ns[instance], last[mine])
        alone[mine] = _alone(instances.start_ns, instances.end_ns, begin, instances.end_ns[instance])
        names = [one.shown for one in instances.groups]
        key = np.stack([instances.leaf[instance].astype(np.int64), instances.group[instance].astype(np.int64)])
        distinct, which = np.unique(key, axis=1, return_inverse=True)
        codes = [
            labels.setdefault((LEAVES[leaf].id, names[group] or None), len(labels))
            for leaf, group in distinct.T.tolist()
        ]
        label[mine] = np.array(codes, np.int64)[which.ravel()]
    if not matches.count:
        none, no, real = np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.float64)
        return Transfers(none, none, none, none, none, real, none, none, no, no, no), list(labels)
    # A root has sent all before the others hold it, and a sender before the receiver: there the last end counts.
    whole = np.maximum.reduceat(collectives.end_ns, head) - collectives.last_ns
    transfer_ns = np.where(matches.barrier, collectives.transfer_ns, np.maximum(whole, 0))
    members = np.diff(matches.first)
    host = _hosts(counted.rows)[matches.row]
    low, high = np.minimum.reduceat(host, head), np.maximum.reduceat(host, head)
    transfers = Transfers(
        label=label[head],
        bytes=matches.bytes,
        members=members,
        transfer_ns=transfer_ns,
        exposed_ns=_exposed_ns(counted.rows, alignment, last, inside),
        factor=bus_factor(matches.leaf, members),
        error_ns=collectives.error_ns,
        why=_why(alignment, transfer_ns),
        counted=np.logical_and.reduceat(inside, head),
        alone=np.logical_and.reduceat(alone, head) & matches.barrier,
        one_host=(low == high) & (low >= 0),
    )
    return transfers, list(labels)


def _alone(start_ns: I64, end_ns: I64, begin_ns: I64, until_ns: I64) -> Mask:
    """Whether nothing but one activity itself runs in [begin, until), bool [n]; start and end are of all activities."""
    begun = np.searchsorted(np.sort(start_ns), until_ns, side="left")
    over = np.searchsorted(np.sort(end_ns), begin_ns, side="right")
    result: Mask = begun - over <= 1
    return result


def _hosts(rows: Sequence[Row]) -> I64:
    """A number for the host of each row, -1 where it is not recorded."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(row.file.meta.host, len(numbers)) if row.file.meta.host else NOBODY for row in rows],
        np.int64,
    )


def _why(alignment: Alignment, transfer_ns: I64) -> I64:
    """Index into `_WHY` of each match, int64 [g]."""
    collectives = alignment.collectives
    matches = collectives.matches
    sized = (matches.bytes > 0) & ~np.isin(matches.leaf, (_BARRIER, _OTHER))
    ordered = collectives.comparable & (collectives.synchronous | ~matches.barrier)
    faults = [~collectives.all_seen, ~ordered, ~sized, transfer_ns <= 0]
    return np.select(faults, [1, 2, 3, 4], 0).astype(np.int64)


def _measured(one: Collective, transfers: Transfers, mine: Mask, link_bytes_per_s: float | None) -> Collective:
    """One row with the sums over its measured collectives."""
    chosen = np.flatnonzero(mine & (transfers.why == 0))
    if not len(chosen):
        codes = Counter(transfers.why[mine].tolist())
        why = _WHY[codes.most_common(1)[0][0]] if codes else WHY_UNMATCHED
        return msgspec.structs.replace(one, why=why)
    transfer_ns = int(transfers.transfer_ns[chosen].sum())
    if int(transfers.error_ns[chosen].sum()) > EXACT_SHARE * transfer_ns:
        return msgspec.structs.replace(one, why=_INEXACT)
    nbytes = int(transfers.bytes[chosen].sum())
    bus = float(transfers.bytes[chosen] @ transfers.factor[chosen]) * 1e9 / transfer_ns
    inside = bool(transfers.one_host[chosen].all())
    members = np.unique(transfers.members[chosen])
    return msgspec.structs.replace(
        one,
        measured=len(chosen),
        members=int(members[0]) if len(members) == 1 else None,
        bytes=nbytes,
        transfer_ns=transfer_ns,
        algorithm_bytes_per_s=nbytes * 1e9 / transfer_ns,
        bus_bytes_per_s=bus,
        link_share=bus / link_bytes_per_s if inside and link_bytes_per_s else None,
        large_bus_bytes_per_s=_large_bus(transfers, mine),
    )


def _moved(counted: Counted, waits: Waits) -> Waits:
    """Exposed waits of the counted steps that stand in the rows of late ranks."""
    moved = waits.take(waits.sure & ~waits.skew & (waits.origin != NOBODY))
    widest = max((len(row.timeline.steps) for row in counted.rows), default=0)
    chosen = np.zeros((len(counted.rows), widest + 1), np.bool_)
    for at, steps in enumerate(counted.steps):
        chosen[at, steps] = True
    return moved.take(chosen[moved.row, moved.step])


def _by_label(moved: Waits, transfers: Transfers) -> dict[int, int]:
    labels, which = np.unique(transfers.label[moved.match], return_inverse=True)
    sums = np.zeros(len(labels), np.int64)
    np.add.at(sums, which.ravel(), moved.ns)
    return dict(zip(labels.tolist(), sums.tolist(), strict=True))


def _large_bus(transfers: Transfers, mine: Mask) -> float | None:
    """Bus bandwidth of the large ones among `mine` that no other communication disturbed, the median byte's."""
    exact = transfers.error_ns <= EXACT_SHARE * transfers.transfer_ns
    large = np.flatnonzero(mine & transfers.usable & transfers.alone & exact & (transfers.bytes >= LARGE_BYTES))
    if not len(large):
        return None
    bus = transfers.bytes[large] * transfers.factor[large] * 1e9 / transfers.transfer_ns[large]
    order = np.argsort(bus, kind="stable")
    below = np.cumsum(transfers.bytes[large][order])
    return float(bus[order][np.searchsorted(below, below[-1] / 2)])


def _exposed_ns(rows: Sequence[Row], alignment: Alignment, begin_ns: I64, inside: Mask) -> I64:
    """Exposed transfer of each match, int64 [g], over the members that `inside` (bool [k]) marks."""
    never = np.full(len(begin_ns), np.iinfo(np.int64).max, np.int64)
    exposed = exposed_between(rows, alignment, inside, begin_ns, never)
    matches = alignment.collectives.matches
    total = np.zeros(matches.count, np.int64)
    np.add.at(total, matches.match[exposed.member], exposed.ns)
    return total
