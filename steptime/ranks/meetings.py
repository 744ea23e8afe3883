"""Which ranks have heard of each other: before that, a wait shows when recordings began, not who is slow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import Collectives

Mask = NDArray[np.bool_]


def have_met(collectives: Collectives, counts: Mask, rows: int) -> Mask:
    """For each member of a match: has it met the last one to arrive before, directly or through others? bool [k].

    A member knows of a rank if a chain of collectives (those that `counts` marks, bool [g]) leads from that rank's
    recording to this match. What delayed the start of a recording has then been waited for already.
    """
    matches = collectives.matches
    result = np.ones(len(matches.match), np.bool_)
    knows = [1 << row for row in range(rows)]
    whole = _reachable(collectives, counts, rows)
    unsettled = sum(known != all_ for known, all_ in zip(knows, whole, strict=True))
    order = np.argsort(collectives.last_ns, kind="stable")
    row_of = matches.row.tolist()
    first, late = matches.first.tolist(), collectives.late.tolist()
    for at in order.tolist():
        if not unsettled:
            break
        members = range(first[at], first[at + 1])
        bit = 1 << late[at]
        told = 0
        for member in members:
            known = knows[row_of[member]]
            told |= known
            result[member] = bool(known & bit)
        if not counts[at]:
            continue
        for member in members:
            row = row_of[member]
            unsettled -= knows[row] != told == whole[row]
            knows[row] = told
    return result


def _reachable(collectives: Collectives, counts: Mask, rows: int) -> list[int]:
    """All that each row will ever know, as bits: the rows that collectives connect it with."""
    matches = collectives.matches
    label = np.arange(rows, dtype=np.int64)
    members = np.flatnonzero(counts[matches.match])
    match, row = matches.match[members], matches.row[members]
    while True:
        least = np.full(matches.count, rows, np.int64)
        np.minimum.at(least, match, label[row])
        new = label.copy()
        np.minimum.at(new, row, least[match])
        if (new == label).all():
            break
        label = new
    bits: dict[int, int] = {}
    for at, name in enumerate(label.tolist()):
        bits[name] = bits.get(name, 0) | (1 << at)
    return [bits[name] for name in label.tolist()]
