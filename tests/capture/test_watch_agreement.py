"""The first plan counts for all ranks, through a real store and through a folder."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

from steptime.capture.agreement import FolderAgreement, StoreAgreement, find_place
from steptime.capture.request import CapturePlan, CaptureRequest, read_request


def plan(name: str, by: int = 0) -> CapturePlan:
    return CapturePlan(request=CaptureRequest(id=name), first_step=10, world_size=4, planned_by=by)


def test_through_a_store_one_of_many_proposals_counts(tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    path = str(tmp_path / "store")
    ranks = [StoreAgreement(dist.FileStore(path, 4), 0) for _ in range(4)]
    assert [rank.poll() for rank in ranks] == [None] * 4
    together = threading.Barrier(4)
    agreed: dict[int, CapturePlan] = {}

    def propose(rank: int) -> None:
        together.wait()
        agreed[rank] = ranks[rank].propose(plan(f"of-{rank}", rank))

    threads = [threading.Thread(target=propose, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.request.id for one in agreed.values()} == {agreed[0].request.id}
    # The next plan is another one, and a rank that did not propose finds it.
    assert [rank.poll() for rank in ranks] == [None] * 4
    second = ranks[3].propose(plan("second", 3))
    assert [rank.poll() for rank in ranks[:3]] == [second] * 3


def test_the_watches_of_one_process_do_not_hear_each_other(tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    StoreAgreement(store, 0).propose(plan("first"))
    assert StoreAgreement(store, 1).poll() is None


def test_through_a_folder_rank_0_plans_and_the_others_pass_on(tmp_path: Path) -> None:
    leader, other = FolderAgreement(tmp_path, 0), FolderAgreement(tmp_path, 2)
    assert other.propose(plan("mine")) is None
    request = read_request(tmp_path)
    assert request is not None
    assert request.id == "mine"
    # A request that is there is not written over.
    assert other.propose(plan("later")) is None
    assert read_request(tmp_path) == request
    assert other.poll() is None
    agreed = leader.propose(plan("mine"))
    assert (other.poll(), other.poll()) == (agreed, None)
    # A plan that lies there from an earlier job is not followed.
    assert FolderAgreement(tmp_path, 1).poll() is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, (0, 1)),
        ({}, (0, 1)),
    ],
)
def test_the_place_of_a_process(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[int, int]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = find_place()
    assert (place.rank, place.world_size, place.store) == (*expected, None)


def test_the_hook_never_asks_for_the_time_of_day(repo: Path) -> None:
    # A wall clock jumps; pace, cool-down and bounds are kept by clocks that do not.
    hook = [
        repo / "steptime" / "capture" / f"{name}.py" for name in ("watch", "bureau", "pace", "recording", "request")
    ]
    asked = {
        node.attr
        for path in hook
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert asked == {"monotonic", "perf_counter_ns"}
