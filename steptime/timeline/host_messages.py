"""Communication of a rank without a device, and the op that asked for each: what, with whom and when.

gloo writes one span an activity (``gloo:send`` on the calling thread, collectives on worker threads) that holds only
a shape. The op that asked for it (``c10d::send``) holds the rest: the other rank and the tag among its arguments; the
kind where gloo made it of another one (a reduce-scatter runs as an all-reduce of all of it). No op says in which group:
that is known where the file lists only one, or where the other ranks of the messages fit only one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.trace.collectives import collective_leaf, is_host_communication
from steptime.trace.events import ARGUMENT_SEPARATOR, I64, Category, EventTable, ProcessGroup

Mask = NDArray[np.bool_]

_ASKS = "c10d::"
_SEND = "c10d::send"
_P2P = "p2p_transfer"
#: What the work of an op may run as, if not under its own name (torch 2.13, ProcessGroupGloo.cpp).
_RUNS_AS = {"reduce_scatter": "allreduce"}
#: Kinds whose op names the outputs before the inputs.
_INPUT_SECOND = ("allgather", "reduce_scatter")
_PIPELINE = re.compile(r"(?:^|[^a-z])(?:pp|pipe|pipeline)(?:$|[^a-z])")


class HostCalls(msgspec.Struct, frozen=True):
    """n communication spans of a rank without a device, sorted by start, and the op that asked for each.

    row int64 [n]: the span; call int64 [n]: row of the op, -1 if not recorded; start_ns int64 [n]: of a message its
    op's start, since gloo opens the span when it has sent already; kinds: leaf id of slice ``exposed_comm`` of each, as
    asked for; elements int64 [n]: of the span's first tensor, -1 unknown.
    Of messages: peer int64 [n], the other rank as counted in `message_group`, -1 unknown or no message; sends bool [n];
    tag int64 [n], -1 unknown.

    groups: those of more than one rank that the file lists for this one. message_group, group: index of the one that
    messages and that other communication used, -1 if it can't be told. If the file lists none, peers are as written.
    """

    row: I64
    call: I64
    start_ns: I64
    kinds: list[str]
    elements: I64
    peer: I64
    sends: Mask
    tag: I64
    groups: list[ProcessGroup]
    message_group: int
    group: int


def host_calls(table: EventTable) -> HostCalls:
    """All communication that the host did itself, with what asked for it."""
    row = _spans(table)
    kind_of = [collective_leaf(name) or "other_comm" for name in table.names]
    named = np.array(kind_of)[table.name[row]] if len(row) else np.empty(0, np.str_)
    shapes = np.full(len(table.start_ns), -1, np.int64)
    shapes[table.ops.row] = table.ops.shapes
    elements = _by_text(table, shapes[row], _size, 0)
    call = _calls(table, row, named, elements, np.array(kind_of), shapes)
    start_ns = table.start_ns[np.where((named == _P2P) & (call >= 0), call, row)]
    order = np.argsort(start_ns, kind="stable")
    named, (row, call, elements, start_ns) = named[order], (one[order] for one in (row, call, elements, start_ns))
    kinds = np.where(call >= 0, np.array(kind_of)[table.name[call]], named).tolist()
    message = named == _P2P
    arguments = np.full(len(table.start_ns), -1, np.int64)
    arguments[table.ops.row] = table.ops.arguments
    asked = np.where(message & (call >= 0), arguments[call], -1)
    peer, tag = (_by_text(table, asked, _scalar, at) for at in (2, 3))
    groups = [one for one in table.meta.groups if len(one.ranks) > 1 and table.meta.rank in one.ranks]
    message_group = _message_group(groups, np.unique(peer[peer >= 0]).tolist(), table.meta.rank)
    sending = np.array([name.startswith(_SEND) for name in table.names], np.bool_)
    return HostCalls(
        row=row,
        call=call,
        start_ns=start_ns,
        kinds=kinds,
        elements=elements,
        peer=peer if message_group >= 0 or not groups else np.full(len(row), -1, np.int64),
        sends=message & (call >= 0) & sending[table.name[call]],
        tag=tag,
        groups=groups,
        message_group=message_group,
        group=0 if len(groups) == 1 else -1,
    )


def _spans(table: EventTable) -> I64:
    """Rows of host communication in time order."""
    communicates = np.array([is_host_communication(name) for name in table.names], np.bool_)
    rows = table.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[communicates[table.name[rows]]]
    return rows[np.argsort(table.start_ns[rows], kind="stable")]


def _calls(table: EventTable, row: I64, named: NDArray[Any], elements: I64, kind_of: NDArray[Any], shapes: I64) -> I64:
    """Row of the op that asked for each span, -1 unknown.

    named: kind of each span by its name; kind_of: of each name of the table; shapes: text of each event's.
    """
    asks = np.array([name.startswith(_ASKS) for name in table.names], np.bool_) & (kind_of != "other_comm")
    ops = table.ops.row[asks[table.name[table.ops.row]]]
    ops = ops[np.argsort(table.start_ns[ops], kind="stable")]
    result = np.full(len(row), -1, np.int64)
    kind = kind_of[table.name[ops]]
    message = np.flatnonzero(named == _P2P)
    result[message] = _open_on_thread(table, row[message], ops[kind == _P2P])
    native = set(named.tolist())
    size = np.full(len(ops), -1, np.int64)
    run = kind.astype(object)
    for one in np.unique(kind).tolist():
        mine = kind == one
        size[mine] = _by_text(table, shapes[ops[mine]], _size, 1 if one in _INPUT_SECOND else 0)
        run[mine] = one if one in native else _RUNS_AS.get(one, one)
    for one in sorted(native - {_P2P}):
        for count in np.unique(elements[named == one]).tolist():
            spans = (named == one) & (elements == count)
            result[spans] = _in_turn(table, row[spans], ops[(run == one) & (size == count)])
    return result


def _open_on_thread(table: EventTable, spans: I64, ops: I64) -> I64:
    """The op open on the span's own thread when it starts: the last one begun there. Row of the op, -1 if none is."""
    order = np.lexsort((table.start_ns[ops], table.track[ops]))
    ops = ops[order]
    if not len(ops):
        return np.full(len(spans), -1, np.int64)
    zero = int(min(table.start_ns[ops].min(), table.start_ns[spans].min(initial=np.iinfo(np.int64).max)))
    width = int(max(table.start_ns[ops].max(), table.start_ns[spans].max(initial=0))) - zero + 1
    key = table.track[ops].astype(np.int64) * width + (table.start_ns[ops] - zero)
    wanted = table.track[spans].astype(np.int64) * width + (table.start_ns[spans] - zero)
    found = ops[np.maximum(np.searchsorted(key, wanted, side="right") - 1, 0)]
    inside = (table.start_ns[found] <= table.start_ns[spans]) & (table.start_ns[spans] <= table.end_ns[found])
    return np.where(inside & (table.track[found] == table.track[spans]), found, -1)


