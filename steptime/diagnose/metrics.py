"""The documented numbers that a rule may name, in one table, and the facts of a report that some of them rest on.

A metric that is not in `METRICS` does not exist; one that the traces can't tell is None with a reason, never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from steptime.diagnose.cause_metrics import CAUSE_METRICS
from steptime.diagnose.link_metrics import LINK_METRICS
from steptime.diagnose.reading import Metric, Part, Reading, Value, unknown
from steptime.diagnose.roof_metrics import ROOF_METRICS
from steptime.diagnose.time_metrics import TIME_METRICS
from steptime.model import Report


class Fact(NamedTuple):
    """A number in `Report.facts`: its name, unit and meaning, and why it may be missing."""

    name: str
    unit: str
    meaning: str
    why_missing: str


_NO_MEMORY_EVENTS = "the traces hold no [memory] events (profile_memory=True)"
_NO_TRANSFER = "no collective of 16 MiB or more, with size and members recorded, ran without other communication"
_NO_GROUPS = "no two groups of one kind moved equal bytes alone, with sizes and all their members recorded"

#: Totals are over the counted steps of all ranks; extremes are over ranks.
FACTS: tuple[Fact, ...] = (
    Fact("allocator.reserved_bytes", "bytes", "Most memory that the allocator held at once.", _NO_MEMORY_EVENTS),
    Fact("allocator.allocated_bytes", "bytes", "Most memory that tensors used at once.", _NO_MEMORY_EVENTS),
    Fact(
        "streams.alternating_ns",
        "ns",
        "Exposed communication on streams that had work ready and never ran beside compute, total.",
        "no two streams were checked for overlap",
    ),
    Fact(
        "collectives.last_exposed_ns",
        "ns",
        "Exposed time of the last all-reduce of each backward pass, total.",
        "no all-reduce was told to be the last of a backward pass",
    ),
    Fact(
        "collectives.unprefetched_ns",
        "ns",
        "Exposed time of all-gathers of parameters that ran between two pieces of compute and under none, total.",
        "no collective was recorded",
    ),
    Fact(
        "collectives.first_exposed_ns",
        "ns",
        "Exposed time of the first collective of each group in the recording, total.",
        "no collective was told to be the first of its group",
    ),
    Fact(
        "collectives.bus_bytes_per_s",
        "bytes/s",
        "Bus bandwidth of collectives of at least 16 MiB beside which no other communication ran, from the last arrival"
        " on: the median byte's of each kind and group, the slowest of these.",
        _NO_TRANSFER,
    ),
    Fact(
        "collectives.slowest_group_ratio",
        "ratio",
        "Transfer time in the slowest group over the median of the others of its kind, size and spread over hosts, at"
        " equal bytes; 1 if no group is slower by more than clocks and ends differ.",
        _NO_GROUPS,
    ),
    Fact("kernels.mean_ns", "ns", "Mean length of a kernel.", "the kernels were not all counted"),
    Fact("kernels.per_step", "count", "Kernels a rank and step.", "the kernels were not all counted"),
    Fact(
        "launch.runs_ns",
        "ns",
        "Time in runs of kernels shorter than their launch calls, total.",
        "runs of short kernels were not looked for",
    ),
    Fact(
        "norms.per_step",
        "count",
        "Gradient norms computed a rank and step.",
        "the traces do not show whether a gradient norm is computed",
    ),
    Fact(
        "job.tokens_per_step",
        "count",
        "Global tokens per optimizer update.",
        "tokens are not given (--tokens-per-step)",
    ),
)
_FACT = {fact.name: fact for fact in FACTS}


def fact(reading: Reading, name: str) -> Value:
    """A fact of the report, or why it is missing."""
    number = reading.report.facts.get(name)
    return Value(number) if number is not None else unknown(_FACT[name].why_missing)


def _fact_metric(name: str) -> Metric:
    row = _FACT[name]
    return Metric(name, row.unit, row.meaning, lambda reading: fact(reading, name))


def _fact_share(metric: str, name: str, leaf: str, meaning: str) -> Metric:
    """A total of the facts as a share of the step, taken from a leaf: what was found to be a wait is no part of it."""

    def read(reading: Reading) -> Value:
        value, whole = fact(reading, name), reading.leaf_ns(leaf)
        if value.number is None:
            return value
        if isinstance(whole, str):
            return unknown(whole)
        return reading.share([Part(leaf, min(round(value.number), whole), (f"fact:{name}",))])

    return Metric(metric, "share", meaning, read)


def _alternating(reading: Reading) -> Value:
    """Exposed communication of alternating streams, taken from the exposed leaves in proportion."""
    value = fact(reading, "streams.alternating_ns")
    exposed = {key: leaf.ns or 0 for key, leaf in reading.leaves.items() if key.startswith("exposed_comm/")}
    whole = sum(exposed.values())
    if value.number is None or not whole:
        return value if value.number is None else reading.share([])
    ratio = min(value.number / whole, 1.0)
    return reading.share([Part(key, int(ns * ratio), (f"alternating:{key}",)) for key, ns in exposed.items()])


def _quotient(upper: str, lower: str) -> Callable[[Reading], Value]:
    def read(reading: Reading) -> Value:
        top, bottom = fact(reading, upper), fact(reading, lower)
        for value in (top, bottom):
            if value.number is None:
                return value
        return Value((top.number or 0) / bottom.number) if bottom.number else unknown(f"{lower} is zero")

    return read


def _reserved_idle(reading: Reading) -> Value:
    reserved, allocated = fact(reading, "allocator.reserved_bytes"), fact(reading, "allocator.allocated_bytes")
    for value in (reserved, allocated):
        if value.number is None:
            return value
    return Value((reserved.number or 0) - (allocated.number or 0))


#: The facts that are metrics as they stand; `kernels.*` are metrics that fall back to the report's own lists.
def _first_exposed(reading: Reading) -> Value:
    if reading.report.alignment is not None:
        return unknown("the ranks were compared: what their starts cost stands in capture_skew")
    return _total_share(reading, "collectives.first_exposed_ns")


_PLAIN_FACTS = (
    "allocator.reserved_bytes",
    "allocator.allocated_bytes",
    "collectives.bus_bytes_per_s",
    "collectives.slowest_group_ratio",
    "norms.per_step",
    "job.tokens_per_step",
)

FACT_METRICS: tuple[Metric, ...] = (
    *(_fact_metric(name) for name in _PLAIN_FACTS),
    Metric(
        "allocator.reserved_ratio",
        "ratio",
        "Memory that the allocator held over what tensors used, both at their peak.",
        _quotient("allocator.reserved_bytes", "allocator.allocated_bytes"),
    ),
    Metric("allocator.unused_bytes", "bytes", "Memory held beyond what tensors used, at the peaks.", _reserved_idle),
    Metric("streams.alternating_share", "share", "Exposed communication that alternates with compute.", _alternating),
    _fact_share(
        "collectives.last_exposed_share",
        "collectives.last_exposed_ns",
        "exposed_comm/allreduce",
        "Exposed time of the last all-reduce of each backward pass.",
    ),
    _fact_share(
        "collectives.unprefetched_share",
        "collectives.unprefetched_ns",
        "exposed_comm/allgather",
        "Exposed all-gathers of parameters that were not started a layer ahead.",
    ),
    Metric(
        "collectives.first_exposed_share",
        "step share",
        "Exposed time of the first collective of each group.",
        _first_exposed,
    ),
    Metric(
        "launch.runs_share",
        "step share",
        "Time in runs of kernels shorter than their launch calls.",
        lambda reading: _total_share(reading, "launch.runs_ns"),
    ),
)


def _total_share(reading: Reading, name: str) -> Value:
    value = fact(reading, name)
    if value.number is None or not reading.total_ns:
        return value if value.number is None else unknown("no step was counted")
    return Value(value.number / reading.total_ns)


def _table(*groups: tuple[Metric, ...]) -> dict[str, Metric]:
    rows = [metric for group in groups for metric in group]
    table = {metric.id: metric for metric in rows}
    if len(table) != len(rows):
        raise ValueError("two metrics have one id")
    return table


METRICS: dict[str, Metric] = _table(TIME_METRICS, CAUSE_METRICS, ROOF_METRICS, LINK_METRICS, FACT_METRICS)


def measure(report: Report) -> dict[str, Value]:
    """Every metric of `METRICS`, read from the report alone."""
    return read_all(Reading(report))


def read_all(reading: Reading) -> dict[str, Value]:
    """Every metric of `METRICS` for a report that is already indexed."""
    return {name: metric.read(reading) for name, metric in METRICS.items()}
