"""The pictures of steps, with the waits in the leaves that they moved to."""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.model import StepTimeline
from steptime.ranks.moves import Moved, said
from steptime.taxonomy import LEAVES
from steptime.timeline.intervals import Spans, intersect, subtract
from steptime.trace.events import I64

_COMMUNICATION = [leaf.key for leaf in LEAVES if leaf.slice == "exposed_comm"]


def repaint(picture: StepTimeline, moves: Moved, ranks: I64) -> StepTimeline:
    """Cut the owner's communication where it was waiting.

    Args:
        picture: one step of one row.
        moves: of that row.
        ranks: rank of each row of the job, int64 [r].
    """
    moves = moves.take(np.argsort(moves.start_ns, kind="stable"))
    start = moves.start_ns - picture.step_start_ns
    inside = np.flatnonzero((start + moves.ns > 0) & (start < picture.dur_ns))
    if not len(inside):
        return picture
    moves, start = moves.take(inside), start[inside]
    track, leaf, name = (np.array(column, np.int64) for column in (picture.track, picture.leaf, picture.name))
    begin = np.array(picture.start_ns, np.int64)
    end = begin + np.array(picture.segment_ns, np.int64)
    communication = np.isin(leaf, [at for at, key in enumerate(picture.leaves) if key in _COMMUNICATION])
    cut = np.flatnonzero((track == 0) & communication)
    spans, waits = Spans(begin[cut], end[cut]), Spans(start, start + moves.ns)
    waiting, which = intersect(spans, waits)
    moving = subtract(spans, waits)
    leaves, names = list(picture.leaves), list(picture.names)
    to_leaf, to_name = (np.empty(len(moves.ns), np.int64) for _ in range(2))
    for at, (to, whom) in enumerate(zip(moves.to.tolist(), moves.named(ranks).tolist(), strict=True)):
        to_leaf[at] = _place(leaves, LEAVES[to].key)
        to_name[at] = _place(names, said(to, whom))
    left = np.setdiff1d(np.arange(len(track)), cut)
    source, again = cut[waiting.source], cut[moving.source]
    columns = {
        "track": np.concatenate([track[left], track[source], track[again]]),
        "start_ns": np.concatenate([begin[left], waiting.start, moving.start]),
        "segment_ns": np.concatenate([(end - begin)[left], waiting.end - waiting.start, moving.end - moving.start]),
        "leaf": np.concatenate([leaf[left], to_leaf[which], leaf[again]]),
        "name": np.concatenate([name[left], to_name[which], name[again]]),
    }
    order = np.lexsort((columns["start_ns"], columns["track"]))
    return msgspec.structs.replace(
        picture, leaves=leaves, names=names, **{key: values[order].tolist() for key, values in columns.items()}
    )


def _place(texts: list[str], text: str) -> int:
    if text not in texts:
        texts.append(text)
    return texts.index(text)
