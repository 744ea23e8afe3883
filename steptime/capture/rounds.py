"""Rounds of asking processes for traces: until the files are what was asked for, or there is no use in asking again.

PyTorch falls back from iterations to half a second without a word if it has seen no optimizer step yet, and ranks that
hear of the request at different times record different steps. Both show only in the files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from steptime.capture.config_text import WARMUP_S, Duration, Iterations, config_text
from steptime.capture.landing import Content, Landing, Unusable, keep, read
from steptime.capture.outcome import HERE, Attached, AttachRequest, Captured, Mode, Refused
from steptime.capture.processes import Target

#: Processes ask every 5 s, and are back from the longest pause after a refused connection in another 5.2 s (kineto
#: doubles 10 ms up to ten times). Who has not asked by then does not.
SILENT_S = 11.0
_POLL_S = 5.5
#: How many times the span between the first and the last rank to hear of a request the rounding must be, so that
#: seldom a rank takes the multiple before the one that the others take.
_ROOMY = 4
_TICK_S = 0.1
_LATE = "its trace did not come"
_IDLE = "it ran no PyTorch op"


@dataclass(frozen=True)
class Group:
    """Wanted processes that get one text: those of one user, job and place. pids: none for all of the job."""

    landing: Landing
    pids: tuple[int, ...]
    job: int


class Line(Protocol):
    """How processes get their texts. given: the process that got one, and the wanted one it is or descends from.
    complete: after `order` nobody else will get one.
    """

    given: dict[int, int]
    complete: bool

    def order(self, texts: Sequence[tuple[Group, str]]) -> list[str]:
        """Have them delivered from now on, and no older ones. What went wrong, a line each."""

    def serve(self, seconds: float) -> None:
        """Do so for a while."""

    def why_silent(self, pid: int | None) -> Refused:
        """Why a wanted process, or with None a whole job, did not get one."""


@dataclass(frozen=True)
class _Trace:
    path: Path
    content: Content
    mode: Mode


@dataclass
class Capture:
    """All rounds with the processes of one host. targets: what is known of them, by number; nothing on another host."""

    line: Line
    host: str
    request: AttachRequest
    deadline: float
    targets: Mapping[int, Target] = field(default_factory=dict)
    _traces: dict[int, _Trace] = field(default_factory=dict)
    _why: dict[int, str] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)
    _wanted: dict[int, int] = field(default_factory=dict)
    _places: dict[int, Path] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)
    _rounds: int = 0

    def run(self, groups: Sequence[Group]) -> Attached:
        """Ask, look, ask again, and take the files into the folder."""
        if self.request.mode == "duration":
            self._round(groups, self._duration(sum(len(group.pids) or 2 for group in groups) > 1))
            return self._taken()
        count = self.request.steps + 1  # As many marks have one step less between them.
        self._round(groups, Iterations(count))
        roundup = 1
        for ask_for_time in (False, True):
            fell = {pid for pid, trace in self._traces.items() if trace.mode == "duration" and trace.content.ops}
            apart = self._apart()
            again = fell | {pid for pid in self._traces if self._team(pid) in self._teams_of(fell | apart)}
            left_s = self.deadline - time.monotonic()
            # What is asked for now and comes too late would be recorded for nobody.
            if not again or left_s < 2 * _POLL_S:
                break
            roundup = self._roundup(apart) if apart else roundup
            by_time = ask_for_time or roundup * self._step_s(apart) > left_s - _POLL_S
            self._say_why_again(fell, apart, by_time)
            subset = only(groups, {self._wanted.get(pid, pid) for pid in again})
            if by_time:
                self._round(subset, self._duration(len(again) > 1))
                break
            self._round(subset, Iterations(count, roundup))
        return self._taken()

    def _duration(self, several: bool) -> Duration:
        ms = max(1, round(self.request.seconds * 1000))
        if not several:
            return Duration(ms)
        heard_s = SILENT_S if self._rounds == 0 else _POLL_S
        return Duration(ms, round((time.time() + heard_s + WARMUP_S + 0.5) * 1000))

    def _round(self, groups: Sequence[Group], ask: Iterations | Duration) -> None:
        self._rounds += 1
        groups = [replace(group, landing=group.landing.of_round(self._rounds)) for group in groups]
        options = (self.request.record_shapes, self.request.with_stacks)
        texts = [(group, config_text(ask, group.landing.log_file, *options)) for group in groups]
        self._notes += self.line.order(texts)
        files, why = self._wait(groups)
        for pid, path in files.items():
            try:
                content = read(path)
            except Unusable as error:
                why[pid] = str(error)
                continue
            if pid in self._traces:
                self._traces[pid].path.unlink(missing_ok=True)
            self._traces[pid] = _Trace(path, content, _mode(ask, content))
        if self._rounds == 1:
            reached = set(self.line.given.values())
            self._silent = {pid for group in groups for pid in group.pids} - reached
        self._wanted.update(self.line.given)
        self._why.update({pid: text for pid, text in why.items() if pid not in self._traces})

    def _wait(self, groups: Sequence[Group]) -> tuple[dict[int, Path], dict[int, str]]:
        landing_of = {pid: group.landing for group in groups for pid in group.pids}
        wanted = set(landing_of)
        files: dict[int, Path] = {}
        why: dict[int, str] = {}
        silent_at = time.monotonic() + SILENT_S
        while True:
            self.line.serve(_TICK_S)
            gone = self._gone()
            for pid, asked in self.line.given.items():
                if pid in files or pid in why:
                    continue
                landing = landing_of.get(asked, groups[0].landing)
                self._places[pid] = landing.path(pid)
                try:
                    path = landing.arrived(pid, self.request.max_bytes)
                except Unusable as error:
                    why[pid] = str(error)
                    continue
                if path is not None:
                    files[pid] = path
                elif pid in gone:
                    why[pid] = "it ended during the capture"
            now = time.monotonic()
            waiting = set(self.line.given) - set(files) - set(why)
            heard = bool(wanted) and wanted <= set(self.line.given.values())
            if now >= self.deadline or (not waiting and (heard or self.line.complete or now >= silent_at)):
                why.update(dict.fromkeys(waiting, f"{_LATE} within {self.request.timeout_s:g} s"))
                return files, why

    def _gone(self) -> set[int]:
        """Processes of this host that ended; only those whose number here is their own."""
        if self.host != HERE:
            return set()
        return {pid for pid, asked in self.line.given.items() if pid == asked and not Path(f"/proc/{pid}").exists()}

    def _apart(self) -> set[int]:
        """Processes of one job whose recorded steps do not all overlap in time. All on one host, so on one clock."""
        found = set()
        for team in self._teams_of(set(self._traces)):
            marks = {
                pid: trace.content.marks_ns
                for pid, trace in self._traces.items()
                if self._team(pid) == team and len(trace.content.marks_ns)
            }
            if len(marks) > 1 and max(at[0] for at in marks.values()) >= min(at[-1] for at in marks.values()):
                found |= set(marks)
        return found

    def _teams_of(self, pids: set[int]) -> set[str]:
        return {self._team(pid) for pid in pids} - {""}

    def _team(self, pid: int) -> str:
        """What the ranks of its job share; "" if its steps need not be those of others."""
        return self.targets[pid].team if pid in self.targets else ""

    def _step_s(self, pids: set[int]) -> float:
        gaps = [np.diff(self._traces[pid].content.marks_ns) for pid in pids]
        joined = np.concatenate(gaps) if gaps else np.empty(0)
        return float(np.median(joined)) / 1e9 if len(joined) else 0.0

    def _roundup(self, apart: set[int]) -> int:
        return max(2, math.ceil(_ROOMY * _POLL_S / max(self._step_s(apart), 1e-3)))

    def _say_why_again(self, fell: set[int], apart: set[int], by_time: bool) -> None:
        how = f"for {self.request.seconds:g} s instead" if by_time else "once more"
        if fell:
            who = ", ".join(map(str, sorted(fell)))
            self._notes.append(
                f"{self.host}: process {who} recorded half a second, not steps (none seen yet); asked {how}"
            )
        if apart:
            who = ", ".join(map(str, sorted(apart)))
            self._notes.append(f"{self.host}: processes {who} recorded different steps; asked {how}")

    def _taken(self) -> Attached:
        """Move the files; say what is missing."""
        result = Attached(notes=self._notes)
        for pid, trace in sorted(self._traces.items()):
            if not trace.content.ops:
                self._why[pid] = f"{_IDLE} while it was recorded"
                continue
            try:
                file = keep(trace.path, self.request.out, self._name(pid), self.request.max_bytes)
            except Unusable as error:
                self._why[pid] = str(error)
                continue
            result.captured.append(Captured(file, pid, self.host, trace.mode))
            if trace.mode != self.request.mode:
                result.notes.append(
                    f"{self.host}: process {pid} was recorded by {trace.mode}: it marks no optimizer steps"
                )
        taken = {trace.pid for trace in result.captured}
        for pid in sorted(set(self._why) - taken):
            if _IDLE in self._why[pid] and self._stands_for(pid, taken):
                result.notes.append(f"{self.host}: process {pid} only started others, which were recorded")
            else:
                result.refused.append(self._refusal(pid))
        if self._apart():
            result.notes.append(f"{self.host}: the files of one job hold different steps; ask for a duration")
        result.refused.extend(self.line.why_silent(pid) for pid in sorted(self._silent))
        return result

    def _name(self, pid: int) -> str:
        target = self.targets.get(self._wanted[pid])
        rank = "" if target is None or target.rank is None else f"rank{target.rank}_"
        return f"{rank}pid{pid}.pt.trace.json"

    def _stands_for(self, pid: int, taken: set[int]) -> bool:
        return any(number in self.targets and self.targets[number].root == pid for number in taken)

    def _refusal(self, pid: int) -> Refused:
        why = self._why[pid]
        if self.host != HERE and _LATE in why:
            why = f"its trace lies on that host and is not visible here: {self._places[pid]}"
            return Refused(pid, self.host, why, f"scp {self.host}:{self._places[pid]} {self.request.out}/")
        remedies = {
            _LATE: "is it stuck? `py-spy dump --pid` tells; ask again with a longer timeout",
            _IDLE: "give the number of the training process, not of its launcher, or record longer",
            "bytes": "ask for fewer steps or seconds, without shapes and stacks, or allow more bytes",
            "ended": "attach to a process that runs",
        }
        remedy = next((text for sign, text in remedies.items() if sign in why), "mend that, then attach again")
        return Refused(pid, self.host, why, remedy)


def _mode(ask: Iterations | Duration, content: Content) -> Mode:
    """How a trace was taken. Several optimizers leave several marks a step, hence a multiple."""
    marks = len(content.marks_ns)
    return "iterations" if isinstance(ask, Iterations) and marks and marks % ask.count == 0 else "duration"


def only(groups: Sequence[Group], pids: set[int]) -> list[Group]:
    """The groups with these processes only. One for a whole job has no list to cut, and is narrowed to them."""
    narrowed = [
        replace(group, pids=tuple(pid for pid in (group.pids or sorted(pids)) if pid in pids)) for group in groups
    ]
    return [group for group in narrowed if group.pids]
