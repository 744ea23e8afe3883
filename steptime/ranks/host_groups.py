"""Which group a collective of ranks without devices was in, where each rank lists several and its ops name none.

All ranks together can tell: the members of a group call it equally often, none ends before all have begun, and they end
together. Groups that the traces list under one description (the rows or the columns of a mesh) are tried as a whole;
where two such layouts fit about as well, nothing is claimed: what all ranks did together might also have been done by
pairs that keep in step.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.counted import Row
from steptime.timeline.instances import SEVERAL_GROUPS, Instances
from steptime.trace.events import I32, I64

#: With fewer instances of a kind and size, that all of them overlap may be chance.
LEAST_INSTANCES = 3
#: A layout whose members end together is the one if those of any other end this much further apart.
CLOSER = 4.0

Layout = dict[int, tuple[int, ...]]


class _Calls(msgspec.Struct, frozen=True):
    """Collectives of one kind and size on one row: instance, start_ns, end_ns int64 [n], in time order."""

    instance: I64
    start_ns: I64
    end_ns: I64


def host_groups(rows: Sequence[Row], barrier: NDArray[np.bool_]) -> dict[int, I32]:
    """Group of every instance (index into `Instances.groups`) of the rows on which some were placed.

    Rows of different hosts have clocks of their own, and are left as they are.

    Args:
        rows: the job.
        barrier: whether no member may end before all have begun, by leaf code.
    """
    placed: dict[int, I32] = {}
    for capture in sorted({row.capture for row in rows}):
        open_ = {at: found for at, row in enumerate(rows) if row.capture == capture and (found := _open(row, barrier))}
        hosts = {rows[at].file.meta.host for at in open_}
        if len(hosts) != 1 or None in hosts:
            continue
        layouts = _layouts([rows[at] for at in open_])
        for kind in sorted({kind for found in open_.values() for kind in found}):
            calls = {rows[at].rank: (at, found[kind]) for at, found in open_.items() if kind in found}
            layout = _fitting({rank: one for rank, (_, one) in calls.items()}, layouts)
            for rank, (at, one) in calls.items() if layout is not None else ():
                instances = _instances(rows[at])
                ranks = [group.ranks for group in instances.groups]
                placed.setdefault(at, instances.group.copy())[one.instance] = ranks.index((layout or {})[rank])
    return placed


def _instances(row: Row) -> Instances:
    assert row.timeline.instances is not None
    return row.timeline.instances


def _open(row: Row, barrier: NDArray[np.bool_]) -> dict[tuple[int, int], _Calls]:
    """Collectives that may have been in any of several groups, by leaf and elements."""
    instances = row.timeline.instances
    if instances is None or SEVERAL_GROUPS not in instances.groups:
        return {}
    mine = np.flatnonzero((instances.group == instances.groups.index(SEVERAL_GROUPS)) & barrier[instances.leaf])
    kinds, which = np.unique(np.stack([instances.leaf[mine], instances.elements[mine]]), axis=1, return_inverse=True)
    result = {}
    for number, kind in enumerate(kinds.T.tolist()):
        at = mine[which.ravel() == number]
        result[kind[0], kind[1]] = _Calls(at, instances.start_ns[at], instances.end_ns[at])
    return result


def _layouts(rows: Sequence[Row]) -> list[Layout]:
    """The group of each rank under each description."""
    found: dict[str, Layout] = {}
    for row in rows:
        for group in _instances(row).groups:
            if group.ranks is not None:
                found.setdefault(group.description, {})[row.rank] = group.ranks
    return list(found.values())


def _fitting(calls: dict[int, _Calls], layouts: Sequence[Layout]) -> Layout | None:
    """The layout that these calls (by rank) were in, None if it can't be told."""
    apart = [(spread, layout) for layout in layouts if (spread := _spread_ns(calls, layout)) is not None]
    if len(apart) == 1:
        return apart[0][1]
    for spread, layout in apart:
        if all(other > CLOSER * spread for other, one in apart if one is not layout):
            return layout
    return None


def _spread_ns(calls: dict[int, _Calls], layout: Layout) -> float | None:
    """How far apart members end, usually; None if the calls can't have been in these groups."""
    spreads = []
    for ranks in {layout.get(rank, ()) for rank in calls}:
        if not ranks or any(rank not in calls for rank in ranks):
            return None
        members = [calls[rank] for rank in ranks]
        if len({len(one.instance) for one in members}) > 1 or len(members[0].instance) < LEAST_INSTANCES:
            return None
        start, end = np.stack([one.start_ns for one in members]), np.stack([one.end_ns for one in members])
        if (start.max(axis=0) > end.min(axis=0)).any():
            return None
        spreads.append(end.max(axis=0) - end.min(axis=0))
    return float(np.median(np.concatenate(spreads)))
