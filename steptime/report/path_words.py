"""What every view says of the critical path."""

from __future__ import annotations

from typing import NamedTuple

from steptime.model import CriticalPath, PathPlace, PathTotal, Report
from steptime.report import units
from steptime.report.colours import part_colour
from steptime.report.ledger import PRODUCTIVE
from steptime.report.names import brief
from steptime.report.plain_table import Table

_ALL = "all members"
_WHO_WIDTH, _WHERE_WIDTH, _LEAF_WIDTH = 24, 24, 60


class PathRow(NamedTuple):
    """A line of the table: texts ready to print, and the slice for its colour."""

    points: str
    mean: str
    who: str
    where: str
    leaf: str
    part: str


def headline(path: CriticalPath) -> str:
    """What the path is of: ``6 steps, 342.2 ms each``."""
    steps = units.plural(len(path.steps), "step")
    each = units.time(path.length_ns / max(len(path.steps), 1))
    return f"{steps}, {each}{' each' if len(path.steps) > 1 else ''}"


def scale(path: CriticalPath) -> units.Scale:
    """The unit of the table's times."""
    return units.scale_for(path.length_ns / max(len(path.steps), 1))


def rows(path: CriticalPath, most: int) -> list[PathRow]:
    """The places and leaves with most of the path, and a last line for the rest."""
    largest = sorted(path.totals, key=lambda one: -one.ns)
    shown = [_row(path, one.ns, _who(path, one), one.where, one.leaf) for one in largest[:most]]
    rest = largest[most:]
    if rest:
        ns = sum(one.ns for one in rest)
        shown.append(_row(path, ns, f"{units.count(len(rest))} more", "", ""))
    return shown


def _row(path: CriticalPath, ns: int, who: str, where: str, leaf: str) -> PathRow:
    return PathRow(
        units.points(ns / path.length_ns if path.length_ns else 0),
        units.scaled(ns / max(len(path.steps), 1), scale(path)),
        who,
        brief(where, _WHERE_WIDTH) if where else "",
        ("useful work" if leaf == PRODUCTIVE else brief(leaf, _LEAF_WIDTH)) if leaf else "",
        leaf.partition("/")[0],
    )


def _who(path: CriticalPath, one: PathTotal | PathPlace) -> str:
    if one.rank is None:
        return _ALL
    several = len({place.device for place in path.places if place.rank == one.rank}) > 1
    return f"rank {one.rank}" + (f", device {one.device}" if several and one.device is not None else "")


def table(report: Report, most: int) -> Table | None:
    """The path for the page."""
    path = report.critical_path
    if path is None or not path.totals:
        return None
    shown = [
        [row.points, row.mean, f"{row.who}, {row.where}" if row.where else row.who, row.leaf]
        for row in rows(path, most)
    ]
    return Table(["points", f"{scale(path).unit}/step", "where", "leaf"], shown, numbers=2)


def legend(path: CriticalPath) -> list[tuple[str, str]]:
    """The slices on the path and their colours, largest first."""
    by_part: dict[str, int] = {}
    for one in path.totals:
        part = one.leaf.partition("/")[0]
        by_part[part] = by_part.get(part, 0) + one.ns
    ordered = sorted(by_part, key=lambda part: -by_part[part])
    return [("useful work" if part == PRODUCTIVE else brief(part), part_colour(part)) for part in ordered]
