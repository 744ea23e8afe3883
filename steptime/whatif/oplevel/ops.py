"""The kinds of ops that an op-level recording has, and what the replay does with each.

Two classifications that differ: whether an op waits for its group, and which statistic is its ideal value.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple


class Op(IntEnum):
    """The op types, as int8 codes."""

    FORWARD = 0
    BACKWARD = 1
    FORWARD_SEND = 2
    FORWARD_RECV = 3
    BACKWARD_SEND = 4
    BACKWARD_RECV = 5
    GATHER = 6
    REDUCE_SCATTER = 7
    EMBEDDING = 8
    LAYERNORM = 9
    CLIP = 10
    OPTIMIZER = 11
    GC = 12


class Group(Enum):
    """Who must have started an op before anybody can end it."""

    ALONE = "the op itself"
    PAIR = "the send and its receive on the neighbouring stage, of one dp rank"
    ENDS = "the first and the last stage, of one dp rank"
    STAGE = "all dp ranks of the stage"
    ALL = "all workers"


class Kind(NamedTuple):
    """One op type: its name in the file, its group, the statistic of its ideal value, the name it is reported under."""

    name: str
    group: Group
    ideal: str
    reported: str


KINDS: dict[Op, Kind] = {
    Op.FORWARD: Kind("forward-compute", Group.ALONE, "mean", "forward-compute"),
    Op.BACKWARD: Kind("backward-compute", Group.ALONE, "mean", "backward-compute"),
    Op.FORWARD_SEND: Kind("forward-send", Group.PAIR, "median", "forward-pp-comm"),
    Op.FORWARD_RECV: Kind("forward-recv", Group.PAIR, "median", "forward-pp-comm"),
    Op.BACKWARD_SEND: Kind("backward-send", Group.PAIR, "median", "backward-pp-comm"),
    Op.BACKWARD_RECV: Kind("backward-recv", Group.PAIR, "median", "backward-pp-comm"),
    Op.GATHER: Kind("params-all-gather", Group.STAGE, "median", "params-all-gather"),
    Op.REDUCE_SCATTER: Kind("grads-reduce-scatter", Group.STAGE, "median", "grads-reduce-scatter"),
    Op.EMBEDDING: Kind("embedding-grads-all-reduce", Group.ENDS, "median", "embedding-grads-all-reduce"),
    Op.LAYERNORM: Kind("layernorm-grads-all-reduce", Group.ALONE, "median", "layernorm-grads-all-reduce"),
    Op.CLIP: Kind("optimizer-clip-main-grad", Group.ALL, "median", "optimizer-clip-main-grad"),
    Op.OPTIMIZER: Kind("optimizer", Group.ALONE, "mean", "optimizer"),
    Op.GC: Kind("gc", Group.ALONE, "mean", "gc"),
}

NAMES: tuple[str, ...] = tuple(KINDS[op].name for op in Op)


def has_op(op: Op, stage: int, stages: int) -> bool:
    """Whether a worker of `stage` (0 is the first of `stages`) runs ops of this type."""
    first, last = stage == 0, stage == stages - 1
    if op in (Op.FORWARD_SEND, Op.BACKWARD_RECV):
        return not last
    if op in (Op.FORWARD_RECV, Op.BACKWARD_SEND):
        return not first
    if op is Op.EMBEDDING:
        return first or last
    return True


def once_a_micro_batch(op: Op) -> bool:
    """Whether a worker runs the op once for each micro-batch; all others run once a step."""
    return op <= Op.BACKWARD_RECV
