"""The faults that a scenario can inject: what each changes, and what its `size`, `count` and `every` mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from steptime.errors import UsageError
from steptime.simulate.effects import Effects, no_effects
from steptime.simulate.noise import Noise
from steptime.simulate.plan import Mask
from steptime.simulate.scenario import Batch, Fault, Scenario, check, shape_of

#: What Kineto rounds a program's start down to; two ranks on either side of a boundary differ by this.
_BASE_STEP_NS = 7_889_238_000_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. size: its meaning and default; leaf: what the culprit loses its time to, None: nothing is lost.

    job changes the scenario, strike the effects (where: bool [world, steps]); everywhere: all ranks are meant if none
    is named, else a random one.
    """

    about: str
    size: float
    leaf: str | None
    job: Callable[[Scenario, Fault, float], Scenario] | None = None
    strike: Callable[[Effects, Mask, Fault, float], None] | None = None
    everywhere: bool = True


def _set(part: str, **values: object) -> Callable[[Scenario, Fault, float], Scenario]:
    """A change of constant keys of one table."""

    def change(scenario: Scenario, fault: Fault, size: float) -> Scenario:  # noqa: ARG001
        return msgspec.structs.replace(scenario, **{part: msgspec.structs.replace(getattr(scenario, part), **values)})

    return change


def _small_buckets(scenario: Scenario, fault: Fault, size: float) -> Scenario:
    return _set("training", bucket_mb=size)(scenario, fault, size)


