"""What each section of the HTML report says, as plain data: every text printable and of bounded length.

Nothing here is markup: the template escapes all of it. A section that has nothing to show says why instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steptime.model import Evidence, Finding, Job, Report
from steptime.model.findings import REPLAYED, REPLAYED_BOUND
from steptime.report import groups, units, words
from steptime.report.colours import leaf_colour, part_colour
from steptime.report.ledger import PRODUCTIVE, Row, ledger
from steptime.report.names import brief
from steptime.report.page_tables import NAME_WIDTH, causes_table
from steptime.report.perfetto import microseconds
from steptime.report.plain_table import Table
from steptime.taxonomy import LEAVES, SLICES

#: The four signatures of a timeline, in the order in which the walkthrough asks for them.
SIGNATURES = {
    "host": ("Gaps between kernels", "The device waits for the host: the data loader, launches, synchronisation."),
    "exposed_comm": ("Communication that nothing hides", "Collectives that run while nothing computes."),
    "pipeline_bubble": ("Bubbles", "Pipeline stages that wait for other stages."),
    "stragglers": ("One rank later than the others", "Waits in collectives for a late rank."),
    "unexplained": ("What nothing explains", "Idle time for which these traces prove no cause."),
}
_TEXT_WIDTH = 700
_EVIDENCE = 6
_CAUSES_OF_PART = 6
_DEFINED = {PRODUCTIVE, *(part.id for part in SLICES), *(leaf.key for leaf in LEAVES)}


@dataclass(frozen=True)
class LedgerRow:
    """A row of the fall as the page shows it."""

    title: str
    kind: str
    cells: list[str]
    colour: str
    anchor: str | None
    note: str


@dataclass(frozen=True)
class Ledger:
    """Rows of the fall under the heads of their columns, with the last row that sums them up."""

    head: list[str]
    rows: list[LedgerRow]
    total: list[str]


@dataclass(frozen=True)
class Part:
    """One part of the step: how large it is, why that is not known, its leaves and its causes."""

    id: str
    title: str
    meaning: str
    said: str
    why: str
    colour: str
    anchor: str | None
    leaves: Ledger | None
    causes: Table | None


@dataclass(frozen=True)
class Found:
    """A finding as the page shows it."""

    title: str
    id: str
    part: str
    colour: str
    chips: list[tuple[str, str]]
    evidence: list[tuple[str, str]]
    more: int
    advice: str


def anchor(key: str) -> str | None:
    """Where a leaf or a slice is defined on the page; None where this version doesn't know it."""
    return "def-" + key.replace("/", "-") if key in _DEFINED else None


def whole_ledger(report: Report) -> Ledger | None:
    """The fall row by row, each slice followed by its leaves; None where no step was measured."""
    if report.job.rank_steps <= 0 or report.job.total_ns <= 0:
        return None
    return _ledger(report, ledger(report.job), indented=True)


def _ledger(report: Report, rows: Sequence[Row], *, indented: bool) -> Ledger:
    """The given rows, with a column for gains and one for MFU only where any of them has it."""
    job = report.job
    mean_ns = words.per_step_ns(job.total_ns, report)
    scale = units.scale_for(mean_ns)
    removed = _mfu_if_removed(job)
    gains = any(row.recoverable_ns is not None for row in rows)
    removals = any(removed.get(row.key) is not None for row in rows)

    def mean(ns: int | None, unknown: str) -> str:
        return unknown if ns is None else units.scaled(words.per_step_ns(ns, report), scale)

    def shown(row: Row) -> LedgerRow:
        cells = [row.points, mean(row.ns, "?")]
        cells += [mean(row.recoverable_ns, "")] * gains
        mfu = removed.get(row.key)
        cells += ["" if mfu is None else units.share(mfu)] * removals
        note = f"can't tell: {row.why}" if row.ns is None else row.detail or ""
        colour = leaf_colour(row.key) if row.is_leaf else part_colour(row.key)
        kind = ("leaf" if row.is_leaf else "slice") if indented else ""
        return LedgerRow(row.title, kind, cells, colour, anchor(row.key), note)

    what = "window" if words.is_one_window(report) else "step"
    head = ["points", f"{scale.unit}/{what}", *["can gain"] * gains, *["MFU if removed"] * removals]
    total = ["100.0", units.scaled(mean_ns, scale), *[""] * (gains + removals)]
    return Ledger(head, [shown(row) for row in rows], total if indented else [])


def _mfu_if_removed(job: Job) -> dict[str, float | None]:
    found = {part.id: part.mfu_if_removed for part in job.slices}
    return found | {f"{part.id}/{leaf.id}": leaf.mfu_if_removed for part in job.slices for leaf in part.leaves}


def facts(report: Report) -> list[tuple[str, str, str]]:
    """The figures at the head of the page: value, what it is, and where that is defined."""
    job = report.job
    if job.rank_steps <= 0:
        return []
    shown = [("can't tell" if job.mfu is None else units.share(job.mfu), "MFU", "def-mfu")]
    if job.hfu is not None:
        shown.append((units.share(job.hfu), "HFU, recomputed FLOPs included", "def-hfu"))
    one = words.is_one_window(report)
    step = words.per_step_ns(job.total_ns, report) if one else job.step_time_ns.median
    shown.append((units.time(step), "the whole recording" if one else "median step", "def-step"))
    ranks = units.count(job.ranks_analyzed)
    world = f" of {units.count(job.world_size)}" if job.world_size not in (None, job.ranks_analyzed) else ""
    shown.append((ranks + world, "rank" if job.ranks_analyzed == 1 and not world else "ranks", "def-points"))
    if not one:
        shown.append(
            (units.count(len(job.steps)), "step counted" if len(job.steps) == 1 else "steps counted", "def-step")
        )
    return shown


