"""`steptime crosscheck`: HTA is really run, on its own traces and on built ones with figures worked out by hand."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from steptime import cli
from steptime.crosscheck.compare import crosscheck
from steptime.crosscheck.result import FIGURES, Cause, Crosscheck, Kind, Row
from steptime.timeline.summary import Request, summarize
from steptime.trace.parse import parse
from tests.builders import TraceBuilder

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason="HTA (the extra `crosscheck`) is not installed"
)

_HTA_TRACES = Path(__file__).parent.parent.parent / "shared" / "public_traces" / "hta"
_CONTROL = "trace_diff/control/control"
_FILTER_0 = "trace_filter/sampled_rank-0"
_FILTER_1 = "trace_filter/sampled_rank-1"
_ALEXNET = "critical_path/alexnet/benchmark_result_2869224_1695835535_trace"
_EVENT_SYNC = "critical_path/cuda_event_sync/event_sync_trace"
_NCCL = "nccl_parser_config/nccl_data"
_NS = "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace"
_QUEUE = "negative_queue_length_values_check/rank0"
_AMD = "amd_trace/mi250_minitoy_train_ROCm6_2_kineto"
_TRITON = "triton_example/triton_example"


def _shared(name: str) -> Path:
    path = _HTA_TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("HTA's traces (../shared/public_traces/hta) are not there")
    return path


@cache
def _compared(name: str, keep_ns: bool = False) -> Crosscheck:
    """The comparison on one of HTA's traces; `keep_ns` sets HTA's own switch against its rounding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1" if keep_ns else "0")
        return crosscheck(str(_shared(name)))


def _rows(result: Crosscheck) -> dict[str, Row]:
    return {row.figure: row for row in result.rows}


def _causes(result: Crosscheck) -> set[Cause]:
    return {effect.cause for row in result.rows for effect in row.effects}


def _assert_effects_add_up(result: Crosscheck) -> None:
    assert [row.figure for row in result.rows] == list(FIGURES)
    for row in result.rows:
        assert row.steptime_ns + sum(effect.ns for effect in row.effects) == row.hta_ns, row.figure


# Agreement on HTA's own traces: both figures come out of the two tools.


@pytest.mark.parametrize(
    ("name", "keep_ns", "kinds"),
    [
        (_CONTROL, False, {"compute", "communication", "copy"}),
        (_FILTER_0, False, {"compute", "communication", "copy"}),
        (_FILTER_1, False, {"compute", "communication", "copy"}),
        (_ALEXNET, False, {"compute", "copy"}),
        # By itself HTA cuts these to whole microseconds; it has a switch that makes it stop.
        (_NCCL, True, {"compute", "communication", "copy"}),
        (_NS, True, {"compute", "copy"}),
        (_AMD, True, {"compute", "copy"}),
    ],
)
def test_hta_agrees_within_half_a_percent(name: str, keep_ns: bool, kinds: set[str]) -> None:
    rows = _rows(_compared(name, keep_ns))
    assert {figure for figure in ("compute", "communication", "copy") if rows[figure].hta_ns > 0} == kinds
    for figure in FIGURES:
        row = rows[figure]
        assert abs(row.hta_ns - row.steptime_ns) <= 0.005 * row.steptime_ns, figure
        assert row.agrees


