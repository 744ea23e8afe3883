"""The whole job as one graph: the ranks' chains, and meetings where they wait for each other.

A collective or a message is a meeting: it takes place once all its members have started, and each member ends its own
transfer time later. A member that ended before others had started (it had sent all it had to) waits for nobody, but
others wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Row
from steptime.timeline.dependencies import Dependencies
from steptime.trace.events import I64
from steptime.whatif.graph import NEVER, Graph
from steptime.whatif.rank_nodes import ARRIVAL, EDGE, LAG, TRANSFER, Parts, RankNodes, rank_nodes
from steptime.whatif.schedule import chain_of

Mask = NDArray[np.bool_]

_NONE = np.empty(0, np.int64)


class Boundaries(msgspec.Struct, frozen=True):
    """Where the steps of r rows end.

    node, row, step int64 [b], sorted by row, then step: a step (index in its row) ends with the latest of its nodes.
    begin_ns int64 [r]: start of each row's first step, which nothing changes; steps int64 [r]: how many each row has.
    """

    node: I64
    row: I64
    step: I64
    begin_ns: I64
    steps: I64


class Nodes(msgspec.Struct, frozen=True):
    """What the n nodes and c chains of a job are.

    measured_ns int64 [n]: when each instant was, `NEVER` for meetings; activity, point int64 [n]: the activity that
    ends there (or starts, if others meet it) and the host point, indices in its row, -1; leaf int16 [n], name int32
    [n]: the activity's leaf and what it is called (into `names`), -1; row int64 [c]: of each chain, -1 for meetings;
    chains: what each is, ("thread", number), ("stream", id) or ("meeting", number).
    """

    measured_ns: I64
    activity: I64
    point: I64
    leaf: NDArray[np.int16]
    name: NDArray[np.int32]
    names: list[str]
    row: I64
    chains: list[tuple[str, int]]


class Meetings(msgspec.Struct, frozen=True):
    """g meetings with k members: meeting, row, activity int64 [k]; held bool [k]: whether it waits for the others;
    transfer_ns int64 [k]: from the last arrival to its end. edge int64 [k]: the graph's edge from the meeting to the
    member's end, -1. leaf int16 [g]; pair bool [g]: a message between two ranks.
    """

    meeting: I64
    row: I64
    activity: I64
    held: Mask
    transfer_ns: I64
    edge: I64
    leaf: NDArray[np.int16]
    pair: Mask


class JobGraph(msgspec.Struct, frozen=True):
    """The graph of a job, what its times consist of, and what its nodes are.

    edge_kind int8 [e], edge_leaf int16 [e]: as in `RankNodes`, with `ARRIVAL` and `TRANSFER` of the meetings' leaves.
    zero_ns: the graph's zero on the common clock.
    """

    graph: Graph
    edge_kind: NDArray[np.int8]
    edge_leaf: NDArray[np.int16]
    parts: Parts
    ends: Boundaries
    nodes: Nodes
    meetings: Meetings
    zero_ns: int

    def edge_row(self) -> I64:
        """Row of what waits at the end of each edge, -1 for meetings, int64 [e]."""
        result: I64 = self.nodes.row[chain_of(self.graph)[self.graph.target]]
        return result


class _Times(msgspec.Struct, frozen=True):
    """One row's times on the common clock: start, end int64 [m], points int64 [h], begin int64 [k+1]."""

    start: I64
    end: I64
    points: I64
    begin: I64


def job_graph(rows: Sequence[Row], alignment: Alignment | None) -> JobGraph:
    """Join the rows, all of which must have their dependencies. `alignment`: None for a single row."""
    known = [_dependencies(row) for row in rows]
    zero = min(int(one.begin_ns[0]) for one in known) if alignment is None else _zero(known, alignment)
    times = [_on_one_clock(alignment, at, one, zero) for at, one in enumerate(known)]
    meetings = _meetings(known, times, alignment)
    made = []
    for at, (one, when) in enumerate(zip(known, times, strict=True)):
        met = np.zeros(len(one.start_ns), np.bool_)
        met[meetings.activity[meetings.row == at]] = True
        made.append(rank_nodes(at, one, (when.start, when.end, when.points), met))
    return _joined(known, times, made, meetings, zero)


def _dependencies(row: Row) -> Dependencies:
    known = row.timeline.dependencies
    assert known is not None, "summarised without dependencies"
    return known


def _zero(known: Sequence[Dependencies], alignment: Alignment) -> int:
    row = np.arange(len(known))
    return int(alignment.clocks.common(row, np.array([one.begin_ns[0] for one in known], np.int64)).min())


def _on_one_clock(alignment: Alignment | None, row: int, known: Dependencies, zero: int) -> _Times:
    def common(own_ns: I64) -> I64:
        if alignment is None:
            return own_ns - zero
        return alignment.clocks.common(np.full(len(own_ns), row), own_ns) - zero

    return _Times(common(known.start_ns), common(known.end_ns), common(known.host.at_ns), common(known.begin_ns))


