"""``steptime gate``: is this job slower than its baseline, and why? Pass, regressed or cannot tell."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steptime.errors import ReportError, StepTimeError, UsageError

if TYPE_CHECKING:
    from steptime.cli.gating import Answer
    from steptime.model.gate import Verdict

#: Options that take every word up to the next option, so that a shell's glob can stand behind them.
_GREEDY = ("--baseline", "--history")
_BASELINE_KB = 200
_EXIT_DOC = "Exit codes: 0 pass, 1 regressed, 2 cannot tell."


class _Greedy(click.Command):
    """A command whose `_GREEDY` options take several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
        return super().parse_args(ctx, spread)


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
@click.option("-q", "--quiet", is_flag=True, help="Print the first line only.")
@click.pass_context
def command(ctx: click.Context, candidate: tuple[str, ...], **options: Any) -> None:
    """Say whether CANDIDATE is slower than the baseline, by how much, and what in the step moved.

    CANDIDATE and BASE are reports (steptime analyze -o run.json), folders with traces, globs or URLs; several runs on a
    side show how much runs differ by chance. Limits may stand in steptime.toml or pyproject.toml.
    """
    from steptime.cli.gating import Ask, gate
    from steptime.gate.settings import GateTable

    if options["update_baseline"] is not None and not options["baseline"] and not options["accept"]:
        _store_only(candidate, options)
        return
    limits = GateTable(
        max_step_time=options["max_step_time"],
        min_mfu=options["min_mfu"],
        detect=options["detect"],
        min_steps=options["min_steps"],
        max=dict(options["budgets"]),
    )
    until: datetime | None = options["until"]
    answer = gate(
        Ask(
            candidate=candidate,
            baseline=options["baseline"],
            history=options["history"],
            limits=limits,
            accept=options["accept"],
            why=options["why"],
            until=until.date() if until else None,
        )
    )
    _deliver(answer.verdict, options)
    if options["update_baseline"] is not None:
        _update(answer, options)
    ctx.exit(answer.verdict.exit_code)


def _deliver(verdict: Verdict, options: dict[str, Any]) -> None:
    from steptime.gate.accepted import write_at_once
    from steptime.report import gate_ci, gate_markdown, gate_terminal, gate_words

    quality_at = str(options["update_baseline"] or "steptime.toml")
    for name, text in (
        ("comment", gate_markdown.render(verdict)),
        ("junit", gate_ci.junit(verdict)),
        ("code_quality", gate_ci.code_quality(verdict, quality_at)),
        ("json_file", gate_ci.as_json(verdict)),
    ):
        if options[name] is not None:
            write_at_once(options[name], text)
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else None
    color = on_terminal and not os.environ.get("NO_COLOR")
    whole = gate_terminal.render(verdict, width, color)
    click.echo(gate_words.headline(verdict) + "\n" if options["quiet"] else whole, nl=False)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        click.echo(gate_ci.annotations(verdict), nl=False)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        _append(Path(summary), gate_markdown.render(verdict))


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: the step summary can't be written ({error.strerror})") from error


def _update(answer: Answer, options: dict[str, Any]) -> None:
    """Store the candidate, whatever the verdict: who asks for it has decided. Not if it could not be read or judged."""
    from steptime.gate.baseline import candidate_spread

    if not answer.candidate or any(not run.grid for run in answer.candidate):
        raise ReportError(f"{options['update_baseline']}: left as it is, the candidate can't be a baseline")
    spread = candidate_spread(answer.candidate, answer.baseline, answer.history)
    _store(answer.candidate, spread, options)


def _store_only(candidate: tuple[str, ...], options: dict[str, Any]) -> None:
    """Without a baseline there is nothing to judge: the first one is made."""
    from steptime.cli.runs import read_runs
    from steptime.gate.baseline import candidate_spread

    runs = read_runs(candidate)
    if any(not run.grid for run in runs):
        raise StepTimeError(f"{options['update_baseline']}: left as it is, the candidate has no counted steps")
    click.echo("no baseline was given, so nothing was judged")
    _store(runs, candidate_spread(runs, [], []), options)


def _store(runs: list[Any], spread: Any, options: dict[str, Any]) -> None:
    from steptime.gate.baseline import stored, write

    path, most = options["update_baseline"], options["baseline_size"] * 1000
    size = write(stored(runs, spread), path, most)
    note = "" if size <= most else f", more than {most // 1000} kB: record fewer steps, or raise --baseline-size"
    click.echo(f"baseline written: {path} ({size / 1000:.0f} kB{note})")
