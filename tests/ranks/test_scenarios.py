"""The scenarios of `traces/scenarios` through the whole analysis: who is named, and above all who is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import steptime
from steptime.simulate import Scenario, simulate

_SCENARIOS = Path(__file__).parents[2] / "traces" / "scenarios"

#: Scenario -> (kind, ranks, cause): its own `[[fault]]`. One Python pause a step, each time elsewhere.
NAMED = {
    "clean_dp": [],
    "fsdp_no_prefetch": [],
    "cp_ring": [],
    # Later stages wait for the first at the end of a step because the pipeline drains there: no host's fault.
    "pp_few_micro_batches": [],
    "pp_uneven_stages": [],
    "demo": [("straggler", [2], "data_loader"), ("straggler", [11], "slower kernels")],
    "dp_gc_pause": [("jitter", [2, 3, 4, 7], "python")],
    "dp_slow_gpu": [("straggler", [3], "slower kernels")],
    "ep_uneven_experts": [("straggler", [2], "more work")],
    # Rank 4 only passes on what rank 5 does to it.
    "tp_dp_slow_gpu": [("straggler", [5], "slower kernels")],
}
#: Of the step time, over all counted steps; the wait for a rank that the simulator itself noted.
TOLERANCE = 0.002
#: A slow rank's part of the waits between stages is told from the schedule's, which the simulator does not: together.
WAITS = ("stragglers/", "pipeline_bubble/")
#: Its messages carry no peers: waits in them are not told apart from transfer.
NAMELESS = "cp_ring"


@pytest.mark.parametrize("name", NAMED)
def test_who_is_named_and_how_long_was_waited(name: str, tmp_path: Path) -> None:
    scenario = msgspec.toml.decode((_SCENARIOS / f"{name}.toml").read_bytes(), type=Scenario)
    truth = simulate(scenario, tmp_path, scenario.seed)
    report = steptime.analyze([tmp_path])
    assert [(one.kind, one.ranks, one.cause) for one in report.stragglers] == NAMED[name]
    if name == NAMELESS:
        return
    counted = set(report.job.steps)
    known, found = (
        sum(
            ns
            for rank in ranks
            for step in rank.steps
            if step.step in counted
            for key, ns in step.leaves_ns.items()
            if key.startswith(WAITS)
        )
        for ranks in (truth.ranks, report.ranks)
    )
    assert found == pytest.approx(known, abs=TOLERANCE * report.job.total_ns)
