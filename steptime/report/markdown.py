"""The report as Markdown for a pull request: the same figures as in the terminal, as tables, in less than 60 KB.

Text from a trace is escaped so that it draws no table, tag, link or mention.
"""

from __future__ import annotations

from collections.abc import Iterable

from steptime.model import Report
from steptime.report import advice, gfm, groups, ladder, page_tables, path_words, pipeline_words, units, words
from steptime.report.ledger import ledger
from steptime.report.names import brief, middle, shorten_all

#: GitHub refuses a comment of more than 65,536 characters.
MAX_BYTES = 60_000
_CAUSES = 10
_RANKS = 16
_PATH_ROWS = 8
_NAME_WIDTH = 90
_COLLECTIVES = 12
_LIST_ITEMS = 40
_ITEM_WIDTH = 300


def render(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown of less than 60 KB, ending in a newline."""
    blocks = [
        f"**{gfm.text(words.verdict(report))}**",
        _facts(report),
        _waterfall(report),
        _findings(report),
        _causes(report),
        _headed("Pipeline", _items(pipeline_words.pipeline(report))),
        _items(words.stragglers(report)),
        gfm.folded("Critical path", _path(report)),
        gfm.folded("Ranks", _ranks(report)),
        gfm.folded("Collectives", _collectives(report)),
        gfm.folded("Before you trust the number", _checklist(report)),
        gfm.folded("Other steps (not in the figures above)", _items(groups.other_steps(report.other_steps))),
        gfm.folded("What the traces hold", _items(groups.qualities(report.inputs))),
        gfm.folded("Warnings", _items(groups.warnings(report, words.mfu_warning(report)))),
    ]
    text = ""
    note = "\n*The rest is left out: it does not fit into a comment. The JSON report has all of it.*\n"
    for block in blocks:
        if not block:
            continue
        if len((text + block + note).encode()) + 2 > MAX_BYTES:
            return text + note
        text += ("\n" if text else "") + block + "\n"
    return text


def _facts(report: Report) -> str:
    counted = [words.counted(report)] if report.job.rank_steps > 0 else []
    notes = [brief(note, 300) for note in report.job.mfu_notes]
    return "  \n".join(gfm.text(line) for line in [*counted, words.mfu_line(report), *notes])


def _waterfall(report: Report) -> str:
    job = report.job
    if job.rank_steps <= 0 or job.total_ns <= 0:
        return ""
    rows = ledger(job)
    mean_ns = words.per_step_ns(job.total_ns, report)
    scale = units.scale_for(mean_ns)
    what = "window" if words.is_one_window(report) else "step"
    recoverable = any(row.recoverable_ns is not None for row in rows)
    head = ["points", f"{scale.unit}/{what}", *(["can gain"] if recoverable else []), f"where the {what} goes"]
    table: list[list[str]] = []
    for row in rows:
        gain = "" if row.recoverable_ns is None else _mean(row.recoverable_ns, report, scale)
        title = gfm.text(row.title) + (f" ({gfm.text(row.detail)})" if row.detail else "")
        if row.ns is None:
            title += f": can't tell ({gfm.text(row.why or '')})"
        elif not row.is_leaf:
            title = f"**{title}**"
        amounts = [row.points, "?" if row.ns is None else _mean(row.ns, report, scale)]
        cells = [gfm.text(cell) for cell in [*amounts, *([gain] if recoverable else [])]]
        table.append([*cells, "&emsp;" * row.is_leaf + title])
    table.append(
        [
            "100.0",
            units.scaled(mean_ns, scale),
            *([""] if recoverable else []),
            f"total (mean of {words.mean_of(report)})",
        ]
    )
    return gfm.table(head, table, right=len(head) - 1)


def _mean(ns: int, report: Report, scale: units.Scale) -> str:
    return units.scaled(words.per_step_ns(ns, report), scale)


def _findings(report: Report) -> str:
    items = []
    for number, one in enumerate(advice.advice(report), 1):
        seen = "".join(f"<br>seen: {gfm.text(middle(text, _ITEM_WIDTH))}" for text in one.evidence)
        items.append(f"{number}. **{gfm.text(one.title)}** ({gfm.text(one.gain)})  \n   {gfm.text(one.advice)}{seen}")
    if items and (note := advice.more(report)):
        items.append(f"\n*{gfm.text(note)}*")
    if table := ladder.table(report):
        body = [[gfm.text(cell) for cell in row] for row in table.rows]
        items.append(f"\n**Fixed one after the other**\n\n{gfm.table(table.head, body, right=table.numbers)}")
    if items and (trust := ladder.trust(report)):
        items.append(f"\n*{gfm.text(trust)}*")
    return "\n".join(items)


def _checklist(report: Report) -> str:
    return "\n".join(
        f"- `{check.mark}` {gfm.text(check.item)}: {gfm.text(check.why)}" for check in advice.checks(report)
    )


def _causes(report: Report) -> str:
    causes = sorted(report.causes, key=lambda cause: -cause.ns)[:_CAUSES]
    if not causes:
        return ""
    scale = units.scale_for(words.per_step_ns(report.job.total_ns, report))
    names = shorten_all((cause.what for cause in causes), _NAME_WIDTH)
    places = shorten_all((where for cause in causes if (where := words.place(cause))), _NAME_WIDTH)
    what = "window" if words.is_one_window(report) else "step"
    table = [
        [
            gfm.text(units.points(cause.share)),
            gfm.text(_mean(cause.ns, report, scale)),
            gfm.code(names[cause.what]),
            gfm.text(words.evidence(cause, report)),
            gfm.code(places[where]) if (where := words.place(cause)) else "",
        ]
        for cause in causes
    ]
    return gfm.table(["points", f"{scale.unit}/{what}", "costliest causes", "seen", "at"], table, right=2)


def _ranks(report: Report) -> str:
    everyone = groups.rank_lines(report)
    if len(everyone) < 2:
        return ""
    lines, note = groups.worth_a_line(everyone, _RANKS)
    table = []
    for line in lines:
        largest = sorted(line.leaves_ns.items(), key=lambda item: -item[1])[:3]
        leaves = ", ".join(f"{brief(key)} {units.points(ns / (line.total_ns or 1))}" for key, ns in largest)
        table.append([gfm.text(line.name), units.time(line.median_ns), gfm.text(leaves)])
    text = gfm.table(["rank", "median", "largest leaves, in points"], table, right=0)
    return f"{text}\n\n{gfm.text(note)}" if note else text


def _path(report: Report) -> str:
    path, table = report.critical_path, path_words.table(report, _PATH_ROWS)
    if path is None or table is None:
        return ""
    rows = [[gfm.text(cell) for cell in row] for row in table.rows]
    said = f"{path_words.headline(path)}: shorter work elsewhere shortens no step."
    return gfm.table([gfm.text(cell) for cell in table.head], rows, right=table.numbers) + f"\n\n{gfm.text(said)}"


def _collectives(report: Report) -> str:
    """Collectives with their bandwidth, where it is known."""
    notes = words.bandwidth_notes(report)
    table = page_tables.collectives_table(report, _COLLECTIVES) if notes else None
    if table is None:
        return ""
    rows = [[gfm.text(cell) for cell in row] for row in table.rows]
    return gfm.table([gfm.text(cell) for cell in table.head], rows, right=table.numbers) + "\n\n" + _items(notes)


def _items(lines: Iterable[str]) -> str:
    given = list(lines)
    shown = [f"- {gfm.text(middle(line, _ITEM_WIDTH))}" for line in given[:_LIST_ITEMS]]
    if len(given) > _LIST_ITEMS:
        shown.append(f"- and {units.count(len(given) - _LIST_ITEMS)} more: see the JSON report")
    return "\n".join(shown)


def _headed(title: str, body: str) -> str:
    return f"**{title}**\n\n{body}" if body else ""
