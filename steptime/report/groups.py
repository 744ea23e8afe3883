"""What many ranks and files say alike, said once: warnings, trace quality, other steps, and ranks worth a line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import mean, median
from typing import Protocol, TypeVar

from steptime.model import Input, Job, OtherStep, Quality, RankSteps, Report, StepTime
from steptime.report import units
from steptime.report.ledger import PRODUCTIVE
from steptime.report.names import brief
from steptime.taxonomy import SLICES

_OF_RANK = re.compile(r"rank (\d{1,9}): (.*)", re.DOTALL)
#: Counts of `Quality` that are worth a word where they are not zero.
_COUNTS = ("launches_without_kernels", "kernels_without_launches", "cut_head_events")
#: Long enough for a path and a sentence; the JSON report has the whole text.
_WARNING_WIDTH = 600
#: Ranks nearer than this to the median (`_distances`) are alike to the eye: a strip has cells of five points.
_ALIKE = 0.03
STRIP_PARTS = (PRODUCTIVE, *(part.id for part in SLICES))


def ranks_text(ranks: Iterable[int | None]) -> str:
    """``rank 0-7``; files without a rank are ``no rank``."""
    given = list(ranks)
    known = [rank for rank in given if rank is not None]
    texts = [f"rank {units.ranges(known)}"] if known else []
    return " and ".join(texts + ["no rank"] * (None in given))


def warnings(report: Report, said_elsewhere: str | None = None) -> list[str]:
    """All warnings but the one given, each once; the same one of several ranks is headed by their numbers."""
    by_text: dict[str, list[int | None]] = defaultdict(list)
    for text in report.warnings:
        found = _OF_RANK.fullmatch(text)
        by_text[found[2] if found else text].extend([int(found[1])] if found else [])
    for one in report.inputs:
        for text in one.warnings:
            found = _OF_RANK.fullmatch(text)
            rank = int(found[1]) if found else one.rank
            # With one file there is nobody else it could be about.
            known = [rank] if rank is not None or len(report.inputs) > 1 else []
            by_text[found[2] if found else text].extend(known)
    return [
        f"{ranks_text(ranks)}: {brief(text, _WARNING_WIDTH)}" if ranks else brief(text, _WARNING_WIDTH)
        for text, ranks in by_text.items()
        if text != said_elsewhere
    ]


def qualities(inputs: Sequence[Input]) -> list[str]:
    """One line for each set of files that can tell the same; counts that differ are given as a range."""
    alike: dict[tuple[object, ...], list[Input]] = defaultdict(list)
    for one in inputs:
        alike[_kind(one.quality)].append(one)
    return [_quality_line(group) for group in alike.values()]


def _kind(quality: Quality | None) -> tuple[object, ...]:
    if quality is None:
        return (None,)
    counts = tuple(name for name in _COUNTS if getattr(quality, name))
    return (
        *(quality.dialect, quality.clock_base, quality.shapes, quality.stacks),
        *(quality.partial_first_step, quality.partial_last_step, counts),
        *(tuple(sorted(quality.dropped)), tuple(sorted(quality.clipped))),
    )


def _quality_line(group: list[Input]) -> str:
    """Who, how much, and what the group's files can and cannot tell."""
    size = units.size(sum(one.bytes for one in group))
    events = units.plural(sum(one.events for one in group), "event")
    files = brief(PurePath(group[0].path).name, 80) if len(group) == 1 else units.plural(len(group), "file")
    head = f"{ranks_text(one.rank for one in group)}: {files}, {size}, {events}"
    present = [one.quality for one in group if one.quality is not None]
    if not present:
        return f"{head}; quality not recorded"
    first = present[0]
    said = [
        brief(first.dialect),
        f"clock {brief(first.clock_base)}",
        "shapes" if first.shapes else "no shapes",
        "stacks" if first.stacks else "no stacks",
    ]
    said += ["first step partial"] * first.partial_first_step + ["last step partial"] * first.partial_last_step
    for name in _COUNTS:
        said += _spread([getattr(quality, name) for quality in present], name.replace("_", " "))
    for label in ("dropped", "clipped"):
        for what in sorted(getattr(first, label)):
            said += _spread([getattr(quality, label)[what] for quality in present], f"{brief(what)} {label}")
    return f"{head}; {', '.join(said)}"


def _spread(values: list[int], what: str) -> list[str]:
    low, high = min(values), max(values)
    if high == 0:
        return []
    return [f"{units.count(low)} {what}" if low == high else f"{units.count(low)} to {units.count(high)} {what}"]


