"""``python -m benchmarks.child TRACE REPEAT``: analyse a file and print seconds and the process's peak memory."""

from __future__ import annotations

import json
import resource
import sys
import time

import steptime


def main() -> None:
    """Analyse, measure, print one line of JSON."""
    path, repeat = sys.argv[1], int(sys.argv[2])
    seconds = []
    for _ in range(repeat):
        before = time.perf_counter()
        steptime.analyze([path])
        seconds.append(time.perf_counter() - before)
    # Linux gives KiB, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}))


if __name__ == "__main__":
    main()