def _meetings(known: Sequence[Dependencies], times: Sequence[_Times], alignment: Alignment | None) -> Meetings:
    """Every matched collective of which at least two members are recorded, on clocks that can be compared."""
    if alignment is None or not alignment.collectives.matches.count:
        none = np.empty(0, np.bool_)
        return Meetings(_NONE, _NONE, _NONE, none, _NONE, _NONE, _NONE.astype(np.int16), none)
    collectives = alignment.collectives
    matches = collectives.matches
    real = (np.diff(matches.first) > 1) & collectives.comparable
    member = np.flatnonzero(real[matches.match])
    number = np.cumsum(real) - 1
    activity = np.empty(len(member), np.int64)
    start, end = np.empty(len(member), np.int64), np.empty(len(member), np.int64)
    noticed = np.zeros(len(member), np.bool_)
    row = matches.row[member]
    for at, (one, when) in enumerate(zip(known, times, strict=True)):
        mine = row == at
        of_instance = np.flatnonzero(one.instance >= 0)
        activity[mine] = of_instance[matches.instance[member[mine]]]
        start[mine], end[mine] = when.start[activity[mine]], when.end[activity[mine]]
        noticed[mine] = one.noticed[activity[mine]]
    meeting = number[matches.match[member]]
    last = np.full(int(real.sum()), NEVER, np.int64)
    np.maximum.at(last, meeting, start)
    error = collectives.error_ns[matches.match[member]]
    # A few microseconds apart are the stamps' own error: who ends with the last arrival has waited for it.
    held = end >= last[meeting] - error
    return Meetings(
        meeting=meeting,
        row=row,
        activity=activity,
        held=held,
        transfer_ns=_transfers(end - last[meeting], noticed & held, held & matches.pair[matches.match[member]]),
        edge=np.full(len(member), -1, np.int64),
        leaf=matches.leaf[real].astype(np.int16),
        pair=matches.pair[real],
    )


def _transfers(taken_ns: I64, noticed: Mask, messages: Mask) -> I64:
    """Of messages whose ends were only noticed later: the usual time of the others, at most what they took."""
    seen = taken_ns[messages & ~noticed]
    usual = int(np.median(seen)) if len(seen) else 0
    return np.where(noticed, np.minimum(taken_ns, usual), taken_ns)


class _Members(msgspec.Struct, frozen=True):
    """Who takes part in a meeting, m of them: nodes of the job where they begin and end, their length, the step and
    the leaf that they belong to otherwise; int64 but also, int16.
    """

    begin: I64
    end: I64
    dur_ns: I64
    step: I64
    also: NDArray[np.int16]

    def transfers(self, meetings: Meetings, kind: int, which: I64, index: I64, ns: I64) -> Parts:
        """The parts of the members `which` that are moving bytes: `kind` at `index`."""
        return Parts(
            np.full(len(which), kind, np.int8),
            index,
            meetings.leaf[meetings.meeting[which]],
            ns,
            meetings.row[which].astype(np.int32),
            self.step[which].astype(np.int32),
            self.also[which],
        )


def _members(
    known: Sequence[Dependencies], times: Sequence[_Times], made: Sequence[RankNodes], meetings: Meetings
) -> _Members:
    members = len(meetings.row)
    begin, end, dur_ns, step = (np.empty(members, np.int64) for _ in range(4))
    found = _Members(begin, end, dur_ns, step, np.empty(members, np.int16))
    shift = 0
    for at, (one, when) in enumerate(zip(made, times, strict=True)):
        mine = meetings.row == at
        activity = meetings.activity[mine]
        found.begin[mine], found.end[mine] = one.begin[activity] + shift, one.end[activity] + shift
        found.dur_ns[mine], found.step[mine] = (when.end - when.start)[activity], known[at].step[activity]
        found.also[mine] = known[at].also[activity]
        shift += len(one.lag_ns)
    return found


