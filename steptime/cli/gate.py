"""``steptime gate``: is this job slower than its baseline, and why? Pass, regressed or cannot tell."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steptime.cli.inputs import input_options, read_options
from steptime.cli.outputs import check_places, screen, write_texts
from steptime.cli.progress import progress
from steptime.cli.runs import read_runs
from steptime.errors import ReportError, UsageError

if TYPE_CHECKING:
    from steptime.cli.gating import Answer
    from steptime.gate.runs import Run
    from steptime.gate.settings import GateTable
    from steptime.gate.spread import Spread
    from steptime.model.gate import Verdict

#: Options that take every word up to the next option, so that a shell's glob can stand behind them.
_GREEDY = ("--baseline", "--history")
_BASELINE_KB = 200
_SETTINGS_FILE = "steptime.toml"
_EXIT_DOC = "Exit codes: 0 pass, 1 regressed, 2 cannot tell."


class _Greedy(click.Command):
    """A command whose `_GREEDY` options take several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat a greedy option before each of its words."""
        greedy = any(word in _GREEDY for word in args)
        spread: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-") and len(word) > 1:
                option = word if word in _GREEDY else ""
                spread.append(word)
            elif option and spread[-1] != option:
                spread += [option, word]
            else:
                spread.append(word)
        try:
            return super().parse_args(ctx, spread)
        except click.MissingParameter as error:
            if greedy:
                what = "no CANDIDATE: it stands first, since --baseline and --history take every word after them"
                raise click.UsageError(what, ctx) from error
            raise


_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("gate", cls=_Greedy, short_help="Say whether a job became slower.", epilog=_EXIT_DOC)
@click.argument("candidate", metavar="CANDIDATE...", nargs=-1, required=True)
@click.option(
    "--baseline", metavar="BASE...", multiple=True, help="Runs to compare with: reports, folders, globs or URLs."
)
@click.option("--history", metavar="RUN...", multiple=True, help="Earlier runs, which say how much runs differ.")
@click.option("--max-step-time", metavar="+X%", help="Growth of the step time that is let through.  [default: +0.5%]")
@click.option(
    "--max",
    "budgets",
    metavar="NAME LIMIT",
    nargs=2,
    multiple=True,
    help="Budget of a slice, leaf or finding: +10% or +3ms for growth, 12ms or 8% for the most it may be.",
)
@click.option("--min-mfu", type=click.FloatRange(0, 1), metavar="X", help="The least MFU, as 0.38.")
@click.option("--detect", metavar="X%", help="Pass only if a regression of X would have been seen.  [default: 25%]")
@click.option("--min-steps", type=click.IntRange(min=2), metavar="N", help="Counted steps a run needs.  [default: 5]")
@click.option("--accept", metavar="NAME", multiple=True, help="Let the growth of a slice, leaf or finding through.")
@click.option("--why", metavar="TEXT", help="Why it is accepted; goes into steptime-accepted.toml.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="Last day.  [default: in 30 days]")
@click.option("--update-baseline", type=_PATH, metavar="FILE", help="Store the candidate as a baseline in FILE.")
@click.option(
    "--baseline-size",
    type=click.IntRange(min=20),
    default=_BASELINE_KB,
    show_default=True,
    metavar="KB",
    help="The most that FILE may have: lists are cut to their costliest rows.",
)
@click.option("--comment", type=_PATH, metavar="FILE", help="Write the verdict as Markdown for a pull request.")
@click.option("--junit", type=_PATH, metavar="FILE", help="Write it as JUnit XML.")
@click.option("--code-quality", type=_PATH, metavar="FILE", help="Write it as GitLab's code quality report.")
@click.option("--json", "json_file", type=_PATH, metavar="FILE", help="Write it as JSON.")
@input_options
@click.option("-q", "--quiet", is_flag=True, help="Print the first line only.")
def command(candidate: tuple[str, ...], quiet: bool, verbose: bool, **options: Any) -> None:
    """Say whether CANDIDATE is slower than the baseline, by how much, and what in the step moved.

    CANDIDATE and BASE are reports (steptime analyze -o run.json), folders with traces, globs or URLs; several runs on a
    side show how much runs differ by chance. Limits may stand in steptime.toml or pyproject.toml.
    """
    from steptime.cli.gating import Ask, gate

    own = _Own(**{name: options.pop(name) for name in _Own.__dataclass_fields__})
    check_places(own.files, [*candidate, *own.baseline, *own.history], lambda _: None)
    with progress(quiet, verbose) as tick:
        # Gains of fixes are no part of a verdict, and the replay that computes them takes as long as all the rest.
        how = read_options(options | {"replay": False, "progress": tick})
        if own.update_baseline is not None and not own.baseline and not own.accept:
            _store_first(read_runs(candidate, how), own)
            return
        answer = gate(
            Ask(
                candidate=candidate,
                baseline=own.baseline,
                history=own.history,
                limits=own.limits(),
                accept=own.accept,
                why=own.why,
                until=own.until.date() if own.until else None,
                analysis=how,
            )
        )
    _deliver(answer.verdict, own, quiet)
    if own.update_baseline is not None:
        _update(answer, own)
    click.get_current_context().exit(answer.verdict.exit_code)


@dataclass(frozen=True)
class _Own:
    """The options that are the gate's own; the others are those of an analysis."""

    baseline: tuple[str, ...]
    history: tuple[str, ...]
    max_step_time: str | None
    budgets: tuple[tuple[str, str], ...]
    min_mfu: float | None
    detect: str | None
    min_steps: int | None
    accept: tuple[str, ...]
    why: str | None
    until: datetime | None
    update_baseline: Path | None
    baseline_size: int
    comment: Path | None
    junit: Path | None
    code_quality: Path | None
    json_file: Path | None

    @property
    def files(self) -> list[Path]:
        """What is to be written, but the baseline."""
        return [path for path in (self.comment, self.junit, self.code_quality, self.json_file) if path is not None]

    def limits(self) -> GateTable:
        """As a settings file would say it."""
        from steptime.gate.settings import GateTable

        return GateTable(
            max_step_time=self.max_step_time,
            min_mfu=self.min_mfu,
            detect=self.detect,
            min_steps=self.min_steps,
            max=dict(self.budgets),
        )


