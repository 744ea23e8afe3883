"""What `diagnose` and `capture` share: asking the hook's directory, or processes from outside, and who was missed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from steptime.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from steptime.capture.outcome import Refused
    from steptime.capture.request import StepTimes
    from steptime.model.on_call import Missed, Pace

#: Step times that a rank's median is taken over.
_RECENT = 16
#: Ranks of one job write their step times within so many steps of each other.
_BEHIND = 32


class Ranks(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """``0,3,8-11`` to a sorted tuple of ranks."""

    name = "RANKS"
    _MOST = 100_000

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The value, or click's usage error."""
        if isinstance(value, tuple):
            return value
        found: set[int] = set()
        for piece in str(value).split(","):
            first, dash, last = piece.strip().partition("-")
            ends = (first, last if dash else first)
            if not all(end.isascii() and end.isdecimal() and len(end) < 7 for end in ends):
                self.fail(f"{value!r} is not a list of ranks such as 0,3,8-11", param, ctx)
            low, high = int(ends[0]), int(ends[1])
            if low > high or high - low > self._MOST:
                self.fail(f"{value!r} ends before it starts, or is too long", param, ctx)
            found.update(range(low, high + 1))
        return tuple(sorted(found))


@dataclass(frozen=True)
class Wanted:
    """What to capture. steps None: the default; seconds: record for so long, not steps; ranks: empty for a choice."""

    ranks: tuple[int, ...] = ()
    steps: int | None = None
    seconds: float | None = None
    stacks: bool = False
    timeout_s: float = 120.0
    stages: Sequence[Sequence[int]] = ()
    quiet: bool = False

    @classmethod
    def of(cls, words: dict[str, Any], stages: Sequence[Sequence[int]] = (), quiet: bool = False) -> Wanted:
        """What the words on the command line ask for."""
        return cls(
            ranks=words["ranks"] or (),
            steps=words["steps"],
            seconds=words["seconds"],
            stacks=words["stacks"],
            timeout_s=words["timeout_s"],
            stages=stages,
            quiet=quiet,
        )

    @property
    def step_count(self) -> int:
        """Whole steps to record."""
        return 3 if self.steps is None else self.steps


@dataclass
class Taken:
    """What there is to analyse: traces, who was missed, the pace around it, and what differs from what was asked.

    apart: the traces are of processes that were traced from outside, which need not be ranks of one job.
    """

    paths: list[str] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pace: Pace | None = None
    apart: bool = False


def tell(text: str, quiet: bool) -> None:
    """A line on stderr about what goes on, unless quiet."""
    if not quiet:
        click.echo(f"steptime: {text}", err=True)


def show_missed(taken: Taken) -> None:
    """A line on stderr for everyone who could not be traced, with the reason and the remedy."""
    from steptime.report.names import brief

    for one in taken.missed:
        remedy = f"; {brief(one.remedy, 300)}" if one.remedy else ""
        click.echo(f"steptime: {brief(one.who)}: {brief(one.reason, 300)}{remedy}", err=True)


def from_hook(folder: Path, wanted: Wanted) -> Taken:
    """Ask a job with the hook for a capture through its directory; what came is returned.

    Raises:
        CaptureError: nothing came; says who was asked and what to do.
    """
    from msgspec.structs import replace

    from steptime.capture.ask import ask
    from steptime.capture.choice import choose
    from steptime.capture.request import CaptureRequest, new_id, read_step_times
    from steptime.model.on_call import Missed

    times = read_step_times(folder)
    ranks = list(wanted.ranks)
    if not ranks and times:
        medians = {rank: median(one.recent_ns[-_RECENT:]) for rank, one in times.items() if one.recent_ns}
        choice = choose(max(one.world_size for one in times.values()), medians, wanted.stages)
        ranks = choice.ranks
        tell(f"asks {folder} for {wanted.step_count} steps of {choice.why}", wanted.quiet)
    else:
        tell(f"asks {folder} for {wanted.step_count} steps", wanted.quiet)
    request = CaptureRequest(
        id=new_id("asked"),
        steps=wanted.step_count,
        ranks=ranks,
        stacks=wanted.stacks,
        reason="steptime diagnose",
    )
    if wanted.seconds is not None:
        request = replace(request, max_seconds=wanted.seconds)
    taken = Taken(pace=pace_of(folder, times))
    found = ask(folder, request, wanted.timeout_s)
    taken.paths = [str(path) for path in found.files.values()]
    where = {rank: one.host for rank, one in times.items()}
    taken.missed += [Missed(who=_rank_on(rank, where), reason=why) for rank, why in found.failed.items()]
    taken.missed += [
        Missed(
            who=_rank_on(rank, where),
            reason=f"no trace within {wanted.timeout_s:.0f} s",
            remedy="see whether the process still steps; ask again with a longer --timeout",
        )
        for rank in found.missing
    ]
    if found.plan is None:
        raise CaptureError(
            f"{folder}: no rank took the request up within {wanted.timeout_s:.0f} s: is a job with steptime.watch "
            f"running on this folder, and as the same user? {_signs(folder)}"
        )
    return taken


