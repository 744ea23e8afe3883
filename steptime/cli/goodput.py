"""``steptime goodput``: how much of the time a run ran, from its logs; questions beside it are verbs of their own."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from steptime.errors import UsageError

#: Verbs of the group, each a module ``steptime.cli.goodput_VERB`` that registers its command when it is imported.
_VERBS = ("plan", "watch")


class LogsOrVerb(click.Group):
    """A command that takes logs, and a group: the first word decides. A log called as a verb is reached as ./plan."""

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


@click.group("goodput", cls=LogsOrVerb, subcommand_metavar="", no_args_is_help=False)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
def goodput(logs: tuple[str, ...]) -> None:
    """Say how much of the time a run trained, what stopped it, and what that cost."""
    raise UsageError(f"{logs[0]}: reading logs comes with the next change")


command = goodput
