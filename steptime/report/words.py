"""Sentences that every view shares: the verdict, what was counted, and what MFU is or why it is not known."""

from __future__ import annotations

from steptime.model import Cause, Collective, Report, Straggler
from steptime.report import units
from steptime.report.ledger import COMPUTING, PRODUCTIVE, Row, ledger, points_text
from steptime.report.names import brief

#: Busy computing for at least this many tenths of a point: the device is the limit, whatever else costs little.
_BUSY_TENTHS = 900
#: Recompute worth naming in the verdict of a job whose device is always busy.
_RECOMPUTE_TENTHS = 50
_BUBBLE = "pipeline_bubble"
_BOUND_BY = {
    "exposed_comm": "Communication-bound",
    "pipeline_bubble": "Pipeline-bound",
    "stragglers": "Straggler-bound",
    "host": "Host-bound",
}


def is_one_window(report: Report) -> bool:
    """Whether no step was marked, so that the whole recording is the one "step" of each rank."""
    return "whole recording" in report.job.step_source.lower()


def computes_on_cpu(report: Report) -> bool:
    """Whether no rank used a device."""
    return report.job.device is None and all(rank.device is None for rank in report.ranks)


def a_step(report: Report) -> str:
    """What a mean is a mean of: `` a step``; nothing where there is only one window."""
    return "" if is_one_window(report) else " a step"


def per_step_ns(ns: int, report: Report) -> float:
    """A total as the mean per rank-step."""
    return ns / max(report.job.rank_steps, 1)


def devices(report: Report) -> str:
    """``8 × NVIDIA H100``, ``2 CPU ranks``, ``1 × unknown GPU``."""
    number = len(report.ranks) or report.job.ranks_analyzed
    if computes_on_cpu(report):
        return units.plural(number, "CPU rank")
    return f"{units.count(number)} × {brief(report.job.device or 'unknown GPU')}"


def verdict(report: Report) -> str:
    """One sentence that says what limits the step, and a second where that needs a caveat.

    A cause that the evidence does not carry is never the headline: idle time without a proven cause says "can't
    tell", and slow launches recorded together with Python stacks are named as the profiler's possible doing.
    """
    job = report.job
    if job.rank_steps <= 0 or job.total_ns <= 0:
        return f"No step could be measured in {units.plural(len(report.inputs), 'file')}: see the warnings."
    rows = ledger(job)
    busy = [row for row in rows if not row.is_leaf and row.key in COMPUTING]
    losses = [row for row in rows if not row.is_leaf and row.key not in COMPUTING]
    worst = max(losses, key=lambda row: row.ns or 0, default=None)
    if sum(row.tenths for row in busy) >= _BUSY_TENTHS or worst is None or not worst.ns:
        return _busy_verdict(report, rows, busy)
    if worst.key == "unexplained":
        return _unproven_verdict(report, rows, busy, worst)
    return _loss_verdict(report, rows, busy, worst)


def _when(report: Report) -> str:
    if not is_one_window(report):
        return f"median step {units.time(report.job.step_time_ns.median)} on {devices(report)}"
    window = units.time(per_step_ns(report.job.total_ns, report))
    return f"one window of {window} on {devices(report)} (no step marks, so no per-step average)"


def _device_word(report: Report) -> str:
    return "CPU" if computes_on_cpu(report) else "GPU"


def _percent(rows: list[Row]) -> str:
    ns = sum(row.ns or 0 for row in rows)
    return points_text(sum(row.tenths for row in rows), ns, rows[0].whole_ns if rows else 0) + " %"


def _computing(report: Report, busy: list[Row]) -> str:
    mfu = "" if report.job.mfu is None else f"MFU {units.share(report.job.mfu)}, "
    return f"{mfu}{_device_word(report)} computing {_percent(busy)}"


def _cost(report: Report, row: Row) -> str:
    amount = units.time(per_step_ns(row.ns or 0, report)) + a_step(report)
    if row.recoverable_ns is not None and row.recoverable_ns != row.ns:
        amount += f", {units.time(per_step_ns(row.recoverable_ns, report))} to gain"
    return f"{row.key}, {_percent([row])} of the {_whole(report)} ({amount})"


def _whole(report: Report) -> str:
    return "window" if is_one_window(report) else "step"


def _largest(rows: list[Row], slices: tuple[str, ...], *, skip: str | None = None) -> Row | None:
    """The largest leaf (or slice that has no leaf rows) of the given slices."""
    with_leaves = {row.key.partition("/")[0] for row in rows if row.is_leaf and row.ns}
    found = [
        row
        for row in rows
        if row.key.partition("/")[0] in slices and (row.is_leaf or row.key not in with_leaves) and row.ns
    ]
    return max((row for row in found if row.key != skip), key=lambda row: row.ns or 0, default=None)


def _largest_loss(rows: list[Row], *, skip: str | None = None) -> Row | None:
    """The named cause with the most to gain; all of its time where the gain is not known.

    Kernels count only where their gain is known: time at the roof is no loss.
    """
    found = [
        row
        for row in rows
        if row.ns
        and row.key != skip
        and row.key.partition("/")[0] not in (PRODUCTIVE, "unexplained")
        and _is_a_cause(row, rows)
        and (row.recoverable_ns is not None or not row.key.startswith("kernels"))
    ]
    return max(found, key=_gain_ns, default=None)


