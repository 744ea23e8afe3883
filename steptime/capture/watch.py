"""The hook inside a training loop: one line that costs next to nothing until a capture is wanted.

::

    watch = steptime.watch("captures")
    for batch in loader:
        train(batch)
        watch.step()

`Watch.step` reads a clock, notes a number and compares; a thread beside it talks to the directory and the other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from steptime.capture.bureau import Bureau
from steptime.capture.pace import Pace
from steptime.capture.recording import Recording, checkpoint_mark
from steptime.capture.request import CapturePlan, is_automatic

_log = logging.getLogger("steptime")
_NEVER = 1 << 62
_numbers = itertools.count()
#: How long a process that ends waits for a trace that is being written.
_LAST_WRITE_S = 120.0


@dataclass(frozen=True)
class WatchSettings:
    """How a watch behaves. Times are in seconds.

    steps, warmup_steps, max_seconds, max_bytes, stacks: of the captures that it starts by itself or on `signal_number`.
    automatic: capture when the pace falls by the share `slower` against the rank's own usual one, at most
    `captures_a_day` times, and not within `cooldown_s` of the last time. poll_s: between two looks for a request.
    lead_s: time that a plan takes to reach all ranks; None: two looks, where it goes through the directory.
    """

    automatic: bool = True
    slower: float = 0.25
    cooldown_s: float = 600.0
    captures_a_day: int = 4
    steps: int = 3
    warmup_steps: int = 1
    max_seconds: float = 60.0
    max_bytes: int = 1 << 30
    stacks: bool = False
    signal_number: int | None = None
    poll_s: float = 2.0
    lead_s: float | None = None


def watch(dir: Path | str, settings: WatchSettings | None = None, first_step: int = 0) -> Watch:
    """Watch the pace of this rank, and capture a trace of all when asked for or when it falls. See `Watch`.

    dir: the capture directory, shared by all ranks; it is made if it is not there. first_step: the number of the step
    that comes next, the same on all ranks. Raises nothing: what does not work is logged, and training goes on.
    """
    return Watch(Path(dir), settings or WatchSettings(), first_step)


class Watch:
    """One rank's watch: call `step` at the end of each training step, and `close` (or leave the ``with``) at the end.

    Nothing here raises into the training loop; trouble is logged once a kind, to the logger ``steptime``.
    """

    def __init__(self, folder: Path, settings: WatchSettings, first_step: int) -> None:
        self.first_step = self.number = first_step
        self.pace = Pace(WatchSettings.slower)
        self._attend_at = _NEVER
        self._plan: CapturePlan | None = None
        self._recording: Recording | None = None
        self._settings = settings
        self._warned: set[str] = set()
        self._closed = False
        self._old_handler: Any = None
        self._bureau: Bureau | None = None
        try:
            self.pace = Pace(float(settings.slower))
            self._bureau = Bureau(self, folder.absolute(), settings, next(_numbers))
            self._bureau.start()
            atexit.register(self.close)
            self._listen()
        except Exception as error:  # noqa: BLE001  (a hook must not end a training)
            self.warn("start", f"the watch does not work ({error!r}); training goes on without it")
        self._last = time.perf_counter_ns()

    def step(self) -> None:
        """A training step has ended, and the next one begins."""
        now = time.perf_counter_ns()
        fell = self.pace.add(now - self._last)
        self._last = now
        self.number = number = self.number + 1
        if fell or number >= self._attend_at:
            self._attend(fell)

    def checkpoint(self) -> contextlib.AbstractContextManager[None]:
        """A context that marks a checkpoint in a trace; `torch.save` is marked without it."""
        return checkpoint_mark()

    def capture(self, reason: str = "asked for by the job") -> None:
        """Ask all ranks for a capture from inside the job; it starts within some steps."""
        if self._bureau is not None:
            self._bureau.ask(reason)

    def close(self) -> None:
        """Stop watching; what was being recorded is written, as far as its steps had ended."""
        if self._closed:
            return
        self._closed = True
        self._attend_at = _NEVER
        atexit.unregister(self.close)
        self._guard("close", self._end_recording)
        if self._bureau is not None:
            self._guard("close", functools.partial(self._bureau.stop, _LAST_WRITE_S))
        if self._old_handler is not None and self._settings.signal_number is not None:
            with contextlib.suppress(ValueError, OSError):
                signal.signal(self._settings.signal_number, self._old_handler)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Called by the bureau, on its thread.

    def take(self, plan: CapturePlan) -> None:
        """Follow a plan; the training thread looks at it at the end of its step."""
        self._plan = plan
        self._attend_at = 0

    @property
    def busy(self) -> bool:
        """Whether there is a plan that is not over."""
        return self._plan is not None

    def warn(self, kind: str, text: str) -> None:
        """Log a warning, once a kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("steptime: %s", text)

    # Called on the training thread, when there is something to do.

    def _attend(self, fell: bool) -> None:
        # First, so that a plan that comes from the bureau meanwhile is seen at the next step.
        self._attend_at = _NEVER
        self._guard("step", functools.partial(self._serve, fell))

    def _serve(self, fell: bool) -> None:
        bureau, plan = self._bureau, self._plan
        if bureau is None or self._closed:
            return
        if plan is None:
            if fell:
                bureau.fell(self.pace.last_ns(1)[-1], self.pace.baseline_ns)
        elif self._recording is not None:
            self.pace.forget_last()
            if self._recording.step(self.number):
                self._attend_at = 0
            else:
                self._end_recording()
        elif self.number < plan.first_step:
            self._attend_at = plan.first_step
        elif bureau.rank not in plan.ranks:
            self._sit_out(plan)
        elif self.number > plan.first_step:
            self._give_up(plan, f"the plan came at step {self.number}, after its first, {plan.first_step}; see lead_s")
        else:
            self._begin(plan)

    def _sit_out(self, plan: CapturePlan) -> None:
        """Others record; this rank waits for them more than it does otherwise."""
        self.pace.forget_last()
        if self.number >= plan.end:
            self._over()
        else:
            self._attend_at = 0

    def _begin(self, plan: CapturePlan) -> None:
        try:
            self._recording = Recording(plan)
        except Exception as error:  # noqa: BLE001  (a profiler can fail in any way, most often: one runs already)
            self._give_up(plan, f"torch.profiler did not start ({error!r})")
        else:
            self._attend_at = 0

    def _end_recording(self) -> None:
        recording, plan, bureau = self._recording, self._plan, self._bureau
        self._recording = None
        if plan is None or bureau is None:
            return
        if recording is None:
            if bureau.rank in plan.ranks:
                self._give_up(
                    plan, f"the job ended at step {self.number}; the capture was to begin at {plan.first_step}"
                )
            return
        try:
            recording.stop()
        except Exception as error:  # noqa: BLE001  (as when it starts)
            self._give_up(plan, f"torch.profiler did not stop ({error!r})")
        else:
            bureau.write(recording)
            self._over()

    def _give_up(self, plan: CapturePlan, reason: str) -> None:
        if self._bureau is not None:
            self._bureau.failed(plan, reason)
        self._over()

    def _over(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None and is_automatic(plan.request):
            self.pace.start_over()

    def _guard(self, kind: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (a hook must not end a training)
            plan, self._plan = self._plan, None
            recording, self._recording = self._recording, None
            if recording is not None:
                with contextlib.suppress(Exception):
                    recording.stop()
            if plan is not None and self._bureau is not None:
                self._bureau.failed(plan, f"the capture was given up ({error!r})")
            else:
                self.warn(kind, f"a capture was given up ({error!r}); training goes on")

    def _listen(self) -> None:
        number = self._settings.signal_number
        if number is None:
            return
        try:
            self._old_handler = signal.signal(number, self._signalled)
        except ValueError as error:
            self.warn("signal", f"signal {number} can't be listened to ({error}); make the watch on the main thread")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._bureau is not None:
            self._bureau.signalled = True
        if callable(self._old_handler):
            self._old_handler(number, frame)
