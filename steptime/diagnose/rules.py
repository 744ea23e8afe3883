"""Rules: one TOML file each, with a condition over documented metrics and examples that prove it.

A condition is ``metric op number``; all conditions of a rule must hold. There is no other logic: a rule that needs more
becomes a metric. One condition that is known to be false keeps a rule silent; if none is and a metric is unknown, the
rule is *not evaluated*.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from steptime.diagnose.metrics import METRICS
from steptime.diagnose.reading import Value, unknown
from steptime.diagnose.roof_metrics import CHECKS
from steptime.errors import UsageError
from steptime.taxonomy import LEAF_CODE, SLICES

_PACKAGE = Path(__file__).parent.parent

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_CONDITION = re.compile(r"([a-z][\w.]*) (>=|<=|==|>|<) (-?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)")
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")

Confidence = Literal["high", "medium", "low"]


class Condition(NamedTuple):
    """``metric op number``."""

    metric: str
    op: str
    number: float

    def holds(self, value: float) -> bool:
        """Whether a known value meets the condition."""
        return _OPERATORS[self.op](value, self.number)


class Outcome(NamedTuple):
    """Whether a rule fires; None: not evaluated, because."""

    fires: bool | None
    why: str = ""


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of the metrics in the condition, and whether the rule fires on them."""

    fires: bool
    metrics: dict[str, float]


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a finding shows as evidence.

    metrics: numbers to print. causes: leaves whose costliest causes are shown, those that match the regular
    expression `named`. roofline: checks whose costliest ops are shown. collectives: kinds. ranks: slices, for each
    the ranks that held up the others with it, or the one that spends most time in it. steps: the slowest counted
    step. links: ``slowest``, the collectives with the least bus bandwidth, or ``slow groups``, those slower than
    their like, and what they have in common.
    """

    metrics: list[str] = []
    causes: list[str] = []
    named: str = ""
    roofline: list[str] = []
    collectives: list[str] = []
    ranks: list[str] = []
    steps: bool = False
    links: Literal["", "slowest", "slow groups"] = ""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One diagnosis.

    id: the file's name without ``.toml``. slice: the row of the report that it belongs to. when: conditions, all of
    which must hold. saves: the metric whose time a fix gives back at most; it knows of which leaves. costs: the metric
    of what it costs where no fix's gain can be computed. cannot_tell: it says that the traces don't allow a verdict on
    the time that `costs` names. general: it takes what more specific rules have left. advice: two sentences. source:
    where the rule comes from.
    """

    id: str
    title: str
    slice: str
    when: list[str]
    advice: str
    examples: list[Example]
    confidence: Confidence
    saves: str | None = None
    costs: str | None = None
    cannot_tell: bool = False
    general: bool = False
    source: str = ""
    evidence: Shown = Shown()

    @property
    def conditions(self) -> list[Condition]:
        """The conditions of `when`, read."""
        return [_condition(text) for text in self.when]

    def outcome(self, values: Mapping[str, Value]) -> Outcome:
        """Whether the rule fires on these values; a metric that is missing is unknown."""
        gaps = []
        for condition in self.conditions:
            value = values.get(condition.metric, unknown("not measured"))
            if value.number is None:
                gaps.append(f"{condition.metric} is unknown: {value.why}")
            elif not condition.holds(value.number):
                return Outcome(False)
        return Outcome(None, gaps[0]) if gaps else Outcome(True)


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not of the form 'metric op number', with one space between (ops: > >= < <= ==)")
    return Condition(found[1], found[2], float(found[3]))


def builtin_dir() -> Path:
    """The folder of steptime's own rules: inside an installed package, else beside the package in a checkout."""
    inside = _PACKAGE / "_rules"
    return inside if inside.is_dir() else _PACKAGE.parent / "rules"


def load_rules(dirs: Sequence[Path] = ()) -> list[Rule]:
    """steptime's own rules and those of `dirs`, in order of id.

    Raises:
        UsageError: a folder is missing or holds no rule; a rule is malformed, contradicts its examples, names a metric
            that does not exist, or has the id of another.
    """
    rules: dict[str, Rule] = {}
    homes: dict[str, Path] = {}
    for folder in (builtin_dir(), *dirs):
        for path in _rule_files(folder):
            rule = load_rule(path)
            if rule.id in rules:
                raise UsageError(f"{path}: {homes[rule.id]} has the same id: rename one of the two")
            rules[rule.id], homes[rule.id] = rule, path
    return [rules[key] for key in sorted(rules)]


