"""What a log file holds, line by line, and what of it could not be used.

A line that can't be used is never dropped silently: `Refused` counts it and keeps the first few to show.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from dataclasses import dataclass, field

from steptime.errors import LogError

#: Lines that can't be used and are quoted; the rest are counted.
EXAMPLES = 5
_QUOTED = 120
_GZIP, _ZSTD, _BZ2, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Refused:
    """Lines (or records) that could not be used: how many, and the first few with the reason."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, where: str, why: str, text: str = "") -> None:
        """Count one: `where` it stands (``line 12``), `why` it can't be used, and what it says."""
        self.count += 1
        if len(self.examples) < EXAMPLES:
            quoted = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
            self.examples.append(f"{where}: {why}" + (f": {quoted}" if quoted else ""))


def read_log(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a log, unpacked if it is compressed (gzip, bzip2, xz, zstd), without a byte order mark.

    Raises:
        LogError: it can't be read, is empty, is damaged, or is not text in UTF-8.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - a path may hold bytes that are no valid text
            data = file.read()
    except IsADirectoryError as error:
        raise LogError(f"{name}: a folder, not a log: give the files in it") from error
    except FileNotFoundError as error:
        raise LogError(f"{name}: no such file: check the path") from error
    except OSError as error:
        raise LogError(f"{name}: can't be read ({error.strerror}): check the file") from error
    try:
        data = _unpacked(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise LogError(f"{name}: the compressed file is damaged or cut ({error}): copy it again") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise LogError(f"{name}: UTF-16 text: convert it to UTF-8 first")
    data = data.removeprefix(_BOM)
    if not data.strip():
        raise LogError(f"{name}: the file is empty: there is nothing to tell from it")
    return data


def _unpacked(data: bytes) -> bytes:
    if data.startswith(_GZIP):
        return gzip.decompress(data)
    if data.startswith(_BZ2):
        return bz2.decompress(data)
    if data.startswith(_XZ):
        return lzma.decompress(data)
    if data.startswith(_ZSTD):
        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as stream:
                return bytes(stream.read())
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
    return data
