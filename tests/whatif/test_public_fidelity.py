"""The unchanged replay of real traces against their measured steps, and what the graph explains by itself (issue 5).

The unchanged replay takes every lag from the recording, so it is exact almost by construction; it fails only where
instants that were ordered in the recording are tied together wrongly. What can fail is the replay without such lags
(`steptime.whatif.fidelity`). Seen, as a share of the counted steps: `_MODELLED`. Beside it the share of the critical
path that nothing recorded explains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import steptime
from steptime.whatif.fidelity import modelled_error
from steptime.whatif.rank_nodes import STALL, WORK
from tests.whatif.measured import measured_job

TRACES = Path(__file__).parents[3] / "shared" / "public_traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared public traces are not beside this checkout")

#: Issue 5.
WITHIN = 0.02
_DLRM = "dlrm_v100_8ranks/worker*.gz"
_NEGATIVE_QUEUE = "hta/negative_queue_length_values_check/rank0.json.gz"
#: Traces with ProfilerStep marks, host ops and launches of all their kernels but those of a cut head -> the error of
#: the replay without own lags is at most this. Half of each step of the one above a few per cent are stalls behind a
#: queue that no recorded event explains (DESIGN 1.4, rule 1): no gain that a replay promises there is to be believed.
_MODELLED = {
    _DLRM: 0.04,
    "hta/amd_trace/*.gz": 0.01,
    "hta/cpu_only/*.gz": 0.01,
    "hta/critical_path/cuda_event_sync/*.gz": 0.01,
    "hta/nccl_parser_config/*.gz": 0.01,
    _NEGATIVE_QUEUE: 0.65,
    "hta/ns_resolution_trace/*.gz": 0.01,
    "hta/rank_unavailable/*.gz": 0.01,
    "hta/trace_diff/control/*.gz": 0.02,
    "hta/trace_filter/sampled_rank-0.json.gz": 0.01,
    "hta/trace_filter/sampled_rank-1.json.gz": 0.01,
    "hta/triton_example/*.gz": 0.01,
    "resnet50_dataloader/num_workers_0/worker0.1*.gz": 0.02,
    "resnet50_dataloader/num_workers_0/worker0.pt.*.gz": 0.02,
    "resnet50_dataloader/num_workers_4/worker0.1*.gz": 0.03,
    "resnet50_dataloader/num_workers_4/worker0.pt.*.gz": 0.03,
    "small_lm_rtx3060/trace_04.json.gz": 0.01,
    "small_lm_rtx3060/trace_05.json.gz": 0.01,
    "tracelens/h100/Qwen*.gz": 0.01,
    "tracelens/h100/gaunernst*.gz": 0.01,
    "tracelens/h100/google*.gz": 0.01,
    "tracelens/mi300/gaunernst*.gz": 0.01,
    "tracelens/mi300/resnet*.gz": 0.01,
}


@pytest.mark.parametrize("pattern", _MODELLED)
def test_the_unchanged_replay_gives_back_the_measured_steps(pattern: str) -> None:
    counted, job = measured_job(_files(pattern))
    assert counted.pairs
    assert job.error_share <= WITHIN
    assert job.step_ns == pytest.approx(job.measured_ns, rel=WITHIN)
    error = modelled_error(job)
    assert error <= _MODELLED[pattern]
    print(f"{pattern}: unchanged {100 * job.error_share:.4f} % off, without own lags {100 * error:.2f} %")  # noqa: T201


def test_unexplained_stalls_show_in_the_replay_without_own_lags() -> None:
    """141 ms of 215 ms a step: HTA's trace of a queue that stands still (DESIGN 1.4, rule 1)."""
    counted, job = measured_job(_files(_NEGATIVE_QUEUE))
    parts = job.job.parts
    inside = np.isin(parts.step, counted.steps[0])
    stalled = int(parts.ns[(parts.leaf == STALL) & (parts.kind == WORK) & inside].sum())
    assert stalled / (len(counted.pairs) * job.measured_ns) > 0.5
    assert modelled_error(job) > 0.5
    report = steptime.analyze(_files(_NEGATIVE_QUEUE))
    assert report.replay is not None
    assert report.replay.stalled_share is not None
    assert report.replay.stalled_share > 0.5


def _files(pattern: str) -> list[Path]:
    found = sorted(TRACES.glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is not among the public traces")
    return found
