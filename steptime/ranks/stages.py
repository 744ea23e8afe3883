"""Is it a pipeline, and which rank is which stage? Read from the messages alone (DESIGN 2.3).

In a pipeline one rank computes before it hears from anybody; every other one must receive before it can begin. In a
ring (context parallelism, overlapped tensor parallelism) all ranks compute first and then pass on what they have. So
both are told apart by who starts a step, and the order of stages by whom each one sends to first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import Alignment
from steptime.ranks.blame import column_of, job_steps
from steptime.ranks.counted import Row
from steptime.taxonomy import LEAVES
from steptime.timeline.instances import Group
from steptime.timeline.passes import Passes
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

#: Compute of less than this share of a usual pass is no pass: the seed of the gradient, a scaled loss.
LEAST_PASS = 0.02
#: Names of process groups that hold a pipeline (Megatron, torchtitan, DeepSpeed).
_NAMED = re.compile(r"(^|[_\W])pp($|[_\W\d])|pipe", re.IGNORECASE)
_COMPUTE = [code for code, leaf in enumerate(LEAVES) if leaf.slice in ("kernels", "recompute")]


class Mail(msgspec.Struct, frozen=True):
    """m messages between rows. sender, receiver: rows; match: their match; sent, received: how many passes each side
    had launched before, into the rows' `Lane`; column: step of the job, as the sender counts, -1 outside; group:
    index of the group's description. All int64 [m], ordered by match.
    """

    sender: I64
    receiver: I64
    match: I64
    sent: I64
    received: I64
    column: I64
    group: I64

    def take(self, index: I64 | Mask) -> Mail:
        """Some of the messages."""
        return Mail(*(getattr(self, name)[index] for name in self.__struct_fields__))


class Lane(msgspec.Struct, frozen=True):
    """The passes of one row without what is too short to be one; column int64 [n]: step of the job, -1 outside."""

    start_ns: I64
    end_ns: I64
    backward: Mask
    column: I64


class Stages(msgspec.Struct, frozen=True):
    """p stages. pipeline, stage int64 [r]: of each row, -1 where it has none; mail: between stages of one pipeline.

    named: whether the group's name says that it is a pipeline.
    """

    count: int
    pipeline: I64
    stage: I64
    mail: Mail
    named: bool


class Messages(msgspec.Struct, frozen=True):
    """What the job's messages are: stages of pipelines (None if there are none) with the passes of each row, and rings.

    ring bool [g]: which matches are messages in which all ranks of a step begin alike: nobody is ahead by design.
    """

    stages: Stages | None
    lanes: list[Lane | None]
    ring: Mask


def read_messages(rows: Sequence[Row], alignment: Alignment) -> Messages:
    """Tell pipelines from rings; messages that are neither are in none of them."""
    _, at = job_steps(rows, alignment)
    column = column_of(rows, at)
    kept = [kept_passes(row.timeline.passes) for row in rows]
    ring = np.zeros(alignment.collectives.matches.count, np.bool_)
    found = _mail(rows, alignment, column, kept)
    if found is None:
        return Messages(None, [], ring)
    mail, kinds = found
    lanes = [_lane(row.timeline.passes, *parts) for row, *parts in zip(rows, kept, column, strict=True)]
    stages = None
    for group in np.unique(mail.group).tolist():
        own = mail.take(mail.group == group)
        chains = _chains(rows, lanes, own, kinds[group])
        stages = stages or chains
        if chains is None and _all_begin_alike(lanes, own):
            ring[own.match] = True
    return Messages(stages, lanes, ring)


def kept_passes(passes: Passes | None) -> Mask:
    """Which passes belong to micro-batches, bool [n]."""
    if passes is None:
        return np.empty(0, np.bool_)
    keep = np.ones(len(passes.busy_ns), np.bool_)
    for direction in (False, True):
        mine = passes.backward == direction
        if mine.any():
            usual = float(np.percentile(passes.busy_ns[mine], 75))
            keep[mine] = passes.busy_ns[mine] >= LEAST_PASS * usual
    # Every forward pass is followed by a backward pass: what comes after the last one is clipping and the like.
    back = np.flatnonzero(keep & passes.backward)
    last = np.full(int(passes.step.max(initial=-1)) + 2, -1, np.int64)
    last[passes.step[back]] = back
    return keep & (np.arange(len(keep)) <= last[passes.step])


def _lane(passes: Passes | None, keep: Mask, column: I64) -> Lane | None:
    if passes is None:
        return None
    return Lane(passes.start_ns[keep], passes.end_ns[keep], passes.backward[keep], column[passes.step[keep]])


def _mail(
    rows: Sequence[Row], alignment: Alignment, column: I64, kept: Sequence[Mask]
) -> tuple[Mail, list[str]] | None:
    """All messages with both ends among the files, and the kinds of groups they belong to."""
    matches = alignment.collectives.matches
    pair = np.flatnonzero(matches.pair & (np.diff(matches.first) == 2))
    before, step, group = (np.full(len(matches.match), -1, np.int64) for _ in range(3))
    kinds: dict[str, int] = {}
    order = np.argsort(matches.row, kind="stable")
    bounds = np.searchsorted(matches.row[order], np.arange(len(rows) + 1))
    for at, row in enumerate(rows):
        mine, passes, instances = order[bounds[at] : bounds[at + 1]], row.timeline.passes, row.timeline.instances
        if instances is None or passes is None or not len(mine):
            continue
        place = np.full(len(instances.start_ns), -1, np.int64)
        place[passes.message] = np.arange(len(passes.message))
        found = place[matches.instance[mine]]
        launched = np.append(0, np.cumsum(kept[at]))[passes.before]
        before[mine] = np.where(found >= 0, np.append(launched, -1)[found], -1)
        step[mine] = np.where(found >= 0, column[at, np.append(passes.message_step, -1)[found]], -1)
        names = np.array([kinds.setdefault(_kind(one), len(kinds)) for one in instances.groups], np.int64)
        of_instance = instances.group.copy()
        of_instance[instances.shared] = instances.shared_group
        group[mine] = names[of_instance[matches.instance[mine]]]
    ranks = np.array([row.rank for row in rows], np.int64)
    one, other = matches.first[pair], matches.first[pair] + 1
    good = (before[one] >= 0) & (before[other] >= 0)
    pair, one, other = pair[good], one[good], other[good]
    if not len(pair):
        return None
    sends = ranks[matches.row[one]] == matches.sender[pair]
    source, target = np.where(sends, one, other), np.where(sends, other, one)
    mail = Mail(
        sender=matches.row[source],
        receiver=matches.row[target],
        match=pair,
        sent=before[source],
        received=before[target],
        column=step[source],
        group=group[source],
    )
    return mail, list(kinds)


def _kind(group: Group) -> str:
    """What groups of one kind have in common: their description, where they have one."""
    return "" if group.description in ("", "undefined", "default_pg") else group.description


def _chains(rows: Sequence[Row], lanes: Sequence[Lane | None], mail: Mail, description: str) -> Stages | None:
    """The pipelines that these messages connect, if all of them are pipelines of equally many stages."""
    pipeline = _connected(mail, len(rows))
    stage = np.full(len(rows), -1, np.int64)
    sizes = set()
    for one in np.unique(pipeline[pipeline >= 0]).tolist():
        chain = _chain(lanes, mail.take(pipeline[mail.sender] == one))
        if chain is None or len(chain) != np.count_nonzero(pipeline == one):
            return None
        stage[chain] = np.arange(len(chain))
        sizes.add(len(chain))
        if not _NAMED.search(description) and _names(rows[chain[0]]) == _names(rows[chain[-1]]):
            return None
    named = bool(_NAMED.search(description))
    return Stages(sizes.pop(), pipeline, stage, mail, named) if len(sizes) == 1 else None


def _connected(mail: Mail, count: int) -> I64:
    """Number of the part of the job that messages connect each row with, -1 for rows without any; int64 [r]."""
    label = np.arange(count, dtype=np.int64)
    while True:
        least = np.minimum(label[mail.sender], label[mail.receiver])
        new = label.copy()
        np.minimum.at(new, mail.sender, least)
        np.minimum.at(new, mail.receiver, least)
        if (new == label).all():
            break
        label = new
    touched = np.zeros(count, np.bool_)
    touched[mail.sender] = touched[mail.receiver] = True
    result = np.full(count, -1, np.int64)
    result[touched] = np.unique(label[touched], return_inverse=True)[1].ravel()
    return result


def _chain(lanes: Sequence[Lane | None], mail: Mail) -> list[int] | None:
    """Rows by stage, as most steps have them; None if this is no pipeline."""
    found: dict[tuple[int, ...], int] = {}
    columns = np.unique(mail.column[mail.column >= 0]).tolist()
    for column in columns:
        chain = tuple(_chain_of_step(lanes, mail.take(mail.column == column), column))
        found[chain] = found.get(chain, 0) + 1
    best = max(found, key=lambda chain: found[chain], default=())
    return list(best) if len(best) > 1 and 2 * found[best] > len(columns) else None


def _chain_of_step(lanes: Sequence[Lane | None], mail: Mail, column: int) -> list[int]:
    """Rows in the order of their first sends, from the one row that computes before it hears from anybody."""
    target: dict[int, int] = {}
    order = np.argsort(mail.sent, kind="stable")
    for sender, receiver in zip(mail.sender[order].tolist(), mail.receiver[order].tolist(), strict=True):
        target.setdefault(sender, receiver)
    sources, _ = _sources(lanes, mail, column)
    chain: list[int] = []
    at = sources[0] if len(sources) == 1 else -1
    while at >= 0 and at not in chain:
        chain.append(at)
        at = target.get(at, -1)
    return chain


def _all_begin_alike(lanes: Sequence[Lane | None], mail: Mail) -> bool:
    """Whether in most steps every row computes before its first message."""
    columns = np.unique(mail.column[mail.column >= 0]).tolist()
    alike = 0
    for column in columns:
        sources, count = _sources(lanes, mail.take(mail.column == column), column)
        alike += len(sources) == count
    return 2 * alike > len(columns)


def _sources(lanes: Sequence[Lane | None], mail: Mail, column: int) -> tuple[list[int], int]:
    """Rows that compute in a step before they send or receive anything, and how many have messages at all."""
    first: dict[int, int] = {}
    for row, before in zip(
        np.concatenate([mail.sender, mail.receiver]).tolist(),
        np.concatenate([mail.sent, mail.received]).tolist(),
        strict=True,
    ):
        first[row] = min(first.get(row, before), before)
    return [row for row, before in first.items() if _computes_first(lanes[row], before, column)], len(first)


def _computes_first(lane: Lane | None, before: int, column: int) -> bool:
    return lane is not None and bool((lane.column[:before] == column).any())


def _names(row: Row) -> set[str]:
    """Kernels of a row."""
    ledger = row.timeline.ledger
    used = np.unique(ledger.what[np.isin(ledger.leaf, _COMPUTE)])
    return {ledger.texts[what] for what in used.tolist() if what >= 0}
