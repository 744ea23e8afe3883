"""The first finding of real jobs, and why it is the right one: read as the engineer who owns the job would.

Each row was decided by looking at the trace, not at the tool: what stands first must be worth acting on, and where the
traces prove nothing the answer must be that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import steptime

TRACES = Path(__file__).parents[2] / "shared" / "public_traces"

#: trace -> (id of the first finding, one that must be among the first three, reason).
FIRST = {
    "resnet50_dataloader/num_workers_0/worker0.1623143089861.pt.trace.json.gz": (
        "loader-in-process",
        "launch-bound",
        "no loader workers: 57 of 175 ms a step the device waits for the loader; with 4 workers the steps take 116-127",
    ),
    "resnet50_dataloader/num_workers_4/worker0.1623212756351.pt.trace.json.gz": (
        "launch-bound",
        "fp32-without-tensor-cores",
        "the loader is gone; the host's dispatch leaves the V100 idle for a fifth of the step, in FP32",
    ),
    "hta/trace_diff/control/control.json.gz": (
        "all-to-all-exposed",
        "sync-blocking-copy",
        "15 ms of all-to-all that nothing hides; blocking copies drain the queue; compute is slowed beside collectives",
    ),
    "hta/nccl_parser_config/nccl_data.json.gz": (
        "launch-bound",
        "optimizer-launches",
        "900 kernels of 56 us in a 220 ms step: the device waits for launches two thirds of the time",
    ),
    "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz": (
        "loader-in-process",
        "softmax-apart",
        "the input pipeline runs in the main process for half the time; then softmax of unfused attention",
    ),
    "hta/negative_queue_length_values_check/rank0.json.gz": (
        "queue-stalled",
        "queue-stalled",
        "work was queued and the device did not start it for 62 % of the step: nothing recorded says why",
    ),
    "llama_tp2_rtx4090": (
        "first-use",
        "allgather-remainder",
        "one forward pass with cold kernels: 0.4 of 1 s is lazy loading, the rest is the first all-gather",
    ),
    "tracelens/mi300/resnet_act_checkpoint.json.gz": (
        "allreduce-exposed",
        "recompute-on",
        "62 % of the step is all-reduce that nothing hides (one rank can't tell waiting from transfer); then recompute",
    ),
    "small_lm_rtx3060/trace_04.json.gz": (
        "fp32-without-tensor-cores",
        "optimizer-large",
        "GPU-bound at 99 %: FP32 matmuls on a part with tensor cores",
    ),
    "small_lm_rtx3060/trace_05.json.gz": (
        "fp32-without-tensor-cores",
        "optimizer-large",
        "the same job as graph replays",
    ),
}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the checkout")
@pytest.mark.parametrize("name", FIRST)
def test_the_first_finding(name: str) -> None:
    first, among, _ = FIRST[name]
    found = [finding.id for finding in steptime.analyze(str(TRACES / name)).findings]
    assert found[0] == first
    assert among in found[:3]
