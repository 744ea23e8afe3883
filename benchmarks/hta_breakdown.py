"""``python -m benchmarks.hta_breakdown TRACE``: what a user of HTA writes to get the breakdown of one rank."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path


def breakdown(path: Path) -> object:
    """HTA's load and temporal breakdown of one file, as rank 0: a DataFrame."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    return analysis.get_temporal_breakdown(visualize=False)


def silence() -> None:
    """Keep HTA's log and warnings off the terminal; printing them would be charged to it."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    silence()
    breakdown(Path(sys.argv[1]))
