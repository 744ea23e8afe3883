"""A rank without a device: the same accounting law on its host threads (DESIGN 1.5).

Windows run from host mark to host mark. At each instant the first of these that holds owns the time: a known host cause
(loader, checkpoint, collection, compilation) of a training thread; the innermost op of a training thread; a collective
(`gloo:*`, `mpi:*`, on any thread: they run on workers); else the time between ops.

DESIGN calls compute "leaf cpu_ops". A matmul's own time is the self time of `aten::addmm`, which has small children, so
here every op counts and the innermost owns; ops of `c10d` only enqueue or wait and are not compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.host import LAUNCH_BOUND, PYTHON, SYNC
from steptime.timeline.host_dependencies import Spent, host_dependencies
from steptime.timeline.host_messages import HostCalls, host_calls
from steptime.timeline.instances import Instances, host_groups, host_instances
from steptime.timeline.intervals import Pieces, Spans, complement, cut, first_started, intersect, subtract, union
from steptime.timeline.ledger import Ints, LedgerWriter
from steptime.timeline.partition import DeviceSplit, FileContext
from steptime.timeline.passes import Compute, HostOps, Messages, Passes, cut_passes, step_at
from steptime.timeline.steps import host_windows
from steptime.timeline.work import Ops
from steptime.trace.events import I64, Category, EventTable
from steptime.trace.kernels import cpu_op_leaf

_COMMUNICATES = ("c10d::", "_c10d_functional", "c10d_functional::", "record_param_comms")
_LONG_AGO = np.iinfo(np.int64).min
_MATMUL = LEAF_CODE["kernels/matmul"]
_MESSAGE = "p2p_transfer"
_OPTIMIZER = LEAF_CODE["kernels/optimizer"]
_RECOMPUTE = LEAF_CODE["recompute/recompute"]


Occurs = Callable[[Pieces], tuple[I64, I64]]


class _Account:
    """Gives out time, first come first served, and writes what each taker got."""

    def __init__(self, context: FileContext, bounds: I64) -> None:
        self.context = context
        self.bounds = bounds
        self.taken = Spans(np.empty(0, np.int64), np.empty(0, np.int64))
        self.writer = LedgerWriter()
        self.spent: list[Spent] = []

    def take(self, parts: Pieces, leaf: Ints, what: Ints, where: Ints, occurs: Occurs | None = None) -> Pieces:
        """Charge disjoint parts, as far as nobody took them, to leaf, what and where of their `source`.

        occurs: count and length of the pieces that are charged; without it each counts once. Returns those pieces.
        """
        free = subtract(Spans(parts.start, parts.end), self.taken)
        pieces, step = cut(Pieces(free.start, free.end, parts.source[free.source]), self.bounds)
        at = pieces.source
        counted = occurs(pieces) if occurs is not None else None
        self.writer.put((step, leaf[at], what[at], where[at]), pieces.end - pieces.start, counted)
        self.spent.append(Spent(pieces.start, pieces.end, leaf[at].astype(np.int64)))
        self.taken = union(
            Spans(np.concatenate([self.taken.start, parts.start]), np.concatenate([self.taken.end, parts.end]))
        )
        return pieces

    def all_spent(self) -> Spent:
        """All that was charged so far."""
        none = np.empty(0, np.int64)
        return Spent(*(np.concatenate(column) for column in zip(Spent(none, none, none), *self.spent, strict=True)))


def split_host(context: FileContext, ops: Ops) -> DeviceSplit:
    """Account for all time of all steps of a rank without a device."""
    bounds = host_windows(context.marks)
    account = _Account(context, bounds)
    _take_known_causes(account)
    compute = _take_ops(account, ops)
    calls = host_calls(context.table)
    spent = account.all_spent()
    instances = _take_collectives(account, calls)
    _take_rest(account)
    table = context.table
    at = np.searchsorted(bounds, table.start_ns[table.ops.row], side="right") - 1
    inside = at[(at >= 0) & (at < len(bounds) - 1)]
    counts = np.bincount(inside, minlength=len(bounds) - 1).astype(np.int64)
    return DeviceSplit(
        bounds,
        account.writer.ledger(context.labels.texts),
        counts,
        0,
        instances=instances,
        passes=_passes(context, calls, compute, bounds),
        dependencies=host_dependencies(context, calls, instances, spent, bounds) if context.replayed else None,
    )


def _take_known_causes(account: _Account) -> None:
    state, table = account.context.state, account.context.table
    for track in state.training:
        tiles = state.tiles(track)
        known = np.flatnonzero((tiles.row >= 0) & (tiles.leaf != LAUNCH_BOUND) & (tiles.leaf != SYNC))
        parts = Pieces(tiles.spans.start[known], tiles.spans.end[known], known)
        what = account.context.labels.names(table.names, table.name[tiles.row])
        account.take(parts, tiles.leaf.astype(np.int64), what, np.full(len(tiles.row), -1))


def _is_enqueue(table: EventTable) -> I64:
    """1 for names of ops that only enqueue communication or wait for it."""
    return np.array([name.startswith(_COMMUNICATES) for name in table.names], np.int64)


class _Computed(NamedTuple):
    """Parts that ops of training threads own, without the optimizer's. start, end, track, matmul: [n] each."""

    start: I64
    end: I64
    track: NDArray[np.int32]
    matmul: NDArray[np.bool_]


