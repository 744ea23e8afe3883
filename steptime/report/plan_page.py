"""A plan as a page: every word that the terminal, Markdown and HTML show of it."""

from __future__ import annotations

from steptime.model.plan import Fit, Plan, RankBytes, Scenario
from steptime.report import units
from steptime.report.names import brief
from steptime.report.panels import Chart, Page, Panel
from steptime.report.plain_table import Table

_CURVE_ROWS = 12
_BAR_CELLS = 24


def plan_page(plan: Plan, *, drawn: bool = False) -> Page:
    """The page; `drawn`: with its charts, for which a library must be loaded."""
    name = brief(plan.tool.name)
    panels = [
        _interval(plan),
        _curve(plan, drawn),
        _where(plan, drawn),
        _changes(plan),
        _writing(plan),
        _bytes(plan),
        _fit(plan, drawn),
        Panel("doubts", "What to doubt", why=list(plan.warnings), items=list(plan.notes)),
        _asked(plan),
    ]
    return Page(
        title=f"{name}: how often to write a checkpoint",
        eyebrow="How often to write a checkpoint, and what failures cost",
        verdict=verdict(plan),
        figures=_figures(plan),
        panels=panels,
        tool=f"{name} {brief(plan.tool.version)}",
    )


def verdict(plan: Plan) -> str:
    """The plan in one sentence."""
    best, ask = plan.best.at, plan.ask
    text = ""
    if plan.fit is not None and plan.fit.chosen.verdict != "fits":
        chosen = plan.fit.chosen
        said = "is a tight fit for" if chosen.verdict == "tight" else "does not fit into"
        text = f"Fit before fast: {units.size(chosen.total)} on the fullest rank {said} "
        text += f"{units.size(plan.fit.memory_bytes)}. "
    text += (
        f"{units.count(ask.gpus)} GPUs fail every {units.span(plan.mtbf_job_s)}: write a checkpoint after every "
        f"{units.span(best.interval_s)} of work, and {units.share(best.goodput)} of the time is work that is kept"
    )
    if plan.today is not None:
        gain = best.goodput - plan.today.goodput
        text += f"; today's {units.span(plan.today.interval_s)} keep {units.share(plan.today.goodput)}"
        text += f", {_points(gain)} points less" if gain > 0.0005 else ", as much"
    return f"{text}."


def _points(value: float) -> str:
    """A difference of shares in points of 100, never 0 where it is not."""
    return f"{value * 100:.1f}" if abs(value) >= 0.0005 else "<0.1"


def _signed(value: float) -> str:
    return "0" if round(value * 1000) == 0 else f"{value * 100:+.1f}".replace("-", "−")


def _figures(plan: Plan) -> list[tuple[str, str]]:
    best = plan.best.at
    figures = [
        (units.span(best.interval_s), "best interval, simulated"),
        (units.share(best.goodput), "goodput there"),
        (units.span(plan.mtbf_job_s), "between failures of the job"),
        (units.span(plan.young_s), "Young's interval"),
    ]
    if plan.fit is not None:
        figures.append((plan.fit.chosen.verdict, f"{units.size(plan.fit.chosen.total)} on the fullest rank"))
    return figures


def _interval(plan: Plan) -> Panel:
    best = plan.best
    rows = [
        ["simulated best", units.span(best.at.interval_s), units.share(best.at.goodput), _simulated(plan)],
        ["Young", units.span(plan.young_s), "", "√(2 · pause · time between failures); Young 1974"],
        ["Daly", units.span(plan.daly_s), "", "the next order; Daly 2006, equation 37"],
    ]
    if plan.exact_s is not None and plan.exact_goodput is not None:
        said = "expectation for exponential failures, a run without end"
        rows.insert(1, ["expected best", units.span(plan.exact_s), units.share(plan.exact_goodput), said])
    if plan.today is not None:
        today = plan.today
        rows.append(
            ["today", units.span(today.interval_s), units.share(today.goodput), "simulated on the same failures"]
        )
    first = plan.first_order
    lines = [
        f"Intervals from {units.span(best.flat_from_s)} to {units.span(best.flat_to_s)} lose at most a tenth of a "
        "point against the best: no need to hit it exactly.",
        f"By the first-order formula at Young's interval, each unit of work costs {units.share(first.checkpoint)} for "
        f"writing, {units.share(first.rework)} for work done again and {units.share(first.restart)} for restarts: "
        f"{units.share(first.total)} on top of it.",
    ]
    return Panel(
        "interval", "The interval", lines=lines, tables=[("", Table(["by", "interval", "goodput", "how"], rows))]
    )


def _simulated(plan: Plan) -> str:
    best, ask = plan.best, plan.ask
    text = f"{units.count(ask.runs)} runs of {ask.horizon_s / 86400:g} days; 95 % {_range(best.at.low, best.at.high)}"
    if best.from_s < best.to_s:
        text += f"; {units.span(best.from_s)} to {units.span(best.to_s)} can't be told from it"
    return text


