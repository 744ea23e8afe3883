"""How the ranks of a job come to record the same steps: the first plan that is put down counts for all.

Through the store of `torch.distributed` when it is up: whoever proposes first wins, by compare-and-set. Else through
the shared directory, where rank 0 alone makes the plan and the others pass on their requests.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steptime.capture.request import (
    PLAN_FILE,
    REQUEST_FILE,
    CapturePlan,
    CaptureRequest,
    read_or_none,
    write_request,
    write_whole,
)


@dataclass(frozen=True)
class Place:
    """This process in its job. store: of `torch.distributed`, None where it is not up."""

    rank: int
    world_size: int
    store: Any = None


def find_place() -> Place:
    """Rank and size of the job, from `torch.distributed` if it is up, else as torchrun and Slurm say."""
    dist = sys.modules.get("torch.distributed")
    # Another thread may be about to import it, and then it lacks its names yet.
    if (is_up := getattr(dist, "is_initialized", None)) is not None and is_up():
        assert dist is not None
        return Place(dist.get_rank(), dist.get_world_size(), _store())
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        try:
            return Place(int(os.environ[rank]), max(1, int(os.environ[size])))
        except (KeyError, ValueError):
            continue
    return Place(0, 1)


def _store() -> Any:
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    try:
        # A connection of its own: a training thread that waits in the store must not hold up this one, nor it that.
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return store


class StoreAgreement:
    """Plans by number in the store; `watch_number` tells a process's watches apart. plans: this rank may plan."""

    def __init__(self, store: Any, watch_number: int) -> None:
        self._store = store
        self._watch = watch_number
        self._next = 0
        self.plans = True

    def poll(self) -> CapturePlan | None:
        """The next plan of the job; None if there is none. Raises what the store raises when a peer is gone."""
        key = self._key()
        return self._take(self._store.get(key)) if self._store.check([key]) else None

    def propose(self, plan: CapturePlan) -> CapturePlan:
        """The plan that counts: this one, or the one that was there first."""
        return self._take(self._store.compare_set(self._key(), "", msgspec.json.encode(plan).decode()))

    def _take(self, found: bytes) -> CapturePlan:
        self._next += 1
        return msgspec.json.decode(found, type=CapturePlan)

    def _key(self) -> str:
        return f"steptime/capture/{self._watch}/{self._next}"


class FolderAgreement:
    """The plan of rank 0 in the shared directory. A plan that is there at the start is of an earlier job.

    plans: this rank may plan.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self.plans = rank == 0
        self._seen = self._id(read_or_none(folder / PLAN_FILE, CapturePlan))

    def poll(self) -> CapturePlan | None:
        """The next plan of the job; None if there is none."""
        plan = None if self.plans else read_or_none(self._folder / PLAN_FILE, CapturePlan)
        if plan is None or self._id(plan) == self._seen:
            return None
        self._seen = self._id(plan)
        return plan

    def propose(self, plan: CapturePlan) -> CapturePlan | None:
        """The plan that counts, or None where rank 0 has yet to make it. Raises OSError, UsageError: can't write."""
        if self.plans:
            write_whole(self._folder / PLAN_FILE, msgspec.json.encode(plan))
            return plan
        if read_or_none(self._folder / REQUEST_FILE, CaptureRequest) is None:
            write_request(self._folder, plan.request)
        return None

    @staticmethod
    def _id(plan: CapturePlan | None) -> str | None:
        return None if plan is None else plan.request.id