def _is_a_cause(row: Row, rows: list[Row]) -> bool:
    """A leaf, or a slice without any; of a bubble in several the whole: they are mostly places in the schedule."""
    slice_id = row.key.partition("/")[0]
    leaves = sum(other.key.startswith(f"{slice_id}/") and bool(other.ns) for other in rows)
    if slice_id == _BUBBLE and leaves > 1:
        return not row.is_leaf
    return row.is_leaf or not leaves


def _gain_ns(row: Row) -> int:
    return (row.ns or 0) if row.recoverable_ns is None else row.recoverable_ns


def _busy_verdict(report: Report, rows: list[Row], busy: list[Row]) -> str:
    job = report.job
    word = _device_word(report)
    mfu = "" if job.mfu is None else f", MFU {units.share(job.mfu)}"
    text = f"{word}-bound: {_when(report)}{mfu}, the {word} computes {_percent(busy)} of it"
    largest = _largest(rows, ("kernels",))
    if largest is not None:
        text += f", the largest part is {_cost(report, largest)}"
    again = [row for row in busy if row.key == "recompute" and row.tenths >= _RECOMPUTE_TENTHS]
    if again:
        text += f"; {_percent(again)} is recompute"
    return text + "."


def _unproven_verdict(report: Report, rows: list[Row], busy: list[Row], worst: Row) -> str:
    leaf = _largest(rows, ("unexplained",)) or worst
    amount = units.time(per_step_ns(worst.ns or 0, report)) + a_step(report)
    # The leaf's title repeats its id before the colon, which the key already names.
    evidence = leaf.title.partition(": ")[2]
    reason = f", most of it {leaf.key}{f': {evidence}' if evidence else ''}" if leaf.key != worst.key else ""
    text = (
        f"Can't tell: {_percent([worst])} of the {_whole(report)} ({amount}) has no proven cause{reason}; "
        f"{_when(report)}, {_computing(report, busy)}"
    )
    named = _largest_loss(rows, skip=_doubtful(report))
    return text + (f"; the largest named loss is {_cost(report, named)}." if named else ".")


def _loss_verdict(report: Report, rows: list[Row], busy: list[Row], worst: Row) -> str:
    largest = _largest_loss(rows, skip=_doubtful(report))
    largest_ns = _gain_ns(largest) if largest else 0
    doubt = next((row for row in rows if row.key == _doubtful(report) and _gain_ns(row) > largest_ns), None)
    doubt_ns = (doubt.ns or 0) if doubt else 0
    text = f"{_when(report)}: {_computing(report, busy)}"
    if largest is not None:
        text += f", the largest {'other ' if doubt else ''}loss is {_cost(report, largest)}"
    sound_ns = (worst.ns or 0) - (doubt_ns if worst.key == "host" else 0)
    prefix = _BOUND_BY.get(worst.key) if sound_ns > sum(row.ns or 0 for row in busy) else None
    text = f"{prefix}: {text}." if prefix else f"{text[0].upper()}{text[1:]}."
    if doubt is not None:
        return (
            f"{text} Can't tell whether {_cost(report, doubt)}, is real: stacks were recorded, which slows the host; "
            "record without stacks, or pass --unprofiled-step-ms."
        )
    if worst.key == "exposed_comm" and _waits_hidden(report):
        text += " A wait for a late rank would be in it: these files can't tell the two apart."
    return text


def _doubtful(report: Report) -> str | None:
    """The leaf that recording stacks inflates, unless the profiler's own cost was taken out of it."""
    corrected = any(leaf.id == "profiler_overhead" and leaf.ns for part in report.job.slices for leaf in part.leaves)
    stacks = any(one.quality is not None and one.quality.stacks for one in report.inputs)
    return "host/launch_bound" if stacks and not corrected else None


def _waits_hidden(report: Report) -> bool:
    return all(part.ns is None for part in report.job.slices if part.id == "stragglers")


def counted(report: Report) -> str:
    """What the figures are drawn from, and the spread of the step time."""
    job = report.job
    ranks = units.plural(job.ranks_analyzed, "rank")
    if job.world_size is not None and job.world_size != job.ranks_analyzed:
        ranks = f"{units.count(job.ranks_analyzed)} of {units.plural(job.world_size, 'rank')}"
    if is_one_window(report):
        return f"One window of {ranks}: {brief(job.step_source, 120)}."
    spread = job.step_time_ns
    edges = len({step.step for rank in report.ranks for step in rank.steps if step.edge} - set(job.steps))
    left_out = f"; {units.plural(edges, 'edge step')} left out" if edges else ""
    steps = f"{units.plural(len(job.steps), 'step')} ({units.ranges(job.steps)})" if job.steps else "No steps"
    return (
        f"{steps} of {ranks}, told by {brief(job.step_source, 120)}{left_out}. "
        f"Step time p10 {units.time(spread.p10)}, median {units.time(spread.median)}, p90 {units.time(spread.p90)}."
    )


