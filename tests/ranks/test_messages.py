"""Sends and receives find their other end: peers are ranks of the job, and messages of both ways may cross."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from steptime.ranks.collectives import match
from steptime.simulate import Scenario, simulate
from tests.builders import ORIGIN_NS, TraceBuilder
from tests.ranks.summaries import rows_of

#: Rank 2 is the third of the group: taken as a place in it, the number 2 would mean rank 4.
STAGES = (0, 2, 4)


def _pairs(folder: Path) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Starts (ns, on each rank's clock) of the two ends of each message by the two ranks, in time order."""
    rows = rows_of(sorted(folder.glob("rank*.json.gz")))
    found = match(rows)
    assert found.refused == 0
    pairs: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for at in np.flatnonzero(found.pair).tolist():
        ends = slice(int(found.first[at]), int(found.first[at + 1]))
        ranks = tuple(rows[row].rank for row in found.row[ends].tolist())
        pairs.setdefault(ranks, []).append(tuple(found.start_ns[ends].tolist()))
    return {ranks: sorted(starts) for ranks, starts in pairs.items()}


def test_crossing_messages_between_ranks_that_are_no_neighbours_in_number(tmp_path: Path) -> None:
    """Rank 0 sends before it receives, rank 2 sends before it receives: the first events at each end are no pair."""
    for rank, other, send, receive in ((0, 2, 100, 300), (2, 0, 150, 200)):
        trace = TraceBuilder(rank=rank, world_size=6)
        trace.step(1, at=0, for_=900)
        trace.kernel("gemm", at=20, for_=50, launch_at=10)
        for kind, at, stream in (("send", send, 20), ("recv", receive, 24)):
            trace.collective(
                kind, at=at, for_=600 - at, stream=stream, launch_at=at - 50, group="3", ranks=STAGES, peer=other
            )
        trace.write(tmp_path / f"rank{rank}.json.gz")
    ends = [tuple(ORIGIN_NS + at * 1000 for at in starts) for starts in ((100, 200), (300, 150))]
    assert _pairs(tmp_path) == {(0, 2): ends}


def test_every_message_of_a_simulated_pipeline(tmp_path: Path) -> None:
    text = "[layout]\npp = 4\ndp = 2\n[batch]\nmicro_batches = 6\n[model]\nlayers = 4\nhidden = 512\nvocab = 1000\n"
    truth = simulate(msgspec.toml.decode(text, type=Scenario), tmp_path)
    known: dict[tuple[int, ...], list[int]] = {}
    for one in truth.collectives:
        if one.kind == "p2p":
            known.setdefault(tuple(one.ranks), []).append(one.start_ns[1] - one.start_ns[0])
    # Two ways, six micro-batches, three recorded steps, of which the first may be cut at one end.
    assert {len(starts) for starts in known.values()} == {36}
    found = {ranks: [two - one for one, two in starts] for ranks, starts in _pairs(tmp_path).items()}
    assert {ranks: sorted(apart[-24:]) for ranks, apart in found.items()} == {
        ranks: sorted(apart[-24:]) for ranks, apart in known.items()
    }
