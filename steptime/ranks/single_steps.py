"""Single steps in which somebody held up the others, and what all do in every step so that who is last is chance."""

from __future__ import annotations

import numpy as np

from steptime.model import Straggler
from steptime.ranks.accused import JITTER, ONCE, UNCLEAR, Case, cause_of, ranks_of, straggler
from steptime.ranks.blame import column_of
from steptime.ranks.causes import Cause, common_stall
from steptime.ranks.moves import WAIT, Moved

#: A step in which one rank costs the others this share of it, and this many times what the next one usually does, is
#: an event.
EVENT_SHARE, EVENT_TIMES = 0.05, 4.0


def events(case: Case) -> list[Straggler]:
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
    found = [cause_of(case, one, [at]) for one, at in zip(who, columns, strict=True)]
    # Events of different causes have nothing to do with each other.
    alike: dict[str, list[int]] = {}
    for at, cause in enumerate(found):
        alike.setdefault(cause.what, []).append(at)
    verdicts = [
        _event(case, [found[at] for at in mine], [(who[at], columns[at]) for at in mine]) for mine in alike.values()
    ]
    return sorted(verdicts, key=lambda one: (-one.lost_ns, one.steps))


def _event(case: Case, causes: list[Cause], hits: list[tuple[int, int]]) -> Straggler:
    """Events of one cause. hits: origin and column of each."""
    blame, cause = case.blame, causes[0]
    who, columns = [one for one, _ in hits], [column for _, column in hits]
    shared = 2 * sum(one.shared for one in causes) > len(causes)
    if len(set(who)) == 1 and not shared:
        return straggler(case, who[0], columns, ONCE if len(hits) == 1 else UNCLEAR, cause)
    lost = float(blame.lost[who, columns].sum())
    return Straggler(
        kind=JITTER,
        rank=None,
        ranks=sorted(
            {row.rank for row in case.rows} if shared else {rank for one in who for rank in ranks_of(case, one)}
        ),
        host=None,
        cause=cause.what,
        leaf=cause.leaf,
        steps=[blame.numbers[at][1] for at in columns],
        lost_ns=round(lost),
        share=lost / (blame.dur_ns * len(columns)),
    )


def everybody(case: Case, moves: Moved) -> list[Straggler]:
    """What all hosts do, each in its own time, where the ranks wait for each other and nobody leads; at most one."""
    blame = case.blame
    column = column_of(case.rows, blame.at)[moves.row, moves.step]
    mine = (moves.to == WAIT) & (column >= 0)
    waited = np.bincount(column[mine], moves.ns[mine], blame.at.shape[1])
    each_ns = float(waited[case.columns].mean()) / len(case.rows)
    if each_ns < EVENT_SHARE * blame.dur_ns:
        return []
    stage = case.leaves.stage
    alike = [np.flatnonzero(stage == one).tolist() for one in np.unique(stage)]
    stalls = [common_stall(case.leaves, rows, case.columns, each_ns) for rows in alike]
    found = max((stall for stall in stalls if stall is not None), key=lambda stall: stall.ns, default=None)
    if found is None:
        return []
    return [
        Straggler(
            kind=JITTER,
            rank=None,
            ranks=sorted({row.rank for row in case.rows}),
            host=None,
            cause=found.what,
            leaf=found.leaf,
            steps=[blame.numbers[at][1] for at in case.columns],
            lost_ns=round(each_ns * len(case.columns)),
            share=each_ns / blame.dur_ns,
        )
    ]
