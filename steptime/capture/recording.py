"""One bounded recording with torch.profiler, and its file, which is there whole or not at all."""

from __future__ import annotations

import contextlib
import gc
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steptime.capture.request import CapturePlan, trace_file

GC_MARK, CHECKPOINT_MARK = "steptime::gc", "steptime::checkpoint"
#: Collections of the youngest generation look at some hundred objects and are over in microseconds.
MARKED_GENERATION = 1

_COMPRESSION = 3
_CHUNK = 1 << 20


class NotWritten(Exception):
    """A trace was recorded but is not in the folder; the text says why."""


class Recording:
    """The profiler of one rank from `plan.first_step` on; all its methods are called on the training thread.

    The marks carry the numbers of the job's own steps. The step before the first one that counts is recorded, too, and
    loses its mark in the file (see `CapturePlan`). While it lasts, garbage collections and `torch.save` are
    annotated, since neither leaves an event otherwise.
    """

    def __init__(self, plan: CapturePlan) -> None:
        import torch

        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is running")
        self.plan = plan
        self.finished_steps = 0
        self._why_cut = "the job ended"
        self._began = time.monotonic()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=self._action,
            record_shapes=True,
            with_stack=plan.request.stacks,
        )
        self._profiler.step_num = plan.first_step
        self._marks = _Marks()
        self._profiler.start()
        self._marks.set()

    def _action(self, number: int) -> Any:
        from torch.profiler import ProfilerAction

        if number < self.plan.first_recorded - 1:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if number < self.plan.end - 1 else ProfilerAction.RECORD_AND_SAVE

    def step(self, number: int) -> bool:
        """The step before `number` has ended; False if the recording is over with it."""
        if number > self.plan.first_recorded:
            self.finished_steps += 1
        if number >= self.plan.end:
            return False
        if time.monotonic() - self._began > self.plan.request.max_seconds:
            self._why_cut = f"it took more than {self.plan.request.max_seconds:g} s"
            return False
        self._profiler.step()
        return True

    def stop(self) -> None:
        """End the recording; nothing is written yet."""
        self._marks.clear()
        self._profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def cut(self) -> str | None:
        """Why it holds fewer steps than planned, None if it holds all."""
        if self.finished_steps >= self.plan.request.steps:
            return None
        return f"it holds {self.finished_steps} of {self.plan.request.steps} steps, since {self._why_cut}"

    def write(self, folder: Path, rank: int) -> Path:
        """Write what was recorded, on any thread. A step that had not ended loses its mark, so that none counts it.

        Raises:
            NotWritten: no step was recorded to its end, the file is too big, or the disk did not take it.
        """
        if not self.finished_steps:
            raise NotWritten("it ended before a recorded step had")
        place = trace_file(folder, self.plan.request.id, rank)
        plain = place.with_name(f".{place.name}.{secrets.token_hex(4)}.json.tmp")
        packed = plain.with_suffix(".gz.tmp")
        try:
            place.parent.mkdir(exist_ok=True)
            self._profiler.export_chrome_trace(str(plain))
            _check(plain, self.plan.request.max_bytes)
            _pack(plain, packed, self._other_marks())
            packed.replace(place)
        except (OSError, RuntimeError) as error:
            raise NotWritten(f"{place} can't be written ({error})") from error
        finally:
            for path in (plain, _unrenamed(plain), packed):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        return place

    def _other_marks(self) -> dict[str, str]:
        """New names for the marks that are not those of a step to count."""
        lead, number = self.plan.first_recorded - 1, self.plan.first_recorded + self.finished_steps
        names = {f"ProfilerStep#{lead}": f"steptime::lead {lead}"}
        if number < self.plan.end:
            names[f"ProfilerStep#{number}"] = f"steptime::unfinished {number}"
        return names


def _unrenamed(plain: Path) -> Path:
    """Where the profiler itself writes before it renames."""
    return plain.with_name(f"{plain.name}.tmp")


def _check(plain: Path, max_bytes: int) -> None:
    """The profiler raises nothing when a disk is full: it leaves its file unrenamed, or cut.

    Raises:
        NotWritten: the file is not there, is cut, or is longer than allowed.
    """
    try:
        size = plain.stat().st_size
        with plain.open("rb") as file:
            file.seek(max(0, size - 4096))
            tail = file.read().rstrip()
    except OSError as error:
        why = "is its disk full" if _unrenamed(plain).exists() else f"{error.strerror}; is it still there"
        raise NotWritten(f"the profiler could not write its file into {plain.parent} ({why}?)") from None
    if not (tail.endswith(b"}") and b'"traceName"' in tail):
        raise NotWritten(f"the profiler's file in {plain.parent} was cut at {size} bytes (is its disk full?)")
    if size > max_bytes:
        raise NotWritten(f"it is {size} bytes long, more than the {max_bytes} allowed; record fewer steps")


def _pack(plain: Path, packed: Path, names: dict[str, str]) -> None:
    """Compress, and give some events other names."""
    from zlib_ng import gzip_ng

    packer: Any = gzip_ng
    with plain.open("rb") as source, packer.open(packed, "wb", compresslevel=_COMPRESSION) as out:
        # A line is never cut, so no name is.
        while chunk := source.read(_CHUNK) + source.readline():
            for old, new in names.items():
                chunk = chunk.replace(f'"{old}"'.encode(), f'"{new}"'.encode())
            out.write(chunk)


class _Marks:
    """Annotations of what leaves no event: garbage collections, and `torch.save`."""

    def __init__(self) -> None:
        from torch.profiler import record_function

        self._mark: Any = record_function  # Nothing is imported while garbage is collected.
        self._open: Any = None
        self._save: Callable[..., Any] | None = None
        self._wrapped: Callable[..., Any] | None = None

    def set(self) -> None:
        import torch

        gc.callbacks.append(self._collects)
        self._save = save = torch.save

        def save_with_mark(*args: Any, **kwargs: Any) -> Any:
            with self._mark(CHECKPOINT_MARK):
                return save(*args, **kwargs)

        self._wrapped = save_with_mark
        torch.save = save_with_mark

    def clear(self) -> None:
        import torch

        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collects)
        # If something else has wrapped it meanwhile, that holds on to this one, which still saves.
        if self._save is not None and torch.save is self._wrapped:
            torch.save = self._save

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] >= MARKED_GENERATION:
            self._open = self._mark(GC_MARK)
            self._open.__enter__()
        elif phase == "stop" and self._open is not None:
            mark, self._open = self._open, None
            mark.__exit__(None, None, None)


@contextlib.contextmanager
def checkpoint_mark() -> Iterator[None]:
    """Annotate a checkpoint, if torch is there at all."""
    if "torch" not in sys.modules:
        yield
        return
    from torch.profiler import record_function

    with record_function(CHECKPOINT_MARK):
        yield
