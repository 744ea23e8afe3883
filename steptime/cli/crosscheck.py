"""``steptime crosscheck``: HTA's figures beside steptime's, with the reason for each difference."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from steptime.errors import TraceError

if TYPE_CHECKING:
    from steptime.crosscheck.result import Crosscheck, Effect, Row

_WIDTH = 80
_INDENT = "    "
_TITLES = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copy and memset",
    "overlap": "communication under compute",
    "idle": "idle",
    "non_compute": "busy, not computing",
}


@click.command("crosscheck", short_help="Compare the figures of a trace with HTA's.")
@click.argument("path", metavar="TRACE")
def command(path: str) -> None:
    """Print what HTA and steptime say of one TRACE over the same interval, and why they differ where they do.

    HTA is HolisticTraceAnalysis: pip install 'steptime[crosscheck]'. Exit code 0 says that each difference is within
    0.5 % or comes from a difference in definition that is named.
    """
    from steptime.crosscheck.compare import crosscheck
    from steptime.crosscheck.result import Cause
    from steptime.report.names import visible

    result = crosscheck(path)
    click.echo("\n".join(_lines(result)))
    odd = [_TITLES[row.figure] for row in result.rows if not row.explained]
    if odd:
        raise TraceError(
            f"{visible(result.path)}: no known difference in definition explains HTA's figure for {', '.join(odd)}; "
            "please report this with the trace"
        )
    click.echo("\nEvery difference is within 0.5 % or explained.")
    if any(effect.cause is Cause.ROUNDING for row in result.rows for effect in row.effects):
        click.echo("With HTA_DISABLE_NS_ROUNDING=1 in the environment, HTA keeps nanoseconds.")


def _lines(result: Crosscheck) -> list[str]:
    from steptime.report.names import brief
    from steptime.report.units import time

    about = (
        f"HTA {result.hta_version} and steptime over the same {time(result.interval_ns)}: from HTA's first device "
        "event to its last, in all steps (by itself HTA leaves out the last step)."
    )
    head = f"{'µs':<29}{'HTA':>16}{'steptime':>16}{'difference':>14}"
    lines = [brief(result.path, _WIDTH), *textwrap.wrap(about, _WIDTH), "", head]
    for row in result.rows:
        lines.append(_figures(row))
        if row.effects:
            lines += textwrap.wrap(_reason(row.effects), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return lines


def _figures(row: Row) -> str:
    from steptime.report.units import Scale, scaled

    micros = Scale("µs", 1_000)
    values = f" {scaled(row.hta_ns, micros):>15} {scaled(row.steptime_ns, micros):>15}"
    return f"{_TITLES[row.figure]:<29}{values}{_difference(row):>14}"


def _difference(row: Row) -> str:
    from steptime.report.units import share

    if not row.difference_ns:
        return "0 %"
    if not row.steptime_ns:
        return "only HTA"
    text = share(abs(row.difference_ns) / row.steptime_ns)
    return text if text.startswith("<") else f"{'+' if row.difference_ns > 0 else '-'}{text}"


def _reason(effects: tuple[Effect, ...]) -> str:
    """One sentence for all effects on one figure."""
    from steptime.report.units import time

    parts = [f"{_clause(effect)} ({'+' if effect.ns > 0 else ''}{time(effect.ns)})" for effect in effects]
    return f"HTA {'; it '.join(parts)}."


def _clause(effect: Effect) -> str:
    from steptime.crosscheck.result import Cause
    from steptime.report.names import shorten_all
    from steptime.report.units import plural

    events = plural(effect.count, "event")
    example = effect.example
    name = shorten_all([example.name], 40)[example.name] if example else ""
    to_hta = example.hta.name.lower() if example and example.hta is not None else ""
    to_steptime = example.steptime.name.lower() if example and example.steptime is not None else ""
    return {
        Cause.DEVICES: "puts all devices of the file on one timeline, where what runs at once counts once",
        Cause.KINDS: f"goes by names alone, which moves {events}: {name} is {to_hta}, not {to_steptime}",
        Cause.UNLAUNCHED: f"leaves out {events} whose launch is not in the recorded steps",
        Cause.NOT_WORK: f"takes {plural(effect.count, 'record')} with a stream for work of the device: {name}",
        Cause.CLEANED: f"counts {events} that can't be true, which steptime drops or clips: {name}",
        Cause.ROUNDING: f"cuts {events} to whole microseconds",
        Cause.FLOATS: "keeps times as floating-point microseconds",
        Cause.UNKNOWN: "differs for a reason that is not known",
    }[effect.cause]
