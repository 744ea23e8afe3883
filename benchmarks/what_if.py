"""``python -m benchmarks.what_if FOLDER``: replay a job with ten removals; prints CPU seconds, peak memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from steptime.pipeline import Options
from steptime.ranks.counted import Row, count_steps
from steptime.ranks.together import together
from steptime.taxonomy import LEAF_CODE
from steptime.timeline.summary import FileSummary, Request, summarize
from steptime.trace.parse import parse
from steptime.whatif.job_replay import JobReplay
from steptime.whatif.scenario import EVEN, HIDDEN, LEAF, NOBODY_LATE, RANKS, Change

#: The job that is simulated: FSDP over 16 ranks beside tensor parallelism over 4, small kernels in their full number.
SCENARIO = """
[model]
layers = 16
hidden = 4096
heads = 32
ffn = 14336
vocab = 32000
[layout]
dp = 16
tp = 4
fsdp = true
[batch]
micro_batches = 2
seq_len = 4096
[training]
detail = "full"
[recording]
steps = 3
"""
_ONE = Change("one rank", RANKS, ranks=(5,))
REMOVALS = [
    [Change(key, LEAF, (LEAF_CODE[key],))]
    for key in ("host/data_loader", "host/launch_bound", "host/sync", "host/python", "kernels/memory_bound")
] + [
    [Change("gathers", HIDDEN, (LEAF_CODE["exposed_comm/allgather"],))],
    [_ONE],
    [Change("stragglers", NOBODY_LATE)],
    [Change("perfect", EVEN)],
    [_ONE, Change("half", LEAF, (LEAF_CODE["kernels/matmul"],), 0.5)],
]
_T = TypeVar("_T")


def main() -> None:
    """Measure, print one line of JSON."""
    paths = sorted(str(path) for path in Path(sys.argv[1]).glob("rank*"))
    request = Request(pricing=Options().pricing, replayed=True)
    spent: dict[str, float] = {}

    def timed(name: str, action: Callable[[], _T]) -> _T:
        before = time.process_time()
        result = action()
        spent[name] = spent.get(name, 0.0) + time.process_time() - before
        return result

    rows = []
    for rank, path in enumerate(paths):
        table = timed("read", lambda path=path: parse(path))  # type: ignore[misc]
        file: FileSummary = timed("split", lambda table=table: summarize(table, request))  # type: ignore[misc]
        rows.append(Row(rank if file.declared_rank is None else file.declared_rank, 0, file, file.devices[0]))
        del table
    rows.sort(key=lambda row: row.rank)
    ranks = timed("align", lambda: together(rows, None))
    counted = count_steps(ranks.rows, None)
    alignment = ranks.seen[0] if ranks.seen else None
    job = timed("graph", lambda: JobReplay(counted, alignment, ranks.pipeline))
    timed("replay", lambda: job.steps_ns(REMOVALS))
    # Linux gives KiB, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"seconds": spent, "peak_bytes": peak, "instants": len(job.times), "removals": len(REMOVALS)}))


if __name__ == "__main__":
    main()
