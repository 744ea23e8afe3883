"""One job of the matrix: simulated, analysed, and compared with the simulator's truth."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import steptime
from steptime.model import Report
from steptime.simulate import Truth, simulate
from tests.matrix.naming import NAMES, blames, place_of
from tests.matrix.scenarios import HURT_RECORDINGS, INJECTIONS, Cell

#: Issue 4: each leaf within this share of the step time of its truth.
LEAF_TOLERANCE = 0.02
#: "Can't tell" is wrong from this many error bars on.
ERROR_BARS = 3
#: A fault of a pair that saves less than this share of the step when it alone is mended is masked by the other one.
MASKED = 0.05

#: The truth has every wait between stages in the bubble; a slow rank's part of it is one for that rank. In a ring of
#: messages (context parallel) waiting stays with the transfer (DESIGN 2.3: undecided), and the simulator calls it so.
_STAGES = ("pipeline_bubble/", "stragglers/")
_RING_UNSPLIT = ("stragglers/", "exposed_comm/p2p_transfer")
#: Where a partner's record is lost, waiting can't be told from transfer.
_PARTNER_LOST = ("stragglers/", "exposed_comm/")
RIGHT, WRONG, CANNOT_TELL, NOT_ASKED = "right", "wrong", "can't tell", "-"


@dataclass(frozen=True)
class Deviation:
    """The leaf furthest from its truth: off as a share of the rank's true step, more or (negative) less."""

    off: float
    leaf: str
    rank: int
    step: int


@dataclass(frozen=True)
class Judged:
    """What came out of one job. saved: what mending the faults saves, as a share of the step; culprit: of the
    verdict; innocent: ranks that were called stragglers though no fault struck them alone.

    places: kind -> its place among the causes named; first: ids of the first findings.
    """

    cell: Cell
    seed: int
    saved: float
    worst: Deviation
    mean: Deviation
    places: dict[str, int | None]
    culprit: str
    innocent: list[int]
    verdicts: list[str]
    first: list[str]


def judge(cell: Cell, seed: int) -> Judged:
    """Simulate and analyse a job."""
    with tempfile.TemporaryDirectory() as folder:
        truth = simulate(cell.scenario(), folder, seed)
        report = steptime.analyze([Path(folder)])
    struck = {
        INJECTIONS[name].fault.kind: _struck(name, truth) for name in cell.injections if name not in HURT_RECORDINGS
    }
    return Judged(
        cell=cell,
        seed=seed,
        saved=truth.saved_ns / truth.step_time_ns,
        worst=_deviation(cell, truth, report),
        mean=_mean_deviation(cell, truth, report),
        places=place_of(report, struck),
        culprit=_culprit(cell, truth, report),
        innocent=sorted(_blamed(report) - _guilty(cell, truth)),
        verdicts=[f"{one.kind} {','.join(map(str, one.ranks))}: {one.cause}" for one in report.stragglers],
        first=[f"{one.id} {100 * (one.share or 0):.0f}" for one in report.findings[:4]],
    )


def _struck(name: str, truth: Truth) -> list[int]:
    fault = INJECTIONS[name].fault
    return fault.ranks or ([0] if fault.kind == "checkpoint" else truth.culprits)


def masked(cell: Cell, seed: int) -> bool:
    """Whether mending one fault of a pair alone saves next to nothing, because the other one hides it."""
    with tempfile.TemporaryDirectory() as folder:
        both = simulate(cell.scenario(), folder, seed).step_time_ns
        left = [simulate(cell.scenario(without=(name,)), folder, seed).step_time_ns for name in cell.injections]
    return min(both - one for one in left) < MASKED * both


def _comparable(leaves: dict[str, int], together: tuple[str, ...]) -> dict[str, int]:
    """Leaves by the name under which truth and report are compared; those that begin as in `together` are one.

    A collection that leaves no event is Python time (DESIGN 1.4, rule 4).
    """
    found: dict[str, int] = {}
    for key, ns in leaves.items():
        name = "host/python" if key == "host/gc" else key
        name = "waits and messages" if together and key.startswith(together) else name
        found[name] = found.get(name, 0) + ns
    return found


