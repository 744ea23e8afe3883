"""The passes of a pipeline with what each one waited for: the recorded order that a replay keeps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.ranks.alignment import Alignment
from steptime.ranks.stages import Lane, Mail, Stages
from steptime.trace.events import I64

Mask = NDArray[np.bool_]

NONE = -1
_LONG_AGO = np.iinfo(np.int64).min // 2


class Flow(msgspec.Struct, frozen=True):
    """n passes of all pipelines, ordered by row and launch; times on the common clock.

    row, column, start_ns, end_ns int64 [n]; backward bool [n]. needs int64 [n]: the pass whose result it received,
    `NONE` if it received nothing; arrived_ns int64 [n]: when that was here, long ago if nothing; gives bool [n]:
    whether its result was sent. own_ns int64 [n]: from when it had all it needed to its end.
    """

    row: I64
    column: I64
    start_ns: I64
    end_ns: I64
    backward: Mask
    needs: I64
    arrived_ns: I64
    gives: Mask
    own_ns: I64


class _Passes(msgspec.Struct, frozen=True):
    """Whole passes of all rows; first int64 [r+1]: where each row's begin."""

    first: I64
    row: I64
    column: I64
    start_ns: I64
    end_ns: I64
    backward: Mask

    def earlier(self, row: I64, before: I64, backward: Mask) -> I64:
        """How many passes of that direction lie in front of the row's pass number `before`, counted over all rows."""
        counts = [np.append(0, np.cumsum(self.backward == direction)) for direction in (False, True)]
        at = self.first[row] + before
        result: I64 = np.where(backward, counts[1][at], counts[0][at])
        return result

    def of_direction(self, number: I64, backward: Mask) -> I64:
        """The pass with that number among those of its direction, `NONE` where there is no such; int64."""
        result = np.full(len(number), NONE, np.int64)
        for direction in (False, True):
            passes = np.flatnonzero(self.backward == direction)
            mine = (backward == direction) & (number >= 0) & (number < len(passes))
            result[mine] = passes[number[mine]]
        return result


def flow_of(alignment: Alignment, stages: Stages, lanes: Sequence[Lane | None]) -> Flow | None:
    """Join passes and messages; None if messages skip stages."""
    mail = stages.mail
    passes, sent, received = _whole(alignment, stages, lanes)
    source, target = stages.stage[mail.sender], stages.stage[mail.receiver]
    last = np.maximum(passes.first[mail.sender] + sent - 1, 0)
    backward = passes.backward[last] if stages.count == 2 else target == (source - 1) % stages.count
    if not (backward | (target == (source + 1) % stages.count)).all():
        return None
    number = passes.earlier(mail.sender, sent, backward) - 1
    giver = passes.of_direction(number, backward)
    here = (giver >= passes.first[mail.sender]) & (giver < passes.first[mail.sender + 1])
    needs, arrived = _delivered(alignment, passes, mail.take(here), giver[here], (backward[here], received[here]))
    gives = np.zeros(len(passes.row), np.bool_)
    gives[giver[here]] = True
    return Flow(
        row=passes.row,
        column=passes.column,
        start_ns=passes.start_ns,
        end_ns=passes.end_ns,
        backward=passes.backward,
        needs=needs,
        arrived_ns=arrived,
        gives=gives,
        own_ns=_own(passes, arrived),
    )


