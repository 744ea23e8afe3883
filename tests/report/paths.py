"""A critical path written by hand, over the steps and ranks that the rich report draws."""

from __future__ import annotations

import msgspec

from steptime.model import CriticalPath, PathPlace, PathStep, PathTotal, Report
from tests.report.reports import MS
from tests.report.rich_reports import EPOCH_NS, UGLY, hostile_rich, rich

PLACES = [(0, 0, "host"), (0, 0, "stream 7"), (37, 5, "meeting"), (37, 5, "stream 7"), (37, 5, "host")]
#: Place, leaf, what, start and length in ms, step, nodes: it goes to rank 37 and comes back.
SEGMENTS = [
    (0, "host/data_loader", "data loader", 0, 12, 0, 1),
    (1, "productive", "sm90_xmma_gemm_bf16", 12, 28, 0, 2),
    (1, "kernels/matmul", "sm90_xmma_gemm_bf16", 40, 20, 0, 2),
    (2, "exposed_comm/allreduce", "allreduce (dp)", 60, 10, 0, 1),
    (3, "kernels/attention", "flash_fwd", 70, 30, 0, 1),
    (4, "host/sync", "host-device synchronisation", 100, 10, 1, 1),
    (3, "kernels/matmul", "sm90_xmma_gemm_bf16", 110, 40, 1, 1),
    (1, "kernels/matmul", "sm90_xmma_gemm_bf16", 150, 50, 1, 3),
]
TOTALS = [
    (0, 0, "stream 7", "kernels/matmul", 70),
    (37, 5, "stream 7", "kernels/matmul", 40),
    (37, 5, "stream 7", "kernels/attention", 30),
    (0, 0, "stream 7", "productive", 28),
    (0, 0, "host", "host/data_loader", 12),
    (None, None, "meeting", "exposed_comm/allreduce", 10),
    (37, 5, "host", "host/sync", 10),
]


def path() -> CriticalPath:
    """200 ms over two steps."""
    leaves = sorted({row[1] for row in SEGMENTS})
    names = sorted({row[2] for row in SEGMENTS})
    return CriticalPath(
        length_ns=200 * MS,
        steps=[PathStep(step=10 + at, start_ns=100 * at * MS, dur_ns=100 * MS) for at in range(2)],
        totals=[
            PathTotal(rank=rank, device=device, where=where, leaf=leaf, ns=length * MS)
            for rank, device, where, leaf, length in TOTALS
        ],
        places=[PathPlace(rank=rank, device=device, where=where) for rank, device, where in PLACES],
        leaves=leaves,
        names=names,
        place=[row[0] for row in SEGMENTS],
        leaf=[leaves.index(row[1]) for row in SEGMENTS],
        name=[names.index(row[2]) for row in SEGMENTS],
        step=[row[5] for row in SEGMENTS],
        start_ns=[row[3] * MS for row in SEGMENTS],
        own_ns=[EPOCH_NS + row[3] * MS for row in SEGMENTS],
        dur_ns=[row[4] * MS for row in SEGMENTS],
        nodes=[row[6] for row in SEGMENTS],
    )


def rich_path() -> Report:
    """The rich report, replayed."""
    return msgspec.structs.replace(rich(), critical_path=path())


def hostile_path() -> Report:
    """Every text of the path is hostile."""
    drawn = path()
    places = [
        PathPlace(rank=one.rank, device=one.device, where=UGLY[at % len(UGLY)]) for at, one in enumerate(drawn.places)
    ]
    totals = [
        msgspec.structs.replace(one, where=UGLY[at % len(UGLY)], leaf=UGLY[-1 - at % len(UGLY)])
        for at, one in enumerate(drawn.totals * 2)
    ]
    ugly = msgspec.structs.replace(
        drawn,
        places=places,
        totals=totals,
        leaves=list(UGLY[-len(drawn.leaves) :]),
        names=list(UGLY[-len(drawn.names) :]),
    )
    return msgspec.structs.replace(hostile_rich(), critical_path=ugly)


def monstrous_path(report: Report) -> Report:
    """A path far longer than a page can hold, each piece with a long name of its own."""
    many, long = 20_000, "<&\u65e5'\"" * 100
    drawn = path()
    ugly = msgspec.structs.replace(
        drawn,
        length_ns=many * 1_000,
        steps=[PathStep(step=10, start_ns=0, dur_ns=many * 1_000)],
        places=[PathPlace(rank=at, device=0, where=f"{at}{long}") for at in range(500)],
        totals=[PathTotal(rank=at, device=0, where=long, leaf=long, ns=many * 2) for at in range(500)],
        names=[f"{at}{long}" for at in range(many)],
        place=[at % 500 for at in range(many)],
        leaf=[at % len(drawn.leaves) for at in range(many)],
        name=list(range(many)),
        step=[0] * many,
        start_ns=[at * 1_000 for at in range(many)],
        own_ns=[EPOCH_NS + at * 1_000 for at in range(many)],
        dur_ns=[1_000] * many,
        nodes=[1] * many,
    )
    return msgspec.structs.replace(report, critical_path=ugly)
