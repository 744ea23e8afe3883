"""Which rank each file is, by the best evidence there is, and the refusal to guess where there is none.

Order of evidence: what the user said (one file only), what the file says (`distributedInfo` or a `Rank` argument),
the name of the file or of its folder, then, for one file alone, rank 0, and for files recorded together under names
that differ by one number only (`trace_0.json`, `trace_1.json`, … from 0 without a gap) that number. Files of one rank
whose recordings do not overlap in time are successive captures of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

import msgspec

from steptime.errors import RankError, UsageError


class RankClaim(msgspec.Struct, frozen=True):
    """What one file says of itself.

    declared_rank, world_size: None if it does not say. start_ns, end_ns: span of its activities, absolute.
    steps: numbers of its step marks. has_cpu: whether it holds host activity.
    """

    path: str
    declared_rank: int | None
    world_size: int | None
    start_ns: int
    end_ns: int
    steps: tuple[int, ...]
    has_cpu: bool


class RankAssignment(msgspec.Struct, frozen=True):
    """ranks, captures: one each per file, in the order given; captures count from 0 in time order within a rank."""

    ranks: list[int]
    captures: list[int]
    warnings: list[str]
    world_size: int | None


class NamePattern(msgspec.Struct, frozen=True):
    """A way of writing a rank into a name. pattern: one group, the digits, at most 6, so no time stamp or pid fits.

    in_folder: clear enough to be believed as the name of the folder that holds the file.
    """

    pattern: re.Pattern[str]
    in_folder: bool
    example: str


# The first row that fits decides; a row that gives two numbers for one name decides that the name tells nothing.
# Ranks inside a part of the job (tensor, pipeline, node, …) are not ranks of the job. A lone number is not one
# either: `host_4242` is a pid and `trace_05` an experiment.
NAME_PATTERNS: tuple[NamePattern, ...] = (
    NamePattern(
        re.compile(
            r"(?<![a-z])(?<!local[-_])(?<!local)(?<!node[-_])(?<!group[-_])(?<![tdpces]p[-_])(?<!moe[-_])"
            r"rank[-_=.]?([0-9]{1,6})(?![0-9])",
            re.IGNORECASE,
        ),
        in_folder=True,
        example="rank-3.pt.trace.json",
    ),
    NamePattern(
        re.compile(r"(?<![a-z])(?<!num[-_])worker[-_]?([0-9]{1,6})(?![0-9])", re.IGNORECASE),
        in_folder=False,
        example="worker3_step_12.pt.trace.json",
    ),
    NamePattern(
        re.compile(r"(?:^|(?<=[-_.]))r([0-9]{1,6})(?=[-_.])", re.IGNORECASE),
        in_folder=False,
        example="trace_r3.json",
    ),
)

_NUMBERED = re.compile(r"(.*[-_.])([0-9]{1,4})((?:\.pt)?(?:\.trace)?\.json(?:\.[a-z]+)?)")
_SHOWN = 6


def rank_in_name(path: str) -> int | None:
    """The rank that the name of a file, else of its folder, tells by `NAME_PATTERNS`; None if it tells none."""
    pure = PurePath(path.replace("\\", "/"))
    for name, patterns in (
        (pure.name, NAME_PATTERNS),
        (pure.parent.name, [row for row in NAME_PATTERNS if row.in_folder]),
    ):
        for row in patterns:
            numbers = {int(digits) for digits in row.pattern.findall(name)}
            if numbers:
                return numbers.pop() if len(numbers) == 1 else None
    return None


def assign_ranks(files: Sequence[RankClaim], explicit: int | None = None) -> RankAssignment:
    """Give each file its rank and its number among the captures of that rank. `explicit` is the user's `--rank`.

    Raises UsageError if `explicit` is given for several files; RankError if a rank can't be told, two recordings of
    one rank overlap, the files state different world sizes, or a rank does not fit the world size.
    """
    if explicit is not None and len(files) != 1:
        raise UsageError(f"--rank names the rank of one file, but {len(files)} files are given; leave it out")
    labels = _labels(files)
    world_size = _world_size(files, labels)
    warnings: list[str] = []
    ranks = [_only_rank(files[0], explicit, warnings)] if len(files) == 1 else _ranks_of_many(files, labels, warnings)
    _check_range(ranks, world_size, labels)
    captures = _captures(files, ranks, labels, warnings)
    warnings += _missing(ranks, world_size)
    return RankAssignment(ranks, captures, warnings, world_size)


def _labels(files: Sequence[RankClaim]) -> list[str]:
    """File names, where they tell the files apart, else paths."""
    names = [PurePath(file.path).name for file in files]
    return names if len(set(names)) == len(names) else [file.path for file in files]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _world_size(files: Sequence[RankClaim], labels: list[str]) -> int | None:
    stated = {file.world_size: label for file, label in reversed(list(zip(files, labels, strict=True)))}
    stated.pop(None, None)
    stated.pop(0, None)  # a process group that was never set up
    if len(stated) > 1:
        says = " and ".join(f"{label} says world_size {size}" for size, label in reversed(list(stated.items())))
        raise RankError(f"{says}: files of different jobs; analyse one job at a time")
    return next(iter(stated), None)


def _only_rank(file: RankClaim, explicit: int | None, warnings: list[str]) -> int:
    if explicit is not None:
        if file.declared_rank not in (None, explicit):
            warnings.append(
                f"{file.path}: the file says rank {file.declared_rank}; taken as rank {explicit}, as --rank says"
            )
        return explicit
    told = _told_rank(file, warnings)
    if told is None:
        warnings.append(f"{file.path}: neither the file nor its name tells a rank; taken as rank 0")
        return 0
    return told


def _told_rank(file: RankClaim, warnings: list[str]) -> int | None:
    told, named = file.declared_rank, rank_in_name(file.path)
    if told is None:
        return named
    if named is not None and named != told:
        warnings.append(f"{file.path}: its name says rank {named}, the file says rank {told}; taken as rank {told}")
    return told


def _ranks_of_many(files: Sequence[RankClaim], labels: list[str], warnings: list[str]) -> list[int]:
    told = [_told_rank(file, warnings) for file in files]
    unknown = [label for rank, label in zip(told, labels, strict=True) if rank is None]
    if len(unknown) == len(files) and _are_numbered(files):
        warnings.append(f"{_listed(labels)}: no distributedInfo; the last number of the name is taken as the rank")
        return [int(match[2]) for file in files if (match := _NUMBERED.fullmatch(PurePath(file.path).name))]
    if unknown:
        raise RankError(
            f"{_listed(unknown)}: no rank can be told (no distributedInfo, no rank in the name); "
            f"rename them like {NAME_PATTERNS[0].example}, or analyse one file at a time with --rank"
        )
    silent = [label for file, label in zip(files, labels, strict=True) if file.declared_rank is None]
    if silent:
        warnings.append(f"{_listed(silent)}: no distributedInfo; rank taken from the name")
    return [rank for rank in told if rank is not None]


def _are_numbered(files: Sequence[RankClaim]) -> bool:
    """Whether the files were recorded together and their names count 0, 1, 2, … and are else the same."""
    matches = [match for file in files if (match := _NUMBERED.fullmatch(PurePath(file.path).name))]
    numbers = sorted(int(match[2]) for match in matches)
    together = max(file.start_ns for file in files) < min(file.end_ns for file in files)
    alike = len({(match[1], match[3]) for match in matches}) == 1
    fits = {len(files), None} >= {file.world_size for file in files}
    return together and alike and fits and numbers == list(range(len(files)))


def _check_range(ranks: list[int], world_size: int | None, labels: list[str]) -> None:
    for rank, label in zip(ranks, labels, strict=True):
        if rank < 0 or (world_size is not None and rank >= world_size):
            limit = "ranks count from 0" if rank < 0 else f"its world_size is {world_size}"
            raise RankError(f"{label}: rank {rank} is not possible, {limit}; give the right one with --rank")


def _captures(files: Sequence[RankClaim], ranks: list[int], labels: list[str], warnings: list[str]) -> list[int]:
    """Number the files of each rank in time order."""
    members: dict[int, list[int]] = defaultdict(list)
    for i, rank in enumerate(ranks):
        members[rank].append(i)
    captures = [0] * len(files)
    for rank, group in members.items():
        group.sort(key=lambda i: (files[i].start_ns, files[i].end_ns))
        for number, i in enumerate(group):
            captures[i] = number
        for earlier, later in pairwise(group):
            if files[later].start_ns < files[earlier].end_ns or _span(files[later]) == _span(files[earlier]):
                raise RankError(_overlap(rank, files, labels, sorted((earlier, later))))
        if len(group) > 1:
            warnings += _note_captures(rank, [files[i] for i in group], [labels[i] for i in group])
    counts = {rank: len(group) for rank, group in members.items()}
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=lambda r: (counts[r], r)), max(counts, key=lambda r: (counts[r], -r))
        warnings.append(f"rank {least} has {counts[least]} capture(s), rank {most} has {counts[most]}")
    return captures


def _span(file: RankClaim) -> tuple[int, int]:
    return file.start_ns, file.end_ns


def _overlap(rank: int, files: Sequence[RankClaim], labels: list[str], pair: list[int]) -> str:
    first, second = (files[i] for i in pair)
    message = f"{labels[pair[0]]} and {labels[pair[1]]}: both claim rank {rank} at the same time; "
    if _span(first) == _span(second) and first.steps == second.steps:
        message += "the same recording twice, or a wrong rank in one: "
    elif first.has_cpu != second.has_cpu:
        message += f"{labels[pair[first.has_cpu]]} holds no host activity: "
    return message + "leave one out, or analyse them one at a time with --rank"


def _note_captures(rank: int, files: list[RankClaim], labels: list[str]) -> list[str]:
    repeated = {step for i, file in enumerate(files) for other in files[:i] for step in {*file.steps} & {*other.steps}}
    if not repeated:
        return []
    return [
        f"{_listed(labels)}: successive captures of rank {rank} that repeat step {_ranges(sorted(repeated))}; "
        "if they are different runs, analyse one at a time"
    ]


def _missing(ranks: list[int], world_size: int | None) -> list[str]:
    """Ranks without a file: of the world size, else those between the ranks at hand."""
    present = set(ranks)
    absent = sorted(set(range(world_size if world_size is not None else max(present, default=0))) - present)
    if not absent or (world_size is None and len(present) == 1):
        return []
    rank, have = ("rank", "has") if len(absent) == 1 else ("ranks", "have")
    who = f"{rank} {_ranges(absent)}"
    if world_size is None:
        return [f"{who} {have} no file, though rank {max(present)} has (no file states a world_size)"]
    return [f"{who} of world_size {world_size} {have} no file ({len(present)} of {world_size} analysed)"]


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as "1-3, 7"; only the first few ranges if there are many."""
    starts = [n for i, n in enumerate(numbers) if i == 0 or numbers[i - 1] != n - 1]
    ends = [n for i, n in enumerate(numbers) if i == len(numbers) - 1 or numbers[i + 1] != n + 1]
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    more = f", … ({len(numbers)} in all)" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more
