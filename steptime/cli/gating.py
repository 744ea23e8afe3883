"""From what a user asks of the gate to a verdict: for the command line and for the pytest fixture."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from steptime.cli.runs import read_runs
from steptime.errors import StepTimeError, UsageError

if TYPE_CHECKING:
    from steptime.gate.accepted import Accepted
    from steptime.gate.runs import Run
    from steptime.gate.settings import GateTable
    from steptime.model.gate import Verdict
    from steptime.pipeline import Options


@dataclass(frozen=True)
class Ask:
    """What to gate. folder: where the settings and the file of acceptances are looked for.

    analysis: of what is traces and not yet a report; None: without options, and without gains, which no verdict needs.
    """

    candidate: Sequence[str]
    baseline: Sequence[str] = ()
    history: Sequence[str] = ()
    limits: GateTable | None = None
    accept: Sequence[str] = ()
    why: str | None = None
    until: datetime.date | None = None
    folder: Path = field(default_factory=Path)
    analysis: Options | None = None


@dataclass(frozen=True)
class Answer:
    """The verdict, and the runs behind it; none where they could not be read."""

    verdict: Verdict
    candidate: list[Run]
    baseline: list[Run]
    history: list[Run]


def gate(ask: Ask) -> Answer:
    """Judge; what can't be read on either side is a verdict, too.

    Raises:
        UsageError: the settings, limits or names are wrong, or an acceptance can't be written.
    """
    from steptime.gate import accepted, judge, settings
    from steptime.pipeline import Options

    table, where = settings.read_table(ask.folder)
    wanted = settings.settings(table, where, ask.limits or settings.GateTable(), _findings())
    path = ask.folder / (table.accepted or accepted.FILE)
    entries = accepted.read_accepted(path)
    baseline = [str(ask.folder / word) if _local(word) else word for word in table.baseline]
    history = [str(ask.folder / word) if _local(word) else word for word in table.history]
    options = ask.analysis or Options(replay=False)
    try:
        runs = [
            read_runs(words, options) for words in (ask.candidate, ask.baseline or baseline, ask.history or history)
        ]
        if not runs[1]:
            raise UsageError("no baseline was given: name one with --baseline, or make one with --update-baseline")
    except StepTimeError as error:
        return Answer(judge.cannot_tell(str(error)), [], [], [])
    # A run that is named twice is no second run, and one that is judged is no other run's history.
    candidate, base, past = ({run.name: run for run in side} for side in runs)
    earlier = [run for name, run in past.items() if name not in candidate and name not in base]
    answer = Answer(judge.cannot_tell(""), list(candidate.values()), list(base.values()), earlier)
    question = judge.Question(answer.candidate, answer.baseline, answer.history, entries, datetime.date.today())
    if ask.accept:
        entries = _with_accepted(question, ask)
        question = judge.Question(answer.candidate, answer.baseline, answer.history, entries, question.today)
    verdict = judge.judge(question, wanted)
    if ask.accept and not verdict.mismatches:
        accepted.write_accepted(path, entries)
    return Answer(_with_cause(verdict, answer), answer.candidate, answer.baseline, answer.history)


def _local(word: str) -> bool:
    return "://" not in word and not Path(word).is_absolute()


def _findings() -> list[str]:
    from steptime.diagnose.rules import load_rules

    return [rule.id for rule in load_rules(())]


def _with_accepted(question: object, ask: Ask) -> list[Accepted]:
    """The file's entries with one for each name that is to be accepted, for as much as was measured.

    Raises:
        UsageError: a name is unknown, the reason is missing, or nothing of that name has grown.
    """
    from steptime.gate.accepted import DEFAULT_DAYS, Accepted
    from steptime.gate.judge import Question, growth_of
    from steptime.gate.limits import find_name

    assert isinstance(question, Question)
    if not (ask.why or "").strip():
        raise UsageError("--accept needs --why: say for whoever reads the file why this is let through")
    until = ask.until or question.today + datetime.timedelta(days=DEFAULT_DAYS)
    if until < question.today:
        raise UsageError(f"--until {until.isoformat()}: that day is over")
    found = list(question.accepted)
    for text in ask.accept:
        name = find_name(text, _findings(), "--accept")
        grown, before = growth_of(name, question)
        if not grown:
            raise UsageError(f"--accept {text}: nothing of it has grown against the baseline, so nothing to accept")
        found.append(
            Accepted(
                name=name.id, why=(ask.why or "").strip(), on=question.today, until=until, leaves=grown, baseline=before
            )
        )
    return found


def _with_cause(verdict: Verdict, answer: Answer) -> Verdict:
    """The verdict with what changed between the typical runs of both sides, in words."""
    from steptime.diff.compare import diff_reports
    from steptime.gate.baseline import typical
    from steptime.report.diff_words import config_lines
    from steptime.report.gate_words import cause_lines

    if verdict.mismatches or not verdict.judged:
        return verdict
    before, after = typical(answer.baseline), typical(answer.candidate)
    diff = diff_reports(before.report, after.report, names=(before.name, after.name))
    return replace(verdict, cause=cause_lines(diff), notes=[*verdict.notes, *config_lines(diff)])
