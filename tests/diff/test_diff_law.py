"""The law of a diff: parts add up to the change exactly, and turned around they change sign."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptime.diff.compare import diff_reports
from steptime.errors import ReportError
from steptime.model import (
    Cause,
    Collective,
    Diff,
    Job,
    Kernel,
    LeafTotal,
    Part,
    RankSteps,
    Report,
    SliceTotal,
    StepTime,
)
from steptime.model.diff import APPEARED, BOTH, VANISHED
from steptime.taxonomy import LEAVES, SLICES
from tests.report.reports import REPORTS, job, nothing_measured, report
from tests.report.rich_reports import hostile_rich, rich

_BY_HAND = {name: build for name, build in REPORTS.items() if name != "nothing_measured"}
_BY_HAND |= {"rich": rich, "hostile_rich": hostile_rich}
_TURNED = {APPEARED: VANISHED, VANISHED: APPEARED, BOTH: BOTH}
_NAMES = st.sampled_from(["gemm", "norm", "copy", "gap", "waiting for rank 3", "\x1b[31m", ""])
_NS = st.integers(0, 10**12)


def _walk(part: Part) -> list[Part]:
    return [part, *(inner for one in part.parts for inner in _walk(one))]


def _by_path(part: Part, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Part]:
    here = (*above, part.what, part.key)
    return {here: part} | {path: inner for one in part.parts for path, inner in _by_path(one, here).items()}


def _obeys_the_law(diff: Diff) -> None:
    for part in _walk(diff.whole):
        assert part.change_units == (part.after_units or 0) - (part.before_units or 0)
        if part.parts:
            assert sum(one.change_units for one in part.parts) == part.change_units
            assert sum(one.before_units or 0 for one in part.parts) == (part.before_units or 0)
            assert sum(one.after_units or 0 for one in part.parts) == (part.after_units or 0)


def _turned(there: Diff, back: Diff) -> None:
    """Everything of one diff is in the other, with the sides changed and the sign turned."""
    one, other = _by_path(there.whole), _by_path(back.whole)
    assert one.keys() == other.keys()
    for path, part in one.items():
        mirrored = other[path]
        assert (part.before_units, part.after_units) == (mirrored.after_units, mirrored.before_units)
        assert part.change_units == -mirrored.change_units
        assert part.status == _TURNED[mirrored.status]
        assert (part.calls_before, part.dur_before_ns) == (mirrored.calls_after, mirrored.dur_after_ns)
        assert (part.changed, part.rank) == (mirrored.changed, mirrored.rank)
    assert there.units_per_ns == back.units_per_ns
    assert [(one.key, one.change_units) for one in there.reasons] == [
        (one.key, -one.change_units) for one in back.reasons
    ]
    assert [(one.name, one.before, one.after) for one in there.config] == [
        (one.name, one.after, one.before) for one in back.config
    ]
    assert sorted(one.change_ns for one in there.stragglers) == sorted(-one.change_ns for one in back.stragglers)
    assert [(one.op, one.shapes, one.change_units) for one in there.ops] == [
        (one.op, one.shapes, -one.change_units) for one in back.ops
    ]


@st.composite
def _reports(draw: st.DrawFn) -> Report:
    """A report with any leaves, some of which it can't tell, and lists that need not be complete."""
    keys = draw(st.lists(st.sampled_from([leaf.key for leaf in LEAVES]), unique=True, max_size=8))
    unknown = set(draw(st.lists(st.sampled_from([part.id for part in SLICES]), unique=True, max_size=2)))
    leaves: dict[str, int | None] = {key: None if key.partition("/")[0] in unknown else draw(_NS) for key in keys}
    rank_steps = draw(st.integers(1, 97))
    productive_ns = draw(st.sampled_from([0, 1, 10**11]))
    the_job: Job = job(leaves, rank_steps=rank_steps, productive_ns=productive_ns)
    causes, kernels, collectives = [], [], []
    for key, ns in leaves.items():
        left = ns or 0
        for name in draw(st.lists(_NAMES, unique=True, max_size=4)):
            taken = draw(st.integers(0, left))
            left -= taken
            count = draw(st.integers(1, 1000))
            causes.append(
                Cause(leaf=key, what=name, where=None, ns=taken, share=0.0, count=count, rank_steps=rank_steps)
            )
            if key.startswith(("kernels", "recompute")):
                kernels.append(Kernel(name=name, leaf=key, count=count, dur_ns=taken + count, owned_ns=taken))
            if key.startswith("exposed_comm"):
                kind = key.partition("/")[2]
                collectives.append(Collective(kind=kind, group=name, count=count, dur_ns=taken + 7, exposed_ns=taken))
    step_ns = productive_ns + sum(ns or 0 for ns in leaves.values())
    steps = [
        StepTime(
            step=5,
            start_ns=0,
            dur_ns=step_ns,
            productive_ns=productive_ns,
            leaves_ns={key: ns for key, ns in leaves.items() if ns},
        )
    ]
    return report(
        the_job,
        ranks=[RankSteps(rank=rank, host=None, device=0, steps=steps if rank == 0 else []) for rank in range(4)],
        causes=causes,
        kernels=kernels,
        collectives=collectives,
    )


