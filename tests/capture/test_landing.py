"""Files from where processes write into the user's folder: complete or not at all, and only the right ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.capture.landing import Landing, Unusable, keep, private_landing, read, shared_landing

MINE = os.getuid()
ROOM = 1 << 20


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    with private_landing(tmp_path, MINE) as place:
        yield place


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_only_its_user_can_enter_and_nothing_stays(tmp_path: Path) -> None:
    with private_landing(tmp_path, MINE) as place:
        assert stat.S_IMODE(place.log_file.parent.stat().st_mode) == 0o700
        place.path(7).write_text("{")
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_makes_of_the_name(landing: Landing) -> None:
    # As torch 2.13 did: x.json became x_18720.json.
    assert landing.path(18720).name == landing.log_file.name.replace(".json", "_18720.json")
    assert landing.of_round(2).path(7) != landing.of_round(1).path(7)
    assert shared_landing(Path("/tmp")).log_file != shared_landing(Path("/tmp")).log_file


def test_a_file_counts_under_its_final_name_only(landing: Landing) -> None:
    final = landing.path(7)
    assert landing.arrived(7, ROOM) is None
    final.with_name(final.name + ".tmp").write_text("half")
    assert landing.arrived(7, ROOM) is None
    final.write_text("whole")
    assert landing.arrived(7, ROOM) == final
    assert landing.arrived(7, 5) == final


def test_a_link_a_folder_another_users_and_a_large_file_are_refused(landing: Landing, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    landing.path(1).symlink_to(secret)
    landing.path(2).mkdir()
    os.mkfifo(landing.path(3))
    landing.path(4).write_text("large!")
    for pid, room in ((1, ROOM), (2, ROOM), (3, ROOM), (4, 5)):
        with pytest.raises(Unusable):
            landing.arrived(pid, room)
    with pytest.raises(Unusable, match="of its user"):
        Landing(landing.log_file, MINE + 1).arrived(4, ROOM)


def test_a_link_put_there_after_the_look_is_not_followed(landing: Landing, out: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not yours")
    landing.path(1).symlink_to(tmp_path / "secret")
    with pytest.raises(Unusable):
        keep(landing.path(1), out, "a.json", ROOM)
    assert list(out.iterdir()) == []


def test_nothing_is_overwritten(landing: Landing, out: Path) -> None:
    files = []
    for text in ("one", "two", "three"):
        landing.path(1).write_text(text)
        files.append(keep(landing.path(1), out, "pid1.pt.trace.json", ROOM))
    assert [path.name for path in files] == [f"pid1{part}.pt.trace.json" for part in ("", "-again2", "-again3")]
    assert [path.read_text() for path in files] == ["one", "two", "three"]
    assert len(list(out.iterdir())) == 3


@pytest.mark.parametrize("name", ["../a.json", "/tmp/a.json", "x/a.json", ".hidden", "..", ""])
def test_no_path_leaves_the_folder(landing: Landing, out: Path, name: str) -> None:
    landing.path(1).write_text("text")
    with pytest.raises(Unusable, match="no name of a file inside"):
        keep(landing.path(1), out, name, ROOM)


def test_one_that_grew_leaves_nothing(landing: Landing, out: Path) -> None:
    landing.path(1).write_text("123456")
    with pytest.raises(Unusable, match="grew"):
        keep(landing.path(1), out, "a.json", 5)
    assert list(out.iterdir()) == []
    assert keep(landing.path(1), out, "a.json", 6).read_text() == "123456"


def test_a_full_disk_leaves_nothing(landing: Landing, tmp_path: Path) -> None:
    landing.path(1).write_text("123456")
    with pytest.raises(Unusable, match="can't be written"):
        keep(landing.path(1), tmp_path / "gone", "a.json", ROOM)


def test_a_cut_trace_is_refused_and_a_whole_one_read(landing: Landing, sample: Path) -> None:
    landing.path(1).write_text("no trace")
    with pytest.raises(Unusable, match="can't be read"):
        read(landing.path(1))
    content = read(next(iter(sorted(sample.glob("*.json.gz")))))
    assert content.ops > 0
