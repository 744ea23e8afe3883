"""Asking a job that watches a directory for a capture, and waiting for the files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from steptime.capture.request import (
    REQUEST_FILE,
    STEP_TIMES_FOLDER,
    Captured,
    CaptureRequest,
    captured_files,
    captures,
    withdraw_request,
    write_request,
)
from steptime.errors import UsageError

#: How often the directory is looked at, in seconds.
_LOOK_S = 0.2
#: A job renews its step times every half minute; after this long without, nothing runs there.
ALIVE_S = 120.0


def is_watched(folder: Path) -> bool:
    """Whether this is, or was, the capture directory of a job with the hook."""
    return (folder / STEP_TIMES_FOLDER).is_dir() or (folder / REQUEST_FILE).is_file() or bool(captures(folder))


def last_sign_s(folder: Path) -> float | None:
    """Seconds since a rank last renewed its step times; None if none ever did."""
    try:
        latest = max((path.stat().st_mtime for path in (folder / STEP_TIMES_FOLDER).iterdir()), default=None)
    except OSError:
        return None
    return None if latest is None else max(time.time() - latest, 0.0)


def ask(
    folder: Path, request: CaptureRequest, timeout_s: float, tick: Callable[[Captured], None] | None = None
) -> Captured:
    """Ask for a capture and wait until every rank of its plan has a file or a reason, at most `timeout_s`.

    What there is at the end is returned, complete or not; a request that nobody took up is withdrawn.

    Raises:
        UsageError: the folder is not a directory that can be written to.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder: name the one that steptime.watch was given")
    write_request(folder, request)
    end = time.monotonic() + timeout_s
    found = captured_files(folder, request.id)
    try:
        while not (found is not None and found.complete) and time.monotonic() < end:
            time.sleep(_LOOK_S)
            found = captured_files(folder, request.id)
            if tick is not None and found is not None:
                tick(found)
    finally:
        withdraw_request(folder, request.id)
    return found or Captured(id=request.id, plan=None, files={}, failed={}, missing=[])
