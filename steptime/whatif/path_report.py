"""The critical path as the report has it: in segments that say which rank, where, what, and for how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.model import CriticalPath, PathPlace, PathStep, PathTotal, Report
from steptime.ranks.alignment import Alignment
from steptime.ranks.counted import Row
from steptime.taxonomy import LEAVES
from steptime.timeline.host_points import TRAINING
from steptime.timeline.intervals import Spans, intersect
from steptime.trace.events import I64
from steptime.whatif.critical import critical_path
from steptime.whatif.job_graph import JobGraph
from steptime.whatif.path_pieces import PathPieces, path_pieces
from steptime.whatif.rank_nodes import CONTENTION, GAP, PRECISION, PRODUCTIVE, STALL
from steptime.whatif.schedule import chain_of
from steptime.whatif.step_times import step_edges

#: More segments than this are no use to a reader; the shortest are left out and counted.
MOST_SEGMENTS = 3_000
#: In the order in which a segment of kernels shows them; all others come last.
_TURN = (GAP, PRODUCTIVE, PRECISION, CONTENTION)
_PRODUCTIVE_KEY = "productive"
_MEETING, _UNRECORDED = -1, -2


class _Window(msgspec.Struct, frozen=True):
    """A counted step of one capture on the graph's clock."""

    capture: int
    step: int
    begin_ns: int
    end_ns: int


class _Segments(msgspec.Struct, frozen=True):
    """s segments in order of time: row, chain (or `_MEETING`, `_UNRECORDED`), window int64 [s]; leaf int16 [s]; what
    int64 [s]: the activity that names it (index in its row), -1 for its leaf's own title; start_ns, dur_ns, nodes int64
    [s].
    """

    row: I64
    chain: I64
    window: I64
    leaf: NDArray[np.int16]
    what: I64
    start_ns: I64
    dur_ns: I64
    nodes: I64

    def take(self, at: I64) -> _Segments:
        """Some of them."""
        return _Segments(*(getattr(self, name)[at] for name in self.__struct_fields__))


def with_critical_path(
    report: Report, job: JobGraph, times: I64, rows: Sequence[Row], alignment: Alignment | None
) -> Report:
    """The report with the critical path of its counted steps; unchanged where it has none.

    Args:
        report: of these rows.
        job: their graph, unchanged.
        times: int64 [n], its instants as replayed.
        rows: as given to `job_graph`.
        alignment: the rows' clocks, None for a single row.
    """
    counted: list[_Window] = []
    found: list[_Segments] = []
    for capture in sorted({row.capture for row in rows}):
        windows = _windows(set(report.job.steps), job, times, rows, capture)
        end = _end_node(job, times, rows, windows[-1]) if windows else None
        if end is not None:
            path = critical_path(job.graph, times, end)
            pieces = path_pieces(job, times, path, windows[0].begin_ns)
            found.append(_segments(job, rows, pieces, windows, len(counted)))
            counted += windows
    if not found:
        return report
    segments = _Segments(
        *(np.concatenate([getattr(one, name) for one in found]) for name in _Segments.__struct_fields__)
    )
    return msgspec.structs.replace(report, critical_path=_report(job, rows, segments, counted, alignment))


def _windows(counted: set[int], job: JobGraph, times: I64, rows: Sequence[Row], capture: int) -> list[_Window]:
    """The counted steps, from when the last rank began each to when the last rank ended it."""
    edges = [one[:, 0].tolist() for one in step_edges(job.ends, times[:, None])]
    mine = [(row, edges[at]) for at, row in enumerate(rows) if row.capture == capture]
    begins: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for row, edge in mine:
        for index, step in enumerate(row.timeline.steps):
            begins[step.step].append(edge[index])
            ends[step.step].append(edge[index + 1])
    windows = []
    reached = None
    for number in sorted(ends, key=lambda number: max(ends[number])):
        begin, end = max(begins[number]), max(ends[number])
        begin = begin if reached is None else max(begin, reached)
        if number in counted and len(ends[number]) == len(mine) and begin < end:
            windows.append(_Window(capture, number, begin, end))
        reached = end
    return windows


