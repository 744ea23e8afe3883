"""The same collective on all ranks that took part: by (group, `Seq`) where recorded, else by order from both ends.

Heads are cut, recordings start and stop at different times, events get lost, clocks differ, and old traces name no
group at all. So the order alone is never trusted: a rank's sequence is laid beside the longest one where the step
numbers agree and where the ends keep a constant distance, which is what barrier semantics and two clocks give.
What contradicts itself (other kind, other size under one number) is refused, not matched.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.counted import Row
from steptime.ranks.host_groups import host_groups
from steptime.ranks.sequences import NO_STEP, NOWHERE, Beat, host_turns, place
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.instances import UNKNOWN_GROUP, Group
from steptime.trace.events import I32, I64

Mask = NDArray[np.bool_]

P2P = LEAF_CODE["exposed_comm/p2p_transfer"]
ALL_TO_ALL = LEAF_CODE["exposed_comm/all_to_all"]
#: No member may finish before all have started (DESIGN 2.1). An all-to-all only if all send the same amount.
_BARRIERS = tuple(
    LEAF_CODE[f"exposed_comm/{name}"] for name in ("allreduce", "allgather", "reduce_scatter", "all_to_all", "barrier")
)
IS_BARRIER: Mask = np.isin(np.arange(len(LEAVES)), _BARRIERS)

#: How the members of a match were found.
_BY_SEQ, _BY_ORDER, _BY_PEER = 0, 1, 2
#: Size of what stands for several groups under one name.
_SEVERAL = 0


class JobGroup(msgspec.Struct, frozen=True):
    """A process group of the job in one capture. size: its members, -1 unknown; ranks None: not listed."""

    capture: int
    name: str
    description: str
    size: int
    ranks: tuple[int, ...] | None


class Matches(msgspec.Struct, frozen=True):
    """g matched collectives with k members in all, sorted by match, then row; a few have one member, see `matched`.

    match, row, instance, start_ns, end_ns int64 [k], times on the row's own clock; a kernel of several messages is in
    several matches. Per match: first int64 [g+1], where its members begin; leaf, elements, bytes (-1 unknown or
    unequal), group (into `groups`), expected (members it should have, -1 unknown) int64 [g]; barrier bool [g]; pair
    bool [g]: a message between two ranks; sender int64 [g]: the rank that sends it, else -1.

    matched, unmatched, refused: communication activities of groups with more than one member, by what became of them.
    """

    match: I64
    row: I64
    instance: I64
    start_ns: I64
    end_ns: I64
    first: I64
    leaf: I64
    elements: I64
    bytes: I64
    group: I64
    expected: I64
    barrier: Mask
    pair: Mask
    sender: I64
    groups: list[JobGroup]
    unmatched: int
    refused: int

    @property
    def count(self) -> int:
        """Number of matched collectives."""
        return len(self.leaf)

    @property
    def matched(self) -> int:
        """Communication activities that found partners; the others in here lack all of theirs."""
        counts = np.diff(self.first)
        return int(counts[counts > 1].sum())

    @property
    def complete(self) -> Mask:
        """Whether all members are among the files, bool [g]."""
        result: Mask = np.diff(self.first) == self.expected
        return result

    def without(self, bad: Mask) -> Matches:
        """The matches that are not `bad` (bool [g]); members of the others count as refused."""
        if not bad.any():
            return self
        members = ~bad[self.match]
        by_member = ("row", "instance", "start_ns", "end_ns")
        by_match = ("leaf", "elements", "bytes", "group", "expected", "barrier", "pair", "sender")
        counts = np.diff(self.first)
        kept: Matches = msgspec.structs.replace(
            self,
            match=(np.cumsum(~bad) - 1)[self.match[members]],
            first=np.append(0, np.cumsum(counts[~bad])),
            refused=self.refused + int(counts[bad & (counts > 1)].sum()),
            **{name: getattr(self, name)[members] for name in by_member},
            **{name: getattr(self, name)[~bad] for name in by_match},
        )
        return kept


class _Entries(msgspec.Struct, frozen=True):
    """All communication of the job in columns, int64 [n].

    sender, receiver: the ranks of a message, else -1; turn: `host_turns`, `NOWHERE` where it is not used; on_host: 1
    if the CPU itself did it; stream: of the device, -1 there.
    """

    row: I64
    instance: I64
    start_ns: I64
    end_ns: I64
    leaf: I64
    elements: I64
    bytes: I64
    seq: I64
    sender: I64
    receiver: I64
    turn: I64
    on_host: I64
    stream: I64
    step: I64
    group: I64

    def take(self, index: I64) -> _Entries:
        return _Entries(*(getattr(self, name)[index] for name in self.__struct_fields__))


def match(rows: Sequence[Row]) -> Matches:
    """Find the members of every collective of the job."""
    groups: dict[JobGroup, int] = {}
    entries, shadowed = _entries(rows, groups)
    members = list(groups)
    sizes = _sizes(rows, members, entries)
    ambiguous = int(np.count_nonzero(sizes[entries.group] == _SEVERAL))
    entries = entries.take(np.flatnonzero((sizes[entries.group] != 1) & (sizes[entries.group] != _SEVERAL)))
    key, how = _keys(entries)
    order = np.lexsort((entries.instance, entries.start_ns, entries.row, key))
    entries, key, how = entries.take(order), key[order], how[order]
    index = _indices(entries, key, how, [row.clock for row in rows])
    known = np.flatnonzero(index != NOWHERE)
    order = known[np.lexsort((entries.row[known], index[known], key[known]))]
    found, counts = _grouped(key[order], index[order])
    lonely = counts[found] < 2
    # One member alone still shows that it waited, if its group is known to have others.
    telling = IS_BARRIER[entries.leaf[order]] & (sizes[entries.group[order]] > 1)
    mine = order[~lonely | telling]
    found, counts = _grouped(key[mine], index[mine])
    result = _matches(entries.take(mine), found, counts, how[mine], sizes, members)
    unmatched = len(entries.row) - int(np.count_nonzero(~lonely)) + shadowed
    return _consistent(entries.take(mine), msgspec.structs.replace(result, unmatched=unmatched, refused=ambiguous))


def _matches(entries: _Entries, found: I64, counts: I64, how: I64, sizes: I64, members: list[JobGroup]) -> Matches:
    first = np.append(0, np.cumsum(counts))
    head = first[:-1]
    pair = how[head] == _BY_PEER
    return Matches(
        match=found,
        row=entries.row,
        instance=entries.instance,
        start_ns=entries.start_ns,
        end_ns=entries.end_ns,
        first=first,
        leaf=entries.leaf[head],
        elements=entries.elements[head],
        bytes=entries.bytes[head],
        group=entries.group[head],
        expected=np.where(pair, 2, sizes[entries.group[head]]),
        barrier=IS_BARRIER[entries.leaf[head]],
        pair=pair,
        sender=entries.sender[head],
        groups=members,
        unmatched=0,
        refused=0,
    )


def _consistent(entries: _Entries, matches: Matches) -> Matches:
    """Refuse members that differ in kind or size, or are too many; an uneven all-to-all only loses its barrier."""
    if not matches.count:
        return matches
    head = matches.first[:-1]

    def equal(column: I64) -> Mask:
        low, high = np.minimum.reduceat(column, head), np.maximum.reduceat(column, head)
        result: Mask = low == high
        return result

    same_size = equal(entries.elements)
    uneven = (matches.leaf == ALL_TO_ALL) & ~same_size
    too_many = (matches.expected > 0) & (np.diff(matches.first) > matches.expected)
    bad = ~equal(entries.leaf) | (~same_size & matches.barrier & ~uneven) | too_many
    elements = np.where(same_size, matches.elements, -1)
    barrier = matches.barrier & ~uneven
    nbytes = np.where(equal(entries.bytes) & ~uneven, matches.bytes, -1)
    return msgspec.structs.replace(matches, elements=elements, bytes=nbytes, barrier=barrier).without(bad)


def _entries(rows: Sequence[Row], groups: dict[JobGroup, int]) -> tuple[_Entries, int]:
    """Columns over all rows, and how many activities lie on further devices of a rank, which are not compared."""
    busiest: dict[tuple[int, int], int] = {}
    counts = [len(row.timeline.instances.start_ns) if row.timeline.instances is not None else 0 for row in rows]
    for at, row in enumerate(rows):
        known = busiest.setdefault((row.rank, row.capture), at)
        if counts[at] > counts[known]:
            busiest[row.rank, row.capture] = at
    placed = host_groups(rows, IS_BARRIER)
    parts = [_row_entries(rows[at], at, groups, placed.get(at)) for at in sorted(busiest.values()) if counts[at]]
    shadowed = sum(counts) - sum(len(part.row) for part in parts)
    none = np.empty(0, np.int64)
    columns = {
        name: np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in _Entries.__struct_fields__
    }
    return _Entries(**columns), shadowed


def _row_entries(row: Row, at: int, groups: dict[JobGroup, int], placed: I32 | None) -> _Entries:
    """Columns of one row; `placed`: the groups of its instances where they are not those of the row alone."""
    instances = row.timeline.instances
    assert instances is not None
    of_group = np.array([_job_group(row, group, groups) for group in instances.groups], np.int64)
    numbers = [step.step for step in row.timeline.steps] if numbered(row) else [NO_STEP] * len(row.timeline.steps)
    alone = np.ones(len(instances.start_ns), np.bool_)
    alone[instances.shared] = False
    # Batches hold several messages in one kernel: each is an entry of its own.
    index = np.concatenate([np.flatnonzero(alone), instances.shared])
    single = instances.group if placed is None else placed
    group = np.concatenate([single[alone], instances.shared_group]).astype(np.int64)
    leaf = instances.leaf[index].astype(np.int64)
    local = np.where(leaf == P2P, np.concatenate([instances.peer[alone], instances.shared_peer]), -1)
    peer = global_peers(row, group, local)
    own = np.where(peer >= 0, row.rank, -1)
    sends = np.concatenate([instances.sends[alone], instances.shared_sends])
    step = np.array([*numbers, NO_STEP], np.int64)[instances.step[index]]
    by_turn = row.timeline.device is None and not len(instances.shared)
    return _Entries(
        row=np.full(len(index), at, np.int64),
        instance=index,
        start_ns=instances.start_ns[index],
        end_ns=instances.end_ns[index],
        leaf=leaf,
        elements=np.where(alone, instances.elements, -1)[index],
        bytes=np.concatenate([instances.bytes[alone], instances.shared_bytes]),
        seq=instances.seq[index],
        sender=np.where(sends, own, peer),
        receiver=np.where(sends, peer, own),
        turn=host_turns(peer, sends, step) if by_turn else np.full(len(index), NOWHERE),
        on_host=np.full(len(index), int(row.timeline.device is None)),
        stream=np.where(row.timeline.device is None, -1, instances.stream[index]),
        step=step,
        group=of_group[group],
    )


def _nameless(capture: int) -> JobGroup:
    """What stands for all groups of a trace that names none."""
    return JobGroup(capture, "", "", -1, None)


def numbered(row: Row) -> bool:
    """Whether step numbers mean the same on all ranks: the loop's own counter, not a count from the recording on."""
    return row.file.step_source.startswith("ProfilerStep")


