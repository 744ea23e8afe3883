"""The sentences of a goodput report."""

from __future__ import annotations

from steptime.model.goodput import GoodputReport, Rate, ReferenceFigure
from steptime.report import units
from steptime.report.names import brief

#: What a part is called where it is the largest loss.
_LOSSES = {
    "detection": "failures that nobody has noticed yet",
    "restart": "restarting",
    "unsplit": "being down",
    "lost_work": "work lost and done again",
    "checkpoint": "pauses for checkpoints",
    "planned": "planned stops",
    "unknown": "interruptions of unknown length",
}


def verdict(report: GoodputReport) -> str:
    """The whole report in one sentence."""
    failures = sum(not one.planned for one in report.interruptions)
    planned = len(report.interruptions) - failures
    counted = units.plural(failures, "unexpected interruption")
    counted += f" and {units.plural(planned, 'planned one')}" if planned else ""
    if report.total_ns is None:
        return f"{counted}; how much of the time the run trained can't be told from these logs."
    length = units.span(report.total_ns / 1e9)
    largest = max(report.parts, key=lambda part: part.ns)
    name = _LOSSES.get(largest.id, largest.title)
    tail = f"; the largest loss is {name}, {units.share(largest.share or 0)}" if largest.ns else ""
    every = report.mtbf.mtbf_h if report.mtbf else None
    counted += f", a failure every {hours(every)}" if every is not None and failures > 1 else ""
    return f"The run {_trained(report)} of {length}: {counted}{tail}."


def _trained(report: GoodputReport) -> str:
    if report.productive_share is not None:
        # A part that these logs can't show is in what is left.
        most = "at most " if any(part.why for part in report.parts) else ""
        return f"trained {most}{units.share(report.productive_share)}"
    if report.eta is not None:
        return f"was not down {units.share(report.eta)}"
    if report.eta_low is not None and report.eta_high is not None:
        return f"was not down between {units.share(report.eta_low)} and {units.share(report.eta_high)}"
    return "can't be told how much it trained"


def figures(report: GoodputReport) -> list[tuple[str, str]]:
    """The main figures, each with what it is."""
    found = []
    if report.productive_share is not None:
        most = "at most, " if any(part.why for part in report.parts) else ""
        found.append((units.share(report.productive_share), f"{most}of the time trained and kept"))
    if report.eta is not None:
        found.append((units.share(report.eta), "of the time not down (η)"))
    elif report.eta_low is not None and report.eta_high is not None:
        found.append((f"{units.points(report.eta_low)} to {units.share(report.eta_high)}", "of the time not down (η)"))
    if report.mtbf is not None and report.mtbf.mtbf_h is not None:
        found.append((hours(report.mtbf.mtbf_h), "between failures of the run"))
    if report.mtbf_gpu is not None and report.mtbf_gpu.mtbf_h is not None:
        found.append((hours(report.mtbf_gpu.mtbf_h), "between failures of one GPU"))
    if report.cost.used_share is not None:
        bound = "at most, " if report.cost.used_bound else ""
        found.append((units.share(report.cost.used_share), f"{bound}of the peak paid for did useful work"))
    least = "at least, " if report.cost.lost_bound else ""
    if report.cost.lost_money is not None:
        found.append((f"{report.cost.lost_money:,.0f}", f"{least}of money for time that did not train"))
    elif report.cost.lost_gpu_hours is not None:
        found.append((f"{report.cost.lost_gpu_hours:,.0f}", f"{least}GPU-hours that did not train"))
    return found


def time_lines(report: GoodputReport) -> list[str]:
    """What the split of the time stands on."""
    lines = []
    if report.start_ns is not None and report.end_ns is not None and report.dated:
        lines.append(f"From {units.moment(report.start_ns)} to {units.moment(report.end_ns)} UTC.")
    if report.eta is not None:
        lines.append(
            f"η = 1 − Σ(d + r)/T = {units.share(report.eta)}: the share of the time in which the run was not down."
        )
    elif report.eta_low is not None and report.eta_high is not None:
        lines.append(
            f"η = 1 − Σ(d + r)/T is between {units.share(report.eta_low)} and {units.share(report.eta_high)}: it is "
            "not known when every interruption was over."
        )
    overlapping = len(report.interruptions) - report.outages
    if overlapping:
        lines.append(
            f"{units.plural(overlapping, 'interruption')} began while the run was down already: the time belongs to "
            f"the one before, so there are {units.plural(report.outages, 'outage')}; each counts as a failure."
        )
    return lines


