"""What the words of ``--remove`` and ``--scale`` stand for; expectations are written out from the leaves' names."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from steptime.errors import UsageError
from steptime.model import Collective, LeafTotal, Pipeline, Report, SliceTotal
from steptime.taxonomy import LEAF_CODE, LEAVES
from steptime.whatif.requests import Request, changes_of, remove, scale
from steptime.whatif.scenario import APART, EVEN, HIDDEN, LEAF, NOBODY_LATE, RANKS, STAGES
from tests.report.reports import ranks_64


def _leaves(request: Request, report: Report) -> list[tuple[str, tuple[str, ...], float]]:
    return [
        (change.kind, tuple(LEAVES[code].key for code in change.leaves), change.factor)
        for change in changes_of(request, report)
    ]


@pytest.fixture
def report() -> Report:
    pipeline = Pipeline(
        stages=[[0], [1]], schedule=None, chunks=1, micro_batches=1, forward_ns=[1, 1], backward_ns=[1, 1]
    )
    return msgspec.structs.replace(ranks_64(), pipeline=pipeline)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("host/data_loader", ("host/data_loader",)),
        ("data_loader", ("host/data_loader",)),
        ("loader", ("host/data_loader",)),
        ("graphs", ("host/launch_bound",)),
        ("recompute", ("recompute/recompute",)),
        ("recompute/recompute", ("recompute/recompute",)),
        ("matmul", ("kernels/matmul",)),
        ("queue_stalled", ("unexplained/queue_stalled",)),
        ("unexplained", ("unexplained/unexplained", "unexplained/queue_stalled")),
        (
            "host",
            tuple(leaf.key for leaf in LEAVES if leaf.slice == "host" and leaf.id != "profiler_overhead"),
        ),
    ],
)
def test_leaves_are_removed(text: str, keys: tuple[str, ...], report: Report) -> None:
    assert _leaves(remove(text), report) == [(LEAF, keys, 0.0)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("stragglers", NOBODY_LATE),
        ("wait_for_rank", NOBODY_LATE),
        ("stages", STAGES),
        ("pipeline_bubble/stage_imbalance", STAGES),
        ("pipeline_bubble", APART),
        ("perfect", EVEN),
    ],
)
def test_fixes(text: str, kind: str, report: Report) -> None:
    assert [change.kind for change in changes_of(remove(text), report)] == [kind]


def test_ranks_kinds_and_factors(report: Report) -> None:
    there = sorted({rank.rank for rank in report.ranks})[:2]
    (change,) = changes_of(remove(f"straggler:rank={there[0]},{there[1]}"), report)
    assert (change.kind, change.ranks) == (RANKS, tuple(there))
    assert _leaves(remove("hidden:allgather"), report) == [(HIDDEN, ("exposed_comm/allgather",), 0.0)]
    (change,) = changes_of(remove("hidden:allgather:dp"), report)
    assert (change.kind, change.group) == (HIDDEN, "dp")
    with pytest.raises(UsageError, match="no group is called mesh_tp: there are dp"):
        changes_of(remove("hidden:allgather:mesh_tp"), report)
    assert _leaves(scale("matmul=0.8"), report) == [(LEAF, ("kernels/matmul",), 0.8)]
    assert _leaves(scale("host/sync=0"), report) == [(LEAF, ("host/sync",), 0.0)]
    assert _leaves(scale("exposed_comm/allreduce=2.5"), report) == [(LEAF, ("exposed_comm/allreduce",), 2.5)]


def _with_leaf(report: Report, key: str, leaf: LeafTotal) -> Report:
    part, _, name = key.partition("/")
    slices = [
        SliceTotal(
            id=one.id,
            ns=one.ns,
            share=one.share,
            leaves=[*(old for old in one.leaves if old.id != name), leaf] if one.id == part else one.leaves,
        )
        for one in report.job.slices
    ]
    return msgspec.structs.replace(report, job=msgspec.structs.replace(report.job, slices=slices))


def test_a_roof_leaves_what_can_not_be_gained(report: Report) -> None:
    known = _with_leaf(report, "kernels/matmul", LeafTotal(id="matmul", ns=1000, share=0.1, recoverable_ns=250))
    assert _leaves(remove("roof:matmul"), known) == [(LEAF, ("kernels/matmul",), 0.75)]
    unknown = _with_leaf(report, "kernels/matmul", LeafTotal(id="matmul", ns=1000, share=0.1))
    with pytest.raises(UsageError, match="roof:matmul: its roof is not known"):
        changes_of(remove("roof:matmul"), unknown)


def _collective(share: float | None, transfer_ns: int, why: str | None = None) -> Collective:
    return Collective(
        kind="allreduce",
        group="dp",
        count=1,
        dur_ns=9,
        exposed_ns=9,
        transfer_ns=transfer_ns,
        link_share=share,
        why=why,
    )


def test_a_links_roof(report: Report) -> None:
    """300 ns at half the rate and 100 ns at the full one: (150 + 100) / 400."""
    rows = [_collective(0.5, 300), _collective(1.25, 100)]
    at_roof = msgspec.structs.replace(report, collectives=rows)
    assert _leaves(remove("link-roof:allreduce"), at_roof) == [(LEAF, ("exposed_comm/allreduce",), 0.625)]
    blind = msgspec.structs.replace(report, collectives=[*rows, _collective(None, 5, "rank 3 has no file")])
    with pytest.raises(UsageError, match="allreduce of group dp: rank 3 has no file"):
        changes_of(remove("link-roof:allreduce"), blind)
    with pytest.raises(UsageError, match="there is none of it"):
        changes_of(remove("link-roof:reduce"), at_roof)


def test_what_the_report_can_not_tell_is_refused(report: Report) -> None:
    hidden = LeafTotal(id="recompute", ns=None, share=None, detail={"why": "a compiled backward hides it"})
    with pytest.raises(UsageError, match="recompute: can't tell how much of it there is: a compiled backward"):
        changes_of(remove("recompute"), _with_leaf(report, "recompute/recompute", hidden))
    alone = msgspec.structs.replace(report, pipeline=None, ranks=report.ranks[:1])
    for text, why in (
        ("stages", "no pipeline stages"),
        ("pipeline_bubble", "no pipeline stages"),
        ("stragglers", "nobody to wait for"),
        ("straggler:rank=977", "rank 977 is not among the traces"),
        ("finding:no-such", "no such finding in this job"),
    ):
        with pytest.raises(UsageError, match=why):
            changes_of(remove(text), alone)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (remove, "hots/data_loader", r"did you mean host/data_loader\?"),
        (remove, "dataloader", r"did you mean data_loader\?"),
        (remove, "strangler:rank=3", r"did you mean straggler:rank=R\[,R...\]\?"),
        (remove, "zzz", r"nothing is called that: give a leaf"),
        (remove, "", r"nothing is called that"),
        (remove, "straggler:5", r"give the ranks as straggler:rank=R"),
        (remove, "straggler:rank=five", r"give the ranks as"),
        (remove, "straggler:rank=1,", r"give the ranks as"),
        (remove, "hidden:alreduce", r"did you mean allreduce\?"),
        (remove, "roof:sync", r"one of matmul, attention"),
        (remove, "finding:", r"finding:ID"),
        (remove, "warmup", r"can't be taken away alone: the schedule makes it"),
        (remove, "host/profiler_overhead", r"does not say where in the step"),
        (scale, "matmul", r"needs a factor: matmul=0.8"),
        (scale, "=0.5", r"needs a factor"),
        (scale, "matmul=fast", r"'fast' is no factor"),
        (scale, "matmul=-0.1", r"'-0.1' is no factor"),
        (scale, "matmul=nan", r"'nan' is no factor"),
        (scale, "matmul=inf", r"'inf' is no factor"),
        (scale, "matmull=0.5", r"did you mean matmul\?"),
        (scale, "straggler:rank=5", r"can only be removed, not scaled: use --remove straggler:rank"),
        (scale, "stragglers=0.5", r"can only be removed, not scaled: use --remove stragglers"),
        (scale, "perfect=0.5", r"can only be removed"),
        (scale, "pipeline_bubble/drain=0.5", r"can't be taken away alone"),
    ],
)
def test_errors_say_what_to_use(parse: Callable[[str], Request], text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse(text)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("--remove" if parse is remove else "--scale")


def test_every_leaf_is_removed_or_refused_with_a_reason(report: Report) -> None:
    refused = {
        "pipeline_bubble/warmup",
        "pipeline_bubble/steady",
        "pipeline_bubble/drain",
        "pipeline_bubble/unsplit",
        "host/profiler_overhead",
        "unexplained/capture_skew",
        "unexplained/events_missing",
    }
    for key in LEAF_CODE:
        if key in refused:
            with pytest.raises(UsageError, match="can't be taken away alone: "):
                remove(key)
        else:
            assert len(changes_of(remove(key), report)) == 1
