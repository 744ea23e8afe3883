"""Calls on the roofline before and after: shapes that appeared or vanished, and calls that take longer."""

from __future__ import annotations

from msgspec.structs import replace

from steptime.diff.items import Scale, changed
from steptime.model import OpRoof, Report
from steptime.model.diff import APPEARED, BOTH, VANISHED, OpChange

#: A roofline with as many rows may have been cut after its costliest, so that a cheap call is in neither list for sure.
_MAY_BE_CUT = 100

#: Two reports that know calls of so different shares of the time do not know the same calls.
_ALIKE = 0.7

_Call = tuple[str, str, str | None, str, bool]


def op_changes(a: Report, b: Report, scale: Scale) -> list[OpChange]:
    """Equal calls of both reports, largest change first; what has not changed is left out.

    Empty where they are not comparable (`unlike`).
    """
    if unlike(a, b) is not None:
        return []
    mine, theirs = _by_call(a), _by_call(b)
    lost = {key for key in mine.keys() - theirs.keys() if _told(mine[key], scale.a, b, scale.b)}
    new = {key for key in theirs.keys() - mine.keys() if _told(theirs[key], scale.b, a, scale.a)}
    reshaped = {_kind(key) for key in lost} & {_kind(key) for key in new}
    found = [
        _change(scale, key, mine.get(key), theirs.get(key), reshaped=_kind(key) in reshaped)
        for key in dict.fromkeys((*mine, *theirs))
        if key in lost or key in new or (key in mine and key in theirs)
    ]
    kept = [one for one in found if one.change_units or one.changed or one.status != BOTH]
    return sorted(kept, key=lambda one: (-abs(one.change_units), one.op, one.shapes, one.dtype or "", one.direction))


def unlike(a: Report, b: Report) -> str | None:
    """Why calls can't be compared: without shapes, or inside a CUDA graph, they are not known, but not gone either."""
    covered = [_covered(report) for report in (a, b)]
    if min(covered) >= _ALIKE * max(covered):
        return None
    side = "before" if covered[0] < covered[1] else "after"
    return (
        f"calls of ops can't be compared: {side}, those known are {100 * min(covered):.0f} % of the kernels' time, in "
        f"the other report {100 * max(covered):.0f} % (no shapes recorded, or launched by CUDA graphs)"
    )


def _covered(report: Report) -> float:
    """Share of the kernels' time that is calls on the roofline."""
    whole = sum(kernel.dur_ns for kernel in report.kernels)
    return min(sum(row.dur_ns for row in report.roofline) / whole, 1.0) if whole else 0.0


def _kind(call: _Call) -> tuple[str, str]:
    return call[0], call[3]


def _by_call(report: Report) -> dict[_Call, OpRoof]:
    """Rows by call; several of one call (causal or not) are summed, and bound as the costliest is."""
    found: dict[_Call, OpRoof] = {}
    for row in sorted(report.roofline, key=lambda row: -row.owned_ns):
        key = (row.op, row.shapes, row.dtype, row.direction, row.recomputed)
        if key in found:
            before = found[key]
            row = replace(
                before,
                count=before.count + row.count,
                dur_ns=before.dur_ns + row.dur_ns,
                owned_ns=before.owned_ns + row.owned_ns,
            )
        found[key] = row
    return found


def _told(row: OpRoof, units: int, other: Report, other_units: int) -> bool:
    """Whether a call that the other report does not list is none that its list may leave out."""
    if len(other.roofline) < _MAY_BE_CUT:
        return True
    return row.owned_ns * units > min(one.owned_ns for one in other.roofline) * other_units


def _change(scale: Scale, key: _Call, a: OpRoof | None, b: OpRoof | None, *, reshaped: bool) -> OpChange:
    before, after = (0 if row is None else row.owned_ns * by for row, by in ((a, scale.a), (b, scale.b)))
    differs = ["shape"] if reshaped and (a is None or b is None) else []
    if a is not None and b is not None:
        calls = a.count / scale.a_rank_steps, b.count / scale.b_rank_steps
        differs = changed(calls, (_mean_ns(a), _mean_ns(b)), (_hidden_share(a), _hidden_share(b)))
    op, shapes, dtype, direction, recomputed = key
    return OpChange(
        op=op,
        shapes=shapes,
        dtype=dtype,
        direction=direction,
        recomputed=recomputed,
        status=VANISHED if b is None else APPEARED if a is None else BOTH,
        before_units=before,
        after_units=after,
        change_units=after - before,
        calls_before=a.count / scale.a_rank_steps if a else None,
        calls_after=b.count / scale.b_rank_steps if b else None,
        dur_before_ns=a.dur_ns / scale.a_rank_steps if a else None,
        dur_after_ns=b.dur_ns / scale.b_rank_steps if b else None,
        overlap_before=_hidden_share(a) if a else None,
        overlap_after=_hidden_share(b) if b else None,
        bound_before=a.bound if a else None,
        bound_after=b.bound if b else None,
        peak_share_before=a.peak_share if a else None,
        peak_share_after=b.peak_share if b else None,
        changed=differs,
    )


def _mean_ns(row: OpRoof) -> float | None:
    return row.dur_ns / row.count if row.count else None


def _hidden_share(row: OpRoof) -> float | None:
    return 1 - row.owned_ns / row.dur_ns if row.dur_ns else None
