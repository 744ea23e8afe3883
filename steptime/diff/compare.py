"""Two reports in, the change between them out: exact, and the same with the sign turned if they change places."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from steptime.diff.config import config_changes
from steptime.diff.items import Scale, items, listing
from steptime.diff.ops import op_changes, unlike
from steptime.diff.ranks import by_rank, one_rank
from steptime.diff.reasons import reasons, straggler_changes
from steptime.errors import ReportError
from steptime.model import Report
from steptime.model.diff import Diff, Part, Side

PRODUCTIVE = "productive"


def diff_reports(a: Report, b: Report, names: tuple[str, str] | None = None) -> Diff:
    """What changed from `a` to `b`. names: what they are called; None takes their inputs' paths.

    Raises:
        ReportError: no step was measured in one of them.
    """
    names = names or (side_name(a), side_name(b))
    for report, name in zip((a, b), names, strict=True):
        if report.job.rank_steps <= 0:
            raise ReportError(f"{name}: no step was measured, so there is nothing to compare: record whole steps")
    common = math.lcm(a.job.rank_steps, b.job.rank_steps)
    scale = Scale(common // a.job.rank_steps, common // b.job.rank_steps, a.job.rank_steps, b.job.rank_steps)
    whole = scale.part("step", "step", (a.job.total_ns, b.job.total_ns), _parts(a, b, scale))
    stragglers = straggler_changes(a, b)
    return Diff(
        before=_side(a, names[0]),
        after=_side(b, names[1]),
        units_per_ns=common,
        whole=whole,
        reasons=reasons(whole, stragglers, common),
        config=config_changes(a, b),
        stragglers=stragglers,
        ops=op_changes(a, b, scale),
        notes=_notes(a, b, whole),
    )


def side_name(report: Report) -> str:
    """What a report is of: its first input, and how many more."""
    if not report.inputs:
        return "a report without inputs"
    more = len(report.inputs) - 1
    return report.inputs[0].path + (f" and {more} more" if more else "")


def _side(report: Report, name: str) -> Side:
    job = report.job
    return Side(
        name=name,
        total_ns=job.total_ns,
        rank_steps=job.rank_steps,
        ranks=job.ranks_analyzed,
        steps=len(job.steps),
        median_step_ns=job.step_time_ns.median,
        mfu=job.mfu,
        device=job.device,
        one_window="whole recording" in job.step_source.lower(),
    )


def _parts(a: Report, b: Report, scale: Scale) -> Iterator[Part]:
    """Useful work and each slice that one of the reports has."""
    if a.job.productive_ns or b.job.productive_ns:
        yield scale.part(PRODUCTIVE, PRODUCTIVE, (a.job.productive_ns, b.job.productive_ns))
    slices_a, slices_b = _slices(a), _slices(b)
    leaves_a, leaves_b = _leaves(a), _leaves(b)
    ranks = by_rank(a, scale.a), by_rank(b, scale.b)
    for slice_id in dict.fromkeys((*slices_a, *slices_b)):
        totals = slices_a.get(slice_id, 0), slices_b.get(slice_id, 0)
        mine = {leaf: ns for leaf, ns in leaves_a.items() if leaf.partition("/")[0] == slice_id}
        theirs = {leaf: ns for leaf, ns in leaves_b.items() if leaf.partition("/")[0] == slice_id}
        leaves = []
        for leaf in dict.fromkeys((*mine, *theirs)):
            ns = mine.get(leaf, _missing(totals[0])), theirs.get(leaf, _missing(totals[1]))
            inside = items(scale, listing(a, leaf, ns[0]), listing(b, leaf, ns[1]), ns)
            part = scale.part(leaf, "leaf", ns, ())
            rank = one_rank(ranks, leaf, part)
            leaves.append(replace(part, parts=inside, rank=rank, why=_why((a, b), leaf, ns)))
        rest = _rest(totals, mine, theirs)
        if leaves and any(rest):
            leaves.append(scale.part(f"{slice_id}/other", "other", rest))
        yield replace(scale.part(slice_id, "slice", totals, leaves), why=_why((a, b), slice_id, totals))


def _missing(slice_ns: int | None) -> int | None:
    """A leaf that a report does not list: nothing of it was seen, unless the slice can't be told at all."""
    return None if slice_ns is None else 0


def _slices(report: Report) -> dict[str, int | None]:
    return _summed((part.id, part.ns) for part in report.job.slices)


def _leaves(report: Report) -> dict[str, int | None]:
    return _summed((f"{part.id}/{leaf.id}", leaf.ns) for part in report.job.slices for leaf in part.leaves)


def _summed(rows: Iterable[tuple[str, int | None]]) -> dict[str, int | None]:
    """Totals by key; None where none of its rows is known."""
    found: dict[str, int | None] = {}
    for key, ns in rows:
        known = found.get(key)
        found[key] = ns if known is None else known + (ns or 0)
    return found


def _rest(
    totals: tuple[int | None, int | None], mine: dict[str, int | None], theirs: dict[str, int | None]
) -> tuple[int, int]:
    a, b = (
        (total or 0) - sum(ns or 0 for ns in leaves.values())
        for total, leaves in zip(totals, (mine, theirs), strict=True)
    )
    return a, b


def _why(reports: tuple[Report, Report], key: str, ns: tuple[int | None, int | None]) -> str | None:
    """Why a part can't be told in one of the reports."""
    slice_id = key.partition("/")[0]
    for report, known in zip(reports, ns, strict=True):
        if known is not None:
            continue
        for part in report.job.slices:
            for leaf in part.leaves if part.id == slice_id else ():
                if leaf.ns is None and leaf.detail.get("why"):
                    return str(leaf.detail["why"])
        return "not measurable from these traces"
    return None


def _notes(a: Report, b: Report, whole: Part) -> list[str]:
    """What makes the split harder to read than it looks."""
    notes = []
    for part in whole.parts:
        if part.change_units and (part.before_units is None or part.after_units is None):
            side = "before" if part.before_units is None else "after"
            notes.append(
                f"{part.key} can't be told {side} ({part.why}): its time stands in other parts there, "
                "so that a change of it here is partly a change of name"
            )
    notes += [why] if (why := unlike(a, b)) is not None else []
    if a.job.step_source != b.job.step_source:
        notes.append("steps are told in different ways, so that they may not begin and end at the same place")
    return notes
