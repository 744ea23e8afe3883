"""One trace file as a stream of decompressed bytes, wherever it lies and however it is packed.

Packing (gzip, zstd, zip, one inside another) is told by magic bytes, never by the name. A local file costs no import
of fsspec, and each unpacker is imported only where a file needs it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from steptime.errors import NotATrace, StepTimeError, TraceError
from steptime.trace.sniff import sniff

if TYPE_CHECKING:
    import zipfile

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_MAX_LAYERS = 4
# Reads of this size keep the inflated block in the processor's cache: measured faster than one read of everything.
_BLOCK = 1 << 20
_PACKED_BLOCK = 128 << 10


def is_url(path: str) -> bool:
    """Whether `path` is for fsspec (`s3://…`, `memory://…`) and not a local path."""
    return _URL.match(path) is not None and not path.startswith("file://")


def local_path(path: str) -> Path:
    """The local file or folder that `path` names; `~` and `file://` are understood."""
    return Path(path.removeprefix("file://")).expanduser()


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn whatever an fsspec driver raises into a TraceError that names `url`.

    Drivers raise the exceptions of their own libraries (botocore, aiohttp, …), which share no base but Exception.
    """
    try:
        yield
    except StepTimeError:
        raise
    except ImportError as error:
        raise TraceError(f"{url}: this URL needs another package ({error}); install it and try again") from error
    except Exception as error:
        cause = str(error).strip().split("\n")[0] or type(error).__name__
        raise TraceError(f"{url}: can't be reached ({cause}); check the URL and the credentials") from error