def _end_node(job: JobGraph, times: I64, rows: Sequence[Row], last: _Window) -> int | None:
    """The boundary node that ended the last counted step of its capture; None if no work did."""
    of = np.array([row.capture for row in rows])[job.ends.row]
    ends = np.flatnonzero((of == last.capture) & (times[job.ends.node] == last.end_ns))
    return int(job.ends.node[ends[0]]) if len(ends) else None


def _segments(
    job: JobGraph, rows: Sequence[Row], pieces: PathPieces, windows: Sequence[_Window], first_window: int
) -> _Segments:
    """The pieces inside the windows, merged where neighbours are of one kind in one place."""
    within = Spans(np.array([one.begin_ns for one in windows]), np.array([one.end_ns for one in windows]))
    parts, window = intersect(Spans(pieces.start_ns, pieces.end_ns), within)
    source = parts.source
    node = pieces.node[source]
    chain = chain_of(job.graph)[node]
    row = job.nodes.row[chain]
    place = np.where(pieces.transfer[source], _MEETING, np.where(pieces.recorded[source], chain, _UNRECORDED))
    leaf = pieces.leaf[source].astype(np.int64)
    own = _activity_leaf(job, rows, node, row)
    # A gap before a kernel, and the parts that its length consists of, stay with it.
    kind = np.where((own >= 0) & np.isin(leaf, _TURN), own, leaf)
    named = np.where(
        (own >= 0) & (pieces.recorded[source]) & ~np.isin(leaf, (GAP, STALL)), job.nodes.activity[node], -1
    )
    changed = np.zeros(len(source), np.bool_)
    changed[:1] = True
    for key in (row, place, kind, window):
        changed[1:] |= key[1:] != key[:-1]
    group = np.cumsum(changed) - 1
    turn = np.full(len(leaf), len(_TURN), np.int64)
    for at, code in enumerate(_TURN):
        turn[leaf == code] = at
    length = parts.end - parts.start
    order = np.lexsort((leaf, turn, group))
    head = np.flatnonzero(np.append(True, (np.diff(group[order]) != 0) | (np.diff(leaf[order]) != 0))[: len(order)])
    long = _sums(length[order], head)
    of = order[head]
    begin = parts.start[np.flatnonzero(changed)][group[of]]
    before = np.cumsum(long) - long
    opens = np.append(True, np.diff(group[of]) != 0)[: len(of)]
    return _Segments(
        row=row[of],
        chain=place[of],
        window=window[of] + first_window,
        leaf=leaf[of].astype(np.int16),
        what=named[_longest(length[order], head, order)],
        start_ns=begin + before - before[opens][np.cumsum(opens) - 1],
        dur_ns=long,
        nodes=_counts(node[order], head),
    )


def _activity_leaf(job: JobGraph, rows: Sequence[Row], node: I64, row: I64) -> I64:
    """Leaf of the activity of each node, -1 where it is none, int64 [q]."""
    activity = job.nodes.activity[node]
    leaf = np.full(len(node), -1, np.int64)
    for at in np.unique(row[activity >= 0]).tolist():
        known = rows[at].timeline.dependencies
        assert known is not None
        mine = (row == at) & (activity >= 0)
        leaf[mine] = known.leaf[activity[mine]]
    return leaf


def _sums(values: I64, head: I64) -> I64:
    result: I64 = np.add.reduceat(values, head) if len(head) else values
    return result


def _longest(length: I64, head: I64, order: I64) -> I64:
    """The longest piece of each segment, the first of several."""
    of = np.repeat(np.arange(len(head)), np.diff(np.append(head, len(length))))
    by_length = np.lexsort((np.arange(len(length)), -length, of))
    result: I64 = order[by_length[head]]
    return result


def _counts(node: I64, head: I64) -> I64:
    """How many nodes the pieces of each segment are of: those of one node are neighbours."""
    new = np.append(True, node[1:] != node[:-1])[: len(node)].astype(np.int64)
    new[head] = 1
    return _sums(new, head)


