"""Which processes of this machine can be traced from outside, read from /proc; and why the others can't.

PyTorch asks a daemon for configs if ``KINETO_USE_DAEMON`` is in its environment, with any value, when it is imported.
It then has a datagram socket named ``dynoconfigclient…``, which is the surest sign, since a script may also set the
variable itself; a forked data loader worker has its parent's.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from steptime.capture.outcome import HERE, Refused

_CLIENT = "dynoconfigclient"
#: A socket's path has 107 bytes; a slash, the name of the process's own and 36 of a number must fit behind the folder.
_LONGEST_FOLDER = 107 - 1 - len(_CLIENT) - 36
_RESTART = "start it with KINETO_USE_DAEMON=1 in its environment (export it before Python starts)"
_PROC = Path("/proc")


@dataclass(frozen=True)
class Target:
    """A process that can be asked.

    root: the process that was asked for, itself or an ancestor. folder: of its daemon's socket, as it spells it, "" for
    the abstract one. trace_dir: where it may write. job: SLURM_JOB_ID, else 0. rank: its RANK, if it was started with
    one. team: what the ranks of one job have in common, "" without. client: inode of its socket, 0 if it has none yet.
    """

    pid: int
    root: int
    uid: int
    folder: str
    trace_dir: Path
    job: int
    rank: int | None
    team: str
    client: int


def find_targets(pids: Iterable[int], job: int | str | None) -> tuple[list[Target], list[Refused]]:
    """The processes that can be asked, and those of the wanted ones that can't.

    Args:
        pids: a process that can't be asked itself stands for those of its descendants that can.
        job: the value of SLURM_JOB_ID, or a part of the command line; neither this process nor its ancestors count.
    """
    parents = _parents()
    asked = dict.fromkeys(pids)
    targets: dict[int, Target] = {}
    refused: dict[int, Refused] = {}

    def look_at(pid: int, root: int) -> None:
        one = _target(pid, root)
        if isinstance(one, Target):
            targets.setdefault(pid, one)
        # Shells and the like need no word, nor do the data loader workers of a process that is named already.
        elif pid in asked or (_has_torch(pid) and parents.get(pid) not in refused):
            refused[pid] = one

    for root in asked:
        for pid in (root, *_descendants(root, parents)):
            look_at(pid, root)
        if root in refused and any(target.root == root for target in targets.values()):
            del refused[root]
    for pid in _of_job(job, parents) if job is not None else ():
        look_at(pid, pid)
    found = [target for target in targets.values() if _asks(target, targets, parents, asked)]
    if job is not None and not found and not refused:
        why = f"no process of this user on this host belongs to job {job!r} and asks for a daemon"
        return [], [Refused(None, HERE, why, f"check the name with `ps -ef`; if it is right, {_RESTART}")]
    return found, list(refused.values())


def _asks(target: Target, targets: dict[int, Target], parents: dict[int, int], asked: Container[int]) -> bool:
    """Whether it asks for itself, or may be about to.

    A process forked from another, such as a data loader worker, has that one's socket, but does not ask. One that has
    not loaded torch, such as a shell, is of no interest beside others that have.
    """
    above = [targets[pid] for pid in _ancestors(target.pid, parents) if pid in targets]
    if target.client:
        return all(other.client != target.client for other in above)
    better = any(other.client and (other.root == target.root or target.pid not in asked) for other in targets.values())
    return _has_torch(target.pid) or not better


class _Barred(Exception):  # noqa: N818
    """A process can't be asked. The two texts are why, and the remedy."""


