"""What slows an op-level job down: a worker, a stage, or the lengths of the sequences.

The verdict is what evening out gives back most of the slowdown in a replay, if that is more than half of it. The name
of the job and what anybody wrote about it play no part.
"""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.model.oplevel import OpLevelReport

#: A job slower than even work by less than this has no straggler to look for (the artifact stops there, too).
STRAGGLING = 1.03
#: A cause is named if it accounts for more than half of the slowdown: no two of them could both.
_MOST = 0.5
#: Forward and backward of a micro-batch go together so closely where sequences differ in length (the paper's test).
SEQUENCES = 0.9


def judge(report: OpLevelReport) -> OpLevelReport:
    """The report with its cause and who or what is meant, or why nobody can be named."""
    if report.slowdown < STRAGGLING:
        return msgspec.structs.replace(report, cause="none")
    uneven = report.unevenness
    shares = {"worker": uneven.workers, "stage": uneven.stages, "sequence_lengths": uneven.micro_batches}
    cause, share = max(((name, value or 0.0) for name, value in shares.items()), key=lambda item: item[1])
    if share <= _MOST:
        why = "neither workers, stages nor micro-batches made alike give back more than half of the slowdown"
    elif cause == "worker":
        if (uneven.slow_workers or 0) > _MOST:
            return msgspec.structs.replace(report, cause=cause, culprits=uneven.slow)
        why = "workers of a stage differ, but the slowest of them do not account for more than half of the slowdown"
    elif cause == "stage":
        if report.dp_size > 1:
            return msgspec.structs.replace(report, cause=cause, stage=int(np.argmax(uneven.stage_ns)))
        why = "stages differ, but with one dp rank a slow worker and a long stage look the same"
    else:
        if (uneven.correlation or 0) >= SEQUENCES:
            return msgspec.structs.replace(report, cause=cause)
        why = (
            "computes differ from micro-batch to micro-batch, but forward and backward of one do not go together, as "
            "they would with sequences of different lengths"
        )
    return msgspec.structs.replace(report, cause="unclear", why=why)
