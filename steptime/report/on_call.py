"""The on-call summary: one screen for a terminal, and JSON for a chat channel's webhook."""

from __future__ import annotations

import msgspec

from steptime.model.on_call import CANNOT_TELL, CLEAR, SLOW, OnCall
from steptime.report import units
from steptime.report.names import brief
from steptime.report.text_page import TextPage, fitting

_STYLES = {SLOW: "bold red", CLEAR: "bold green", CANNOT_TELL: "bold yellow"}
_SENTENCE, _ADVICE, _NAME = 700, 600, 60
_ACTIONS, _CHANGES, _LINES, _MISSED = 5, 5, 6, 12


def render(summary: OnCall, width: int | None = None, color: bool = False) -> str:
    """Return the summary as text of at most `width` columns (72 to 140), ending in a newline.

    Args:
        summary: what to show.
        width: columns; None takes the width of the terminal, 100 where there is none.
        color: emit ANSI colours; without them the text is plain.
    """
    page = TextPage(fitting(width), color)
    if summary.job:
        page.line(f"Job {brief(summary.job, _NAME)}", style="bold")
    for sentence in summary.verdict:
        page.line(brief(sentence, _SENTENCE), style=_STYLES.get(summary.status, "bold"))
    _numbered(page, "In the next ten minutes", [one.text for one in summary.actions[:_ACTIONS]])
    _list(page, "What to capture next", summary.captures)
    _list(page, "Against the baseline (mean step)", changes(summary))
    _list(page, "What this does not tell", summary.doubts)
    _list(page, "Not traced", missed(summary))
    return page.text()


def changes(summary: OnCall) -> list[str]:
    """The leaves that changed most against the baseline: ``host/data_loader 1.20 ms -> 60.2 ms``."""
    rows = (summary.changes or [])[:_CHANGES]
    return [f"{brief(one.leaf, _NAME)} {units.time(one.before_ns)} -> {units.time(one.after_ns)}" for one in rows]


def missed(summary: OnCall) -> list[str]:
    """Who could not be traced, the reason and the remedy; the same for many is said once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in summary.missed:
        alike.setdefault((one.reason, one.remedy), []).append(brief(one.who, _NAME))
    rows = [
        f"{brief(', '.join(who), 200)}: {brief(reason, 300)}" + (f"; {brief(remedy, 300)}" if remedy else "")
        for (reason, remedy), who in alike.items()
    ]
    left = len(rows) - _MISSED
    return rows[:_MISSED] + ([f"and {units.plural(left, 'more reason')}"] if left > 0 else [])


def payload(summary: OnCall) -> dict[str, object]:
    """What a webhook is sent: ``text`` for channels that show it as it is, the figures for programs.

    Every text in it is free of characters that a terminal or a page would act on.
    """
    text = " ".join(brief(sentence, _SENTENCE) for sentence in summary.verdict)
    job = f"{brief(summary.job, _NAME)}: " if summary.job else ""
    rows = msgspec.to_builtins(msgspec.structs.replace(summary, missed=summary.missed[:100]))
    cleaned = _clean(rows)
    assert isinstance(cleaned, dict)
    return {"text": job + text, **cleaned}


def _clean(value: object) -> object:
    if isinstance(value, str):
        return brief(value, _SENTENCE) if value else value
    if isinstance(value, dict):
        return {brief(str(key), _NAME): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _numbered(page: TextPage, title: str, lines: list[str]) -> None:
    if lines:
        page.heading(title)
    for number, text in enumerate(lines, 1):
        page.line(brief(text, _ADVICE), f"{number}. ")


def _list(page: TextPage, title: str, lines: list[str]) -> None:
    if lines:
        page.heading(title)
    for text in lines[:_LINES]:
        page.line(brief(text, _ADVICE), "- ")
    if len(lines) > _LINES:
        page.line(f"{units.count(len(lines) - _LINES)} more in the JSON of --webhook", "- ", style="dim")
