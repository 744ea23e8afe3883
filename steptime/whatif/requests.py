"""What the user asks of a replay, in words: names of causes and of fixes, and the changes that they stand for.

Names are checked before any trace is read (`remove`, `scale`); what they change is known once there is a report
(`changes_of`), since a roof or a finding is one of this job.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from steptime.errors import UsageError
from steptime.model import Collective, LeafTotal, Report
from steptime.taxonomy import LEAF_CODE, LEAVES, SLICES
from steptime.whatif.scenario import APART, EVEN, HIDDEN, KERNEL, LEAF, NOBODY_LATE, RANKS, STAGES, Change

REMOVE, SCALE = "--remove", "--scale"

_COMM, _KERNELS = "exposed_comm", "kernels"
_GATHER = "exposed_comm/allgather"
_BUBBLE, _IMBALANCE, _STRAGGLERS, _WAIT = (
    "pipeline_bubble",
    "pipeline_bubble/stage_imbalance",
    "stragglers",
    "stragglers/wait_for_rank",
)
#: Fixes that are no leaf: how users call them, and the kind of change.
_FIXES = {
    _STRAGGLERS: NOBODY_LATE,
    _WAIT: NOBODY_LATE,
    "wait_for_rank": NOBODY_LATE,
    "stages": STAGES,
    _IMBALANCE: STAGES,
    "stage_imbalance": STAGES,
    _BUBBLE: APART,
    "perfect": EVEN,
}
#: What they come to.
_MEANINGS = {
    NOBODY_LATE: "no rank takes longer than the median of its peers, step by step",
    STAGES: "all stages compute equally long, in all as long as now",
    APART: "no stage waits for a message of another",
    EVEN: "every rank and every step takes the median time: no straggler, no jitter",
}
#: Fixes that are a leaf by another name.
_ALIASES = {"graphs": "host/launch_bound", "loader": "host/data_loader", "recompute": "recompute/recompute"}
#: Leaves that no change of the job takes away by itself, with the reason.
_NOT_ALONE = {
    "pipeline_bubble/warmup": "the schedule makes it: remove pipeline_bubble, or stages to even them",
    "pipeline_bubble/steady": "the schedule makes it: remove pipeline_bubble, or stages to even them",
    "pipeline_bubble/drain": "the schedule makes it: remove pipeline_bubble, or stages to even them",
    "pipeline_bubble/unsplit": "nobody knows what makes it: remove pipeline_bubble for all waits between stages",
    "host/profiler_overhead": "the trace does not say where in the step it lies: compare with an unprofiled run",
    "unexplained/capture_skew": "it is of the recording, not of the job",
    "unexplained/events_missing": "it is of the recording, not of the job",
}
_STRAGGLER, _HIDE, _ROOF, _LINK_ROOF, _FINDING = "straggler", "hidden", "roof", "link-roof", "finding"
_KERNEL = "kernel"
_FORMS = {
    _STRAGGLER: "straggler:rank=R[,R...]",
    _HIDE: "hidden:KIND or hidden:KIND:GROUP, a kind of collective such as allgather",
    _ROOF: "roof:LEAF, a leaf of kernels, or roof:kernels",
    _LINK_ROOF: "link-roof:KIND, a kind of collective such as allreduce",
    _FINDING: "finding:ID, of a finding in the report",
    _KERNEL: "kernel:REGEX, on the names of kernels",
}
_SHORT = Counter(leaf.id for leaf in LEAVES)
_CODES = {part.id: tuple(c for c, leaf in enumerate(LEAVES) if leaf.slice == part.id) for part in SLICES}


class Request(msgspec.Struct, frozen=True):
    """One ``--remove`` or ``--scale``, its names known to exist.

    text: as asked. name: a leaf, a slice or a fix; of what it speaks follows a colon in `text` and stands in `of`
    (a leaf, a finding's id; ranks in `ranks`; a group in `group`). factor: 0 for a removal.
    """

    text: str
    name: str
    of: str = ""
    ranks: tuple[int, ...] = ()
    factor: float = 0.0
    group: str = ""


def remove(text: str) -> Request:
    """The request of ``--remove TEXT``.

    Raises:
        UsageError: nothing is called that, or nothing can remove it; the line says what to use.
    """
    name, colon, of = text.strip().partition(":")
    if not colon:
        return Request(text, _known(name, f"{REMOVE} {text}"))
    if name == _STRAGGLER:
        return Request(text, name, ranks=_ranks(of, f"{REMOVE} {text}"))
    if name == _HIDE:
        of, _, group = of.partition(":")
        return Request(text, name, _leaf_in(_COMM, of, f"{REMOVE} {text}", _FORMS[name]), group=group)
    if name == _LINK_ROOF:
        return Request(text, name, _leaf_in(_COMM, of, f"{REMOVE} {text}", _FORMS[name]))
    if name == _ROOF:
        return Request(text, name, _leaf_in(_KERNELS, of, f"{REMOVE} {text}", _FORMS[name]))
    if name == _FINDING and of:
        return Request(text, name, of)
    if name == _KERNEL:
        return Request(text, name, _pattern(of, f"{REMOVE} {text}"))
    raise UsageError(f"{REMOVE} {text}: {_nearest(name, list(_FORMS), _FORMS)}")


def scale(text: str) -> Request:
    """The request of ``--scale NAME=FACTOR``.

    Raises:
        UsageError: as `remove`, or it can only be removed, or the factor is no number of 0 or more.
    """
    asked = f"{SCALE} {text}"
    name, equals, number = text.strip().rpartition("=")
    start = text.strip().partition(":")[0]
    form = _FORMS.get(start)
    if form is not None and start != _KERNEL:
        raise UsageError(f"{asked}: can only be removed, not scaled: use {REMOVE} {form}")
    if not equals or not name:
        raise UsageError(f"{asked}: needs a factor: {text or 'NAME'}=0.8 makes it take 0.8 times as long")
    found = _KERNEL if start == _KERNEL else _known(name, asked)
    if found in _FIXES:
        raise UsageError(f"{asked}: can only be removed, not scaled: use {REMOVE} {name}")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor >= 0):
        raise UsageError(f"{asked}: {number!r} is no factor: give a number of 0 or more, such as 0.8")
    of = _pattern(name.partition(":")[2], asked) if found == _KERNEL else ""
    return Request(text, found, of, factor=factor)


def changes_of(request: Request, report: Report) -> list[Change]:
    """What a request changes in this job.

    Raises:
        UsageError: the report can't tell what is asked for, or has nothing of that name; the line says the reason.
    """
    special = _BY_REPORT.get(request.name)
    if special is not None:
        return special(request, report)
    if request.name in _FIXES:
        return _fix(request, report)
    keys = [request.name] if request.name in LEAF_CODE else [LEAVES[code].key for code in _CODES[request.name]]
    if request.name in LEAF_CODE:
        _told(request, report, request.name)
    codes = tuple(LEAF_CODE[key] for key in keys if key not in _NOT_ALONE)
    return [Change(request.text, LEAF, codes, request.factor, whole=request.factor > 0)]


def meaning(request: Request, changes: Sequence[Change], report: Report) -> str:
    """What a request comes to in this job, in words."""
    if request.name in _FIXES:
        return _MEANINGS[_FIXES[request.name]]
    if request.name == _STRAGGLER:
        several = len(request.ranks) > 1
        who = f"rank{'s' if several else ''} {', '.join(map(str, request.ranks))}"
        return f"{who} as fast as the median of {'their' if several else 'its'} peers"
    if request.name == _HIDE:
        return _hidden_words(changes[0])
    if request.name == _FINDING:
        return f"the finding's fix: {', '.join(_change_words(change) for change in changes)}"
    if request.name == _KERNEL:
        how = f"take {request.factor:g} times as long" if request.factor else "are gone"
        return f"kernels called as {request.of} {how}"
    taken = request.factor == 0 or request.name in (_ROOF, _LINK_ROOF)
    beyond = " beyond useful work" if report.job.productive_ns and taken and _touches_kernels(changes) else ""
    if request.name in (_ROOF, _LINK_ROOF):
        at = "at the roof" if request.name == _ROOF else "at their links' full rate"
        return f"{at}, time{beyond}: {', '.join(_change_words(change) for change in changes)}"
    name = "" if request.name == request.text.partition("=")[0] else f"{request.name}, "
    return f"{name}its time{beyond} {f'times {request.factor:g}' if request.factor else 'is gone'}"


def _change_words(change: Change) -> str:
    if change.kind == RANKS:
        return f"rank {', '.join(map(str, change.ranks))} as fast as the median of its peers"
    names = ", ".join(LEAVES[code].key for code in change.leaves)
    if change.kind == LEAF:
        return f"{names} times {change.factor:.3g}" if change.factor else f"{names} gone"
    return _hidden_words(change) if change.kind == HIDDEN else _MEANINGS[change.kind]


def _hidden_words(change: Change) -> str:
    keys = [LEAVES[code].key for code in change.leaves]
    words = [f"computing waits for no {', '.join(key for key in keys if key != _GATHER)}"] if keys != [_GATHER] else []
    words += ["all-gathers start as early as their link is free"] if _GATHER in keys else []
    return " and ".join(words) + (f", in group {change.group}" if change.group else "")


def _touches_kernels(changes: Sequence[Change]) -> bool:
    return any(LEAVES[code].slice == _KERNELS for change in changes for code in change.leaves)


def leaf_totals(report: Report) -> Mapping[str, LeafTotal]:
    """The job's leaves by key."""
    return {f"{part.id}/{leaf.id}": leaf for part in report.job.slices for leaf in part.leaves}


def _known(name: str, asked: str) -> str:
    """The slice, leaf or fix of a name, which may be a leaf's id alone."""
    found = _ALIASES.get(name, name)
    if name not in _FIXES and name not in _ALIASES:
        if name in _CODES:
            found = name
        elif "/" not in name and _SHORT[name] == 1:
            found = next(leaf.key for leaf in LEAVES if leaf.id == name)
        elif name not in LEAF_CODE:
            raise UsageError(f"{asked}: {_nearest(name, _names(), {})}")
    if found in _NOT_ALONE:
        raise UsageError(f"{asked}: can't be taken away alone: {_NOT_ALONE[found]}")
    return found


def _names() -> list[str]:
    short = [leaf.id for leaf in LEAVES if _SHORT[leaf.id] == 1]
    return [*_CODES, *LEAF_CODE, *short, *_FIXES, *_ALIASES, *_FORMS]


def _nearest(name: str, names: list[str], forms: Mapping[str, str]) -> str:
    forms = forms or _FORMS
    near = difflib.get_close_matches(name, names, 1, 0.5)
    if near:
        return f"nothing is called that; did you mean {forms.get(near[0], near[0])}?"
    return "nothing is called that: give a leaf or slice of the report (host/data_loader, exposed_comm) or a fix " + (
        f"({', '.join(dict.fromkeys([*_FIXES, *_ALIASES]))}, {', '.join(f'{form}:...' for form in _FORMS)})"
    )


def _ranks(text: str, asked: str) -> tuple[int, ...]:
    word, _, numbers = text.partition("=")
    several = numbers.split(",")
    if word != "rank" or not all(one.strip().isdecimal() for one in several):
        raise UsageError(f"{asked}: give the ranks as {_FORMS[_STRAGGLER]}")
    return tuple(dict.fromkeys(int(one) for one in several))


def _leaf_in(slice_id: str, name: str, asked: str, form: str) -> str:
    """A leaf's key, or the slice itself."""
    if name == slice_id:
        return name
    keys = {leaf.id: leaf.key for leaf in LEAVES if leaf.slice == slice_id}
    key = name if name in keys.values() else keys.get(name)
    if key is None:
        near = difflib.get_close_matches(name, list(keys), 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(keys)}"
        raise UsageError(f"{asked}: {hint} ({form})")
    return key


def _told(request: Request, report: Report, key: str) -> LeafTotal:
    """The leaf's total, which must be known."""
    total = leaf_totals(report).get(key)
    if total is None:
        return LeafTotal(id=key.partition("/")[2], ns=0, share=0.0)
    if total.ns is None:
        why = total.detail.get("why") or "these traces do not show it"
        raise UsageError(f"{request.text}: can't tell how much of it there is: {why}")
    return total


def _fix(request: Request, report: Report) -> list[Change]:
    kind = _FIXES[request.name]
    if kind in (APART, STAGES) and report.pipeline is None:
        raise UsageError(f"{request.text}: these traces show no pipeline stages")
    if kind == NOBODY_LATE and len({rank.rank for rank in report.ranks}) < 2:
        raise UsageError(f"{request.text}: needs the files of several ranks: there is nobody to wait for")
    return [Change(request.text, kind)]


def _pattern(text: str, asked: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{asked}: {text!r} is not a regular expression: {error}") from None
    if not text:
        raise UsageError(f"{asked}: give {_FORMS[_KERNEL]}")
    return text


def _kernel(request: Request, report: Report) -> list[Change]:  # noqa: ARG001
    return [Change(request.text, KERNEL, factor=request.factor, pattern=request.of)]


def _straggler(request: Request, report: Report) -> list[Change]:
    there = {rank.rank for rank in report.ranks}
    for rank in request.ranks:
        if rank not in there:
            raise UsageError(f"{request.text}: rank {rank} is not among the traces")
    return [Change(request.text, RANKS, ranks=request.ranks)]


def _hidden(request: Request, report: Report) -> list[Change]:
    codes = _CODES[_COMM] if request.of == _COMM else (LEAF_CODE[request.of],)
    groups = {row.group for row in report.collectives if row.group}
    if request.group and request.group not in groups:
        there = f"there are {', '.join(sorted(groups))}" if groups else "the traces name none"
        raise UsageError(f"{request.text}: no group is called {request.group}: {there}")
    return [Change(request.text, HIDDEN, codes, group=request.group)]


def _roof(request: Request, report: Report) -> list[Change]:
    """Each leaf of kernels loses what it could give back at its roof."""
    if request.of != _KERNELS:
        total = _told(request, report, request.of)
        if total.recoverable_ns is None:
            raise UsageError(f"{request.text}: {_no_roof(report)}")
        return _at_roof(request, request.of, total)
    found = []
    for code in _CODES[_KERNELS]:
        total = _told(request, report, LEAVES[code].key)
        if total.recoverable_ns is not None:
            found += _at_roof(request, LEAVES[code].key, total)
    if not found:
        raise UsageError(f"{request.text}: {_no_roof(report)}")
    return found


def _at_roof(request: Request, key: str, total: LeafTotal) -> list[Change]:
    if not total.ns or total.recoverable_ns is None:
        return []
    left = 1.0 - min(total.recoverable_ns, total.ns) / total.ns
    return [Change(request.text, LEAF, (LEAF_CODE[key],), left)]


def _no_roof(report: Report) -> str:
    if not report.job.peak_flops:
        return "its roof is not known: the trace does not tell the GPU's peak: give --gpu or --peak"
    return "its roof is not known: it needs shapes in the trace (record_shapes=True) and a roof for nearly all its time"


def _link_roof(request: Request, report: Report) -> list[Change]:
    """Transfers of each kind as long as at their links' full rate: the share of it that they reach."""
    keys = [LEAVES[code].key for code in _CODES[_COMM]] if request.of == _COMM else [request.of]
    found: list[Change] = []
    why = "there is none of it in the counted steps"
    for key in keys:
        rows = [row for row in report.collectives if f"{_COMM}/{row.kind}" == key and row.dur_ns]
        unknown = next((row for row in rows if row.link_share is None), None)
        if unknown is not None:
            why = _no_link(unknown)
        elif rows:
            found.append(Change(request.text, LEAF, (LEAF_CODE[key],), _link_share(rows)))
    if not found:
        raise UsageError(f"{request.text}: can't tell how far it is from its link's roof: {why}")
    return found


def _no_link(row: Collective) -> str:
    group = f" of group {row.group}" if row.group else ""
    return f"{row.kind}{group}: {row.why or 'its group spans hosts, or the rate of its links is not known'}"


def _link_share(rows: list[Collective]) -> float:
    """Share of the links' rate over all groups of a kind, each by its time; in-switch reduction may exceed it."""
    whole = sum(row.transfer_ns or 0 for row in rows)
    if not whole:
        return 1.0
    return sum(min(row.link_share or 0.0, 1.0) * (row.transfer_ns or 0) for row in rows) / whole


def _finding(request: Request, report: Report) -> list[Change]:
    from steptime.whatif.fixes import changes_for

    found = {finding.id: finding for finding in report.findings}
    if request.of not in found:
        near = difflib.get_close_matches(request.of, list(found), 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"it found {', '.join(found) or 'nothing'}"
        raise UsageError(f"{request.text}: no such finding in this job; {hint}")
    changes = changes_for(found[request.of], report)
    if not changes:
        raise UsageError(f"{request.text}: no replay can tell what mending it changes: {found[request.of].title}")
    return [msgspec.structs.replace(change, asked=request.text) for change in changes]


_BY_REPORT: dict[str, Callable[[Request, Report], list[Change]]] = {
    _STRAGGLER: _straggler,
    _HIDE: _hidden,
    _ROOF: _roof,
    _LINK_ROOF: _link_roof,
    _FINDING: _finding,
    _KERNEL: _kernel,
}