def _together(cell: Cell) -> tuple[str, ...]:
    layout = cell.scenario().layout
    if "missing_events" in cell.injections:
        return (*_PARTNER_LOST, *(_STAGES if layout.pp > 1 else ()))
    return _STAGES if layout.pp > 1 else ()


def _pairs(cell: Cell, truth: Truth, report: Report) -> list[tuple[int, int, int, dict[str, int]]]:
    """(rank, step, true length, report less truth by leaf) of every counted step."""
    together = _together(cell)
    known = {(rank.rank, step.step): step for rank in truth.ranks for step in rank.steps if not step.edge}
    result = []
    for rank in report.ranks:
        for step in rank.steps:
            true = known.get((rank.rank, step.step))
            if true is None or step.edge or step.step not in report.job.steps:
                continue
            mine = _comparable(step.leaves_ns | {"productive": step.productive_ns}, together)
            theirs = _comparable(true.leaves_ns | {"productive": true.productive_ns}, together)
            off = {key: mine.get(key, 0) - theirs.get(key, 0) for key in mine.keys() | theirs.keys()}
            if "missing_events" in cell.injections and rank.rank in INJECTIONS["missing_events"].fault.ranks:
                # What was lost can't be seen; it may only not be given to another cause.
                off = {key: max(ns, 0) for key, ns in off.items() if not key.startswith("unexplained/")}
            result.append((rank.rank, step.step, true.dur_ns, off))
    return result


def _deviation(cell: Cell, truth: Truth, report: Report) -> Deviation:
    each = [
        Deviation(ns / dur, key, rank, step)
        for rank, step, dur, off in _pairs(cell, truth, report)
        for key, ns in off.items()
    ]
    return max(each, key=lambda one: abs(one.off), default=Deviation(1.0, "no step in common", -1, -1))


def _mean_deviation(cell: Cell, truth: Truth, report: Report) -> Deviation:
    """The same for the job's means, which the report shows first."""
    sums: dict[str, int] = {}
    total = 0
    for _, _, dur, off in _pairs(cell, truth, report):
        total += dur
        for key, ns in off.items():
            sums[key] = sums.get(key, 0) + ns
    each = [Deviation(ns / max(total, 1), key, -1, -1) for key, ns in sums.items()]
    return max(each, key=lambda one: abs(one.off), default=Deviation(1.0, "no step in common", -1, -1))


def _guilty(cell: Cell, truth: Truth) -> set[int]:
    return {rank for name in cell.injections for rank in _struck(name, truth)} if truth.culprits else set()


def _blamed(report: Report) -> set[int]:
    return {rank for one in report.stragglers if one.kind == "straggler" for rank in one.ranks}


def _culprit(cell: Cell, truth: Truth, report: Report) -> str:
    """Whether the ranks that held up the others were held responsible for the right reason, and nobody else."""
    guilty = _guilty(cell, truth)
    asked = [name for name in cell.injections if _has_culprit(name)]
    if not asked:
        return NOT_ASKED
    if _blamed(report) - guilty:
        return WRONG
    right = [
        any(
            blames(one, NAMES[INJECTIONS[name].fault.kind], _struck(name, truth)) and set(one.ranks) <= guilty
            for one in report.stragglers
        )
        for name in asked
    ]
    if all(right):
        return RIGHT
    error_ns = report.alignment.error_ns if report.alignment is not None else 0
    return WRONG if truth.saved_ns > ERROR_BARS * error_ns else CANNOT_TELL


def _has_culprit(name: str) -> bool:
    """Whether a fault makes single ranks late; a slow link makes its whole ring slow."""
    one = INJECTIONS[name]
    single = one.one_rank or one.fault.kind in ("gc_pause", "checkpoint")
    return single and one.fault.kind != "slow_link" and name not in HURT_RECORDINGS
