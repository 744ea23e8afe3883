"""What a watch does off the training thread: look for requests, agree with the other ranks, write files.

A file system that hangs, a full disk or a dead peer hold up this thread only.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from steptime.capture.agreement import FolderAgreement, Place, StoreAgreement, find_place
from steptime.capture.pace import KEPT, Budget
from steptime.capture.recording import NotWritten, Recording
from steptime.capture.request import (
    AUTOMATIC,
    REQUEST_FILE,
    STEP_TIMES_FOLDER,
    CapturePlan,
    CaptureRequest,
    Failed,
    StepTimes,
    failed_file,
    is_automatic,
    new_id,
    plan_file,
    read_request,
    write_whole,
)
from steptime.errors import UsageError

if TYPE_CHECKING:
    from steptime.capture.watch import Watch, WatchSettings

#: A round for each step, unless steps are shorter than the first; then one in the second. A round takes a tenth of a
#: millisecond of a core, and half of that from the training thread.
LEAST_S, SELDOM_S = 0.05, 0.25
#: Between two writings of the step times.
STEP_TIMES_S = 30.0
#: Steps that a rank may be ahead of the one that proposes: hosts run ahead of their devices.
_AHEAD = 2
# Fewer than are kept, so that none is overwritten while they are read.
_SHOWN_STEPS = KEPT - 16


class Bureau:
    """The thread of a watch. Everything public is called from the training thread and returns at once."""

    def __init__(self, watch: Watch, folder: Path, settings: WatchSettings, watch_number: int) -> None:
        self.signalled = False
        self._watch = watch
        self._folder = folder
        self._settings = settings
        self._number = watch_number
        # Settings that no request may have are refused here, not by another rank later.
        msgspec.convert(msgspec.to_builtins(self._request("asked", "")), CaptureRequest)
        self._place = find_place()
        self._agreement = self._agree(self._place)
        self._wanted: CaptureRequest | None = None
        self._to_write: collections.deque[Recording] = collections.deque()
        self._failures: collections.deque[tuple[CapturePlan, str]] = collections.deque()
        self._store_lost = False
        self._served: set[str] = set()
        self._budget = Budget(settings.cooldown_s, settings.captures_a_day)
        self._next_look = self._next_times = 0.0
        self._request_seen: tuple[int, int, int] | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="steptime-watch", daemon=True)

    @property
    def rank(self) -> int:
        """The rank of this process in its job, as far as known."""
        return self._place.rank

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Write what is left, then end; gives up after `timeout_s`."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._watch.warn("stop", f"a trace was not written within {timeout_s:.0f} s of the job's end: it is lost")

    def fell(self, took_ns: int, usual_ns: int | None) -> None:
        """The pace has fallen; a capture is proposed unless it is too soon after the last one."""
        if not self._settings.automatic or self._wanted is not None or not self._budget.allows(time.monotonic()):
            return
        usual = "unknown" if usual_ns is None else f"{usual_ns / 1e6:.1f} ms"
        text = f"rank {self.rank}: the last steps took {took_ns / 1e6:.1f} ms, usually {usual}"
        self._wanted = self._request(AUTOMATIC, text)
        self._wake.set()

    def ask(self, reason: str) -> None:
        """Propose a capture with the settings of the watch."""
        self._wanted = self._request("asked", reason)
        self._wake.set()

    def write(self, recording: Recording) -> None:
        """Write a recording that has stopped."""
        self._to_write.append(recording)
        self._wake.set()

    def failed(self, plan: CapturePlan, reason: str) -> None:
        """Say, in the log and beside the files, why there is none of this rank."""
        self._failures.append((plan, reason))
        self._wake.set()

    def _request(self, prefix: str, reason: str) -> CaptureRequest:
        mine = self._settings
        return CaptureRequest(
            id=new_id(prefix),
            steps=mine.steps,
            warmup_steps=mine.warmup_steps,
            max_seconds=mine.max_seconds,
            max_bytes=mine.max_bytes,
            stacks=mine.stacks,
            reason=reason,
        )

    def _run(self) -> None:
        self._try("directory", lambda: self._folder.mkdir(parents=True, exist_ok=True))
        while not self._stopping:
            self._try("round", self._round)
            self._wake.wait(self._interval_s())
            self._wake.clear()
        self._try("round", self._put_down)

    def _try(self, kind: str, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self._watch.warn("directory", f"{error}: there will be no captures; training goes on")
        except UsageError as error:
            self._watch.warn(str(error), f"{error}; training goes on")
        except Exception as error:  # noqa: BLE001  (this thread must outlive whatever a store or a profiler throws)
            self._watch.warn(kind, f"no capture can be agreed on or written ({error!r}); training goes on")

    def _interval_s(self) -> float:
        typical_s = (self._watch.pace.typical_ns() or 0) / 1e9
        soon = typical_s if typical_s >= LEAST_S else SELDOM_S
        # One store serves all ranks, some ten thousand questions a second.
        return min(max(soon, self._place.world_size / 2000), max(self._settings.poll_s, LEAST_S))

    def _round(self) -> None:
        self._put_down()
        # A watch may be older than the process group.
        if self._place.store is None and not self._store_lost:
            place = find_place()
            if place.store is not None:
                self._place = place
                self._agreement = self._agree(place)
        now = time.monotonic()
        look = now >= self._next_look
        if look:
            self._next_look = now + self._settings.poll_s
        if now >= self._next_times and self._watch.pace.typical_ns() is not None:
            self._next_times = now + STEP_TIMES_S
            self._try("step times", self._write_step_times)
        if self._watch.busy:
            return
        try:
            plan = self._agreement.poll()
        except (RuntimeError, OSError) as error:
            self._lost(error)
            return
        if plan is not None:
            self._adopt(plan)
            return
        request = self._next_wanted() or (self._find_request() if look else None)
        if request is not None:
            self._propose(request)

    def _next_wanted(self) -> CaptureRequest | None:
        if self.signalled and self._wanted is None:
            self.signalled = False
            self._wanted = self._request("signal", f"a signal to rank {self.rank}")
        wanted = self._wanted
        # Another rank saw the same request, or the same fall, and its plan came first.
        if wanted is not None and (
            wanted.id in self._served or (is_automatic(wanted) and not self._budget.allows(time.monotonic()))
        ):
            self._wanted = None
        return self._wanted

    def _agree(self, place: Place) -> StoreAgreement | FolderAgreement:
        if place.store is not None:
            return StoreAgreement(place.store, self._number)
        return FolderAgreement(self._folder, place.rank)

    def _lost(self, error: Exception) -> None:
        """The process that holds the store is gone, and the job with it or soon."""
        self._place = Place(self._place.rank, self._place.world_size)
        self._agreement = FolderAgreement(self._folder, self._place.rank)
        self._store_lost = True
        self._watch.warn("store", f"the other ranks can't be reached ({str(error).splitlines()[0]}); training goes on")

    def _find_request(self) -> CaptureRequest | None:
        try:
            status = os.lstat(self._folder / REQUEST_FILE)
        except FileNotFoundError:
            return None
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen == self._request_seen:
            return None
        self._request_seen = seen
        request = read_request(self._folder)
        if request is None or request.id in self._served or plan_file(self._folder, request.id).exists():
            return None
        self._next_times = 0.0
        return request

    def _propose(self, request: CaptureRequest) -> None:
        """Make a plan of a request, as soon as the pace is known well enough to say when all ranks have heard of it."""
        pace = self._watch.pace
        typical_ns, quick_ns = pace.typical_ns(), pace.quick_ns()
        if typical_ns is None or quick_ns is None:
            self._wanted = request
            return
        self._wanted = None
        most = max(1, math.floor(request.max_seconds / (typical_ns / 1e9)))
        request = msgspec.structs.replace(request, steps=min(request.steps, most))
        place = self._folder / request.id
        if self._agreement.plans:
            # First: a directory that takes no plan takes no trace either, and nobody should pay for one.
            place.mkdir(exist_ok=True)
        number = self._watch.number
        lead_s = self._lead_s()
        plan = CapturePlan(
            request=request,
            first_step=number + _AHEAD + math.ceil(lead_s / (quick_ns / 1e9)),
            world_size=self._place.world_size,
            planned_by=self.rank,
            planned_at=number,
        )
        try:
            agreed = self._agreement.propose(plan)
        except RuntimeError as error:
            self._lost(error)
            return
        if agreed is None:
            return
        if agreed == plan:
            self._try("plan", lambda: self._write_beside(plan_file(self._folder, request.id), plan))
        elif agreed.request.id != request.id:
            with contextlib.suppress(OSError):
                place.rmdir()
            if not is_automatic(request):
                self._wanted = request
        self._adopt(agreed)

    def _lead_s(self) -> float:
        """How long a plan may take to reach all ranks."""
        if self._place.world_size == 1:
            return 0.0
        longest = 2 * self._interval_s()
        if self._settings.lead_s is not None:
            return max(longest, self._settings.lead_s)
        return longest if self._place.store is not None else max(longest, 2 * self._settings.poll_s)

    def _adopt(self, plan: CapturePlan) -> None:
        if plan.request.id in self._served:
            return
        self._served.add(plan.request.id)
        if is_automatic(plan.request):
            self._budget.spend(time.monotonic())
        self._watch.take(plan)

    def _put_down(self) -> None:
        while self._to_write:
            recording = self._to_write.popleft()
            try:
                recording.write(self._folder, self.rank)
            except NotWritten as error:
                self._failures.append((recording.plan, str(error)))
            if recording.cut is not None:
                self._watch.warn("cut", f"capture {recording.plan.request.id}: {recording.cut}")
        while self._failures:
            plan, reason = self._failures.popleft()
            self._watch.warn("failed", f"no trace of rank {self.rank} in capture {plan.request.id}: {reason}")
            place = failed_file(self._folder, plan.request.id, self.rank)
            # The reason is in the log; the place that did not take the trace may not take this either.
            with contextlib.suppress(OSError):
                self._write_beside(place, Failed(rank=self.rank, reason=reason[:1000]))

    def _write_beside(self, place: Path, content: CapturePlan | Failed | StepTimes) -> None:
        """Write a file, and make its folders, but never the capture directory itself: if that is gone, so be it."""
        missing = [folder for folder in place.parents if self._folder in folder.parents]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
        write_whole(place, msgspec.json.encode(content))

    def _write_step_times(self) -> None:
        pace = self._watch.pace
        ended, recent_ns = pace.told(_SHOWN_STEPS)
        times = StepTimes(
            rank=self.rank,
            world_size=self._place.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            step=self._watch.first_step + ended,
            recent_ns=recent_ns,
            baseline_ns=pace.baseline_ns,
        )
        self._write_beside(self._folder / STEP_TIMES_FOLDER / f"rank-{self.rank}.json", times)
