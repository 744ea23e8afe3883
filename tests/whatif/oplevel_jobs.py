"""Small op-level jobs: one worked out by hand, and any other by a recursion that shares no code with steptime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

#: (dp rank, stage, op type, seq): start and end in ms. Two dp ranks, two stages, two micro-batches; forwards take 10 ms
#: and backwards 20 ms, twice that on dp rank 1, stage 1; a message or an all-reduce takes 2 ms from its last member on,
#: the reduce-scatter 3, the all-gather, the layernorm and the clip 1, the optimizer 4. Nothing waits without a reason.
TINY: dict[tuple[int, int, str, int], tuple[float, float]] = {
    (0, 0, "params-all-gather", 0): (0, 1),
    (0, 0, "forward-compute", 0): (1, 11),
    (0, 0, "forward-compute", 1): (11, 21),
    (0, 0, "forward-send", 0): (11, 13),
    (0, 0, "forward-send", 1): (21, 25),
    (0, 0, "backward-recv", 0): (11, 45),
    (0, 0, "backward-compute", 0): (45, 65),
    (0, 0, "backward-recv", 1): (65, 75),
    (0, 0, "backward-compute", 1): (75, 95),
    (0, 0, "gc", 0): (95, 95),
    (0, 0, "layernorm-grads-all-reduce", 0): (95, 96),
    (0, 0, "embedding-grads-all-reduce", 0): (96, 98),
    (0, 0, "grads-reduce-scatter", 0): (98, 161),
    (0, 0, "optimizer-clip-main-grad", 0): (161, 162),
    (0, 0, "optimizer", 0): (162, 166),
    (0, 1, "params-all-gather", 0): (0, 1),
    (0, 1, "forward-recv", 0): (0, 13),
    (0, 1, "forward-compute", 0): (13, 23),
    (0, 1, "forward-recv", 1): (23, 25),
    (0, 1, "backward-compute", 0): (23, 43),
    (0, 1, "forward-compute", 1): (43, 53),
    (0, 1, "backward-send", 0): (43, 45),
    (0, 1, "backward-compute", 1): (53, 73),
    (0, 1, "backward-send", 1): (73, 75),
    (0, 1, "gc", 0): (73, 73),
    (0, 1, "layernorm-grads-all-reduce", 0): (73, 74),
    (0, 1, "embedding-grads-all-reduce", 0): (74, 98),
    (0, 1, "grads-reduce-scatter", 0): (98, 161),
    (0, 1, "optimizer-clip-main-grad", 0): (161, 162),
    (0, 1, "optimizer", 0): (162, 166),
    (1, 0, "params-all-gather", 0): (0, 1),
    (1, 0, "forward-compute", 0): (1, 11),
    (1, 0, "forward-compute", 1): (11, 21),
    (1, 0, "forward-send", 0): (11, 13),
    (1, 0, "forward-send", 1): (21, 35),
    (1, 0, "backward-recv", 0): (11, 75),
    (1, 0, "backward-compute", 0): (75, 95),
    (1, 0, "backward-recv", 1): (95, 135),
    (1, 0, "backward-compute", 1): (135, 155),
    (1, 0, "gc", 0): (155, 155),
    (1, 0, "layernorm-grads-all-reduce", 0): (155, 156),
    (1, 0, "embedding-grads-all-reduce", 0): (156, 158),
    (1, 0, "grads-reduce-scatter", 0): (158, 161),
    (1, 0, "optimizer-clip-main-grad", 0): (161, 162),
    (1, 0, "optimizer", 0): (162, 166),
    (1, 1, "params-all-gather", 0): (0, 1),
    (1, 1, "forward-recv", 0): (0, 13),
    (1, 1, "forward-compute", 0): (13, 33),
    (1, 1, "forward-recv", 1): (33, 35),
    (1, 1, "backward-compute", 0): (33, 73),
    (1, 1, "forward-compute", 1): (73, 93),
    (1, 1, "backward-send", 0): (73, 75),
    (1, 1, "backward-compute", 1): (93, 133),
    (1, 1, "backward-send", 1): (133, 135),
    (1, 1, "gc", 0): (133, 133),
    (1, 1, "layernorm-grads-all-reduce", 0): (133, 134),
    (1, 1, "embedding-grads-all-reduce", 0): (134, 158),
    (1, 1, "grads-reduce-scatter", 0): (158, 161),
    (1, 1, "optimizer-clip-main-grad", 0): (161, 162),
    (1, 1, "optimizer", 0): (162, 166),
}


class Key(NamedTuple):
    """An op of a step."""

    dp_rank: int
    stage: int
    optype: str
    seq: int


class Shape(NamedTuple):
    """A job under 1F1B; with `eager`, each stage has so many more forwards ahead for each stage behind it."""

    dp_size: int
    pp_size: int
    micro_batches: int
    eager: int = 0

    def order(self, stage: int) -> list[tuple[str, int]]:
        """The computes of a stage."""
        ahead = min((self.pp_size - 1 - stage) * (1 + self.eager), self.micro_batches)
        found = [("forward", seq) for seq in range(ahead)]
        for seq in range(self.micro_batches - ahead):
            found += [("forward", ahead + seq), ("backward", seq)]
        return found + [("backward", seq) for seq in range(self.micro_batches - ahead, self.micro_batches)]

    def keys(self) -> list[Key]:
        """All ops of a step."""
        found = []
        for stage in range(self.pp_size):
            many = ["forward-compute", "backward-compute"]
            many += ["forward-send", "backward-recv"] if stage < self.pp_size - 1 else []
            many += ["forward-recv", "backward-send"] if stage > 0 else []
            names = [(name, seq) for name in many for seq in range(self.micro_batches)]
            names += [(name, 0) for name in self.tail(stage)] + [("params-all-gather", 0)]
            found += [Key(dp_rank, stage, name, seq) for dp_rank in range(self.dp_size) for name, seq in names]
        return found

    def tail(self, stage: int) -> list[str]:
        """What follows the last compute, in order."""
        embedding = ["embedding-grads-all-reduce"] if stage in (0, self.pp_size - 1) else []
        before = ["gc", "layernorm-grads-all-reduce", *embedding]
        return [*before, "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]


Step = Mapping[Key, float]


def run(shape: Shape, work: Step, delay: Step | None = None) -> tuple[dict[Key, float], dict[Key, float]]:
    """Start and end of each op by the dependency rules of the artifact, one op at a time."""

    @cache
    def start(key: Key) -> float:
        return max((end(other) for other in _waits_for(shape, key)), default=0.0) + (delay[key] if delay else 0.0)

    @cache
    def end(key: Key) -> float:
        return max(start(member) for member in _group(shape, key)) + work[key]

    keys = shape.keys()
    return {key: start(key) for key in keys}, {key: end(key) for key in keys}


def step_time(shape: Shape, work: Step) -> float:
    """How long the step takes."""
    return max(run(shape, work)[1].values())


def _waits_for(shape: Shape, key: Key) -> list[Key]:
    def mine(optype: str, seq: int = 0) -> Key:
        return Key(key.dp_rank, key.stage, optype, seq)

    order = shape.order(key.stage)
    direction, _, what = key.optype.partition("-")
    if what == "compute":
        at = order.index((direction, key.seq))
        found = [mine(f"{order[at - 1][0]}-compute", order[at - 1][1])] if at else []
        receives = key.stage > 0 if direction == "forward" else key.stage < shape.pp_size - 1
        found += [mine(f"{direction}-recv", key.seq)] if receives else []
        return found + ([mine("params-all-gather")] if (direction, key.seq) == ("forward", 0) else [])
    if what in ("send", "recv"):
        found = [mine(key.optype, key.seq - 1)] if key.seq else []
        computed = key.seq if what == "send" else key.seq - 1
        found += [mine(f"{direction}-compute", computed)] if computed >= 0 else []
        first = order.index(("backward", 0))
        if direction == "backward" and key.seq == 0 and first >= 2:
            found.append(mine(f"{order[first - 2][0]}-compute", order[first - 2][1]))
        return found
    if key.optype == "params-all-gather":
        return []
    tail = shape.tail(key.stage)
    at = tail.index(key.optype)
    found = [mine(tail[at - 1])] if at else [mine(f"{order[-1][0]}-compute", order[-1][1])]
    return [*found, mine("params-all-gather")] if key.optype == "grads-reduce-scatter" else found


def _group(shape: Shape, key: Key) -> list[Key]:
    ranks, stages = range(shape.dp_size), range(shape.pp_size)
    direction, _, what = key.optype.partition("-")
    if what in ("send", "recv"):
        other = "recv" if what == "send" else "send"
        onward = 1 if (direction == "forward") == (what == "send") else -1
        return [key, key._replace(stage=key.stage + onward, optype=f"{direction}-{other}")]
    if key.optype == "embedding-grads-all-reduce":
        return [key._replace(stage=stage) for stage in (0, shape.pp_size - 1)]
    if key.optype in ("params-all-gather", "grads-reduce-scatter"):
        return [key._replace(dp_rank=rank) for rank in ranks]
    if key.optype == "optimizer-clip-main-grad":
        return [key._replace(dp_rank=rank, stage=stage) for rank in ranks for stage in stages]
    return [key]


def frame(steps: Mapping[int, tuple[Mapping[Any, float], Mapping[Any, float]]], dtype: str = "float32") -> pd.DataFrame:
    """The table of a recording, of the starts and ends (s) in each step."""
    rows = [(*key, step, start[key], end[key] - start[key]) for step, (start, end) in steps.items() for key in start]
    table = pd.DataFrame(rows, columns=["dp_rank", "stage", "optype", "seq_id", "step", "start_ts", "duration"])
    kinds = {"dp_rank": "int8", "stage": "int8", "seq_id": "int32", "optype": "category"}
    return table.astype({**kinds, "start_ts": dtype, "duration": dtype})


def tiny() -> pd.DataFrame:
    """The job worked out by hand, twice: in step 7 as it is, in step 9 with every optimizer 5 ms late."""
    start = {key: times[0] / 1e3 for key, times in TINY.items()}
    end = {key: times[1] / 1e3 for key, times in TINY.items()}
    late = {key: 0.005 if key[2] == "optimizer" else 0.0 for key in TINY}
    delayed = ({key: start[key] + late[key] for key in TINY}, {key: end[key] + late[key] for key in TINY})
    return frame({9: delayed, 7: (start, end)})


def write(folder: Path, table: pd.DataFrame, shape: tuple[int, int], name: str = "T") -> Path:
    """Write a recording of shape (dp size, pp size); tp 2, which only the ranks' numbers show."""
    path = folder / f"trace-{name}.parquet"
    table.to_parquet(path)
    dp_size, pp_size = shape
    sizes = {"dp_size": dp_size, "dsp_size": 1, "pp_size": pp_size, "tp_size": 2, "vpp_size": 1}
    lines = [f"trial_name: {name}", "run_id: 0", *(f"{key}: {value}" for key, value in sizes.items())]
    (folder / f"meta-{name}.yaml").write_text("\n".join([*lines, f"world_size: {2 * dp_size * pp_size}", ""]))
    return path


def recorded(shape: Shape, works: Mapping[int, Step], delays: Mapping[int, Step] | None = None) -> pd.DataFrame:
    """The recording of a job whose ops take `works` (s) in each step, in float64."""
    steps = {step: run(shape, work, delays[step] if delays else None) for step, work in works.items()}
    return frame(steps, "float64")


def works(shape: Shape, steps: int, take: Callable[[Key, int], float]) -> dict[int, dict[Key, float]]:
    """What each op takes in each step, by `take(op, step)`."""
    return {step: {key: take(key, step) for key in shape.keys()} for step in range(steps)}  # noqa: SIM118


def drawn(shape: Shape, steps: int, seed: int, most: float) -> dict[int, dict[Key, float]]:
    """Random times up to `most` for every op but gc, which takes none."""
    rng = np.random.default_rng(seed)
    return works(shape, steps, lambda key, _: 0.0 if key.optype == "gc" else float(rng.uniform(1e-4, most)))