def mfu_warning(report: Report) -> str | None:
    """The warning that says why MFU is not known; views print it beside MFU and not again."""
    if report.job.mfu is not None:
        return None
    return next((text for text in report.warnings if "mfu" in text.lower()), None)


def mfu_line(report: Report) -> str:
    """MFU with what it stands on; where it is not known, the warning that says why."""
    job = report.job
    if job.mfu is None:
        why = mfu_warning(report)
        return f"MFU: can't tell. {brief(why, 400)}" if why else "MFU: can't tell (FLOPs or the device's peak unknown)."
    parts = [f"MFU {units.share(job.mfu)}"]
    if job.reference_dtype and job.peak_flops and job.reference_dtype in job.peak_flops:
        parts[0] += f" of {units.rate(job.peak_flops[job.reference_dtype])} dense {brief(job.reference_dtype)}"
    if job.hfu is not None:
        parts.append(f"HFU, which counts recompute, {units.share(job.hfu)}")
    parts += [f"{brief(name)} {units.share(value)}" for name, value in (job.mfu_by or {}).items()]
    if job.flops_source:
        parts.append(f"FLOPs from {brief(job.flops_source)}")
    return "; ".join(parts) + "."


def evidence(cause: Cause, report: Report) -> str:
    """Where a cause is booked and how often it was seen: ``host/data_loader, 6× in 6/6 steps``."""
    one = "window" if is_one_window(report) else "step" if report.job.ranks_analyzed == 1 else "rank-step"
    seen = f"{units.count(cause.rank_steps)}/{units.plural(report.job.rank_steps, one)}"
    return f"{brief(cause.leaf)}, {units.count(cause.count)}× in {seen}"


def place(cause: Cause) -> str | None:
    """Where in the program a cause is; None where that only repeats that it is a collective."""
    return None if cause.where == "record_param_comms" else cause.where


def mean_of(report: Report) -> str:
    """What the means are taken over: ``6 rank-steps``."""
    return units.plural(report.job.rank_steps, "rank-window" if is_one_window(report) else "rank-step")


def whom(one: Straggler) -> str:
    """Who is meant: a rank, several, or a host."""
    if one.host is not None and one.rank is None and one.ranks:
        return f"host {brief(one.host, 60)} (ranks {units.ranges(one.ranks)})"
    if one.rank is not None:
        return f"rank {one.rank}" + ("" if one.recorded else " (its file is not there)")
    return _numbered("rank", one.ranks) if one.ranks else "a different rank each time"


def _numbered(what: str, numbers: list[int]) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {units.ranges(numbers)}"


def stragglers(report: Report) -> list[str]:
    """One line for each straggler, or that there is none; empty where ranks were not compared."""
    if report.alignment is None:
        return []
    error_ns = report.alignment.error_ns
    apart = f"clocks within {units.time(error_ns)} of each other" if error_ns else "on one clock"
    partners = f"{units.count(report.alignment.matched)} collective calls matched"
    if not report.stragglers and report.alignment.unjudged is not None:
        return [f"Can't tell: {report.alignment.unjudged} ({partners}, {apart})."]
    if not report.stragglers:
        return [f"No straggler beyond what clocks and jitter explain ({partners}, {apart})."]
    lines = []
    for one in report.stragglers:
        cost = units.time(one.lost_ns // max(len(one.steps), 1))
        through = f", through {_numbered('rank', one.through)}" if one.through else ""
        causes = ", also ".join([one.cause, *one.also])
        lines.append(
            f"{whom(one)}: {brief(causes, 100)}{through}; costs each other rank {cost} a step "
            f"({units.share(min(one.share, 1.0))}) in {_numbered('step', one.steps)} ({brief(one.kind, 40)})."
        )
    return [*lines, f"{partners[0].upper()}{partners[1:]}, {apart}."]


def bandwidth(one: Collective) -> str:
    """Bus bandwidth of a row of collectives: ``312 GB/s, 69.3 % of its links``."""
    if one.bus_bytes_per_s is None:
        return "not known"
    text = f"{units.size(round(one.bus_bytes_per_s))}/s"
    return text if one.link_share is None else f"{text}, {units.share(one.link_share)} of its links"


def bandwidth_notes(report: Report) -> list[str]:
    """What the bus bandwidths count, and why some are not known; empty where none is."""
    if all(one.bus_bytes_per_s is None for one in report.collectives):
        return []
    note = "Bus bandwidth counts from the last arrival on: what each rank must send of the messages, over the time."
    if any(one.link_share is not None for one in report.collectives):
        note += " Shares are of all links of a GPU in one direction; NCCL's in-switch reduction may exceed them."
    missing: dict[str, list[str]] = {}
    for one in report.collectives:
        if one.bus_bytes_per_s is None and one.why:
            missing.setdefault(one.why, []).append(f"{one.kind} ({one.group})" if one.group else one.kind)
    return [note, *(f"Not known for {brief(', '.join(names), 120)}: {why}." for why, names in missing.items())]