def _target(pid: int, root: int) -> Target | Refused:
    try:
        uid = _uid(pid)
        environment = _environment(pid)
        client, folder = _client_socket(pid)
        if not client:
            folder = _folder_to_be(environment)
        if folder and not folder.startswith("/"):
            raise _Barred("its KINETO_IPC_SOCKET_DIR is a relative path", "start it with an absolute one")
        # The abstract names of another network namespace are not ours, nor the files of another mount namespace.
        for name in ("mnt",) if folder else ("mnt", "net"):
            if _namespace(pid, name) != _namespace("self", name):
                raise _Barred("it runs in another container", "run steptime inside that container")
    except _Barred as barred:
        return Refused(pid, HERE, *barred.args)
    except PermissionError:
        return Refused(pid, HERE, "its /proc entries can't be read", "run steptime as root, in the same container")
    except (OSError, KeyError, ValueError):
        why, remedy = (
            "there is no such process on this host",
            "list them with `ps -ef`; steptime must run on their host",
        )
        return Refused(pid, HERE, why, remedy)
    slurm, rank = environment.get("SLURM_JOB_ID", ""), environment.get("RANK", "")
    team = ":".join(environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return Target(
        pid=pid,
        root=root,
        uid=uid,
        folder=folder,
        trace_dir=Path(environment.get("KINETO_ONDEMAND_TRACE_DIR") or "/tmp"),
        job=int(slurm) if _is_number(slurm) else 0,
        rank=int(rank) if _is_number(rank) else None,
        team=team if rank and team != ":" else "",
        client=client,
    )


def _uid(pid: int) -> int:
    """The user of a process that lives and may be asked by us: only its own user and root may."""
    status = _status(pid)
    if status["State"].startswith(("Z", "X")):
        raise _Barred("it has ended", "attach to a process that runs")
    uid = int(status["Uid"].split()[0])
    if os.geteuid() not in (0, uid):
        raise _Barred("it belongs to another user", f"run steptime as user {uid} or as root")
    return uid


def _folder_to_be(environment: dict[str, str]) -> str:
    """Where a process that has no socket yet will look for its daemon."""
    if "KINETO_USE_DAEMON" not in environment:
        raise _Barred("it was started without KINETO_USE_DAEMON", _RESTART)
    folder = environment.get("KINETO_IPC_SOCKET_DIR", "")
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        why = f"its KINETO_IPC_SOCKET_DIR has more than {_LONGEST_FOLDER} bytes, too long for its socket"
        raise _Barred(why, "start it with a shorter one")
    return folder


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _status(pid: int) -> dict[str, str]:
    text = (_PROC / str(pid) / "status").read_text(errors="replace")
    lines = dict(line.partition(":")[::2] for line in text.splitlines())
    return {name: value.strip() for name, value in lines.items()}


def _environment(pid: int) -> dict[str, str]:
    raw = (_PROC / str(pid) / "environ").read_bytes()
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in raw.split(b"\0") if entry)


def _client_socket(pid: int) -> tuple[int, str]:
    """Inode of the socket with which it asks, 0 without one, and the folder of the daemon's, "" if it is abstract."""
    mine = set()
    for entry in (_PROC / str(pid) / "fd").iterdir():
        try:
            link = str(entry.readlink())
        except FileNotFoundError:
            continue  # Closed meanwhile.
        if link.startswith("socket:["):
            mine.add(int(link[8:-1]))
    for line in (_PROC / str(pid) / "net" / "unix").read_text(errors="surrogateescape").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and _CLIENT in fields[7] and int(fields[6]) in mine:
            return int(fields[6]), "" if fields[7].startswith("@") else fields[7].rpartition("/")[0]
    return 0, ""


def _namespace(pid: int | str, name: str) -> str | None:
    try:
        return str((_PROC / str(pid) / "ns" / name).readlink())
    except OSError:
        return None


def _parents() -> dict[int, int]:
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int(_status(int(entry.name))["PPid"])
            except (OSError, KeyError, ValueError):
                continue
    return found


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    """Parent first. Read while processes come and go, so a number may turn up twice: the walk ends there."""
    found: list[int] = []
    while (pid := parents.get(pid, 0)) > 0 and pid not in found:
        found.append(pid)
    return found


def _descendants(root: int, parents: dict[int, int]) -> list[int]:
    return [pid for pid in sorted(parents) if pid != root and root in _ancestors(pid, parents)]


def _of_job(job: int | str, parents: dict[int, int]) -> list[int]:
    mine = {os.getpid(), *_ancestors(os.getpid(), parents)}
    found = []
    for pid in sorted(set(parents) - mine):
        try:
            if os.geteuid() not in (0, int(_status(pid)["Uid"].split()[0])):
                continue
            words = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            number = _environment(pid).get("SLURM_JOB_ID")
        except (OSError, KeyError, ValueError, IndexError):
            continue
        if number == str(job) or (isinstance(job, str) and not job.isdigit() and job and job in words):
            found.append(pid)
    return found


def _has_torch(pid: int) -> bool:
    try:
        return "libtorch" in (_PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return False