def _range(low: float, high: float) -> str:
    return f"{low * 100:.2f} to {high * 100:.2f} %"


def _curve(plan: Plan, drawn: bool) -> Panel:
    columns = plan.curve
    count = len(columns.interval_s)
    best = columns.interval_s.index(plan.best.at.interval_s)
    step = max(count // _CURVE_ROWS, 1)
    places = sorted({*range(0, count, step), best, count - 1})
    if plan.today is not None:
        places = sorted({*places, columns.interval_s.index(plan.today.interval_s)})
    rows = []
    for at in places:
        marks = ["█" * round(columns.goodput[at] * _BAR_CELLS)] if not drawn else []
        marks += ["best"] if at == best else []
        if plan.today is not None and columns.interval_s[at] == plan.today.interval_s:
            marks.append("today")
        rows.append(
            [
                units.span(columns.interval_s[at]),
                units.points(columns.goodput[at]),
                _range(columns.low[at], columns.high[at]),
                f"{units.points(columns.run_low[at])} to {units.points(columns.run_high[at])}",
                units.points(columns.first_order[at]),
                " ".join(marks),
            ]
        )
    charts = []
    if drawn:
        from steptime.report import plan_charts

        legend = plan_charts.CURVE_LEGEND if plan.today is not None else plan_charts.CURVE_LEGEND[:-1]
        caption = "Pale: where 90 % of single runs lie. Darker, often no wider than the line: the 95 % confidence "
        caption += "interval of the mean."
        charts.append(Chart("curve-chart", plan_charts.curve(plan), caption, list(legend)))
    head = ["interval", "goodput, %", "95 % of the mean", "single runs, 5 to 95 %", "formula", ""]
    return Panel("curve", "Goodput over the interval", charts=charts, tables=[("", Table(head, rows, numbers=5))])


def _where(plan: Plan, drawn: bool) -> Panel:
    titles = (
        ("work", "work that is kept"),
        ("checkpoint", "checkpoint pauses"),
        ("lost", "work done again"),
        ("restart", "restarts"),
        ("spare_wait", "waiting for a host"),
    )
    shown = [("best", plan.best.at), *([] if plan.today is None else [("today", plan.today)])]
    hours = plan.ask.gpus * plan.ask.horizon_s / 3600
    rows = []
    for field, title in titles:
        shares = [getattr(one.split, field) for _, one in shown]
        if any(shares):
            rows.append([*(units.points(share) for share in shares), f"{shares[0] * hours:,.0f}", title])
    head = [*(name for name, _ in shown), f"GPU-hours in {plan.ask.horizon_s / 86400:g} days", "where the time goes"]
    charts = []
    if drawn:
        from steptime.report import plan_charts

        legend = [
            (title, colour)
            for field, title, colour in plan_charts.SPLIT
            if any(getattr(one.split, field) for _, one in shown)
        ]
        charts.append(Chart("split-chart", plan_charts.split(plan), "An average run.", legend))
    best = plan.best.at
    lines = [f"An average run has {best.failures:,.1f} failures and {best.checkpoints:,.0f} checkpoints."]
    table = Table(head, rows, numbers=len(head) - 1)
    return Panel("where", "Where the time goes", lines=lines, charts=charts, tables=[("", table)])


def _changes(plan: Plan) -> Panel:
    head = ["points", "goodput, %", "95 %", "best interval", "between failures", "if"]
    return Panel(
        "changes",
        "What would change it",
        tables=[("", Table(head, [_scenario(one) for one in plan.sensitivity], numbers=5))],
    )


def _scenario(one: Scenario) -> list[str]:
    return [
        _signed(one.gain),
        units.points(one.goodput),
        _range(one.low, one.high),
        units.span(one.interval_s),
        units.span(one.mtbf_job_s),
        one.title,
    ]


def _writing(plan: Plan) -> Panel:
    rows = [
        [
            _signed(one.gain),
            units.points(one.goodput),
            units.span(one.interval_s),
            units.span(one.pause_s),
            units.span(one.write_s) if one.write_s else "",
            one.title,
        ]
        for one in plan.writing
    ]
    if not rows:
        return Panel("writing", "Asynchronous checkpoints")
    head = ["points", "goodput, %", "best interval", "pause", "written after it in", "the checkpoint is"]
    lines = [
        "Written while training goes on, a checkpoint pauses the job only for the copy to host memory; until it is "
        "written, a failure falls back on the one before."
    ]
    return Panel("writing", "Asynchronous checkpoints", lines=lines, tables=[("", Table(head, rows, numbers=5))])


def _bytes(plan: Plan) -> Panel:
    states = plan.checkpoint
    if states is None:
        return Panel("bytes", "The bytes of a checkpoint")
    rows = [[units.size(part.bytes), part.formula, part.name] for part in states.parts]
    rows.append([units.size(states.total), "16 bytes a parameter", "all states"])
    rows.append(
        [units.size(states.without_gradients), "14 bytes a parameter", "without gradients, which no restart needs"]
    )
    table = Table(
        ["bytes", "how", f"{brief(states.model)}, {states.parameters / 1e9:,.4g} billion parameters"], rows, 1
    )
    return Panel("bytes", "The bytes of a checkpoint", tables=[("", table)])


def _fit(plan: Plan, drawn: bool) -> Panel:
    fit = plan.fit
    if fit is None:
        return Panel("fit", "Does it fit?")
    chosen, layout = fit.chosen, fit.layout
    stage = f" (the {fit.stage} pipeline stage)" if fit.stage else ""
    answer = {"fits": "It fits", "tight": "It is tight", "does not fit": "It does not fit"}[chosen.verdict]
    lines = [
        f"{answer}: {units.size(chosen.total)} on the fullest rank{stage}, "
        f"{units.share(chosen.total / fit.memory_bytes)} of the {units.size(fit.memory_bytes)} of {brief(fit.gpu)}. "
        f"{units.share(fit.margin)} are kept for the CUDA context, NCCL's buffers, workspaces and fragmentation, which "
        "no formula counts.",
        f"{brief(fit.model)} ({brief(fit.source, 120)}) over {units.count(layout.gpus)} GPUs: tensor {layout.tensor}, "
        f"pipeline {layout.pipeline}, data {units.count(layout.data)}, ZeRO {layout.zero}; micro-batches of "
        f"{units.plural(layout.micro_batch, 'sequence')} of {units.count(layout.sequence)} tokens; recompute: "
        f"{layout.recompute}; sequence parallelism {'on' if layout.sequence_parallel else 'off'}"
        f"{', the gate fused' if layout.fused_gate else ''}.",
    ]
    if chosen.verdict != "fits":
        lines.append(_instead(fit))
    parts = [[units.size(part.bytes), part.name, part.formula] for part in chosen.parts]
    tables = [
        ("Byte inventory of the fullest rank", Table(["bytes", "what", "how"], parts, numbers=1)),
        ("Every ZeRO stage and kind of recompute", _choices(fit)),
    ]
    charts = []
    if drawn:
        from steptime.report import plan_charts

        used = {part.name for row in fit.table for part in row.parts}
        legend = [(name, colour) for name, colour in plan_charts.MEMORY.items() if name in used]
        charts.append(Chart("memory-chart", plan_charts.memory(fit), "Dashed: the memory of the GPU.", legend))
    return Panel("fit", "Does it fit?", lines=lines, charts=charts, tables=tables, items=list(fit.notes))


def _instead(fit: Fit) -> str:
    """What fits with the least sharding and recompute, in this layout."""
    fitting = [row for row in fit.table if row.verdict == "fits" and row.recompute != "none"]
    if not fitting:
        return "No ZeRO stage and no recompute fits in this layout: divide by more with --tp or --pp."
    first = fitting[0]
    hint = "" if fit.layout.fused_gate else " A fused gate (--fused-gate) keeps less of a gated model's activations."
    return (
        f"The least that fits in this layout is ZeRO {first.zero} with {first.recompute} recompute: "
        f"{units.size(first.total)}.{hint}"
    )


def _choices(fit: Fit) -> Table:
    kinds = list(dict.fromkeys(row.recompute for row in fit.table))
    stages = sorted({row.zero for row in fit.table})
    found = {(row.zero, row.recompute): row for row in fit.table}
    rows = [[f"ZeRO {stage}", *(_choice(found[stage, kind]) for kind in kinds)] for stage in stages]
    return Table(["", *(f"recompute {kind}" for kind in kinds)], rows)


def _choice(row: RankBytes) -> str:
    return f"{units.size(row.total)}, {row.verdict}"


def _asked(plan: Plan) -> Panel:
    ask = plan.ask
    shape = "exponential" if ask.weibull_shape == 1 else f"Weibull, shape {ask.weibull_shape:g}"
    spares = (
        "as many as are needed"
        if ask.spares is None
        else f"{ask.spares}, a failed host back in {units.span(ask.repair_s)}"
    )
    rows = [
        ["GPUs", units.count(ask.gpus)],
        ["time between failures of one GPU", units.span(ask.mtbf_gpu_s)],
        ["failures", shape],
        ["pause of a checkpoint", units.span(ask.pause_s)],
        ["written after the pause in", units.span(ask.write_s) if ask.write_s else "no time: written in the pause"],
        ["restart", units.span(ask.restart_s)],
        ["spare hosts", spares],
        ["simulated", f"{units.count(ask.runs)} runs of {ask.horizon_s / 86400:g} days, seed {ask.seed}"],
    ]
    return Panel("asked", "What was asked", tables=[("", Table(["what", "figure"], rows))])
