"""The truth of a simulated job: the same seed with and without its faults, and every rank's time by construction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from steptime.simulate.engine import LaneRun
from steptime.simulate.faults import KINDS, Injected
from steptime.simulate.kineto import Clock
from steptime.simulate.ledger import BUBBLE, WAIT, StepLedger
from steptime.simulate.plan import Plan
from steptime.simulate.scenario import Fault

#: Jobs of more ranks get no list of single collectives.
_LISTED_RANKS = 64


class TrueStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's step on the true clock (ns after the simulation's start). edge: the first recorded one.

    leaves_ns with productive_ns add up to dur_ns. waits_ns: exposed waiting, by the rank that arrived last.
    """

    step: int
    edge: bool
    start_ns: int
    dur_ns: int
    productive_ns: int
    leaves_ns: dict[str, int]
    waits_ns: dict[int, int]


class TrueRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank with its steps."""

    rank: int
    host: int
    stage: int
    steps: list[TrueStep]


class TrueClock(msgspec.Struct, frozen=True, kw_only=True):
    """What a host's clock shows: true time + offset_ns + true time after the simulation's start x drift_ppm / 1e6."""

    host: int
    offset_ns: int
    drift_ppm: float


class TrueFault(msgspec.Struct, frozen=True, kw_only=True):
    """One injected fault. leaf: what a struck rank loses its time to; None: only the recording is hurt."""

    kind: str
    size: float
    leaf: str | None


class TrueCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of one group on the true clock, arrays in the order of `ranks`. last_rank: who arrived last."""

    kind: str
    group: str
    ranks: list[int]
    step: int
    last_rank: int
    start_ns: list[int]
    end_ns: list[int]


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of a simulated job.

    culprits: ranks that single-rank faults struck in the steps that count; struck: the same by recorded step. Both are
    empty where the whole job is struck. step_time_ns: mean over ranks and steps that are no edge;
    saved_ns: what the same job without its faults takes less. top_leaf: the leaf whose mean shrinks most without them;
    shrinks_ns: by how much each does (summed over the job this is saved_ns).
    """

    schema_version: int = 1
    scenario: str
    seed: int
    world_size: int
    faults: list[TrueFault]
    culprits: list[int]
    struck: dict[int, list[int]]
    step_time_ns: int
    step_time_without_ns: int
    saved_ns: int
    top_leaf: str | None
    shrinks_ns: dict[str, int]
    clocks: list[TrueClock]
    ranks: list[TrueRank]
    collectives: list[TrueCollective] = []


Ledgers = dict[int, list[StepLedger]]


def make_truth(
    injected: Injected, faults: Sequence[Fault], plan: Plan, ledgers: tuple[Ledgers, Ledgers], clocks: Sequence[Clock]
) -> Truth:
    """Join the ledgers of the job with its faults and without them (each by rank)."""
    scenario = injected.scenario
    actual, clean = ledgers
    faulty, without = _mean(actual), _mean(clean)
    shrinks = {key: _mean_leaf(actual, key) - _mean_leaf(clean, key) for key in _keys(actual) | _keys(clean)}
    shrinks = {key: ns for key, ns in sorted(shrinks.items(), key=lambda item: -item[1]) if ns}
    top = next(iter(shrinks), None) if faults and faulty > without else None
    struck = _struck(injected, plan)
    counted = plan.recorded[1:] or plan.recorded
    stage_of = {int(rank): lane.stage for lane in plan.lanes for rank in lane.ranks}
    return Truth(
        scenario=scenario.name,
        seed=scenario.seed,
        world_size=plan.world,
        faults=[
            TrueFault(
                kind=fault.kind,
                size=KINDS[fault.kind].size if fault.size is None else fault.size,
                leaf=KINDS[fault.kind].leaf,
            )
            for fault in faults
        ],
        culprits=sorted({rank for step, ranks in struck.items() if step in counted for rank in ranks}),
        struck=struck,
        step_time_ns=faulty,
        step_time_without_ns=without,
        saved_ns=faulty - without,
        top_leaf=top,
        shrinks_ns=shrinks,
        clocks=[
            TrueClock(host=host, offset_ns=clock.offset_ns, drift_ppm=clock.drift_ppm)
            for host, clock in enumerate(clocks)
        ],
        ranks=[
            TrueRank(
                rank=rank,
                host=int(plan.hosts[rank]),
                stage=stage_of[rank],
                steps=[_step(step, at == 0) for at, step in enumerate(actual[rank])],
            )
            for rank in sorted(actual)
        ],
    )


def _struck(injected: Injected, plan: Plan) -> dict[int, list[int]]:
    """Ranks that faults of single ranks hit in each recorded step."""
    table = injected.effects.struck
    found = {step: np.flatnonzero(table[:, step - plan.first_step]).tolist() for step in plan.recorded}
    return {step: ranks for step, ranks in found.items() if ranks}


def _step(step: StepLedger, edge: bool) -> TrueStep:
    return TrueStep(
        step=step.step,
        edge=edge,
        start_ns=step.start_ns,
        dur_ns=step.dur_ns,
        productive_ns=step.productive_ns,
        leaves_ns=dict(sorted(step.leaves_ns.items())),
        waits_ns=dict(sorted(step.waits_ns.items())),
    )


def _counted(ledgers: Ledgers) -> list[StepLedger]:
    """Steps that are no edge (all, where there is only one)."""
    return [step for steps in ledgers.values() for step in (steps[1:] or steps)]


def _mean(ledgers: Ledgers) -> int:
    steps = _counted(ledgers)
    return sum(step.dur_ns for step in steps) // max(len(steps), 1)


def _keys(ledgers: Ledgers) -> set[str]:
    return {key for step in _counted(ledgers) for key in step.leaves_ns}


def _mean_leaf(ledgers: Ledgers, key: str) -> int:
    steps = _counted(ledgers)
    return sum(step.leaves_ns.get(key, 0) for step in steps) // max(len(steps), 1)


def collectives(lanes: Sequence[LaneRun], plan: Plan, recorded: range) -> list[TrueCollective]:
    """Collectives of the recorded steps (launched there), group by group; none for a large job."""
    if plan.world > _LISTED_RANKS:
        return []
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    about: dict[tuple[int, int], tuple[str, str, int, int]] = {}
    for lane in lanes:
        for run in lane.runs:
            exchange = run.kernel.exchange
            if exchange is None or run.kernel.step not in recorded:
                continue
            assert run.start is not None
            assert run.end is not None
            assert run.late is not None
            label = exchange.group.label
            if exchange.pair is not None:
                label = np.minimum(np.arange(plan.world), exchange.pair)
            for at, rank in enumerate(lane.lane.ranks.tolist()):
                key = (id(exchange), int(label[rank]))
                found.setdefault(key, []).append((rank, int(run.start[at]), int(run.end[at]), int(run.late[at])))
                about[key] = (exchange.kind, exchange.group.description, run.kernel.step, exchange.number)
    made = [_collective(about[key], sorted(sides)) for key, sides in found.items()]
    return sorted(made, key=lambda one: (min(one.end_ns), one.ranks))


def _collective(about: tuple[str, str, int, int], sides: list[tuple[int, int, int, int]]) -> TrueCollective:
    starts = [start for _, start, _, _ in sides]
    return TrueCollective(
        kind=about[0],
        group=about[1],
        ranks=[rank for rank, *_ in sides],
        step=about[2],
        last_rank=sides[starts.index(max(starts))][0],
        start_ns=starts,
        end_ns=[end for _, _, end, _ in sides],
    )


__all__ = ["BUBBLE", "WAIT", "Truth", "collectives", "make_truth"]
