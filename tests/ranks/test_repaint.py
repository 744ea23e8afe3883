"""The picture of a step shows waits where the ledger has them."""

from __future__ import annotations

from pathlib import Path

import steptime
from steptime.simulate import Scenario, simulate
from steptime.simulate.scenario import Batch, Fault, Layout, Model

SMALL = Model(layers=4, hidden=2048, heads=16, ffn=8192, vocab=1024)


def test_the_owner_row_adds_up_to_the_steps_leaves(tmp_path: Path) -> None:
    scenario = Scenario(
        name="drawn",
        seed=3,
        model=SMALL,
        layout=Layout(pp=2, dp=2),
        batch=Batch(micro_batches=4, seq_len=2048),
        fault=[Fault(kind="slow_gpu", ranks=[1], size=0.2)],
    )
    simulate(scenario, tmp_path)
    report = steptime.analyze(tmp_path)
    seen = set()
    for drawn in report.timelines:
        assert drawn.dropped == 0
        row = next(one for one in report.ranks if one.rank == drawn.rank)
        step = next(one for one in row.steps if one.step == drawn.step)
        for key in ("stragglers/wait_for_rank", "pipeline_bubble/steady", "exposed_comm/p2p_transfer"):
            shown = sum(
                ns
                for ns, leaf, track in zip(drawn.segment_ns, drawn.leaf, drawn.track, strict=True)
                if track == 0 and drawn.leaves[leaf] == key
            )
            assert shown == step.leaves_ns.get(key, 0)
            seen |= {key} if shown else set()
        owner = sorted(
            (start, start + ns)
            for start, ns, track in zip(drawn.start_ns, drawn.segment_ns, drawn.track, strict=True)
            if track == 0
        )
        assert all(one[1] <= other[0] for one, other in zip(owner, owner[1:], strict=False))
        assert sum(end - start for start, end in owner) == drawn.dur_ns
    assert seen == {"stragglers/wait_for_rank", "pipeline_bubble/steady", "exposed_comm/p2p_transfer"}
