"""What every view says of a job under changes: the step, where its time went, and what holds it up next."""

from __future__ import annotations

from typing import NamedTuple

from steptime.model.what_if import Bottleneck, PathLeaf, Predicted, WhatIf
from steptime.report import units
from steptime.report.ledger import PRODUCTIVE
from steptime.report.names import brief
from steptime.taxonomy import LEAVES

_ROWS = 10
_WARNINGS = 6
#: A leaf that grew by less than this share of the new path is no place where time went.
_MOVED = 0.002
#: From this difference on it is said why the path is not as long as the mean step.
_APART = 0.01
_TITLES = {leaf.key: leaf.title for leaf in LEAVES}


class Row(NamedTuple):
    """A line of the critical path: means of a step before, after, and their difference."""

    before: str
    after: str
    change: str
    leaf: str
    title: str


#: Titles of the columns of `each_rows`.
EACH_HEAD = ["alone", "by subtraction", "then the step", "MFU", "changed"]


class EachRow(NamedTuple):
    """A change alone (its gain, and that by subtraction), and the step and MFU with it and all before it."""

    gain: str
    subtracted: str
    step: str
    mfu: str
    asked: str


def asked(result: WhatIf) -> str:
    """What is changed."""
    return "What if: " + ", ".join(brief(text, 60) for text in result.together.asked)


def meanings(result: WhatIf) -> list[str]:
    """What each request comes to."""
    texts = [one.asked[0] for one in result.each]
    return [f"{brief(text, 60)}: {brief(means, 200)}" for text, means in zip(texts, result.meanings, strict=True)]


def verdict(result: WhatIf) -> str:
    """The step and MFU before and after."""
    made = result.together
    if made.step_ns is None:
        return f"No prediction: {result.refused}."
    change = made.step_ns - result.measured_ns
    step = f"Step {units.time(result.measured_ns)} → {units.time(made.step_ns)}"
    share = units.difference(change / result.measured_ns)
    share = f"{_signed_time(change)}, {'under 0.1 %' if share == '0' else share}"
    text = f"{step} ({share})" if round(change) else f"{step}: nothing changes"
    if result.mfu is not None and made.mfu is not None:
        text += f"; MFU {units.share(result.mfu)} → {units.share(made.mfu)}"
    return text + "."


def subtraction(result: WhatIf) -> str:
    """What plain subtraction says."""
    made = result.together
    if made.subtracted_ns is None:
        return "By subtraction: can't tell, since the report has no cost for all of it."
    gain = made.subtracted_ns - result.measured_ns
    text = f"By subtraction of the report's time alone: {units.time(made.subtracted_ns)} ({_signed_time(gain)})"
    if made.step_ns is None:
        return text + ": a rough figure, since what waits behind it is not replayed."
    return text + "."


def trust(result: WhatIf) -> str:
    """How well the replay knows the job."""
    steps = units.plural(len(result.steps), "step")
    ranks = units.plural(result.ranks_analyzed, "rank")
    missing = result.world_size is not None and result.world_size > result.ranks_analyzed
    if missing:
        ranks = f"{units.count(result.ranks_analyzed)} of {units.plural(result.world_size or 0, 'rank')}"
    text = (
        f"Unchanged, the replay gives {units.time(result.replayed_ns)} for the {units.time(result.measured_ns)} "
        f"measured (mean of {steps} of {ranks}; single steps differ by "
        f"{units.share(result.error_share)})."
    )
    if missing:
        text += " Waits for ranks without a file stay as they were."
    if result.unexplained_share:
        text += (
            f" {units.share(result.unexplained_share)} of its critical path are delays that nothing recorded explains: "
            "they stay in every prediction that does not remove them."
        )
    return text


def notes(result: WhatIf) -> list[str]:
    """What changes nothing, and the warnings of the analysis."""
    found = [note for one in result.each for note in one.notes]
    warned = [brief(text, 300) for text in result.warnings[:_WARNINGS]]
    left = len(result.warnings) - len(warned)
    more = [f"{units.plural(left, 'more warning')}: see `steptime analyze`"] if left > 0 else []
    return [brief(note, 200) for note in found] + warned + more


def scale(result: WhatIf) -> units.Scale:
    """The unit of a step's parts."""
    return units.scale_for(result.measured_ns)


