"""Members of a collective are found whatever is missing. The truth is the order in which the job ran them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from steptime.ranks.alignment import align
from steptime.ranks.collectives import match
from steptime.ranks.counted import Row
from steptime.ranks.sequences import Beat, place
from steptime.simulate import Scenario, simulate
from tests.ranks.jobs import MS, Job, run
from tests.ranks.summaries import kept, rows_of

JITTERY = Job(ranks_per_host=4, steps=6, layers=5, sharded=True, jitter=0.03, ends_ns=1500.0, seed=3)


def _without(rows: list[Row], rank: int, gone: set[int]) -> tuple[list[Row], list[list[int]]]:
    """The rows with some collectives of one rank lost, and for each row the true number of each that is left."""
    numbers = []
    result = []
    for row in rows:
        assert row.timeline.instances is not None
        count = len(row.timeline.instances.start_ns)
        left = [at for at in range(count) if row.rank != rank or at not in gone]
        numbers.append(left)
        result.append(kept(row, left))
    return result, numbers


def _assert_true(rows: list[Row], numbers: list[list[int]], least: int) -> None:
    """Every match holds one true collective, and at least `least` of them are whole."""
    found = match(rows)
    whole = 0
    for at in range(found.count):
        members = range(int(found.first[at]), int(found.first[at + 1]))
        true = {numbers[int(found.row[one])][int(found.instance[one])] for one in members}
        assert len(true) == 1
        whole += len(members) == len(rows)
    assert whole >= least


HEAD, TAIL, HOLE = set(range(8)), set(range(25, 36)), {17, 18}


@pytest.mark.parametrize(("seq", "groups"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("gone", [set[int](), HEAD, TAIL, HOLE, HEAD | TAIL, HEAD | HOLE])
def test_cut_heads_tails_and_holes(seq: bool, groups: bool, gone: set[int]) -> None:
    job = changed(JITTERY, seq=seq, groups=groups)
    rows, numbers = _without(run(job), 2, gone)
    # 36 collectives; around a hole without numbers one or two may stay unmatched.
    _assert_true(rows, numbers, 36 - len(gone) - 2)


@pytest.mark.parametrize("seed", range(6))
def test_different_windows_on_every_rank_without_metadata_and_with_clocks_apart(seed: int) -> None:
    random = np.random.default_rng(seed)
    job = changed(
        JITTERY,
        hosts=4,
        ranks_per_host=1,
        groups=False,
        seq=False,
        seed=seed,
        offsets_ns=[0, 40 * MS, -50 * MS, 7 * MS],
    )
    rows, numbers = [], []
    for row in run(job):
        low, high = int(random.integers(0, 8)), int(random.integers(28, 37))
        numbers.append(list(range(low, high)))
        rows.append(kept(row, numbers[-1]))
    _assert_true(rows, numbers, 18)


@pytest.mark.parametrize("clock_us", [-2_516, -790, 0, 500, 3_000])
@pytest.mark.parametrize("seed", range(4))
def test_back_to_back_collectives_are_not_moved_by_one(clock_us: int, seed: int) -> None:
    """Four steps of 62 all-reduces, each 790 us after the one before, with 12 ms between steps; one rank lacks its
    first. Moved by one, all distances but three are nearly as constant, and clocks may seem nearer to each other.
    """
    random = np.random.default_rng(seed)
    steps = np.repeat(np.arange(4), 62)
    gaps = random.normal(790_000, 15_000, 248) + 12 * MS * np.append(0, np.diff(steps))
    ends = [np.cumsum(gaps) + random.lognormal(9.0, 1.1, 248) + clock * 1_000 for clock in (0, clock_us)]
    whole, cut = (Beat(end.astype(np.int64)[lost:], steps[lost:]) for lost, end in enumerate(ends))
    assert [places.tolist() for places in place([whole, cut])] == [list(range(248)), list(range(1, 248))]


def test_stages_of_a_pipeline_are_not_matched_where_no_group_has_a_name(tmp_path: Path) -> None:
    """Traces before torch 2.4: the all-reduces of two stages look like one group's, 2 ms apart by their clocks."""
    layout = "[recording]\ndialect = 'integer'\n[model]\nlayers = 4\n[layout]\ndp = 2\npp = 2\n"
    simulate(msgspec.toml.decode(layout, type=Scenario), tmp_path, 7)
    found = match(rows_of(sorted(tmp_path.glob("rank*.json.gz"))))
    assert found.count == 0
    assert found.refused > 0


def test_identical_steps_are_told_apart_by_their_numbers() -> None:
    # Without jitter every step looks like the next: only ProfilerStep's numbers show that rank 1 lacks the first one.
    job = Job(ranks_per_host=2, steps=5, layers=3, seq=False)
    rows, numbers = _without(run(job), 1, {0})
    _assert_true(rows, numbers, 4)


def test_a_missing_rank_leaves_the_others_matched() -> None:
    rows = run(JITTERY)[:3]
    found = match(rows)
    assert (found.matched, found.unmatched, found.refused) == (3 * 36, 0, 0)
    assert not found.complete.any()


def test_equal_numbers_of_different_kinds_are_refused() -> None:
    rows = run(Job(ranks_per_host=2, steps=3, layers=2, sharded=True))
    instances = rows[1].timeline.instances
    assert instances is not None
    leaf = instances.leaf.copy()
    leaf[4] = instances.leaf[2]  # an all-reduce, where rank 0 has the second all-gather of step 1
    other = msgspec.structs.replace(instances, leaf=leaf)
    rows[1] = msgspec.structs.replace(rows[1], timeline=msgspec.structs.replace(rows[1].timeline, instances=other))
    found = match(rows)
    assert found.refused == 2
    assert found.matched == 2 * 9 - 2


def test_what_ends_before_it_starts_is_refused() -> None:
    # Two groups that the trace does not name, each of two ranks: order alone would match them with each other.
    left = run(Job(ranks_per_host=2, steps=4, layers=3, groups=False, seq=False, jitter=0.3, seed=1))
    right = run(Job(ranks_per_host=2, steps=4, layers=3, groups=False, seq=False, jitter=0.3, seed=2))
    moved = [msgspec.structs.replace(row, rank=row.rank + 2) for row in right]
    alignment = align([*left, *moved])
    assert alignment.matched == 0
    assert alignment.refused == 4 * 4


def test_counts_add_up() -> None:
    rows, _ = _without(run(JITTERY), 1, HEAD)
    alignment = align(rows)
    # 4 ranks of 36, less the 8 that rank 1 lost: the other three still match each other there.
    assert (alignment.matched, alignment.unmatched, alignment.refused) == (4 * 36 - 8, 0, 0)


def changed(job: Job, **changes: object) -> Job:
    """A copy of a job with other settings."""
    return Job(**{**vars(job), **changes})