def _in_turn(table: EventTable, spans: I64, ops: I64) -> I64:
    """Workers take what was asked for in turn. Row of each span's op, -1 for those asked for before the recording.

    Spans and ops of one kind and size, each in time order.
    """
    before = np.searchsorted(table.start_ns[ops], table.start_ns[spans], side="right")
    turn = np.arange(len(spans))
    unasked = int((turn + 1 - before).max(initial=0))
    at = turn - unasked
    known = (at >= 0) & (at < len(ops))
    return np.where(known, ops[np.clip(at, 0, max(len(ops) - 1, 0))], -1) if len(ops) else np.full(len(spans), -1)


def _message_group(groups: Sequence[ProcessGroup], peers: Sequence[int], rank: int | None) -> int:
    """The group in which each peer is another rank; of several the only one that is named as a pipeline's; else -1."""
    fit = [
        at
        for at, group in enumerate(groups)
        if all(peer < len(group.ranks) and group.ranks[peer] != rank for peer in peers)
    ]
    named = [at for at in fit if _PIPELINE.search(groups[at].description.lower())]
    found = fit if len(fit) == 1 else named
    return found[0] if len(found) == 1 else -1


def _by_text(table: EventTable, texts: I64, read: Callable[[str, int], int], argument: int) -> I64:
    """What `read` finds of one argument in each text (index into the table's, -1: none, found as -1), int64."""
    used, which = np.unique(texts, return_inverse=True)
    values = [read(table.texts[text], argument) if text >= 0 else -1 for text in used.tolist()]
    return np.array(values, np.int64)[which.ravel()] if len(values) else np.empty(0, np.int64)


def _size(shapes: str, argument: int) -> int:
    """Elements of the first tensor of an argument, from the recorded shapes."""
    try:
        found = msgspec.json.decode(shapes)[argument]
        while found and isinstance(found[0], list):
            found = found[0]
        return int(np.prod(found)) if found else -1
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError):
        return -1


def _scalar(arguments: str, argument: int) -> int:
    """An integer among an op's arguments ("Concrete Inputs")."""
    try:
        return int(msgspec.json.decode(arguments.partition(ARGUMENT_SEPARATOR)[2])[argument])
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError):
        return -1
