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
from steptime.ranks.accused import STRAGGLER, Case, cause_of, explained, ranks_of, straggler
from steptime.ranks.alignment import Alignment
from steptime.ranks.blame import Blame, blame_hosts, blame_ranks, column_of
from steptime.ranks.causes import CRITICAL, DEGREES, KEPT, LINK, MORE, UNKNOWN, Cause, leaf_table
from steptime.ranks.counted import Row, ranks_missing
from steptime.ranks.moves import Moved, plain_moves
from steptime.ranks.single_steps import EVENT_SHARE, events, everybody
from steptime.ranks.waits import Waits, find_waits
from steptime.taxonomy import LEAF_CODE
from steptime.trace.events import I64

F64 = NDArray[np.float64]


#: A lead below this share of the step is not worth a name, however regular; with n steps also none below
#: FEW_STEPS / n^2: one rank may have an outlier in both of two steps.
LEAST_LEAD, FEW_STEPS = 0.005, 0.15
#: Variation of the lead that is expected before any is seen, as a share of the step, and the steps' worth of belief in
#: it: with two or three steps the seen variation alone may be small by chance.
EXPECTED_VARIATION, LEAST_BELIEF, MOST_BELIEF = 0.002, 2, 8
#: Share of steps in which a straggler must lead.
LEADING_STEPS = 0.7
#: From this many steps on, a lead further than this many spreads from the usual counts as that far only: one pause of
#: another rank does not clear a straggler, one pause of its own does not make one.
CLIP_STEPS, CLIP_SPREADS = 5, 5.0
#: Bursts of one host cause: at least this share of the step; and who else had that cause may have this share of it.
BURST_SHARE, BURST_OTHERS = 0.03, 0.25
#: Share of a burst that the others must have waited for it.
BURST_WAITED = 0.3
#: Bursts on one rank of R by chance: 1 / R^(n-1) for n bursts; named below this.
BURST_CHANCE = 1 / 8
#: Late in n steps of R ranks by chance, 1 / R^(n-1): below this a rank is late in every step for a reason of its own,
#: though pauses of others cost more in single steps.
STEADY_CHANCE = 1 / 32
#: Beside a larger one, less than this part of it is not told from what that one does to the others.
LEAST_OF_LARGEST = 0.1
#: At most this many stragglers are looked for.
MOST = 4

#: Host causes that leave an event of their own, so that bursts of them can be told from jitter.
SPECIFIC = ("data_loader", "checkpoint", "gc", "allocator", "compile", "sync")


#: Fewer steps can't tell a straggler from a rank that was late once.
LEAST_STEPS = 2


class Pipes(msgspec.Struct, frozen=True):
    """What a pipeline adds: stage int64 [r], -1 for none; messages: waits in them that a slow row explains.

    moves: all waits that got a leaf of their own.
    """

    stage: I64
    messages: Moved
    moves: Moved


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
    stage = pipes.stage if pipes is not None else None
    blame = blame_ranks(rows, alignment, found, pipes.messages if pipes is not None else None, stage)
    columns = _judged(rows, alignment, found, blame)
    if len(columns) < LEAST_STEPS or not blame.dur_ns:
        return []
    case = Case(rows, blame, leaf_table(rows, blame.at, found, alignment.collectives.matches, stage), columns)
    claims = _persistent(case)
    if not claims:
        claims, hit = _bursts(case)
        # Bursts hide who is slow all the time.
        quiet = [column for column in columns if column not in hit]
        if claims and len(quiet) >= LEAST_STEPS:
            bursting = claims[0].ranks
            steady = _persistent(msgspec.structs.replace(case, columns=quiet))
            claims += [claim for claim in steady if claim.ranks != bursting]
    if not claims and (steady := _steady(case)):
        return steady + events(_beyond(case, steady))
    # Between the stages of a pipeline a host that ends its step last is how the schedule drains, nobody's fault.
    staged = bool(alignment.collectives.matches.pair.any()) or bool(case.leaves.unpaired.any())
    hosts = blame_hosts(rows, alignment, found) if not claims and not staged else None
    if hosts is not None:
        claims = _persistent(msgspec.structs.replace(case, blame=hosts))
    accused = {rank for claim in claims for rank in claim.ranks}
    single = events(case)
    if not claims and (common := everybody(case, plain_moves(found) if pipes is None else pipes.moves)):
        return [*single, *(one for one in common if one.cause not in {event.cause for event in single})]
    # With a straggler among them, single steps are its doing first: the next one's share is not separable.
    return claims if any(accused & set(event.ranks) for event in single) else claims + single


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


