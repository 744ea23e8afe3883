"""Twenty injected regressions and what the first line of their diff names: ``python -m tests.diff.regressions``.

Each fault of the simulator that makes a step longer is injected alone into a clean job; the job with it is compared
with the job without it, same seed. What is right is the simulator's truth, and for kernels and collectives what the
written traces hold, read here as plain JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import steptime
from steptime.diff.compare import diff_reports
from steptime.model import Diff, Part
from steptime.report.diff_words import first_line
from steptime.simulate import Truth, simulate
from tests.matrix.scenarios import HELD_OUT_SEEDS, HURT_RECORDINGS, INJECTIONS, Cell

#: Fewer tokens make the step shorter: no regression of the step, but another job.
_NO_REGRESSION = ("tiny_batch",)
#: Of all kinds that make a step longer the first layout of each, and the variants that strike one rank as extras.
CELLS = {
    name: Cell(one.layouts[0], (name,))
    for name, one in INJECTIONS.items()
    if name not in HURT_RECORDINGS + _NO_REGRESSION
}
TWENTY = [name for name in CELLS if not name.endswith("_one")]
#: A slow link makes every member of its ring slow: there is a collective to name, and no rank.
_NO_RANK = ("slow_link",)


@dataclass(frozen=True)
class Named:
    """What the first line names of one regression. None: there is none to name."""

    name: str
    line: str
    slice_right: bool
    rank_right: bool | None
    kernel_right: bool | None
    collective_right: bool | None
    exact: bool
    expected: str

    @property
    def right(self) -> bool:
        """Whether everything that there is to name is named."""
        named = (self.slice_right, self.rank_right, self.kernel_right, self.collective_right, self.exact)
        return all(one is not False for one in named)


def compare(name: str, seed: int) -> Named:
    """Simulate, analyse and compare one regression."""
    cell = CELLS[name]
    with tempfile.TemporaryDirectory() as folder:
        clean, faulty = Path(folder) / "clean", Path(folder) / "faulty"
        simulate(cell.scenario(without=(name,)), clean, seed)
        truth = simulate(cell.scenario(), faulty, seed)
        options = steptime.Options(replay=False)
        a, b = (steptime.analyze([one], options) for one in (clean, faulty))
        diff = diff_reports(a, b)
        return _judge(name, diff, truth, (clean, faulty))


def _judge(name: str, diff: Diff, truth: Truth, folders: tuple[Path, Path]) -> Named:
    line = first_line(diff)
    assert truth.top_leaf is not None
    slice_id = truth.top_leaf.partition("/")[0]
    expected = [slice_id]
    first = diff.reasons[0]
    items = [one.item for one in diff.reasons if one.item is not None]
    rank = kernel = collective = None
    if INJECTIONS[name].one_rank and name not in _NO_RANK:
        (culprit,) = truth.culprits
        expected.append(f"rank {culprit}")
        rank = f"rank {culprit}" in line
    elif slice_id in ("kernels", "recompute"):
        grown = _grown(folders, _kernel)
        expected.append(grown)
        kernel = any(one.what == "kernel" and one.key == grown for one in items)
    elif slice_id == "exposed_comm":
        grown = _grown(folders, _collective)
        expected.append(grown)
        collective = f"({grown})" in line and truth.top_leaf in line
    sliced, exact = first.key.partition("/")[0] == slice_id, _exact(diff.whole)
    return Named(name, line, sliced, rank, kernel, collective, exact, ", ".join(expected))


def _exact(part: Part) -> bool:
    inside = not part.parts or sum(one.change_units for one in part.parts) == part.change_units
    return inside and all(_exact(one) for one in part.parts)


def _grown(folders: tuple[Path, Path], named: Any) -> str:
    """The name whose device time grew most from the first folder's traces to the second's."""
    time: dict[str, float] = defaultdict(float)
    for sign, folder in zip((-1, 1), folders, strict=True):
        for file in sorted(folder.glob("rank*.json.gz")):
            for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]:
                if event.get("cat") == "kernel" and (name := named(event)) is not None:
                    time[name] += sign * event["dur"]
    return max(time, key=lambda name: time[name])


def _kernel(event: dict[str, Any]) -> str | None:
    name: str = event["name"]
    return None if name.startswith("nccl") else name


def _collective(event: dict[str, Any]) -> str | None:
    group: str | None = event["args"].get("Process Group Description")
    return group


def row(one: Named) -> str:
    """A regression in two lines."""
    marks = {True: "right", False: "WRONG", None: "-"}
    told = [marks[value] for value in (one.slice_right, one.rank_right, one.kernel_right, one.collective_right)]
    head = f"{one.name:18} slice {told[0]:6} rank {told[1]:6} kernel {told[2]:6} collective {told[3]:6}"
    return f"{head} {'exact' if one.exact else 'INEXACT'}  expected {one.expected}\n    {one.line}"


def main(arguments: Sequence[str]) -> int:
    """Run all and return 1 if one of the twenty is not named rightly."""
    parser = argparse.ArgumentParser(prog="python -m tests.diff.regressions", description=__doc__)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEEDS[0])
    parser.add_argument("--only", default="", help="names that hold one of these")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else [""]
    found = []
    for name in CELLS:
        if any(part in name for part in wanted):
            found.append(compare(name, options.seed))
            sys.stdout.write(row(found[-1]) + "\n")
            sys.stdout.flush()
    for title, names in (("of the twenty", TWENTY), ("with the variants on one rank", list(CELLS))):
        mine = [one for one in found if one.name in names]
        sys.stdout.write(f"{sum(one.right for one in mine)} of {len(mine)} named rightly {title}\n")
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