def _job_group(row: Row, group: Group, groups: dict[JobGroup, int]) -> int:
    # The description differs between ranks ("undefined" or not): it tells groups apart only where ranks don't.
    description = group.description if group.ranks is None else ""
    known = JobGroup(row.capture, group.name, description, group.size, group.ranks)
    if group == UNKNOWN_GROUP:
        known = _nameless(row.capture)
    return groups.setdefault(known, len(groups))


def global_peers(row: Row, group: I64, peer: I64) -> I64:
    """Ranks in the job of the peers of messages.

    PyTorch writes them so into the metadata of NCCL's kernels (``groupRanks[rank]`` in saveNcclMeta,
    torch/csrc/profiler/util.cpp); where they come from the arguments of host ops, or name no member of the group, they
    are places in it.
    """
    result = peer.copy()
    instances = row.timeline.instances
    assert instances is not None
    for at in np.unique(group[peer >= 0]).tolist():
        ranks = instances.groups[at].ranks
        if ranks is None:
            continue
        members = np.array(ranks, np.int64)
        local = (group == at) & (peer >= 0) & (peer < len(members))
        if row.timeline.device is not None:
            local &= ~np.isin(peer, members)
        result[local] = members[peer[local]]
    return result


def _sizes(rows: Sequence[Row], members: list[JobGroup], entries: _Entries) -> I64:
    """Members that each group should have, int64; without metadata all ranks of the job, -1 if that is unknown.

    Of no size is what may have been in any of several groups.
    """
    worlds = [row.file.meta.world_size for row in rows if row.file.meta.world_size is not None]
    world = max(worlds) if worlds else -1
    sizes = []
    for group in members:
        if group.ranks is not None:
            sizes.append(len(group.ranks))
        elif group.size >= 0:
            sizes.append(group.size)
        else:
            sizes.append(world)
    result = np.array(sizes, np.int64)
    # A name that more ranks use than the group has members stands for several groups: nothing tells them apart.
    if len(entries.row):
        pairs = np.unique(entries.group * len(rows) + entries.row) // len(rows)
        users = np.bincount(pairs, minlength=len(members))
        result[(result > 0) & (users > result)] = _SEVERAL
        for at in np.flatnonzero([group == _nameless(group.capture) for group in members]).tolist():
            if _several(entries, entries.group == at):
                result[at] = _SEVERAL
    return result