def _report(
    job: JobGraph,
    rows: Sequence[Row],
    segments: _Segments,
    windows: Sequence[_Window],
    alignment: Alignment | None,
) -> CriticalPath:
    totals: dict[tuple[int | None, int | None, str, str], int] = defaultdict(int)
    keys = np.stack([segments.row, segments.chain, segments.leaf.astype(np.int64)])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    ns = np.zeros(distinct.shape[1], np.int64)
    np.add.at(ns, which.ravel(), segments.dur_ns)
    for (row, chain, leaf), amount in zip(distinct.T.tolist(), ns.tolist(), strict=True):
        rank, device = (None, None) if chain == _MEETING else (rows[row].rank, rows[row].timeline.device)
        totals[rank, device, _where(job, chain), _leaf(leaf)] += amount
    kept = np.sort(np.argsort(-segments.dur_ns, kind="stable")[:MOST_SEGMENTS])
    shown = segments.take(kept)
    names, name = _names(rows, shown)
    leaves, leaf_at = np.unique(shown.leaf, return_inverse=True)
    spots, spot_at = np.unique(np.stack([shown.row, shown.chain]), axis=1, return_inverse=True)
    common = shown.start_ns + job.zero_ns
    own = common if alignment is None else alignment.clocks.own(shown.row, common)
    length = np.array([window.end_ns - window.begin_ns for window in windows])
    offset = np.cumsum(length) - length
    shift = offset - np.array([window.begin_ns for window in windows])
    return CriticalPath(
        length_ns=int(length.sum()),
        steps=[
            PathStep(step=window.step, start_ns=start, dur_ns=ns)
            for window, start, ns in zip(windows, offset.tolist(), length.tolist(), strict=True)
        ],
        totals=[
            PathTotal(rank=rank, device=device, where=where, leaf=leaf, ns=amount)
            for (rank, device, where, leaf), amount in sorted(totals.items(), key=lambda item: (-item[1], str(item[0])))
        ],
        places=[
            PathPlace(rank=rows[row].rank, device=rows[row].timeline.device, where=_where(job, chain))
            for row, chain in spots.T.tolist()
        ],
        leaves=[_leaf(code) for code in leaves.tolist()],
        names=names,
        place=spot_at.ravel().tolist(),
        leaf=leaf_at.ravel().tolist(),
        name=name.tolist(),
        step=shown.window.tolist(),
        start_ns=(shown.start_ns + shift[shown.window]).tolist(),
        own_ns=own.tolist(),
        dur_ns=shown.dur_ns.tolist(),
        nodes=shown.nodes.tolist(),
        dropped=len(segments.row) - len(kept),
        dropped_ns=int(segments.dur_ns.sum() - shown.dur_ns.sum()),
    )


def _leaf(code: int) -> str:
    return _PRODUCTIVE_KEY if code == PRODUCTIVE else LEAVES[code].key


def _where(job: JobGraph, chain: int) -> str:
    if chain == _MEETING:
        return "meeting"
    if chain == _UNRECORDED:
        return "not recorded"
    kind, number = job.nodes.chains[chain]
    if kind == "thread":
        return "host" if number == TRAINING else f"host thread {number + 1}"
    return f"{kind} {number}"


def _names(rows: Sequence[Row], shown: _Segments) -> tuple[list[str], I64]:
    """Distinct names of the segments, and each one's index."""
    names: dict[str, int] = {}
    index = np.empty(len(shown.row), np.int64)
    key = np.stack([np.where(shown.what >= 0, shown.row, -1), shown.what, shown.leaf.astype(np.int64)])
    distinct, which = np.unique(key, axis=1, return_inverse=True)
    for at, (row, activity, leaf) in enumerate(distinct.T.tolist()):
        text = _PRODUCTIVE_KEY if leaf == PRODUCTIVE else LEAVES[leaf].title
        if activity >= 0:
            known = rows[row].timeline.dependencies
            assert known is not None
            code = int(known.what[activity]) if len(known.what) else -1
            text = known.texts[code] if code >= 0 else text
        distinct[0, at] = names.setdefault(text, len(names))
    index = distinct[0][which.ravel()]
    return list(names), index