@functools.cache
def builtin_rules() -> tuple[Rule, ...]:
    """steptime's own rules, quickly: without their examples and unchecked, which the suite does."""
    rules = []
    for path in _rule_files(builtin_dir()):
        text = path.read_text(encoding="utf-8").partition("[[examples]]")[0]
        rules.append(msgspec.toml.decode(f"examples = []\n{text}", type=Rule))
    return tuple(sorted(rules, key=lambda rule: rule.id))


def _rule_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder: give one that holds rules (*.toml)")
    found = sorted(folder.glob("*.toml"))
    if not found:
        raise UsageError(f"{folder}: holds no rule (*.toml): see `steptime rules` for what one looks like")
    return found


def load_rule(path: Path) -> Rule:
    """Read and check one rule file.

    Raises:
        UsageError: see `load_rules`.
    """
    try:
        rule = msgspec.toml.decode(path.read_bytes(), type=Rule)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}): check the path and its permissions") from error
    except (msgspec.MsgspecError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: is no rule ({reason}): mend the file") from error
    fault = _fault(rule, path.stem)
    if fault:
        raise UsageError(f"{path}: {fault}")
    return rule


def _fault(rule: Rule, stem: str) -> str | None:
    """The first thing that is wrong with a rule, and what to do about it."""
    if rule.id != stem or not _ID.fullmatch(rule.id):
        return f"its id is {rule.id!r}: use the file's name, in lower case with hyphens"
    if rule.slice not in {part.id for part in SLICES}:
        return f"no slice {rule.slice!r}: use one of {', '.join(part.id for part in SLICES)}"
    if not rule.when:
        return "it has no condition: add one to `when`"
    try:
        named = {condition.metric for condition in rule.conditions}
    except ValueError as error:
        return f"{error}: mend the condition"
    metrics = [*sorted(named), *filter(None, (rule.saves, rule.costs)), *rule.evidence.metrics]
    strange = [metric for metric in metrics if metric not in METRICS]
    if strange:
        return f"no metric {strange[0]!r}: `steptime rules --metrics` lists them"
    return _fault_of_time(rule) or _fault_of_evidence(rule.evidence) or _fault_of_examples(rule, named)


def _fault_of_time(rule: Rule) -> str | None:
    for key, metric, units in (("saves", rule.saves, ("share",)), ("costs", rule.costs, ("share", "step share"))):
        if metric is not None and METRICS[metric].unit not in units:
            return f"{key} = {metric!r} has another unit: name a metric whose unit is {' or '.join(units)}"
    if rule.saves is not None and (rule.costs is not None or rule.cannot_tell):
        return "a rule that saves time has no `costs` and is no `cannot_tell`: keep one of them"
    return None


def _fault_of_evidence(shown: Shown) -> str | None:
    strange = [key for key in shown.causes if key not in LEAF_CODE]
    if strange:
        return f"evidence names no leaf {strange[0]!r}: write it as slice/leaf"
    unknown_checks = [check for check in shown.roofline if check not in CHECKS]
    if unknown_checks:
        return f"evidence names no roofline check {unknown_checks[0]!r}: use one of {', '.join(CHECKS)}"
    wrong_slices = [name for name in shown.ranks if name not in {part.id for part in SLICES}]
    if wrong_slices:
        return f"evidence.ranks names no slice {wrong_slices[0]!r}: use one of {', '.join(part.id for part in SLICES)}"
    try:
        re.compile(shown.named)
    except re.error as error:
        return f"evidence.named is no regular expression ({error}): mend it"
    return None


def _fault_of_examples(rule: Rule, named: set[str]) -> str | None:
    if {example.fires for example in rule.examples} != {True, False}:
        return "it needs an example that fires and one that stays silent: add what is missing"
    for number, example in enumerate(rule.examples, 1):
        extra = sorted(set(example.metrics) - named)
        if extra:
            return f"example {number} gives {extra[0]!r}, which the condition does not name: leave it out"
        got = rule.outcome({metric: Value(value) for metric, value in example.metrics.items()}).fires
        if got is not example.fires:
            what = {True: "it fires", False: "it stays silent", None: "it is not evaluated"}[got]
            return f"example {number} says fires = {str(example.fires).lower()}, but {what}: mend one of the two"
    return None
