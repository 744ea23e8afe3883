"""Public bug reports, as inputs with their right outcome: ``cases/*/expected.json`` of the shared folder.

All expected figures come from those files. They are for host windows; with device windows every busy figure is the
same, and so are length and idle time of each step but the first (README of that folder).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steptime import cli
from steptime.model import Report, StepTime
from steptime.report import FORMATS
from steptime.store import load
from steptime.timeline.labels import Labels
from steptime.timeline.links import Threads, activities, launch_rows
from steptime.timeline.totals import Totals, totals
from steptime.timeline.work import Ops, label
from steptime.trace.parse import parse

CASES = Path(__file__).parents[3] / "shared" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this checkout")

INPUTS = [
    *(f"A01/{name}.json" for name in ("control", "kernels_at_zero", "unfinished_cpu", "stray_far_away")),
    *(f"A05/{name}.json" for name in ("control", "illegal_escapes", "legal_but_wrong", "properly_escaped", "mixed")),
    *(f"A06/{name}.json" for name in ("control", "quotes", "newline", "control_char", "not_utf8")),
    *(f"A12/{name}/" for name in ("single", "no_rank", "dup_rank", "missing_rank", "foreign_json", "world_mismatch")),
    *(f"A19/{name}/" for name in ("rollover", "one_absolute", "skew_4ms")),
    *(f"A21/{name}.json" for name in ("control", "overrun_1600ms", "dependent_launch", "overlap_27ns")),
]

#: What needs all ranks on one clock; the cross-rank analysis will be held to it.
ACROSS_RANKS = {"all_reduce_transfer_us", "wait_us_per_step", "straggler", "clock_offset_us"}
#: Fields of an input that the tests below read; one that is in neither set fails.
READ = {
    "outcome",
    "figures_per_step",
    "tolerance_us",
    "note",
    "note_should_count",
    "flagged_kernels",
    "kernel_length_us",
    "must_not",
    "error_must_name",
    "error_should_mention_any_of",
    "warning_should_mention_any_of",
}


@dataclass(frozen=True)
class Outcome:
    """What the command line made of one input. `report` None: refused."""

    expected: dict[str, Any]
    paths: list[Path]
    code: int
    out: str
    err: str
    report: Report | None

    @property
    def warnings(self) -> list[str]:
        assert self.report is not None
        return [*self.report.warnings, *(text for one in self.report.inputs for text in one.warnings)]

    def ok(self) -> Report:
        assert self.code == 0, self.err
        assert self.report is not None
        return self.report


def expected_of(name: str) -> dict[str, Any]:
    case, _, rest = name.partition("/")
    whole = json.loads((CASES / case / "expected.json").read_bytes())
    found: dict[str, Any] = whole["inputs"][rest]
    return {"tolerance_us": whole["tolerance_us"]} | found


def run(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Outcome:
    path = CASES / name
    output = folder / "report.json"
    code = cli.main(["analyze", str(path), "-o", str(output)])
    captured = capsys.readouterr()
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return Outcome(
        expected_of(name), paths, code, captured.out, captured.err, load(str(output)) if output.exists() else None
    )


@pytest.fixture
def outcome(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Outcome:
    return run(request.param, tmp_path, capsys)


def about(field: str) -> pytest.MarkDecorator:
    """Parametrise over the inputs whose expectation has a field."""
    names = [name for name in INPUTS if field in expected_of(name)] if CASES.is_dir() else ["absent"]
    assert names, field
    return pytest.mark.parametrize("outcome", names, indirect=True)


def test_no_input_and_no_expectation_is_left_out() -> None:
    found = {
        f"{path.parent.name}/{name}"
        for path in CASES.glob("*/expected.json")
        for name in json.loads(path.read_bytes())["inputs"]
    }
    assert found == set(INPUTS)
    for name in INPUTS:
        assert set(expected_of(name)) <= READ | ACROSS_RANKS, name


@about("outcome")
def test_outcome(outcome: Outcome) -> None:
    wanted = outcome.expected["outcome"]
    assert wanted in ("ok", "error", "ok_with_warning_or_error", "error_or_warning")
    assert outcome.code == (0 if wanted == "ok" else 2 if wanted == "error" else outcome.code)
    assert outcome.code in (0, 2)
    assert "Traceback" not in outcome.out + outcome.err
    if outcome.code == 0:
        assert outcome.err == ""
        outcome.ok()
    else:
        assert outcome.report is None
        assert outcome.out == ""
        assert outcome.err.startswith("steptime: ")
        assert outcome.err.count("\n") == 1


@about("error_must_name")
def test_an_error_or_a_warning_names_file_and_cause(outcome: Outcome) -> None:
    said = [outcome.err] if outcome.code else outcome.warnings
    mentions = outcome.expected["error_should_mention_any_of"]
    assert any(word.lower() in text.lower() for word in mentions for text in said)
    if outcome.code:
        assert all(name in outcome.err for name in outcome.expected["error_must_name"])
    else:
        # A warning that concerns one file stands with that file.
        (one,) = outcome.ok().inputs
        assert Path(one.path).name in outcome.expected["error_must_name"]
        assert any(word.lower() in text.lower() for word in mentions for text in one.warnings)


@about("warning_should_mention_any_of")
def test_a_warning_says_it(outcome: Outcome) -> None:
    outcome.ok()
    words = outcome.expected["warning_should_mention_any_of"]
    assert any(word.lower() in text.lower() for word in words for text in outcome.warnings)
    # Not only in the report's file: the user sees it.
    assert any(word.lower() in outcome.out.lower() for word in words)


def us(step: StepTime, *prefixes: str) -> float:
    return sum(ns for leaf, ns in step.leaves_ns.items() if leaf.startswith(prefixes)) / 1000


def owned_figures(step: StepTime) -> dict[str, float]:
    found = {
        "compute_us": us(step, "kernels/", "recompute/"),
        "comm_exposed_us": us(step, "exposed_comm/", "stragglers/", "unexplained/capture_skew"),
        "copy_exposed_us": us(step, "host/h2d_copy", "host/d2h_copy"),
    }
    return found | {"busy_us": sum(found.values())}


def measured(path: Path, step: StepTime) -> Totals:
    """The unions of one step's window, hidden parts included."""
    table = parse(str(path))
    launches = launch_rows(table)
    work = activities(table, 0, launches, 0)
    labels = label(table, work, Ops(table, Threads(table)), Labels())
    return totals(table, work, labels, step.start_ns, step.start_ns + step.dur_ns)


