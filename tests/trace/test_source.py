"""A stream is the bytes that were packed, however they were packed; damage is an error that names the file.

The expected bytes are what the test itself packed, with the standard library or the reference compressor.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from steptime.errors import NotATrace, TraceError
from steptime.trace.source import open_trace

_RANDOM = random.Random(7)
# Digits do not shrink to nothing, so that a cut falls inside the packed data.
_NUMBERS = ", ".join(str(_RANDOM.randrange(10**12)) for _ in range(60_000))
TRACE = ('{"traceEvents": [{"ph": "X", "ts": [' + _NUMBERS + "]}]}").encode()
OTHER = b'{"lr": 0.1}'


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip, two members": lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
    "gzip, padded": lambda data: gzip.compress(data) + b"\0" * 512,
    "gzip twice": lambda data: gzip.compress(gzip.compress(data)),
    "zstd": zstandard.compress,
    "zstd, two frames": lambda data: zstandard.compress(data[:1000]) + zstandard.compress(data[1000:]),
    # A skippable frame: magic, length 4, its content (RFC 8878, section 3.1.2).
    "pzstd": lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstandard.compress(data),
    "zip": lambda data: zipped(("trace.json", data)),
    "zip of gzip": lambda data: zipped(("trace.json.gz", gzip.compress(data))),
    "zip of zstd": lambda data: zipped(("trace.json.zst", zstandard.compress(data))),
    "zip with company": lambda data: zipped(
        ("args.json", OTHER), ("__MACOSX/._t.json", b"x"), ("sub/", b""), ("sub/t.json.gz", gzip.compress(data))
    ),
}


def write(folder: Path, data: bytes, name: str = "a file") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def read_in_parts(path: str, size: int) -> bytes:
    """All of the file by reads of `size`, each of which must be full but the last."""
    parts = []
    with open_trace(path) as stream:
        while part := stream.read(size):
            parts.append(part)
        assert stream.position == sum(map(len, parts))
    assert all(len(part) == size for part in parts[:-1])
    return b"".join(parts)


@pytest.mark.parametrize("packing", PACKINGS)
def test_all_packings_give_the_same_bytes(packing: str, tmp_path: Path) -> None:
    path = write(tmp_path, PACKINGS[packing](TRACE))
    assert read_in_parts(path, 65_537) == TRACE
    with open_trace(path) as stream:
        assert stream.read(10) == TRACE[:10]
        assert stream.read() == TRACE[10:]
        assert stream.read(1) == b""


@given(st.binary(max_size=3000), st.integers(1, 700), st.sampled_from(["gzip", "zstd", "zip of gzip"]))
def test_any_bytes_survive(tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int, packing: str) -> None:
    # "{" in front: bytes that happen to look like a packing would rightly be unpacked.
    path = write(tmp_path_factory.mktemp("any"), PACKINGS[packing](b"{" + data))
    assert read_in_parts(path, size) == b"{" + data


@pytest.mark.parametrize("packing", [name for name in PACKINGS if name not in ("plain", "gzip, padded")])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.999])
def test_a_file_cut_anywhere_says_so(packing: str, kept: float, tmp_path: Path) -> None:
    packed = PACKINGS[packing](TRACE)
    path = write(tmp_path, packed[: int(len(packed) * kept)])
    with pytest.raises(TraceError, match="ends early.*killed") as error, open_trace(path) as stream:
        stream.read()
    assert str(error.value).startswith(path)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
def test_a_gzip_cut_in_its_header_says_so(length: int, tmp_path: Path) -> None:
    if length == 1:  # a single byte is no magic yet: it is passed on as it is
        assert read_in_parts(write(tmp_path, b"\x1f"), 10) == b"\x1f"
        return
    path = write(tmp_path, gzip.compress(TRACE)[:length])
    with pytest.raises(TraceError, match="ends early"):
        open_trace(path)


def test_bytes_before_a_cut_are_readable(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(TRACE)[:-100])
    with open_trace(path) as stream:
        assert stream.read(200_000) == TRACE[:200_000]
        with pytest.raises(TraceError, match="ends early after 200000 bytes"):
            stream.read()


@pytest.mark.parametrize("packing", ["gzip", "zstd", "zip", "zip of gzip"])
def test_damage_inside_is_an_error_that_names_the_file(packing: str, tmp_path: Path) -> None:
    packed = bytearray(PACKINGS[packing](TRACE))
    middle = len(packed) // 2
    packed[middle : middle + 64] = bytes(64)
    path = write(tmp_path, bytes(packed))
    with pytest.raises(TraceError, match="damaged") as error, open_trace(path) as stream:
        stream.read()
    assert str(error.value).startswith(path)


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TRACE))
    packed[-8] ^= 1  # first byte of the CRC-32 (RFC 1952)
    path = write(tmp_path, bytes(packed))
    with pytest.raises(TraceError, match="damaged"), open_trace(path) as stream:
        stream.read()


@pytest.mark.parametrize(
    "data",
    [b"", gzip.compress(b""), zstandard.compress(b""), zipped(("a.json", b""))],
    ids=["plain", "gzip", "zstd", "zip"],
)
def test_an_empty_file_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, data)
    with pytest.raises(TraceError, match="holds no bytes") as error:
        open_trace(path)
    assert str(error.value).startswith(path)


def test_a_zip_of_several_traces_names_them(tmp_path: Path) -> None:
    path = write(tmp_path, zipped(("rank0.json", TRACE), ("rank1.json", TRACE), ("args.json", OTHER)))
    with pytest.raises(TraceError, match=r"2 traces \(rank0.json, rank1.json\); unpack"):
        open_trace(path)


def test_a_damaged_member_is_never_passed_over_in_silence(tmp_path: Path) -> None:
    cut = gzip.compress(TRACE)[:15]
    path = write(tmp_path, zipped(("rank0.json.gz", gzip.compress(TRACE)), ("rank1.json.gz", cut)))
    with pytest.raises(TraceError, match=r"2 traces \(rank0.json.gz, rank1.json.gz\)"):
        open_trace(path)


def test_a_zip_without_a_trace_is_not_a_trace(tmp_path: Path) -> None:
    path = write(tmp_path, zipped(("one.json", OTHER), ("two.txt", b"text")))
    with pytest.raises(NotATrace, match=r"one.json, two.txt"):
        open_trace(path)
    with pytest.raises(NotATrace, match="no member at all"):
        open_trace(write(tmp_path, zipped()))


def test_a_zip_with_a_password_says_so(tmp_path: Path) -> None:
    packed = bytearray(zipped(("trace.json", b"{}")))
    packed[6] |= 1  # general purpose flag, bit 0, in the local and in the central header (APPNOTE 4.3.7, 4.3.12)
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(TraceError, match="password"):
        open_trace(write(tmp_path, bytes(packed)))


def test_a_zip_inside_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unpack it first"):
        open_trace(write(tmp_path, gzip.compress(zipped(("trace.json", TRACE)))))


def test_endless_packing_is_refused(tmp_path: Path) -> None:
    data = TRACE
    for _ in range(6):
        data = gzip.compress(data)
    with pytest.raises(TraceError, match="unpack it first"):
        open_trace(write(tmp_path, data))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file") as error:
        open_trace(str(tmp_path / "none.json"))
    assert str(tmp_path / "none.json") in str(error.value)


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="can't be read"):
        open_trace(str(tmp_path))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_url_reads_like_a_file(packing: str) -> None:
    fsspec.filesystem("memory").pipe("/source/t", PACKINGS[packing](TRACE))
    assert read_in_parts("memory://source/t", 65_537) == TRACE


def test_a_file_url_is_a_local_file(tmp_path: Path) -> None:
    assert read_in_parts(f"file://{write(tmp_path, TRACE, 't.json')}", 1 << 20) == TRACE


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://source/none.json", "can't be reached"),
        ("nosuchstore://bucket/t.json", "can't be reached"),
        ("abfs://bucket/t.json", "needs another package"),
    ],
)
def test_a_url_that_fails_is_one_line_that_names_it(url: str, says: str) -> None:
    with pytest.raises(TraceError, match=says) as error:
        open_trace(url)
    assert str(error.value).startswith(url)
    assert "\n" not in str(error.value)


def test_a_cut_file_behind_a_url_says_so() -> None:
    fsspec.filesystem("memory").pipe("/source/cut.gz", gzip.compress(TRACE)[:-100])
    with pytest.raises(TraceError, match="ends early"), open_trace("memory://source/cut.gz") as stream:
        stream.read()


def test_a_local_gzip_imports_neither_fsspec_nor_zstandard_nor_zipfile(tmp_path: Path, repo: Path) -> None:
    path = write(tmp_path, gzip.compress(TRACE))
    code = (
        "import sys; from steptime.trace.source import open_trace; open_trace(sys.argv[1]).read(); "
        "sys.exit(', '.join({'fsspec', 'zstandard', 'zipfile'} & sys.modules.keys()) or None)"
    )
    environment = {**os.environ, "PYTHONPATH": str(repo)}
    done = subprocess.run(
        [sys.executable, "-c", code, path], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
