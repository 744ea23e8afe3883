"""Findings: ranking, promises, confidence and evidence, on reports written by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.diagnose.findings import diagnose
from steptime.diagnose.promises import Promises
from steptime.diagnose.reading import Part, Reading
from steptime.diagnose.rules import load_rules
from steptime.model import Finding, Report, StepTimeline
from steptime.store import load, save
from tests.diagnose.situations import LOADER, SITUATIONS, STEP, STEPS, TOTAL, cause, one_rank, ranks_of, roof, with_leaf
from tests.report.reports import MS, REPORTS


def _by_id(report: Report) -> dict[str, Finding]:
    return {finding.id: finding for finding in diagnose(report).findings}


def _texts(finding: Finding) -> str:
    return "\n".join(item.text for item in finding.evidence)


def test_a_gain_in_steps_and_mfu() -> None:
    report = one_rank({"host/data_loader": 30}, of_job={"mfu": 0.28}, causes=[cause("host/data_loader", LOADER, 30)])
    finding = _by_id(report)["loader-in-process"]
    assert finding.cost_ns == 4 * 30 * MS
    assert finding.share == pytest.approx(0.3)
    # 100 ms less 30; the same work in 70 % of the time is 0.28 / 0.7.
    assert finding.step_time_if_fixed_ns == 70 * MS
    assert finding.mfu_if_fixed == pytest.approx(0.40)
    assert (finding.gain, finding.confidence) == ("upper bound", "high")


def test_without_mfu_the_step_time_is_still_given() -> None:
    finding = _by_id(one_rank({"host/data_loader": 30}))["loader-too-slow"]
    assert finding.mfu_if_fixed is None
    assert finding.step_time_if_fixed_ns == 70 * MS


def test_the_larger_gain_comes_first() -> None:
    report = one_rank({"host/data_loader": 10, "host/sync": 25, "host/allocator": 15})
    assert [finding.id for finding in diagnose(report).findings] == ["sync", "allocator-in-step", "loader-too-slow"]


def test_the_general_rule_gets_what_the_specific_one_has_left_and_says_so() -> None:
    report = one_rank({"host/data_loader": 30}, causes=[cause("host/data_loader", LOADER, 22)])
    found = _by_id(report)
    assert found["loader-in-process"].cost_ns == 4 * 22 * MS
    assert found["loader-too-slow"].cost_ns == 4 * 8 * MS
    assert "22.0 ms of its 30.0 ms a step are already promised by loader-in-process" in _texts(found["loader-too-slow"])


def test_a_finding_with_nothing_left_is_left_out() -> None:
    report = one_rank({"host/data_loader": 30}, causes=[cause("host/data_loader", LOADER, 30)])
    assert [finding.id for finding in diagnose(report).findings] == ["loader-in-process"]


def test_one_kernel_is_promised_once_by_name_and_by_roofline() -> None:
    from steptime.model import Kernel

    name = "void at::native::elementwise_kernel<copy>"
    row = roof(["layout_copy"], 12, kind="memory", op="aten::copy_", kernel=name, headroom_ns=0)
    copies = Kernel(name=name, leaf="kernels/memory_bound", count=4, dur_ns=48 * MS, owned_ns=48 * MS)
    report = one_rank({"kernels/memory_bound": 40}, kernels=[copies], roofline=[row])
    found = [finding for finding in diagnose(report).findings if finding.gain == "upper bound"]
    assert sum(finding.cost_ns or 0 for finding in found) == 48 * MS


@pytest.mark.parametrize("name", sorted(SITUATIONS))
def test_the_promises_of_a_slice_fit_into_it(name: str) -> None:
    report = SITUATIONS[name]
    for part in report.job.slices:
        promised = [f.cost_ns or 0 for f in diagnose(report).findings if f.slice == part.id and f.gain == "upper bound"]
        assert sum(promised) <= (part.ns or 0)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 60), st.sampled_from(["x", "y", "z"])), max_size=9)
)
def test_no_nanosecond_is_promised_twice(claims: list[tuple[str, int, str]]) -> None:
    # Brute force: each item of a leaf is a set of numbered nanoseconds; who claims takes the lowest free ones.
    report = one_rank({})
    promises = Promises(Reading(report))
    whole = report.job.total_ns
    item_left: dict[str, int] = {}
    leaf_left = whole
    for finding, ns, item in claims:
        promised, _ = promises.claim(finding, [Part("kernels/matmul", ns, (item,))])
        got = sum(promised.values())
        # An item holds as much as its first claim says.
        expected = min(ns, leaf_left, item_left.setdefault(item, ns))
        assert got == expected
        leaf_left -= got
        item_left[item] -= got
    assert whole - leaf_left <= whole


def test_a_stalled_queue_leads_with_can_not_tell() -> None:
    report = one_rank({"unexplained/queue_stalled": 62, "host/data_loader": 11, "host/launch_bound": 9})
    first, *rest = diagnose(report).findings
    assert (first.id, first.gain, first.mfu_if_fixed, first.step_time_if_fixed_ns) == (
        "queue-stalled",
        "cannot tell",
        None,
        None,
    )
    assert "Record again" in first.advice
    assert {finding.id for finding in rest} == {"loader-too-slow", "launch-bound"}


def test_with_stacks_launch_bound_is_low_and_never_first() -> None:
    report = one_rank({"host/launch_bound": 70, "host/sync": 3}, of_file={"stacks": True})
    found = diagnose(report).findings
    assert found[0].id == "stacks-inflate"
    launch = next(finding for finding in found if finding.id == "launch-bound")
    assert launch.confidence == "low"
    assert "recording stacks slows the host" in _texts(launch)


def test_with_stacks_and_a_small_launch_bound_share_another_finding_leads() -> None:
    report = one_rank({"host/launch_bound": 14, "exposed_comm/barrier": 1}, of_file={"stacks": True})
    assert diagnose(report).findings[0].id != "launch-bound"


def test_with_the_step_time_known_stacks_do_not_matter() -> None:
    report = one_rank({"host/launch_bound": 30, "host/profiler_overhead": 40}, of_file={"stacks": True})
    launch = _by_id(report)["launch-bound"]
    assert launch.confidence == "medium"


def test_confidence_falls_with_the_profiler_s_own_cost() -> None:
    report = one_rank({"host/launch_bound": 30})
    slowed = with_leaf(report, "host/launch_bound", detail={"profiler_inflation_ns": 16 * MS * STEPS})
    assert _by_id(report)["launch-bound"].confidence == "medium"
    finding = _by_id(slowed)["launch-bound"]
    assert finding.confidence == "low"
    assert "may have cost half" in _texts(finding)


def test_confidence_falls_on_edge_steps() -> None:
    edge = one_rank({"host/data_loader": 30}, ranks=ranks_of({0: {"host/data_loader": 30}}, edge=True))
    finding = _by_id(edge)["loader-too-slow"]
    assert finding.confidence == "medium"
    assert "only edge steps" in _texts(finding)


def test_one_rank_of_many_can_not_tell_waiting_from_transfer() -> None:
    report = one_rank({"exposed_comm/allreduce": 30}, of_job={"world_size": 8, "ranks_analyzed": 1})
    found = _by_id(report)
    assert found["allreduce-exposed"].confidence == "low"
    assert "with ranks missing" in _texts(found["allreduce-exposed"])
    assert "ranks-missing" in found


def test_a_doubtful_gain_stands_below_a_sure_one_of_more_than_half_its_size() -> None:
    missing = {"world_size": 8, "ranks_analyzed": 1}
    ms = {"exposed_comm/allgather": 30, "host/allocator": 20}
    found = diagnose(one_rank(ms, of_job=missing)).findings
    assert [finding.id for finding in found][:2] == ["allocator-in-step", "allgather-remainder"]


def test_a_cost_whose_gain_is_not_computed_counts_for_less() -> None:
    # 0.3 of a cost of 60 ms are 18; three quarters of a gain of 26 are 19.5.
    ms = {"host/sync": 26}
    report = one_rank(ms, kernels=SITUATIONS["fp32-without-tensor-cores"].kernels)
    found = diagnose(report).findings
    assert [finding.id for finding in found] == ["sync", "fp32-without-tensor-cores"]
    assert (found[1].gain, found[1].mfu_if_fixed) == ("not computed", None)
    assert found[1].share == pytest.approx(0.6)


def _with_timeline(report: Report, names: list[str]) -> Report:
    timeline = StepTimeline(
        rank=0,
        device=0,
        step=6,
        why="slowest",
        step_start_ns=5_000,
        dur_ns=STEP,
        tracks=["owner"],
        names=names,
        leaves=["host/sync", "kernels/matmul"],
        track=[0, 0, 0],
        start_ns=[0, 100, 900],
        segment_ns=[100, 700, 50],
        leaf=[1, 0, 0],
        name=[0, 1, 2],
    )
    return msgspec.structs.replace(report, timelines=[timeline])


def test_evidence_is_an_event_of_the_timeline() -> None:
    report = one_rank({"host/sync": 6}, causes=[cause("host/sync", "cudaDeviceSynchronize", 6, "train.py(8): step")])
    # The named segment wins over a longer one of the same leaf.
    given = _with_timeline(report, ["gemm", "something else", "cudaDeviceSynchronize"])
    item = next(item for item in _by_id(given)["sync-device"].evidence if item.event)
    assert (item.rank, item.step, item.start_ns, item.dur_ns) == (0, 6, 5_900, 50)
    assert item.event == "cudaDeviceSynchronize"
    # Without a segment of that name, the longest of its leaf.
    given = _with_timeline(report, ["gemm", "a", "b"])
    item = next(item for item in _by_id(given)["sync-device"].evidence if item.event)
    assert (item.start_ns, item.dur_ns) == (5_100, 700)


def test_without_a_timeline_evidence_points_at_the_worst_step() -> None:
    rows = ranks_of({0: {"host/sync": 6, "kernels/matmul": 94}, 1: {"host/sync": 9, "kernels/matmul": 91}})
    report = one_rank({"host/sync": 6}, causes=[cause("host/sync", "cudaDeviceSynchronize", 6)], ranks=rows)
    item = next(item for item in _by_id(report)["sync-device"].evidence if item.event)
    assert (item.rank, item.step, item.start_ns) == (1, 5, 1_000 * MS)
    assert item.text == "cudaDeviceSynchronize: 6.00 ms a step (6.0 %), 8 times in 4 steps"


def test_a_reason_is_no_event_to_look_for() -> None:
    report = one_rank(
        {"host/launch_bound": 20}, causes=[cause("host/launch_bound", "dispatching ops", 20, "aten::add_")]
    )
    item = next(item for item in _by_id(report)["launch-bound"].evidence if item.rank is not None)
    assert item.event == "aten::add_"
    drained = [cause("host/sync", "cudaStreamSynchronize drained the queue", 6, "aten::item")]
    item = next(
        item
        for item in _by_id(one_rank({"host/sync": 6}, causes=drained))["sync-for-a-value"].evidence
        if item.rank is not None
    )
    assert item.event == "cudaStreamSynchronize"


def test_roofline_evidence_names_op_shapes_and_rate() -> None:
    finding = _by_id(SITUATIONS["matmul-misaligned"])["matmul-misaligned"]
    assert (
        "aten::mm [8192,4096]x[4096,50257] bf16: 4 calls, 20.0 ms a step, 25.0 % of the compute peak "
        "(misaligned: 50257 is no multiple of 8)"
    ) in _texts(finding)
    assert finding.cost_ns == 4 * 10 * MS  # its headroom, not its time


def test_the_odd_rank_is_named() -> None:
    finding = _by_id(SITUATIONS["one-rank-host"])["one-rank-host"]
    item = next(item for item in finding.evidence if item.rank is not None)
    assert (item.rank, item.step) == (2, 5)
    assert item.text == "rank 2 costs each other rank 24.0 ms a step, in 4 steps: data_loader (host/data_loader)"


def test_the_slowest_step_is_named() -> None:
    item = _by_id(SITUATIONS["steps-uneven"])["steps-uneven"].evidence[-1]
    assert (item.rank, item.step, item.dur_ns) == (0, 13, 200 * MS)


def test_rules_whose_numbers_are_unknown_are_listed_with_the_reason() -> None:
    gaps = diagnose(one_rank({})).not_evaluated
    assert gaps["gc-pauses"].startswith("share.host.gc is unknown: garbage collection leaves no event")
    assert gaps["matmul-misaligned"].startswith("roof.misaligned_share is unknown: the report has no roofline")
    assert gaps["slow-rank"].endswith("one rank can't show that it is slower than its peers")
    assert "data-loader" not in gaps


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_every_report_can_be_diagnosed_and_stored(name: str, tmp_path: Path) -> None:
    found = diagnose(REPORTS[name]())
    assert len(found.checklist) == 10
    assert diagnose(found) == found
    silent = {rule.id for rule in load_rules()} - {finding.id for finding in found.findings} - set(found.not_evaluated)
    assert silent or name == "nothing_measured"
    for finding in found.findings:
        assert finding.evidence
        assert finding.share is None or 0 < finding.share <= 1
    if name != "hostile":  # a report that is saved holds text that can be written
        save(found, tmp_path / "report.json")
        assert load(tmp_path / "report.json") == found


def test_all_of_the_step_can_not_be_saved() -> None:
    finding = _by_id(one_rank({"host/python": 100, "kernels/matmul": 0}))["python-between-ops"]
    assert (finding.cost_ns, finding.step_time_if_fixed_ns, finding.mfu_if_fixed) == (TOTAL, None, None)