def _persistent(case: Case) -> list[Straggler]:
    """Origins whose lead holds through the steps, one after the other."""
    share = case.blame.lost[:, case.columns] / case.blame.dur_ns
    claims: list[Straggler] = []
    named: list[int] = []
    passing_on: set[int] = set()
    left = [origin for origin in range(len(share)) if not _kept_by_messages(case, origin)]
    while len(left) > 1 and len(claims) < MOST:
        at, leading = _leader(share[left])
        if at < 0:
            break
        origin = left.pop(at)
        columns = [column for column, leads in zip(case.columns, leading, strict=True) if leads]
        cause = cause_of(case, origin, columns)
        # All hosts do the same: who runs behind the others since some earlier step stays behind, by chance.
        if cause.shared:
            continue
        # Where messages have no other end, a rank may be the longer stage of a pipeline that can't be seen.
        if cause.what == MORE and case.leaves.unpaired.any():
            continue
        # Without a reason of its own, a rank that passes another's lateness on is as late as that one makes it.
        if cause.leaf is None and case.blame.origins[origin] and (origin in passing_on or _kept(case, origin, named)):
            continue
        named.append(origin)
        passing_on |= set(case.blame.links[origin])
        claims.append(straggler(case, origin, columns, STRAGGLER, cause))
    most = max((claim.share for claim in claims), default=0.0)
    claims = [claim for claim in claims if claim.share >= LEAST_OF_LARGEST * most]
    # A slow link makes both of its ends late: the one without a reason of its own is the other end.
    if any(claim.cause == LINK for claim in claims):
        claims = [claim for claim in claims if claim.cause != UNKNOWN]
    # A rank without a file may itself have been kept by the one that is named.
    recorded = [claim for claim in claims if claim.recorded]
    return recorded or claims


def _kept(case: Case, origin: int, named: Sequence[int]) -> bool:
    """Whether the origin itself waited longer for those named before it than the others did for it."""
    waited = case.blame.kept_ns[list(case.blame.origins[origin])][:, list(named)].sum()
    return bool(waited > case.blame.lost[origin].sum())


def _kept_by_messages(case: Case, origin: int) -> bool:
    """Whether the origin was late because of messages that could not be followed to their other end."""
    blame, rows = case.blame, list(case.blame.origins[origin])
    if not rows or not case.leaves.unpaired[rows].any() or not blame.lost[origin, case.columns].any():
        return False
    return explained(case, origin, case.columns).what == KEPT


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
    critical = float(np.interp(degrees, DEGREES, CRITICAL))
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


def _bursts(case: Case) -> tuple[list[Straggler], list[int]]:
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
            found = cause_of(case, top, hit)
            if found.shared and found.what == leaf:
                continue
            also = found.also if found.what == leaf else ()
            cause = Cause(leaf, f"host/{leaf}", float(excess[top][burst[top]].mean()), also=also)
            return [straggler(case, top, hit, STRAGGLER, cause)], hit
    return [], []


def _steady(case: Case) -> list[Straggler]:
    """A rank that is late in every step, where others cost more in single ones: with their pauses left out it leads."""
    share = case.blame.lost[:, case.columns] / case.blame.dur_ns
    least = share.min(axis=1, keepdims=True)
    paused = share > least + np.maximum(EVENT_SHARE, least)
    top, _ = _leader(np.where(paused, least, share))
    if top < 0 or not paused.any() or not case.blame.origins[top] or least[top, 0] < EVENT_SHARE:
        return []
    if len(case.rows) ** float(1 - share.shape[1]) > STEADY_CHANCE:
        return []
    calm = [column for column, pause in zip(case.columns, paused[top].tolist(), strict=True) if not pause]
    cause = cause_of(case, top, calm)
    # What is hidden among pauses takes a reason to be believed.
    if cause.shared or cause.what == UNKNOWN:
        return []
    # What a host does in a single step may be chance; how long kernels take is not.
    if len(calm) < LEAST_STEPS and cause.leaf is not None and cause.leaf.startswith("host/"):
        return []
    return [straggler(case, top, calm, STRAGGLER, cause)]


def _beyond(case: Case, claims: Sequence[Straggler]) -> Case:
    """The case with what the ranks named cost in every step taken off, so that what is beyond it can be looked at."""
    named = {rank for claim in claims for rank in claim.ranks}
    lost = case.blame.lost.copy()
    for origin in range(len(lost)):
        if named & set(ranks_of(case, origin)):
            lost[origin] = np.maximum(lost[origin] - lost[origin, case.columns].min(), 0.0)
    return msgspec.structs.replace(case, blame=msgspec.structs.replace(case.blame, lost=lost))