def _take_ops(account: _Account, ops: Ops) -> _Computed:
    computed: list[_Computed] = []
    context = account.context
    table = context.table
    used = np.unique(table.name[table.ops.row])
    leaf_of = np.zeros(len(table.names), np.int64)
    leaf_of[used] = [LEAF_CODE[f"kernels/{cpu_op_leaf(table.names[name])}"] for name in used.tolist()]
    enqueue = _is_enqueue(table)
    optimizer = np.array([name.startswith("Optimizer.step#") for name in table.names], np.bool_)
    steps = table.ops.row[optimizer[table.name[table.ops.row]]]
    for track in context.state.training:
        nest = context.threads.nest(track)
        edges = np.unique(np.concatenate([nest.start, nest.end]))
        if len(edges) < 2:
            continue
        start = edges[:-1]
        position = nest.innermost(start)
        row = np.where(position >= 0, nest.row[position], -1)
        is_op = (row >= 0) & (table.category[row] == Category.CPU_OP) & (enqueue[table.name[row]] == 0)
        index = np.flatnonzero(is_op)
        row, times = row[index], start[index]
        tracks = np.full(len(row), track, np.int32)
        leaf = leaf_of[table.name[row]]
        leaf[context.threads.inside(steps, tracks, times)] = _OPTIMIZER
        leaf[context.threads.inside(ops.recompute_rows, tracks, times)] = _RECOMPUTE
        what = context.labels.names(table.names, table.name[row])
        parts = Pieces(times, edges[1:][index], np.arange(len(index)))
        begins = table.start_ns[row]
        owned = account.take(parts, leaf, what, np.full(len(index), -1), partial(_begun, begins))
        kept = leaf[owned.source] != _OPTIMIZER
        at = owned.source[kept]
        computed.append(_Computed(owned.start[kept], owned.end[kept], tracks[at], leaf[at] == _MATMUL))
    none = _Computed(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.bool_))
    return _Computed(*(np.concatenate(column) for column in zip(none, *computed, strict=True)))


def _passes(context: FileContext, calls: HostCalls, compute: _Computed, bounds: I64) -> Passes | None:
    """Forward and backward passes between messages, as on a device; None without messages whose peer is known."""
    sent = np.flatnonzero((np.array(calls.kinds) == _MESSAGE) & (calls.call >= 0) & (calls.peer >= 0))
    if not len(sent):
        return None
    # A receive may be asked for passes ahead; its span ends when the host waits for it, before the pass that uses it.
    table = context.table
    handed = np.where(calls.sends[sent], table.start_ns[calls.call[sent]], table.end_ns[calls.row[sent]])
    backward = HostOps(table, context.threads).backward(compute.track, compute.start)
    step = step_at(compute.start, bounds)
    # Splitting a batch or seeding a gradient costs a host as much as a small kernel: no pass is made of that alone.
    key = np.stack([np.searchsorted(np.sort(handed), compute.start), backward, step])
    which = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    multiplies = np.bincount(which, compute.matmul) > 0
    real = multiplies[which] if multiplies.any() else np.ones(len(which), np.bool_)
    start, end = compute.start[real], compute.end[real]
    return cut_passes(
        Compute(launched_ns=start, start_ns=start, end_ns=end, backward=backward[real], step=step[real]),
        Messages(sent, handed, step_at(handed, bounds)),
    )


