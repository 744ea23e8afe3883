"""The rules in rules/: complete, documented, proven by their examples, and each able to fire on a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steptime.diagnose.findings import diagnose
from steptime.diagnose.metrics import FACTS, METRICS, measure
from steptime.diagnose.reading import UNITS, Value
from steptime.diagnose.rules import Rule, builtin_dir, load_rule, load_rules
from steptime.errors import UsageError
from steptime.taxonomy import LEAVES, SLICES
from tests.diagnose.situations import SITUATIONS

RULES = load_rules()
_IDS = [rule.id for rule in RULES]

_GOOD = """
id = "mine"
title = "Something of mine"
slice = "host"
when = ["share.host.python > 0.1"]
saves = "share.host.python"
confidence = "low"
advice = "Look at it. Then mend it."

[[examples]]
fires = true
metrics = { "share.host.python" = 0.2 }

[[examples]]
fires = false
metrics = { "share.host.python" = 0.1 }
"""


def _write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_there_are_as_many_rules_as_files(repo: Path) -> None:
    assert builtin_dir() == repo / "rules"
    assert sorted(path.stem for path in (repo / "rules").glob("*.toml")) == _IDS
    assert len(_IDS) >= 30


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
def test_an_example_fires_and_one_stays_silent(rule: Rule) -> None:
    for example in rule.examples:
        values = {name: Value(number) for name, number in example.metrics.items()}
        assert rule.outcome(values).fires is example.fires
    assert {example.fires for example in rule.examples} == {True, False}


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
def test_its_advice_is_two_sentences(rule: Rule) -> None:
    # A full stop inside a name (prof.step, torch.compile) is followed by no space.
    assert len(re.findall(r"[.!?](?:\s|$)", rule.advice.strip())) == 2
    assert rule.advice.strip()[-1] == "."
    assert rule.title[-1] != "."


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
def test_an_unknown_metric_is_not_evaluated(rule: Rule) -> None:
    outcome = rule.outcome({})
    assert outcome.fires is None
    assert "is unknown" in outcome.why


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
def test_it_fires_on_a_report(rule: Rule) -> None:
    found = diagnose(SITUATIONS[rule.id])
    finding = next(finding for finding in found.findings if finding.id == rule.id)
    assert (finding.slice, finding.title, finding.advice) == (rule.slice, rule.title, rule.advice)
    assert finding.evidence
    if rule.saves:
        assert finding.gain == "upper bound"
        assert finding.cost_ns
        assert 0 < finding.cost_ns <= SITUATIONS[rule.id].job.total_ns


def test_every_rule_has_a_report_and_no_report_is_left_over() -> None:
    assert sorted(SITUATIONS) == _IDS


def test_every_slice_and_every_leaf_that_can_be_lost_has_a_rule() -> None:
    named = {name for rule in RULES for name in (*(c.metric for c in rule.conditions), rule.saves, rule.costs) if name}
    by_name = {name for rule in RULES for name in rule.evidence.causes}
    for part in SLICES:
        assert any(rule.slice == part.id for rule in RULES), part.id
    for leaf in LEAVES:
        dotted = leaf.key.replace("/", ".")
        whole = f"share.{leaf.slice}" in named and leaf.slice in ("pipeline_bubble", "recompute")
        roof = {"kernels/matmul": "roof.matmul_headroom_share", "kernels/attention": "roof.attention_headroom_share"}
        roof["kernels/memory_bound"] = "roof.memory_headroom_share"
        covered = {f"share.{dotted}", f"recoverable.{dotted}", roof.get(leaf.key)} & named or leaf.key in by_name
        # The rest have no advice of their own: kernels and collectives of unknown kind, rare rooted collectives.
        rare = leaf.key in ("kernels/other_compute", "exposed_comm/reduce", "exposed_comm/other_comm")
        assert covered or whole or rare, leaf.key


def test_every_metric_is_documented() -> None:
    for name, metric in METRICS.items():
        assert (metric.id, metric.unit in UNITS) == (name, True)
        assert re.fullmatch(r"[A-Z].*\.", metric.meaning), name
    assert len({fact.name for fact in FACTS}) == len(FACTS)
    assert all(fact.unit in UNITS and fact.meaning.endswith(".") and fact.why_missing for fact in FACTS)


def test_every_value_is_a_number_or_has_a_reason() -> None:
    for given in SITUATIONS.values():
        for name, value in measure(given).items():
            assert (value.number is None) == bool(value.why), name


def test_a_rule_of_ones_own(tmp_path: Path) -> None:
    _write(tmp_path, _GOOD)
    assert "mine" in [rule.id for rule in load_rules([tmp_path])]
    found = diagnose(SITUATIONS["python-between-ops"], [tmp_path])
    # It claims before the general rule of the same leaf, which is left with nothing.
    assert [(finding.id, finding.cost_ns) for finding in found.findings] == [("mine", 4 * 18_000_000)]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('id = "mine"', 'id = "other"', "its id is 'other': use the file's name"),
        ('slice = "host"', 'slice = "gpu"', "no slice 'gpu': use one of kernels, exposed_comm,"),
        ("share.host.python > 0.1", "share.host.magic > 0.1", "no metric 'share.host.magic'"),
        ("share.host.python > 0.1", "share.host.python > x", "is not of the form 'metric op number'"),
        ("share.host.python > 0.1", "share.host.python>0.1", "is not of the form 'metric op number'"),
        ("share.host.python > 0.1", "__import__('os') > 0", "is not of the form 'metric op number'"),
        ('when = ["share.host.python > 0.1"]', "when = []", "it has no condition"),
        ('saves = "share.host.python"', 'saves = "steps.spread"', "has another unit"),
        ('saves = "share.host.python"', 'saves = "nothing"', "no metric 'nothing'"),
        ('saves = "share.host.python"', 'saves = "share.host.gc"\ncannot_tell = true', "keep one of them"),
        ('confidence = "low"', 'confidence = "total"', "is no rule (Invalid enum value 'total'"),
        ('confidence = "low"', "", "is no rule (Object missing required field `confidence`)"),
        ("title", "titel", "is no rule (Object contains unknown field `titel`)"),
        ("fires = true", "fires = false", "it needs an example that fires"),
        ("= 0.2 }", "= 0.05 }", "example 1 says fires = true, but it stays silent"),
        ("= 0.1 }", "= 0.3 }", "example 2 says fires = false, but it fires"),
        ('"share.host.python" = 0.2', '"share.host.gc" = 0.2', "which the condition does not name"),
        ("[[examples]]", '[evidence]\ncauses = ["host/magic"]\n[[examples]]', "no leaf 'host/magic'"),
        ("[[examples]]", '[evidence]\nroofline = ["magic"]\n[[examples]]', "no roofline check 'magic'"),
        ("[[examples]]", '[evidence]\nranks = ["magic"]\n[[examples]]', "no slice 'magic'"),
        ("[[examples]]", "[evidence]\nnamed = '('\n[[examples]]", "is no regular expression"),
        ("[[examples]]", "[[examples", "is no rule ("),
    ],
)
def test_a_bad_rule_is_refused_in_one_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in _GOOD
    path = _write(tmp_path, _GOOD.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        load_rule(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_examples_are_needed(tmp_path: Path) -> None:
    path = _write(tmp_path, _GOOD[: _GOOD.rindex("[[examples]]")])
    with pytest.raises(UsageError, match="one that stays silent: add what is missing"):
        load_rule(path)


def test_an_id_can_be_given_once(tmp_path: Path, repo: Path) -> None:
    _write(tmp_path, (repo / "rules" / "sync.toml").read_text(), "sync.toml")
    with pytest.raises(UsageError, match=r"sync\.toml: .*rules/sync\.toml has the same id: rename"):
        load_rules([tmp_path])


def test_a_folder_must_be_there_and_hold_rules(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        load_rules([tmp_path / "none"])
    with pytest.raises(UsageError, match="holds no rule"):
        load_rules([tmp_path])


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no rule"):
        load_rule(path)
