"""The tables of the HTML report, as plain data: every text printable and of bounded length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steptime.model import OpRoof, Report
from steptime.report import groups, units, words
from steptime.report.colours import leaf_colour
from steptime.report.names import brief, shorten_all
from steptime.report.plain_table import Table
from steptime.report.roof_charts import KIND_LEAVES, backward, rates

NAME_WIDTH = 150


def causes_table(report: Report, part_id: str, most: int) -> Table | None:
    """The costliest causes of one part."""
    mine = sorted((one for one in report.causes if one.leaf.partition("/")[0] == part_id), key=lambda one: -one.ns)
    shown = mine[:most]
    if not shown:
        return None
    scale = units.scale_for(words.per_step_ns(report.job.total_ns, report))
    names = shorten_all((one.what for one in shown), NAME_WIDTH)
    places = shorten_all((where for one in shown if (where := words.place(one))), NAME_WIDTH)
    rows = [
        [
            units.points(one.share),
            units.scaled(words.per_step_ns(one.ns, report), scale),
            names[one.what],
            *([places[where] if (where := words.place(one)) else ""] if places else []),
            words.evidence(one, report),
        ]
        for one in shown
    ]
    what = "window" if words.is_one_window(report) else "step"
    head = ["points", f"{scale.unit}/{what}", "cause", *["at"] * bool(places), "seen"]
    return Table(head, rows, numbers=2, codes=frozenset({2, 3} if places else {2}), more=len(mine) - len(shown))


def collectives_table(report: Report, most: int) -> Table | None:
    """Collectives by kind and group."""
    everyone = sorted(report.collectives, key=lambda one: (-one.exposed_ns, -one.dur_ns))
    if not everyone:
        return None
    measured = any(one.bus_bytes_per_s is not None for one in everyone)
    rows = [
        [
            units.time(words.per_step_ns(one.exposed_ns, report)),
            units.time(words.per_step_ns(one.dur_ns, report)),
            units.count(one.count),
            *([words.bandwidth(one)] if measured else []),
            brief(one.kind),
            brief(one.group) if one.group else "not recorded",
        ]
        for one in everyone[:most]
    ]
    a_step = words.a_step(report)
    bus = ["bus bandwidth"] if measured else []
    head = [f"exposed{a_step}", f"running{a_step}", "calls", *bus, "collective", "group"]
    return Table(head, rows, numbers=3 + measured, more=max(len(everyone) - most, 0))


def ranks_table(report: Report, most: int, against: Mapping[str, float]) -> Table | None:
    """Ranks with their largest leaves: those unlike the others, and one that stands for the rest.

    against: by name of the rank how much longer than its peers it usually takes itself, in percent: what the picture of
    the ranks by step shows, said for those who can't see it.
    """
    everyone = groups.rank_lines(report)
    if len(everyone) < 2:
        return None
    rows = []
    for line in groups.worth_a_line(everyone, most)[0]:
        largest = sorted(line.leaves_ns.items(), key=lambda item: -item[1])[:4]
        said = ", ".join(f"{brief(key)} {units.points(ns / (line.total_ns or 1))}" for key, ns in largest)
        own = f"{units.difference(against[line.name] / 100)}; " if line.name in against else ""
        rows.append([units.time(line.median_ns), line.name, own + said])
    head = "own time against peers; largest leaves, in points" if against else "largest leaves, in points"
    return Table(["median step", "rank", head], rows, numbers=2)


def stragglers_table(report: Report, most: int) -> Table | None:
    """What the report says of late ranks, as it says it."""
    if not report.stragglers:
        return None
    rows = [
        [
            units.time(one.lost_ns),
            units.share(min(one.share, 1.0)),
            words.whom(one),
            brief(one.kind, 40),
            brief(one.cause, 100),
            brief(one.leaf or "", 60),
            units.ranges(one.steps),
        ]
        for one in report.stragglers[:most]
    ]
    head = ["cost each other rank", "of their steps", "who", "kind", "cause", "leaf", "steps"]
    return Table(head, rows, numbers=2, more=max(len(report.stragglers) - most, 0))


def calls_table(report: Report, most: int) -> Table | None:
    """The costliest calls against the roofline."""
    ops = sorted(report.roofline, key=lambda op: -op.owned_ns)
    if not ops:
        return None
    shown = ops[:most]
    names = shorten_all((op.op for op in shown), 70)
    # Arguments that are no tensors have empty shapes, which tell nothing.
    tensors = {op.shapes: op.shapes.replace("[], ", "").replace(", []", "") for op in shown}
    short = shorten_all(tensors.values(), 110)
    shapes = {text: short[plain] for text, plain in tensors.items()}
    rows = [
        [
            units.time(words.per_step_ns(op.owned_ns, report)),
            "?" if op.headroom_ns is None else units.time(words.per_step_ns(op.headroom_ns, report)),
            "?" if op.peak_share is None else units.share(op.peak_share),
            *rates(op),
            units.count(op.count),
            f"{names[op.op]}\n{shapes[op.shapes]}\n{_kind(op)}",
            _bound(op),
            ", ".join(brief(check.replace("_", " ")) for check in op.checks),
        ]
        for op in shown
    ]
    a_step = words.a_step(report)
    head = [f"time{a_step}", "can gain", "of peak", "FLOP/s", "bytes/s", "calls"]
    head += ["call, shapes", "bound by", "checks"]
    return Table(head, rows, numbers=6, codes=frozenset({6}), more=len(ops) - len(shown))


def _kind(op: OpRoof) -> str:
    parts = [brief(op.dtype or "dtype unknown"), *backward(op), *["run again"] * op.recomputed]
    return ", ".join(parts)


def _bound(op: OpRoof) -> str:
    text = brief(op.bound) if op.bound else "can't tell"
    return f"{text} (bytes fit in L2)" if op.cache_resident else text


def kernels_table(report: Report, most: int) -> Table | None:
    """The costliest kernels by name."""
    ordered = sorted(report.kernels, key=lambda one: -one.owned_ns)
    if not ordered:
        return None
    shown = ordered[:most]
    names = shorten_all((one.name for one in shown), NAME_WIDTH)
    rows = [
        [
            units.time(words.per_step_ns(one.owned_ns, report)),
            units.time(words.per_step_ns(one.dur_ns, report)),
            units.count(one.count),
            names[one.name],
            brief(one.leaf),
        ]
        for one in shown
    ]
    a_step = words.a_step(report)
    head = [f"owned{a_step}", f"running{a_step}", "launches", "kernel", "leaf"]
    return Table(head, rows, numbers=3, codes=frozenset({3}), more=len(ordered) - len(shown))


def kinds(ops: Sequence[OpRoof]) -> list[tuple[str, str]]:
    """The legend of the roofline: kind and colour."""
    present = {op.kind for op in ops}
    return [(kind, leaf_colour(leaf)) for kind, leaf in KIND_LEAVES.items() if kind in present]
