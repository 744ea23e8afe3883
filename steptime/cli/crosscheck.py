"""``steptime crosscheck``: HTA's figures beside steptime's, with the reason for each difference."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from steptime.errors import TraceError

if TYPE_CHECKING:
    from steptime.crosscheck import Crosscheck, Effect, Row

_WIDTH = 80
_TITLES = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copy and memset",
    "overlap": "communication under compute",
    "idle": "idle",
    "non_compute": "busy, not computing",
}


@click.command("crosscheck", short_help="Compare the figures with HTA's.")
@click.argument("path", metavar="TRACE")
def command(path: str) -> None:
    """Print what HTA and steptime say of one TRACE over the same interval, and why they differ where they do.

    HTA is HolisticTraceAnalysis: pip install 'steptime[crosscheck]'. Exit code 0 says that each difference is within
    0.5 % or comes from a difference in definition that is named.
    """
    from steptime.crosscheck import crosscheck
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


def _lines(result: Crosscheck) -> list[str]:
    from steptime.report.names import visible
    from steptime.report.units import time

    lines = [
        f"HTA {result.hta_version} and steptime on {visible(result.path)}",
        f"over the same {time(result.interval_ns)}: from HTA's first to its last device event, last step included",
        "",
        f"{'µs':<29}{'HTA':>16}{'steptime':>16}{'difference':>14}",
    ]
    for row in result.rows:
        lines.append(_figures(row))
        if row.effects:
            indent = "    "
            lines += textwrap.wrap(_reason(row.effects), _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines


def _figures(row: Row) -> str:
    from steptime.report.units import Scale, scaled

    micros = Scale("µs", 1_000)
    values = f"{scaled(row.hta_ns, micros):>16}{scaled(row.steptime_ns, micros):>16}"
    return f"{_TITLES[row.figure]:<29}{values}{_difference(row):>14}"


def _difference(row: Row) -> str:
    from steptime.report.units import share

    if row.difference_ns and not row.steptime_ns:
        return "only HTA"
    if not row.difference_ns:
        return "0 %"
    sign = "+" if row.difference_ns > 0 else "-"
    return f"{sign}{share(abs(row.difference_ns) / row.steptime_ns)}"


def _reason(effects: tuple[Effect, ...]) -> str:
    """One sentence for all effects on one figure."""
    from steptime.report.units import time

    parts = [f"{_clause(effect)} ({'+' if effect.ns > 0 else ''}{time(effect.ns)})" for effect in effects]
    return f"HTA {'; it '.join(parts)}."


def _clause(effect: Effect) -> str:
    from steptime.crosscheck import Cause
    from steptime.report.names import brief
    from steptime.report.units import plural

    events = plural(effect.count, "event")
    example = effect.examples[0] if effect.examples else None
    name = brief(example.name, 44) if example else ""
    if effect.cause is Cause.KINDS and example and example.here is not None and example.there is not None:
        here, there = example.here.name.lower(), example.there.name.lower()
        return f"tells kinds by the name alone, {events} otherwise than steptime: {name} is {there}, not {here}"
    return {
        Cause.DEVICES: f"puts {plural(effect.count, 'device')} on one timeline",
        Cause.KINDS: f"tells kinds by the name alone, {events} otherwise than steptime",
        Cause.UNLAUNCHED: f"leaves out {events} whose launch is not in the file",
        Cause.NOT_WORK: f"counts {plural(effect.count, 'record')} that are no device work but name a stream: {name}",
        Cause.CLEANED: f"counts {events} as recorded that can't be true, and that steptime drops or clips",
        Cause.ROUNDING: f"cuts each of its {events} to whole microseconds",
        Cause.FLOATS: "keeps times as floating-point microseconds",
        Cause.UNKNOWN: "differs for a reason that is not known",
    }[effect.cause]
