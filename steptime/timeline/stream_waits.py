"""What activities waited for on other streams: recorded, or told by the order of launches and by when they started.

Communication waits for what had been launched on the main stream before it, unless that had not ended yet; the main
stream waits for communication and copies where it stood idle, with work queued, until one of them ended. What waited
once, waits each time: in the other steps, and for the same number of later launches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.links import CLOCK_NOISE_NS, Activities
from steptime.trace.events import I32, I64, EventTable

Mask = NDArray[np.bool_]
Pairs = tuple[I64, I64]

#: What starts this soon after an end on another stream, idle and launched before, waited for it: 1 to 2 us on NVIDIA's
#: GPUs, 14 to 19 us on an MI300X (`public_traces/tracelens/mi300`).
NEAR_NS = 25_000
#: How far lags of one stream behind another are apart at least; fewer than this many say nothing of what is usual.
LAG_SPREAD_NS, FEW_WAITS = 3_000, 4
#: A rule that would contradict more than this share of what it is about is none.
CONTRADICTED = 0.1
#: So many equal waits make a rule.
LEAST_WAITS = 2
#: What is sent ahead is so many of its kind ahead at most.
MOST_AHEAD = 3

_NONE = np.empty(0, np.int64)
_GATHER = LEAF_CODE["exposed_comm/allgather"]


class _Device:
    """One device's activities by stream. main: indices on the main stream in order of launch; rank int64 [m]: how many
    of them were launched before each activity; others: ids of the other streams.
    """

    def __init__(self, work: Activities, main_stream: int, step: I32) -> None:
        self.work = work
        self.step = step
        on_main = np.flatnonzero((work.stream == main_stream) & work.launched)
        self.main = on_main[np.argsort(work.launch_ns[on_main], kind="stable")]
        self.rank = np.searchsorted(work.launch_ns[self.main], work.launch_ns, side="left")
        self.main_stream = main_stream
        self.others = [one for one in np.unique(work.stream[work.launched]).tolist() if one != main_stream]
        self._seen: dict[int, Pairs] = {}

    def seen(self, waiting: int, awaited: int) -> Pairs:
        """Which activities of one stream were seen to wait for which of another: pairs (before, after)."""
        if waiting not in self._seen:
            self._seen[waiting] = _seen(self, waiting)
        before, after = self._seen[waiting]
        mine = self.work.stream[before] == awaited
        return before[mine], after[mine]

    def on(self, stream: int) -> I64:
        """Launched activities of a stream in order of start."""
        result: I64 = np.flatnonzero((self.work.stream == stream) & self.work.launched)
        return result


def stream_waits(table: EventTable, work: Activities, leaf: NDArray[np.int16], main_stream: int, step: I32) -> Pairs:
    """Pairs (before, after) of activities on different streams, int64 [w] each; no pair contradicts the recording.

    Args:
        table, work: one device's activities.
        leaf: int16 [m], of each activity.
        main_stream: the stream with most compute.
        step: int32 [m], step that launched each activity.
    """
    device = _Device(work, main_stream, step)
    found = [recorded_waits(table, work)]
    if len(device.main):
        found += [_for_main(device, leaf, stream) for stream in device.others]
        found += [_main_for(device, leaf, stream) for stream in device.others]
        found += [device.seen(stream, other) for stream in device.others for other in device.others]
    before, after = (np.concatenate(column) for column in zip(*found, strict=True))
    allowed = (work.end_ns[before] <= work.start_ns[after] + CLOCK_NOISE_NS) & (before != after)
    pairs = np.unique(np.stack([after[allowed], before[allowed]]), axis=1)
    return pairs[1], pairs[0]


def recorded_waits(table: EventTable, work: Activities) -> Pairs:
    """Waits that the profiler recorded (category ``cuda_sync``): of one stream for what another had been given."""
    kinds = np.array(["Stream Wait Event" in text for text in table.texts], np.bool_)
    syncs = table.syncs
    if not len(syncs.row) or not kinds.any():
        return _NONE, _NONE
    waits = np.flatnonzero(kinds[syncs.kind] & (syncs.wait_on_stream >= 0))
    shift = _shift_ns(table, work)
    asked = table.start_ns[syncs.row[waits]] - shift
    before, after = np.full(len(waits), -1, np.int64), np.full(len(waits), -1, np.int64)
    for stream in np.unique(np.concatenate([syncs.stream[waits], syncs.wait_on_stream[waits]])).tolist():
        own = np.flatnonzero((work.stream == stream) & work.launched)
        if not len(own):
            continue
        own = own[np.argsort(work.launch_ns[own], kind="stable")]
        at = np.searchsorted(work.launch_ns[own], asked)
        given = (syncs.wait_on_stream[waits] == stream) & (at > 0)
        before[given] = own[at[given] - 1]
        waiting = (syncs.stream[waits] == stream) & (at < len(own))
        after[waiting] = own[at[waiting]]
    known = (before >= 0) & (after >= 0)
    return before[known], after[known]


def _shift_ns(table: EventTable, work: Activities) -> int:
    linked = np.flatnonzero(work.launched)[:1]
    return int((table.start_ns[work.launch[linked]] - work.launch_ns[linked]).sum())


def _for_main(device: _Device, leaf: NDArray[np.int16], stream: int) -> Pairs:
    """What a stream's activities waited for on the main stream.

    NCCL's stream waits for what was launched before. What is sent ahead (a gather for the next layer) waits for what
    had been launched before an earlier one of its kind: how many earlier is told by waits that were seen.
    """
    own = device.on(stream)
    before, after = device.seen(stream, device.main_stream)
    pairs = []
    for kind in np.unique(leaf[own]).tolist():
        alike = own[leaf[own] == kind]
        alike = alike[np.argsort(device.work.launch_ns[alike], kind="stable")]
        mine = leaf[after] == kind
        pairs.append(_given_before(device, alike, before[mine], after[mine], kind == _GATHER))
    return tuple(np.concatenate(column) for column in zip(*pairs, strict=True)) if pairs else (_NONE, _NONE)  # type: ignore[return-value]


def _given_before(device: _Device, alike: I64, before: I64, after: I64, gathers: bool) -> Pairs:
    """What was seen, and the rule with the least number of earlier ones of its kind with which it holds."""
    work = device.work
    seen = set(zip(before.tolist(), after.tolist(), strict=True)) if len(before) else set()
    for ahead in range(min(MOST_AHEAD + 1, len(alike))):
        waiting, rank = alike[ahead:], device.rank[alike[: len(alike) - ahead]]
        waiting, rank = waiting[rank > 0], rank[rank > 0]
        last = device.main[rank - 1]
        ended = work.end_ns[last] <= work.start_ns[waiting] + CLOCK_NOISE_NS
        holds = len(waiting) and np.count_nonzero(~ended) <= CONTRADICTED * len(waiting)
        agree = len(seen & set(zip(last.tolist(), waiting.tolist(), strict=True)))
        # A gather that nothing held may have been sent ahead as well as not: FSDP does so by default.
        if holds and (agree >= LEAST_WAITS or ahead == (1 if gathers else 0)):
            # The stream's own order has the rest: only the first of those that wait for the same is told.
            told = ended & np.append(True, last[1:] != last[:-1])
            return np.concatenate([before, last[told]]), np.concatenate([after, waiting[told]])
    return before, after


def _seen(device: _Device, waiting: int) -> Pairs:
    """Which activities of a stream stood idle, launched, until one of another stream ended, and which one that was.

    Each starts as long after that end as others of the two streams do. Where several ended in time, what the stream is
    seen to wait for without doubt is believed: a message sent ends together with one received, and only one was waited
    for.
    """
    work = device.work
    own = device.on(waiting)
    others = [stream for stream in (device.main_stream, *device.others) if stream != waiting]
    if not len(own) or not others:
        return _NONE, _NONE
    found, lag = (
        np.stack(column) for column in zip(*(_last_end(work, own, device.on(one)) for one in others), strict=True)
    )
    possible = np.stack([_usual(one) for one in lag])
    alone = possible & (possible.sum(axis=0) == 1)
    believed = np.where(possible, alone.sum(axis=1)[:, None] * (2 * NEAR_NS) + NEAR_NS - lag, np.iinfo(np.int64).min)
    chosen = believed.argmax(axis=0)[None, :]
    bound = possible.any(axis=0)
    return np.take_along_axis(found, chosen, axis=0)[0][bound], own[bound]


def _last_end(work: Activities, waiting: I64, awaited: I64) -> Pairs:
    """Of each of `waiting` (one stream, by start) the last end of `awaited` before it starts: its index, and how long
    before; longer than `NEAR_NS` if it was no idle start of a launched activity.
    """
    free = np.append(np.int64(np.iinfo(np.int64).min), np.maximum.accumulate(work.end_ns[waiting])[:-1])
    by_end = awaited[np.argsort(work.end_ns[awaited], kind="stable")]
    at = np.searchsorted(work.end_ns[by_end], work.start_ns[waiting] + CLOCK_NOISE_NS, side="right") - 1
    found = by_end[np.maximum(at, 0)]
    end = work.end_ns[found]
    idle = (at >= 0) & (work.return_ns[waiting] < end) & (end > free + CLOCK_NOISE_NS)
    return found, np.where(idle, work.start_ns[waiting] - end, NEAR_NS + 1)


def _usual(lag: I64) -> Mask:
    """Which lags of one stream behind another are about as long as most of them, bool [n]; all of but few."""
    near = lag <= NEAR_NS
    if np.count_nonzero(near) < FEW_WAITS:
        return near
    usual = int(np.median(lag[near]))
    return near & (np.abs(lag - usual) <= max(LAG_SPREAD_NS, usual // 2))


def _main_for(device: _Device, leaf: NDArray[np.int16], stream: int) -> Pairs:
    """What the main stream waited for on another stream, and will have waited for where it was not seen to."""
    work = device.work
    own = device.on(stream)
    before, after = device.seen(device.main_stream, stream)
    pairs = [(before, after), _last_of_step(device, own)]
    for kind in np.unique(leaf[own]).tolist():
        alike = own[leaf[own] == kind]
        alike = alike[np.argsort(work.launch_ns[alike], kind="stable")]
        mine = leaf[before] == kind
        pairs.append(_as_often(device, alike, before[mine], after[mine]))
        pairs.append(_each_step(device, alike, before[mine], after[mine]))
    return tuple(np.concatenate(column) for column in zip(*pairs, strict=True))  # type: ignore[return-value]


def _last_of_step(device: _Device, own: I64) -> Pairs:
    """The last of a stream in each step must have ended before what the main stream is given next."""
    step = device.step[own]
    last = np.append(step[1:] != step[:-1], True) & (step >= 0) if len(own) else np.empty(0, np.bool_)
    return _next_on_main(device, own[last], device.rank[own[last]])


def _next_on_main(device: _Device, before: I64, rank: I64) -> Pairs:
    known = rank < len(device.main)
    return before[known], device.main[rank[known]]


def _as_often(device: _Device, alike: I64, before: I64, after: I64) -> Pairs:
    """The rule "needed once so many of its kind have been launched after it", if the waits that were seen agree."""
    if len(before) < LEAST_WAITS or not len(alike):
        return _NONE, _NONE
    rank = device.rank[alike]
    place = np.full(len(device.work.row), -1, np.int64)
    place[alike] = np.arange(len(alike))
    # How many of the kind had been launched when the main stream was given what waited.
    given = np.searchsorted(rank, device.rank[after], side="right") - 1
    depth, counts = np.unique(given - place[before], return_counts=True)
    usual = int(depth[counts.argmax()])
    if usual < 0 or counts.max() < LEAST_WAITS or 2 * counts.max() < len(before):
        return _NONE, _NONE
    later = alike[np.minimum(np.arange(len(alike)) + usual, len(alike) - 1)]
    inside = np.arange(len(alike)) + usual < len(alike)
    sources, targets = _next_on_main(device, alike[inside], device.rank[later[inside]])
    allowed = device.work.end_ns[sources] <= device.work.start_ns[targets] + CLOCK_NOISE_NS
    if np.count_nonzero(~allowed) > CONTRADICTED * max(len(sources), 1):
        return _NONE, _NONE
    return sources[allowed], targets[allowed]


def _each_step(device: _Device, alike: I64, before: I64, after: I64) -> Pairs:
    """The same pair in every step that launches as much."""
    if not len(before):
        return _NONE, _NONE
    first_main, main_of = _by_step(device, device.main)
    first_own, own_of = _by_step(device, alike)
    place = np.full(len(device.work.row), -1, np.int64)
    place[device.main], place[alike] = main_of, own_of
    step = device.step[before]
    same = (step >= 0) & (step == device.step[after]) & (place[before] >= 0) & (place[after] >= 0)
    ordinals = np.unique(np.stack([place[before][same], place[after][same]]), axis=1)
    counts = np.stack([np.diff(first_main), np.diff(first_own)])
    usual = np.unique(counts[:, np.unique(step[same])], axis=1)
    if usual.shape[1] != 1:
        return _NONE, _NONE
    steps = np.flatnonzero((counts == usual).all(axis=0))
    sources = alike[(first_own[steps][:, None] + ordinals[0]).ravel()]
    return sources, device.main[(first_main[steps][:, None] + ordinals[1]).ravel()]


def _by_step(device: _Device, index: I64) -> tuple[I64, I64]:
    """First place of each step in `index` (in order of launch), int64 [k+1], and each one's place in its step."""
    step = device.step[index]
    count = int(device.step.max(initial=-1)) + 1
    first = np.searchsorted(step, np.arange(count + 1))
    return first, np.arange(len(index)) - first[np.clip(step, 0, count)]
