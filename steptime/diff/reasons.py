"""The parts that make most of a change, for the first sentence, and the late ranks that came and went."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.model import Report, Straggler
from steptime.model.diff import APPEARED, BOTH, VANISHED, Part, Reason, StragglerChange

#: Parts are named until they make this share of the change, at most `_MOST` of them.
_ENOUGH, _MOST = 0.8, 3
#: What works against the change is named too where the parts named make more than this share of it.
_TOO_MUCH = 1.2
#: A part below this share of the change is not named.
_LEAST = 0.05
#: What a sentence names of a leaf makes at least this share of the leaf's change.
_HALF = 0.5
#: A change below this share of the step is none: its parts are named by their size, whatever their signs.
_NONE = 0.005
_BUBBLE, _STRAGGLERS = "pipeline_bubble", "stragglers"


def reasons(whole: Part, stragglers: Sequence[StragglerChange], units_per_ns: int) -> list[Reason]:
    """The parts that make most of the change of the step, largest first, in units of ``1 / units_per_ns`` ns."""
    total = whole.change_units
    parts = sorted(_candidates(whole), key=lambda one: (-abs(one.change_units), one.key))
    if abs(total) <= _NONE * max(whole.before_units or 0, whole.after_units or 0):
        named = [one for one in parts if one.change_units][:_MOST]
        return [_reason(one, stragglers, units_per_ns) for one in named]
    named, made = [], 0
    for part in parts:
        if part.change_units * total <= 0 or abs(part.change_units) < _LEAST * abs(total):
            continue
        named.append(part)
        made += part.change_units
        if len(named) == _MOST or abs(made) >= _ENOUGH * abs(total):
            break
    against = [one for one in parts if one.change_units * total < 0]
    if against and abs(made) > _TOO_MUCH * abs(total):
        named.append(against[0])
    return [_reason(one, stragglers, units_per_ns) for one in named]


def _candidates(whole: Part) -> list[Part]:
    """Leaves; of a bubble in several the whole: they are mostly places in the schedule."""
    found = []
    for part in whole.parts:
        moved = [leaf for leaf in part.parts if leaf.change_units]
        split = bool(part.parts) and not (part.key == _BUBBLE and len(moved) > 1)
        found += part.parts if split else [part]
    return found


def _reason(part: Part, stragglers: Sequence[StragglerChange], units_per_ns: int) -> Reason:
    item = next((one for one in part.parts if one.what != "other"), None)
    if item is not None and item.change_units * part.change_units < _HALF * part.change_units**2:
        item = None
    blamed = (
        _blamed(part.change_units / units_per_ns, stragglers) if part.key.partition("/")[0] == _STRAGGLERS else None
    )
    return Reason(key=part.key, change_units=part.change_units, item=item, rank=part.rank, straggler=blamed)


def _blamed(waits_ns: float, stragglers: Sequence[StragglerChange]) -> Straggler | None:
    """The verdict whose cost changed most in the direction of the waits, if that is at least half of their change."""
    for one in stragglers:
        if one.change_ns * waits_ns >= _HALF * waits_ns**2 > 0:
            return one.after if waits_ns > 0 else one.before
    return None


def straggler_changes(a: Report, b: Report) -> list[StragglerChange]:
    """Verdicts that came, went or stayed, by what they cost each other rank in a mean step."""
    mine, theirs = _by_verdict(a), _by_verdict(b)
    found = []
    for key in dict.fromkeys((*mine, *theirs)):
        before, after = mine.get(key), theirs.get(key)
        status = VANISHED if after is None else APPEARED if before is None else BOTH
        change = _cost_ns(after, b) - _cost_ns(before, a)
        found.append(StragglerChange(status=status, before=before, after=after, change_ns=change))
    return sorted(found, key=lambda one: -abs(one.change_ns))


_Verdict = tuple[str, str | None, tuple[int, ...], str]


def _by_verdict(report: Report) -> dict[_Verdict, Straggler]:
    found: dict[_Verdict, Straggler] = {}
    for one in report.stragglers:
        found.setdefault((one.kind, one.host, tuple(one.ranks), one.cause), one)
    return found


def _cost_ns(one: Straggler | None, report: Report) -> float:
    return 0.0 if one is None else one.lost_ns / max(len(report.job.steps), 1)