@settings(max_examples=150, deadline=None)
@given(_reports(), _reports())
def test_parts_add_up_and_turn_their_sign(a: Report, b: Report) -> None:
    there, back = diff_reports(a, b), diff_reports(b, a)
    _obeys_the_law(there)
    _turned(there, back)
    # The whole change as exact fractions, from the reports alone.
    mean = Fraction(b.job.total_ns, b.job.rank_steps) - Fraction(a.job.total_ns, a.job.rank_steps)
    assert Fraction(there.whole.change_units, there.units_per_ns) == mean


@pytest.mark.parametrize("first", _BY_HAND)
@pytest.mark.parametrize("second", _BY_HAND)
def test_any_two_reports_written_by_hand(first: str, second: str) -> None:
    a, b = _BY_HAND[first](), _BY_HAND[second]()
    there, back = diff_reports(a, b), diff_reports(b, a)
    _obeys_the_law(there)
    _turned(there, back)


@pytest.mark.parametrize("name", _BY_HAND)
def test_a_report_against_itself_has_not_changed(name: str) -> None:
    diff = diff_reports(_BY_HAND[name](), _BY_HAND[name]())
    assert {part.change_units for part in _walk(diff.whole)} == {0}
    assert {part.status for part in _walk(diff.whole)} == {BOTH}
    assert (diff.reasons, diff.config, diff.ops) == ([], [], [])


def test_a_report_without_steps_can_not_be_compared() -> None:
    with pytest.raises(ReportError, match="no step was measured"):
        diff_reports(REPORTS["loader_bound"](), nothing_measured())


def test_worked_by_hand() -> None:
    """Two steps of 10 ns against three of 12: mean 10 and 12, in sixths 60 and 72; the loader takes 4 and 7 of it."""
    a = report(job({"kernels/matmul": 12, "host/data_loader": 8}, rank_steps=2))
    b = report(job({"kernels/matmul": 15, "host/data_loader": 21}, rank_steps=3))
    diff = diff_reports(a, b)
    assert (diff.units_per_ns, diff.whole.before_units, diff.whole.after_units) == (6, 60, 72)
    changes = {part.key: part.change_units for part in diff.leaves}
    assert (changes["host/data_loader"], changes["kernels/matmul"]) == (18, -6)
    assert [one.key for one in diff.reasons] == ["host/data_loader", "kernels/matmul"]


def _with_causes(leaf_ns: int, rows: list[tuple[str, int]]) -> Report:
    causes = [
        Cause(leaf="host/python", what=what, where=None, ns=ns, share=0.0, count=1, rank_steps=1) for what, ns in rows
    ]
    return report(job({"host/python": leaf_ns}, rank_steps=1), causes=causes)


def test_what_a_cut_list_may_hide_has_not_appeared() -> None:
    """The list before leaves out 40 ns and its least row is 30: a row of 25 may have been there, one of 900 was not."""
    a = _with_causes(100, [("big", 30), ("next", 30)])
    b = _with_causes(1000, [("big", 30), ("next", 30), ("small", 25), ("huge", 900)])
    leaf = next(part for part in diff_reports(a, b).leaves if part.key == "host/python")
    assert {part.key: (part.change_units, part.status) for part in leaf.parts} == {
        "huge": (900, APPEARED),
        "big": (0, BOTH),
        "next": (0, BOTH),
        "other": (0, BOTH),
    }


def test_a_slice_that_can_not_be_told_says_so() -> None:
    known = SliceTotal(id="recompute", ns=4, share=0.4, leaves=[LeafTotal(id="recompute", ns=4, share=0.4)])
    a, b = report(job({"kernels/matmul": 10}, rank_steps=1)), report(job({"kernels/matmul": 10}, rank_steps=1))
    unknown = [
        SliceTotal(id=part.id, ns=None, share=None, leaves=[LeafTotal(id="recompute", ns=None, share=None)])
        if part.id == "recompute"
        else part
        for part in b.job.slices
    ]
    fields = {name: getattr(b.job, name) for name in b.job.__struct_fields__}
    b = report(Job(**fields | {"slices": unknown}))
    parts = [known if part.id == "recompute" else part for part in a.job.slices]
    parts = [SliceTotal(id="kernels", ns=6, share=0.6) if part.id == "kernels" else part for part in parts]
    a = report(Job(**fields | {"slices": parts}))
    diff = diff_reports(a, b)
    part = next(part for part in diff.whole.parts if part.key == "recompute")
    assert (part.before_units, part.after_units, part.change_units) == (4, None, -4)
    assert any("recompute can't be told after" in note for note in diff.notes)
