"""Bandwidth of collectives: sizes as NCCL's tests count them, times worked out by hand or set in the simulator."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import steptime
from steptime.model import Collective, Report, SlowGroup
from steptime.ranks.bandwidth import bus_factor
from steptime.ranks.slow_groups import Waited, _others_median, with_waits
from steptime.simulate import Scenario, simulate
from steptime.taxonomy import LEAF_CODE
from steptime.timeline.message_sizes import message_bytes
from steptime.trace.events import CollectiveArgs
from tests.builders import TraceBuilder
from tests.matrix.scenarios import Cell
from tests.ranks.jobs import Job, run

GIB = 1 << 30


def _row(report: Report, kind: str, group: str) -> Collective:
    return next(one for one in report.collectives if (one.kind, one.group) == (kind, group))


def _bus(report: Report, kind: str, group: str) -> float:
    bus = _row(report, kind, group).bus_bytes_per_s
    assert bus is not None
    return bus


@pytest.mark.parametrize(
    ("kind", "members", "factor"),
    [
        # nccl-tests, doc/PERFORMANCE.md.
        ("allreduce", 2, 1.0),
        ("allreduce", 8, 1.75),
        ("allgather", 8, 0.875),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("p2p_transfer", 2, 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind: str, members: int, factor: float) -> None:
    leaf = np.array([LEAF_CODE[f"exposed_comm/{kind}"]], np.int64)
    assert bus_factor(leaf, np.array([members], np.int64)).tolist() == [factor]


@pytest.mark.parametrize(
    ("name", "dtype", "elements", "size", "nbytes"),
    [
        ("_allgather_base", "BFloat16", (1000, 8000), 8, 16_000),
        ("_reduce_scatter_base", "Float", (8000, 1000), 8, 32_000),
        ("allreduce", "Half", (500, 500), 8, 1000),
        ("all_to_allv", "Float8_e4m3fn", (640, 640), 8, 640),
        ("broadcast", "Long", (3, 3), 4, 24),
        ("send", "Byte", (77, 77), 4, 77),
        # Contradictions and gaps.
        ("_allgather_base", "BFloat16", (1000, 1000), 8, -1),
        ("_reduce_scatter_base", "Float", (8000, 2000), 8, -1),
        ("allreduce", "Half", (500, 400), 8, -1),
        ("allreduce", "SomeNewType", (500, 500), 8, -1),
        ("allreduce", "Float", (-1, -1), 8, -1),
        ("barrier", "Byte", (0, 0), 8, -1),
    ],
)
def test_message_size(name: str, dtype: str, elements: tuple[int, int], size: int, nbytes: int) -> None:
    args = CollectiveArgs(name=name, dtype=dtype, in_elements=elements[0], out_elements=elements[1], group_size=size)
    assert message_bytes([args], np.array([0, -1], np.int64)).tolist() == [nbytes, -1]


def test_several_kernels_of_one_call_have_no_known_size() -> None:
    args = CollectiveArgs(name="allreduce", dtype="Float", in_elements=9, out_elements=9, group_size=2, seq=4)
    other = msgspec.structs.replace(args, seq=5)
    assert message_bytes([args, other], np.array([0, 1, 0], np.int64)).tolist() == [-1, 36, -1]


@pytest.mark.parametrize("values", [[5, 9], [4, 1, 7], [3, 3, 8, 1], [9, 2, 2, 6, 5], list(range(20))])
def test_median_of_the_others(values: list[int]) -> None:
    given = np.array(values, np.int64)
    expected = [float(np.median(np.delete(given, at))) for at in range(len(given))]
    assert _others_median(given).tolist() == expected


# Hand-built: what each rank arrives at and when all end is written down, in microseconds.


def _job(  # noqa: PLR0913  what differs between ranks
    folder: Path,
    groups: list[list[int]],
    transfer_us: list[int],
    *,
    elements: int,
    hosts: dict[int, str],
    early_us: int = 700,
    device: str = "NVIDIA H100 80GB HBM3",
) -> Path:
    """Four steps; in each one, every group all-reduces once; the first member of each arrives `early_us` before."""
    step_us = 10_000 + max(transfer_us) + early_us
    for at, ranks in enumerate(groups):
        for rank in ranks:
            extra: dict[str, object] = {"host_name": hosts[rank]} if rank in hosts else {}
            trace = TraceBuilder(rank=rank, world_size=sum(map(len, groups)), device_name=device, extra=extra)
            for number in range(4):
                begin = number * step_us
                trace.step(number, at=begin, for_=step_us)
                arrive = begin + 3000 - (early_us if rank == ranks[0] else 0)
                trace.kernel("gemm", at=begin + 100, for_=arrive - begin - 100, launch_at=begin + 20)
                trace.collective(
                    "allreduce",
                    at=arrive,
                    for_=begin + 3000 + transfer_us[at] - arrive,
                    launch_at=begin + 60,
                    group=f"{at}",
                    description="dp",
                    ranks=ranks,
                    nelems=elements,
                    seq=number,
                )
                end = begin + 3000 + transfer_us[at]
                trace.optimizer(at=begin + 80, for_=20)
                trace.kernel("adam", at=end, for_=begin + step_us - 50 - end, launch_at=begin + 90)
            trace.write(folder / f"rank{rank}.json.gz")
    return folder


def test_bandwidth_counts_from_the_last_arrival(tmp_path: Path) -> None:
    # 64 Mi floats = 256 MiB in 2 ms from the last arrival on: 134.2 GB/s, and with two members the bus carries as much.
    # Rank 0 is there 0.7 ms before: its kernel takes 2.7 ms, which would be 99.4 GB/s.
    _job(tmp_path, [[0, 1]], [2000], elements=64 << 20, hosts={0: "a", 1: "a"})
    one = _row(steptime.analyze(tmp_path), "allreduce", "dp")
    assert one.measured == 3
    assert one.members == 2
    assert one.bytes == 3 * 256 * (1 << 20)
    assert one.transfer_ns == 3 * 2_000_000
    assert one.algorithm_bytes_per_s == pytest.approx(134.217728e9)
    assert one.bus_bytes_per_s == pytest.approx(134.217728e9)
    # The table's H100 SXM has 450 GB/s a direction.
    assert one.link_share == pytest.approx(134.217728 / 450)
    # Rank 0 waited 0.7 ms in each of the three counted steps.
    assert one.wait_ns == 3 * 700_000


def test_no_roof_where_the_hosts_are_not_one_or_not_known(tmp_path: Path) -> None:
    for name, hosts in (("two", {0: "a", 1: "b"}), ("unknown", {})):
        (tmp_path / name).mkdir()
        folder = _job(tmp_path / name, [[0, 1]], [2000], elements=64 << 20, hosts=hosts)
        assert _row(steptime.analyze(folder), "allreduce", "dp").link_share is None


def test_a_bridge_between_two_cards_is_no_roof(tmp_path: Path) -> None:
    _job(tmp_path, [[0, 1]], [2000], elements=64 << 20, hosts={0: "a", 1: "a"}, device="NVIDIA H100 PCIe")
    one = _row(steptime.analyze(tmp_path), "allreduce", "dp")
    assert one.bus_bytes_per_s is not None
    assert one.link_share is None


def test_one_rank_alone_has_no_bandwidth(tmp_path: Path) -> None:
    _job(tmp_path, [[0, 1]], [2000], elements=64 << 20, hosts={})
    report = steptime.analyze(tmp_path / "rank1.json.gz")
    one = _row(report, "allreduce", "dp")
    assert (one.bytes, one.transfer_ns, one.bus_bytes_per_s, one.wait_ns) == (None, None, None, None)
    assert one.why == "only one rank was recorded: waits and transfer can't be told apart"
    assert "collectives.bus_bytes_per_s" not in report.facts


def test_with_a_member_missing_there_is_no_bandwidth(tmp_path: Path) -> None:
    _job(tmp_path, [[0, 1, 2]], [2000], elements=64 << 20, hosts={})
    (tmp_path / "rank2.json.gz").unlink()
    one = _row(steptime.analyze(tmp_path), "allreduce", "dp")
    assert one.bus_bytes_per_s is None
    assert one.why == "files of members are missing"


def test_case_c08_one_slow_pair_is_named_with_its_host(tmp_path: Path) -> None:
    # Case C08: groups {0,1}, {2,3}, {4,5}, equal bytes, {2,3} 1.8 times as long.
    hosts = {rank: f"node{rank // 2}" for rank in range(6)}
    _job(tmp_path, [[0, 1], [2, 3], [4, 5]], [1000, 1800, 1000], elements=20 << 20, hosts=hosts)
    report = steptime.analyze(tmp_path)
    slow = _row(report, "allreduce", "dp").slow_groups
    assert [(one.ranks, one.hosts, one.compared) for one in slow] == [([2, 3], ["node1"], 2)]
    assert slow[0].ratio == pytest.approx(1.8)
    # Two ranks, three steps, 0.8 of 1.8 ms.
    assert slow[0].lost_ns == pytest.approx(2 * 3 * 800_000, abs=10)
    assert report.facts["collectives.slowest_group_ratio"] == pytest.approx(1.8)
    finding = next(one for one in report.findings if one.id == "slow-group")
    assert any("ranks 2, 3 on host node1 took 1.80 times as long" in item.text for item in finding.evidence)


def test_even_groups_are_not_slow(tmp_path: Path) -> None:
    _job(tmp_path, [[0, 1], [2, 3], [4, 5]], [1000, 1015, 1000], elements=20 << 20, hosts={})
    report = steptime.analyze(tmp_path)
    assert report.facts["collectives.slowest_group_ratio"] == 1.0
    assert "slow-group" not in {one.id for one in report.findings} | set(report.not_evaluated)


def test_one_group_can_not_be_compared(tmp_path: Path) -> None:
    _job(tmp_path, [[0, 1]], [1000], elements=20 << 20, hosts={})
    assert "no two groups" in steptime.analyze(tmp_path).not_evaluated["slow-group"]


@pytest.mark.parametrize(("transfer_ms", "fires"), [(370, True), (50, False)])
def test_case_c09_a_gibibyte_over_sockets(tmp_path: Path, transfer_ms: int, fires: bool) -> None:
    # Case C09: 1 GB, 16 ranks, 370 ms where 50 are usual; all equal, no wait. 2 x 15/16 x 1 GiB / 0.37 s.
    folder = _job(tmp_path, [list(range(16))], [transfer_ms * 1000], elements=GIB // 4, hosts={}, early_us=0)
    report = steptime.analyze(folder)
    expected = 2 * 15 / 16 * GIB / (transfer_ms / 1000)
    assert _bus(report, "allreduce", "dp") == pytest.approx(expected)
    assert report.facts["collectives.bus_bytes_per_s"] == pytest.approx(expected)
    assert ("slow-transport" in [one.id for one in report.findings]) is fires
    if fires:
        assert report.findings[0].id == "slow-transport"


# Simulated: the cluster's bandwidth is set in the scenario, and the simulator knows nothing of the analyser.


def _simulated(text: str, folder: Path, seed: int = 23) -> Report:
    simulate(msgspec.toml.decode(text, type=Scenario), folder, seed)
    return steptime.analyze(folder)


BASE = """
[recording]
steps = 4
[model]
layers = 4
hidden = 4096
[clocks]
offset_ms = 5
"""
ONE_HOST = BASE + "[cluster]\ngpus_per_host = 8\nintra_bytes_per_s = 200e9\n[layout]\ndp = 4\nfsdp = true\n"
THREE_HOSTS = BASE + "[cluster]\ngpus_per_host = 2\ninter_bytes_per_s = {rate}\n[layout]\ndp = 3\ntp = 2\n"
SLOW_LINK = '[[fault]]\nkind = "slow_link"\nranks = [5]\nsize = 0.5\n'


def test_attained_bandwidth_is_what_the_scenario_gives(tmp_path: Path) -> None:
    report = _simulated(ONE_HOST, tmp_path)
    for kind in ("allgather", "reduce_scatter"):
        # Messages of 0.26 to 0.6 GB: a latency of 12 µs in 1 to 2 ms, and a jitter of a few per cent.
        assert _bus(report, kind, "mesh_dp") == pytest.approx(200e9, rel=0.03)
        assert _row(report, kind, "mesh_dp").link_share == pytest.approx(200 / 450, rel=0.03)
    assert report.facts["collectives.bus_bytes_per_s"] == pytest.approx(200e9, rel=0.03)


def test_waits_of_the_rows_are_those_of_the_ledger(tmp_path: Path) -> None:
    report = _simulated(THREE_HOSTS.format(rate="20e9"), tmp_path)
    moved = next(leaf.ns for part in report.job.slices for leaf in part.leaves if leaf.id == "wait_for_rank")
    assert moved
    assert sum(one.wait_ns or 0 for one in report.collectives) == moved


def test_across_hosts_it_is_the_network_s(tmp_path: Path) -> None:
    report = _simulated(THREE_HOSTS.format(rate="20e9"), tmp_path)
    # Buckets of 25 MB: 1.7 ms and 35 µs of latency.
    assert _bus(report, "allreduce", "mesh_dp") == pytest.approx(20e9, rel=0.05)
    assert _row(report, "allreduce", "mesh_dp").link_share is None
    found = {one.id for one in report.findings}
    assert not found & {"slow-group", "slow-transport"}
    assert not {"slow-group", "slow-transport"} & set(report.not_evaluated)


def test_a_slow_link_is_named_by_what_its_groups_share(tmp_path: Path) -> None:
    report = _simulated(THREE_HOSTS.format(rate="20e9") + SLOW_LINK, tmp_path)
    finding = next(one for one in report.findings if one.id == "slow-group")
    assert "rank 5 on host host2 is in each of the 2 slow groups" in [item.text for item in finding.evidence]
    for group in ("mesh_dp", "mesh_tp"):
        assert all(5 in one.ranks for one in _row(report, "allreduce", group).slow_groups)
        assert _row(report, "allreduce", group).slow_groups[0].ratio == pytest.approx(2.0, rel=0.15)


def test_waits_for_a_slow_group_are_its_own(tmp_path: Path) -> None:
    """One of four tensor-parallel pairs has a slow link; the others wait for it where gradients are reduced."""
    truth = simulate(Cell("tp", ("slow_link",)).scenario(), tmp_path, 47)
    report = steptime.analyze(tmp_path)
    found = [slow for one in report.collectives for slow in one.slow_groups]
    # Rank 3's pair, and its ring across the pairs.
    assert sorted(slow.ranks for slow in found) == [[1, 3, 5, 7], [2, 3]]
    first = report.findings[0]
    assert first.id == "slow-group"
    assert any("other ranks wait for its members" in item.text for item in first.evidence)
    # Mended, the job is quicker by what the truth says; nothing else is waited for.
    assert first.share == pytest.approx(truth.saved_ns / truth.step_time_ns, abs=0.03)
    waits = [step.leaves_ns["stragglers/wait_for_rank"] for rank in truth.ranks for step in rank.steps if not step.edge]
    assert sum(slow.waits_ns for slow in found) == pytest.approx(sum(waits), rel=0.05)


def test_no_more_is_waited_for_a_slow_group_than_it_lost() -> None:
    """Rank 2 waits 50 for rank 0 and 30 for rank 1, rank 3 waits 10; each member of {0, 1} lost 120 / 2 = 60."""
    found = {7: [SlowGroup(ranks=[0, 1], hosts=[], ratio=2.0, compared=1, lost_ns=120)]}
    found[8] = [SlowGroup(ranks=[1, 3], hosts=[], ratio=1.5, compared=1, lost_ns=400)]
    row, whom, ns = (np.array(one, np.int64) for one in ([2, 2, 3, 1], [0, 1, 1, 0], [50, 30, 10, 99]))
    rows = run(Job(ranks_per_host=4, steps=2))
    result = with_waits(found, rows, Waited(row, whom, ns))
    # 80 of rank 2, of which 60 are due to it, and 10 of rank 3; what rank 1 waits for rank 0 is inside the group.
    assert result[7][0].waits_ns == 60 + 10
    # Of rank 2's 30 for rank 1 the first group holds 60 / 80: 22.5, rounded to 22.
    assert result[8][0].waits_ns == 30 - 22


def test_sockets_between_hosts_are_told(tmp_path: Path) -> None:
    report = _simulated(THREE_HOSTS.format(rate="2.5e9"), tmp_path)
    finding = next(one for one in report.findings if one.id == "slow-transport")
    assert report.facts["collectives.bus_bytes_per_s"] == pytest.approx(2.5e9, rel=0.05)
    assert any("allreduce (mesh_dp) of 3 ranks" in item.text for item in finding.evidence)


@pytest.mark.parametrize("seed", range(60, 66))
def test_clean_jobs_name_no_group(seed: int, tmp_path: Path) -> None:
    for name, text in (("three", THREE_HOSTS.format(rate="45e9")), ("pipeline", _PIPELINE)):
        report = _simulated(text, tmp_path / name, seed)
        assert "slow-group" not in {one.id for one in report.findings}


_PIPELINE = BASE + "[cluster]\ngpus_per_host = 4\n[layout]\ndp = 2\ntp = 2\npp = 2\n[batch]\nmicro_batches = 4\n"