@about("figures_per_step")
def test_figures(outcome: Outcome) -> None:
    if outcome.code == 2:
        assert outcome.expected["outcome"] == "ok_with_warning_or_error"
        return
    report = outcome.ok()
    per_rank = outcome.expected["figures_per_step"]
    tolerance = outcome.expected["tolerance_us"]
    path_of = {one.rank: Path(one.path) for one in report.inputs}
    assert len(report.ranks) == len([path for path in outcome.paths if path.name != "config.json"])
    for rank in report.ranks:
        wanted = per_rank.get(f"rank{rank.rank}", per_rank)
        first, *others = rank.steps
        assert others
        for step in rank.steps:
            step.check()
            union = measured(path_of[rank.rank], step)
            found = owned_figures(step) | {"comm_us": union.comm_ns / 1000, "copy_us": union.copy_ns / 1000}
            for key in ("compute", "comm_exposed", "copy_exposed", "busy"):
                assert getattr(union, f"{key}_ns") / 1000 == pytest.approx(wanted[f"{key}_us"], abs=tolerance), key
            for key, value in found.items():
                assert value == pytest.approx(wanted[key], abs=tolerance), f"rank {rank.rank}, step {step.step}: {key}"
        for step in others:
            idle_us = step.dur_ns / 1000 - owned_figures(step)["busy_us"]
            assert not step.edge
            assert step.dur_ns / 1000 == pytest.approx(wanted["step_us"], abs=tolerance)
            assert idle_us == pytest.approx(wanted["idle_us"], abs=tolerance)
        # The first window ends with the last device activity: the host's tail of the step is the next one's head.
        assert first.edge
        assert first.dur_ns / 1000 <= wanted["step_us"]
        assert report.job.steps == [step.step for step in others]
    assert report.job.rank_steps == len(report.ranks) * len(report.job.steps)