def path_rows(result: WhatIf) -> list[Row]:
    """The critical path by leaf, in the order after; the smallest in one line, and the whole last."""
    if not result.path:
        return []
    shown = sorted(result.path, key=lambda one: -max(one.before_ns, one.after_ns))[:_ROWS]
    rest = [one for one in result.path if one not in shown]
    rows = [_row(result, one, one.leaf, _title(one.leaf)) for one in result.path if one in shown]
    if rest:
        whole = PathLeaf(
            leaf="", before_ns=sum(one.before_ns for one in rest), after_ns=sum(one.after_ns for one in rest)
        )
        rows.append(_row(result, whole, f"{units.count(len(rest))} more", ""))
    total = PathLeaf(leaf="", before_ns=result.path_before_ns, after_ns=result.path_after_ns)
    return [*rows, _row(result, total, "total", "")]


def path_note(result: WhatIf) -> str:
    """Why the path is not as long as the mean step, where it is not."""
    mean = result.path_before_ns / max(result.path_steps, 1)
    if not result.path or abs(mean - result.measured_ns) < _APART * result.measured_ns:
        return ""
    return (
        f"The path runs from when the last rank began the counted steps until the last one ended them: "
        f"{units.time(mean)} a step, where the ranks' own steps take {units.time(result.measured_ns)}."
    )


def moved(result: WhatIf) -> str:
    """Which leaves the path has more of than before."""
    if not result.path:
        return ""
    least = _MOVED * result.path_after_ns
    grown = [one for one in result.path if one.after_ns - one.before_ns > least]
    if not grown:
        return "No other time took its place." if result.path_after_ns < result.path_before_ns else ""
    grown.sort(key=lambda one: one.before_ns - one.after_ns)
    steps = max(result.path_steps, 1)
    parts = [f"{_name(one.leaf)} (+{units.time((one.after_ns - one.before_ns) / steps)})" for one in grown[:4]]
    return f"The time moved to {', '.join(parts)}, hidden so far behind what takes less now."


def bottleneck(result: WhatIf) -> str:
    """The largest leaf that is left on the path, with where most of it lies."""
    one = result.bottleneck
    if one is None:
        return ""
    before = result.bottleneck_before
    still = "Still the largest on the path" if before is not None and before.leaf == one.leaf else "Next bottleneck"
    steps = max(result.path_steps, 1)
    text = f"{still}: {_named(one.leaf)}, {units.time(one.ns / steps)} a step ({units.share(one.share)} of the path)"
    return f"{text}, {_place(one)}."


def each_rows(result: WhatIf) -> list[EachRow]:
    """A row for each change."""
    return [_each(result, alone, so_far) for alone, so_far in zip(result.each, result.so_far, strict=True)]


def _each(result: WhatIf, alone: Predicted, so_far: Predicted) -> EachRow:
    first = len(so_far.asked) == 1
    return EachRow(
        gain="?" if alone.step_ns is None else _signed_time(alone.step_ns - result.measured_ns),
        subtracted="?" if alone.subtracted_ns is None else _signed_time(alone.subtracted_ns - result.measured_ns),
        step="?" if so_far.step_ns is None else units.time(so_far.step_ns),
        mfu="?" if so_far.mfu is None else units.share(so_far.mfu),
        asked=("" if first else "+ ") + brief(alone.asked[0], 60),
    )


def _row(result: WhatIf, one: PathLeaf, name: str, title: str) -> Row:
    steps, column = max(result.path_steps, 1), scale(result)
    change = (one.after_ns - one.before_ns) / steps
    before, after = (units.scaled(ns / steps, column) for ns in (one.before_ns, one.after_ns))
    return Row(before, after, _signed(change, column), "useful work" if name == PRODUCTIVE else name, title)


def _place(one: Bottleneck) -> str:
    share = one.place_ns / one.ns
    most = (
        "all of it" if one.place_ns == one.ns else f"{units.share(share)} of it" + " (the largest part)" * (share < 0.5)
    )
    where = "among all members" if one.rank is None else f"on rank {one.rank}"
    spot = "" if one.where in ("meeting", "not recorded") else f", {brief(one.where, 40)}"
    return f"{most} {where}{spot}"


def _title(leaf: str) -> str:
    if leaf == PRODUCTIVE:
        return "model FLOPs at peak"
    return _TITLES.get(leaf, "")


def _name(leaf: str) -> str:
    return "useful work" if leaf == PRODUCTIVE else brief(leaf, 60)


def _named(leaf: str) -> str:
    title = _title(leaf)
    return f"{_name(leaf)} ({title})" if title else _name(leaf)


def _signed_time(ns: float) -> str:
    if not round(ns):
        return "0"
    return f"{'−' if ns < 0 else '+'}{units.time(abs(ns))}"


def _signed(ns: float, column: units.Scale) -> str:
    text = units.scaled(abs(ns), column)
    if text == "0" or text.startswith("<"):
        return "" if text == "0" else text
    return f"{'−' if ns < 0 else '+'}{text}"
