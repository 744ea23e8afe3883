"""Traces of running processes, taken from outside and without a change of their code.

The processes must have been started with ``KINETO_USE_DAEMON=1``. We are their daemon for as long as it takes; where a
dynolog daemon is already, it is asked instead.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from steptime.capture.config_text import WARMUP_S
from steptime.capture.dynolog import host_and_port
from steptime.capture.ipc_server import IpcServer
from steptime.capture.landing import private_landing, shared_landing
from steptime.capture.lines import IpcLine, RpcLine
from steptime.capture.outcome import HERE, Attached, AttachRequest, Captured, Mode, Refused
from steptime.capture.processes import Target, find_targets
from steptime.capture.rounds import SILENT_S, Capture, Group, Line, only
from steptime.errors import CaptureError

__all__ = ["HERE", "AttachRequest", "Attached", "Captured", "Mode", "Refused", "attach"]

MOST_STEPS, MOST_SECONDS, MOST_TIMEOUT_S = 1000, 600.0, 86_400.0
_HOSTS_AT_ONCE = 64
_RPC_TIMEOUT_S = 10.0
#: A large trace takes its process this long to write.
_WRITING_S = 30.0


def attach(request: AttachRequest) -> Attached:
    """Capture one trace of each process, on this machine or on the dynolog hosts.

    What can't be captured is in the answer with its reason; other processes go on.

    Raises:
        CaptureError: nothing is asked for, a bound makes no sense, or `out` can't be written.
    """
    _check(request)
    deadline = time.monotonic() + request.timeout_s
    if request.dynolog:
        return _on_hosts(request, deadline)
    if not sys.platform.startswith("linux"):
        raise CaptureError("processes can be attached to on Linux only; give dynolog hosts, or use steptime.watch")
    targets, refused = find_targets(request.pids, request.job)
    result = Attached(refused=refused)
    if targets:
        result.add(_here(request, targets, deadline))
    return result


def _check(request: AttachRequest) -> None:
    if not (request.pids or request.dynolog or request.job not in (None, "")):
        raise CaptureError("nothing to attach to: give process numbers, a job or dynolog hosts")
    bounds = (
        ("steps", request.steps, 1, MOST_STEPS),
        ("seconds", request.seconds, 0.001, MOST_SECONDS),
        ("timeout", request.timeout_s, 1, MOST_TIMEOUT_S),
        ("bytes", request.max_bytes, 1, 1 << 50),
    )
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise CaptureError(f"{name}: {value} is not between {least} and {most:g}")
    if any(not 0 < pid < 1 << 31 for pid in request.pids):
        raise CaptureError(f"{min(request.pids)} is no process number")
    # It goes into a text of one key a line.
    if not request.trace_dir.is_absolute() or "\n" in str(request.trace_dir) or ".." in request.trace_dir.parts:
        raise CaptureError(f"{request.trace_dir} is no absolute path of a folder for traces")
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(f"{request.out} can't be made: {error.strerror}; give another folder") from error
    if not os.access(request.out, os.W_OK | os.X_OK):
        raise CaptureError(f"{request.out} can't be written; give another folder")


def _here(request: AttachRequest, targets: Sequence[Target], deadline: float) -> Attached:
    with contextlib.ExitStack() as stack:
        groups, refused = _groups(targets, stack)
        result = Attached(refused=refused)
        server = stack.enter_context(IpcServer({target.folder for target in targets}))
        mine: list[Target] = []
        theirs: list[Target] = []
        for target in targets:
            reason = server.unusable.get(target.folder, "")
            if reason:
                why = f"no socket can be made in its KINETO_IPC_SOCKET_DIR, {target.folder}: {reason}"
                result.refused.append(Refused(target.pid, HERE, why, "make that folder, and let this user write there"))
            else:
                (theirs if reason is None else mine).append(target)
        if mine:
            line: Line = IpcLine(server, mine)
            result.add(_capture(line, request, mine, deadline).run(only(groups, {target.pid for target in mine})))
        if theirs:
            result.notes.append(f"{HERE}: another daemon has the socket of these processes; dynolog was asked instead")
            line = RpcLine(HERE, (HERE, request.dynolog_port), _RPC_TIMEOUT_S)
            result.add(_capture(line, request, theirs, deadline).run(only(groups, {target.pid for target in theirs})))
        return result


def _groups(targets: Sequence[Target], stack: contextlib.ExitStack) -> tuple[list[Group], list[Refused]]:
    """By user, job and where they write. The places are gone when the stack is closed."""
    members: dict[tuple[int, int, Path], list[int]] = {}
    for target in targets:
        members.setdefault((target.uid, target.job, target.trace_dir), []).append(target.pid)
    groups, refused = [], []
    for (uid, job, trace_dir), pids in members.items():
        try:
            landing = stack.enter_context(private_landing(trace_dir, uid))
        except OSError as error:
            why = f"no folder can be made in {trace_dir}, where it writes traces: {error.strerror}"
            refused += [Refused(pid, HERE, why, "make room there, or let this user write there") for pid in pids]
            continue
        groups.append(Group(landing, tuple(pids), job))
    return groups, refused


def _capture(line: Line, request: AttachRequest, targets: Sequence[Target], deadline: float) -> Capture:
    return Capture(line, HERE, request, deadline, {target.pid: target for target in targets})


def _on_hosts(request: AttachRequest, deadline: float) -> Attached:
    result = Attached()
    job = request.job or 0
    if not str(job).isdigit():
        raise CaptureError(f"job {job!r}: dynolog knows a job by its Slurm number only")
    try:
        hosts = {text: host_and_port(text, request.dynolog_port) for text in request.dynolog}
    except ValueError as error:
        raise CaptureError(f"{error}") from error
    if len(hosts) > 1 and request.mode == "iterations":
        request = replace(request, mode="duration")
        result.notes.append(f"several hosts can't agree on steps; recorded {request.seconds:g} s from one instant on")

    def one(_: str, address: tuple[str, int]) -> Attached:
        # Files of another host may never become visible here, so the wait for them has its own end.
        until = deadline
        if address[0] != HERE:
            until = min(deadline, time.monotonic() + SILENT_S + WARMUP_S + request.seconds + _WRITING_S)
        line = RpcLine(address[0], address, min(_RPC_TIMEOUT_S, request.timeout_s))
        group = Group(shared_landing(request.trace_dir), request.pids, int(job))
        got = Capture(line, address[0], request, until).run([group])
        if not got.captured and not got.refused:
            got.refused.append(line.why_silent(None))
        return got

    with ThreadPoolExecutor(min(len(hosts), _HOSTS_AT_ONCE)) as pool:
        for got in pool.map(one, hosts, hosts.values()):
            result.add(got)
    return result
