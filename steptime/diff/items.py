"""What is inside a leaf, before and after: kernels, groups of collectives, causes, and the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from steptime.model import Report
from steptime.model.diff import APPEARED, BOTH, VANISHED, Part

#: Relative changes of the number of calls, and of the time of one, that are named; rounding and noise are below.
CALLS_CHANGED, DURATION_CHANGED = 0.005, 0.02
#: Change of the share of running time under other work that is named.
OVERLAP_CHANGED = 0.02
#: What is listed on one side only is told apart from what the other side's list left out when it is this many times the
#: most that can have been left out: its change is then wrong by a tenth at most.
_CLEARLY_MORE = 10
_BY_KERNEL, _BY_GROUP = ("kernels", "recompute"), "exposed_comm"


@dataclass(frozen=True)
class Scale:
    """How many units a total of each report is: ``1 / (rank-steps)`` of a nanosecond, times the common denominator."""

    a: int
    b: int
    a_rank_steps: int
    b_rank_steps: int

    def part(self, key: str, what: str, totals: tuple[int | None, int | None], parts: Iterable[Part] = ()) -> Part:
        """A part with the given totals of both reports, ns."""
        before, after = (None if ns is None else ns * scale for ns, scale in zip(totals, (self.a, self.b), strict=True))
        change = (after or 0) - (before or 0)
        ordered = by_size(parts)
        return Part(key=key, what=what, before_units=before, after_units=after, change_units=change, parts=ordered)


def by_size(parts: Iterable[Part]) -> list[Part]:
    """Largest change first."""
    return sorted(parts, key=lambda one: (-abs(one.change_units), one.key))


@dataclass
class Listed:
    """What a report says of one name in a leaf, over the counted steps. hidden_ns: how much of it ran under others."""

    ns: int = 0
    count: int = 0
    dur_ns: int | None = None
    hidden_ns: int | None = None


@dataclass(frozen=True)
class Listing:
    """All that a report lists in one leaf. left_out_ns: the most that one name may have that is not listed."""

    what: str
    rows: dict[str, Listed]
    left_out_ns: int
    elsewhere: frozenset[str] = frozenset()


def listing(report: Report, leaf: str, leaf_ns: int | None) -> Listing:
    """What the report lists in a leaf: kernels by name, communication by group, everything else by cause."""
    slice_id, _, leaf_id = leaf.partition("/")
    if slice_id in _BY_KERNEL and report.kernels:
        return _kernels(report, leaf, leaf_ns)
    if slice_id == _BY_GROUP and report.collectives:
        return _groups(report, leaf_id, leaf_ns)
    rows: dict[str, Listed] = {}
    for cause in report.causes:
        if cause.leaf == leaf:
            row = rows.setdefault(cause.what, Listed())
            row.ns += cause.ns
            row.count += cause.count
    least = min((cause.ns for cause in report.causes), default=0)
    return Listing("kernel" if slice_id in _BY_KERNEL else "cause", rows, _left_out(rows, leaf_ns, least))


def _kernels(report: Report, leaf: str, leaf_ns: int | None) -> Listing:
    rows: dict[str, Listed] = {}
    # Useful work is taken out of what a kernel owns, so that the rest of its time is not only under other work.
    whole = report.job.productive_ns == 0
    for kernel in report.kernels:
        if kernel.leaf == leaf:
            row = rows.setdefault(kernel.name, Listed(dur_ns=0, hidden_ns=0 if whole else None))
            row.ns += kernel.owned_ns
            row.count += kernel.count
            row.dur_ns = (row.dur_ns or 0) + kernel.dur_ns
            if whole:
                row.hidden_ns = (row.hidden_ns or 0) + kernel.dur_ns - kernel.owned_ns
    least = min(kernel.owned_ns for kernel in report.kernels)
    elsewhere = frozenset(kernel.name for kernel in report.kernels)
    return Listing("kernel", rows, _left_out(rows, leaf_ns, least), elsewhere)


def _groups(report: Report, kind: str, leaf_ns: int | None) -> Listing:
    rows: dict[str, Listed] = {}
    for one in report.collectives:
        if one.kind == kind:
            row = rows.setdefault(f"{kind} ({one.group})" if one.group else kind, Listed(dur_ns=0, hidden_ns=0))
            row.ns += one.exposed_ns
            row.count += one.count
            row.dur_ns = (row.dur_ns or 0) + one.dur_ns
            row.hidden_ns = (row.hidden_ns or 0) + one.dur_ns - one.exposed_ns - (one.wait_ns or 0)
    return Listing("collective", rows, _left_out(rows, leaf_ns, leaf_ns or 0))


def _left_out(rows: dict[str, Listed], leaf_ns: int | None, least_ns: int) -> int:
    """Lists are cut after the largest: what is left out has no more than the least of them, nor than what is left."""
    missing = (leaf_ns or 0) - sum(row.ns for row in rows.values())
    return max(min(missing, least_ns), 0)


def items(scale: Scale, a: Listing, b: Listing, leaf_ns: tuple[int | None, int | None]) -> list[Part]:
    """The parts of a leaf, the last of which is what is not listed; empty if nothing is."""
    names = [name for name in dict.fromkeys((*a.rows, *b.rows)) if _told(name, scale, a, b)]
    found = [_item(scale, name, a, b) for name in names]
    if not found:
        return []
    rest = [
        (ns or 0) - sum(one.rows[name].ns for name in names if name in one.rows) for one, ns in _both(a, b, leaf_ns)
    ]
    other = [scale.part("other", "other", (rest[0], rest[1]))] if any(rest) else []
    return [*by_size(found), *other]


def _both(
    a: Listing, b: Listing, leaf_ns: tuple[int | None, int | None]
) -> tuple[tuple[Listing, int | None], tuple[Listing, int | None]]:
    return (a, leaf_ns[0]), (b, leaf_ns[1])


def _told(name: str, scale: Scale, a: Listing, b: Listing) -> bool:
    """Whether both sides are known: what one list leaves out for being small has not appeared in the other."""
    if name in a.rows and name in b.rows:
        return True
    if name in a.rows:
        return a.rows[name].ns * scale.a > _CLEARLY_MORE * b.left_out_ns * scale.b
    return b.rows[name].ns * scale.b > _CLEARLY_MORE * a.left_out_ns * scale.a


def _item(scale: Scale, name: str, a: Listing, b: Listing) -> Part:
    before, after = a.rows.get(name), b.rows.get(name)
    what = a.what if before else b.what
    status, moved = BOTH, False
    if before is None:
        moved, status = name in a.elsewhere, BOTH if name in a.elsewhere else APPEARED
    elif after is None:
        moved, status = name in b.elsewhere, BOTH if name in b.elsewhere else VANISHED
    part = scale.part(name, what, (_ns(before), _ns(after)))
    differs = ["leaf"] if moved else [] if before is None or after is None else _changed(before, after, scale)
    return replace(
        part,
        status=status,
        calls_before=_per_step(before, scale.a_rank_steps),
        calls_after=_per_step(after, scale.b_rank_steps),
        dur_before_ns=_running(before, scale.a_rank_steps),
        dur_after_ns=_running(after, scale.b_rank_steps),
        overlap_before=None if before is None else _hidden_share(before),
        overlap_after=None if after is None else _hidden_share(after),
        changed=differs,
    )


def _ns(row: Listed | None) -> int:
    return 0 if row is None else row.ns


def _per_step(row: Listed | None, rank_steps: int) -> float | None:
    return None if row is None else row.count / rank_steps


def _running(row: Listed | None, rank_steps: int) -> float | None:
    return None if row is None or row.dur_ns is None else row.dur_ns / rank_steps


def _changed(a: Listed, b: Listed, scale: Scale) -> list[str]:
    return changed(
        (a.count / scale.a_rank_steps, b.count / scale.b_rank_steps),
        (_mean(a), _mean(b)),
        (_hidden_share(a), _hidden_share(b)),
    )


def changed(
    calls: tuple[float, float], mean_ns: tuple[float | None, float | None], hidden: tuple[float | None, float | None]
) -> list[str]:
    """Which of the calls of a step, the time of one and the share of it under other work differ."""
    found = ["calls"] if _differ(calls[0], calls[1], CALLS_CHANGED) else []
    if mean_ns[0] is not None and mean_ns[1] is not None and _differ(mean_ns[0], mean_ns[1], DURATION_CHANGED):
        found.append("duration")
    if hidden[0] is not None and hidden[1] is not None and abs(hidden[1] - hidden[0]) > OVERLAP_CHANGED:
        found.append("overlap")
    return found


def _differ(before: float, after: float, tolerance: float) -> bool:
    return abs(after - before) > tolerance * max(abs(before), abs(after))


def _mean(row: Listed) -> float | None:
    return row.dur_ns / row.count if row.dur_ns is not None and row.count else None


def _hidden_share(row: Listed) -> float | None:
    return row.hidden_ns / row.dur_ns if row.hidden_ns is not None and row.dur_ns else None
