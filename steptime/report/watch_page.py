"""A watched log as a page: every word that the terminal, Markdown and HTML show of it."""

from __future__ import annotations

from steptime.model.watch import NonFinite, Series, Watch
from steptime.report import units
from steptime.report.names import brief
from steptime.report.panels import Chart, Page, Panel
from steptime.report.plain_table import Table

NAMES = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "throughput": "throughput",
    "mfu": "MFU",
    "update_ratio": "update-to-weight ratio",
}
_MOST_ROWS = 40


def _rewind(step: int | None, watch: Watch) -> str:
    return _step(step, "?" if watch.checkpoint_every is None else "none before")


def watch_page(watch: Watch, *, drawn: bool = False) -> Page:
    """The page; `drawn`: with its charts, for which a library must be loaded."""
    name = brief(watch.tool.name)
    panels = [
        _alarms(watch),
        _loss(watch, drawn),
        _other(watch, drawn, "grad_norm", "Gradient norm"),
        _rates(watch, drawn),
        _ratio(watch, drawn),
        _held(watch),
        _doubts(watch),
    ]
    return Page(
        title=f"{name}: what an alert would have seen",
        eyebrow=f"What an alert would have seen: {brief(watch.path)}",
        verdict=verdict(watch),
        figures=_figures(watch),
        panels=panels,
        tool=f"{name} {brief(watch.tool.version)}",
    )


def verdict(watch: Watch) -> str:
    """The run in one sentence."""
    spikes = [one for one in watch.spikes if one.what == "loss"]
    said = []
    if any(one.what == "loss" for one in watch.series):
        lasting = sum(one.end_step is None for one in spikes)
        text = units.plural(len(spikes), "spike") + " of the loss" if spikes else "no spike of the loss"
        said.append(text + (f", {lasting} of them not back to usual" if lasting else ""))
    lasting_nan = _lasting(watch)
    if lasting_nan is not None:
        first = units.count(lasting_nan.first_step)
        said.append(f"the {NAMES[lasting_nan.what]} is no number from step {first} until the log ends")
    elif watch.non_finite:
        said.append(f"no number in {units.plural(sum(one.rows for one in watch.non_finite), 'row')}")
    if watch.drops:
        said.append(units.plural(len(watch.drops), "drop") + " of a rate")
    if watch.plateaus:
        said.append(units.plural(len(watch.plateaus), "plateau"))
    steps = f"Steps {units.count(watch.first_step)} to {units.count(watch.last_step)}"
    text = f"{steps}: {', '.join(said) or 'nothing stood out'}"
    rewinds = [one.rewind_step for one in spikes if one.end_step is None]
    rewinds += [lasting_nan.rewind_step] if lasting_nan is not None else []
    known = [step for step in rewinds if step is not None]
    if known:
        text += f"; rewind to step {units.count(known[0])}"
    return f"{text}."


def _lasting(watch: Watch) -> NonFinite | None:
    """What is no number until the log ends; of several the loss."""
    lasting = [one for one in watch.non_finite if not one.ended]
    return min(lasting, key=lambda one: one.what != "loss") if lasting else None


def _figures(watch: Watch) -> list[tuple[str, str]]:
    figures = []
    for one in watch.series:
        if one.usual is not None:
            figures.append((_value(one.usual), f"{NAMES[one.what]}, median of the last rows"))
    figures.append((units.count(len(watch.spikes)), "spikes"))
    if watch.target is not None:
        reached = "not reached" if watch.target.step is None else f"step {units.count(watch.target.step)}"
        figures.append((reached, f"loss of {watch.target.loss:g}"))
    return figures


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if 1e-3 <= abs(value) < 1e7 or not value else f"{value:.3g}"


def _step(step: int | None, otherwise: str = "") -> str:
    return otherwise if step is None else units.count(step)


