"""Each rank's own time in each step beside its peers': what it took itself, without waits and exposed communication.

A wait lasts as long as somebody else takes, so the length of a step tells nothing of the rank; what is left without
the waits does. Peers are the ranks of the same pipeline stage, or all where there is no pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from steptime.model import Report, StepTime
from steptime.report import units
from steptime.report.groups import by_host, counted_steps, rank_name, ranks_text
from steptime.report.ledger import PRODUCTIVE

#: A step of which more than this share is missing from the recording is compared with nobody.
_MISSING = 0.02
_NOT_OWN = {"stragglers", "pipeline_bubble", "exposed_comm", "unexplained/capture_skew", "unexplained/events_missing"}
#: Leaves that only ranks with different work can have.
_BETWEEN_STAGES = ("pipeline_bubble/unsplit", "exposed_comm/p2p_transfer")


@dataclass(frozen=True)
class Cell:
    """One step of one rank: own_ns beside the median of its peers; leaf: where it exceeds them most, by excess_ns."""

    own_ns: int
    peers_ns: float
    step_ns: int
    waited_ns: int
    comm_ns: int
    leaf: str
    excess_ns: float
    late: bool

    @property
    def percent(self) -> float:
        """How much longer than its peers it took, in percent of theirs."""
        return (self.own_ns / self.peers_ns - 1) * 100


@dataclass(frozen=True)
class RankRow:
    """One rank on one device; named: whether the report says that it held up others. cells: by number of the step."""

    rank: int
    name: str
    host: str | None
    device: int | None
    stage: int | None
    named: bool
    cells: dict[int, Cell]

    @property
    def usual_percent(self) -> float:
        """The median over its steps of how much longer than its peers it took."""
        return median(cell.percent for cell in self.cells.values()) if self.cells else 0.0

    @property
    def farthest_percent(self) -> float:
        """The largest distance from its peers in any step."""
        return max((abs(cell.percent) for cell in self.cells.values()), default=0.0)


def rank_rows(report: Report) -> list[RankRow]:
    """A row for each rank that has a peer in any counted step, ordered by host, then rank."""
    stages = {} if report.pipeline is None else {r: at for at, of in enumerate(report.pipeline.stages) for r in of}
    ordered = by_host(sorted(report.ranks, key=lambda rank: -1 if rank.device is None else rank.device))
    several = len({rank.rank for rank in ordered}) < len(ordered)
    steps = [{step.step: step for step in counted_steps(rank, report.job) if _is_whole(step)} for rank in ordered]
    peers: dict[tuple[int | None, int], list[StepTime]] = defaultdict(list)
    for rank, own in zip(ordered, steps, strict=True):
        for number, step in own.items():
            peers[stages.get(rank.rank), number].append(step)
    usual = {key: _medians(group) for key, group in peers.items() if len(group) > 1}
    late = _late_steps(report)
    rows = []
    for rank, own in zip(ordered, steps, strict=True):
        stage = stages.get(rank.rank)
        cells = {
            number: _cell(step, usual[stage, number], late=number in late.get(rank.rank, ()))
            for number, step in own.items()
            if usual.get((stage, number), {}).get("", 0) > 0
        }
        if cells:
            name = rank_name(rank, several_devices=several)
            rows.append(RankRow(rank.rank, name, rank.host, rank.device, stage, rank.rank in late, cells))
    return rows


def named_ranks(report: Report) -> frozenset[int]:
    """The ranks that the report says held up others."""
    return frozenset(_late_steps(report))


def peers(report: Report) -> str:
    """Who a rank is compared with, in a sentence or two."""
    if report.pipeline is None:
        piped = any(step.leaves_ns.get(key) for rank in report.ranks for step in rank.steps for key in _BETWEEN_STAGES)
        unknown = " No pipeline was recognised; if there is one, a stage with more work looks slow."
        return "Peers: all ranks." + (unknown if piped else "")
    left_out = alone(report)
    text = "Peers: the ranks of the same pipeline stage."
    if left_out:
        text += f" Left out, each alone in its stage: {ranks_text(left_out)}."
    return text


def why_not(report: Report) -> str:
    """Why no rank can be compared, for where there is no picture."""
    if alone(report):
        return (
            "Each pipeline stage has one rank, so no two do the same work: the picture of the pipeline compares them."
        )
    return "No step was recorded whole on two ranks, so there is nothing to compare."


def alone(report: Report) -> list[int]:
    """The ranks that are alone in their pipeline stage, so that nobody does the same work."""
    stages = [] if report.pipeline is None else report.pipeline.stages
    recorded = {rank.rank for rank in report.ranks}
    present = [[rank for rank in stage if rank in recorded] for stage in stages]
    return sorted(stage[0] for stage in present if len(stage) == 1)


def _late_steps(report: Report) -> dict[int, set[int]]:
    late: dict[int, set[int]] = defaultdict(set)
    for one in report.stragglers:
        for rank in {*one.ranks, *([] if one.rank is None else [one.rank])}:
            late[rank].update(one.steps)
    return dict(late)


def _is_whole(step: StepTime) -> bool:
    return step.leaves_ns.get("unexplained/events_missing", 0) <= _MISSING * step.dur_ns


def _own(step: StepTime) -> dict[str, int]:
    """The parts of a step that are the rank's own, by leaf."""
    parts = {PRODUCTIVE: step.productive_ns} if step.productive_ns else {}
    own = {key: ns for key, ns in step.leaves_ns.items() if key not in _NOT_OWN and key.split("/")[0] not in _NOT_OWN}
    return parts | own