class TraceStream:
    """The decompressed bytes of one file, from front to back.

    `path` is the file as the user named it, `position` the count of bytes read so far.
    """

    def __init__(self, path: str) -> None:
        """Open `path`. Raises what `open_trace` raises."""
        self.path = path
        self.position = 0
        self._layers: list[_Layer] = []
        self._damage: list[type[Exception]] = []
        try:
            with self._told():
                self._layers.append(self._open_remote() if is_url(path) else local_path(path).open("rb"))
                self._unpack()
        except StepTimeError:
            self.close()
            raise

    def read(self, n: int = -1, /) -> bytes:
        """Return exactly n bytes, fewer only at the end; all that is left if n is negative.

        Raises TraceError if the file is damaged or ends before its packing says so.
        """
        with self._told():
            data = self._layers[-1].read(n) if n >= 0 else self._read_rest()
        self.position += len(data)
        return data

    def close(self) -> None:
        """Close the file and all that unpacks it."""
        while self._layers:
            self._layers.pop().close()

    def __enter__(self) -> TraceStream:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _read_rest(self) -> bytes:
        top = self._layers[-1]
        return b"".join(iter(lambda: top.read(_BLOCK), b""))

    def _open_remote(self) -> _Layer:
        import fsspec

        # Kept as an attribute, since some file systems close their files when they are collected.
        self._file_system, name = fsspec.core.url_to_fs(self.path)
        return io.BufferedReader(self._file_system.open(name, "rb"), _BLOCK)

    def _unpack(self) -> None:
        for depth in range(_MAX_LAYERS + 1):
            head = self._layers[-1].peek(4)[:4]
            if not head:
                raise TraceError(f"{self.path}: holds no bytes; was the writer killed? {_AGAIN}")
            unpack = next((unpack for magic, unpack in _PACKINGS if head.startswith(magic)), None)
            if unpack is None:
                return
            if depth == _MAX_LAYERS:
                raise TraceError(f"{self.path}: packed more than {_MAX_LAYERS} times; unpack it first")
            unpack(self)

    def _unpack_gzip(self) -> None:
        import gzip

        from zlib_ng import gzip_ng, zlib_ng

        damage: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # its stub declares an instance
        self._damage += [gzip.BadGzipFile, damage]
        packed = cast("IO[bytes]", self._layers[-1])
        self._layers.append(gzip_ng.GzipNGFile(fileobj=packed, mode="rb"))  # type: ignore[no-untyped-call]

    def _unpack_zstd(self) -> None:
        import zstandard

        self._damage.append(zstandard.ZstdError)
        self._layers.append(io.BufferedReader(_ZstdFrames(self._layers[-1]), _BLOCK))

    def _unpack_zip(self) -> None:
        import zipfile
        import zlib

        outer = self._layers[-1]
        if len(self._layers) > 1 or not isinstance(outer, io.BufferedReader):
            raise TraceError(f"{self.path}: a zip inside another packing; unpack it first")
        self._damage += [zlib.error, NotImplementedError]
        try:
            archive = zipfile.ZipFile(outer)
        except zipfile.BadZipFile as error:
            raise EOFError from error  # the table of a zip is at its end
        self._damage.append(zipfile.BadZipFile)
        self._layers.append(cast("_Layer", archive.open(self._choose_member(archive))))

    def _choose_member(self, archive: zipfile.ZipFile) -> str:
        names = [name for name in archive.namelist() if not name.endswith("/") and not _is_hidden(name)]
        if any(entry.flag_bits & 1 for entry in archive.infolist()):
            raise TraceError(f"{self.path}: the zip needs a password; unpack it first")
        if len(names) == 1:
            return names[0]
        traces = [name for name in names if self._is_trace(archive, name)]
        if not traces:
            members = f"members {_shortened(names)}" if names else "no member at all"
            raise NotATrace(f"{self.path}: a zip with {members}, none of them a profiler trace; give the trace itself")
        if len(traces) > 1:
            raise TraceError(f"{self.path}: a zip with {len(traces)} traces ({_shortened(traces)}); unpack it first")
        return traces[0]

    def _is_trace(self, archive: zipfile.ZipFile, name: str) -> bool:
        """Sniff one member, unpacked by layers of its own that are dropped again. A damaged one may be a trace."""
        below = len(self._layers)
        try:
            self._layers.append(cast("_Layer", archive.open(name)))
            self._unpack()
            return sniff(self._layers[-1]).trace is True
        except TraceError:
            return False
        except (EOFError, *self._damage):  # type: ignore[misc]  # mypy does not follow the star
            return True
        finally:
            while len(self._layers) > below:
                self._layers.pop().close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say file, cause and remedy for whatever goes wrong while reading."""
        try:
            if is_url(self.path):
                with remote_errors(self.path), self._damage_told():
                    yield
            else:
                with self._damage_told():
                    yield
        except FileNotFoundError as error:
            raise TraceError(f"{self.path}: no such file; check the path") from error
        except OSError as error:
            raise TraceError(f"{self.path}: can't be read ({error.strerror or error}); check the file") from error

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        try:
            yield
        except EOFError as error:
            where = f" after {self.position} bytes of JSON" if self.position else ""
            raise TraceError(f"{self.path}: ends early{where}; was the writer killed? {_AGAIN}") from error
        except tuple(self._damage) as error:
            raise TraceError(f"{self.path}: the packed data is damaged ({error}). {_AGAIN}") from error


def open_trace(path: str) -> TraceStream:
    """Open a local file or fsspec URL as a stream of decompressed bytes.

    gzip (any number of members), zstd (any number of frames), zip (its only member, or the only one that is a trace)
    and a packing inside a packing are unpacked; anything else is passed on as it is.

    Raises TraceError, here or in `read`, if the file is missing, empty, cut short or damaged; NotATrace for a zip
    without a trace.
    """
    return TraceStream(path)


_AGAIN = "Record it again, or leave it out"


class _Layer(Protocol):
    """A file object that can look ahead."""

    def read(self, n: int = -1, /) -> bytes: ...

    def peek(self, n: int, /) -> bytes: ...

    def close(self) -> None: ...


class _ZstdFrames(io.RawIOBase):
    """All frames of a zstd file in a row; EOFError if the last one is cut, which zstandard's own reader hides."""

    def __init__(self, packed: _Layer) -> None:
        import zstandard

        self._packed = packed
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            rest = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
            data = rest or self._packed.read(_PACKED_BLOCK)
            if not data:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._new_frame()
            self._ready = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


_PACKINGS: tuple[tuple[bytes, Callable[[TraceStream], None]], ...] = (
    (b"\x1f\x8b", TraceStream._unpack_gzip),
    (b"\x28\xb5\x2f\xfd", TraceStream._unpack_zstd),
    (b"\x50\x2a\x4d\x18", TraceStream._unpack_zstd),  # the skippable frame that pzstd writes first
    (b"PK\x03\x04", TraceStream._unpack_zip),
    (b"PK\x05\x06", TraceStream._unpack_zip),
)


def _is_hidden(member: str) -> bool:
    parts = member.split("/")
    return parts[0] == "__MACOSX" or any(part.startswith(".") for part in parts)


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