def _joined(
    known: Sequence[Dependencies],
    times: Sequence[_Times],
    made: Sequence[RankNodes],
    meetings: Meetings,
    zero: int,
) -> JobGraph:
    node_of = np.append(0, np.cumsum([len(one.lag_ns) for one in made]))
    edge_of = np.append(0, np.cumsum([len(one.source) for one in made]))
    count, met, members = int(node_of[-1]), len(meetings.leaf), len(meetings.row)
    met_by = _members(known, times, made, meetings)
    begin, end = met_by.begin, met_by.end
    held = np.flatnonzero(meetings.held)
    # Who waits for nobody takes its own length; a kernel of several messages waits if one of them makes it.
    alone = np.flatnonzero(~meetings.held & ~np.isin(end, end[held]))
    alone = alone[np.unique(end[alone], return_index=True)[1]]
    lag = np.concatenate([*(one.lag_ns for one in made), np.zeros(met, np.int64)])
    lag[end[alone]] = met_by.dur_ns[alone]
    place = count + meetings.meeting
    shift = list(zip(made, node_of.tolist(), edge_of.tolist(), strict=False))
    graph = Graph(
        first=np.concatenate([*(one.first[:-1] + at for one, at, _ in shift), np.arange(count, count + met + 1)]),
        origin_ns=np.concatenate([*(one.origin_ns for one in made), np.full(met, NEVER)]),
        lag_ns=lag,
        work_ns=np.concatenate([*(one.work_ns for one in made), np.zeros(met, np.int64)]),
        source=np.concatenate([*(one.source + at for one, at, _ in shift), begin, place[held]]),
        target=np.concatenate([*(one.target + at for one, at, _ in shift), place, end[held]]),
        edge_lag_ns=np.concatenate(
            [*(one.edge_lag_ns for one in made), np.zeros(members, np.int64), meetings.transfer_ns[held]]
        ),
        follows=np.concatenate([*(one.follows for one in made), np.zeros(members + len(held), np.bool_)]),
    )
    edge = np.full(members, -1, np.int64)
    edge[held] = edge_of[-1] + members + np.arange(len(held))
    leaf = meetings.leaf[meetings.meeting]
    own = [
        msgspec.structs.replace(one.parts, index=one.parts.index + np.where(one.parts.kind == EDGE, edges, nodes))
        for one, nodes, edges in shift
    ]
    moved = met_by.transfers(meetings, EDGE, held, edge[held], meetings.transfer_ns[held])
    sent = met_by.transfers(meetings, LAG, alone, end[alone], met_by.dur_ns[alone])
    return JobGraph(
        graph=graph,
        edge_kind=np.concatenate(
            [*(one.edge_kind for one in made), np.repeat(np.array([ARRIVAL, TRANSFER], np.int8), [members, len(held)])]
        ),
        edge_leaf=np.concatenate([*(one.edge_leaf for one in made), leaf, leaf[held]]),
        parts=Parts.joined([*own, moved, sent]),
        ends=_boundaries(known, times, made, node_of),
        nodes=_nodes(known, times, made, met),
        meetings=msgspec.structs.replace(meetings, edge=edge),
        zero_ns=zero,
    )


def _boundaries(
    known: Sequence[Dependencies], times: Sequence[_Times], made: Sequence[RankNodes], node_of: I64
) -> Boundaries:
    found = []
    for at, (one, nodes) in enumerate(zip(known, made, strict=True)):
        if len(one.bounds):
            node, step = nodes.points[one.bounds[1:]], np.arange(len(one.bounds) - 1)
        else:
            ends = np.flatnonzero(one.boundary)
            # Nothing on a stream ends later than its last.
            order = ends[np.lexsort((one.end_ns[ends], one.stream[ends], one.step[ends]))]
            key = np.stack([one.step[order].astype(np.int64), one.stream[order]])
            last = np.append((key[:, 1:] != key[:, :-1]).any(axis=0), True)[: len(order)]
            node, step = nodes.end[order[last]], key[0][last]
        found.append((node + node_of[at], np.full(len(node), at, np.int64), step))
    node, row, step = (np.concatenate(column) for column in zip(*found, strict=True))
    begin = np.array([when.begin[0] for when in times], np.int64)
    return Boundaries(node, row, step, begin, np.array([len(when.begin) - 1 for when in times], np.int64))


def _nodes(known: Sequence[Dependencies], times: Sequence[_Times], made: Sequence[RankNodes], met: int) -> Nodes:
    measured, activity, point, leaf, name = [], [], [], [], []
    names: dict[str, int] = {}
    for waited, when, one in zip(known, times, made, strict=True):
        count = len(one.lag_ns)
        instant, of_activity, of_point = (np.full(count, value, np.int64) for value in (NEVER, -1, -1))
        instant[one.points], of_point[one.points] = when.points, np.arange(len(when.points))
        instant[one.begin] = when.start
        instant[one.end] = when.end
        of_activity[one.begin] = of_activity[one.end] = np.arange(len(when.start))
        measured.append(instant)
        activity.append(of_activity)
        point.append(of_point)
        # A place behind the last stands for nodes without an activity.
        codes = np.array([*(names.setdefault(text, len(names)) for text in waited.texts), -1], np.int32)
        called = codes[waited.what] if len(waited.what) else np.full(len(waited.leaf), -1, np.int32)
        leaf.append(np.append(waited.leaf, np.int16(-1))[of_activity])
        name.append(np.append(called, np.int32(-1))[of_activity])
    none = np.full(met, -1, np.int64)
    rows = [np.full(len(one.chains), at, np.int64) for at, one in enumerate(made)]
    return Nodes(
        measured_ns=np.concatenate([*measured, np.full(met, NEVER)]),
        activity=np.concatenate([*activity, none]),
        point=np.concatenate([*point, none]),
        leaf=np.concatenate([*leaf, none]).astype(np.int16),
        name=np.concatenate([*name, none]).astype(np.int32),
        names=list(names),
        row=np.concatenate([*rows, none]),
        chains=[*(chain for one in made for chain in one.chains), *(("meeting", at) for at in range(met))],
    )
