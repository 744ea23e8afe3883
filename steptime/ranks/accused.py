"""A case and its verdicts: what is known of who cost whom how much when, and how it is put down."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.model import Straggler
from steptime.ranks.blame import Blame
from steptime.ranks.causes import KEPT, NOT_RECORDED, UNKNOWN, Cause, Leaves, explain
from steptime.ranks.counted import Row

STRAGGLER, JITTER, ONCE, UNCLEAR = "straggler", "jitter", "once", "unclear"


class Case(msgspec.Struct, frozen=True):
    """What all tests look at: the job, who cost what, and the columns of the steps that may be judged."""

    rows: Sequence[Row]
    blame: Blame
    leaves: Leaves
    columns: list[int]


def cause_of(case: Case, origin: int, columns: list[int]) -> Cause:
    """Why an origin was late in these columns; who is kept by messages that can't be followed is not separable."""
    if not case.blame.origins[origin]:
        return Cause(NOT_RECORDED, None, 0.0)
    cause = explained(case, origin, columns)
    return cause if cause.what != KEPT else Cause(UNKNOWN, None, cause.ns)


def explained(case: Case, origin: int, columns: list[int]) -> Cause:
    """The same, with `KEPT` told apart."""
    blame = case.blame
    lost_ns = float(blame.lost[origin, columns].mean()) if columns else 0.0
    return explain(case.rows, case.leaves, blame.origins[origin], columns, lost_ns)


def ranks_of(case: Case, origin: int) -> tuple[int, ...]:
    """The ranks of an origin; one that was not recorded has no rows."""
    members = case.blame.origins[origin]
    return tuple(case.rows[row].rank for row in members) or (case.blame.missing[origin],)


def straggler(case: Case, origin: int, columns: list[int], kind: str, cause: Cause) -> Straggler:
    """The verdict on an origin that was late in these columns."""
    blame = case.blame
    lost = float(blame.lost[origin, columns].sum())
    ranks = ranks_of(case, origin)
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