def _whole(alignment: Alignment, stages: Stages, lanes: Sequence[Lane | None]) -> tuple[_Passes, I64, I64]:
    """Passes cut by the pipeline's own messages only, and how many lie before each message on either side."""
    mail = stages.mail
    sent, received = mail.sent.copy(), mail.received.copy()
    parts: list[tuple[I64 | Mask, ...]] = []
    first = np.zeros(len(lanes) + 1, np.int64)
    for row, lane in enumerate(lanes):
        first[row + 1] = first[row]
        if lane is None or stages.stage[row] < 0 or not len(lane.start_ns):
            continue
        sends, receives = mail.sender == row, mail.receiver == row
        new = np.ones(len(lane.start_ns) + 1, np.bool_)
        new[1:-1] = (lane.backward[1:] != lane.backward[:-1]) | (lane.column[1:] != lane.column[:-1])
        new[mail.sent[sends]] = new[mail.received[receives]] = True
        head = np.flatnonzero(new[:-1])
        before = np.append(0, np.cumsum(new[:-1]))
        sent[sends], received[receives] = before[mail.sent[sends]], before[mail.received[receives]]
        of = np.full(len(head), row, np.int64)
        start = alignment.clocks.common(of, np.minimum.reduceat(lane.start_ns, head))
        end = alignment.clocks.common(of, np.maximum.reduceat(lane.end_ns, head))
        parts.append((of, lane.column[head], start, end, lane.backward[head]))
        first[row + 1] = first[row] + len(head)
    row_, column, start_ns, end_ns, backward = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return _Passes(first, row_, column, start_ns, end_ns, backward.astype(np.bool_)), sent, received


def _delivered(alignment: Alignment, passes: _Passes, mail: Mail, giver: I64, how: tuple[Mask, I64]) -> tuple[I64, I64]:
    """What each pass received and when.

    Messages of one pass to one row are one delivery; deliveries of one direction are used in the order in which their
    receives were posted, each by the first pass after it that has nothing yet.
    """
    backward, received = how
    matches = alignment.collectives.matches
    ends = alignment.collectives.end_ns
    members = matches.first[mail.match]
    receives = np.where(matches.row[members] == mail.receiver, members, members + 1)
    needs = np.full(len(passes.row), NONE, np.int64)
    arrived = np.full(len(passes.row), _LONG_AGO, np.int64)
    if not len(giver):
        return needs, arrived
    order = np.lexsort((giver, received, backward, mail.receiver))
    receiver, backward, received = mail.receiver[order], backward[order], received[order]
    giver, end = giver[order], ends[receives[order]]
    _, head, which = np.unique(np.stack([receiver, giver]), axis=1, return_index=True, return_inverse=True)
    latest = np.full(len(head), _LONG_AGO, np.int64)
    np.maximum.at(latest, which.ravel(), end)
    keep = np.sort(head)
    latest = latest[np.argsort(head, kind="stable")]
    receiver, backward, received, giver = receiver[keep], backward[keep], received[keep], giver[keep]
    number = passes.earlier(receiver, received, backward)
    user = passes.of_direction(_first_free(receiver * 2 + backward, number), backward)
    inside = (user >= passes.first[receiver]) & (user < passes.first[receiver + 1])
    needs[user[inside]], arrived[user[inside]] = giver[inside], latest[inside]
    return needs, arrived


def _first_free(queue: I64, wanted: I64) -> I64:
    """Numbers that ascend within each queue (sorted), each at least what is wanted; int64."""
    place = np.arange(len(queue))
    head = np.append(True, queue[1:] != queue[:-1])
    place = place - place[head][np.cumsum(head) - 1]
    # Shifted apart, so that one running maximum serves all queues.
    span = int(wanted.max()) + len(queue) + 1
    shift = np.cumsum(head) * span
    result: I64 = np.maximum.accumulate(wanted - place + shift) - shift + place
    return result


def _own(passes: _Passes, arrived: I64) -> I64:
    """From the end of the row's previous pass in the step, or the arrival of what was needed, to the end; int64 [n]."""
    follows = np.zeros(len(passes.row), np.bool_)
    follows[1:] = (passes.row[1:] == passes.row[:-1]) & (passes.column[1:] == passes.column[:-1])
    before = np.where(follows, np.roll(passes.end_ns, 1), _LONG_AGO)
    ready = np.maximum(before, arrived)
    ready = np.where(ready == _LONG_AGO, passes.start_ns, np.minimum(ready, passes.start_ns))
    result: I64 = passes.end_ns - ready
    return result
