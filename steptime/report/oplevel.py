"""An op-level job as text for a terminal: the verdict, how slow the job is, and which part of it costs what."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from steptime.model.oplevel import OpLevelReport, Slowdown, Worker
from steptime.report import units
from steptime.report.names import brief

_WIDTHS = (72, 120)
#: Parts of one kind that get a line; the rest are counted.
_SHOWN = 12
_NAMED = 4
#: From this on the delays between ops, which no replay has, are worth a warning (the artifact splits them then).
_DELAYED = 1.03
_MEAN_OF_OTHERS = "the mean of the others"


def render(report: OpLevelReport, width: int | None = None) -> str:
    """Return the report as text of at most `width` columns (72 to 120; None: those of the terminal)."""
    columns = shutil.get_terminal_size((100, 40)).columns if width is None else width
    columns = max(_WIDTHS[0], min(columns, _WIDTHS[1]))
    lines = [*_wrapped(f"{brief(report.name)}: {verdict(report)}", columns), ""]
    for sentence in _counted(report):
        lines += _wrapped(sentence, columns)
    lines += ["", *_wrapped("Slowdown if one part keeps its recorded times and all else takes the usual ones", columns)]
    stages = {str(at): units.time(ns) for at, ns in enumerate(report.unevenness.stage_ns)}
    lines += _table("op type (S_t)", report.by_type, {k: units.time(ns) for k, ns in report.ideal_op_ns.items()})
    lines += _table("stage (S_p)", report.by_stage, stages)
    lines += _table("dp rank (S_d)", report.by_dp_rank, {})
    lines += ["", "What accounts for the slowdown  (share of what usual times would save)"]
    for share, what in _shares(report):
        lines += _wrapped(what, columns, f"{_signed(share):>9}  ")
    lines += _wrapped(_correlation(report), columns, "           ")
    for warning in _warnings(report):
        lines += ["", *_wrapped(warning, columns, "! ")]
    return "\n".join(lines) + "\n"


def verdict(report: OpLevelReport) -> str:
    """What slows the job down, in one sentence."""
    uneven = report.unevenness
    if report.cause == "worker":
        who = _names(report.culprits)
        are = "one worker is slow" if len(report.culprits) == 1 else f"{len(report.culprits)} workers are slow"
        its = "its" if len(report.culprits) == 1 else "their"
        return f"{are}: {who}; at {its} stage's median pace {_signed(uneven.slow_workers)} of the slowdown goes."
    if report.cause == "stage" and report.stage is not None:
        last = ", the last," if report.stage == report.pp_size - 1 else ""
        return (
            f"stage {report.stage}{last} is too long: {_stage_factor(report)}; with stages alike "
            f"{_signed(uneven.stages)} of the slowdown goes."
        )
    if report.cause == "sequence_lengths":
        return (
            "sequences differ in length: forward and backward of a micro-batch are long or short together "
            f"(correlation {_ratio(uneven.correlation)}), and with micro-batches alike {_signed(uneven.micro_batches)} "
            "of the slowdown goes."
        )
    if report.cause == "none":
        step_ns = sum(report.replayed_ns) / len(report.steps)
        return f"no straggler: a step takes {units.time(step_ns)}, with usual times {units.time(report.ideal_ns)}."
    return f"can't tell what slows the job down: {report.why}."


def _counted(report: OpLevelReport) -> list[str]:
    recorded, replayed = (sum(ns) / len(ns) for ns in (report.recorded_ns, report.replayed_ns))
    micro_batches = units.plural(report.micro_batches, "micro-batch", "micro-batches")
    return [
        f"{units.plural(len(report.steps), 'step')} of {units.plural(report.dp_size * report.pp_size, 'worker')} "
        f"({units.plural(report.dp_size, 'dp rank')}, {units.plural(report.pp_size, 'stage')}; a job of "
        f"{units.plural(report.world_size, 'rank')}), {micro_batches} a step.",
        f"Mean step: {units.time(recorded)} as recorded; {units.time(replayed)} replayed, without delays between ops "
        f"({units.difference(replayed / recorded - 1)}); {units.time(report.ideal_ns)} if each op took the usual time "
        f"of its type. Slowdown S = {report.slowdown:.4f}.",
    ]


def _table(head: str, rows: Sequence[Slowdown], extra: dict[str, str]) -> list[str]:
    """A line for each part, costliest first."""
    ordered = sorted(rows, key=lambda row: -row.slowdown)[:_SHOWN]
    title = {"op type (S_t)": "usual", "stage (S_p)": "micro-batch"}.get(head, "")
    lines = ["", f"  {head:<30}{'slowdown':>10}{'mean step':>12}{title:>14}".rstrip()]
    for row in ordered:
        mean = units.time(sum(row.step_ns) / len(row.step_ns))
        lines.append(f"  {row.name:<30}{row.slowdown:>10.4f}{mean:>12}{extra.get(row.name, ''):>14}".rstrip())
    if len(rows) > len(ordered):
        lines.append(f"  {len(rows) - len(ordered)} more, at most {ordered[-1].slowdown:.4f}")
    return lines


def _shares(report: OpLevelReport) -> list[tuple[float | None, str]]:
    uneven = report.unevenness
    return [
        (report.worst_workers.share, f"the slowest 3 % of workers (M_W): {_names(report.worst)}"),
        (report.last_stage.share, f"the last stage (M_S): {_stage_factor(report, report.pp_size - 1)}"),
        (uneven.workers, "workers alike: each computes as fast as the median one of its stage"),
        (uneven.stages, "stages alike: their median workers compute equally long"),
        (uneven.micro_batches, "micro-batches alike: each takes the mean of its worker"),
    ]


def _stage_factor(report: OpLevelReport, stage: int | None = None) -> str:
    at = report.stage if stage is None else stage
    times = report.unevenness.stage_ns
    if at is None or len(times) < 2:
        return "the only stage"
    others = (sum(times) - times[at]) / (len(times) - 1)
    factor = f", {times[at] / others:.2f} times {_MEAN_OF_OTHERS}" if others > 0 else ""
    return f"forward and backward of a micro-batch take {units.time(times[at])}{factor}"


def _correlation(report: OpLevelReport) -> str:
    value = report.unevenness.correlation
    if value is None:
        return "forward and backward of the micro-batches do not vary"
    return f"forward and backward of a micro-batch correlate by {_ratio(value)} (0.90 and more: by sequence lengths)"


def _warnings(report: OpLevelReport) -> list[str]:
    found = []
    if report.launch_slowdown >= _DELAYED:
        found.append(
            f"Delays between ops make the recorded step {units.difference(report.launch_slowdown - 1)} longer; nothing "
            "above accounts for them."
        )
    if report.reordered:
        total = len(report.steps) * report.dp_size * report.pp_size
        found.append(
            f"In {units.count(report.reordered)} of {units.count(total)} worker-steps the computes ran in another "
            "order than in the first step of dp rank 0, which is the order replayed."
        )
    return found


def _names(workers: Sequence[Worker]) -> str:
    shown = [
        f"rank {one.rank} (dp rank {one.dp_rank}, stage {one.stage}; {one.slowness:.2f} times its stage's median)"
        for one in workers[:_NAMED]
    ]
    return ", ".join(shown) + (f" and {len(workers) - _NAMED} more" if len(workers) > _NAMED else "")


def _signed(share: float | None) -> str:
    """A share that may lie outside 0 to 1."""
    return "?" if share is None else f"{100 * share:.2f} %".replace("-", "−")


def _ratio(value: float | None) -> str:
    # Never rounded up to the limit that it is compared with.
    return "?" if value is None else f"{int(value * 1000) / 1000:.3f}"


def _wrapped(text: str, width: int, lead: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False)
