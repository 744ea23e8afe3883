"""What every view says of the replay: several fixes one after the other, and how far it can be trusted."""

from __future__ import annotations

from typing import NamedTuple

from steptime.model import Report
from steptime.report import units
from steptime.report.names import brief
from steptime.report.plain_table import Table

#: Stalls that nothing explains are worth saying from this share of the critical path on.
_STALLED = 0.02


class Step(NamedTuple):
    """A rung in texts ready to print: the fix added last, the mean step and MFU then, and the step by subtraction."""

    fix: str
    step_time: str
    mfu: str
    naive: str


def rungs(report: Report) -> list[Step]:
    """The ladder from the bottom; empty without a replay."""
    titles = {one.id: one.title for one in report.findings}
    return [
        Step(
            fix=("+ " if at else "") + brief(titles.get(one.findings[-1], one.findings[-1]), 300),
            step_time=units.time(one.step_time_ns),
            mfu=units.share(one.mfu) if one.mfu is not None else "",
            naive=units.time(one.naive_step_time_ns) if one.naive_step_time_ns is not None else "",
        )
        for at, one in enumerate(report.replay.ladder if report.replay is not None else [])
    ]


def table(report: Report) -> Table | None:
    """The ladder for the page."""
    steps = rungs(report)
    if not steps:
        return None
    with_mfu = any(step.mfu for step in steps)
    head = ["step", *(["MFU"] if with_mfu else []), "by subtraction", "fixed"]
    rows = [[step.step_time, *([step.mfu] if with_mfu else []), step.naive, step.fix] for step in steps]
    return Table(head, rows, numbers=len(head) - 1)


def trust(report: Report) -> str:
    """How well the replay knows the job, or why there is none; empty if none was asked for."""
    replay = report.replay
    if replay is None:
        return ""
    if replay.why is not None:
        return f"Gains are upper bounds, by subtraction: {brief(replay.why, 300)}."
    said = "Gains are from a replay of the job: what waited for what, with the times of the fix left out."
    if replay.error_share is not None:
        said += f" Unchanged, it gives back the measured steps within {units.share(replay.error_share)}."
    if replay.stalled_share is not None and replay.stalled_share >= _STALLED:
        said += (
            f" {units.share(replay.stalled_share)} of its critical path are stalls that nothing recorded explains: "
            "they stay in every gain."
        )
    return said
