"""Groups of one kind beside each other: at equal bytes one that takes longer has the worse link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.model import SlowGroup
from steptime.ranks.collectives import Matches
from steptime.ranks.counted import Row
from steptime.trace.events import I64

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Smaller messages show latency and how far the ends lie apart, not the link.
LEAST_BYTES = 1 << 20
#: A group's figure needs this many collectives.
LEAST_COLLECTIVES = 3
#: From this ratio on a group is named; the rule ``slow-group`` fires at the same.
SLOW_RATIO = 1.4
#: The first ends of equal transfers differ by this much without any fault, in one host and between hosts.
ENDS_INSIDE_NS, ENDS_BETWEEN_NS = 20_000, 100_000


class Transfers(msgspec.Struct, frozen=True):
    """What bandwidth rests on, for each of g matches.

    label int64: kind and group name as the ledger calls them; bytes, members int64; transfer_ns int64: from the last
    arrival on; exposed_ns int64: what of it no compute hides, over all members in counted steps; factor float64: bus
    over algorithm bandwidth; error_ns int64: how far the transfer may be off; why int64: 0 if the figures can be
    believed; counted bool: all members are in counted steps; alone bool: a barrier during whose transfer no other
    communication ran on any member; one_host bool: all members are known to share it.
    """

    label: I64
    bytes: I64
    members: I64
    transfer_ns: I64
    exposed_ns: I64
    factor: F64
    error_ns: I64
    why: I64
    counted: Mask
    alone: Mask
    one_host: Mask

    @property
    def usable(self) -> Mask:
        """Counted matches with a bandwidth."""
        result: Mask = self.counted & (self.why == 0)
        return result


class Waited(msgspec.Struct, frozen=True):
    """Waits for late ranks in counted steps: who and whom (row indices) and for how long, int64 [w] each."""

    row: I64
    whom: I64
    ns: I64


class Comparison(msgspec.Struct, frozen=True):
    """ratio: of the slowest group, 1 if none is slower beyond doubt, None if there are no two to compare.

    groups: by label, those at `SLOW_RATIO` or above, slowest first.
    """

    ratio: float | None
    groups: dict[int, list[SlowGroup]]


def slow_groups(transfers: Transfers, matches: Matches, rows: Sequence[Row]) -> Comparison:
    """Compare groups of the same kind, name, size and spread over hosts at equal bytes."""
    chosen = np.flatnonzero(transfers.usable & transfers.alone & ~matches.pair & (transfers.bytes >= LEAST_BYTES))
    group = matches.group[chosen]
    known, at_first = np.unique(group, return_index=True)
    members = {
        one: matches.row[matches.first[at] : matches.first[at + 1]].tolist()
        for one, at in zip(known.tolist(), chosen[at_first].tolist(), strict=True)
    }
    spreads: dict[tuple[int, ...], int] = {}
    spread_of = np.zeros(len(matches.groups), np.int64)
    for one, mine in members.items():
        per_host = sorted(Counter(rows[row].file.meta.host for row in mine).values())
        spread_of[one] = spreads.setdefault(tuple(per_host), len(spreads))
    took: dict[tuple[int, int], _Took] = {}
    for run in _runs(transfers, chosen, group, spread_of):
        for label, one, ns, usual_ns, error_ns, count, others in run:
            took.setdefault((label, one), _Took()).add(ns, usual_ns, error_ns, count, others)
    worst: float | None = None
    found: dict[int, list[SlowGroup]] = {}
    for (label, one), sums in took.items():
        hosts = sorted({rows[row].file.meta.host or "" for row in members[one]})
        ends = ENDS_INSIDE_NS if len(hosts) == 1 and hosts[0] else ENDS_BETWEEN_NS
        sure = sums.count >= LEAST_COLLECTIVES and sums.ns - sums.usual_ns > sums.error_ns + ends * sums.count
        ratio = sums.ns / sums.usual_ns if sure else 1.0
        worst = max(worst or 1.0, ratio)
        if ratio >= SLOW_RATIO:
            ranks = sorted({rows[row].rank for row in members[one]})
            shown = hosts if all(hosts) else []
            mine = chosen[(transfers.label[chosen] == label) & (group == one)]
            lost_ns = int(int(transfers.exposed_ns[mine].sum()) * (1 - 1 / ratio))
            slow = SlowGroup(ranks=ranks, hosts=shown, ratio=ratio, compared=sums.compared, lost_ns=lost_ns)
            found.setdefault(label, []).append(slow)
    for groups in found.values():
        groups.sort(key=lambda one: (-one.ratio, one.ranks))
    return Comparison(worst, found)


def with_waits(found: dict[int, list[SlowGroup]], rows: Sequence[Row], waited: Waited) -> dict[int, list[SlowGroup]]:
    """The groups with what the ranks outside waited for their members because of them.

    As quick as its like, a group would have had each member ready for others earlier by what that member lost in it: so
    much of each outside rank's waits for members is due to it at most. No wait is due to two groups.
    """
    ranks = np.array([row.rank for row in rows], np.int64)
    left = waited.ns.copy()
    result: dict[int, list[SlowGroup]] = {}
    for label, groups in found.items():
        for group in groups:
            inside = np.isin(ranks, group.ranks)
            mine = inside[waited.whom] & ~inside[waited.row]
            sums = np.bincount(waited.row[mine], left[mine], len(rows))
            due = np.minimum(sums, group.lost_ns / len(group.ranks))
            part = due / np.maximum(sums, 1.0)
            left[mine] -= np.rint(left[mine] * part[waited.row[mine]]).astype(np.int64)
            result.setdefault(label, []).append(msgspec.structs.replace(group, waits_ns=int(due.sum())))
    return result


@dataclass(slots=True)
class _Took:
    """Sums over the sizes of one group's collectives: its own median times, those of its like, and the doubt."""

    ns: int = 0
    usual_ns: float = 0.0
    error_ns: int = 0
    count: int = 0
    compared: int = 0

    def add(self, ns: int, usual_ns: float, error_ns: int, count: int, compared: int) -> None:
        self.ns += ns * count
        self.usual_ns += usual_ns * count
        self.error_ns += error_ns * count
        self.count += count
        self.compared = max(self.compared, compared)


