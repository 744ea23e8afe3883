"""``steptime rules``: what `analyze` looks for, and the numbers that a rule may name."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from steptime.errors import UsageError

if TYPE_CHECKING:
    from steptime.diagnose.rules import Example, Rule

_WIDTH = 100
_INDENT = "    "


@click.command("rules", short_help="List the rules behind the findings.")
@click.argument("rule_id", metavar="[ID]", required=False)
@click.option(
    "--rules",
    "dirs",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Add the rules (*.toml) in DIR; may be repeated.",
)
@click.option("--metrics", is_flag=True, help="List the numbers that a rule may name instead.")
def command(rule_id: str | None, dirs: tuple[Path, ...], metrics: bool) -> None:
    """List all rules with their slice and condition, or show one rule with its advice and examples.

    A rule is a TOML file; its condition is `metric op number`, and all conditions must hold.
    """
    if metrics:
        click.echo("\n".join(_metric_lines()))
        return
    from steptime.diagnose.rules import load_rules

    rules = load_rules(dirs)
    if rule_id is None:
        click.echo("\n".join(line for rule in rules for line in _listed(rule)))
        return
    found = next((rule for rule in rules if rule.id == rule_id), None)
    if found is None:
        raise UsageError(f"no rule {rule_id!r}: `steptime rules` lists them all")
    click.echo("\n".join(_shown(found)))


def _listed(rule: Rule) -> list[str]:
    return [f"{rule.id} [{rule.slice}]", f"{_INDENT}{rule.title}", *_wrapped(f"when {' and '.join(rule.when)}")]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def _shown(rule: Rule) -> list[str]:
    lines = [f"{rule.id} [{rule.slice}]: {rule.title}", "", "when", *(f"{_INDENT}{text}" for text in rule.when)]
    for name, value in (("saves at most", rule.saves), ("costs", rule.costs), ("source", rule.source)):
        lines += [name, *_wrapped(value)] if value else []
    lines += [
        "confidence",
        f"{_INDENT}{'the verdict is that the cause is unknown' if rule.cannot_tell else rule.confidence}",
    ]
    lines += ["advice", *_wrapped(rule.advice.strip()), "examples"]
    return lines + [line for example in rule.examples for line in _example(example)]


def _example(example: Example) -> list[str]:
    values = ", ".join(f"{name} = {value:g}" for name, value in example.metrics.items())
    return _wrapped(f"{'fires' if example.fires else 'silent'}: {values}")


def _metric_lines() -> list[str]:
    from steptime.diagnose.metrics import METRICS
    from steptime.diagnose.reading import UNITS

    lines = ["units", *(line for unit, meaning in UNITS.items() for line in _wrapped(f"{unit}: {meaning}")), ""]
    for metric in METRICS.values():
        lines += [f"{metric.id} [{metric.unit}]", *_wrapped(metric.meaning)]
    return lines
