"""Forward and backward passes of micro-batches, and where messages lie between them: what a pipeline is made of.

A loop that runs a pipeline launches a pass, then the messages that follow from it, and so on. So the order of launches
on the host tells passes apart, however they overlap on the device.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.links import Activities, Threads, autograd_nodes
from steptime.timeline.work import COMMUNICATION, COMPUTE, Work
from steptime.trace.events import I32, I64, EventTable

Mask = NDArray[np.bool_]

_OPTIMIZER = LEAF_CODE["kernels/optimizer"]


class Passes(msgspec.Struct, frozen=True):
    """n passes of one rank in the order of their launch, cut at every message.

    start_ns, end_ns, busy_ns int64 [n]: from the first kernel to the end of the last, and the kernels' own time, on the
    rank's own clock; backward bool [n]; step int32 [n]: index of the host step, -1 outside.

    message int64 [m]: index into `Instances` of each message with a known peer, in the order of launch; before int64
    [m]: how many passes were launched before it; message_step int32 [m].
    """

    start_ns: I64
    end_ns: I64
    busy_ns: I64
    backward: Mask
    step: I32
    message: I64
    before: I64
    message_step: I32


class Compute(msgspec.Struct, frozen=True):
    """c pieces of compute: launched_ns (on the host), start_ns, end_ns int64 [c]; backward bool [c]; step int32 [c]."""

    launched_ns: I64
    start_ns: I64
    end_ns: I64
    backward: Mask
    step: I32


class Messages(msgspec.Struct, frozen=True):
    """m messages with known peers: index into `Instances`, launched_ns (on the host) int64 [m]; step int32 [m]."""

    instance: I64
    launched_ns: I64
    step: I32


def device_passes(context: HostOps, work: Activities, labels: Work, messages: Mask, host_bounds: I64) -> Passes | None:
    """Passes of one device; None if it has no messages whose peer is known.

    Args:
        context: the ops of the file.
        work, labels: the activities of the device.
        messages: which communication activities are messages with known peers, bool, in the order of `Instances`.
        host_bounds: windows of the steps on the host, int64 [k+1].
    """
    communication = np.flatnonzero(labels.klass == COMMUNICATION)
    instance = np.flatnonzero(messages & work.launched[communication])
    if not len(instance):
        return None
    table = context.table
    sent = table.start_ns[work.launch[communication[instance]]]
    compute = np.flatnonzero((labels.klass == COMPUTE) & (labels.leaf != _OPTIMIZER) & work.launched)
    called = table.start_ns[work.launch[compute]]
    return cut_passes(
        Compute(
            launched_ns=called,
            start_ns=work.start_ns[compute],
            end_ns=work.end_ns[compute],
            backward=context.backward(work.thread[compute], called),
            step=step_at(called, host_bounds),
        ),
        Messages(instance, sent, step_at(sent, host_bounds)),
    )


class HostOps(msgspec.Struct, frozen=True):
    """The host ops of one file."""

    table: EventTable
    threads: Threads

    def backward(self, track: I32, time_ns: I64) -> Mask:
        """Whether each instant on its track lies inside a node of the backward pass, bool."""
        return self.threads.inside(autograd_nodes(self.table), track, time_ns)


def cut_passes(compute: Compute, messages: Messages) -> Passes:
    """Cut compute into passes at messages, changes of direction and of step, in the order of launch."""
    count = len(compute.start_ns)
    order = np.argsort(np.concatenate([compute.launched_ns, messages.launched_ns]), kind="stable")
    is_message = order >= count
    mine, sent = order[~is_message], order[is_message] - count
    gap = np.cumsum(is_message)[~is_message]
    backward, step = compute.backward[mine], compute.step[mine]
    new = np.ones(len(mine), np.bool_)
    new[1:] = (np.diff(gap) > 0) | (backward[1:] != backward[:-1]) | (step[1:] != step[:-1])
    head = np.flatnonzero(new)
    before = np.append(0, np.cumsum(new))[np.cumsum(~is_message)[is_message]]
    start, end = compute.start_ns[mine], compute.end_ns[mine]
    return Passes(
        start_ns=np.minimum.reduceat(start, head) if len(head) else start,
        end_ns=np.maximum.reduceat(end, head) if len(head) else end,
        busy_ns=np.add.reduceat(end - start, head) if len(head) else end,
        backward=backward[head],
        step=step[head],
        message=messages.instance[sent],
        before=before.astype(np.int64),
        message_step=messages.step[sent],
    )


def step_at(times: I64, bounds: I64) -> I32:
    """Index of the window that holds each instant, -1 outside; int32. bounds int64 [k+1]."""
    at = np.searchsorted(bounds, times, side="right") - 1
    return np.where((at >= 0) & (at < len(bounds) - 1), at, -1).astype(np.int32)