def _runs(
    transfers: Transfers, chosen: I64, group: I64, spread_of: I64
) -> Iterator[list[tuple[int, int, int, float, int, int, int]]]:
    """For each kind, name, spread and size that several groups have: (label, group, its median time, the median of the
    others' medians, error, collectives, others), one a group.
    """
    if not len(chosen):
        return
    like = np.stack([transfers.label[chosen], spread_of[group], transfers.members[chosen], transfers.bytes[chosen]])
    kind = np.unique(like, axis=1, return_inverse=True)[1].ravel()
    order = np.lexsort((transfers.transfer_ns[chosen], group, kind))
    kind, group, sample = kind[order], group[order], chosen[order]
    first = np.flatnonzero(np.append(True, (np.diff(kind) != 0) | (np.diff(group) != 0)))
    count = np.diff(np.append(first, len(sample)))
    median = transfers.transfer_ns[sample[first + (count - 1) // 2]]
    error = np.maximum.reduceat(transfers.error_ns[sample], first)
    bounds = np.flatnonzero(np.append(True, np.diff(kind[first]) != 0)).tolist()
    for low, high in zip(bounds, [*bounds[1:], len(first)], strict=True):
        if high - low < 2:
            continue
        usual = _others_median(median[low:high])
        columns = (transfers.label[sample[first]], group[first], median)
        yield list(
            zip(
                *(column[low:high].tolist() for column in columns),
                usual.tolist(),
                error[low:high].tolist(),
                count[low:high].tolist(),
                [high - low - 1] * (high - low),
                strict=True,
            )
        )


def _others_median(values: I64) -> F64:
    """For each of n >= 2 values the median of the others, float64 [n]."""
    order = np.argsort(values, kind="stable")
    ranked, place = values[order], np.empty(len(values), np.int64)
    place[order] = np.arange(len(values))
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    result: F64 = (ranked[low + (place <= low)] + ranked[high + (place <= high)]) / 2
    return result