def _begun(begins: I64, pieces: Pieces) -> tuple[I64, I64]:
    """An op counts where it begins, and is as long as what it owns itself. begins int64: start of each source's op."""
    return (pieces.start == begins[pieces.source]).astype(np.int64), pieces.end - pieces.start


def _uncounted(pieces: Pieces) -> tuple[I64, I64]:
    none = np.zeros(len(pieces.start), np.int64)
    return none, none


def _blocked(table: EventTable, calls: HostCalls, training: list[int], taken: Spans) -> Pieces:
    """The parts of each call in which it may block a training thread, sorted by start; `source` indexes `calls`.

    Workers do collectives while the thread goes on. A message's span stands on the thread that asked for it and ends
    when that thread has waited for it: only the op that asked, and the time since the thread's last op and since the
    end of an earlier wait, can be blocked. taken: what the ops of the training threads own, disjoint.
    """
    start, end = calls.start_ns.copy(), table.end_ns[calls.row]
    waits = np.flatnonzero((np.array(calls.kinds) == _MESSAGE) & np.isin(table.track[calls.row], training))
    waits = waits[np.argsort(end[waits], kind="stable")]
    after = np.searchsorted(taken.end, end[waits], side="right")
    free_since = np.append(_LONG_AGO, taken.end)[after]
    busy = np.append(taken.start, np.iinfo(np.int64).max)[after] < end[waits]
    previous = np.append(_LONG_AGO, end[waits][:-1])
    start[waits] = np.where(busy, end[waits], np.maximum(start[waits], np.maximum(free_since, previous)))
    asks = waits[calls.call[waits] >= 0]
    ops = calls.call[asks]
    start = np.concatenate([start, table.start_ns[ops]])
    end = np.concatenate([end, table.end_ns[ops]])
    source = np.concatenate([np.arange(len(calls.row)), asks])
    order = np.argsort(start, kind="stable")
    return Pieces(start[order], end[order], source[order])


def _take_collectives(account: _Account, calls: HostCalls) -> Instances:
    context = account.context
    table = context.table
    rows, kinds = calls.row, calls.kinds
    leaf = np.array([LEAF_CODE[f"exposed_comm/{kind}"] for kind in kinds], np.int64)
    groups, group = host_groups(calls)
    names = [one.description if one.description not in ("", "undefined") else one.name for one in groups]
    texts = [f"{kind} ({names[at]})" if names[at] else kind for kind, at in zip(kinds, group.tolist(), strict=True)]
    what = np.array([context.labels.text(text) for text in texts], np.int64)
    none = np.full(len(rows), -1)
    blocked = _blocked(table, calls, context.state.training, account.taken)
    parts = first_started(Spans(blocked.start, blocked.end))
    exposed = account.take(Pieces(parts.start, parts.end, blocked.source[parts.source]), leaf, what, none, _uncounted)
    at = np.searchsorted(account.bounds, calls.start_ns, side="right") - 1
    inside = np.flatnonzero((at >= 0) & (at < len(account.bounds) - 1))
    occurs = (np.ones(len(inside), np.int64), table.dur_ns[rows][inside])
    account.writer.put((at[inside], leaf[inside], what[inside], none[inside]), np.zeros(len(inside), np.int64), occurs)
    return host_instances(table, calls, leaf.astype(np.int16), exposed, account.bounds)


def _take_rest(account: _Account) -> None:
    context = account.context
    free, _ = intersect(Spans(account.bounds[:-1], account.bounds[1:]), complement(account.taken))
    track = np.full(len(free.start), context.state.training[0] if context.state.training else -1, np.int32)
    pieces, leaf, row, thread = context.state.split(Spans(free.start, free.end), track)
    python = context.labels.text("Python between ops")
    dispatch = context.labels.text("dispatching ops")
    table = context.table
    named = context.labels.names(table.names, np.where(row >= 0, table.name[row], -1).astype(np.int32))
    what = np.where(row >= 0, named, np.where(leaf == PYTHON, python, dispatch))
    where = context.places.at(thread, pieces.start)
    order = np.argsort(pieces.start, kind="stable")
    parts = Pieces(pieces.start[order], pieces.end[order], order)
    account.take(parts, leaf.astype(np.int64), what, where)