def _ask_hta(path: Path) -> tuple[dict[str, float], float | None]:
    """HTA's figures in µs straight from its public functions, and its overlap in percent if anything communicates."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis({0: str(path)}, str(path.parent), include_last_profiler_step=True)
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    breakdown = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)[0]
    parts = dict(zip(breakdown["kernel_type"], breakdown["sum"], strict=True))

    def with_kinds(*wanted: str) -> float:
        return float(sum(us for kinds, us in parts.items() if set(wanted) <= set(kinds.split(" overlapping "))))

    figures = {
        "compute": float(times["compute_time(us)"]),
        "communication": with_kinds("COMMUNICATION"),
        "copy": with_kinds("MEMORY"),
        "overlap": with_kinds("COMPUTATION", "COMMUNICATION"),
        "idle": float(times["idle_time(us)"]),
        "non_compute": float(times["non_compute_time(us)"]),
    }
    if not figures["communication"]:  # HTA divides by it
        return figures, None
    return figures, float(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"][0])


@pytest.mark.parametrize("name", [_CONTROL, _FILTER_0, _FILTER_1, _ALEXNET, _NCCL, _QUEUE, _EVENT_SYNC])
def test_the_column_of_hta_is_what_its_functions_return(name: str) -> None:
    path = _shared(name)
    expected, overlap_pctg = _ask_hta(path)
    rows = _rows(_compared(name))
    assert {figure: rows[figure].hta_ns / 1000 for figure in FIGURES} == expected
    if overlap_pctg is not None:
        percent = 100 * rows["overlap"].hta_ns / rows["communication"].hta_ns
        assert percent == pytest.approx(overlap_pctg, abs=0.0051)  # HTA rounds it to 0.01


@pytest.mark.parametrize("name", [_CONTROL, _FILTER_0, _FILTER_1, _ALEXNET])
def test_the_column_of_steptime_is_what_its_analysis_finds(name: str) -> None:
    # In these files HTA's interval holds all device events, so the totals of the recording are the figures.
    path = _shared(name)
    totals = summarize(parse(str(path)), Request()).devices[0].totals
    assert totals is not None
    rows = _rows(_compared(name))
    assert [rows[figure].steptime_ns for figure in ("compute", "communication", "copy")] == [
        totals.compute_ns,
        totals.comm_ns,
        totals.copy_ns,
    ]
    assert rows["overlap"].steptime_ns == totals.comm_ns - totals.comm_exposed_ns


# Differences on HTA's own traces.


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        (_CONTROL, set()),
        (_FILTER_0, set()),
        (_FILTER_1, set()),
        (_ALEXNET, {Cause.NOT_WORK}),
        (_EVENT_SYNC, {Cause.KINDS, Cause.NOT_WORK}),
        (_TRITON, {Cause.NOT_WORK}),
        (_QUEUE, {Cause.UNLAUNCHED}),
        (_NCCL, {Cause.ROUNDING}),
        (_NS, {Cause.ROUNDING}),
        (_AMD, {Cause.ROUNDING}),
    ],
)
def test_every_difference_is_explained(name: str, causes: set[Cause]) -> None:
    result = _compared(name)
    assert _causes(result) == causes
    assert all(row.explained for row in result.rows)
    _assert_effects_add_up(result)


def test_the_events_that_hta_leaves_out_are_those_without_a_launch() -> None:
    path = _shared(_QUEUE)
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    # Counted from the file: device events whose correlation no call has.
    launches = {e["args"]["correlation"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    lost = [e for e in device if e["args"]["correlation"] not in launches]
    nccl = [e for e in lost if e["name"].startswith("nccl")]
    kernels = [e for e in lost if e["cat"] == "kernel"]
    rows = _rows(_compared(_QUEUE))
    assert len(lost) == 872
    assert rows["idle"].effects[0].count == len(lost)
    assert rows["communication"].effects[0].count == len(nccl)
    assert rows["compute"].effects[0].count == len(kernels) - len(nccl)


# Built traces: the figures are worked out by hand, in µs.


def _built(builder: TraceBuilder, folder: Path, name: str = "rank0.json") -> Crosscheck:
    return crosscheck(str(builder.write(folder / name)))


def _whole() -> TraceBuilder:
    """A trace in whole microseconds with a kernel [100, 200), one step and its launch."""
    builder = TraceBuilder(dialect="integer").step(1, at=0, for_=1_000)
    return builder.kernel("gemm", at=100, for_=100, launch_at=10)


def _figures(result: Crosscheck) -> dict[str, tuple[float, float]]:
    """HTA's and steptime's figure in µs where one of them is not zero."""
    return {
        row.figure: (row.hta_ns / 1000, row.steptime_ns / 1000) for row in result.rows if row.hta_ns or row.steptime_ns
    }


def test_same_definitions_same_figures(tmp_path: Path) -> None:
    builder = (
        _whole().collective("allreduce", at=150, for_=150, launch_at=20).copy("HtoD", at=320, for_=30, launch_at=30)
    )
    result = _built(builder, tmp_path)
    # compute [100, 200), communication [150, 300), copy [320, 350): idle [300, 320), and 50 of communication hidden.
    assert _figures(result) == {
        "compute": (100, 100),
        "communication": (150, 150),
        "copy": (30, 30),
        "overlap": (50, 50),
        "idle": (20, 20),
        "non_compute": (130, 130),
    }
    assert result.interval_ns == 250_000
    assert _causes(result) == set()


def test_hta_puts_two_devices_on_one_timeline(tmp_path: Path) -> None:
    builder = TraceBuilder(dialect="integer", devices=2).step(1, at=0, for_=1_000)
    builder.kernel("gemm", at=100, for_=100, launch_at=10).kernel("gemm", at=150, for_=100, launch_at=20, device=1)
    result = _built(builder, tmp_path)
    # [100, 200) on one and [150, 250) on the other: 200 together, 150 on one timeline; idle 50 + 50 against 0.
    assert _figures(result) == {"compute": (150, 200), "idle": (0, 100)}
    assert _causes(result) == {Cause.DEVICES}


def test_hta_goes_by_the_name(tmp_path: Path) -> None:
    name = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"
    result = _built(_whole().kernel(name, at=200, for_=40, launch_at=20), tmp_path)
    assert _figures(result) == {"compute": (140, 100), "communication": (0, 40), "non_compute": (0, 40)}
    (effect,) = _rows(result)["communication"].effects
    assert (effect.cause, effect.ns, effect.count) == (Cause.KINDS, -40_000, 1)
    assert effect.example is not None
    assert (effect.example.name, effect.example.steptime, effect.example.hta) == (
        name,
        Kind.COMMUNICATION,
        Kind.COMPUTE,
    )


def test_hta_leaves_out_what_was_launched_before_the_recording(tmp_path: Path) -> None:
    # HTA filters from the second step mark on. The lost kernel lies inside the interval: [200, 230) of [100, 300).
    builder = _whole().step(2, at=1_000, for_=1_000)
    builder.kernel("gemm", at=200, for_=30).kernel("gemm", at=250, for_=50, launch_at=20)
    result = _built(builder, tmp_path)
    assert _figures(result) == {"compute": (150, 180), "idle": (50, 20)}
    assert _causes(result) == {Cause.UNLAUNCHED}


def test_hta_counts_records_of_waiting(tmp_path: Path) -> None:
    # Busy, but neither compute nor idle, for HTA: [200, 260) of [100, 260).
    result = _built(_whole().sync_record("Stream Sync", at=200, for_=60), tmp_path)
    assert _figures(result) == {"compute": (100, 100), "idle": (0, 60), "non_compute": (60, 0)}
    assert _causes(result) == {Cause.NOT_WORK}


def test_hta_cuts_to_whole_microseconds(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, at=0, for_=1_000).kernel("gemm", at=100, for_=100, launch_at=10)
    # [210.3, 215.8) becomes [211, 215): 4 µs of 5.5, and 1.5 more of idle.
    builder.kernel("gemm", at=210.3, for_=5.5, launch_at=20).kernel("gemm", at=220, for_=80, launch_at=30)
    result = _built(builder, tmp_path)
    assert _figures(result) == {"compute": (184, 185.5), "idle": (16, 14.5)}
    assert _causes(result) == {Cause.ROUNDING}


def test_rounding_can_turn_an_event_inside_out(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, at=0, for_=1_000).kernel("gemm", at=100, for_=100, launch_at=10)
    # [210.3, 210.8) becomes [211, 210), which HTA adds as -1 µs.
    builder.kernel("gemm", at=210.3, for_=0.5, launch_at=20).kernel("gemm", at=220, for_=80, launch_at=30)
    result = _built(builder, tmp_path)
    assert _figures(result) == {"compute": (179, 180.5), "idle": (21, 19.5)}
    assert _causes(result) == {Cause.ROUNDING}


def test_hta_counts_what_can_not_be_true(tmp_path: Path) -> None:
    # The second kernel claims [200, 900) though two later ones of its stream start at 300 and 400 (case A21).
    builder = _whole()
    for at, length, launch in ((200, 700, 20), (300, 100, 30), (400, 100, 40)):
        builder.kernel("gemm", at=at, for_=length, launch_at=launch)
    result = _built(builder, tmp_path)
    assert _figures(result) == {"compute": (800, 400), "idle": (0, 400)}
    assert _causes(result) == {Cause.CLEANED}


def test_a_difference_without_a_known_reason_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A kernel [250, 275) that names no stream is none for HTA; no profiler is known to write one. 102 is its launch.
    builder = _whole().runtime("cudaLaunchKernel", at=20, for_=5).kernel("gemm", at=300, for_=10, launch_at=30)
    where = {"pid": 0, "tid": 7, "ts": builder.at_ns(250) // 1000, "dur": 25}
    builder.raw({"ph": "X", "cat": "kernel", "name": "gemm", **where, "args": {"device": 0, "correlation": 102}})
    path = builder.write(tmp_path / "rank0.json")
    rows = _rows(crosscheck(str(path)))
    assert rows["compute"].difference_ns == -25_000
    assert not rows["compute"].explained
    assert cli.main(["crosscheck", str(path)]) == 2
    out, err = capsys.readouterr()
    assert "differs for a reason that is not known" in out
    assert "explained" not in out
    assert err.startswith(f"steptime: {path}: no known difference in definition explains HTA's figure for compute")
    assert err.count("\n") == 1


def test_a_time_that_no_int64_holds_leaves_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = {"pid": 0, "tid": 7, "ts": 9_300_000_000_000_000, "dur": 25}  # µs; int64 nanoseconds end at 9.22e15
    event = {"ph": "X", "cat": "kernel", "name": "gemm", **where, "args": {"device": 0, "stream": 7, "correlation": 9}}
    path = _whole().raw(event).write(tmp_path / "rank0.json")
    assert cli.main(["crosscheck", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"steptime: {path}: an event's time is out of reach of nanoseconds")


@pytest.mark.parametrize("pack", ["bare", "gz", "zip", "no suffix"])
def test_files_that_hta_itself_does_not_take(tmp_path: Path, pack: str) -> None:
    builder = _whole()
    builder.bare_array = pack == "bare"
    path = builder.write(tmp_path / ("rank0.json.gz" if pack == "gz" else "rank0.json"))
    if pack == "zip":
        with zipfile.ZipFile(tmp_path / "rank0.zip", "w") as archive:
            archive.write(path, "rank0.json")
        path = tmp_path / "rank0.zip"
    if pack == "no suffix":
        path = path.rename(tmp_path / "rank0.trace")
    assert _figures(crosscheck(str(path))) == {"compute": (100, 100)}


# The command.


def _run(*words: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    code = f"import sys; {before}; from steptime.cli import main; sys.exit(main({['crosscheck', *words]!r}))"
    repo = Path(__file__).parent.parent
    return subprocess.run([sys.executable, "-c", code], cwd=repo, capture_output=True, text=True, check=False)


def test_it_prints_both_side_by_side_and_nothing_of_htas_noise(tmp_path: Path) -> None:
    builder = _whole().sync_record("Stream Sync", at=200, for_=60)
    result = _run(str(builder.write(tmp_path / "rank0.json")))
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[4].split() == ["µs", "HTA", "steptime", "difference"]
    rest = " ".join(" ".join(lines[5:]).split())
    assert rest == (
        "compute 100.0 100.0 0 % communication 0 0 0 % copy and memset 0 0 0 % communication under compute 0 0 0 % "
        "idle 0 60.0 -100 % HTA takes 1 record with a stream for work of the device: Stream Sync (-60.0 µs). "
        "busy, not computing 60.0 0 only HTA "
        "HTA takes 1 record with a stream for work of the device: Stream Sync (+60.0 µs). "
        "Every difference is within 0.5 % or explained."
    )


@pytest.mark.parametrize("name", [_CONTROL, _ALEXNET, _EVENT_SYNC, _QUEUE, _NCCL, _AMD, _TRITON])
def test_it_fits_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["crosscheck", str(_shared(name))]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert "Every difference is within 0.5 % or explained." in out
    assert ("HTA_DISABLE_NS_ROUNDING=1" in out) == (name in (_NCCL, _AMD))


def test_without_hta_it_says_what_to_install(tmp_path: Path) -> None:
    result = _run(str(_whole().write(tmp_path / "rank0.json")), before="sys.modules['hta'] = None")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith("pip install 'steptime[crosscheck]'\n")
    assert result.stderr.count("\n") == 1


def test_it_refuses_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["crosscheck", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith(f"steptime: {tmp_path}/none.json: ")


def test_it_refuses_a_rank_without_a_gpu(capsys: pytest.CaptureFixture[str], sample: Path) -> None:
    trace = sorted(sample.glob("*.json.gz"))[0]
    assert cli.main(["crosscheck", str(trace)]) == 2
    assert "no GPU events" in capsys.readouterr().err


def test_it_refuses_several_traces(capsys: pytest.CaptureFixture[str], sample: Path) -> None:
    assert cli.main(["crosscheck", str(sample)]) == 2
    assert "holds 2 traces; name one of them" in capsys.readouterr().err


def test_it_says_where_hta_gives_up(capsys: pytest.CaptureFixture[str]) -> None:
    # HTA's rounding makes kernels overlap that did not, and its own assertion fails.
    path = _HTA_TRACES.parent / "tracelens" / "h100" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    if not path.exists():
        pytest.skip("../shared/public_traces/tracelens is not there")
    assert cli.main(["crosscheck", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "HTA can't analyse this file (AssertionError: assert non_compute_time >= 0)" in err
    assert err.count("\n") == 1
