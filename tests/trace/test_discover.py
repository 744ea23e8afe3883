"""From folders, globs and URLs only traces are taken, each once, in natural order; all else is named.

The files are made by each test, so what must be found is known.
"""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path

import fsspec
import pytest
import zstandard

from steptime.errors import NotATrace, TraceError, UsageError
from steptime.trace.discover import discover

TRACE = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}]}'
BARE = b'[\n\n {"ph": "X", "cat": "Operator", "ts": 1, "dur": 2}]'
REPORT = b'{"schema_version": 1, "tool": {"name": "steptime", "version": "0.1"}}'
CONFIG = b'{"lr": 0.1, "layers": 24}'


def put(path: Path, data: bytes = TRACE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def found(*paths: Path | str) -> list[str]:
    return [file.path for file in discover([str(path) for path in paths]).files]


def test_a_named_file_is_taken_whatever_its_suffix(tmp_path: Path) -> None:
    path = put(tmp_path / "odd name.trace")
    (file,) = discover([str(path)]).files
    assert (file.path, file.size_bytes) == (str(path), len(TRACE))


def test_a_folder_is_searched_to_the_bottom_in_natural_order(tmp_path: Path) -> None:
    names = ["a/rank2.json", "a/rank10.json.gz", "b/c/rank1.json.zst", "rank0.json", "rank00.json"]
    for name in reversed(names):
        packed = {".gz": gzip.compress(TRACE), ".zst": zstandard.compress(TRACE)}
        put(tmp_path / name, packed.get(Path(name).suffix, TRACE))
    assert found(tmp_path) == [str(tmp_path / name) for name in names]


def test_packing_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    put(tmp_path / "really_zstd.json.gz", zstandard.compress(TRACE))
    put(tmp_path / "really_gzip.json", gzip.compress(TRACE))
    put(tmp_path / "really_plain.gz", TRACE)
    with zipfile.ZipFile(tmp_path / "z.json.zip", "w") as archive:
        archive.writestr("t.json.gz", gzip.compress(BARE))
    assert len(found(tmp_path)) == 4


def test_everything_else_in_a_folder_is_named_with_its_reason(tmp_path: Path) -> None:
    put(tmp_path / "rank0.json")
    reasons = {
        "config.json": (CONFIG, "the keys lr, layers"),
        "report.json": (REPORT, "a steptime report"),
        "list.json": (b'[{"loss": 1}]', "a JSON list of something else"),
        "empty_list.json": (b"[]", "an empty JSON list"),
        "broken.json": (b'{"lr": 0.1,, ', "begins with lr"),
        "text.json": (b"hello", "text that is not"),
        "wide.json": ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
        "quoted.json": (b'{"log": "wrote \\"traceEvents\\": [] to x"}', "the keys log"),
        "table.gz": (b"PAR1....", "a Parquet file"),
        "rank1.json.tmp": (TRACE, "unfinished file"),
        ".rank2.json": (TRACE, "a hidden file"),
    }
    for name, (data, _) in reasons.items():
        put(tmp_path / name, data)
    put(tmp_path / ".git" / "rank3.json")
    put(tmp_path / "notes.md", b"text")
    put(tmp_path / "plot.png", b"image")
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("train.py", b"import torch")
        archive.writestr("config.json", CONFIG)

    discovery = discover([str(tmp_path)])
    assert [file.path for file in discovery.files] == [str(tmp_path / "rank0.json")]
    for name, (_, reason) in reasons.items():
        (note,) = [note for note in discovery.skipped if note.startswith(f"{tmp_path / name}: ")]
        assert reason in note
    assert f"{tmp_path / '.git'}: skipped, a hidden folder" in discovery.skipped
    assert f"{tmp_path}: skipped 2 files without a suffix of traces (notes.md, plot.png)" in discovery.skipped
    assert [note for note in discovery.skipped if "code.zip" in note and "train.py, config.json" in note]
    assert len(discovery.skipped) == len(reasons) + 3
    assert not [note for note in discovery.skipped if "\n" in note]


def test_a_trace_behind_much_metadata_is_found(tmp_path: Path) -> None:
    metadata = json.dumps({"padding": "x" * 3_000_000})[:-1].encode()
    put(tmp_path / "late.json.gz", gzip.compress(metadata + b', "traceEvents" : [' + b"{}]}"))
    put(tmp_path / "never.json", metadata + b"}")
    discovery = discover([str(tmp_path)])
    assert [file.path for file in discovery.files] == [str(tmp_path / "late.json.gz")]
    assert "begins with padding" in discovery.skipped[0]


def test_what_can_t_be_told_is_taken_only_if_named(tmp_path: Path) -> None:
    # Longer than the 16 MiB that are looked at.
    path = put(tmp_path / "huge.json.gz", gzip.compress(b'{"a": "' + b"x" * (17 << 20) + b'", "traceEvents": []}'))
    put(tmp_path / "rank0.json")
    assert found(path) == [str(path)]
    assert found(tmp_path) == [str(tmp_path / "rank0.json")]


def test_a_byte_order_mark_hides_no_trace(tmp_path: Path) -> None:
    put(tmp_path / "a.json", b"\xef\xbb\xbf" + TRACE)
    put(tmp_path / "b.json", b"\xef\xbb\xbf" + BARE)
    assert len(found(tmp_path)) == 2


def test_a_damaged_file_stays_for_the_reader_to_refuse(tmp_path: Path) -> None:
    put(tmp_path / "rank0.json")
    put(tmp_path / "rank1.json.gz", gzip.compress(TRACE)[:15])
    put(tmp_path / "rank2.json", b"")
    assert len(found(tmp_path)) == 3
    with pytest.raises(TraceError, match="rank1.json.gz: ends early"):
        discover([str(tmp_path / "rank1.json.gz")])
    with pytest.raises(TraceError, match="rank2.json: holds no bytes"):
        discover([str(tmp_path / "rank2.json")])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (CONFIG, "JSON with the keys lr, layers"),
        (REPORT, "a steptime report"),
        (b"[1, 2]", "a JSON list of something else"),
        (b"{}", "an empty JSON object"),
        (b"SQLite format 3\x00....", "Nsight"),
        (b"\x00\x01\x02", "binary data"),
    ],
)
def test_a_named_file_that_is_no_trace_is_an_error_that_says_what_it_is(data: bytes, says: str, tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", data)
    with pytest.raises(NotATrace, match=says) as error:
        discover([str(path)])
    assert str(error.value).startswith(f"{path}: ")
    assert "pt.trace.json" in str(error.value)


def test_a_named_tmp_or_hidden_file_is_taken(tmp_path: Path) -> None:
    paths = [put(tmp_path / "rank0.json.tmp"), put(tmp_path / ".rank1.json")]
    assert found(*paths) == sorted(map(str, paths))


def test_globs(tmp_path: Path) -> None:
    for name in ["r1/rank1.json", "r10/rank10.json", "r2/rank2.json", "r2/config.json"]:
        put(tmp_path / name, CONFIG if "config" in name else TRACE)
    put(tmp_path / "rank[3].json")
    assert found(tmp_path / "r*" / "rank*.json") == [str(tmp_path / f"r{n}/rank{n}.json") for n in (1, 2, 10)]
    assert found(tmp_path / "r?") == [str(tmp_path / f"r{n}/rank{n}.json") for n in (1, 2)]
    assert found(tmp_path / "**" / "rank2.json") == [str(tmp_path / "r2/rank2.json")]
    assert found(tmp_path / "rank[3].json") == [str(tmp_path / "rank[3].json")]
    (note,) = discover([str(tmp_path / "r2" / "*")]).skipped
    assert note.startswith(f"{tmp_path / 'r2/config.json'}: skipped")


def test_a_file_found_twice_counts_once(tmp_path: Path) -> None:
    path = put(tmp_path / "rank0.json")
    (tmp_path / "link.json").symlink_to(path)
    put(tmp_path / "config.json", CONFIG)
    discovery = discover([str(tmp_path), str(path), str(tmp_path / "*.json"), f"file://{tmp_path}"])
    assert len(discovery.files) == 1
    assert len(discovery.skipped) == 1


def test_links_to_folders_are_named_and_not_followed(tmp_path: Path) -> None:
    put(tmp_path / "run1" / "rank0.json")
    (tmp_path / "latest").symlink_to(tmp_path / "run1")
    (tmp_path / "run1" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    discovery = discover([str(tmp_path)])
    assert len(discovery.files) == 1
    assert [note.split(":")[0] for note in discovery.skipped] == [
        str(tmp_path / name) for name in ("gone.json", "latest", "run1/loop")
    ]
    assert found(tmp_path / "latest") == [str(tmp_path / "latest" / "rank0.json")]


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    put(tmp_path / "rank0.json")
    assert found(tmp_path) == [str(tmp_path / "rank0.json")]
    with pytest.raises(TraceError, match="not a regular file"):
        discover([str(tmp_path / "pipe.json")])


def test_nothing_found_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file or folder"):
        discover([str(tmp_path / "none")])
    with pytest.raises(TraceError, match="no trace found; give"):
        discover([str(tmp_path)])
    with pytest.raises(TraceError, match="no trace found; give"):
        discover([str(tmp_path / "*.json")])
    for number in range(5):
        put(tmp_path / f"config{number}.json", CONFIG)
    with pytest.raises(TraceError, match=r"config0.json: skipped, .* and 2 more") as error:
        discover([str(tmp_path)])
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no path given"):
        discover([])


def test_one_empty_path_among_good_ones_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "rank0.json")
    (tmp_path / "b").mkdir()
    with pytest.raises(TraceError, match="/b: no trace found"):
        discover([str(path), str(tmp_path / "b")])


def test_urls_files_folders_and_globs() -> None:
    store = fsspec.filesystem("memory")
    for name, data in {
        "rank10.json.gz": gzip.compress(TRACE),
        "rank2.json": TRACE,
        "sub/rank1.json.zst": zstandard.compress(TRACE),
        "config.json": CONFIG,
        "rank3.json.tmp": TRACE,
        ".hidden.json": TRACE,
        ".cache/rank9.json": TRACE,
        "notes.md": b"text",
    }.items():
        store.pipe(f"/discover/{name}", data)
    top = "memory:///discover"
    discovery = discover(["memory://discover"])
    assert [file.path for file in discovery.files] == [
        f"{top}/rank2.json",
        f"{top}/rank10.json.gz",
        f"{top}/sub/rank1.json.zst",
    ]
    assert discovery.files[0].size_bytes == len(TRACE)
    for name in ("config.json", "rank3.json.tmp", ".hidden.json", ".cache/rank9.json"):
        assert [note for note in discovery.skipped if note.startswith(f"{top}/{name}: skipped")]
    assert [note for note in discovery.skipped if "notes.md" in note]
    assert found("memory://discover/rank*.gz") == [f"{top}/rank10.json.gz"]
    assert found("memory://discover/**/rank1.json.zst") == [f"{top}/sub/rank1.json.zst"]
    assert found("memory://disc*") == [file.path for file in discovery.files]
    assert found("memory://discover/rank2.json") == ["memory://discover/rank2.json"]
    with pytest.raises(NotATrace, match="the keys lr"):
        discover(["memory://discover/config.json"])
    with pytest.raises(TraceError, match="no such file or folder"):
        discover(["memory://discover/none.json"])
    with pytest.raises(TraceError, match="no trace found"):
        discover(["memory://discover/none*.json"])


def test_a_store_that_can_t_be_reached_is_one_line() -> None:
    for url in ("nosuchstore://bucket/x", "abfs://bucket/x"):
        with pytest.raises(TraceError) as error:
            discover([url])
        assert str(error.value).startswith(url)
        assert "\n" not in str(error.value)


def test_a_file_inside_a_remote_zip_can_be_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("rank0.json", TRACE)
        archive.writestr("rank1.json", TRACE)
    url = f"zip://rank1.json::file://{tmp_path}/t.zip"
    assert found(url) == [url]


@pytest.fixture
def shared(repo: Path) -> Path:
    folder = repo.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared folder with the reference traces is not beside this checkout")
    return folder


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("single", ["host_4242.1764.pt.trace.json"]),
        ("no_rank", ["nodea_4242.1764.pt.trace.json", "nodeb_5252.1764.pt.trace.json"]),
        ("missing_rank", ["rank0.pt.trace.json", "rank1.pt.trace.json", "rank3.pt.trace.json"]),
        ("foreign_json", ["rank0.pt.trace.json", "rank1.pt.trace.json"]),
    ],
)
def test_the_folders_of_case_a12(folder: str, names: list[str], shared: Path) -> None:
    top = shared / "cases" / "A12" / folder
    discovery = discover([str(top)])
    assert [file.path for file in discovery.files] == [str(top / name) for name in names]
    assert len(discovery.skipped) == (folder == "foreign_json")
    assert all("config.json" in note for note in discovery.skipped)


def test_all_public_traces_are_told_from_their_company(shared: Path) -> None:
    # Counted by hand in the folder listing: 39 traces beside the foreign results of one study, whose three
    # timelines are event lists as well and are taken, for the parser to judge.
    discovery = discover([str(shared / "public_traces")])
    names = [Path(file.path).name for file in discovery.files]
    assert len([name for name in names if not name.startswith("timeline-")]) == 39
    assert len([name for name in names if name.startswith("timeline-")]) == 3
    assert len([note for note in discovery.skipped if "bytedance_whatif" in note and ".json: skipped" in note]) == 9
