"""Who holds up the job: the same rank across steps, a different one each time, or nobody.

"Nobody" is the usual answer, and identical ranks must never be accused: a rank is named only if what it alone cost the
others leads over the next one's in a way that its own variation from step to step does not explain. Sums rest on the
part of each wait beyond the clocks' error. Thresholds are fixed here, with their reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.model import Straggler
from steptime.ranks.alignment import Alignment
from steptime.ranks.blame import Blame, blame_hosts, blame_ranks, column_of
from steptime.ranks.causes import KEPT, NOT_RECORDED, UNKNOWN, Cause, Leaves, explain, leaf_table
from steptime.ranks.counted import Row, ranks_missing
from steptime.ranks.moves import Moved
from steptime.ranks.waits import Waits, find_waits
from steptime.taxonomy import LEAF_CODE
from steptime.trace.events import I64

F64 = NDArray[np.float64]

STRAGGLER, JITTER, ONCE, UNCLEAR = "straggler", "jitter", "once", "unclear"

#: A lead below this share of the step is not worth a name, however regular; with n steps also none below
#: FEW_STEPS / n^2: one rank may have an outlier in both of two steps.
LEAST_LEAD, FEW_STEPS = 0.005, 0.15
#: Variation of the lead that is expected before any is seen, as a share of the step, and the steps' worth of belief in
#: it: with two or three steps the seen variation alone may be small by chance.
EXPECTED_VARIATION, LEAST_BELIEF, MOST_BELIEF = 0.002, 2, 8
#: Student's t for p = 5e-5 (one side) by degrees of freedom: 200 clean jobs of many ranks accuse nobody.
_DEGREES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 1000)
_CRITICAL = (100.0, 28.0, 15.5, 11.2, 9.1, 7.1, 6.2, 5.2, 4.8, 4.4, 4.1, 3.9)
#: Share of steps in which a straggler must lead.
LEADING_STEPS = 0.7
#: From this many steps on, a lead further than this many spreads from the usual counts as that far only: one pause of
#: another rank does not clear a straggler, one pause of its own does not make one.
CLIP_STEPS, CLIP_SPREADS = 5, 5.0
#: A step in which one rank costs the others this share of it, and this many times what the next one usually does, is
#: an event.
EVENT_SHARE, EVENT_TIMES = 0.05, 4.0
#: Bursts of one host cause: at least this share of the step; and who else had that cause may have this share of it.
BURST_SHARE, BURST_OTHERS = 0.03, 0.25
#: Share of a burst that the others must have waited for it.
BURST_WAITED = 0.3
#: Bursts on one rank of R by chance: 1 / R^(n-1) for n bursts; named below this.
BURST_CHANCE = 1 / 8
#: Beside a larger one, less than this part of it is not told from what that one does to the others.
LEAST_OF_LARGEST = 0.1
#: At most this many stragglers are looked for.
MOST = 4

#: Host causes that leave an event of their own, so that bursts of them can be told from jitter.
SPECIFIC = ("data_loader", "checkpoint", "gc", "allocator", "compile", "sync")


class _Case(msgspec.Struct, frozen=True):
    """What all tests look at: the job, who cost what, and the columns of the steps that may be judged."""

    rows: Sequence[Row]
    blame: Blame
    leaves: Leaves
    columns: list[int]


#: Fewer steps can't tell a straggler from a rank that was late once.
LEAST_STEPS = 2


class Pipes(msgspec.Struct, frozen=True):
    """What a pipeline adds: stage int64 [r], -1 for none; messages: waits in them that a slow row explains."""

    stage: I64
    messages: Moved


def verdicts(
    rows: Sequence[Row], alignment: Alignment, waits: Waits | None = None, pipes: Pipes | None = None
) -> list[Straggler]:
    """Everybody who can be named, stragglers first; empty: nobody held up the job, or there was too little to judge.

    Args:
        rows: as they were aligned, before their waits are moved.
        alignment: of these rows.
        waits: from `find_waits`, else it is called here.
        pipes: the job's pipeline, if it has one.
    """
    found = find_waits(rows, alignment) if waits is None else waits
    blame = blame_ranks(rows, alignment, found, pipes.messages if pipes is not None else None)
    columns = _judged(rows, alignment, found, blame)
    if len(columns) < LEAST_STEPS or not blame.dur_ns:
        return []
    stage = pipes.stage if pipes is not None else None
    case = _Case(rows, blame, leaf_table(rows, blame.at, found, alignment.collectives.matches, stage), columns)
    claims = _persistent(case)
    if not claims:
        claims, hit = _bursts(case)
        # Bursts hide who is slow all the time.
        quiet = [column for column in columns if column not in hit]
        if claims and len(quiet) >= LEAST_STEPS:
            bursting = claims[0].ranks
            steady = _persistent(msgspec.structs.replace(case, columns=quiet))
            claims += [claim for claim in steady if claim.ranks != bursting]
    # Between the stages of a pipeline a host that ends its step last is how the schedule drains, nobody's fault.
    staged = bool(alignment.collectives.matches.pair.any()) or bool(case.leaves.unpaired.any())
    hosts = blame_hosts(rows, alignment, found) if not claims and not staged else None
    if hosts is not None:
        claims = _persistent(msgspec.structs.replace(case, blame=hosts))
    accused = {rank for claim in claims for rank in claim.ranks}
    events = _events(case)
    # With a straggler among them, single steps are its doing first: the next one's share is not separable.
    return claims if any(accused & set(event.ranks) for event in events) else claims + events


def _judged(rows: Sequence[Row], alignment: Alignment, waits: Waits, blame: Blame) -> list[int]:
    """Columns of the steps in which lateness can be told: whole steps, in which all ranks had met before."""
    matches = alignment.collectives.matches
    column = column_of(rows, blame.at)
    step = np.full(len(matches.match), -1, np.int64)
    for index, row in enumerate(rows):
        mine = np.flatnonzero(matches.row == index)
        if row.timeline.instances is not None and len(mine):
            step[mine] = column[index, row.timeline.instances.step[matches.instance[mine]]]
    count = len(blame.numbers)
    inside = step >= 0
    judged = np.bincount(step[inside], waits.judged[matches.match[inside]], minlength=count) > 0
    unmet = (alignment.collectives.late_seen & ~waits.judged & matches.barrier)[matches.match]
    first = np.bincount(step[inside], unmet[inside], minlength=count) > 0
    edge = np.zeros(count, np.bool_)
    for index, row in enumerate(rows):
        for at in np.flatnonzero(blame.at[index] >= 0).tolist():
            edge[at] |= row.timeline.steps[int(blame.at[index, at])].edge
    for chosen in (judged & ~first & ~edge, judged & ~edge, judged):
        if np.count_nonzero(chosen) >= 2:
            return np.flatnonzero(chosen).tolist()
    return []


def why_unjudged(rows: Sequence[Row], world_size: int | None) -> str | None:
    """Why "nobody" is no verdict; None if it is one. `world_size`: how many ranks the job has, if known."""
    steps = max((sum(not step.edge for step in row.timeline.steps) for row in rows), default=0)
    if steps < LEAST_STEPS:
        return f"it needs {LEAST_STEPS} steps whose beginning was recorded: the first waits for how recordings began"
    if ranks_missing(rows, world_size):
        return "ranks are missing, and a wait for one of them can't be told from transfer"
    return None


def _persistent(case: _Case) -> list[Straggler]:
    """Origins whose lead holds through the steps, one after the other."""
    share = case.blame.lost[:, case.columns] / case.blame.dur_ns
    claims: list[Straggler] = []
    passing_on: set[int] = set()
    left = [origin for origin in range(len(share)) if not _kept_by_messages(case, origin)]
    while len(left) > 1 and len(claims) < MOST:
        at, leading = _leader(share[left])
        if at < 0:
            break
        origin = left.pop(at)
        columns = [column for column, leads in zip(case.columns, leading, strict=True) if leads]
        cause = _cause(case, origin, columns)
        # All hosts do the same: who runs behind the others since some earlier step stays behind, by chance.
        if cause.shared:
            continue
        # Without a reason of its own, a rank that passes another's lateness on is as late as that one makes it.
        if cause.leaf is None and case.blame.origins[origin] and origin in passing_on:
            continue
        passing_on |= set(case.blame.links[origin])
        claims.append(_straggler(case, origin, columns, STRAGGLER, cause))
    most = max((claim.share for claim in claims), default=0.0)
    claims = [claim for claim in claims if claim.share >= LEAST_OF_LARGEST * most]
    # A rank without a file may itself have been kept by the one that is named.
    recorded = [claim for claim in claims if claim.recorded]
    return recorded or claims


def _kept_by_messages(case: _Case, origin: int) -> bool:
    """Whether the origin was late because of messages that could not be followed to their other end."""
    blame, rows = case.blame, list(case.blame.origins[origin])
    if not rows or not case.leaves.unpaired[rows].any() or not blame.lost[origin, case.columns].any():
        return False
    return _explained(case, origin, case.columns).what == KEPT


def _leader(share: F64) -> tuple[int, list[bool]]:
    """The origin that leads for good, and in which steps; -1 if none does. share float64 [o, s]."""
    count = share.shape[1]
    top = int(np.array([_clipped(one).mean() for one in share]).argmax())
    others = np.delete(share, top, axis=0)
    lead = share[top] - others.max(axis=0)
    clipped = _clipped(lead)
    seen = float(clipped.var(ddof=1))
    around = 2.0 * float(np.mean([_clipped(one).var(ddof=1) for one in others]))
    expected = max(around, EXPECTED_VARIATION**2)
    belief = min(max((len(share) - 1) * (count - 1), LEAST_BELIEF), MOST_BELIEF)
    degrees = belief + count - 1
    variance = (belief * expected + (count - 1) * seen) / degrees
    mean = float(clipped.mean())
    t = mean / np.sqrt(variance / count)
    critical = float(np.interp(degrees, _DEGREES, _CRITICAL))
    leading = lead > 0
    if mean < max(LEAST_LEAD, FEW_STEPS / count**2) or t < critical or leading.mean() < LEADING_STEPS:
        return -1, []
    return top, leading.tolist()


def _clipped(lead: F64) -> F64:
    if len(lead) < CLIP_STEPS:
        return lead
    middle = float(np.median(lead))
    reach = CLIP_SPREADS * max(1.4826 * float(np.median(np.abs(lead - middle))), EXPECTED_VARIATION)
    return np.clip(lead, middle - reach, middle + reach)


def _bursts(case: _Case) -> tuple[list[Straggler], list[int]]:
    """A rank on which one host cause strikes now and then, and only there, so that others wait; and the columns."""
    blame, columns = case.blame, case.columns
    lost = blame.lost[:, columns]
    rows = len(case.rows)
    for leaf in SPECIFIC:
        spent = case.leaves.ns[:, columns, LEAF_CODE[f"host/{leaf}"]]
        excess = np.stack([spent[row] - np.median(np.delete(spent, row, axis=0), axis=0) for row in range(rows)])
        burst = (excess >= BURST_SHARE * blame.dur_ns) & (lost[:rows] >= BURST_WAITED * excess)
        total = np.where(excess >= BURST_SHARE * blame.dur_ns, excess, 0.0).sum(axis=1)
        top = int(total.argmax())
        times = int(burst[top].sum())
        alone = float(np.delete(total, top).max(initial=0.0)) <= BURST_OTHERS * float(total[top])
        if times >= 2 and alone and rows ** float(1 - times) <= BURST_CHANCE:
            hit = [column for column, struck in zip(columns, burst[top].tolist(), strict=True) if struck]
            cause = Cause(leaf, f"host/{leaf}", float(excess[top][burst[top]].mean()))
            return [_straggler(case, top, hit, STRAGGLER, cause)], hit
    return [], []


def _events(case: _Case) -> list[Straggler]:
    """Single steps in which somebody held up the others."""
    blame = case.blame
    share = blame.lost[:, case.columns] / blame.dur_ns
    top, worst = share.argmax(axis=0), share.max(axis=0)
    usual = float(np.median(np.sort(share, axis=0)[-2])) if len(share) > 1 else 0.0
    hit = np.flatnonzero(worst > max(EVENT_SHARE, EVENT_TIMES * usual))
    if not len(hit):
        return []
    columns = [case.columns[at] for at in hit.tolist()]
    who = top[hit].tolist()
    found = [_cause(case, one, [at]) for one, at in zip(who, columns, strict=True)]
    # Events of different causes have nothing to do with each other.
    alike: dict[str, list[int]] = {}
    for at, cause in enumerate(found):
        alike.setdefault(cause.what, []).append(at)
    verdicts = [
        _event(case, [found[at] for at in mine], [(who[at], columns[at]) for at in mine]) for mine in alike.values()
    ]
    return sorted(verdicts, key=lambda one: (-one.lost_ns, one.steps))


def _event(case: _Case, causes: list[Cause], hits: list[tuple[int, int]]) -> Straggler:
    """Events of one cause. hits: origin and column of each."""
    blame, cause = case.blame, causes[0]
    who, columns = [one for one, _ in hits], [column for _, column in hits]
    shared = all(one.shared for one in causes)
    if len(set(who)) == 1 and not shared:
        return _straggler(case, who[0], columns, ONCE if len(hits) == 1 else UNCLEAR, cause)
    lost = float(blame.lost[who, columns].sum())
    return Straggler(
        kind=JITTER,
        rank=None,
        ranks=sorted(
            {row.rank for row in case.rows} if shared else {rank for one in who for rank in _ranks(case, one)}
        ),
        host=None,
        cause=cause.what,
        leaf=cause.leaf,
        steps=[blame.numbers[at][1] for at in columns],
        lost_ns=round(lost),
        share=lost / (blame.dur_ns * len(columns)),
    )


def _cause(case: _Case, origin: int, columns: list[int]) -> Cause:
    if not case.blame.origins[origin]:
        return Cause(NOT_RECORDED, None, 0.0)
    cause = _explained(case, origin, columns)
    return cause if cause.what != KEPT else Cause(UNKNOWN, None, cause.ns)


def _explained(case: _Case, origin: int, columns: list[int]) -> Cause:
    blame = case.blame
    lost_ns = float(blame.lost[origin, columns].mean()) if columns else 0.0
    return explain(case.rows, case.leaves, blame.at, blame.origins[origin], columns, lost_ns)


def _ranks(case: _Case, origin: int) -> tuple[int, ...]:
    members = case.blame.origins[origin]
    return tuple(case.rows[row].rank for row in members) or (case.blame.missing[origin],)


def _straggler(case: _Case, origin: int, columns: list[int], kind: str, cause: Cause) -> Straggler:
    blame = case.blame
    lost = float(blame.lost[origin, columns].sum())
    ranks = _ranks(case, origin)
    hosts = {case.rows[row].file.meta.host for row in blame.origins[origin]}
    return Straggler(
        kind=kind,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=list(ranks),
        host=hosts.pop() if len(hosts) == 1 else None,
        cause=cause.what,
        leaf=cause.leaf,
        steps=[blame.numbers[at][1] for at in columns],
        lost_ns=round(lost),
        share=lost / (blame.dur_ns * len(columns)) if columns else 0.0,
        through=[case.rows[row].rank for row in blame.links[origin]],
        recorded=bool(blame.origins[origin]),
        also=list(cause.also),
    )
