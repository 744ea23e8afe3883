"""Where processes write their traces, and how a complete one gets from there into the user's folder.

The place is a new folder that only the process's user can enter, or a name nobody can guess. What appears there counts
only if it is a plain file of that user under that very name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steptime.errors import TraceError
from steptime.trace.events import I64, Category
from steptime.trace.parse import parse

#: A trace without activities has a head and a few lines on its process: 1 to 2 kB from torch 2.13.
_NEARLY_EMPTY_BYTES = 1 << 20


class Unusable(Exception):  # noqa: N818
    """A file that must not be taken. The text says why."""


@dataclass(frozen=True)
class Landing:
    """Where one group of processes writes. uid: whose files are taken, None for anybody's (other hosts)."""

    log_file: Path
    uid: int | None

    def path(self, pid: int) -> Path:
        """What the process makes of the name."""
        return self.log_file.with_name(f"{self.log_file.stem}_{pid}.json")

    def of_round(self, number: int) -> Landing:
        """The same place under another name, so that a second trace of a process does not hide the first."""
        return Landing(self.log_file.with_name(f"{self.log_file.stem}-{number}.json"), self.uid)

    def arrived(self, pid: int, max_bytes: int) -> Path | None:
        """The complete file of a process; None while there is none.

        Raises:
            Unusable: what is there is no plain file of its user, or too large.
        """
        path = self.path(pid)
        try:
            status = path.lstat()
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode) or (self.uid is not None and status.st_uid != self.uid):
            raise Unusable("what lies under its name is no plain file of its user")
        if status.st_size > max_bytes:
            raise Unusable(f"its trace has {status.st_size} bytes, more than the {max_bytes} allowed")
        return path


@contextlib.contextmanager
def private_landing(trace_dir: Path, uid: int) -> Iterator[Landing]:
    """A folder under `trace_dir` for the processes of one user, gone afterwards with all that is in it.

    Raises:
        OSError: it can't be made.
    """
    folder = Path(tempfile.mkdtemp(prefix="steptime-", dir=trace_dir))
    try:
        if uid != os.geteuid():
            os.chown(folder, uid, -1)
        yield Landing(folder / "trace.json", uid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shared_landing(trace_dir: Path) -> Landing:
    """Names under `trace_dir` itself, for processes of other hosts, which see no folder that is made here."""
    return Landing(trace_dir / f"steptime-{secrets.token_hex(16)}.json", None)


@dataclass(frozen=True)
class Content:
    """What is needed to judge a trace. marks_ns int64 [m]: starts of the optimizer's steps, ns since the epoch; ops:
    how many ops and kernels it holds.
    """

    marks_ns: I64
    ops: int


def read(path: Path) -> Content:
    """Look into a trace.

    Raises:
        Unusable: it is damaged.
    """
    try:
        table = parse(str(path))
    except (TraceError, OSError) as error:
        if _is_empty(path):
            return Content(np.empty(0, np.int64), 0)
        raise Unusable(f"its trace can't be read: {error}") from error
    marks = np.array([name.startswith("Optimizer.step#") for name in table.names], np.bool_)
    host = table.rows(Category.ANNOTATION)
    at = table.start_ns[host[marks[table.name[host]]]] if len(marks) else np.empty(0, np.int64)
    return Content(np.sort(at), len(table.rows(Category.CPU_OP, Category.KERNEL)))


def _is_empty(path: Path) -> bool:
    """Whether it is the trace of a process that did nothing, such as a launcher: complete, and without activities."""
    try:
        text = path.read_bytes() if path.stat().st_size < _NEARLY_EMPTY_BYTES else b""
    except OSError:
        return False
    return b'"traceEvents"' in text and text.rstrip().endswith(b"}") and b'"ph": "X"' not in text


def keep(path: Path, out: Path, name: str, max_bytes: int) -> Path:
    """Move a file into `out` under a name that is free there: complete, or not at all.

    Raises:
        Unusable: it can't be written there, or it grew.
    """
    if not name or Path(name).name != name or name.startswith("."):
        raise Unusable(f"{name!r} is no name of a file inside {out}")
    part = out / f".{name}.{secrets.token_hex(4)}.part"
    try:
        # No link is followed, and what was judged is what is copied: the name could be given to another file meanwhile.
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(source, "rb") as read_from, part.open("xb") as write_to:
            left = max_bytes + 1
            while left and (piece := read_from.read(min(left, 1 << 20))):
                left -= write_to.write(piece)
            write_to.flush()
            os.fsync(write_to.fileno())
        if not left:
            raise Unusable(f"its trace grew beyond the {max_bytes} bytes allowed")
        final = _under_free_name(part, out, name)
        path.unlink(missing_ok=True)
        return final
    except OSError as error:
        raise Unusable(f"its trace can't be written to {out}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _under_free_name(part: Path, out: Path, name: str) -> Path:
    stem, dot, suffix = name.partition(".")
    for again in range(1, 10_000):
        final = out / (name if again == 1 else f"{stem}-again{again}{dot}{suffix}")
        try:
            # A link, unlike a rename, fails if somebody has the name.
            os.link(part, final)
        except FileExistsError:
            continue
        except OSError:
            # A file system without links.
            if final.exists():
                continue
            part.rename(final)
        return final
    raise Unusable(f"{out} holds too many traces of it")
