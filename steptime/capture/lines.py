"""The two ways to a process: as its daemon, or through the dynolog daemon that it has."""

from __future__ import annotations

import time
from collections.abc import Sequence

from steptime.capture.dynolog import Failure, TriggerCall, trigger
from steptime.capture.ipc_server import IpcServer, Order
from steptime.capture.outcome import HERE, Refused
from steptime.capture.processes import Target
from steptime.capture.rounds import Group


class IpcLine:
    """We are the daemon."""

    def __init__(self, server: IpcServer, targets: Sequence[Target]) -> None:
        self._server = server
        self._targets = {target.pid: target for target in targets}
        self.given = server.given
        self.complete = False

    def order(self, texts: Sequence[tuple[Group, str]]) -> list[str]:
        """See `Line.order`."""
        self._server.order({pid: Order(text, self._targets[pid].uid) for group, text in texts for pid in group.pids})
        return []

    def serve(self, seconds: float) -> None:
        """See `Line.serve`."""
        self._server.serve(seconds)

    def why_silent(self, pid: int | None) -> Refused:
        """See `Line.why_silent`."""
        target = self._targets.get(pid or 0)
        if pid in self._server.asking:
            return Refused(pid, HERE, "it is being profiled already", "attach again when that trace is written")
        if target is not None and target.client:
            return Refused(
                pid, HERE, "it did not ask for a request in time", "attach again; it may be stopped or stuck"
            )
        why = "it has KINETO_USE_DAEMON but did not load PyTorch with a profiler"
        return Refused(pid, HERE, why, "give the number of the training process, once it has imported torch")


class RpcLine:
    """A dynolog daemon delivers."""

    def __init__(self, name: str, address: tuple[str, int], timeout_s: float) -> None:
        self._name, self._address, self._timeout_s = name, address, timeout_s
        self.given: dict[int, int] = {}
        self.complete = True
        self._failure: str | None = None

    def order(self, texts: Sequence[tuple[Group, str]]) -> list[str]:
        """See `Line.order`."""
        self.given.clear()
        notes = []
        for group, text in texts:
            reply = trigger(self._address, TriggerCall(text, group.job, list(group.pids)), self._timeout_s)
            if isinstance(reply, Failure):
                self._failure = reply.why
                continue
            # An ancestor may be what was asked for; dynolog names the process itself.
            self.given.update(
                {pid: pid if pid in group.pids or not group.pids else group.pids[0] for pid in reply.triggered}
            )
            if reply.busy:
                notes.append(f"{self._name}: {reply.busy} processes are being profiled already and were left alone")
        return notes

    def serve(self, seconds: float) -> None:
        """See `Line.serve`."""
        time.sleep(seconds)

    def why_silent(self, pid: int | None) -> Refused:
        """See `Line.why_silent`."""
        if self._failure is not None:
            return Refused(pid, self._name, f"dynolog gave no answer: {self._failure}", _no_answer(self._address))
        why = "dynolog knows no such process" if pid is None else "dynolog does not know it, or it is busy"
        return Refused(
            pid, self._name, why, "was it started with KINETO_USE_DAEMON=1? is the job number its SLURM_JOB_ID?"
        )


def _no_answer(address: tuple[str, int]) -> str:
    return f"check with `dyno --hostname {address[0]} --port {address[1]} status`, or stop what holds its socket"
