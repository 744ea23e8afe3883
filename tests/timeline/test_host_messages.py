"""Communication of a rank without a device: who asked for it, with whom it was, and when it held its thread up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steptime.ranks.sequences import NO_STEP, NOWHERE, host_turns
from steptime.timeline.host_messages import HostCalls, host_calls
from steptime.timeline.instances import Instances
from steptime.timeline.summary import DeviceTimeline
from steptime.trace.events import EventTable
from tests.gloo_recording import WORLD, Recording, group


def _calls(recording: Recording, folder: Path) -> tuple[EventTable, HostCalls]:
    table = recording.table(folder)
    return table, host_calls(table)


def _instances(timeline: DeviceTimeline) -> Instances:
    assert timeline.instances is not None
    return timeline.instances


def test_the_op_tells_a_message_its_other_end(tmp_path: Path) -> None:
    recording = Recording(1).message("recv", 0, (10, 20), 50).message("send", 2, (60, 70), 95, tag=7)
    table, calls = _calls(recording, tmp_path)
    assert calls.kinds == ["p2p_transfer", "p2p_transfer"]
    assert calls.peer.tolist() == [0, 2]
    assert calls.sends.tolist() == [False, True]
    assert calls.tag.tolist() == [0, 7]
    assert calls.elements.tolist() == [4096, 4096]
    assert (table.start_ns[calls.call] - table.start_ns[calls.call[0]]).tolist() == [0, 50_000]


def test_a_message_whose_op_was_not_recorded_has_no_other_end(tmp_path: Path) -> None:
    recording = Recording(1).add("user_annotation", "gloo:recv", 5, 40, Input_Dims=[[16, 256]])
    recording.message("send", 2, (60, 70), 95)
    _, calls = _calls(recording, tmp_path)
    assert calls.call[0] == -1
    assert calls.peer.tolist() == [-1, 2]


def test_a_reduce_scatter_that_runs_as_an_all_reduce_keeps_its_kind(tmp_path: Path) -> None:
    recording = Recording(0)
    recording.asks("_reduce_scatter_base_", 10, [[100], [400], [], []]).works("all_reduce", 15, 30, 400)
    recording.asks("allreduce_", 40, [[[400]], [], []]).works("all_reduce", 45, 60, 400)
    recording.asks("_allgather_base_", 70, [[400], [100], [], []]).works("all_gather", 75, 90, 100)
    _, calls = _calls(recording, tmp_path)
    assert calls.kinds == ["reduce_scatter", "allreduce", "allgather"]
    assert calls.elements.tolist() == [400, 400, 100]


def test_work_asked_for_before_the_recording_takes_nobodys_op(tmp_path: Path) -> None:
    recording = Recording(0).works("all_reduce", 5, 30, 400)
    recording.asks("_reduce_scatter_base_", 10, [[100], [400], [], []]).works("all_reduce", 35, 50, 400)
    table, calls = _calls(recording, tmp_path)
    assert calls.kinds == ["allreduce", "reduce_scatter"]
    assert calls.call[0] == -1
    assert table.names[table.name[calls.call[1]]] == "c10d::_reduce_scatter_base_"


def test_the_only_group_that_a_message_fits_is_its_group(tmp_path: Path) -> None:
    groups = [WORLD, group("2", "ours", 1, 3), group("3", "theirs", 0, 1)]
    # As member 1 of "theirs" or of all it would send to itself.
    timeline = Recording(1, groups).step(0, 0, 100).message("send", 1, (10, 20), 50).timeline(tmp_path)
    instances = _instances(timeline)
    assert [instances.groups[at].ranks for at in instances.group.tolist()] == [(1, 3)]


def test_of_several_groups_that_fit_the_one_named_as_a_pipeline_is_taken(tmp_path: Path) -> None:
    groups = [WORLD, group("1", "mesh_pp", 0, 2), group("3", "mesh_dp", 0, 1)]
    instances = _instances(Recording(0, groups).step(0, 0, 100).message("send", 1, (10, 20), 50).timeline(tmp_path))
    assert [instances.groups[at].description for at in instances.group.tolist()] == ["mesh_pp"]


def test_nothing_is_claimed_where_several_groups_fit(tmp_path: Path) -> None:
    recording = Recording(0, [WORLD, group("1", "a", 0, 2), group("3", "b", 0, 1)]).step(0, 0, 100)
    recording.message("send", 1, (10, 20), 50).asks("allreduce_", 60, [[[8]], [], []]).works("all_reduce", 63, 70, 8)
    instances = _instances(recording.timeline(tmp_path))
    assert instances.peer.tolist() == [-1, -1]
    assert {instances.groups[at].size for at in instances.group.tolist()} == {0}


def test_a_message_holds_its_thread_up_only_at_its_end(tmp_path: Path) -> None:
    recording = Recording(1).step(0, 0, 1000).step(1, 1000, 1100)
    recording.op("aten::mm", 100, 200).message("send", 2, (200, 205), 900).message("recv", 0, (206, 210), 560)
    recording.op("aten::mm", 300, 500).op("aten::mm", 600, 850).op("aten::mm", 950, 1000)
    step = recording.timeline(tmp_path).steps[0]
    # The receive: from the op's end at 500 to 560. The send: from 850 to 900. Asking: 5 and 4. Not the hole before 300.
    assert step.leaves_ns["exposed_comm/p2p_transfer"] == (60 + 50 + 5 + 4) * 1000
    assert step.leaves_ns["kernels/matmul"] == (100 + 200 + 250 + 50) * 1000


def test_two_messages_waited_for_in_one_hole_share_it_in_turn(tmp_path: Path) -> None:
    recording = Recording(1).step(0, 0, 1000).step(1, 1000, 1100)
    recording.message("send", 2, (100, 105), 900).message("recv", 0, (106, 110), 700).op("aten::mm", 200, 400)
    instances = _instances(recording.op("aten::mm", 950, 1000).timeline(tmp_path))
    owned = np.bincount(instances.exposed_of, instances.exposed_end - instances.exposed_start).tolist()
    assert instances.sends.tolist() == [True, False]
    # Asking took 5 and 4.
    assert owned == [205_000, 304_000]


def test_a_message_whose_wait_is_hidden_costs_what_asking_for_it_took(tmp_path: Path) -> None:
    recording = Recording(1).step(0, 0, 1000).step(1, 1000, 1100)
    recording.message("send", 2, (100, 105), 500).op("aten::mm", 200, 900)
    assert recording.timeline(tmp_path).steps[0].leaves_ns["exposed_comm/p2p_transfer"] == 5_000


@pytest.mark.parametrize("name", ["_c10d_functional::wait_tensor", "c10d::allreduce_"])
def test_waiting_in_an_op_is_not_compute(tmp_path: Path, name: str) -> None:
    recording = Recording(0).step(0, 0, 1000).step(1, 1000, 1100).op("aten::mm", 0, 100)
    recording.works("all_reduce", 150, 600, 64).op(name, 200, 600).op("aten::mm", 600, 1000)
    leaves = recording.timeline(tmp_path).steps[0].leaves_ns
    assert leaves["kernels/matmul"] == 500_000
    assert leaves["exposed_comm/allreduce"] == 450_000
    assert "kernels/other_compute" not in leaves


def test_ops_count_once_however_they_are_cut(tmp_path: Path) -> None:
    recording = Recording(0).step(0, 0, 1000).step(1, 1000, 1100).op("aten::linear", 100, 500)
    ledger = recording.op("aten::t", 150, 160).op("aten::t", 200, 210).timeline(tmp_path).ledger
    counts = {ledger.texts[what]: int(n) for what, n in zip(ledger.what.tolist(), ledger.count, strict=True) if n}
    assert counts["aten::linear"] == 1
    assert counts["aten::t"] == 2


def test_a_step_in_which_one_side_lacks_a_message_matches_nothing() -> None:
    sends = np.array([True, True, True, True])
    whole = host_turns(np.array([1, 1, 1, 1]), sends, np.array([5, 5, 6, 6]))
    lacking = host_turns(np.array([1, 1, 1]), sends[:3], np.array([5, 6, 6]))
    assert len(set(whole.tolist())) == 4
    assert lacking[1:].tolist() == whole[2:].tolist()
    assert lacking[0] not in whole
    assert host_turns(np.array([-1, 1]), sends[:2], np.array([5, NO_STEP])).tolist() == [NOWHERE, NOWHERE]
