"""What every view of a diff says: the first sentence, the rows of the split, and in what the runs differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.model import ConfigChange, Diff, OpChange, Part, Reason, Side, StragglerChange
from steptime.model.diff import APPEARED, BOTH, VANISHED
from steptime.report import units, words
from steptime.report.ledger import PRODUCTIVE
from steptime.report.names import brief, shorten_all
from steptime.taxonomy import LEAVES, SLICES

#: A change of the step below this share of it is said to be none.
UNCHANGED = 0.005
NAME_WIDTH = 100
_ITEM_NAME = 60
#: What is in a leaf is shown from this share of the step on, and at most so many of a leaf.
_SHOWN_FROM, _SHOWN_OF_LEAF = 0.001, 5
_TITLES = {leaf.key: leaf.title for leaf in LEAVES} | {part.id: part.title for part in SLICES}
_CONFIG = {
    "gpu": "GPU",
    "driver": "driver",
    "cuda": "CUDA runtime",
    "hip": "HIP runtime",
    "torch": "PyTorch",
    "nccl": "NCCL",
    "world_size": "world size",
    "ranks_analyzed": "ranks analysed",
    "reference_dtype": "reference dtype",
    "matrix_dtypes": "dtypes of matrix work",
    "tokens_per_step": "tokens of one update",
    "model_flops": "model FLOPs of a rank-step",
    "pipeline_stages": "ranks of the pipeline's stages",
    "pipeline_schedule": "pipeline schedule",
    "pipeline_chunks": "pieces of the model on a stage",
    "micro_batches": "micro-batches",
    "groups": "groups of communication",
    "cuda_graphs": "CUDA graphs",
    "steps": "steps counted",
    "step_source": "steps told by",
    "trace_dialect": "trace dialect",
    "stacks_recorded": "stacks recorded",
    "shapes_recorded": "shapes recorded",
    "steptime": "steptime",
}
#: How much was recorded and how it was read makes no step longer.
_ASIDE = ("ranks_analyzed", "steps", "step_source", "trace_dialect", "shapes_recorded", "steptime")


@dataclass(frozen=True)
class Row:
    """One line of the split. level: 0 a slice, 1 a leaf, 2 what is in it; amounts are ns of a mean step."""

    key: str
    title: str
    level: int
    before_ns: float | None
    after_ns: float | None
    change_ns: float
    note: str


def signed(ns: float) -> str:
    """A change of time: ``+52.3 ms``, ``−450 µs``, ``0``."""
    if not ns:
        return "0"
    return f"{'+' if ns > 0 else '−'}{units.time(abs(ns))}"


def first_line(diff: Diff) -> str:
    """The change of the step, and the parts that make most of it with what is behind them."""
    change, before = diff.whole.change_units, diff.whole.before_units or 0
    after = diff.whole.after_units or 0
    what = "Window" if diff.before.one_window or diff.after.one_window else "Step time"
    if not change:
        return f"{what} unchanged, {units.time(diff.ns(before))}."
    share = f", {units.difference(change / before)}" if before else ""
    span = f"{units.time(diff.ns(before))} → {units.time(diff.ns(after))}"
    if abs(change) <= UNCHANGED * max(before, after):
        text = f"{what} about the same: {signed(diff.ns(change))}{share} ({span})"
    else:
        text = f"{what} {signed(diff.ns(change))}{share} ({span})"
    causes = ", ".join(_because(diff, one) for one in diff.reasons)
    return f"{text}: {causes}." if causes else f"{text}."


def _because(diff: Diff, one: Reason) -> str:
    text = f"{_part_name(one.key)} {signed(diff.ns(one.change_units))}"
    said = []
    if one.straggler is not None:
        kind = "" if one.straggler.kind in ("straggler", "jitter") else f", {brief(one.straggler.kind, 20)}"
        said.append(f"{words.whom(one.straggler)}{kind}: {brief(one.straggler.cause)}")
    elif one.item is not None and one.item.what == "leaf":
        said.append(f"{_part_name(one.item.key)} {signed(diff.ns(one.item.change_units))}")
    elif one.item is not None:
        how = _briefly(one.item)
        said.append(brief(shorten_all([one.item.key], _ITEM_NAME)[one.item.key]) + (f": {how}" if how else ""))
    if one.rank is not None and one.straggler is None:
        said.append(f"on rank {one.rank}")
    return f"{text} ({'; '.join(said)})" if said else text


def _part_name(key: str) -> str:
    return "useful work" if key == PRODUCTIVE else brief(key)


def _briefly(item: Part) -> str:
    """The first thing that is different about it."""
    return next(iter(differences(item)), "")


def differences(one: Part | OpChange) -> list[str]:
    """How often, how long and how hidden something ran before and after, where that differs."""
    said = {APPEARED: ["new"], VANISHED: ["gone"], BOTH: []}[one.status]
    if "shape" in one.changed:
        said.append("another shape or dtype")
    if "leaf" in one.changed:
        said.append("new in this leaf" if one.calls_before is None else "no longer in this leaf")
    if "calls" in one.changed and one.calls_before is not None and one.calls_after is not None:
        said.append(f"{_calls(one.calls_before)}× → {_calls(one.calls_after)}× a step")
    if "duration" in one.changed:
        each = [_each(one.dur_before_ns, one.calls_before), _each(one.dur_after_ns, one.calls_after)]
        said.append(f"{each[0]} → {each[1]} each")
    if "overlap" in one.changed and one.overlap_before is not None and one.overlap_after is not None:
        hidden = [units.share(min(max(share, 0.0), 1.0)) for share in (one.overlap_before, one.overlap_after)]
        said.append(f"{hidden[0]} → {hidden[1]} under other work")
    return said


def _calls(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def _each(dur_ns: float | None, calls: float | None) -> str:
    return units.time(dur_ns / calls) if dur_ns is not None and calls else "?"


def rows(diff: Diff) -> list[Row]:
    """The split from the largest change down: what is worth a line, and the rest of each part in one."""
    found: list[Row] = []
    for part in diff.whole.parts:
        if not _worth_a_line(diff, part):
            continue
        found.append(_row(diff, part, 0))
        if len(part.parts) == 1 and part.parts[0].key == f"{part.key}/{part.key}":
            found += _inside(diff, part.parts[0])
            continue
        shown = [leaf for leaf in part.parts if _worth_a_line(diff, leaf)]
        for leaf in shown:
            found += [_row(diff, leaf, 1), *_inside(diff, leaf)]
        found += _rest(diff, [leaf for leaf in part.parts if leaf not in shown], 1) if shown else []
    return found


def _least(diff: Diff) -> float:
    """The least change worth a line, in units of the split."""
    return _SHOWN_FROM * max(diff.whole.before_units or 0, diff.whole.after_units or 0)


def _worth_a_line(diff: Diff, part: Part) -> bool:
    """Whether it changed by enough, or may have: all slices that changed at all, so that they add up."""
    large = part.change_units != 0 and (part.what != "leaf" or abs(part.change_units) >= _least(diff))
    return large or (part.before_units is None) != (part.after_units is None)


def _inside(diff: Diff, leaf: Part) -> list[Row]:
    named = [one for one in leaf.parts if one.what != "other" and abs(one.change_units) >= _least(diff)]
    shown = named[:_SHOWN_OF_LEAF]
    titles = shorten_all((one.key for one in shown), NAME_WIDTH)
    found = [_row(diff, one, 2, titles[one.key]) for one in shown]
    return found + (_rest(diff, [one for one in leaf.parts if one not in shown], 2) if shown else [])


def _rest(diff: Diff, parts: list[Part], level: int) -> list[Row]:
    """One line for all that is not shown of a part; none where nothing of it changed."""
    change = sum(one.change_units for one in parts)
    if not any(one.change_units for one in parts):
        return []
    before, after = sum(one.before_units or 0 for one in parts), sum(one.after_units or 0 for one in parts)
    count = sum(one.what != "other" for one in parts)
    title = "the rest" + (f" ({units.count(count)} more)" if count else " (not listed)")
    return [Row("other", title, level, diff.ns(before), diff.ns(after), diff.ns(change), "")]


def _row(diff: Diff, part: Part, level: int, title: str = "") -> Row:
    before, after = (None if ns is None else diff.ns(ns) for ns in (part.before_units, part.after_units))
    note = differences(part)
    if part.rank is not None:
        note.append(f"on rank {part.rank}")
    if before is None or after is None:
        sides = " and ".join(side for side, ns in (("before", before), ("after", after)) if ns is None)
        note.append(f"can't tell {sides} ({brief(part.why or '', 160)})")
    return Row(part.key, title or _title(part), level, before, after, diff.ns(part.change_units), "; ".join(note))


def _title(part: Part) -> str:
    if part.key == PRODUCTIVE:
        return "useful work (model FLOPs at peak)"
    if part.what == "slice":
        return _TITLES.get(part.key) or brief(part.key, 40)
    name = brief(part.key.partition("/")[2] or part.key, 40)
    title = _TITLES.get(part.key)
    return f"{name}: {title}" if title and title != name else name


def scale(diff: Diff) -> units.Scale:
    """The unit of the columns."""
    return units.scale_for(diff.ns(max(diff.whole.before_units or 0, diff.whole.after_units or 0)))


def amount(ns: float | None, in_unit: units.Scale) -> str:
    """An amount of a column; ``?`` where it is not known."""
    return "?" if ns is None else units.scaled(ns, in_unit)


def change(ns: float, in_unit: units.Scale) -> str:
    """A change of a column, with its sign."""
    text = units.scaled(abs(ns), in_unit)
    return text if text == "0" else f"{'+' if ns > 0 else '−'}{text}"


def sides(diff: Diff) -> list[str]:
    """What is compared: a sentence for each side."""
    return [f"{name}: {_side(side)}" for name, side in (("Before", diff.before), ("After", diff.after))]


def _side(side: Side) -> str:
    mean, median = units.time(side.total_ns / side.rank_steps), units.time(side.median_step_ns)
    ranks, steps = units.plural(side.ranks, "rank"), units.plural(side.steps, "window" if side.one_window else "step")
    mfu = "" if side.mfu is None else f", MFU {units.share(side.mfu)}"
    what = "window" if side.one_window else "step"
    return f"{brief(side.name, 90)}, mean {what} {mean} (median {median}) of {ranks} and {steps}{mfu}"


def config(diff: Diff) -> list[tuple[str, str, str]]:
    """In what the runs differ: name, before, after."""
    return [(_CONFIG.get(one.name, brief(one.name)), *_values(one)) for one in diff.config]


def _values(one: ConfigChange) -> tuple[str, str]:
    before, after = ("not known" if value is None else brief(value, 160) for value in (one.before, one.after))
    return before, after


def differs(diff: Diff) -> str:
    """In what the runs differ that may make the change, in one sentence; nothing where there is no such thing."""
    names = [
        _CONFIG.get(one.name, brief(one.name))
        for one in diff.config
        if one.name not in _ASIDE and one.before is not None and one.after is not None
    ]
    return f"The runs differ in {', '.join(names)}." if names else ""


def config_lines(diff: Diff) -> list[str]:
    """The same as lines."""
    return [f"{name}: {before} → {after}" for name, before, after in config(diff)]


def stragglers(diff: Diff) -> list[str]:
    """Late ranks that came, went or stayed."""
    return [_straggler(one) for one in diff.stragglers]


def _straggler(one: StragglerChange) -> str:
    given = one.after or one.before
    assert given is not None
    status = {APPEARED: "new", VANISHED: "gone", BOTH: "in both"}[one.status]
    cost = f"{signed(one.change_ns)} a step to each other rank"
    return f"{status}: {words.whom(given)}, {brief(given.kind, 40)}, {brief(given.cause, 100)} ({cost})"


@dataclass(frozen=True)
class Call:
    """A call on the roofline as a view shows it."""

    change: str
    before: str
    after: str
    name: str
    shapes: str
    note: str


def calls(diff: Diff, most: int) -> list[Call]:
    """The calls whose time changed most."""
    shown = [one for one in diff.ops if abs(one.change_units) >= _least(diff) / 2][:most]
    names = shorten_all((one.op for one in shown), 60)
    shapes = shorten_all((_shapes(one) for one in shown), NAME_WIDTH)
    return [
        Call(
            signed(diff.ns(one.change_units)),
            _time(diff.ns(one.before_units)),
            _time(diff.ns(one.after_units)),
            names[one.op],
            shapes[_shapes(one)],
            "; ".join(_of_call(one)),
        )
        for one in shown
    ]


def _time(ns: float) -> str:
    return units.time(ns) if ns else "0"


def _shapes(one: OpChange) -> str:
    return one.shapes.replace("[], ", "").replace(", []", "")


def _of_call(one: OpChange) -> Iterable[str]:
    yield brief(one.dtype or "dtype unknown") + (f", {brief(one.direction)}" if one.direction != "forward" else "")
    yield from ["run again"] * one.recomputed
    yield from differences(one)
    if one.status == BOTH and one.bound_before != one.bound_after and one.bound_before and one.bound_after:
        yield f"bound by {brief(one.bound_before)} → {brief(one.bound_after)}"