def number(report: Report) -> list[tuple[str, str]]:
    """What MFU stands on: peak, FLOPs and conventions, or what is missing."""
    job = report.job
    shown = [(brief(f"peak, {dtype}", 60), units.rate(peak)) for dtype, peak in (job.peak_flops or {}).items()]
    if job.reference_dtype:
        shown.append(("reference dtype", brief(job.reference_dtype)))
    if job.flops_source:
        shown.append(("FLOPs from", brief(job.flops_source, 200)))
    if job.flops_coverage is not None:
        shown.append(("share of matrix and attention time with known FLOPs", units.share(job.flops_coverage)))
    if job.model_flops_per_step is not None:
        shown.append(("model FLOPs of one rank and step", f"{job.model_flops_per_step:.4g}"))
    if job.above_peak_ns:
        above = units.time(words.per_step_ns(job.above_peak_ns, report))
        shown.append(("faster than the peak allows", f"{above}{words.a_step(report)}"))
    shown += [(f"MFU as {brief(name)} counts", units.share(value)) for name, value in (job.mfu_by or {}).items()]
    return shown


def part(report: Report, part_id: str) -> Part:
    """One slice with its leaves and costliest causes."""
    title, meaning = SIGNATURES.get(part_id, (part_id, ""))
    if not meaning:
        title, meaning = next(((one.title, one.meaning) for one in SLICES if one.id == part_id), (title, ""))
    usable = report.job.rank_steps > 0 and report.job.total_ns > 0
    rows = [row for row in ledger(report.job) if row.key.partition("/")[0] == part_id] if usable else []
    head = next((row for row in rows if not row.is_leaf), None)
    why = ""
    if head is None:
        said, why = "can't tell", "this report has no such part"
    elif head.ns is None:
        said, why = "can't tell", head.why or ""
    elif head.ns == 0:
        said = "none"
    else:
        said = f"{head.points} points, {units.time(words.per_step_ns(head.ns, report))}{words.a_step(report)}"
    leaves = [row for row in rows if row.is_leaf]
    split = _ledger(report, leaves, indented=False) if leaves else None
    causes = causes_table(report, part_id, _CAUSES_OF_PART)
    where = anchor(part_id)
    return Part(part_id, title, meaning, said, why, part_colour(part_id), where, split, causes)


def findings(report: Report, most: int) -> list[Found]:
    """Findings in the report's order."""
    titles = {part.id: part.title for part in SLICES}
    return [
        Found(
            title=brief(one.title, 300),
            id=brief(one.id),
            part=titles.get(one.slice) or brief(one.slice),
            colour=part_colour(one.slice),
            chips=_chips(one, report),
            evidence=[(brief(piece.text, 400), _place(piece)) for piece in one.evidence[:_EVIDENCE]],
            more=max(len(one.evidence) - _EVIDENCE, 0),
            advice=brief(one.advice, _TEXT_WIDTH),
        )
        for one in report.findings[:most]
    ]


def _chips(one: Finding, report: Report) -> list[tuple[str, str]]:
    cost = "can't tell"
    if one.cost_ns is not None:
        cost = f"{units.time(words.per_step_ns(one.cost_ns, report))}{words.a_step(report)}"
    if one.share is not None:
        cost += f", {units.points(one.share)} points"
    chips = [("costs", cost)]
    replayed = one.gain in (REPLAYED, REPLAYED_BOUND)
    if one.mfu_if_fixed is not None:
        naive = one.naive_mfu_if_fixed if replayed else None
        beside = f"; {units.share(naive)} by subtraction" if naive is not None else ""
        chips.append(("MFU if fixed", f"{units.share(one.mfu_if_fixed)} ({brief(one.gain)}{beside})"))
    if one.step_time_if_fixed_ns is not None:
        left = one.naive_step_time_if_fixed_ns if replayed else None
        beside = f"; {units.time(left)} by subtraction" if left is not None else ""
        chips.append(("step if fixed", f"{units.time(one.step_time_if_fixed_ns)} ({brief(one.gain)}{beside})"))
    return [*chips, ("confidence", brief(one.confidence))]


def _place(piece: Evidence) -> str:
    """Where to look in a trace viewer."""
    said = [f"rank {piece.rank}"] if piece.rank is not None else []
    said += [f"step {piece.step}"] if piece.step is not None else []
    said += [f"at {microseconds(piece.start_ns)} µs"] if piece.start_ns is not None else []
    said += [f"for {units.time(piece.dur_ns)}"] if piece.dur_ns is not None else []
    said += [brief(piece.event, NAME_WIDTH)] if piece.event is not None else []
    return ", ".join(said)


def checklist(report: Report, most: int) -> list[tuple[str, str, str, str]]:
    """Status, its class on the page, the check, and why."""
    classes = {"pass": "pass", "fail": "fail"}
    return [
        (brief(one.status), classes.get(one.status, "unsure"), brief(one.item, 200), brief(one.why, _TEXT_WIDTH))
        for one in report.checklist[:most]
    ]


def legend(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Leaves and their colours, each once, in the order of the report."""
    order = {leaf.key: place for place, leaf in enumerate(LEAVES)}
    present = sorted(set(keys), key=lambda key: (order.get(key, len(order)), key))
    return [(brief(key), leaf_colour(key)) for key in present]


def other_warnings(report: Report, most: int) -> tuple[list[str], int]:
    """Warnings that stand nowhere else on the page, and how many are left out."""
    everything = groups.warnings(report, words.mfu_warning(report))
    return everything[:most], max(len(everything) - most, 0)