@about("wait_us_per_step")
def test_who_waits_and_for_whom(outcome: Outcome) -> None:
    report = outcome.ok()
    late, tolerance = outcome.expected["straggler"], outcome.expected["tolerance_us"]
    for rank in report.ranks:
        for step in rank.steps:
            waited = us(step, "stragglers/", "unexplained/capture_skew")
            assert waited == pytest.approx(outcome.expected["wait_us_per_step"][f"rank{rank.rank}"], abs=tolerance)
            assert us(step, "exposed_comm/") == pytest.approx(outcome.expected["all_reduce_transfer_us"], abs=tolerance)
            # The cases mark the first step too early to know whether its wait is the recording's beginning.
            assert not us(step, "stragglers/") if step.edge else not us(step, "unexplained/capture_skew")
    assert [(one.kind, one.rank) for one in report.stragglers] == [("straggler", late)]
    offset = outcome.expected["clock_offset_us"]
    assert report.ranks[1].clock_offset_ns is not None
    assert report.ranks[1].clock_offset_ns / 1000 == pytest.approx(offset["rank1"], abs=offset.get("tolerance", 1))


@about("note_should_count")
def test_dropped_and_cut_events_are_counted(outcome: Outcome) -> None:
    (one,) = outcome.ok().inputs
    assert one.quality is not None
    counted = [*one.quality.dropped.values(), *one.quality.clipped.values()]
    assert sum(counted) == outcome.expected["note_should_count"]
    assert any(text.startswith(tuple(f"{count} " for count in counted)) for text in one.warnings)


@about("flagged_kernels")
def test_flagged_kernels(outcome: Outcome) -> None:
    (one,) = outcome.ok().inputs
    assert one.quality is not None
    flagged = sum([*one.quality.clipped.values(), *one.quality.dropped.values()])
    assert flagged == outcome.expected["flagged_kernels"]


@about("kernel_length_us")
def test_kernel_lengths(outcome: Outcome) -> None:
    lengths = {"flash": "flash_fwd", "gemm": "nvjet"}
    for kind, length_us in outcome.expected["kernel_length_us"].items():
        (kernel,) = (kernel for kernel in outcome.ok().kernels if lengths[kind] in kernel.name)
        assert kernel.count == 1
        assert kernel.dur_ns == length_us * 1000


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float):
        yield value


def texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


def _no_1970(report: Report) -> bool:
    # 2020 in ns: the traces are of 2025.
    return all(step.start_ns > 1_577_836_800 * 10**9 for rank in report.ranks for step in rank.steps)


def _two_steps(report: Report) -> bool:
    return all(len(rank.steps) == 2 for rank in report.ranks)


def _nothing_negative(report: Report) -> bool:
    return min(numbers(msgspec.to_builtins(report))) >= 0


def _short(report: Report) -> bool:
    (rank,) = report.ranks
    return rank.steps[-1].start_ns + rank.steps[-1].dur_ns - rank.steps[0].start_ns < 10**9


def _no_word_of_escapes(report: Report) -> bool:
    said = [text.lower() for one in report.inputs for text in one.warnings]
    return not any("escape" in text or "backslash" in text for text in said)


def _single_backslashes(report: Report) -> bool:
    shown = [
        *texts(msgspec.to_builtins(report)),
        *(row.render(report) for row in FORMATS.values() if row.suffix == ".txt"),
    ]
    return not any("\\\\" in text for text in shown)


def _warned_of_json(report: Report) -> bool:
    return any(one.warnings for one in report.inputs)