def other_steps(steps: Sequence[OtherStep]) -> list[str]:
    """One line for each reason: how often, what it costs, and what that is when spread over the steps between."""
    by_reason: dict[str, list[OtherStep]] = defaultdict(list)
    for step in steps:
        by_reason[step.reason].append(step)
    lines = []
    for reason, group in sorted(by_reason.items(), key=lambda item: -sum(one.dur_ns for one in item[1])):
        numbers = sorted({one.step for one in group})
        cost = mean(one.dur_ns for one in group)
        gaps = {after - before for before, after in zip(numbers, numbers[1:], strict=False)}
        line = f"{brief(reason, 120)}: {units.plural(len(numbers), 'step')} ({units.ranges(numbers)})"
        line += f" on {ranks_text(one.rank for one in group)}, {units.time(cost)} each"
        if len(gaps) == 1:
            period = gaps.pop()
            line += f", every {units.plural(period, 'step')}: {units.time(cost / period)} a step"
        elif not gaps:
            line += ", period unknown (seen once)"
        else:
            line += f", every {min(gaps)} to {max(gaps)} steps"
        lines.append(line)
    return lines


@dataclass(frozen=True)
class RankLine:
    """One rank on one device over its counted steps: total ns of each part of `STRIP_PARTS` and of each leaf."""

    name: str
    rank: int
    host: str | None
    median_ns: int
    parts_ns: dict[str, int]
    leaves_ns: dict[str, int]

    @property
    def total_ns(self) -> int:
        """Duration of the counted steps together."""
        return sum(self.parts_ns.values())


def rank_lines(report: Report) -> list[RankLine]:
    """A line for each rank and device that has counted steps, in order of rank."""
    ordered = sorted(report.ranks, key=lambda rank: (rank.rank, -1 if rank.device is None else rank.device))
    several = len({rank.rank for rank in ordered}) < len(ordered)
    return [_rank_line(rank, counted, several) for rank in ordered if (counted := counted_steps(rank, report.job))]


def counted_steps(rank: RankSteps, job: Job) -> list[StepTime]:
    """The steps that the job's figures count: its numbers, without edges and other steps where any is left."""
    numbered = [step for step in rank.steps if step.step in set(job.steps)]
    return [step for step in numbered if step.class_ == "train" and not step.edge] or numbered


def _rank_line(rank: RankSteps, steps: list[StepTime], several_devices: bool) -> RankLine:
    leaves: dict[str, int] = defaultdict(int)
    parts: dict[str, int] = dict.fromkeys(STRIP_PARTS, 0)
    for step in steps:
        parts[PRODUCTIVE] += step.productive_ns
        for key, ns in step.leaves_ns.items():
            leaves[key] += ns
            part = key.partition("/")[0]
            parts[part if part in parts else "unexplained"] += ns
    name = rank_name(rank, several_devices=several_devices)
    return RankLine(name, rank.rank, rank.host, int(median(step.dur_ns for step in steps)), parts, dict(leaves))


def rank_name(rank: RankSteps, *, several_devices: bool) -> str:
    """``rank 3``; with its device where ranks have several."""
    return f"rank {rank.rank}" + (f" gpu {rank.device}" if several_devices and rank.device is not None else "")


class _OnHost(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def host(self) -> str | None: ...


_OneOnHost = TypeVar("_OneOnHost", bound=_OnHost)


def by_host(given: Iterable[_OneOnHost]) -> list[_OneOnHost]:
    """Ranks host by host, the host of the lowest rank first, in order of rank on each."""
    ordered = sorted(given, key=lambda one: one.rank)
    first: dict[str | None, int] = {}
    for one in ordered:
        first.setdefault(one.host, one.rank)
    return sorted(ordered, key=lambda one: (first[one.host], one.rank))


def worth_a_line(lines: list[RankLine], most: int) -> tuple[list[RankLine], str]:
    """At most `most` lines in order of rank, and a sentence about the rest.

    Where there are more ranks than lines, those unlike the median are kept, and one that stands for all the others.
    """
    if len(lines) <= most:
        return lines, ""
    distances = _distances(lines)
    by_distance = sorted(range(len(lines)), key=lambda at: (-distances[at], at))
    unlike = [at for at in by_distance if distances[at] > _ALIKE][: most - 1]
    typical = by_distance[-1]
    chosen = sorted({*unlike, typical})
    left_out = [at for at in range(len(lines)) if at not in chosen]
    alike = sum(distances[at] <= _ALIKE for at in left_out)
    notes = [f"{units.plural(alike, 'more rank')} like {lines[typical].name}"] if alike else []
    if alike < len(left_out):
        notes.append(f"{units.plural(len(left_out) - alike, 'more rank')} not shown, closer to the median than these")
    return [lines[at] for at in chosen], "; ".join(notes) + "."


def _distances(lines: list[RankLine]) -> list[float]:
    """How unlike the median each line is: shares that differ, and step time, added up (0.03 is three points)."""
    typical = {part: median(_portion(line, part) for line in lines) for part in STRIP_PARTS}
    typical_ns = median(line.median_ns for line in lines) or 1
    return [
        sum(abs(_portion(line, part) - typical[part]) for part in STRIP_PARTS) + abs(line.median_ns / typical_ns - 1)
        for line in lines
    ]


def _portion(line: RankLine, part: str) -> float:
    return line.parts_ns[part] / (line.total_ns or 1)
