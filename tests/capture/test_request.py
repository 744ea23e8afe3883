from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.capture.request import (
    CapturePlan,
    CaptureRequest,
    captured_files,
    read_or_none,
    read_request,
    withdraw_request,
    write_request,
    write_whole,
)
from steptime.errors import UsageError


def test_a_request_comes_back_and_can_be_withdrawn(tmp_path: Path) -> None:
    request = CaptureRequest(id="a-1", steps=5, ranks=[0, 3])
    assert read_request(tmp_path) is None
    path = write_request(tmp_path, request)
    assert json.loads(path.read_text())["ranks"] == [0, 3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["request.json"]
    assert read_request(tmp_path) == request
    withdraw_request(tmp_path, "another")
    assert read_request(tmp_path) == request
    withdraw_request(tmp_path, "a-1")
    assert read_request(tmp_path) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../up"},
        {"id": ".hidden"},
        {"id": "a/b"},
        {"id": "a.b"},
        {"id": "plans"},
        {"id": ""},
        {"id": "a", "steps": 0},
        {"id": "a", "steps": 1001},
        {"id": "a", "warmup_steps": 0},
        {"id": "a", "max_seconds": 3601},
        {"id": "a", "ranks": [-1]},
    ],
)
def test_what_is_out_of_bounds_is_refused_on_both_sides(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="no such capture"):
        write_request(tmp_path, CaptureRequest(**wrong))  # type: ignore[arg-type]
    (tmp_path / "request.json").write_text(json.dumps(wrong))
    with pytest.raises(UsageError, match="not what steptime writes"):
        read_request(tmp_path)


def test_a_link_a_folder_and_a_pipe_are_no_request(tmp_path: Path) -> None:
    place = tmp_path / "request.json"
    (tmp_path / "real.json").write_bytes(msgspec.json.encode(CaptureRequest(id="a")))
    place.symlink_to(tmp_path / "real.json")
    with pytest.raises(OSError, match="symbolic"):
        read_request(tmp_path)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(UsageError, match="not a plain file"):
        read_request(tmp_path)


def test_the_request_of_another_user_is_not_served(tmp_path: Path) -> None:
    path = write_request(tmp_path, CaptureRequest(id="a"))
    try:
        os.chown(path, 54321, -1)
    except PermissionError:
        pytest.skip("only root can give a file away")
    with pytest.raises(UsageError, match="written by user 54321"):
        read_request(tmp_path)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_way(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "request.json").write_bytes(content)
    with pytest.raises(UsageError):
        read_request(folder)


def test_a_capture_is_its_files_its_reasons_and_what_is_missing(tmp_path: Path) -> None:
    assert captured_files(tmp_path) is None
    plan = CapturePlan(request=CaptureRequest(id="c", steps=3), first_step=70, world_size=4)
    assert (plan.first_recorded, plan.end, plan.ranks) == (72, 75, [0, 1, 2, 3])
    place, plans = tmp_path / "c", tmp_path / "plans"
    place.mkdir()
    (plans / "c").mkdir(parents=True)
    write_whole(plans / "c.json", msgspec.json.encode(plan))
    (place / "rank-0.pt.trace.json.gz").write_bytes(b"")
    (place / ".rank-1.pt.trace.json.gz.12ab.tmp").write_bytes(b"half")
    (plans / "c" / "rank-2.json").write_text('{"rank": 2, "reason": "no space"}')
    found = captured_files(tmp_path)
    assert found is not None
    assert (found.id, found.plan) == ("c", plan)
    assert [*found.files] == [0]
    assert (found.failed, found.missing, found.complete) == ({2: "no space"}, [1, 3], False)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "place", b"content")
    assert [entry.name for entry in tmp_path.iterdir()] == ["place"]
    assert read_or_none(tmp_path / "place", CaptureRequest) is None
