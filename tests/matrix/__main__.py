"""The matrix of scenarios against the simulator's truth: ``python -m tests.matrix``, from the root of the checkout.

Every fault alone on several layouts, random pairs of faults, and clean jobs; each is simulated, analysed and compared
with what the simulator knows. Prints a line for each job, then the totals beside what is asked for; exit code 1 if one
of them is missed. ``--what-if`` compares what a replay says of each job without its faults instead (`what_if`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

from tests.matrix import what_if
from tests.matrix.judged import LEAF_TOLERANCE, NOT_ASKED, RIGHT, WRONG, Judged, judge, masked
from tests.matrix.scenarios import HELD_OUT_SEEDS, PAIRS, TUNING_SEEDS, Cell, clean_cells, drawn_pairs, singles

#: Share of single faults that must be the first cause named (issue 4).
RANKED_FIRST = 0.95


def row(one: Judged) -> str:
    """A job in one line."""
    places = ",".join("-" if place is None else str(place) for place in one.places.values()) or "-"
    worst = f"{100 * one.worst.off:+6.2f} % {one.worst.leaf} (rank {one.worst.rank}, step {one.worst.step})"
    text = f"{one.cell.name:40} saves {100 * one.saved:5.1f} %  place {places:4} culprit {one.culprit:10} leaf {worst}"
    return f"{text}\n    {'; '.join(one.verdicts) or 'nobody'} | {', '.join(one.first)}"


def _pairs(pool: Executor, seed: int) -> Iterator[Cell]:
    """Pairs of which neither fault hides the other."""
    found = 0
    for cell in drawn_pairs():
        if not pool.submit(masked, cell, seed).result():
            yield cell
            found += 1
        if found == PAIRS:
            return


#: Faults that cost less than this share of the step are none.
LEAST_SAVED = 0.01


def totals(
    alone: Sequence[Judged], pairs: Sequence[Judged], clean: Sequence[Judged]
) -> list[tuple[str, int, int, bool]]:
    """What is asked for: its name, how many jobs meet it, of how many, and whether that is enough."""
    leaves = [abs(one.worst.off) <= LEAF_TOLERANCE for one in alone]
    # Where mending the fault saves nothing there is nothing to rank.
    first = [one.places[kind] == 1 for one in alone if one.saved >= LEAST_SAVED for kind in one.places]
    second = [place is not None and place <= 2 for one in pairs for place in one.places.values()]
    culprit = [one.culprit == RIGHT for one in (*alone, *pairs) if one.culprit in (RIGHT, WRONG)]
    innocent = [not one.innocent for one in (*alone, *pairs, *clean)]
    asked = (
        ("leaves within 2 % of the step, every rank and step", leaves, 1.0),
        ("single faults ranked first", first, RANKED_FIRST),
        ("faults of pairs among the first two", second, 1.0),
        ("culprits named", culprit, 1.0),
        ("jobs without an innocent straggler", innocent, 1.0),
        ("clean jobs without a straggler", [not one.innocent for one in clean], 1.0),
    )
    return [(name, sum(each), len(each), sum(each) >= share * len(each)) for name, each, share in asked]


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    seeds = f"tune on {', '.join(map(str, TUNING_SEEDS))}; held out: {', '.join(map(str, HELD_OUT_SEEDS))}"
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEEDS[0], help=f"of all jobs ({seeds})")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--clean", type=int, default=39, help="clean jobs (default 39: each layout three times)")
    parser.add_argument("--only", default="", help="single faults whose name holds one of these, no pairs")
    parser.add_argument("--what-if", action="store_true", help="predict the job without its faults (`what_if`)")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else []
    if options.what_if:
        return what_if.run(options.seed, options.jobs, wanted)
    cells = [cell for cell in singles() if not wanted or any(part in cell.name for part in wanted)]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:

        def run(jobs: Sequence[tuple[Cell, int]]) -> list[Judged]:
            found = []
            for one in pool.map(judge, *zip(*jobs, strict=True)) if jobs else ():
                found.append(one)
                sys.stdout.write(row(one) + "\n")
                sys.stdout.flush()
            return found

        alone = run([(cell, options.seed) for cell in cells])
        pairs = [] if wanted else run([(cell, options.seed) for cell in _pairs(pool, options.seed)])
        clean = run([(cell, options.seed + extra) for cell, extra in clean_cells(options.clean)])
    result = totals(alone, pairs, clean)
    for name, met, count, enough in result:
        sys.stdout.write(f"{'ok  ' if enough else 'MISS'} {met:4} of {count:4}  {name}\n")
    unknown = sum(one.culprit not in (RIGHT, WRONG, NOT_ASKED) for one in (*alone, *pairs))
    sys.stdout.write(
        f"{len(alone)} single faults, {len(pairs)} pairs, {len(clean)} clean jobs; can't tell: {unknown}\n"
    )
    return 0 if all(enough for *_, enough in result) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
