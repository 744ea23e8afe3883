"""Jobs whose answer is published beside them: eight V100s, case A19, and the sample with a loader that sleeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from steptime.ranks.alignment import align
from steptime.ranks.counted import Row
from steptime.ranks.moves import attribute_waits, with_waits
from steptime.ranks.stragglers import verdicts
from steptime.taxonomy import LEAF_CODE
from tests.ranks.summaries import rows_of

WAIT, SKEW = "stragglers/wait_for_rank", "unexplained/capture_skew"
ALL_TO_ALL = LEAF_CODE["exposed_comm/all_to_all"]


def _shared(repo: Path, name: str) -> Path:
    folder = repo.parent / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not beside this checkout")
    return folder


@pytest.fixture(scope="module")
def dlrm() -> list[Row]:
    folder = _shared(Path(__file__).parents[2], "public_traces/dlrm_v100_8ranks")
    return rows_of(sorted(folder.glob("*.json.gz")))


def test_first_all_to_all_of_eight_v100(dlrm: list[Row]) -> None:
    """Waits in ms by rank, from the README beside the traces; rank 7 arrives last."""
    collectives = align(dlrm).collectives
    matches = collectives.matches
    mine = np.flatnonzero(matches.leaf == ALL_TO_ALL)
    assert len(mine) == 5
    assert (np.diff(matches.first)[mine] == 8).all()
    first = mine[collectives.last_ns[mine].argmin()]
    members = slice(int(matches.first[first]), int(matches.first[first + 1]))
    waits = (collectives.last_ns[first] - collectives.arrival_ns[members]) / 1e6
    assert matches.row[members].tolist() == list(range(8))
    assert collectives.late[first] == 7
    assert waits == pytest.approx([2.1, 7.6, 0.5, 6.1, 4.9, 4.7, 0.5, 0.01], abs=0.1)


def test_it_is_all_capture_skew(dlrm: list[Row]) -> None:
    alignment = align(dlrm)
    found = attribute_waits(dlrm, alignment)
    skew = [int(waits.ns[waits.culprit < 0].sum()) / 1e6 for waits in found]
    # Of the first all-to-all everything exposed before rank 7 came; rank 7 itself waits for nobody there.
    for rank, least in enumerate([2.0, 7.5, 0.4, 6.0, 4.8, 4.6, 0.4]):
        assert skew[rank] >= least
    assert skew[7] == 0
    for row, waits in zip(dlrm, found, strict=True):
        for step in with_waits(row.timeline, waits).steps:
            step.check()


def test_no_straggler_is_named_with_all_files_or_any_seven(dlrm: list[Row]) -> None:
    assert verdicts(dlrm, align(dlrm)) == []
    for left_out in range(8):
        rows = [row for row in dlrm if row.rank != left_out]
        assert verdicts(rows, align(rows)) == []


@pytest.mark.parametrize("name", ["rollover", "one_absolute", "skew_4ms"])
def test_case_a19(repo: Path, name: str) -> None:
    folder = _shared(repo, "cases/A19")
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())["inputs"][f"{name}/"]
    rows = rows_of(sorted((folder / name).glob("*.json")))
    alignment = align(rows)
    offset_us = int(alignment.offset_ns[1] - alignment.offset_ns[0]) / 1000
    clock = expected["clock_offset_us"]
    assert offset_us == pytest.approx(clock["rank1"], abs=clock.get("tolerance", expected["tolerance_us"]))
    (straggler,) = verdicts(rows, alignment)
    assert (straggler.kind, straggler.rank) == ("straggler", expected["straggler"])
    moved = [with_waits(row.timeline, waits) for row, waits in zip(rows, attribute_waits(rows, alignment), strict=True)]
    for rank, wanted in ((0, expected["wait_us_per_step"]["rank0"]), (1, expected["wait_us_per_step"]["rank1"])):
        for step in moved[rank].steps:
            # The first collective of a recording shows when recordings began: its wait is nobody's.
            found = step.leaves_ns.get(SKEW if step.edge else WAIT, 0)
            assert found == wanted * 1000
            assert step.leaves_ns["exposed_comm/allreduce"] == expected["all_reduce_transfer_us"] * 1000


def test_the_sample_names_the_rank_whose_loader_sleeps(sample: Path) -> None:
    rows = rows_of(sorted(sample.glob("*.json.gz")))
    alignment = align(rows)
    (straggler,) = verdicts(rows, alignment)
    assert (straggler.kind, straggler.rank, straggler.cause) == ("straggler", 1, "data_loader")
    waits = attribute_waits(rows, alignment)
    timeline = with_waits(rows[0].timeline, waits[0])
    # MADE.md: how much later than rank 0 rank 1 had its last gradient, ms, in the steps with a sleep.
    late = {4: 20.367, 6: 20.334, 8: 20.303, 10: 20.645}
    for step in timeline.steps:
        step.check()
        if step.step in late:
            assert step.leaves_ns[WAIT] / 1e6 == pytest.approx(late[step.step], rel=0.10)


def test_waits_are_counted_once_whatever_else_moves(sample: Path) -> None:
    rows = rows_of(sorted(sample.glob("*.json.gz")))
    waits = attribute_waits(rows, align(rows))
    timeline = with_waits(rows[0].timeline, waits[0])
    rows[0] = msgspec.structs.replace(rows[0], timeline=timeline)
    held = timeline.ledger.ns[timeline.ledger.leaf == LEAF_CODE[WAIT]].sum()
    assert int(held) == int(waits[0].ns.sum())
