"""Four ranks in a mesh of two by two, whose all-reduces name no group: which one it was, told by all ranks together."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.ranks.collectives import Matches, match
from tests.gloo_recording import WORLD, Recording, group
from tests.ranks.summaries import rows_of

ROWS = [(0, 1), (2, 3)]
COLUMNS = [(0, 2), (1, 3)]


def _matched(folder: Path, calls: list[list[tuple[int, int]]]) -> Matches:
    """calls: start and end of every all-reduce of each rank, in microseconds."""
    paths = []
    for rank in range(4):
        mesh = [group("1", "mesh_pp", *COLUMNS[rank % 2]), group("3", "mesh_dp", *ROWS[rank // 2])]
        recording = Recording(rank, [WORLD, *mesh]).step(0, 0, 10_000)
        for start, end in calls[rank]:
            recording.asks("allreduce_", start - 5, [[[64]], [], []]).works("all_reduce", start, end, 64)
        recording.table(folder)
        paths.append(folder / f"rank{rank}.json")
    return match(rows_of(paths))


def _members(matches: Matches) -> set[tuple[int, ...]]:
    bounds = matches.first.tolist()
    return {tuple(matches.row[low:high].tolist()) for low, high in zip(bounds, bounds[1:], strict=False)}


@pytest.mark.parametrize("pairs", [ROWS, COLUMNS])
def test_pairs_that_never_overlap_are_told_apart(tmp_path: Path, pairs: list[tuple[int, ...]]) -> None:
    calls: list[list[tuple[int, int]]] = [[], [], [], []]
    for at in range(1, 5):
        for shift, pair in enumerate(pairs):
            for late, rank in enumerate(pair):
                calls[rank].append((1000 * at + 300 * shift + 20 * late, 1000 * at + 300 * shift + 100))
    matches = _matched(tmp_path, calls)
    assert _members(matches) == set(pairs)
    assert (matches.matched, matches.refused) == (16, 0)
    assert {one.ranks for one in matches.groups if one.ranks} >= set(pairs)


def test_pairs_that_overlap_but_end_together_are_told_apart(tmp_path: Path) -> None:
    # The rows' ends differ by 1 us, the columns' by 50.
    calls = [[(1000 * at, 1000 * at + 100 + 50 * (rank // 2) + rank % 2) for at in range(1, 6)] for rank in range(4)]
    matches = _matched(tmp_path, calls)
    assert _members(matches) == set(ROWS)
    assert matches.refused == 0


def test_what_all_do_together_is_not_claimed_for_any_group(tmp_path: Path) -> None:
    calls = [[(1000 * at + rank, 1000 * at + 100 + rank) for at in range(1, 6)] for rank in range(4)]
    matches = _matched(tmp_path, calls)
    assert (matches.count, matches.refused) == (0, 20)


def test_two_instances_may_overlap_by_chance(tmp_path: Path) -> None:
    calls = [
        [(1000 * at + 300 * (rank // 2), 1000 * at + 300 * (rank // 2) + 100) for at in (1, 2)] for rank in range(4)
    ]
    matches = _matched(tmp_path, calls)
    assert (matches.count, matches.refused) == (0, 8)
