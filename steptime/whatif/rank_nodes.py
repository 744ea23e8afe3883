"""One rank's part of the graph: its host threads and streams as chains, with what each instant's time consists of.

A device activity starts once the one before it on its stream has ended, its launch has got through, and what it waits
for on other streams has ended. Each of these takes a little: the usual gap, the usual latency. What a start was later
than all of them allow is part of the last of them if it is short, and else a stall of its own that stays in a replay.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.dependencies import Dependencies
from steptime.timeline.host import CALL_NS
from steptime.timeline.idle import GAP_NS
from steptime.trace.events import I64
from steptime.whatif.graph import NEVER

Mask = NDArray[np.bool_]

#: What a part of the time changes: the lag after the chain's previous node, the node's own work, or an edge's lag.
LAG, WORK, EDGE = 0, 1, 2
#: What an edge is: a launch, a wait for another stream, for the device in a call, of a meeting for a member's arrival,
#: and of a member for the meeting.
LAUNCH, STREAM, HELD, ARRIVAL, TRANSFER = range(5)
#: Leaf of model FLOPs at the reference peak.
PRODUCTIVE = -1
#: A launch takes this long to get through where the recording has no launch into an empty queue.
LATENCY_NS = 5_000

GAP = LEAF_CODE["host/kernel_gap"]
STALL = LEAF_CODE["unexplained/queue_stalled"]
PRECISION = LEAF_CODE["kernels/precision"]
CONTENTION = LEAF_CODE["kernels/comm_contention"]
RECOMPUTE = LEAF_CODE["recompute/recompute"]


class Parts(msgspec.Struct, frozen=True):
    """What the graph's times consist of, p parts.

    kind int8 [p]: `LAG`, `WORK` or `EDGE`; index int64 [p]: of the node or edge; leaf int16 [p]: `PRODUCTIVE` or a
    leaf; ns int64 [p], may be negative on edges; row, step int32 [p]: whose, and in which of its steps (index, -1
    outside); also int16 [p]: the leaf with which it goes when that is removed altogether, -1.
    """

    kind: NDArray[np.int8]
    index: I64
    leaf: NDArray[np.int16]
    ns: I64
    row: NDArray[np.int32]
    step: NDArray[np.int32]
    also: NDArray[np.int16]

    @staticmethod
    def joined(several: list[Parts]) -> Parts:
        """All of them, one after the other."""
        return Parts(*(np.concatenate([getattr(one, name) for one in several]) for name in Parts.__struct_fields__))


class RankNodes(msgspec.Struct, frozen=True):
    """The chains of one row, with indices of its own; n nodes, e edges.

    first, origin_ns, lag_ns, work_ns, source, target, edge_lag_ns, follows: as in `Graph`. begin, end int64 [m]: node
    of each activity's start (its only node, if nobody meets it) and of its end; points int64 [h]: of each host point.
    edge_kind int8 [e]: `LAUNCH`, `STREAM` or `HELD`; edge_leaf int16 [e]: of what is waited for, what a held call is
    charged to, -1 for launches.
    chains: what each is, a host thread (from 0) or a stream. parts: see `Parts`.
    """

    first: I64
    origin_ns: I64
    lag_ns: I64
    work_ns: I64
    source: I64
    target: I64
    edge_lag_ns: I64
    follows: Mask
    edge_kind: NDArray[np.int8]
    edge_leaf: NDArray[np.int16]
    begin: I64
    end: I64
    points: I64
    chains: list[tuple[str, int]]
    parts: Parts


def rank_nodes(row: int, known: Dependencies, own_ns: tuple[I64, I64, I64], met: Mask) -> RankNodes:
    """Chains and edges of one row.

    Args:
        row: its number in the job.
        known: what waited for what.
        own_ns: start and end of each activity, and host points, on the job's clock, int64 [m], [m], [h].
        met: which activities are met by other ranks: their ends are left to the meeting, bool [m].
    """
    start_ns, end_ns, point_ns = own_ns
    host = known.host
    base = len(point_ns)
    points = np.arange(base)
    host_first = np.flatnonzero(_heads(host.thread))
    order, stream_first, begin, end = _streams(known, met, base)
    first = np.concatenate([host_first, stream_first + base])
    starts = _starts(known, own_ns, order)
    # Of what was only noticed later nothing is known but that it held nobody.
    own_length = np.where(known.noticed & ~met, 0, end_ns - start_ns)
    lag, work = (np.zeros(int(first[-1]), np.int64) for _ in range(2))
    np.add.at(lag, host.part_of, host.part_ns)
    lag[begin] = starts.gap_ns
    work[begin] = starts.stall_ns + np.where(met, 0, own_length)
    launched = np.flatnonzero(known.launch >= 0)
    edges = (
        (known.launch[launched], begin[launched], starts.latency_ns[launched]),
        (end[known.before], begin[known.after], starts.wait_ns),
        (end[host.holder], host.held, host.held_lag_ns),
    )
    # The first on a stream starts with its launch; only one without, when it did.
    origin = np.full(len(lag), NEVER, np.int64)
    origin[points] = point_ns
    unlaunched = np.flatnonzero(known.launch < 0)
    origin[begin[unlaunched]] = (start_ns - starts.stall_ns)[unlaunched]
    source, target, edge_lag = (np.concatenate(column) for column in zip(*edges, strict=True))
    streams = known.stream[order[np.flatnonzero(_heads(known.stream[order]))]].tolist()
    return RankNodes(
        first=first,
        origin_ns=origin[first[:-1]],
        lag_ns=lag,
        work_ns=work,
        source=source,
        target=target,
        edge_lag_ns=edge_lag,
        follows=np.arange(len(source)) < len(launched),
        edge_kind=np.repeat(np.array([LAUNCH, STREAM, HELD], np.int8), [len(edge[0]) for edge in edges]),
        edge_leaf=np.concatenate([np.full(len(launched), -1, np.int16), known.leaf[known.before], host.held_leaf]),
        begin=begin,
        end=end,
        points=points,
        chains=[*(("thread", at) for at in host.thread[host_first].tolist()), *(("stream", at) for at in streams)],
        parts=_parts(row, known, starts, (begin, own_length, met)),
    )


def _heads(key: NDArray[Any]) -> Mask:
    """Which entries differ from the one before, bool [n]."""
    return np.append(True, key[1:] != key[:-1])[: len(key)]


def _streams(known: Dependencies, met: Mask, base: int) -> tuple[I64, I64, I64, I64]:
    """Activities by stream, then start; where each stream's nodes begin, int64 [streams + 1]; nodes of each one's start
    and end. What others meet has two nodes, all else one.
    """
    order = np.lexsort((known.start_ns, known.stream))
    nodes = np.where(met[order], 2, 1)
    place = np.cumsum(nodes) - nodes
    begin, end = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    begin[order] = base + place
    end[order] = base + place + nodes - 1
    return order, np.append(place[_heads(known.stream[order])], int(nodes.sum())), begin, end


class _Starts(msgspec.Struct, frozen=True):
    """Why each activity started when it did.

    gap_ns int64 [m]: after the one before on its stream; latency_ns int64 [m]: after its launch; wait_ns int64 [w]:
    after what it waited for; stall_ns int64 [m]: after all of them.
    """

    gap_ns: I64
    latency_ns: I64
    wait_ns: I64
    stall_ns: I64


def _starts(known: Dependencies, own_ns: tuple[I64, I64, I64], order: I64) -> _Starts:
    start_ns, end_ns, point_ns = own_ns
    heads = _heads(known.stream[order])
    free = np.full(len(order), NEVER, np.int64)
    free[order[~heads]] = end_ns[order[:-1][~heads[1:]]]
    launched = known.launch >= 0
    called = np.where(launched, point_ns[known.launch], NEVER) if len(point_ns) else np.full(len(order), NEVER)
    after_free, after_call = start_ns - free, start_ns - called
    awaited = start_ns[known.after] - end_ns[known.before]
    usual_gap = _usual(after_free[launched & (called + known.call_ns <= free) & (after_free >= 0)], GAP_NS, 0)
    idle = launched & (called >= free)
    usual_latency = _usual(after_call[idle & (after_call >= 0)], CALL_NS, LATENCY_NS)
    gap, latency = np.minimum(after_free, usual_gap), np.minimum(after_call, usual_latency)
    wait = np.minimum(awaited, usual_gap)
    last_wait = np.full(len(order), NEVER, np.int64)
    np.maximum.at(last_wait, known.after, end_ns[known.before] + wait)
    by_call, by_free = called + latency, free + gap
    ready = np.maximum(np.maximum(by_call, by_free), last_wait)
    rest = np.where(ready > NEVER // 2, start_ns - ready, 0)
    # The last reason takes what it may; the others would have let it start sooner.
    by_launch = (by_call == ready) & (rest <= np.maximum(CALL_NS, known.call_ns))
    by_wait = ~by_launch & (last_wait == ready) & (rest <= GAP_NS)
    by_queue = ~by_launch & ~by_wait & (by_free == ready) & (rest <= GAP_NS)
    binds = by_wait[known.after] & (end_ns[known.before] + wait == ready[known.after])
    return _Starts(
        gap_ns=np.where(free > NEVER, gap + np.where(by_queue, rest, 0), 0),
        latency_ns=np.where(launched, latency + np.where(by_launch, rest, 0), 0),
        wait_ns=wait + np.where(binds, rest[known.after], 0),
        stall_ns=np.where(by_launch | by_wait | by_queue, 0, rest),
    )


def _usual(ns: I64, most_ns: int, default_ns: int) -> int:
    """Median of those up to `most_ns`."""
    ns = ns[ns <= most_ns]
    return int(np.median(ns)) if len(ns) else default_ns


def _parts(row: int, known: Dependencies, starts: _Starts, of: tuple[I64, I64, Mask]) -> Parts:
    """What the row's times consist of; `of`: node of each activity's start, its length, and whether others meet it."""
    begin, length, met = of
    host, parts = known.host, known.parts
    alone = np.flatnonzero(~met)
    none, goes = np.zeros(len(begin), np.int64), known.also
    rest = length - parts.useful_ns - parts.precision_ns - parts.contention_ns
    launched = np.flatnonzero(known.launch >= 0)
    again = launched[(known.leaf[launched] == RECOMPUTE) | (goes[launched] == RECOMPUTE)]
    also = host.also.copy()
    also[known.launch[again]] = RECOMPUTE
    # A copy that is made for a value goes with the wait for it.
    goes = goes.copy()
    goes[launched] = np.where(host.also[known.launch[launched]] >= 0, host.also[known.launch[launched]], goes[launched])
    run = launched
    columns: list[tuple[int, I64, NDArray[Any], I64, NDArray[Any], NDArray[Any]]] = [
        (LAG, host.part_of, host.part_leaf, host.part_ns, host.step[host.part_of], also[host.part_of]),
        (LAG, begin, none + GAP, np.maximum(starts.gap_ns, 0), known.step, goes),
        (WORK, begin, none + STALL, starts.stall_ns, known.step, goes),
        (EDGE, np.arange(len(run)), none[run] + GAP, starts.latency_ns[run], known.step[run], goes[run]),
    ]
    lengths = (
        (none + PRODUCTIVE, parts.useful_ns),
        (none + PRECISION, parts.precision_ns),
        (none + CONTENTION, parts.contention_ns),
        (known.leaf, rest),
    )
    columns += [(WORK, begin[alone], leaf[alone], ns[alone], known.step[alone], goes[alone]) for leaf, ns in lengths]
    made = []
    for kind, index, leaf, ns, step, with_ in columns:
        keep = np.flatnonzero(ns)
        made.append(
            Parts(
                np.full(len(keep), kind, np.int8),
                index[keep],
                leaf[keep].astype(np.int16),
                ns[keep],
                np.full(len(keep), row, np.int32),
                step[keep].astype(np.int32),
                with_[keep].astype(np.int16),
            )
        )
    return Parts.joined(made)