def _only_with_the_caveat(report: Report) -> bool:
    accused = [finding for finding in report.findings if finding.slice == "stragglers"]
    assert report.alignment is not None
    return report.alignment.unjudged is not None and not report.stragglers and not accused


def _rank_0_not_accused(report: Report) -> bool:
    return all(0 not in one.ranks for one in report.stragglers)


def _shares_below_one(report: Report) -> bool:
    slices = [part.share for part in report.job.slices]
    leaves = [leaf.share for part in report.job.slices for leaf in part.leaves]
    causes = [cause.share for cause in report.causes]
    return all(0 <= share <= 1 for share in [*slices, *leaves, *causes] if share is not None)


def _flash_below_10_ms(report: Report) -> bool:
    (flash,) = (kernel for kernel in report.kernels if "flash" in kernel.name)
    return flash.dur_ns <= 10_000_000


def _several_kernels(report: Report) -> bool:
    return max(kernel.owned_ns for kernel in report.kernels) < 0.9 * sum(kernel.owned_ns for kernel in report.kernels)


def _nothing_dropped(report: Report) -> bool:
    return all(one.quality is not None and not one.quality.dropped for one in report.inputs)


def _nothing_cut(report: Report) -> bool:
    return all(one.quality is not None and not one.quality.clipped for one in report.inputs)


#: What must not be -> whether a report is free of it. An unknown text is a KeyError, so none goes unchecked.
FREE_OF: dict[str, Callable[[Report], bool]] = {
    "trace span starting at 0": _no_1970,
    "step count other than 2": _two_steps,
    "negative figure anywhere": _nothing_negative,
    "span of hours or years": _short,
    "any warning about escapes": _no_word_of_escapes,
    "doubled backslashes in shown names": _single_backslashes,
    "figures without a warning": _warned_of_json,
    "straggler verdict for the group without that caveat": _only_with_the_caveat,
    "any share above 100 %": _shares_below_one,
    "flash kernel total above 10 ms": _flash_below_10_ms,
    "all GPU time in one kernel": _several_kernels,
    "kernel dropped": _nothing_dropped,
    "kernel cut": _nothing_cut,
    "rank 0 named as straggler": _rank_0_not_accused,
}


@about("must_not")
def test_must_not(outcome: Outcome) -> None:
    for unwanted in outcome.expected["must_not"]:
        if unwanted == "one file silently replacing the other":
            assert outcome.code == 2
        elif outcome.code == 0:
            assert FREE_OF[unwanted](outcome.ok()), unwanted
        else:
            assert outcome.expected["outcome"] == "ok_with_warning_or_error"


def test_a_file_without_a_rank_is_rank_0_and_the_report_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run("A12/single/", tmp_path, capsys)
    assert [rank.rank for rank in outcome.ok().ranks] == [0]
    assert any("rank 0" in text for text in outcome.warnings)


def test_a_missing_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run("A12/missing_rank/", tmp_path, capsys)
    assert [rank.rank for rank in outcome.ok().ranks] == [0, 1, 3]
    assert any("rank 2" in text for text in outcome.warnings)


@pytest.mark.parametrize(("name", "offset_ns"), [("rollover", 0), ("one_absolute", 0), ("skew_4ms", -4_000_000)])
def test_each_rank_has_its_own_base(
    name: str, offset_ns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Both ranks mark their steps at the same instants; in the last input rank 1's clock is 4 ms slow.
    report = run(f"A19/{name}/", tmp_path, capsys).ok()
    zero, one = (rank.steps for rank in report.ranks)
    assert [step.start_ns - offset_ns for step in one][0] == zero[0].start_ns


def test_no_wait_is_not_zero_where_a_rank_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Three of four ranks: had rank 2 been late, its peers' waits would look like transfer.
    (part,) = (part for part in run("A12/missing_rank/", tmp_path, capsys).ok().job.slices if part.id == "stragglers")
    assert (part.ns, part.share) == (None, None)
    assert "ranks are missing" in str(part.leaves[0].detail["why"])