def _several(entries: _Entries, mine: Mask) -> bool:
    """Whether communication without a group's name is of several groups, which nothing tells apart.

    Each has a communicator, and each of those a stream of its own (as in traces before torch 2.4, which name none); and
    messages tell of a pipeline, whose stages have groups of their own.
    """
    streams = np.unique(np.stack([entries.row, entries.stream])[:, mine], axis=1)
    return bool((entries.leaf[mine] == P2P).any()) or streams.shape[1] > len(np.unique(streams[0]))


def _keys(entries: _Entries) -> tuple[I64, I64]:
    """What the members of one collective have in common, as one number, and how they are told apart further."""
    how = np.where(entries.sender >= 0, _BY_PEER, np.where(entries.seq >= 0, _BY_SEQ, _BY_ORDER))
    kind = np.where(entries.leaf == ALL_TO_ALL, -1, entries.elements)
    a = np.choose(how, [entries.seq, entries.leaf, entries.sender])
    b = np.choose(how, [np.full_like(kind, -1), kind, entries.receiver])
    key = np.stack([entries.group, how, a, b])
    if not key.shape[1]:
        return np.empty(0, np.int64), how
    return np.unique(key, axis=1, return_inverse=True)[1].ravel().astype(np.int64), how


def _grouped(*keys: I64) -> tuple[I64, I64]:
    """Numbers of the runs of equal keys (sorted), int64 [n], and the length of each run."""
    if not len(keys[0]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    changed = np.zeros(len(keys[0]), np.bool_)
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    run = np.cumsum(changed)
    return run.astype(np.int64), np.bincount(run).astype(np.int64)


def _indices(entries: _Entries, key: I64, how: I64, clocks: Sequence[str | None]) -> I64:
    """The place of each entry (sorted by key, row, start) in the common sequence of its key; `NOWHERE`: none.

    clocks: of each row, by name.
    """
    run, counts = _grouped(key, entries.row)
    first = np.append(0, np.cumsum(counts))
    index: I64 = np.arange(len(key)) - first[run]
    nameless = (entries.leaf == P2P) & (how == _BY_ORDER)
    index[nameless] = NOWHERE
    counted = entries.turn != NOWHERE
    index[counted] = entries.turn[counted]
    heads = first[:-1]
    start = np.append(0, np.cumsum(_grouped(key[heads])[1]))
    ordered = (how != _BY_SEQ) & ~nameless & ~counted
    for low, high in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
        if high - low < 2 or not ordered[heads[low]]:
            continue
        spans = [slice(int(first[at]), int(first[at + 1])) for at in range(low, high)]
        beats = [
            Beat(entries.end_ns[span], entries.step[span], bool(entries.on_host[span].all()), clocks[at])
            for span, at in zip(spans, (entries.row[span.start] for span in spans), strict=True)
        ]
        places = place(beats)
        for span, found in zip(spans, places, strict=True):
            index[span] = found
    return index
