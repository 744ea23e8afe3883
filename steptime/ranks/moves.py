"""Moving waits out of exposed communication: to the wait for a rank, the pipeline bubble, or capture skew."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import NOBODY, Alignment
from steptime.ranks.counted import Row
from steptime.ranks.waits import Waits, find_waits
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.timeline.instances import Instances
from steptime.timeline.ledger import Ledger, LedgerWriter
from steptime.timeline.summary import DeviceTimeline
from steptime.trace.events import I64

WAIT = LEAF_CODE["stragglers/wait_for_rank"]
SKEW = LEAF_CODE["unexplained/capture_skew"]
SKEW_TEXT = "recordings started at different times"


class Moved(msgspec.Struct, frozen=True):
    """Waits that get a leaf of their own: w pieces ordered by row and time.

    row, match, step, leaf int64 [w]: as in `Waits`; start_ns, ns int64 [w], on the row's own
    clock; to int64 [w]: leaf code; whom int64 [w]: the row
    waited for, the stage where `to` is a bubble, `NOBODY` for capture skew.
    """

    row: I64
    match: I64
    step: I64
    leaf: I64
    start_ns: I64
    ns: I64
    to: I64
    whom: I64

    def take(self, index: I64 | NDArray[np.bool_]) -> Moved:
        """Some of the pieces."""
        return Moved(*(getattr(self, name)[index] for name in self.__struct_fields__))

    def named(self, ranks: I64) -> I64:
        """Rank or stage waited for, int64 [w]; `ranks`: of each row of the job."""
        result: I64 = np.where(self.to == WAIT, ranks[self.whom], self.whom)
        return result

    def joined(self, others: Moved) -> Moved:
        """These and others."""
        names = self.__struct_fields__
        return Moved(*(np.concatenate([getattr(self, name), getattr(others, name)]) for name in names))


class RowWaits(msgspec.Struct, frozen=True):
    """What moves in one row's ledger: m entries, ordered by step.

    step, leaf int64 [m]: from where; label, text int64 [m]: the collective (as the ledger calls it) and whom it waited
    for, into `texts`; to int64 [m]: code of the new leaf; ns, count
    int64 [m]; culprit int64 [m]: rank waited for, -1 for capture skew and bubbles.
    """

    step: I64
    leaf: I64
    label: I64
    text: I64
    to: I64
    ns: I64
    count: I64
    culprit: I64
    texts: list[str]


def plain_moves(waits: Waits) -> Moved:
    """Waits for ranks, and capture skew. Where the chain is a circle, for the last one."""
    found = waits.take(waits.sure & (waits.skew | waits.circle | (waits.origin != NOBODY)))
    kept_by = np.where(found.circle, found.late, found.origin)
    to, whom = np.where(found.skew, SKEW, WAIT), np.where(found.skew, NOBODY, kept_by)
    return Moved(found.row, found.match, found.step, found.leaf, found.start_ns, found.ns, to, whom)


def attribute_waits(rows: Sequence[Row], alignment: Alignment, moves: Moved | None = None) -> list[RowWaits]:
    """What moves in each row's ledger, in exact integers. `moves`: all plain waits if not given."""
    found = plain_moves(find_waits(rows, alignment)) if moves is None else moves
    found = found.take(np.argsort(found.row, kind="stable"))
    bounds = np.searchsorted(found.row, np.arange(len(rows) + 1))
    ranks = np.array([row.rank for row in rows], np.int64)
    return [
        _row_waits(row, alignment, found.take(np.arange(bounds[at], bounds[at + 1])), ranks)
        for at, row in enumerate(rows)
    ]


def _row_waits(row: Row, alignment: Alignment, moves: Moved, ranks: I64) -> RowWaits:
    instances = row.timeline.instances
    if instances is None or not len(moves.row):
        none = np.empty(0, np.int64)
        return RowWaits(none, none, none, none, none, none, none, none, [])
    texts: dict[str, int] = {}
    label = _labels(instances, alignment, moves, texts)
    culprit = np.where(moves.to == WAIT, ranks[moves.whom], NOBODY)
    named, which = np.unique(np.stack([moves.to, moves.named(ranks)]), axis=1, return_inverse=True)
    spoken = [said(to, whom) for to, whom in named.T.tolist()]
    text = np.array([texts.setdefault(one, len(texts)) for one in spoken], np.int64)[which.ravel()]
    keys = np.stack([moves.step, moves.leaf, label, text, moves.to, culprit])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    ns = np.zeros(distinct.shape[1], np.int64)
    np.add.at(ns, which.ravel(), moves.ns)
    once = np.unique(np.stack([which.ravel(), moves.match]), axis=1)[0]
    count = np.bincount(once, minlength=distinct.shape[1]).astype(np.int64)
    step, leaf, label, text, to, culprit = distinct
    return RowWaits(step, leaf, label, text, to, ns, count, culprit, list(texts))


