"""What is asked of `attach`, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Mode = Literal["iterations", "duration"]

#: The host of a process on this machine.
HERE = "localhost"


@dataclass(frozen=True)
class AttachRequest:
    """What to capture, of which processes, and within which bounds.

    out: the folder that receives the files; made if need be. pids: processes of this machine; a launcher stands for
    the processes it started. job: a Slurm job number, or a text that the command lines of the processes hold. One of
    the two, or dynolog hosts, must be given.

    mode "iterations" records `steps` whole steps, "duration" records `seconds`. Iterations fall back to duration when
    a process does not mark its optimizer steps, which `Captured.mode` and a note tell.

    timeout_s bounds the whole call. max_bytes bounds each file; a larger one is refused. dynolog: hosts, or host:port,
    where a dynolog daemon is asked instead; pids and a job number are then theirs, all processes without. Theirs write
    under trace_dir, which must be what they have as KINETO_ONDEMAND_TRACE_DIR unless it is /tmp; what is not visible
    here under that path is refused with the command that fetches it. dynolog_port: where no port is named, and of the
    daemon of this machine when it holds the socket.
    """

    out: Path
    pids: tuple[int, ...] = ()
    job: int | str | None = None
    mode: Mode = "iterations"
    steps: int = 3
    seconds: float = 2.0
    record_shapes: bool = True
    with_stacks: bool = False
    timeout_s: float = 120.0
    max_bytes: int = 2 << 30
    dynolog: tuple[str, ...] = ()
    dynolog_port: int = 1778
    trace_dir: Path = Path("/tmp")


@dataclass(frozen=True)
class Captured:
    """A complete trace in the folder asked for. mode: how it was really taken, which need not be what was asked."""

    file: Path
    pid: int
    host: str
    mode: Mode


@dataclass(frozen=True)
class Refused:
    """A process, or a whole host or job (pid None), without a trace: why, and the one line that would change it."""

    pid: int | None
    host: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Attached:
    """What a call of `attach` got. Each process asked for is in `captured` or in `refused`, never in neither.

    notes: one line each on what differs from the request: another mode, a retry, what was left out.
    """

    captured: list[Captured] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """The traces, in the order of `captured`."""
        return [trace.file for trace in self.captured]

    def add(self, other: Attached) -> None:
        """Take what another host gave."""
        self.captured.extend(other.captured)
        self.refused.extend(other.refused)
        self.notes.extend(other.notes)