def _deliver(verdict: Verdict, own: _Own, quiet: bool) -> None:
    from steptime.report import gate_ci, gate_markdown, gate_terminal, gate_words

    quality_at = str(own.update_baseline or _SETTINGS_FILE)
    texts = (
        (own.comment, gate_markdown.render(verdict)),
        (own.junit, gate_ci.junit(verdict)),
        (own.code_quality, gate_ci.code_quality(verdict, quality_at)),
        (own.json_file, gate_ci.as_json(verdict)),
    )
    write_texts({path: text for path, text in texts if path is not None})
    whole = gate_terminal.render(verdict, *screen())
    click.echo(gate_words.headline(verdict) + "\n" if quiet else whole, nl=False)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        click.echo(gate_ci.workflow_commands(verdict), nl=False)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), gate_markdown.render(verdict))


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: the step summary can't be written ({error.strerror})") from error


def _update(answer: Answer, own: _Own) -> None:
    """Store the candidate, whatever the verdict: who asks for it has decided. Not if it could not be read."""
    if not answer.candidate:
        raise ReportError(f"{own.update_baseline}: left as it is, since candidate or baseline could not be read")
    from steptime.gate.baseline import candidate_spread

    _store(answer.candidate, candidate_spread(answer.candidate, answer.baseline, answer.history), own)


def _store_first(runs: list[Run], own: _Own) -> None:
    """Without a baseline there is nothing to judge: the first one is made."""
    from steptime.gate.baseline import candidate_spread

    click.echo("no baseline was given, so nothing was judged")
    _store(runs, candidate_spread(runs, [], []), own)


def _store(runs: list[Run], spread: Spread, own: _Own) -> None:
    from steptime.gate.baseline import stored, write
    from steptime.gate.settings import DEFAULT_MIN_STEPS, read_table

    path, most = own.update_baseline, own.baseline_size * 1000
    assert path is not None
    needed = own.min_steps or read_table(Path())[0].min_steps or DEFAULT_MIN_STEPS
    few = next((run for run in runs if len(run.grid) < needed), None)
    if few is not None:
        raise ReportError(f"{path}: left as it is, {few.name} has too few steps for a baseline: record more")
    size = write(stored(runs, spread), path, most)
    note = "" if size <= most else f", more than {own.baseline_size} kB: record fewer steps, or raise --baseline-size"
    click.echo(f"baseline written: {path} ({size / 1000:.0f} kB{note})")
