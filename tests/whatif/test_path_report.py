"""The path as the report has it: of two ranks worked out by hand, and of simulated jobs with a known culprit."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from steptime.model import CriticalPath
from steptime.pipeline import analyze
from steptime.ranks.counted import Row
from steptime.simulate import Scenario, simulate
from steptime.simulate.truth import Truth
from steptime.timeline.summary import Request, summarize
from steptime.trace.parse import parse
from steptime.whatif.job_graph import job_graph
from steptime.whatif.path_report import with_critical_path
from steptime.whatif.replay import baseline, replay
from steptime.whatif.schedule import schedule
from tests.builders import ORIGIN_NS, TraceBuilder
from tests.simulate.jobs import ns, read
from tests.whatif.replayed import Replayed, replayed

_SCENARIOS = Path(__file__).parents[2] / "traces" / "scenarios"
US, MS = 1_000, 1_000_000
SHIFT_NS = 5_000_123_000


def two_ranks(folder: Path, shift_ns: int = 0) -> list[Path]:
    """Three steps of 1,000 µs; all times in µs from the step's beginning.

    Rank 0: kernel from 20 to 120, all-reduce from 122, optimizer from 474 to 604; rank 1, which is slower: kernel from
    20 to 420, all-reduce from 422, optimizer from 474 to 574. The all-reduce ends at 472 on both. Each host launches at
    10, 20 and 30, waits for the device (it comes back 2 µs after its last kernel), and 4 µs later for data until 995.
    """
    paths = []
    for rank, computes, updates in ((0, 100, 130), (1, 400, 100)):
        trace = TraceBuilder(rank=rank, world_size=2, origin_ns=ORIGIN_NS + rank * shift_ns)
        for number in range(3):
            at = 1000 * number
            back = at + 474 + updates + 2
            trace.step(number, at, 1000)
            trace.kernel("sm90_xmma_gemm_bf16", at + 20, computes, launch_at=at + 10)
            trace.collective("allreduce", at + 22 + computes, 450 - computes, 7, launch_at=at + 20, ranks=[0, 1])
            trace.optimizer(at + 28, 10)
            trace.kernel("adam", at + 474, updates, launch_at=at + 30)
            trace.runtime("cudaDeviceSynchronize", at + 40, back - at - 40)
            trace.loader(back + 4, at + 995 - back - 4)
        paths.append(trace.write(folder / f"rank{rank}.json"))
    return paths


def path_of(job: Replayed) -> CriticalPath:
    path = with_critical_path(job.report, job.job, job.times, job.rows, job.alignment).critical_path
    assert path is not None
    return path


def rows_of(path: CriticalPath) -> list[tuple[int, str, str, int, int, int]]:
    """Rank, where, leaf, start, length, step of each segment."""
    return [
        (path.places[place].rank, path.places[place].where, path.leaves[leaf], start, length, path.steps[step].step)
        for place, leaf, start, length, step in zip(
            path.place, path.leaf, path.start_ns, path.dur_ns, path.step, strict=True
        )
    ]


def test_two_ranks_by_hand(tmp_path: Path) -> None:
    path = path_of(replayed(two_ranks(tmp_path)))
    # Step 1 lasts from 604 to 1604, when rank 0's last kernel of step 0 and 1 ends. Rank 1 waits for data then, which
    # comes at 995; its kernel starts at 1020 and ends at 1420; both end the all-reduce at 1472. The way to step 2 is
    # rank 1's: its optimizer, 1474 to 1574, holds its host until 1576. The path ends with rank 0's optimizer.
    # Between two calls the host's causes stand in the order of the leaves: 415 µs of loader from 576 on, then the 4 µs
    # before it and the 15 after it, in which no op is open.
    head = [
        (1, "host", "host/data_loader", 576 + 415 - 604),
        (1, "host", "host/python", 4 + 15),
        (1, "stream 7", "host/kernel_gap", 10),
        (1, "stream 7", "kernels/matmul", 400),
        (1, "stream 7", "host/kernel_gap", 2),
    ]
    middle = [
        (1, "meeting", "exposed_comm/allreduce", 50),
        (1, "stream 7", "host/kernel_gap", 2),
        (1, "stream 7", "kernels/optimizer", 100),
        (1, "host", "host/sync", 2),
        (1, "host", "host/data_loader", 28),
    ]
    tail = [
        (0, "meeting", "exposed_comm/allreduce", 50),
        (0, "stream 7", "host/kernel_gap", 2),
        (0, "stream 7", "kernels/optimizer", 130),
    ]
    expected, at = [], 0
    for step, rows in ((1, head + middle), (2, head + tail)):
        for rank, where, leaf, length in rows:
            expected.append((rank, where, leaf, at * US, length * US, step))
            at += length
    assert at == 2000
    assert rows_of(path) == expected
    assert path.length_ns == 2000 * US
    assert [(step.step, step.start_ns, step.dur_ns) for step in path.steps] == [
        (1, 0, 1000 * US),
        (2, 1000 * US, 1000 * US),
    ]
    assert [(one.rank, one.where, one.leaf, one.ns) for one in path.totals][:4] == [
        (1, "host", "host/data_loader", (387 + 28 + 387) * US),
        (1, "stream 7", "kernels/matmul", 800 * US),
        (0, "stream 7", "kernels/optimizer", 130 * US),
        (1, "stream 7", "kernels/optimizer", 100 * US),
    ]
    # A transfer is of both.
    assert (None, "meeting", "exposed_comm/allreduce", 100 * US) in [
        (one.rank, one.where, one.leaf, one.ns) for one in path.totals
    ]
    named = {path.leaves[leaf]: path.names[name] for leaf, name in zip(path.leaf, path.name, strict=True)}
    assert named["kernels/matmul"] == "sm90_xmma_gemm_bf16"
    assert named["exposed_comm/allreduce"] == "allreduce (default_pg)"
    assert named["host/data_loader"] == "data loader"


def test_own_times_are_those_of_each_ranks_own_trace(tmp_path: Path) -> None:
    path = path_of(replayed(two_ranks(tmp_path, SHIFT_NS)))
    own = {
        (row[0], row[2], row[5]): at
        for row, at in zip(rows_of(path), path.own_ns, strict=True)
        if row[2] in ("kernels/matmul", "kernels/optimizer")
    }
    # The two clocks are fitted to each other on three all-reduces, good to a nanosecond or two.
    assert own == {
        (1, "kernels/matmul", 1): pytest.approx(ORIGIN_NS + SHIFT_NS + 1020 * US, abs=2),
        (1, "kernels/optimizer", 1): pytest.approx(ORIGIN_NS + SHIFT_NS + 1474 * US, abs=2),
        (1, "kernels/matmul", 2): pytest.approx(ORIGIN_NS + SHIFT_NS + 2020 * US, abs=2),
        (0, "kernels/optimizer", 2): pytest.approx(ORIGIN_NS + 2474 * US, abs=2),
    }


def test_captures_follow_each_other(tmp_path: Path) -> None:
    # One rank, recorded twice: kernels of 100 µs that its host launches at 10, and then waits for.
    rows, paths = [], []
    for capture, first in ((0, 0), (1, 50)):
        trace = TraceBuilder(rank=0)
        for number in range(first, first + 3):
            at = 1000 * number
            trace.step(number, at, 1000).kernel("gemm", at + 20, 100, launch_at=at + 10)
            trace.runtime("cudaDeviceSynchronize", at + 20, 102)
        paths.append(trace.write(tmp_path / f"{capture}.json"))
        file = summarize(parse(str(paths[-1])), Request(replayed=True))
        rows.append(Row(0, capture, file, file.devices[0]))
    job = job_graph(rows, None)
    times = replay(job.graph, schedule(job.graph), baseline(job.graph))[:, 0]
    path = with_critical_path(analyze([str(one) for one in paths]), job, times, rows, None).critical_path
    assert path is not None
    check_sums(path)
    # The first step of each capture is an edge.
    assert [(one.step, one.start_ns) for one in path.steps] == [
        (1, 0),
        (2, 1000 * US),
        (51, 2000 * US),
        (52, 3000 * US),
    ]
    kernels = [
        (at - ORIGIN_NS, start)
        for row, at, start in zip(rows_of(path), path.own_ns, path.start_ns, strict=True)
        if row[2] == "kernels/matmul"
    ]
    # Windows begin where the kernel of the step before ended, at 120.
    assert kernels == [
        (1020 * US, 900 * US),
        (2020 * US, 1900 * US),
        (51_020 * US, 2900 * US),
        (52_020 * US, 3900 * US),
    ]


def check_sums(path: CriticalPath) -> None:
    assert sum(one.ns for one in path.totals) == path.length_ns
    assert sum(one.dur_ns for one in path.steps) == path.length_ns
    assert sum(path.dur_ns) + path.dropped_ns == path.length_ns
    ends = [start + length for start, length in zip(path.start_ns, path.dur_ns, strict=True)]
    assert all(end <= start for end, start in zip(ends, path.start_ns[1:], strict=False))
    assert min(path.dur_ns) > 0
    assert len({(one.rank, one.device, one.where, one.leaf) for one in path.totals}) == len(path.totals)


def simulated(name: str, folder: Path) -> tuple[Replayed, Truth]:
    scenario = msgspec.toml.decode((_SCENARIOS / f"{name}.toml").read_bytes(), type=Scenario)
    truth = simulate(scenario, folder, scenario.seed)
    return replayed(sorted(folder.glob("rank*.json*"))), truth


def computing_by_rank(path: CriticalPath) -> dict[int | None, int]:
    by_rank: dict[int | None, int] = defaultdict(int)
    for one in path.totals:
        if one.leaf == "productive" or one.leaf.startswith(("kernels/", "recompute/")):
            by_rank[one.rank] += one.ns
    return by_rank


@pytest.mark.parametrize(("name", "slow"), [("dp_slow_gpu", 3), ("tp_dp_slow_gpu", 5)])
def test_the_computing_on_the_path_is_the_slow_gpus(name: str, slow: int, tmp_path: Path) -> None:
    path = path_of(simulated(name, tmp_path)[0])
    check_sums(path)
    by_rank = computing_by_rank(path)
    # The scenario's own fault: this rank is throttled.
    assert by_rank[slow] >= 0.9 * sum(by_rank.values())
    assert by_rank[slow] >= 0.5 * path.length_ns


def test_a_loader_is_on_the_path_where_it_delays_launches_hidden_or_not(tmp_path: Path) -> None:
    job, truth = simulated("dp_slow_loader", tmp_path)
    path = path_of(job)
    check_sums(path)
    counted = set(job.report.job.steps)
    exposed = min(
        sum(step.leaves_ns.get("host/data_loader", 0) for step in rank.steps if step.step in counted)
        for rank in truth.ranks
    )
    found = sum(one.ns for one in path.totals if one.leaf == "host/data_loader")
    # The scenario's fault: 20 ms a step, most of them while the device still computes.
    assert exposed <= found <= 20 * MS * len(counted)
    largest = max((one for one in path.totals if one.where == "host"), key=lambda one: one.ns)
    assert largest.leaf == "host/data_loader"


def test_the_path_covers_the_counted_steps(tmp_path: Path) -> None:
    job, _ = simulated("pp_uneven_stages", tmp_path)
    path = path_of(job)
    check_sums(path)
    assert [one.step for one in path.steps] == job.report.job.steps
    # The last rank ends each step: as long as the report's median, which is of all ranks.
    assert path.length_ns / len(path.steps) == pytest.approx(job.report.job.step_time_ns.median, rel=0.03)


def test_what_is_too_much_to_show_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = replayed(two_ranks(tmp_path))
    whole = path_of(job)
    monkeypatch.setattr("steptime.whatif.path_report.MOST_SEGMENTS", 4)
    path = path_of(job)
    check_sums(path)
    assert path.totals == whole.totals
    assert (len(path.dur_ns), path.dropped) == (4, len(whole.dur_ns) - 4)
    assert path.dur_ns == [387 * US, 400 * US, 387 * US, 400 * US]


def test_without_names_of_kernels_their_leaf_is_named(tmp_path: Path) -> None:
    job = replayed(two_ranks(tmp_path))
    rows = []
    for row in job.rows:
        known = row.timeline.dependencies
        assert known is not None
        bare = msgspec.structs.replace(known, what=known.what[:0], texts=[])
        rows.append(msgspec.structs.replace(row, timeline=msgspec.structs.replace(row.timeline, dependencies=bare)))
    path = path_of(msgspec.structs.replace(job, rows=rows))
    assert "matrix multiplication and convolution" in path.names


def test_no_counted_step_no_path(tmp_path: Path) -> None:
    job = replayed(two_ranks(tmp_path))
    none = msgspec.structs.replace(job.report, job=msgspec.structs.replace(job.report.job, steps=[]))
    assert with_critical_path(none, job.job, job.times, job.rows, job.alignment) is none


def test_single_kernels_of_the_path_are_those_of_the_original_traces(tmp_path: Path) -> None:
    job, _ = simulated("tp_dp_slow_gpu", tmp_path)
    path = path_of(job)
    kernels: dict[tuple[int, str, str], list[tuple[int, int]]] = defaultdict(list)
    for file in tmp_path.glob("rank*.json*"):
        trace = read(file)
        base = int(trace.get("baseTimeNanoseconds", 0))
        rank = trace["distributedInfo"]["rank"]
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel":
                start = base + ns(event["ts"])
                key = (rank, f"stream {event['args']['stream']}", event["name"])
                kernels[key].append((start, start + ns(event["dur"])))
    checked = 0
    for at, place in enumerate(path.place):
        of, leaf, name = path.places[place], path.leaves[path.leaf[at]], path.names[path.name[at]]
        if path.nodes[at] == 1 and of.where.startswith("stream") and leaf.startswith(("kernels/", "productive")):
            begin, end = path.own_ns[at], path.own_ns[at] + path.dur_ns[at]
            # A step's boundary may cut it; the clocks of both hosts are fitted, and the replay is as good as its gaps.
            assert any(
                start - 5 * US <= begin and end <= stop + 5 * US for start, stop in kernels[of.rank, of.where, name]
            ), (of, leaf, name, begin)
            checked += 1
    assert checked > 50
