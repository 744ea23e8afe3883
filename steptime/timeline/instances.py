"""Every collective of one rank, small enough to cross processes: what the cross-rank stage matches and takes apart."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.timeline.batches import batched_messages
from steptime.timeline.host_messages import HostCalls
from steptime.timeline.intervals import Pieces
from steptime.timeline.links import Activities
from steptime.timeline.message_sizes import message_bytes
from steptime.timeline.passes import step_at
from steptime.timeline.work import COMMUNICATION, Work
from steptime.trace.events import I32, I64, CollectiveArgs, EventTable


class Group(msgspec.Struct, frozen=True):
    """A process group as the trace names it; ranks None where the trace does not list them all."""

    name: str
    description: str
    size: int
    ranks: tuple[int, ...] | None

    @property
    def shown(self) -> str:
        """How the ledger calls the group; empty for an unknown one."""
        return self.description if self.description not in ("", "undefined") else self.name


#: Group of collectives without metadata.
UNKNOWN_GROUP = Group("", "", -1, None)

#: Group of host communication that may have been in any of several of the rank's groups: of no known size.
SEVERAL_GROUPS = Group("", "one of several groups", 0, None)


_NONE = np.empty(0, np.int64)


class Instances(msgspec.Struct, frozen=True):
    """n communication activities of one device (or of a rank without one), sorted by start.

    start_ns, end_ns int64 [n] on the rank's own clock; leaf int16 [n]: code of the kind; group int32 [n] into
    `groups`; seq, elements, bytes int64 [n], -1 if not recorded (elements: input elements; bytes: see `message_bytes`);
    peer int64 [n]: the other rank of a send or receive, -1; sends bool [n]: whether this rank sends; stream int64 [n];
    step int32 [n]: index of the step in which it starts, -1 outside.

    shared, shared_peer, shared_bytes int64 [q], shared_group int32 [q], shared_sends bool [q]: messages of batches;
    shared is the index of the kernel, which has no peer of its own.

    exposed_start, exposed_end int64 [e]: the parts that the rank's ledger counts as exposed, disjoint, in time order;
    exposed_of int64 [e]: index of the instance; exposed_step int32 [e].
    """

    start_ns: I64
    end_ns: I64
    leaf: NDArray[np.int16]
    group: I32
    seq: I64
    elements: I64
    bytes: I64
    peer: I64
    sends: NDArray[np.bool_]
    stream: I64
    step: I32
    groups: list[Group]
    exposed_start: I64
    exposed_end: I64
    exposed_of: I64
    exposed_step: I32
    shared: I64 = _NONE
    shared_peer: I64 = _NONE
    shared_bytes: I64 = _NONE
    shared_group: I32 = _NONE.astype(np.int32)
    shared_sends: NDArray[np.bool_] = _NONE.astype(np.bool_)

    @property
    def messages(self) -> NDArray[np.bool_]:
        """Which instances are messages whose peers are known, bool [n]."""
        found = self.peer >= 0
        found[self.shared] = True
        return found


def device_instances(
    table: EventTable, work: Activities, labels: Work, parts: Pieces, part_step: I64, bounds: I64
) -> Instances:
    """Communication of one device; `parts` are the owned parts inside the windows with the step of each."""
    rows = np.flatnonzero(labels.klass == COMMUNICATION)
    at = np.full(len(work.row), -1, np.int64)
    at[rows] = np.arange(len(rows))
    mine = np.flatnonzero(at[parts.source] >= 0)
    meta = labels.meta[rows]
    batches = batched_messages(table, work, labels)
    of_batches = batches.meta.tolist()
    named = [index for index in meta.tolist() if index >= 0]
    groups, group_of = _groups([table.collectives[index] for index in named + of_batches])
    group = np.zeros(len(rows), np.int32)
    group[meta >= 0] = group_of[: len(named)]
    return Instances(
        start_ns=work.start_ns[rows],
        end_ns=work.end_ns[rows],
        leaf=labels.leaf[rows],
        group=group,
        seq=_field(table, meta, "seq"),
        elements=_field(table, meta, "in_elements"),
        bytes=message_bytes(table.collectives, meta),
        peer=_peer(table, meta),
        sends=_field(table, meta, "dst_rank") >= 0,
        stream=work.stream[rows],
        step=step_at(work.start_ns[rows], bounds),
        groups=groups,
        exposed_start=parts.start[mine],
        exposed_end=parts.end[mine],
        exposed_of=at[parts.source[mine]],
        exposed_step=part_step[mine].astype(np.int32),
        shared=at[batches.activity],
        shared_peer=_peer(table, batches.meta),
        shared_bytes=message_bytes(table.collectives, batches.meta),
        shared_group=group_of[len(named) :],
        shared_sends=_field(table, batches.meta, "dst_rank") >= 0,
    )


def host_groups(calls: HostCalls) -> tuple[list[Group], I32]:
    """Groups of host communication, and which of them each call was in, int32 [n]."""
    groups = [UNKNOWN_GROUP, *(Group(one.name, one.description, len(one.ranks), one.ranks) for one in calls.groups)]
    if calls.groups:
        groups.append(SEVERAL_GROUPS)
    message = np.array([kind == "p2p_transfer" for kind in calls.kinds], np.bool_)
    of_message, of_other = (at + 1 if at >= 0 else len(groups) - 1 for at in (calls.message_group, calls.group))
    return groups, np.where(message, of_message, of_other).astype(np.int32)


def host_instances(
    table: EventTable, calls: HostCalls, leaf: NDArray[np.int16], exposed: Pieces, bounds: I64
) -> Instances:
    """Communication of a rank without a device; `exposed.source` indexes `calls`."""
    rows = calls.row
    none = np.full(len(rows), -1, np.int64)
    groups, group = host_groups(calls)
    return Instances(
        start_ns=calls.start_ns,
        end_ns=table.start_ns[rows] + table.dur_ns[rows],
        leaf=leaf,
        group=group,
        seq=none,
        elements=calls.elements,
        bytes=none,
        peer=calls.peer,
        sends=calls.sends,
        stream=none,
        step=step_at(calls.start_ns, bounds),
        groups=groups,
        exposed_start=exposed.start,
        exposed_end=exposed.end,
        exposed_of=exposed.source,
        exposed_step=step_at(exposed.start, bounds),
    )


def _peer(table: EventTable, meta: I64) -> I64:
    result: I64 = np.maximum(_field(table, meta, "src_rank"), _field(table, meta, "dst_rank"))
    return result


def _field(table: EventTable, meta: I64, name: str) -> I64:
    values = np.array([*(getattr(args, name) for args in table.collectives), -1], np.int64)
    return values[meta]


def _groups(args: list[CollectiveArgs]) -> tuple[list[Group], I32]:
    """Distinct groups, the unknown one first, and the group of each of the given arguments."""
    index: dict[Group, int] = {UNKNOWN_GROUP: 0}
    texts: dict[tuple[str, str, int, str], int] = {}
    found = []
    for one in args:
        key = (one.group, one.description, one.group_size, one.ranks)
        if key not in texts:
            group = Group(one.group, one.description, one.group_size, _ranks(one))
            texts[key] = index.setdefault(group, len(index))
        found.append(texts[key])
    return list(index), np.array(found, np.int32)


def _ranks(args: CollectiveArgs) -> tuple[int, ...] | None:
    """Ranks of a group; long lists are cut in the trace with "..." and then unknown."""
    try:
        ranks = msgspec.json.decode(args.ranks, type=list[int])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return tuple(sorted(ranks)) if args.group_size in (-1, len(ranks)) else None
