"""Steps as a picture needs them: who owned the device, and what ran on each stream, in columns."""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.model import StepTime, StepTimeline
from steptime.taxonomy import LEAVES
from steptime.timeline.links import Activities
from steptime.timeline.work import Work
from steptime.trace.events import I32, I64

#: More segments than this can't be told apart on a page; the shortest are left out and counted.
MOST_SEGMENTS = 2000


class Segments(msgspec.Struct, frozen=True):
    """The owner row of one device in time order: start_ns, end_ns int64, leaf int16 code, what int32 label; [k]."""

    start_ns: I64
    end_ns: I64
    leaf: I64
    what: I32


def draw(  # noqa: PLR0913 - a picture is of one step of one device
    step: StepTime, why: str, owner: Segments, work: Activities, labels: Work, texts: list[str]
) -> StepTimeline:
    """Columns of one step; times count from the step's start. The rank and device are filled in by the caller."""
    begin, end = step.start_ns, step.start_ns + step.dur_ns
    mine = (owner.end_ns > begin) & (owner.start_ns < end)
    runs = (work.end_ns > begin) & (work.start_ns < end)
    streams = np.unique(work.stream[runs]).tolist()
    track = np.concatenate([np.zeros(mine.sum(), np.int64), 1 + np.searchsorted(streams, work.stream[runs])])
    start = np.concatenate([owner.start_ns[mine], work.start_ns[runs]])
    stop = np.concatenate([owner.end_ns[mine], work.end_ns[runs]])
    leaf = np.concatenate([owner.leaf[mine], labels.leaf[runs]])
    what = np.concatenate([owner.what[mine], labels.what[runs]])
    start, stop = np.clip(start, begin, end), np.clip(stop, begin, end)
    most = MOST_SEGMENTS if why else len(start)
    keep = np.sort(np.argsort(start - stop, kind="stable")[:most])
    keep = keep[np.lexsort((start[keep], track[keep]))]
    leaves, leaf_at = np.unique(leaf[keep], return_inverse=True)
    names, name_at = np.unique(what[keep], return_inverse=True)
    return StepTimeline(
        rank=0,
        device=None,
        step=step.step,
        why=why,
        step_start_ns=begin,
        dur_ns=step.dur_ns,
        tracks=["owner", *(f"stream {stream}" for stream in streams)],
        names=[texts[name] if name >= 0 else "" for name in names.tolist()],
        leaves=[LEAVES[code].key for code in leaves.tolist()],
        track=track[keep].tolist(),
        start_ns=(start[keep] - begin).tolist(),
        segment_ns=(stop[keep] - start[keep]).tolist(),
        leaf=leaf_at.ravel().tolist(),
        name=name_at.ravel().tolist(),
        dropped=len(start) - len(keep),
    )


def chosen(steps: list[StepTime]) -> dict[int, str]:
    """Indices of the steps worth a picture: the one of median length and the longest, edges only without others."""
    whole = [at for at, step in enumerate(steps) if step.class_ == "train" and not step.edge]
    whole = whole or list(range(len(steps)))
    by_length = sorted(whole, key=lambda at: (steps[at].dur_ns, at))
    typical = by_length[len(by_length) // 2]
    return {typical: "typical", by_length[-1]: "slowest"} if len(by_length) > 1 else {typical: "typical"}
