"""The rows of the waterfall: where the step goes, in points that add up to exactly 100.0.

Every view (terminal, Markdown) prints these rows, so a figure is the same wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.model import Job, LeafTotal, SliceTotal
from steptime.report import units
from steptime.report.names import brief
from steptime.taxonomy import LEAVES, SLICES

PRODUCTIVE = "productive"
#: Printed points are tenths: 1000 of them are the whole step.
WHOLE = 1000
#: Rows during which the device computes.
COMPUTING = (PRODUCTIVE, "kernels", "recompute")

_WHY_WIDTH = 160
_SLICE_TITLES = {part.id: part.title for part in SLICES}
_SLICE_ORDER = {part.id: place for place, part in enumerate(SLICES)}
_LEAF_TITLES = {leaf.key: leaf.title for leaf in LEAVES}


@dataclass(frozen=True)
class Row:
    """One line of the waterfall.

    `ns` is the total over the counted rank-steps, None where it can't be told (`why` then says the reason).
    `tenths` are tenths of a point of the step; `start` is where the row's bar begins, in tenths.
    """

    key: str
    title: str
    is_leaf: bool
    ns: int | None
    tenths: int
    start: int
    whole_ns: int
    recoverable_ns: int | None = None
    why: str | None = None
    detail: str | None = None

    @property
    def points(self) -> str:
        """Points of the step as text; ``?`` where it can't be told."""
        return "?" if self.ns is None else points_text(self.tenths, self.ns, self.whole_ns)


def points_text(tenths: int, ns: int, whole_ns: int) -> str:
    """Tenths of a point as text; never 0 or 100 unless `ns` is exactly none or all of `whole_ns`."""
    if ns in (0, whole_ns):
        return units.points(ns / whole_ns if whole_ns else 0)
    if tenths == 0:
        return "<0.1"
    return ">99.9" if tenths == WHOLE else f"{tenths / 10:.1f}"


def apportion(parts: Sequence[int], seats: int) -> list[int]:
    """Split `seats` over `parts` in proportion by largest remainder: the result adds up to `seats` exactly.

    Each is within one seat of its exact proportion. All zero if the parts are.
    """
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    shares = [part * seats // whole for part in parts]
    # Exact integer remainders; a tie goes to the earlier row, so that the result is stable.
    by_remainder = sorted(range(len(parts)), key=lambda at: (-(parts[at] * seats % whole), at))
    for at in by_remainder[: seats - sum(shares)]:
        shares[at] += 1
    return shares


def ledger(job: Job) -> list[Row]:
    """Rows in the order of the report: useful work if it is known, then each slice followed by its non-zero leaves."""
    parts = sorted(job.slices, key=lambda part: _SLICE_ORDER.get(part.id, len(SLICES)))
    with_useful = job.mfu is not None or job.productive_ns > 0
    amounts = [job.productive_ns] * with_useful + [part.ns or 0 for part in parts]
    tenths = apportion(amounts, WHOLE)
    rows: list[Row] = []
    start = 0
    if with_useful:
        title = "useful work (model FLOPs at peak)"
        rows.append(Row(PRODUCTIVE, title, False, job.productive_ns, tenths[0], 0, job.total_ns))
        start = tenths[0]
    for part, part_tenths in zip(parts, tenths[with_useful:], strict=True):
        rows.append(_slice_row(job, part, part_tenths, start))
        rows.extend(_leaf_rows(job, part, part_tenths, start))
        start += part_tenths
    return rows


def _slice_row(job: Job, part: SliceTotal, tenths: int, start: int) -> Row:
    title = _SLICE_TITLES.get(part.id) or brief(part.id, 20)
    if part.id == "kernels":
        useful_apart = job.mfu is not None or job.productive_ns > 0
        title += " below the roof" if useful_apart else " (useful work not separable)"
    why = _why(job, part) if part.ns is None else None
    return Row(part.id, title, False, part.ns, tenths, start, job.total_ns, part.recoverable_ns, why)


def _leaf_rows(job: Job, part: SliceTotal, part_tenths: int, start: int) -> list[Row]:
    """Leaves that are not zero, largest first; none where the one leaf would repeat its slice."""
    if part.ns is None:
        return []
    known = sorted((leaf for leaf in part.leaves if leaf.ns), key=lambda leaf: -(leaf.ns or 0))
    unknown = [leaf for leaf in part.leaves if leaf.ns is None]
    if not unknown and len(known) == 1 and known[0].id == part.id and not known[0].detail:
        return []
    rows = []
    for leaf, tenths in zip(known, apportion([leaf.ns or 0 for leaf in known], part_tenths), strict=True):
        rows.append(_leaf_row(job, part.id, leaf, tenths, start))
        start += tenths
    return rows + [_leaf_row(job, part.id, leaf, 0, start) for leaf in unknown]


def _leaf_row(job: Job, slice_id: str, leaf: LeafTotal, tenths: int, start: int) -> Row:
    key = f"{slice_id}/{leaf.id}"
    name = brief(leaf.id, 40)
    title = _LEAF_TITLES.get(key, name)
    title = f"{name}: {title}" if _letters(title) != _letters(name) else name
    why = None
    if leaf.ns is None:
        why = brief(str(leaf.detail.get("why") or "not measurable from these traces"), _WHY_WIDTH)
    detail = _detail(leaf, job.rank_steps)
    return Row(key, title, True, leaf.ns, tenths, start, job.total_ns, leaf.recoverable_ns, why, detail)


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def _detail(leaf: LeafTotal, rank_steps: int) -> str | None:
    """The leaf's details as text. A key that ends in ``_ns`` is a total, shown per step; ``_share`` is a share."""
    shown = []
    for key, value in leaf.detail.items():
        if value is None or key == "why":
            continue
        if key.endswith("_ns") and isinstance(value, (int, float)):
            shown.append(f"{_words(key[:-3])} {units.time(value / max(rank_steps, 1))} a step")
        elif key.endswith("_share") and isinstance(value, (int, float)):
            shown.append(f"{_words(key[:-6])} {units.share(value)}")
        elif isinstance(value, int):
            shown.append(f"{_words(key)} {units.count(value)}")
        else:
            shown.append(f"{_words(key)} {f'{value:.3g}' if isinstance(value, float) else brief(value)}")
    return ", ".join(shown) or None


def _words(key: str) -> str:
    return brief(key.replace("_", " "), 40)


def _why(job: Job, part: SliceTotal) -> str:
    for leaf in part.leaves:
        if leaf.detail.get("why"):
            return brief(str(leaf.detail["why"]), _WHY_WIDTH)
    if part.id == "recompute":
        return "not visible in a compiled backward or a CUDA graph"
    if part.id in ("stragglers", "pipeline_bubble") and job.ranks_analyzed < 2:
        return "needs the files of all ranks"
    return "not measured in this report"