def latest_of_hook(folder: Path) -> Taken:
    """The latest capture that lies in a hook's directory.

    Raises:
        CaptureError: there is none.
    """
    from steptime.capture.request import captured_files, read_step_times

    found = captured_files(folder)
    if found is None or not found.files:
        raise CaptureError(f"{folder}: holds no capture, and no job answers there: {_signs(folder)}")
    return Taken(
        paths=[str(path) for path in found.files.values()],
        notes=[f"no job answers in {folder}: its latest capture, {found.id}, is taken"],
        pace=pace_of(folder, read_step_times(folder)),
    )


def pace_of(folder: Path, times: dict[int, StepTimes]) -> Pace | None:
    """Since when the step times in a hook's directory are longer; None if they do not tell."""
    from steptime.capture.request import STEP_TIMES_FOLDER
    from steptime.diagnose.slowdown import slowdown

    told = [one for one in times.values() if one.recent_ns]
    if not told:
        return None
    # Ranks renew their step times at different moments; one that is far behind wrote them in another life.
    furthest = max(one.step for one in told)
    same = [one for one in told if furthest - one.step < _BEHIND]
    least = min(same, key=lambda one: one.step)
    try:
        written = (folder / STEP_TIMES_FOLDER / f"rank-{least.rank}.json").stat().st_mtime_ns
    except OSError:
        written = None
    together = [one.recent_ns[: len(one.recent_ns) - (one.step - least.step)] for one in same]
    return slowdown(together, least.step - 1, written)


def _signs(folder: Path) -> str:
    from steptime.capture.ask import last_sign_s

    since = last_sign_s(folder)
    return "no rank ever wrote its step times there" if since is None else f"last sign of a rank {since:,.0f} s ago"


def _rank_on(rank: int, hosts: dict[int, str]) -> str:
    return f"rank {rank} on {hosts[rank]}" if hosts.get(rank) else f"rank {rank}"


def from_outside(pids: tuple[int, ...], job: str | None, dynolog: tuple[str, ...], out: Path, wanted: Wanted) -> Taken:
    """Attach to processes that were started with KINETO_USE_DAEMON=1.

    Raises:
        CaptureError: the request makes no sense.
        UsageError: no process has one of the ranks asked for, or they are on other hosts.
    """
    from steptime.capture.attach import AttachRequest, attach

    wanted_job = int(job) if job is not None and job.isascii() and job.isdecimal() else job
    missed: list[Missed] = []
    if wanted.ranks and dynolog:
        raise UsageError("--ranks can't choose behind a dynolog daemon: give --pid N... of the processes on its host")
    if wanted.ranks:
        pids, missed = _of_ranks(pids, wanted_job, wanted.ranks)
        wanted_job = None
        if not pids:
            return Taken(missed=missed)
    by_steps = wanted.seconds is None
    what = f"{wanted.step_count} steps" if by_steps else f"{wanted.seconds:g} s"
    places = [*(f"process {pid}" for pid in pids), *([f"job {job}"] if wanted_job is not None else []), *dynolog]
    tell(f"asks {', '.join(places)} for {what}", wanted.quiet)
    request = AttachRequest(
        out=out,
        pids=pids,
        job=wanted_job,
        mode="iterations" if by_steps else "duration",
        steps=wanted.step_count,
        seconds=wanted.seconds or AttachRequest.seconds,
        with_stacks=wanted.stacks,
        timeout_s=wanted.timeout_s,
        dynolog=dynolog,
    )
    begun = time.monotonic()
    got = attach(request)
    everyone = len(got.files) + len(got.refused)
    tell(f"{len(got.files)} of {everyone} traced in {time.monotonic() - begun:.0f} s", wanted.quiet)
    paths = [str(path) for path in got.files]
    return Taken(paths=paths, missed=missed + _missed(got.refused), notes=list(got.notes), apart=True)


def _of_ranks(
    pids: tuple[int, ...], job: str | int | None, ranks: tuple[int, ...]
) -> tuple[tuple[int, ...], list[Missed]]:
    """The processes that have one of these ranks, or do not tell theirs; and those that can't be asked."""
    from steptime.capture.processes import find_targets

    targets, refused = find_targets(pids, job)
    chosen = tuple(target.pid for target in targets if target.rank is None or target.rank in ranks)
    if targets and not chosen:
        theirs = ", ".join(f"{target.pid} is rank {target.rank}" for target in targets[:16])
        raise UsageError(f"none of the processes has a rank of --ranks: {theirs}")
    return chosen, _missed(refused)


def _missed(refused: Sequence[Refused]) -> list[Missed]:
    from steptime.model.on_call import Missed

    return [
        Missed(
            who=f"host {one.host}" if one.pid is None else f"process {one.pid} on {one.host}",
            reason=one.why,
            remedy=one.remedy,
        )
        for one in refused
    ]