def _alarms(watch: Watch) -> Panel:
    lines = []
    if watch.spikes:
        lines.append(
            "Each alert is what could be known at its step: two logged rows 5 times the noise above what the rows "
            "before them were, or one row 10 times above it."
        )
    if any(one.end_step is None for one in watch.spikes):
        lines.append(
            "A spike that does not come back calls for a rewind: restart from the checkpoint before it and skip the "
            "batches up to the alert. PaLM went back about 100 steps and skipped 200 to 500 batches (Chowdhery et al. "
            "2022, section 5.1)."
        )
    elif watch.spikes and _lasting(watch) is None:
        lines.append("Every spike came back by itself: a rewind is needed only if they recur or the loss stays above.")
    if _lasting(watch) is not None:
        lines.append("What is no number does not come back by itself: restart from the checkpoint before it.")
    if (watch.spikes or watch.non_finite) and watch.checkpoint_every is None:
        lines.append("Where to rewind to can't be told without the checkpoint interval: give --checkpoint-every STEPS.")
    tables = []
    if watch.spikes:
        tables.append(("Spikes", _spikes(watch)))
    if watch.non_finite:
        rows = [
            [
                _step(one.first_step),
                _step(one.last_step),
                units.count(one.rows),
                "" if _is_skipped(one) else _rewind(one.rewind_step, watch),
                _broken(one),
            ]
            for one in watch.non_finite[:_MOST_ROWS]
        ]
        head = ["from step", "to", "rows", "rewind to", "what"]
        tables.append(("No numbers", Table(head, rows, 4, more=max(len(watch.non_finite) - _MOST_ROWS, 0))))
    if not tables:
        lines = ["No spike and no row that is no number."] if watch.series else []
    return Panel("alarms", "Alarms", lines=lines, tables=tables)


def _broken(one: NonFinite) -> str:
    text = f"{NAMES[one.what]} is {one.kind}"
    if _is_skipped(one):
        return f"{text}; with loss scaling, a step that was skipped"
    return text if one.ended else f"{text} until the log ends"


def _is_skipped(one: NonFinite) -> bool:
    """An infinite gradient norm is how loss scaling finds its factor: the step is skipped and nothing is lost."""
    return one.what == "grad_norm" and one.kind == "infinite" and one.ended


def _spikes(watch: Watch) -> Table:
    timed = any(one.alert_s is not None for one in watch.spikes)
    rows = []
    for one in watch.spikes[:_MOST_ROWS]:
        note = NAMES[one.what]
        if one.warned_step is not None:
            note += f"; the gradient norm gave an alert at step {units.count(one.warned_step)}"
        rows.append(
            [
                _step(one.alert_step),
                *([units.span(one.alert_s) if one.alert_s is not None else "?"] if timed else []),
                _step(one.start_step),
                _value(one.usual),
                _value(one.peak),
                f"{one.score:,.0f}×",
                _step(one.end_step, "not back"),
                _rewind(one.rewind_step, watch),
                _step(one.redone_steps),
                note,
            ]
        )
    head = ["alert at", *(["after"] if timed else []), "begins", "usual", "peak", "noise", "back at", "rewind to"]
    head += ["steps redone", "of the"]
    return Table(head, rows, numbers=len(head) - 1, more=max(len(watch.spikes) - _MOST_ROWS, 0))


def _charts(watch: Watch, drawn: bool, what: str) -> list[Chart]:
    found = next((one for one in watch.series if one.what == what), None)
    if not drawn or found is None:
        return []
    from steptime.report import watch_charts

    spec, legend = watch_charts.series(watch, found)
    if spec is None:
        return []
    caption = f"{brief(found.column)} over the steps; of each part of the run its lowest and highest row is drawn."
    return [Chart(f"{what}-chart", spec, caption, legend)]


def _loss(watch: Watch, drawn: bool) -> Panel:
    lines = []
    target = watch.target
    if target is not None:
        rows = units.plural(target.smoothed_rows, "row")
        if target.step is not None:
            after = "" if target.time_s is None else f", {units.span(target.time_s)} after the first row"
            lines.append(
                f"A loss of {target.loss:g} was reached at step {units.count(target.step)}{after} (the median of the "
                f"last {rows}; a single row first at step {_step(target.single_step, '?')})."
            )
        else:
            single = ""
            if target.single_step is not None:
                single = f"; single rows were, first at step {units.count(target.single_step)}"
            lowest = "" if target.lowest is None else f": the median of {rows} came down to {target.lowest:.4g}"
            lines.append(f"A loss of {target.loss:g} was not reached{lowest}{single}.")
    tables = []
    if watch.plateaus:
        lines.append("On a plateau the smoothed loss fell by no more than its noise for a fifth of the run so far.")
        table_rows = [
            [_step(one.from_step), _step(one.alert_step), _step(one.to_step, "the end"), _value(one.loss)]
            for one in watch.plateaus[:_MOST_ROWS]
        ]
        head = ["from step", "alert at", "to", "loss"]
        tables.append(("Plateaus", Table(head, table_rows, 4, more=max(len(watch.plateaus) - _MOST_ROWS, 0))))
    return Panel("loss", "Loss", lines=lines, charts=_charts(watch, drawn, "loss"), tables=tables)