def _few_micro_batches(scenario: Scenario, fault: Fault, size: float) -> Scenario:  # noqa: ARG001
    """The same tokens in fewer, larger micro-batches."""
    batch = scenario.batch
    sequences = batch.micro_batches * batch.micro_batch_size
    fewer = int(size) or scenario.layout.pp
    if sequences % fewer:
        raise UsageError(f"few_micro_batches: {fewer} do not divide {sequences} sequences: choose another size")
    batch = Batch(micro_batches=fewer, micro_batch_size=sequences // fewer, seq_len=batch.seq_len)
    return msgspec.structs.replace(scenario, batch=batch)


def _unbalanced_stages(scenario: Scenario, fault: Fault, size: float) -> Scenario:
    """Layers as given, or `size` layers moved from the first stage to the last."""
    layout = scenario.layout
    pieces = layout.pp * layout.chunks
    counts = fault.layers
    if counts is None:
        layers = shape_of(scenario.model).layers
        counts = [layers // pieces + (at < layers % pieces) for at in range(pieces)]
        moved = min(int(size), counts[0] - 1)
        counts[0], counts[-1] = counts[0] - moved, counts[-1] + moved
    return _set("layout", stage_layers=counts)(scenario, fault, size)


def _tiny_batch(scenario: Scenario, fault: Fault, size: float) -> Scenario:  # noqa: ARG001
    batch = scenario.batch
    tiny = Batch(micro_batches=batch.micro_batches, micro_batch_size=1, seq_len=max(int(size), scenario.layout.cp))
    return msgspec.structs.replace(scenario, batch=tiny)


def _bad_shapes(scenario: Scenario, fault: Fault, size: float) -> Scenario:
    """The feed-forward width misses a multiple of 8 by `size`."""
    width = shape_of(scenario.model).ffn - int(size) * scenario.layout.tp
    return _set("model", ffn=width)(scenario, fault, size)


def _slow_gpu(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.slow[where] /= 1.0 - size


def _slow_host(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.host[where] *= 1.0 + size


def _slow_link(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.link[where.any(axis=1)] *= 1.0 - size


def _pause(field: str) -> Callable[[Effects, Mask, Fault, float], None]:
    """A pause of `size` milliseconds a step."""

    def strike(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
        getattr(effects, field)[where] += size * 1e6

    return strike


def _syncs(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.syncs[where] += int(size)


def _retries(effects: Effects, where: Mask, fault: Fault, size: float) -> None:
    effects.alloc_ns[where] += size * 1e6
    effects.alloc_count = fault.count


def _uneven(field: str) -> Callable[[Effects, Mask, Fault, float], None]:
    """The struck ranks get 1 + size times the load."""

    def strike(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
        getattr(effects, field)[where] *= 1.0 + size

    return strike


def _drop(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.drop[where.any(axis=1)] = size


def _cut(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.head_ns[where.any(axis=1)] += round(size * 1e6)


def _base(effects: Effects, where: Mask, fault: Fault, size: float) -> None:  # noqa: ARG001
    effects.base_ns[where.any(axis=1)] += round(size * _BASE_STEP_NS)


_COMPUTE, _COMM = "kernels/matmul", "exposed_comm/allreduce"

KINDS: dict[str, Kind] = {
    "slow_gpu": Kind("share of its speed that a GPU loses", 0.2, _COMPUTE, strike=_slow_gpu, everywhere=False),
    "slow_link": Kind("share of its bandwidth that a link loses", 0.5, _COMM, strike=_slow_link, everywhere=False),
    "slow_host": Kind("extra time of each op, as a share", 1.0, "host/launch_bound", strike=_slow_host),
    "python": Kind("ms in Python between two ops", 10.0, "host/python", strike=_pause("python_ns")),
    "slow_loader": Kind("ms that each step waits for its batch", 20.0, "host/data_loader", strike=_pause("loader_ns")),
    "item_sync": Kind("`.item()` calls a step", 4.0, "host/sync", strike=_syncs),
    "bucket_sync": Kind("no size", 0.0, "host/sync", job=_set("training", bucket_syncs=True)),
    "gc_pause": Kind("ms of a garbage collection", 30.0, "host/gc", strike=_pause("gc_ns"), everywhere=False),
    "allocator": Kind("ms of one of `count` retries", 5.0, "host/allocator", strike=_retries),
    "checkpoint": Kind("ms of a save", 100.0, "host/checkpoint", strike=_pause("checkpoint_ns"), everywhere=False),
    "recompute": Kind("no size", 0.0, "recompute/recompute", job=_set("training", recompute="full")),
    "no_prefetch": Kind("no size", 0.0, "exposed_comm/allgather", job=_set("training", prefetch=False)),
    "small_buckets": Kind("MB of a bucket", 1.0, _COMM, job=_small_buckets),
    "few_micro_batches": Kind("micro-batches (0: pp)", 0.0, "pipeline_bubble/warmup", job=_few_micro_batches),
    "unbalanced_stages": Kind(
        "layers moved from the first to the last stage", 1.0, "pipeline_bubble/stage_imbalance", job=_unbalanced_stages
    ),
    "uneven_sequences": Kind("extra tokens, as a share", 0.3, _COMPUTE, strike=_uneven("tokens"), everywhere=False),
    "uneven_experts": Kind("extra tokens, as a share", 0.5, _COMPUTE, strike=_uneven("experts"), everywhere=False),
    "bad_shapes": Kind("columns short of a multiple of 8", 3.0, _COMPUTE, job=_bad_shapes),
    "fp32": Kind("no size", 0.0, "kernels/precision", job=_set("training", dtype="fp32")),
    "fp32_head": Kind("no size", 0.0, "kernels/precision", job=_set("training", head_dtype="fp32")),
    "unfused_optimizer": Kind("no size", 0.0, "kernels/optimizer", job=_set("training", optimizer="loop")),
    "tiny_batch": Kind("tokens of a sequence", 128.0, "host/launch_bound", job=_tiny_batch),
    "missing_events": Kind("share of kernels lost", 0.05, None, strike=_drop, everywhere=False),
    "cut_head": Kind("ms cut off the start", 5.0, None, strike=_cut, everywhere=False),
    "wrong_base": Kind("error in units of 7,889,238 s", 1.0, None, strike=_base, everywhere=False),
}


@dataclass(frozen=True, slots=True)
class Injected:
    """A scenario with its faults worked in."""

    scenario: Scenario
    effects: Effects


def inject(scenario: Scenario, faults: list[Fault]) -> Injected:
    """Work faults into a scenario; without any this is the clean job.

    Raises:
        UsageError: a fault of unknown kind, or one that the job can't have.
    """
    for fault in faults:
        kind = _kind(fault)
        if kind.job is not None:
            scenario = kind.job(scenario, fault, _size(fault, kind))
    check(scenario)
    effects, layout = no_effects(scenario), scenario.layout
    for number, fault in enumerate(faults):
        kind = _kind(fault)
        if kind.strike is not None:
            where = _where(scenario, fault, kind, number)
            kind.strike(effects, where, fault, _size(fault, kind))
            if where.sum() < layout.world * np.count_nonzero(where.any(axis=0)):
                effects.struck |= where
    return Injected(scenario, effects)


def _kind(fault: Fault) -> Kind:
    if fault.kind not in KINDS:
        raise UsageError(f"no fault {fault.kind!r}: choose one of {', '.join(KINDS)}")
    return KINDS[fault.kind]


def _size(fault: Fault, kind: Kind) -> float:
    return kind.size if fault.size is None else fault.size


def _where(scenario: Scenario, fault: Fault, kind: Kind, number: int) -> Mask:
    """Ranks and steps that a fault strikes, bool [world, steps]."""
    layout, recording = scenario.layout, scenario.recording
    first = recording.first_step - recording.warmup
    steps = np.arange(first, first + recording.warmup + recording.steps)
    wanted = np.isin(steps, fault.steps) if fault.steps else np.ones(len(steps), np.bool_)
    wanted &= (steps - recording.first_step - (1 if fault.every > 1 else 0)) % fault.every == 0
    ranks = list(fault.ranks)
    for host in fault.hosts:
        ranks += range(host * scenario.cluster.gpus_per_host, (host + 1) * scenario.cluster.gpus_per_host)
    if any(not 0 <= rank < layout.world for rank in ranks):
        raise UsageError(f"fault {fault.kind}: ranks go from 0 to {layout.world - 1}")
    where = np.zeros((layout.world, len(steps)), np.bool_)
    if ranks:
        where[ranks] = wanted
    elif kind.everywhere:
        where[:] = wanted
    elif fault.kind == "gc_pause":
        noise = Noise(scenario.seed)
        for at in np.flatnonzero(wanted).tolist():
            where[int(noise.one("struck", number, at) * layout.world), at] = True
    else:
        chosen = 0 if fault.kind == "checkpoint" else int(Noise(scenario.seed).one("struck", number) * layout.world)
        where[chosen] = wanted
    return where
