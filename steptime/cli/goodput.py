"""``steptime goodput``: how much of the time a run ran, from its logs; questions beside it are verbs of their own."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steptime.cli.goodput_outputs import deliver_goodput
from steptime.cli.outputs import check_places, output_options
from steptime.cli.params import Duration
from steptime.errors import UsageError

if TYPE_CHECKING:
    from steptime.goodput.costs import Money
    from steptime.goodput.lost_work import Rhythm

#: Verbs of the group, each a module ``steptime.cli.goodput_VERB`` that registers its command when it is imported.
_VERBS = ("plan", "watch")


class LogsOrVerb(click.Group):
    """A command that takes logs, and a group: the first word decides. A log called as a verb is reached as ./plan."""

    # A group stops reading options at the first word that is none; logs may come before options.
    allow_interspersed_args = True

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The verbs that this installation has."""
        return [verb for verb in _VERBS if find_spec(f"steptime.cli.goodput_{verb}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name; its module is imported here."""
        if cmd_name in self.list_commands(ctx):
            import_module(f"steptime.cli.goodput_{cmd_name}")
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave a verb's words to the verb."""
        if args and args[0] in self.list_commands(ctx):
            ctx.args = args
            return args
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, or the command on logs."""
        verb = self.get_command(ctx, ctx.args[0]) if ctx.args else None
        if verb is None:
            return click.Command.invoke(self, ctx)
        # Under its parent, or its usage would name the LOG argument, which it does not take.
        with verb.make_context(f"{ctx.info_name} {ctx.args[0]}", ctx.args[1:], parent=ctx.parent) as inner:
            return verb.invoke(inner)


#: Options that are fields of `Options`, of its `reading`, of its `money`.
_PLAIN = ("since", "until", "gpus", "hosts", "step_ns")
_READING = ("zone", "job", "gap_ns")


# The options of a group with verbs are those of the command on logs; each verb has its own.
@click.group("goodput", cls=LogsOrVerb, subcommand_metavar="", no_args_is_help=False)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@output_options
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of the run: MTBF of one, GPU-hours.")
@click.option("--hosts", type=click.IntRange(min=1), metavar="N", help="Hosts of the run: is a repeat chance?")
@click.option("--since", metavar="WHEN", help="When the run began, as 2024-05-01T10:00:00+02:00.")
@click.option("--until", metavar="WHEN", help="When the run ended, or the end of what the logs cover.")
@click.option("--mfu", type=click.FloatRange(0, 1, min_open=True), metavar="F", help="MFU of a step, as 0.41.")
@click.option("--run", "run", metavar="REPORT.json", help="A report of `steptime analyze` to take MFU and GPUs from.")
@click.option("--gpu-hour-price", "price", type=click.FloatRange(0, min_open=True), metavar="X", help="Price of it.")
@click.option("--checkpoint-every", "every_ns", type=Duration(), help="Training between checkpoints, as 15m.")
@click.option("--checkpoint-pause", "pause_ns", type=Duration(), help="How long a checkpoint stops training, as 33s.")
@click.option("--step-time", "step_ns", type=Duration(), help="Time of one step, where the log has steps but no pace.")
@click.option("--gap", "gap_ns", type=Duration(), help="Silence in a metrics file that is an interruption.")
@click.option("--job", metavar="NAME", help="The job, where a log of Slurm or Kubernetes holds several.")
@click.option("--timezone", "zone", default="UTC", show_default=True, metavar="ZONE", help="Of times without a zone.")
def goodput(logs: tuple[str, ...], outputs: tuple[Path, ...], quiet: bool, **options: Any) -> None:
    """Say how much of the time a run trained, what stopped it, and what that cost.

    LOG is a list of interruptions (CSV or JSON lines: time, cause, detected, resumed, step, last_checkpoint_step or
    last_checkpoint, host), what Slurm's sacct printed, Kubernetes' events as JSON, or what the run logged at its steps
    (JSON lines, CSV, TensorBoard event files), from which restarts are inferred. Several are one run.
    """
    from steptime.report.goodput import format_for

    check_places(outputs, logs, format_for)
    from steptime.goodput.assess import Options, assess
    from steptime.goodput.logs import Reading

    reading = Reading(**{name: options[name] for name in _READING})
    plain = {name: options[name] for name in _PLAIN}
    money, gpus = _money(options)
    plain["gpus"] = plain["gpus"] or gpus
    report = assess(logs, Options(reading=reading, rhythm=_rhythm(options), money=money, **plain))
    deliver_goodput(report, outputs, quiet)


def _rhythm(options: dict[str, Any]) -> Rhythm | None:
    from steptime.goodput.lost_work import Rhythm

    every, pause = options["every_ns"], options["pause_ns"]
    if every is None and pause is not None:
        raise UsageError("--checkpoint-pause says how long, --checkpoint-every how often: give both")
    return None if every is None else Rhythm(every, pause or 0)


def _money(options: dict[str, Any]) -> tuple[Money, int | None]:
    """MFU and price, and the GPUs of the report that MFU is taken from."""
    from steptime.goodput.costs import Money

    price, mfu = options["price"], options["mfu"]
    if options["run"] is None:
        return Money(mfu, "given" if mfu is not None else None, price), None
    if mfu is not None:
        raise UsageError("--mfu and --run both give MFU: choose one")
    from steptime.store import load

    job = load(options["run"]).job
    if job.mfu is None:
        raise UsageError(f"{options['run']}: MFU is not known in this report: give --mfu")
    return Money(job.mfu, options["run"], price), job.world_size


command = goodput
