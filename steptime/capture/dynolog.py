"""Asking a dynolog daemon for traces, over its RPC (TCP, no authentication: dynolog trusts its network)."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Literal

import msgspec

from steptime.capture.wire import WireError, frame, read_frame

#: dynolog triggers no more processes than this in one request.
MOST_PROCESSES = 1000


class Reply(msgspec.Struct, frozen=True):
    """What dynolog says of a trace request. triggered: processes that get it at their next poll."""

    matched: list[int] = msgspec.field(name="processesMatched")
    triggered: list[int] = msgspec.field(name="activityProfilersTriggered")
    busy: int = msgspec.field(name="activityProfilersBusy", default=0)


class TriggerCall(msgspec.Struct, frozen=True):
    """A trace request. pids: empty for all processes of the job."""

    config: str
    job_id: int
    pids: list[int]
    process_limit: int = MOST_PROCESSES
    fn: Literal["setKinetOnDemandRequest"] = "setKinetOnDemandRequest"


@dataclass(frozen=True)
class Failure:
    """A host that gave no usable answer."""

    why: str


def host_and_port(text: str, default_port: int) -> tuple[str, int]:
    """Of ``host``, ``host:port``, ``[v6]:port`` or a bare IPv6 address.

    Raises:
        ValueError: there is no host, or the port is none.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is no host or host:port")
    return host, int(port)


def trigger(host: tuple[str, int], call: TriggerCall, timeout_s: float) -> Reply | Failure:
    """One request to one daemon. Never raises for what the network or the daemon does."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection(host, timeout=timeout_s) as connection:
            connection.sendall(frame(call))

            def receive(count: int) -> bytes:
                # A daemon that sends a byte now and then must not hold the call up for ever.
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("no complete answer in time")
                connection.settimeout(left)
                return connection.recv(count)

            return read_frame(receive, Reply)
    except TimeoutError:
        return Failure(f"no answer within {timeout_s:g} s")
    except WireError as error:
        return Failure(f"what answers is not dynolog: {error}")
    except (OSError, UnicodeError) as error:
        return Failure(getattr(error, "strerror", None) or str(error))
