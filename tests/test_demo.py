"""The demo: its files are what its scenario gives, and its report is the walkthrough of a job at 28 % MFU.

"Your 8,000-GPU run is at 28% MFU. Walk me through how you would find the missing time": what the scenario injects is
what the report must name, in the walkthrough's order.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.simulate import Truth, load_scenario, simulate

#: Where the mathematics library of another platform rounds a length differently, times move by single nanoseconds.
ROUNDING_US = 1.0


@pytest.fixture(scope="module")
def demo(repo: Path) -> Path:
    return repo / "traces" / "demo_28_mfu"


@pytest.fixture(scope="module")
def again(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """The scenario, simulated anew."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, simulate(load_scenario(repo / "traces" / "scenarios" / "demo.toml"), folder)


@pytest.fixture(scope="module")
def report(demo: Path) -> steptime.Report:
    return steptime.analyze([demo])


def _trace(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


def _untimed(trace: dict[str, Any]) -> dict[str, Any]:
    events = [
        {key: value for key, value in event.items() if key not in ("ts", "dur")} for event in trace["traceEvents"]
    ]
    return trace | {"traceEvents": events}


def test_the_files_are_what_the_scenario_gives(demo: Path, again: tuple[Path, Truth]) -> None:
    """Compared decompressed, since libraries compress differently."""
    folder, _ = again
    names = sorted(path.name for path in demo.iterdir())
    assert names == sorted(path.name for path in folder.glob("rank*.json.gz"))
    assert len(names) == 16
    for name in ("rank2.json.gz", "rank11.json.gz"):
        kept, made = _trace(demo / name), _trace(folder / name)
        assert _untimed(kept) == _untimed(made)
        for key in ("ts", "dur"):
            before = [event.get(key, 0.0) for event in kept["traceEvents"]]
            assert [event.get(key, 0.0) for event in made["traceEvents"]] == pytest.approx(
                before, rel=0, abs=ROUNDING_US
            )


def test_the_files_are_small_enough_for_a_repository(demo: Path) -> None:
    assert sum(path.stat().st_size for path in demo.iterdir()) < 5_000_000
