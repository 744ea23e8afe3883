"""What is agreed through the shared directory: requests, plans, step times, and the files of a capture.

::

    DIR/request.json                   the latest request, written by whoever asks
    DIR/plan.json                      the plan of rank 0, where the ranks share no store
    DIR/step_times/rank-3.json         the last steps of each rank, renewed every half minute
    DIR/plans/ID.json                  which steps of the job capture ID holds
    DIR/plans/ID/rank-3.json           why rank 3 has no trace of it
    DIR/ID/rank-3.pt.trace.json.gz     the traces, and nothing else

Every file is written beside its place and renamed, so a reader finds it whole or not at all. Nothing depends on a wall
clock: a request is served once, because the plan of its id then exists.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from steptime.errors import UsageError

REQUEST_FILE = "request.json"
PLAN_FILE = "plan.json"
STEP_TIMES_FOLDER = "step_times"
TRACE_SUFFIX = ".pt.trace.json.gz"
PLANS_FOLDER = "plans"

#: Captures that a job starts by itself, since its pace fell, have ids that begin so.
AUTOMATIC = "slow"

#: A file of these kinds is a few hundred bytes; one that is longer is none.
MAX_BYTES = 1 << 20

# An id names a folder inside the shared directory, beside those that are there anyway; it has no dot and no separator.
_Id = Annotated[str, msgspec.Meta(pattern=r"^(?!(?:plans|step_times)$)[A-Za-z0-9_-]{1,64}$")]
_Rank = Annotated[int, msgspec.Meta(ge=0)]
_Steps = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. ranks: empty for all.

    steps: recorded after `warmup_steps`, which are thrown away. max_seconds: of recording; max_bytes: of the written
    trace of a rank before compression. A capture that hits a bound ends early, or leaves no file, and says so.
    """

    id: _Id
    steps: _Steps = 3
    warmup_steps: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    max_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1 << 30
    ranks: list[_Rank] = []
    stacks: bool = False
    reason: _Text = "asked for"


class CapturePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks agreed on: warm-up from `first_step`, a step to meet in, then `request.steps` recorded steps.

    In the step to meet in the ranks record already, but it has no mark: the first collective of a recording waits for
    the moment at which each profiler started, and that should not be in a step that counts.

    world_size: of the job; planned_by: the rank that proposed it at its step `planned_at`.
    """

    request: CaptureRequest
    first_step: Annotated[int, msgspec.Meta(ge=0)]
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    planned_by: _Rank = 0
    planned_at: int = 0

    @property
    def first_recorded(self) -> int:
        """Number of the first step whose mark is in the files."""
        return self.first_step + self.request.warmup_steps + 1

    @property
    def end(self) -> int:
        """Number of the step after the last recorded one."""
        return self.first_recorded + self.request.steps

    @property
    def ranks(self) -> list[int]:
        """The ranks that record, ascending."""
        wanted = sorted({rank for rank in self.request.ranks if rank < self.world_size})
        return wanted if self.request.ranks else list(range(self.world_size))


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The pace of one rank. step: the one that runs. recent_ns: durations of the last steps, oldest first, without
    those of captures, which take longer for being recorded.

    baseline_ns: the rank's own usual duration of a step; None before it is known.
    """

    rank: _Rank
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    host: _Text = ""
    pid: int = 0
    step: int = 0
    recent_ns: Annotated[list[int], msgspec.Meta(max_length=4096)] = []
    baseline_ns: int | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank left no trace of a capture."""

    rank: _Rank
    reason: _Text


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one capture. plan: None before the ranks agreed. files, failed: by rank.

    missing: ranks of the plan that have neither a file nor a reason yet: still at it, or dead.
    """

    id: str
    plan: CapturePlan | None
    files: dict[int, Path]
    failed: dict[int, str]
    missing: list[int]

    @property
    def complete(self) -> bool:
        """Whether every rank of the plan has a file or a reason."""
        return self.plan is not None and not self.missing


_T = TypeVar("_T", CaptureRequest, CapturePlan, StepTimes, Failed)


def new_id(prefix: str = "capture") -> str:
    """A name that no other capture has."""
    return f"{prefix}-{secrets.token_hex(4)}"


def is_automatic(request: CaptureRequest) -> bool:
    """Whether the job itself asked, since its pace fell."""
    return request.id.startswith(f"{AUTOMATIC}-")


