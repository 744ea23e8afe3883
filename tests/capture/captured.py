"""What a captured file says, by its text alone."""

from __future__ import annotations

import gzip
import re
from pathlib import Path


def text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def marks(path: Path) -> list[int]:
    """The numbers of the steps that are marked, in order."""
    return [int(number) for number in re.findall(r'"ProfilerStep#(\d+)"', text(path))]
