"""Versions that a file says, and work that CUDA graphs launched, against the file read as plain JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import steptime

TRACES = Path(__file__).parents[3] / "shared" / "public_traces"
_LM = TRACES / "small_lm_rtx3060"


def _inputs(path: Path) -> steptime.Report:
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    return steptime.analyze([path], steptime.Options(replay=False))


def _written(tmp_path: Path, header: dict[str, object]) -> Path:
    ops = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10.0 * at, "dur": 5.0, "args": {}}
        for at in range(4)
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": ops}))
    return path


def test_versions_are_those_of_the_header(tmp_path: Path) -> None:
    """CUDA numbers its versions 1000 * major + 10 * minor (cudaRuntimeGetVersion)."""
    header = {
        "cuda_driver_version": 13020,
        "cuda_runtime_version": 12080,
        "torch_version": "2.9.0",
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "nccl_version": "2.27.5"},
    }
    (source,) = _inputs(_written(tmp_path, header)).inputs
    assert source.software == {"driver": "CUDA 13.2", "cuda": "CUDA 12.8", "torch": "2.9.0", "nccl": "2.27.5"}


def test_odd_versions_are_kept_as_they_are_or_left_out(tmp_path: Path) -> None:
    header = {"hip_runtime_version": 60342134, "cuda_driver_version": "unknown", "torch_version": ["2.9"]}
    (source,) = _inputs(_written(tmp_path, header)).inputs
    assert source.software == {"hip": "60342134", "driver": "unknown"}


@pytest.mark.parametrize("file", ["trace_04.json.gz", "trace_05.json.gz"])
def test_what_graphs_launched_is_what_their_launches_are_linked_to(file: str) -> None:
    (source,) = _inputs(_LM / file).inputs
    events = json.loads(gzip.decompress((_LM / file).read_bytes()))["traceEvents"]
    launches = {one["args"]["correlation"] for one in events if one.get("name", "").startswith("cudaGraphLaunch")}
    device = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    expected = sum(one["args"]["correlation"] in launches for one in device)
    assert source.quality is not None
    assert source.quality.graph_launched == expected
    assert (expected > 0) == (file == "trace_05.json.gz")