def write_request(folder: Path | str, request: CaptureRequest) -> Path:
    """Ask the job that watches `folder` for a capture; returns the file.

    Raises:
        UsageError: a bound is out of range, or the folder can't be written.
    """
    folder = Path(folder)
    try:
        msgspec.convert(msgspec.to_builtins(request), CaptureRequest)
    except msgspec.ValidationError as error:
        raise UsageError(f"{folder}: no such capture can be asked for: {error}") from None
    try:
        return write_whole(folder / REQUEST_FILE, msgspec.json.encode(request))
    except OSError as error:
        raise UsageError(f"{folder}: no request can be written ({error.strerror}); is it the job's folder?") from None


def withdraw_request(folder: Path | str, capture_id: str) -> None:
    """Take a request back if it is still the latest and was not served; a folder that is gone is fine."""
    folder = Path(folder)
    try:
        if (latest := read_request(folder)) is not None and latest.id == capture_id:
            (folder / REQUEST_FILE).unlink(missing_ok=True)
    except (OSError, UsageError):
        return


def read_request(folder: Path | str) -> CaptureRequest | None:
    """The latest request; None if there is none.

    Raises:
        UsageError: the file is damaged, out of bounds, or of another user.
        OSError: it can't be read.
    """
    return read_agreed(Path(folder) / REQUEST_FILE, CaptureRequest)


def read_step_times(folder: Path | str) -> dict[int, StepTimes]:
    """The pace of each rank that has written it, by rank; files that can't be read are left out."""
    found = (read_or_none(path, StepTimes) for path in _names(Path(folder) / STEP_TIMES_FOLDER, ".json"))
    return {times.rank: times for times in found if times is not None}


def captures(folder: Path | str) -> list[str]:
    """The ids of all captures in `folder`, the latest last."""
    try:
        plans = [entry for entry in (Path(folder) / PLANS_FOLDER).glob("[!.]*.json") if entry.is_file()]
        return [plan.stem for plan in sorted(plans, key=lambda plan: (plan.stat().st_mtime_ns, plan.name))]
    except OSError:
        return []


def captured_files(folder: Path | str, capture_id: str | None = None) -> Captured | None:
    """What there is of one capture, by default the latest; None if there is none by default."""
    if capture_id is None:
        known = captures(folder)
        if not known:
            return None
        capture_id = known[-1]
    folder = Path(folder)
    plan = read_or_none(plan_file(folder, capture_id), CapturePlan)
    found = _names(folder / capture_id, TRACE_SUFFIX)
    files = {rank: path for path in found if (rank := _rank_of(path)) is not None}
    reasons = [read_or_none(path, Failed) for path in _names(plan_file(folder, capture_id).with_suffix(""), ".json")]
    failed = {one.rank: one.reason for one in reasons if one is not None and one.rank not in files}
    expected: Sequence[int] = [] if plan is None else plan.ranks
    missing = [rank for rank in expected if rank not in files and rank not in failed]
    return Captured(id=capture_id, plan=plan, files=dict(sorted(files.items())), failed=failed, missing=missing)


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file beside its place and rename it. Raises OSError, and then leaves nothing."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    return path


def read_agreed(path: Path, kind: type[_T]) -> _T | None:
    """A file of this module; None if there is none. Only the same user's and root's count: it makes a job do things.

    Raises:
        UsageError: the file is damaged, out of bounds, of another user, or no plain file.
        OSError: it can't be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a plain file; it is left alone")
        if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
            raise UsageError(f"{path}: written by user {status.st_uid}; only the job's own user or root may ask")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: longer than {MAX_BYTES} bytes; it is left alone")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not what steptime writes ({error}); it is left alone") from None


def read_or_none(path: Path, kind: type[_T]) -> _T | None:
    """As `read_agreed`, but a file that can't be used is as good as none."""
    try:
        return read_agreed(path, kind)
    except (OSError, UsageError):
        return None


def plan_file(folder: Path, capture_id: str) -> Path:
    """Where the plan of a capture goes."""
    return folder / PLANS_FOLDER / f"{capture_id}.json"


def failed_file(folder: Path, capture_id: str, rank: int) -> Path:
    """Where it says why a rank has no trace."""
    return folder / PLANS_FOLDER / capture_id / f"rank-{rank}.json"


def trace_file(folder: Path, capture_id: str, rank: int) -> Path:
    """Where the trace of a rank goes."""
    return folder / capture_id / f"rank-{rank}{TRACE_SUFFIX}"


def _names(folder: Path, suffix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith("rank-") and path.name.endswith(suffix))
    except OSError:
        return []


def _rank_of(path: Path) -> int | None:
    found = re.match(r"rank-(\d{1,6})\.", path.name)
    return None if found is None else int(found[1])