def _other(watch: Watch, drawn: bool, what: str, title: str) -> Panel:
    return Panel(what.replace("_", "-"), title, charts=_charts(watch, drawn, what))


def _rates(watch: Watch, drawn: bool) -> Panel:
    charts = _charts(watch, drawn, "throughput") + _charts(watch, drawn, "mfu")
    tables = []
    if watch.drops:
        rows = [
            [
                _step(one.start_step),
                _step(one.alert_step),
                _step(one.end_step, "not back"),
                _value(one.usual),
                _value(one.level),
                units.share(one.share),
                NAMES[one.what],
            ]
            for one in watch.drops[:_MOST_ROWS]
        ]
        head = ["from step", "alert at", "back at", "usual", "then", "below", "what"]
        tables.append(("Drops", Table(head, rows, 6, more=max(len(watch.drops) - _MOST_ROWS, 0))))
    judged = [one for one in watch.series if one.what in ("throughput", "mfu") and one.watched_from is not None]
    lines = []
    if judged and not watch.drops:
        lines.append(
            "Neither stayed 5 % below its usual value for 8 of 10 rows." if len(judged) > 1 else _steady(judged[0])
        )
    return Panel("rates", "Throughput and MFU", lines=lines, charts=charts, tables=tables)


def _steady(one: Series) -> str:
    return f"{NAMES[one.what].capitalize()} never stayed 5 % below its usual value for 8 of 10 rows."


def _ratio(watch: Watch, drawn: bool) -> Panel:
    ratio = watch.update_ratio
    if ratio is None:
        return Panel("ratio", "Update-to-weight ratio")
    lines = [
        f"{ratio.first:.2g} at first, {ratio.median:.2g} in the middle, {ratio.last:.2g} at last; lowest "
        f"{ratio.lowest:.2g} at step {units.count(ratio.lowest_step)}, highest {ratio.highest:.2g} at step "
        f"{units.count(ratio.highest_step)}. It shows whether the learning rate moves the weights as far as was meant."
    ]
    return Panel("ratio", "Update-to-weight ratio", lines=lines, charts=_charts(watch, drawn, "update_ratio"))


def _held(watch: Watch) -> Panel:
    rows = [
        [
            units.count(one.rows),
            _value(one.first),
            _value(one.last),
            _value(one.lowest),
            _value(one.highest),
            "?" if one.noise is None else _noise(one),
            _step(one.watched_from, "never"),
            f"{NAMES[one.what]}: {brief(one.column)}",
        ]
        for one in watch.series
    ]
    head = ["rows", "first", "last", "lowest", "highest", "noise", "watched from", "what"]
    duration = "" if watch.duration_s is None else f" over {units.span(watch.duration_s)}"
    lines = [f"{units.plural(watch.rows, 'row')}{duration}."]
    if watch.step_backs:
        lines[0] += f" The step counter goes back {units.times(watch.step_backs)}: the run was restarted."
    if watch.missing:
        lines.append(f"Not in this log: {', '.join(NAMES[one] for one in watch.missing)}.")
    if "grad_norm" in watch.missing:
        lines.append("Log the gradient norm before clipping: it often gives the first alert.")
    return Panel("held", "What the log holds", lines=lines, tables=[("", Table(head, rows, 7))])


def _noise(one: Series) -> str:
    return _value(one.noise) if one.what == "loss" else units.share(one.noise or 0.0)


def _doubts(watch: Watch) -> Panel:
    items = [brief(text, 300) for text in [*watch.notes, *watch.bad_examples]]
    return Panel("doubts", "What to doubt", why=[brief(text, 300) for text in watch.warnings], items=items)
