"""A report as metrics read it: leaves, counted steps and causes by name, each number known or unknown with a reason.

Nothing here judges. Zero means "measured, and there was none"; what the traces can't tell is a `Value` with no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from steptime.model import Cause, LeafTotal, RankSteps, Report, SliceTotal, StepTime
from steptime.taxonomy import LEAVES, SLICES

NO_STEPS = "no step was counted"
#: The part of a leaf that the lists of causes or kernels may leave out and still be taken for whole: a fifth of the
#: leaf, or a percent of the step where the leaf is small.
_UNLISTED_OF_LEAF = 0.2
_UNLISTED_OF_STEP = 0.01

#: Leaves that rest on an event which most recordings lack: none found is no proof that there was none.
_NEEDS_EVENT = {
    "host/gc": "garbage collection leaves no event in a trace without stacks or the capture hook",
    "host/checkpoint": "no checkpoint event lies in the counted steps; only stacks or the capture hook leave one",
    "host/profiler_overhead": "the length of a step without the profiler is not given (--unprofiled-step-ms)",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Time of one leaf, ns over the counted steps; `items` name what exactly it is, so that it is promised once."""

    leaf: str
    ns: int
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A measured number, or None with the reason. `parts` say which time a share consists of, where that is known."""

    number: float | None
    why: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a rule may name: its id, unit (`UNITS`), one sentence of meaning, and how it is read."""

    id: str
    unit: str
    meaning: str
    read: Callable[[Reading], Value]


#: unit -> what it is.
UNITS = {
    "share": "share of the counted step time, 0 to 1; it knows its leaves, so that a rule may promise it",
    "step share": "share of the counted step time, 0 to 1, of no leaf by itself: a rule may give it as a cost",
    "fraction": "fraction of a whole that the meaning names, 0 to 1",
    "ratio": "ratio of two like numbers",
    "count": "count",
    "yes": "1 yes, 0 no",
    "ns": "nanoseconds",
    "bytes": "bytes",
    "bytes/s": "bytes per second",
}


def unknown(why: str) -> Value:
    """No number, because."""
    return Value(None, why)


class Reading:
    """One report, indexed for metrics."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.job = report.job
        self.total_ns = report.job.total_ns
        self.rank_steps = report.job.rank_steps

    @cached_property
    def slices(self) -> dict[str, SliceTotal]:
        """Slices of the job by id."""
        return {part.id: part for part in self.job.slices}

    @cached_property
    def leaves(self) -> dict[str, LeafTotal]:
        """Leaves of the job by ``"slice/leaf"``; those that are zero may be absent."""
        return {f"{part.id}/{leaf.id}": leaf for part in self.job.slices for leaf in part.leaves}

    def slice_ns(self, slice_id: str) -> int | str:
        """Total of a slice in ns, or why it is unknown."""
        part = self.slices.get(slice_id)
        if part is None or not self.total_ns:
            return NO_STEPS if not self.total_ns else f"the report has no slice {slice_id}"
        return part.ns if part.ns is not None else self._why(part.leaves)

    def leaf_ns(self, key: str) -> int | str:
        """Total of a leaf in ns, or why it is unknown."""
        leaf = self.leaves.get(key)
        if leaf is not None and leaf.ns is None:
            return self._why([leaf])
        if leaf is not None and leaf.ns:
            return leaf.ns
        whole = self.slice_ns(key.partition("/")[0])
        if isinstance(whole, str):
            return whole
        return _NEEDS_EVENT.get(key) or self._undecided(key) or 0

    def _undecided(self, key: str) -> str | None:
        """Why a leaf of zero is no measurement."""
        if key == "kernels/precision" and self.job.flops_source is None:
            return "the FLOPs of the ops, or the peak of the device, are not known"
        if key == "unexplained/capture_skew" and self.job.ranks_analyzed < 2:
            return "it needs the files of several ranks"
        return None

    @staticmethod
    def _why(leaves: Sequence[LeafTotal]) -> str:
        return next((str(leaf.detail["why"]) for leaf in leaves if leaf.detail.get("why")), "not told by these traces")

    def share(self, parts: Sequence[Part]) -> Value:
        """The parts as a share of the counted step time."""
        if not self.total_ns:
            return unknown(NO_STEPS)
        return Value(sum(part.ns for part in parts) / self.total_ns, parts=tuple(part for part in parts if part.ns > 0))

    def share_of(self, key: str) -> Value:
        """A leaf as a share of the counted step time."""
        ns = self.leaf_ns(key)
        return unknown(ns) if isinstance(ns, str) else self.share([Part(key, ns)])

    def per_step(self, count: float) -> Value:
        """A count over all counted (rank, step) pairs, per pair."""
        return Value(count / self.rank_steps) if self.rank_steps else unknown(NO_STEPS)

    @cached_property
    def counted(self) -> list[tuple[RankSteps, StepTime]]:
        """The (rank, step) pairs of the job's figures: its numbers, without edges and other steps where any is left."""
        numbers = set(self.job.steps)
        found: list[tuple[RankSteps, StepTime]] = []
        for rank in self.report.ranks:
            own = [step for step in rank.steps if step.step in numbers]
            best = [step for step in own if step.class_ == "train" and not step.edge] or own
            found += [(rank, step) for step in best]
        return found

    @property
    def edge_only(self) -> bool | None:
        """Whether every counted step is an edge step; None without steps."""
        return all(step.edge for _, step in self.counted) if self.counted else None

    @cached_property
    def listed_ns(self) -> dict[str, int]:
        """ns of each leaf that the report's causes name."""
        total: dict[str, int] = {}
        for cause in self.report.causes:
            total[cause.leaf] = total.get(cause.leaf, 0) + cause.ns
        return total

    def causes(self, leaf: str, pattern: str = "") -> list[tuple[int, Cause]]:
        """Causes of a leaf whose what or where matches `pattern`, with their place in the report."""
        search = re.compile(pattern).search
        return [
            (at, cause)
            for at, cause in enumerate(self.report.causes)
            if cause.leaf == leaf and (search(cause.what) or search(cause.where or ""))
        ]

    def named_share(self, leaf: str, pattern: str) -> Value:
        """Share of the step that causes matching `pattern` hold in a leaf; at least that, since the list is cut.

        Unknown where nothing matches and the listed causes leave too much of the leaf unnamed.
        """
        ns = self.leaf_ns(leaf)
        if isinstance(ns, str):
            return unknown(ns)
        parts = [Part(leaf, cause.ns, (f"cause:{at}",)) for at, cause in self.causes(leaf, pattern)]
        unlisted = ns - self.listed_ns.get(leaf, 0)
        if not parts and unlisted > max(_UNLISTED_OF_LEAF * ns, _UNLISTED_OF_STEP * self.total_ns):
            return unknown(f"the report names the causes of only {1 - unlisted / ns:.0%} of {leaf}")
        return self.share(parts)


def by_leaf(make: Callable[[str], Metric]) -> list[Metric]:
    """One metric for each leaf."""
    return [make(leaf.key) for leaf in LEAVES]


def by_slice(make: Callable[[str], Metric]) -> list[Metric]:
    """One metric for each slice."""
    return [make(part.id) for part in SLICES]
