"""A folder for the sockets of real processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    """Of its own for each module, and short wherever pytest keeps its folders: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="steptime-", dir="/tmp") as folder:
        yield Path(folder)
