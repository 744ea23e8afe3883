"""Real jobs without a fault must not capture themselves: ``python -m tests.capture.clean_runs``, on a quiet machine.

Each run is four gloo ranks under `steptime.watch` for 300 steps of 30 ms that each rank draws with a jitter of 10 %.
Prints a line for each run; exit code 1 if more than one capture was started in all (issue 7).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from steptime.capture.request import captures
from tests.capture.watched_job import Settings, run_job

STEPS, STEP_MS, JITTER = 300, 30.0, 0.1
#: False captures allowed in all runs.
ALLOWED = 1


def main() -> int:
    """Run the jobs one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    given = parser.parse_args()
    false = ended_well = 0
    for run in range(given.seed, given.seed + given.runs):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            ended = run_job(out, Settings(steps=STEPS, step_ms=STEP_MS, jitter=JITTER, seed=run))
            started = captures(out / "captures")
        false += len(started)
        ended_well += ended.codes == [0] * 4
        sys.stdout.write(f"run {run}: exit codes {ended.codes}, captures: {', '.join(started) or 'none'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{false} false captures in {given.runs} runs of {STEPS} steps (at most {ALLOWED})\n")
    return 0 if false <= ALLOWED and ended_well == given.runs else 1


if __name__ == "__main__":
    raise SystemExit(main())
