"""What real traces of other people's jobs are told first, and what stays unsaid.

The expected finding is what the leaves of these traces, read by hand, put first; the figures of the loader pair are the
ones published with it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import steptime
from steptime.diagnose.findings import diagnose
from steptime.model import Report

#: Path, what must come first, and how it must be labelled.
FIRST = (
    ("resnet50_dataloader/num_workers_0/worker0.1623143089861.pt.trace.json.gz", "loader-in-process", "upper bound"),
    ("hta/negative_queue_length_values_check/rank0.json.gz", "queue-stalled", "cannot tell"),
    ("hta/nccl_parser_config/nccl_data.json.gz", "launch-bound", "upper bound"),
    ("tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", "loader-in-process", "upper bound"),
    ("tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz", "stacks-inflate", "cannot tell"),
    ("tracelens/b200/eager_trace.json.gz", "stacks-inflate", "cannot tell"),
    ("tracelens/mi300/resnet_act_checkpoint.json.gz", "allreduce-exposed", "upper bound"),
    ("hta/trace_diff/control/control.json.gz", "all-to-all-exposed", "upper bound"),
    ("hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz", "driver-calls", "upper bound"),
    ("llama_tp2_rtx4090", "first-use", "upper bound"),
)


@pytest.fixture(scope="module")
def traces(repo: Path) -> Path:
    """The public traces beside the checkout."""
    folder = repo.parent / "shared" / "public_traces"
    if not folder.is_dir():
        pytest.skip(f"no public traces in {folder}")
    return folder


def _diagnosed(path: Path, **without: object) -> Report:
    return diagnose(msgspec.structs.replace(steptime.analyze(path), **without))


@pytest.mark.parametrize(("name", "first", "gain"), FIRST, ids=[row[0].rpartition("/")[2][:24] for row in FIRST])
def test_the_first_finding(traces: Path, name: str, first: str, gain: str) -> None:
    found = _diagnosed(traces / name)
    assert (found.findings[0].id, found.findings[0].gain) == (first, gain)
    for part in found.job.slices:
        promised = [f.cost_ns or 0 for f in found.findings if f.slice == part.id and f.gain == "upper bound"]
        # Useful work lies in kernels and is no leaf.
        assert sum(promised) <= (part.ns or 0) + (found.job.productive_ns if part.id == "kernels" else 0)
    for finding in found.findings:
        assert finding.evidence
        assert all(item.rank is not None for item in finding.evidence if item.start_ns is not None)


def test_the_loader_s_gain_is_what_workers_were_measured_to_bring(traces: Path) -> None:
    found = _diagnosed(traces / FIRST[0][0])
    # Steps of 164 to 181 ms with 0 workers; four of six at 116 to 127 with 4.
    fixed = found.findings[0].step_time_if_fixed_ns
    assert fixed is not None
    assert 105_000_000 <= fixed <= 127_000_000


def test_without_a_roofline_its_rules_are_not_evaluated(traces: Path) -> None:
    found = _diagnosed(traces / FIRST[0][0], roofline=[], facts={})
    gaps = found.not_evaluated
    for rule in ("matmul-misaligned", "attention-math-path", "norm-unfused", "layout-copies", "small-batch"):
        assert "the report has no roofline" in gaps[rule]
    for rule in ("allocator-fragmented", "streams-alternate", "slow-group", "last-bucket"):
        assert "is unknown: " in gaps[rule]
    assert not {finding.id for finding in found.findings} & set(gaps)


def test_recompute_is_found_and_one_rank_is_not_blamed(traces: Path) -> None:
    found = _diagnosed(traces / "tracelens/mi300/resnet_act_checkpoint.json.gz")
    by_id = {finding.id: finding for finding in found.findings}
    # 4,122 us of recompute in three steps of about 19 ms (the folder's README); two of them count.
    assert by_id["recompute-on"].share == pytest.approx(4_122.223 / 3 / 19_000, abs=0.01)
    assert by_id["allreduce-exposed"].confidence == "low"
    assert not [finding for finding in found.findings if finding.slice == "stragglers"]
    assert "slow-rank" in found.not_evaluated


def test_no_straggler_where_recordings_began_apart(traces: Path) -> None:
    # Rank 7 arrives last at the first all-to-all only because its recording began last (the folder's README).
    found = _diagnosed(traces / "dlrm_v100_8ranks")
    assert not [finding for finding in found.findings if finding.slice == "stragglers"]
    assert "edge steps" in found.not_evaluated["one-rank-host"]