def said(to: int, whom: int) -> str:
    """How the ledger names what was waited for."""
    if to == SKEW:
        return SKEW_TEXT
    return f"waiting for rank {whom}" if to == WAIT else f"waiting for stage {whom}"


def _labels(instances: Instances, alignment: Alignment, moves: Moved, texts: dict[str, int]) -> I64:
    """What the ledger calls the communication of each wait of one row, int64 [w] into `texts`."""
    matches = alignment.collectives.matches
    mine = matches.row == moves.row[0]
    instance_of = np.full(matches.count, -1, np.int64)
    instance_of[matches.match[mine]] = matches.instance[mine]
    group = instances.group[instance_of[moves.match]].astype(np.int64)
    names = [_group_name(one.description, one.name) for one in instances.groups]
    distinct, which = np.unique(np.stack([moves.leaf, group]), axis=1, return_inverse=True)
    codes = []
    for leaf, at in distinct.T.tolist():
        kind = LEAVES[leaf].id
        codes.append(texts.setdefault(f"{kind} ({names[at]})" if names[at] else kind, len(texts)))
    return np.array(codes, np.int64)[which.ravel()]


def _group_name(description: str, name: str) -> str:
    """How the ledger calls a group."""
    return description if description not in ("", "undefined") else name


def with_waits(timeline: DeviceTimeline, waits: RowWaits) -> DeviceTimeline:
    """The same timeline with the waits in their own leaves; the accounting law is checked on every step.

    Raises:
        AccountingError: the ledger does not hold what should move.
    """
    if not len(waits.ns):
        return timeline
    ledger = timeline.ledger
    texts = list(ledger.texts)
    at_text = {text: at for at, text in reversed(list(enumerate(texts)))}
    code = []
    for text in waits.texts:
        if text not in at_text:
            at_text[text] = len(texts)
            texts.append(text)
        code.append(at_text[text])
    codes = np.array(code, np.int64)
    left = ledger.ns - _taken(ledger, waits, codes)
    writer = LedgerWriter()
    keys = (ledger.step, ledger.leaf, ledger.what, ledger.where)
    useful = (ledger.productive_ns, ledger.precision_ns)
    writer.put(keys, left, (ledger.count, ledger.dur_ns), useful)
    none = np.zeros(len(waits.ns), np.int64)
    moved = (waits.step, waits.to, codes[waits.text], codes[waits.label])
    writer.put(moved, waits.ns, (waits.count, none))
    productive_ns = np.array([step.productive_ns for step in timeline.steps], np.int64)
    return timeline.with_ledger(writer.ledger(texts), productive_ns)


def _taken(ledger: Ledger, waits: RowWaits, codes: I64) -> I64:
    """What each ledger row gives, int64 [r]: rows of the same step, leaf and collective, the first ones first."""
    wanted = np.stack([waits.step, waits.leaf, codes[waits.label] + 1])
    distinct, which = np.unique(wanted, axis=1, return_inverse=True)
    total = np.zeros(distinct.shape[1], np.int64)
    np.add.at(total, which.ravel(), waits.ns)
    here = np.stack([ledger.step, ledger.leaf, ledger.what + 1]).astype(np.int64)
    width = int(max(wanted.max(), here.max(initial=0))) + 1
    base = np.array([width * width, width, 1], np.int64)
    keys, rows = base @ distinct, base @ here
    at = np.minimum(np.searchsorted(keys, rows), len(keys) - 1)
    mine = np.flatnonzero(keys[at] == rows)
    held = ledger.ns[mine]
    order = np.argsort(at[mine], kind="stable")
    before = np.cumsum(held[order]) - held[order]
    group = at[mine][order]
    first = np.append(True, group[1:] != group[:-1])[: len(group)]
    before = before - before[first][np.cumsum(first) - 1] if len(group) else before
    result = np.zeros(len(ledger.ns), np.int64)
    result[mine[order]] = np.clip(total[group] - before, 0, held[order])
    return result
