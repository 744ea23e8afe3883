"""A simulator of training jobs that knows the truth: Kineto traces of each rank, and what really cost the time.

Its own room: it shares no code with the analyser, only the tables of GPUs and models as data. `simulate` is all that
others call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from steptime.errors import UsageError
from steptime.simulate.catalog import gpu as find_gpu
from steptime.simulate.effects import Hardware
from steptime.simulate.engine import LaneRun, run
from steptime.simulate.faults import Injected, inject
from steptime.simulate.job import make_plan
from steptime.simulate.kineto import Writer
from steptime.simulate.ledger import LaneLedger
from steptime.simulate.noise import Noise
from steptime.simulate.plan import Plan
from steptime.simulate.scenario import Scenario, load_scenario
from steptime.simulate.truth import Ledgers, Truth, collectives, make_truth

__all__ = ["Scenario", "Truth", "load_scenario", "simulate"]

TRUTH_FILE = "truth.json"


def simulate(
    scenario: Scenario, out: Path | str, seed: int | None = None, written: Callable[[Path], None] | None = None
) -> Truth:
    """Simulate a job, with and without its faults, and write ``rankN.json.gz`` and ``truth.json`` into `out`.

    Args:
        scenario: the job, see `scenario.Scenario` and `load_scenario`.
        out: a folder, made if absent.
        seed: in place of the scenario's own. The same scenario and seed give the same bytes.
        written: called with each file once it is there.

    Raises:
        UsageError: the scenario describes no possible job, or `out` can't be written.
    """
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _simulate(scenario, folder, written or (lambda _: None))
    except OSError as error:
        raise UsageError(f"{out}: can't be written ({error.strerror}): choose another folder") from error


def _simulate(scenario: Scenario, folder: Path, written: Callable[[Path], None]) -> Truth:
    faulty = inject(scenario, scenario.fault)
    plan, lanes = _run(faulty)
    actual = _ledgers(faulty, lanes)
    writer = Writer(faulty.scenario, faulty.effects, find_gpu(faulty.scenario.cluster.gpu), plan)
    for lane in lanes:
        writer.write(lane, folder, written)
    recording = faulty.scenario.recording
    listed = collectives(lanes, plan, range(recording.warmup, recording.warmup + recording.steps))
    del lanes
    clean = actual
    if scenario.fault:
        without = inject(scenario, [])
        clean = _ledgers(without, _run(without)[1])
    truth = make_truth(faulty, scenario.fault, plan, (actual, clean), writer.clocks)
    truth = msgspec.structs.replace(truth, collectives=listed)
    path = folder / TRUTH_FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=1) + b"\n")
    written(path)
    return truth


def _run(injected: Injected) -> tuple[Plan, list[LaneRun]]:
    scenario = injected.scenario
    gpu = find_gpu(scenario.cluster.gpu)
    plan = make_plan(scenario, injected.effects, gpu)
    hardware = Hardware(scenario.cluster, injected.effects, gpu.link_bytes_per_s)
    return plan, run(plan, scenario.host, scenario.jitter, Noise(scenario.seed), hardware)


def _ledgers(injected: Injected, lanes: list[LaneRun]) -> Ledgers:
    gpu = find_gpu(injected.scenario.cluster.gpu)
    found: Ledgers = {}
    for lane in lanes:
        ledger = LaneLedger(lane, injected.scenario, gpu)
        found |= {rank: ledger.ledger(at) for at, rank in enumerate(lane.lane.ranks.tolist())}
    return found
