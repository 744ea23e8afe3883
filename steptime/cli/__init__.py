"""The command line: it translates between words and `steptime.pipeline`, prints, and chooses the exit code.

Only this room prints. A verb is a row in `COMMANDS` and a module with a click command named ``command``; its module
is imported when the verb is used, so that ``steptime --help`` stays instant.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType
from typing import NamedTuple

import click

from steptime import __version__
from steptime.errors import EXIT_CANNOT_TELL, EXIT_OK, StepTimeError

# What a shell reports for a program that SIGINT or SIGPIPE ended. 1 would read as "regressed".
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Command(NamedTuple):
    """A verb: its name, the module that holds it, and its line in ``steptime --help``."""

    name: str
    module: str
    help: str


COMMANDS: tuple[Command, ...] = (
    Command("analyze", "steptime.cli.analyze", "Say where the step time of a training job went."),
    Command("show", "steptime.cli.show", "Show a saved report again, or convert it."),
    Command("diff", "steptime.cli.diff", "Say what changed from one run to another."),
    Command("gate", "steptime.cli.gate", "Say whether a job became slower than its baseline, and why."),
    Command("what-if", "steptime.cli.what_if", "Replay a job with some of its times changed."),
    Command("diagnose", "steptime.cli.diagnose", "Say who makes a job slow, and why: of traces or a running job."),
    Command("capture", "steptime.cli.capture", "Ask a job with the hook for traces."),
    Command("goodput", "steptime.cli.goodput", "Say how much of the time a run trained, and what stopped it."),
    Command("rules", "steptime.cli.rules", "List the rules behind the findings."),
    Command("crosscheck", "steptime.cli.crosscheck", "Compare the figures of a trace with HTA's."),
    Command("simulate", "steptime.cli.simulate", "Write the traces of a simulated job, and the truth about it."),
)


class _Verbs(click.Group):
    """The verbs of `COMMANDS`, each imported when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [row.name for row in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        for row in COMMANDS:
            if row.name == cmd_name:
                command: click.Command = import_module(row.module).command
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(row.name, row.help) for row in COMMANDS])


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 regressed, 2 cannot tell (bad input, bad usage).",
)
@click.version_option(__version__, prog_name="steptime")
def verbs() -> None:
    """Where did the step time of a training job go, and what would each fix buy?"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the program's own) and return its exit code."""
    if argv is None:
        sys.excepthook = _report_defect
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets "?" for it, not a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except StepTimeError as error:
        click.echo(f"steptime: {error}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        click.echo("steptime: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends, and that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _run(args: list[str]) -> int:
    """Invoke click without its own `main`, which answers a broken pipe with exit code 1."""
    # A command is one short run: a collection could free next to nothing of it.
    gc.disable()
    try:
        with verbs.make_context("steptime", args) as context:
            verbs.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.stdout.flush()
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_CANNOT_TELL
    return EXIT_OK


def _report_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End with "cannot tell" where Python would end with 1, which means "regressed"."""
    sys.__excepthook__(kind, error, trace)
    click.echo("steptime: this is a defect in steptime: please report it with the lines above", err=True)
    sys.stderr.flush()
    os._exit(EXIT_CANNOT_TELL)
