"""The matrix against a replay: what removing each fault would buy, predicted and simulated (issue 5).

Of every job the faults are removed by changes that a user could ask for, and the predicted step is compared with the
simulator's, which ran the same job without the faults. Beside it stands the naive subtraction of the removed leaves.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec

from steptime.simulate import Scenario, simulate
from steptime.simulate.program import MISALIGNED
from steptime.simulate.scenario import Fault, shape_of
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.whatif.scenario import HIDDEN, LEAF, RANKS, STAGES, Change
from tests.matrix.scenarios import HURT_RECORDINGS, INJECTIONS, Cell, drawn_pairs, singles
from tests.whatif.measured import measured_job

#: Issue 5: the unchanged replay and the measured step; the predicted step and the simulated one, for a share of all
#: jobs and at the median.
FIDELITY, WITHIN, WITHIN_SHARE, MEDIAN = 0.01, 0.05, 0.95, 0.015
#: Pairs of faults that are predicted.
PAIRS = 20

#: Faults whose mending is no removal but other work: there is nothing in the recording to take out.
NO_REMOVAL = {
    "tiny_batch": "another amount of work a step",
    "few_micro_batches": "other kernels, on other shapes",
    "small_buckets": "other messages, fewer and larger",
}
_SMALL_VOCAB = 256
_COMMUNICATION = tuple(code for code, leaf in enumerate(LEAVES) if leaf.slice == "exposed_comm")


@dataclass(frozen=True)
class Removal:
    """Changes, and the share of each leaf that a naive subtraction takes off."""

    changes: tuple[Change, ...]
    naive: dict[str, float]


@dataclass(frozen=True)
class Predicted:
    """One job: mean steps in ns. error: of the unchanged replay, as a share of the measured step."""

    cell: Cell
    error: float
    measured_ns: float
    predicted_ns: float
    naive_ns: float
    true_ns: int

    @property
    def off(self) -> float:
        """Of the prediction, as a share of what was simulated."""
        return self.predicted_ns / self.true_ns - 1

    @property
    def naive_off(self) -> float:
        """Of the naive subtraction, likewise."""
        return self.naive_ns / self.true_ns - 1

    def __str__(self) -> str:
        """The job in one line."""
        return (
            f"{self.cell.name:44} replay {100 * self.error:6.3f} % off; {self.measured_ns / 1e6:8.2f} ms, without "
            f"{self.true_ns / 1e6:8.2f}, predicted {self.predicted_ns / 1e6:8.2f} {100 * self.off:+7.2f} %, "
            f"naive {self.naive_ns / 1e6:8.2f} {100 * self.naive_off:+7.2f} %"
        )


def _scaled(factor: float, *keys: str) -> Removal:
    change = Change("scaled", LEAF, tuple(LEAF_CODE[key] for key in keys), factor)
    return Removal((change,), dict.fromkeys(keys, 1.0 - factor))


def _gone(*keys: str) -> Callable[[Fault, Scenario], Removal]:
    return lambda fault, scenario: _scaled(0.0, *keys)  # noqa: ARG005


def _like_peers(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    change = Change("like its peers", RANKS, ranks=tuple(fault.ranks))
    return Removal((change,), {"stragglers/wait_for_rank": 1.0})


def _size(fault: Fault) -> float:
    assert fault.size is not None
    return fault.size


def _link(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    left = 1.0 - _size(fault)
    keys = [LEAVES[code].key for code in _COMMUNICATION]
    return Removal((Change("whole links", LEAF, _COMMUNICATION, left),), dict.fromkeys(keys, 1.0 - left))


def _host(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    return _scaled(1.0 / (1.0 + _size(fault)), "host/launch_bound")


def _loader(fault: Fault, scenario: Scenario) -> Removal:
    """What the loader takes anyway stays: its usual time for each micro-batch."""
    usual = scenario.host.loader_us / 1e3 * scenario.batch.micro_batches
    return _scaled(usual / (usual + _size(fault)), "host/data_loader")


def _prefetched(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    key = "exposed_comm/allgather"
    # Gathers of activations (sequence parallelism) can't be sent ahead, those of parameters can.
    group = "mesh_dp" if scenario.layout.sequence_parallel else ""
    return Removal((Change("prefetched", HIDDEN, (LEAF_CODE[key],), group=group),), {key: 1.0})


def _even(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    return Removal((Change("even stages", STAGES),), {"pipeline_bubble/stage_imbalance": 1.0})


def _bf16(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    """Half the bytes, in memory and on the links."""
    halves = ("kernels/memory_bound", *(LEAVES[code].key for code in _COMMUNICATION))
    precision, half = _scaled(0.0, "kernels/precision"), _scaled(0.5, *halves)
    return Removal(precision.changes + half.changes, precision.naive | half.naive)


def _aligned(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    """Matrices of the feed-forward part at the pace of the others; what matrices take beyond their ideal time."""
    shape, share = shape_of(scenario.model), scenario.cluster.matmul_share
    layers = shape.layers / scenario.layout.pp
    other = 4 * shape.hidden**2 + shape.hidden * shape.vocab / layers
    wide = 2 * shape.hidden * shape.ffn
    lost, lost_wide = 1 / share - 1, 1 / (share * MISALIGNED) - 1
    return _scaled((other + wide) * lost / (other * lost + wide * lost_wide), "kernels/matmul")


def _fused(fault: Fault, scenario: Scenario) -> Removal:  # noqa: ARG001
    """One pass over gradients, weights and moments in place of three."""
    return _scaled(1 / 3, "kernels/optimizer")


#: Kind of fault -> how it is removed.
REMOVALS: dict[str, Callable[[Fault, Scenario], Removal]] = {
    "slow_gpu": _like_peers,
    "uneven_sequences": _like_peers,
    "uneven_experts": _like_peers,
    "slow_link": _link,
    "slow_host": _host,
    "python": _gone("host/python"),
    "gc_pause": _gone("host/python"),
    "slow_loader": _loader,
    "item_sync": _gone("host/sync"),
    "allocator": _gone("host/allocator"),
    "checkpoint": _gone("host/checkpoint"),
    "recompute": _gone("recompute/recompute"),
    "no_prefetch": _prefetched,
    "unbalanced_stages": _even,
    "fp32": _bf16,
    "fp32_head": _gone("kernels/precision"),
    "bad_shapes": _aligned,
    "unfused_optimizer": _fused,
}


def job(cell: Cell) -> Scenario:
    """The job to simulate. Stages can be made even only where the output layer, which no fault adds, is next to
    nothing: a small vocabulary, so that the job without the fault is even.
    """
    scenario = cell.scenario()
    if "unbalanced_stages" in cell.injections:
        scenario = msgspec.structs.replace(scenario, model=msgspec.structs.replace(scenario.model, vocab=_SMALL_VOCAB))
    return scenario


def removal(cell: Cell) -> Removal | None:
    """How a user would ask for the job without its faults; None where one of them has no removal."""
    scenario = job(cell)
    changes: tuple[Change, ...] = ()
    naive: dict[str, float] = {}
    for name in cell.injections:
        one = INJECTIONS[name]
        if one.fault.kind not in REMOVALS:
            return None
        made = _like_peers(one.fault, scenario) if one.one_rank and one.fault.kind != "slow_link" else None
        made = made or REMOVALS[one.fault.kind](one.fault, scenario)
        changes += made.changes
        naive |= made.naive
    return Removal(changes, naive)


def predict(cell: Cell, seed: int) -> Predicted:
    """Simulate a job, replay it without its faults."""
    wanted = removal(cell)
    assert wanted is not None
    with tempfile.TemporaryDirectory() as folder:
        truth = simulate(job(cell), folder, seed)
        counted, replayed = measured_job(sorted(Path(folder).glob("rank*")))
    pairs = counted.pairs
    taken = sum(step.leaves_ns.get(key, 0) * share for _, step in pairs for key, share in wanted.naive.items())
    (predicted,) = replayed.steps_ns([wanted.changes])
    return Predicted(
        cell=cell,
        error=replayed.error_share,
        measured_ns=replayed.measured_ns,
        predicted_ns=predicted,
        naive_ns=replayed.measured_ns - taken / len(pairs),
        true_ns=truth.step_time_without_ns,
    )


def cells(names: Sequence[str] = ()) -> list[Cell]:
    """Single faults (whose name holds one of `names`, if there are any), then, without names, pairs of faults."""
    alone = [cell for cell in singles() if not names or any(part in cell.name for part in names)]
    alone = [cell for cell in alone if cell.injections[0] not in HURT_RECORDINGS and removal(cell) is not None]
    pairs: list[Cell] = []
    for cell in drawn_pairs() if not names else ():
        if len(pairs) == PAIRS:
            break
        if removal(cell) is not None:
            pairs.append(cell)
    return alone + pairs


def totals(found: Sequence[Predicted]) -> list[tuple[str, str, bool]]:
    """What is asked for, what came out, and whether that is enough."""
    faithful = sum(one.error <= FIDELITY for one in found)
    off, naive = [abs(one.off) for one in found], [abs(one.naive_off) for one in found]
    close = sum(each <= WITHIN for each in off)
    usual = statistics.median(off)
    beside = f"naive: {sum(each <= WITHIN for each in naive)} of {len(naive)}"
    return [
        ("unchanged replay within 1 % of measured", f"{faithful} of {len(found)}", faithful == len(found)),
        (
            "predicted within 5 % of simulated, in 95 %",
            f"{close} of {len(found)} ({beside})",
            close >= WITHIN_SHARE * len(found),
        ),
        (
            "median of it at most 1.5 %",
            f"{100 * usual:.2f} % (naive: {100 * statistics.median(naive):.2f} %)",
            usual <= MEDIAN,
        ),
    ]


def run(seed: int, jobs: int, names: Sequence[str] = ()) -> int:
    """Predict all jobs, print them and the totals; exit code 1 if one of these is missed."""
    found = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        wanted = cells(names)
        for one in pool.map(predict, wanted, [seed] * len(wanted)):
            found.append(one)
            sys.stdout.write(f"{one}\n")
            sys.stdout.flush()
    result = totals(found)
    for name, value, enough in result:
        sys.stdout.write(f"{'ok  ' if enough else 'MISS'} {name}: {value}\n")
    for kind, why in NO_REMOVAL.items():
        sys.stdout.write(f"left out: {kind}, {why}\n")
    return 0 if all(enough for *_, enough in result) else 1