def failure_lines(report: GoodputReport) -> list[str]:
    """What MTBF counts."""
    if report.mtbf is None:
        return []
    lines = ["Unexpected interruptions over all of the run's time, planned stops not counted; exact Poisson intervals."]
    if report.mtbf.mtbf_h is None:
        lines.append("No failure was recorded, so only a lower bound of the time between failures is known.")
    if report.mean_uptime_ns is not None:
        lines.append(f"The run was up for {units.span(report.mean_uptime_ns / 1e9)} on average before it failed.")
    return lines


def trend(report: GoodputReport) -> list[str]:
    """Whether it gets worse, and which host repeats."""
    one = report.trend
    lines = []
    if one.verdict == "cannot tell":
        lines.append(f"Whether failures come more often can't be told: {one.why}.")
    else:
        said = {"worse": "come more often as the run goes on", "better": "come less often as the run goes on"}
        what = said.get(one.verdict, "show no trend that chance does not explain")
        chance = units.share(one.p) if one.p is not None else "?"
        lines.append(
            f"Failures {what}: {one.first_half} in the first half of the time, {one.second_half} in the second; by "
            f"chance alone {chance} (Laplace's test)."
        )
    if report.hosts:
        first = report.hosts[0]
        chance = f"; by chance {units.share(first.chance)}" if first.chance is not None else ""
        lines.append(f"{brief(first.host, 40)} failed {units.times(first.count)}{chance}.")
    elif report.hosts_known:
        lines.append("No host failed more than once.")
    return lines


def checkpoints(report: GoodputReport) -> list[str]:
    """How the run saved, beside Young's interval."""
    habit = report.checkpoints
    if habit is None:
        return []
    source = "as given" if habit.source == "options" else f"median of {units.plural(habit.count, 'pause')} in the logs"
    every = f", every {units.span(habit.interval_ns / 1e9)} of training" if habit.interval_ns is not None else ""
    lines = [f"A checkpoint stops training for {units.span(habit.pause_ns / 1e9)}{every} ({source})."]
    if habit.young_ns is not None:
        lines.append(
            f"Young's interval √(2 · pause · MTBF) is {units.span(habit.young_ns / 1e9)} for this run; `steptime "
            "goodput plan` simulates it."
        )
    return lines


def cost_lines(report: GoodputReport) -> list[str]:
    """GPU-hours, money, and MFU times the share of time."""
    cost = report.cost
    least = "at least " if cost.lost_bound else ""
    lines = []
    if cost.gpu_hours is not None and cost.lost_gpu_hours is not None:
        lost = f"{least}{cost.lost_gpu_hours:,.0f} did not train"
        lines.append(f"{cost.gpus:,} GPUs: {cost.gpu_hours:,.0f} GPU-hours, of which {lost}.")
    if cost.money is not None and cost.lost_money is not None and cost.price is not None:
        lost = f"{least}{cost.lost_money:,.0f} for time that did not train"
        lines.append(f"At {cost.price:,.2f} a GPU-hour: {cost.money:,.0f}, of which {lost}.")
    if cost.mfu is not None and cost.used_share is not None:
        share = report.productive_share if report.productive_share is not None else report.eta
        bound = "at most " if cost.used_bound else ""
        lines.append(
            f"MFU {units.share(cost.mfu)} ({brief(cost.mfu_source or 'given', 60)}) × {units.share(share or 0)} of the "
            f"time = {bound}{units.share(cost.used_share)} of what was paid for did useful work."
        )
    return lines


def own_row(report: GoodputReport) -> list[str]:
    """This run as a row of the table of published ones."""
    habit = report.checkpoints
    length = units.span(report.total_ns / 1e9) if report.total_ns else "can't tell"
    eta = units.share(report.eta) if report.eta is not None else "can't tell"
    return [
        "this run",
        f"{report.cost.gpus:,}" if report.cost.gpus else "not given",
        length,
        f"{len(report.interruptions):,}",
        _mtbf(report.mtbf),
        eta,
        units.share(report.cost.mfu) if report.cost.mfu is not None else "not given",
        units.span(habit.interval_ns / 1e9) if habit is not None and habit.interval_ns else "can't tell",
    ]


def published(figure: ReferenceFigure) -> str:
    """A published figure short enough for a table; in the source's words where it gives no number."""
    if figure.value is None:
        return brief(figure.text, 40)
    if figure.id in ("eta", "mfu"):
        return f"{figure.value * 100:g} %"
    if figure.id in ("mtbf", "checkpoint_interval"):
        return f"{figure.value:g} h"
    return f"{figure.value:,.0f}" + (" days" if figure.id == "days" else "")


def _mtbf(rate: Rate | None) -> str:
    return hours(rate.mtbf_h) if rate is not None and rate.mtbf_h is not None else "can't tell"


def hours(value: float | None) -> str:
    """A length given in hours."""
    return "?" if value is None else units.span(value * 3600)
