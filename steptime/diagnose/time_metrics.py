"""Metrics of time: shares of slices and leaves, what of them may come back; steps, ranks, quality of the traces."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from steptime.diagnose.reading import NO_STEPS, Metric, Part, Reading, Value, by_leaf, by_slice, unknown
from steptime.model import Straggler

#: With fewer steps a percentile is the extreme itself, and a spread says nothing.
_MIN_STEPS = 4
#: A rank can be called slow against its peers from three on: of two, either may be the odd one.
_MIN_RANKS = 3
_ONE_RANK = "it needs the files of at least three ranks: one rank can't show that it is slower than its peers"
_NOT_COMPARED = "the ranks were not compared: one rank can't show that it is slower than its peers"
_EDGES = "only edge steps were recorded, and those begin when each rank's recording happened to begin"
_NO_QUALITY = "the report does not say what its files can tell"
_COMPILING_STEP = 0.01


def _slice_share(slice_id: str) -> Metric:
    def read(reading: Reading) -> Value:
        ns = reading.slice_ns(slice_id)
        if isinstance(ns, str):
            return unknown(ns)
        own = [(key, leaf) for key, leaf in reading.leaves.items() if key.startswith(f"{slice_id}/")]
        whole = reading.share([Part(slice_id, ns)]).number
        return Value(whole, parts=tuple(Part(key, leaf.ns) for key, leaf in own if leaf.ns))

    return Metric(f"share.{slice_id}", "share", f"All of the slice {slice_id}.", read)


def _leaf_share(key: str) -> Metric:
    return Metric(f"share.{key.replace('/', '.')}", "share", f"The leaf {key}.", lambda reading: reading.share_of(key))


def _recoverable(key: str) -> Metric:
    """The recoverable part of a leaf; the whole leaf is its upper bound, except for kernels, which must run."""

    def read(reading: Reading) -> Value:
        ns = reading.leaf_ns(key)
        if isinstance(ns, str):
            return unknown(ns)
        leaf = reading.leaves.get(key)
        bound = leaf.recoverable_ns if leaf is not None else 0
        if bound is None and key.startswith("kernels/") and not key.endswith(("/precision", "/comm_contention")):
            return unknown("the roof of these kernels is not known: shapes or the device's peak are missing")
        return reading.share([Part(key, ns if bound is None else min(bound, ns))])

    meaning = f"What of {key} may come back: its part above the achievable roof; all of it where no roof applies."
    return Metric(f"recoverable.{key.replace('/', '.')}", "share", meaning, read)


def _number(number: float | None, why: str) -> Value:
    return Value(number) if number is not None else unknown(why)


def _mfu(reading: Reading) -> Value:
    return _number(reading.job.mfu, "MFU is not known: the FLOPs of the ops or the peak of the device are missing")


def _coverage(reading: Reading) -> Value:
    return _number(reading.job.flops_coverage, "FLOPs are not counted in this report")


def _above_peak(reading: Reading) -> Value:
    ns = reading.job.above_peak_ns
    if ns is None or not reading.total_ns:
        return unknown("FLOPs are not counted in this report")
    return Value(ns / reading.total_ns)


def _missing_ranks(reading: Reading) -> Value:
    world = reading.job.world_size
    if world is None:
        return unknown("the traces do not say how many ranks the job has")
    return Value(max(world - reading.job.ranks_analyzed, 0))


def _edge_only(reading: Reading) -> Value:
    return unknown(NO_STEPS) if reading.edge_only is None else Value(float(reading.edge_only))


def _spread(reading: Reading) -> Value:
    times = reading.job.step_time_ns
    if reading.rank_steps < _MIN_STEPS or times.p10 <= 0:
        return unknown(f"it needs at least {_MIN_STEPS} counted steps")
    return Value(times.p90 / times.p10)


def _jitter(reading: Reading) -> Value:
    """What steps take beyond the median of their own rank."""
    by_rank: dict[tuple[int, int | None], list[int]] = {}
    for rank, step in reading.counted:
        by_rank.setdefault((rank.rank, rank.device), []).append(step.dur_ns)
    if not by_rank or min(len(times) for times in by_rank.values()) < _MIN_STEPS or not reading.total_ns:
        return unknown(f"it needs at least {_MIN_STEPS} counted steps on each rank")
    excess = sum(max(took - median(times), 0) for times in by_rank.values() for took in times)
    return Value(excess / reading.total_ns)


def _other_share(reading: Reading) -> Value:
    other = sum(step.dur_ns for step in reading.report.other_steps)
    known = sum(step.dur_ns for rank in reading.report.ranks for step in rank.steps if step.class_ == "train")
    return Value(other / (other + known)) if other + known else unknown(NO_STEPS)


def _other_period(reading: Reading) -> Value:
    numbers = sorted({step.step for step in reading.report.other_steps})
    if len(numbers) < 2:
        return unknown("fewer than two steps that are no training steps were recorded")
    return Value(median(after - before for before, after in zip(numbers, numbers[1:], strict=False)))


def _checkpoint_steps(reading: Reading) -> Value:
    return Value(sum("checkpoint" in step.reason for step in reading.report.other_steps))


def _files(reading: Reading, name: str) -> Value:
    known = [one.quality for one in reading.report.inputs if one.quality is not None]
    if not known:
        return unknown(_NO_QUALITY)
    return Value(sum(bool(getattr(quality, name)) for quality in known) / len(known))


def _lost_events(reading: Reading) -> Value:
    known = [one.quality for one in reading.report.inputs if one.quality is not None]
    if not known:
        return unknown(_NO_QUALITY)
    return Value(sum(one.launches_without_kernels + sum(one.dropped.values()) for one in known))


def _no_host_ops(reading: Reading) -> Value:
    return reading.named_share("unexplained/unexplained", r"^no host ops were recorded$")


def _compile_steps(reading: Reading) -> Value:
    """The fraction of counted steps in which compiling takes at least a percent."""
    if not reading.counted:
        return unknown(NO_STEPS)
    hit = [step.leaves_ns.get("host/compile", 0) >= _COMPILING_STEP * step.dur_ns > 0 for _, step in reading.counted]
    return Value(sum(hit) / len(hit))


def rank_means_ns(reading: Reading, slice_id: str) -> dict[int, float]:
    """Mean time a counted step of each rank spends in a slice; useful work counts as ``kernels``."""
    times: dict[int, list[int]] = {}
    for rank, step in reading.counted:
        own = sum(ns for key, ns in step.leaves_ns.items() if key.startswith(f"{slice_id}/"))
        times.setdefault(rank.rank, []).append(own + (step.productive_ns if slice_id == "kernels" else 0))
    return {rank: sum(each) / len(each) for rank, each in times.items()}


def _compute_ratio(reading: Reading) -> Value:
    means = list(rank_means_ns(reading, "kernels").values())
    if reading.edge_only or len(means) < _MIN_RANKS or not median(means):
        return unknown(_EDGES if reading.edge_only else _ONE_RANK)
    return Value(max(means) / median(means))


def _host_excess(reading: Reading) -> Value:
    means = list(rank_means_ns(reading, "host").values())
    if reading.edge_only or len(means) < _MIN_RANKS or not reading.rank_steps:
        return unknown(_EDGES if reading.edge_only else _ONE_RANK)
    return Value((max(means) - median(means)) / (reading.total_ns / reading.rank_steps))


def _named(causes: Callable[[Straggler], bool]) -> Callable[[Reading], Value]:
    """How many single ranks held up the others for such a reason; none is unknown where not all could be judged."""

    def read(reading: Reading) -> Value:
        alignment = reading.report.alignment
        if reading.edge_only or alignment is None:
            return unknown(_EDGES if reading.edge_only else _NOT_COMPARED)
        found = {one.rank for one in reading.report.stragglers if one.rank is not None and causes(one)}
        return Value(len(found)) if found or alignment.unjudged is None else unknown(alignment.unjudged)

    return read


TIME_METRICS: tuple[Metric, ...] = (
    *by_slice(_slice_share),
    *by_leaf(_leaf_share),
    *by_leaf(_recoverable),
    Metric("job.mfu", "fraction", "Useful FLOPs over the dense peak of the reference dtype.", _mfu),
    Metric("job.flops_coverage", "fraction", "Matmul, convolution and attention time with known FLOPs.", _coverage),
    Metric(
        "job.above_peak_share", "step share", "Useful work that did not fit into the time of its kernels.", _above_peak
    ),
    Metric("ranks.analyzed", "count", "Ranks with a file.", lambda reading: Value(reading.job.ranks_analyzed)),
    Metric("ranks.missing", "count", "Ranks of the job without a file.", _missing_ranks),
    Metric("ranks.compute_ratio", "ratio", "Kernel time of the slowest rank over the median rank's.", _compute_ratio),
    Metric(
        "ranks.slower",
        "count",
        "Ranks that held up the others with slower kernels.",
        _named(lambda one: one.cause == "slower kernels"),
    ),
    Metric(
        "ranks.host_late",
        "count",
        "Ranks that held up the others with something that their host did.",
        _named(lambda one: (one.leaf or "").startswith("host/")),
    ),
    Metric(
        "ranks.host_excess",
        "step share",
        "Host time of the rank that has most, beyond the median rank's.",
        _host_excess,
    ),
    Metric("steps.counted", "count", "Counted (rank, step) pairs.", lambda reading: Value(reading.rank_steps)),
    Metric("steps.edge_only", "yes", "Every counted step is an edge step: its true start is not known.", _edge_only),
    Metric("steps.spread", "ratio", "Step time, 90th over 10th percentile.", _spread),
    Metric("steps.jitter_share", "step share", "What steps take beyond the median of their own rank.", _jitter),
    Metric("steps.other_share", "fraction", "Recorded time in steps that are no training steps.", _other_share),
    Metric("steps.other_period", "count", "Steps from one such step to the next, median.", _other_period),
    Metric("steps.checkpoints", "count", "Recorded steps that hold a checkpoint.", _checkpoint_steps),
    Metric("quality.shapes", "fraction", "Files that hold shapes.", lambda reading: _files(reading, "shapes")),
    Metric("quality.stacks", "fraction", "Files that hold Python stacks.", lambda reading: _files(reading, "stacks")),
    Metric(
        "quality.lost_events", "count", "Launches without kernels, and events that had to be dropped.", _lost_events
    ),
    Metric(
        "quality.no_host_ops_share", "share", "Idle time that no host event can explain: none recorded.", _no_host_ops
    ),
    Metric("host.compile_steps", "fraction", "Counted steps that spend at least 1 % compiling.", _compile_steps),
)
