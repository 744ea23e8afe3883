"""What the replay without own lags shows: a dependency that is missing from the graph, or a false one."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from steptime.ranks.counted import Counted
from steptime.simulate import simulate
from steptime.timeline.dependencies import Dependencies
from steptime.whatif.fidelity import modelled_error
from steptime.whatif.job_replay import JobReplay
from tests.matrix.scenarios import Cell
from tests.whatif.measured import measured_job


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Counted, JobReplay]:
    """One rank of an FSDP job without prefetch: it waits for its gathers all the time."""
    folder = tmp_path_factory.mktemp("job")
    simulate(Cell("fsdp", ("no_prefetch",)).scenario(), folder, 101)
    return measured_job([folder / "rank0.json.gz"])


def _with(counted: Counted, before: np.ndarray, after: np.ndarray) -> JobReplay:
    (row,) = counted.rows
    known = row.timeline.dependencies
    assert isinstance(known, Dependencies)
    known = msgspec.structs.replace(known, before=before, after=after)
    timeline = msgspec.structs.replace(row.timeline, dependencies=known)
    return JobReplay(counted.with_timelines([timeline]), None, None)


def test_what_is_known_of_a_simulated_rank_explains_its_steps(one_rank: tuple[Counted, JobReplay]) -> None:
    _, job = one_rank
    assert job.error_share < 1e-6
    assert modelled_error(job) < 0.005


def test_a_missing_wait_shows_though_the_unchanged_replay_is_exact(one_rank: tuple[Counted, JobReplay]) -> None:
    """Without what streams wait for, all of the exposed gathers (10 % of these steps) becomes unexplained stalls."""
    counted, _ = one_rank
    none = np.empty(0, np.int64)
    blind = _with(counted, none, none)
    assert blind.error_share < 1e-6
    assert modelled_error(blind) > 0.05
