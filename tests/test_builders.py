"""The builder writes what Kineto writes. The expected texts are copied from kineto_schema.md's rules by hand."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders import BASE_NS, TraceBuilder, to_ns


def events(builder: TraceBuilder, cat: str) -> list[dict[str, Any]]:
    content = json.loads(builder.dumps())
    found = content if isinstance(content, list) else content["traceEvents"]
    return [event for event in found if event.get("cat") == cat]


def test_times_are_exact_decimals_after_the_base() -> None:
    builder = TraceBuilder().op("aten::mm", at=0.001, for_=1234.5)
    text = builder.dumps().decode()
    assert '"ts": 5111842086750.001, "dur": 1234.500' in text
    assert '"baseTimeNanoseconds": 1790857026000000000' in text
    # 1,795,968,868.086750001 s after the epoch: base + ts, added by hand.
    assert builder.at_ns(0.001) == 1_795_968_868_086_750_001
    assert BASE_NS == 1_790_857_026_000_000_000


@pytest.mark.parametrize(("micros", "ns"), [(0, 0), (0.1, 100), (0.001, 1), (1.0005, 1000), (1e7, 10_000_000_000)])
def test_microseconds_to_ns(micros: float, ns: int) -> None:
    assert to_ns(micros) == ns


def test_launch_and_kernel_share_correlation_flow_and_op() -> None:
    builder = TraceBuilder().op("aten::mm", at=10, for_=20).op("aten::outer", at=0, for_=90)
    builder.kernel("gemm", at=100, for_=500, launch_at=15).kernel("lonely", at=700, for_=1)
    gemm, lonely = events(builder, "kernel")
    (launch,) = events(builder, "cuda_runtime")
    assert launch["args"]["correlation"] == gemm["args"]["correlation"] != lonely["args"]["correlation"]
    assert gemm["args"]["External id"] == launch["args"]["External id"] == 1  # aten::mm, the innermost
    assert "External id" not in lonely["args"]
    flows = events(builder, "ac2g")
    assert [(flow["ph"], flow["id"]) for flow in flows] == [("f", 101), ("s", 101), ("f", 102)]
    assert (gemm["pid"], gemm["tid"], launch["pid"], launch["tid"]) == (0, 7, 4000, 4000)


def test_graph_launch_owns_its_kernels() -> None:
    builder = TraceBuilder().graph_launch(at=0, for_=9, kernels=[("a", 10, 5), ("b", 16, 5)])
    (launch,) = events(builder, "cuda_runtime")
    assert launch["name"] == "cudaGraphLaunch"
    correlations = {kernel["args"]["correlation"] for kernel in events(builder, "kernel")}
    assert correlations == {launch["args"]["correlation"]}


def test_collective_has_host_op_annotation_and_kernel_arguments() -> None:
    builder = TraceBuilder(rank=1, world_size=4).collective("allreduce", at=50, for_=9, launch_at=10, seq=3)
    (op,) = events(builder, "cpu_op")
    (annotation,) = events(builder, "user_annotation")
    (kernel,) = events(builder, "kernel")
    assert (op["name"], annotation["name"]) == ("record_param_comms", "nccl:all_reduce")
    assert kernel["args"]["Process Group Ranks"] == op["args"]["Process Group Ranks"] == "[0, 1, 2, 3]"
    assert op["args"]["Rank"] == 1
    assert "Rank" not in kernel["args"]
    assert kernel["args"]["Seq"] == 3


def test_integer_dialect_is_absolute_whole_microseconds() -> None:
    builder = TraceBuilder(dialect="integer", rank=2, world_size=4).step(1, at=3, for_=4)
    text = builder.dumps().decode()
    assert '"ts": 1795968868086753, "dur": 4' in text
    assert "baseTimeNanoseconds" not in text
    assert json.loads(text)["distributedInfo"] == {"backend": "nccl", "rank": 2, "world_size": 4}
    with pytest.raises(ValueError, match="whole microseconds"):
        builder.op("aten::mm", at=0.5, for_=1)


def test_legacy_dialect_has_the_old_names() -> None:
    builder = TraceBuilder(dialect="legacy", bare_array=True).op("aten::mm", at=0, for_=9).step(1, at=0, for_=9)
    builder.kernel("gemm", at=10, for_=5, launch_at=2, launch_for=3).copy("HtoD", at=20, for_=1).memset(at=30, for_=1)
    (kernel,) = events(builder, "Kernel")
    assert kernel["tid"] == "stream 7"
    assert kernel["args"]["external id"] == 1
    assert [event["name"] for event in events(builder, "Operator")] == ["aten::mm", "ProfilerStep#1"]
    assert [event["tid"] for event in events(builder, "Runtime")] == ["4000"]
    assert len(events(builder, "Memcpy")) == len(events(builder, "Memset")) == 1
    assert [flow["ph"] for flow in events(builder, "async")] == ["f", "s", "f", "f"]
    assert isinstance(json.loads(builder.dumps()), list)


def test_flags_say_what_is_inside() -> None:
    plain = json.loads(TraceBuilder(devices=0, distributed_info=False).op("aten::mm", at=0, for_=1).dumps())
    assert plain["deviceProperties"] == []
    assert not {"record_shapes", "with_stack", "distributedInfo"} & plain.keys()
    rich = TraceBuilder(devices=2).op("aten::mm", at=0, for_=1, shapes=[[2, 3], [3, 4]])
    rich.frame("train.py(33): step", at=0, for_=9).frame("train.py(7): load", at=1, for_=2)
    head = json.loads(rich.dumps())
    assert (head["record_shapes"], head["with_stack"], len(head["deviceProperties"])) == (1, 1, 2)
    outer, inner = events(rich, "python_function")
    assert inner["args"]["Python parent id"] == outer["args"]["Python id"]


def test_write_compresses_by_suffix(tmp_path: Path) -> None:
    builder = TraceBuilder().loader(at=0, for_=5).optimizer(at=6, for_=1)
    plain = builder.write(tmp_path / "rank0.json")
    packed = builder.write(tmp_path / "deep" / "rank0.json.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes() == builder.dumps()
    assert re.search(rb'"name": "enumerate\(DataLoader\)#_SingleProcessDataLoaderIter.__next__"', plain.read_bytes())