def _medians(steps: Sequence[StepTime]) -> dict[str, float]:
    """The median over steps of each own part, and of their sum under the empty key."""
    owned = [_own(step) for step in steps]
    keys = {key for parts in owned for key in parts}
    found: dict[str, float] = {key: median(parts.get(key, 0) for parts in owned) for key in keys}
    return found | {"": median(sum(parts.values()) for parts in owned)}


def _cell(step: StepTime, usual: Mapping[str, float], *, late: bool) -> Cell:
    own = _own(step)
    excess = {key: ns - usual.get(key, 0) for key, ns in own.items()}
    leaf = max(excess, key=lambda key: (excess[key], key), default="")
    return Cell(
        own_ns=sum(own.values()),
        peers_ns=usual[""],
        step_ns=step.dur_ns,
        waited_ns=_sum_of(step, ("stragglers", "pipeline_bubble")),
        comm_ns=_sum_of(step, ("exposed_comm",)),
        leaf=leaf,
        excess_ns=excess.get(leaf, 0),
        late=late,
    )


def _sum_of(step: StepTime, slices: Iterable[str]) -> int:
    return sum(ns for key, ns in step.leaves_ns.items() if key.split("/")[0] in slices)


def worth_a_row(rows: Sequence[RankRow], most: int) -> tuple[list[RankRow], str]:
    """At most `most` rows in the order given, and a sentence about the others.

    Where there are more, half as many are kept: in equal parts the ranks that the report names and those farthest from
    their peers, and others evenly spaced.
    """
    if len(rows) <= most:
        return list(rows), ""
    worst = max(most // 4, 1)
    ranked = sorted(range(len(rows)), key=lambda at: (not rows[at].named, -rows[at].farthest_percent, at))
    rest = sorted(ranked[worst:])
    spread = [rest[at * len(rest) // worst] for at in range(worst)]
    kept = sorted({*ranked[:worst], *spread})
    chosen = f"the {units.count(worst)} farthest from their peers, and {units.count(worst)} evenly spaced"
    return [rows[at] for at in kept], f"{units.count(len(kept))} of {units.plural(len(rows), 'rank')} shown: {chosen}."


def in_columns(rows: Sequence[RankRow], most: int) -> tuple[list[list[int]], str]:
    """The steps of `rows` in at most `most` columns of consecutive steps, and a sentence where they hold several."""
    steps = sorted({step for row in rows for step in row.cells})
    each = -(-len(steps) // max(most, 1)) or 1
    columns = [steps[at : at + each] for at in range(0, len(steps), each)]
    note = f"A column holds {units.plural(each, 'step')}: the one farthest from the peers is shown." if each > 1 else ""
    return columns, note


def farthest(row: RankRow, steps: Iterable[int]) -> tuple[int, Cell] | None:
    """Of the given steps the one in which the rank was farthest from its peers; None if it has none of them."""
    present = [step for step in steps if step in row.cells]
    return max(((step, row.cells[step]) for step in present), key=lambda one: abs(one[1].percent), default=None)
