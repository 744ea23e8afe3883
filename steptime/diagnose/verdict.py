"""The verdict in three sentences: what is slow, who and why, since when."""

from __future__ import annotations

from steptime.diagnose.first_moves import rank_list, who
from steptime.diagnose.limits import (
    TOO_DARK,
    could_be_new,
    dark_share,
    edge_only,
    hidden_wait,
    leaf_shares,
    measured,
    missing_ranks,
    one_window,
    slower_by,
)
from steptime.diagnose.say import plural, share_text, time_text
from steptime.diagnose.seen import Seen
from steptime.diagnose.suspects import SLOWER_SHARE, mean_step_ns
from steptime.model import Report
from steptime.model.on_call import CLEAR, SLOW, Suspect
from steptime.taxonomy import LEAVES, SLICES

_TITLES = {leaf.key: leaf.title for leaf in LEAVES} | {part.id: part.title for part in SLICES}
_TITLES["productive"] = "useful work"
_WHY = {
    "slower kernels": "its kernels run slower than the same kernels on its peers",
    "more work": "it has more work than its peers",
    "slow link": "its transfers take longer than its peers'",
    "not recorded": "why is not known, because its own trace is not there",
    "not separable": "why can't be told from these traces",
}


def what_sentence(seen: Seen, status: str) -> str:
    """The first sentence: how long a step takes, against what, and where most of the trouble is."""
    report, baseline, found = seen.report, seen.baseline, seen.found
    if not measured(report):
        return "Can't tell: no whole training step was recorded, so there is nothing to judge."
    what = "The recorded window" if one_window(report) else "A step"
    text = f"{what} takes {time_text(report.job.step_time_ns.median)} ({_counted(report)})"
    if baseline is not None:
        before, share = mean_step_ns(baseline), slower_by(report, baseline)
        than = f"the baseline's mean of {time_text(before)}"
        if abs(share) < SLOWER_SHARE:
            text += f", as long as {than} within {share_text(SLOWER_SHARE)}"
        elif share > 1:
            text += f"; its mean is {1 + share:.1f} times {than}"
        else:
            text += f"; its mean is {share_text(abs(share))} {'longer' if share > 0 else 'shorter'} than {than}"
    if status == SLOW:
        first = found[0]
        cost = f"{time_text(first.cost_ns)} of the mean step ({share_text(first.share)})"
        return f"{text}, and {cost} {_lost(first)}."
    if status == CLEAR:
        judged = "This is not slower than the baseline" if baseline is not None else "Nothing is wrong with these steps"
        return f"{judged}: {text[0].lower()}{text[1:]}."
    return f"{text}."


def _lost(suspect: Suspect) -> str:
    if suspect.kind == "grown":
        return f"is new: {_title(suspect.leaf or suspect.cause)} takes that much longer"
    if suspect.kind in ("all ranks", "some ranks"):
        return f"goes to {_title(suspect.leaf or suspect.cause)}"
    if suspect.kind == "group":
        return "is lost to a slow link"
    return "is spent waiting for a late rank"


def _counted(report: Report) -> str:
    ranks = plural(report.job.ranks_analyzed, "rank")
    if report.job.world_size is not None and report.job.world_size != report.job.ranks_analyzed:
        ranks = f"{report.job.ranks_analyzed:,} of {plural(report.job.world_size, 'rank')}"
    return ranks if one_window(report) else f"median of {plural(len(report.job.steps), 'step')} on {ranks}"


def who_sentence(seen: Seen, status: str) -> str:
    """The second sentence: who it is, and why."""
    report, found = seen.report, seen.found
    if status == SLOW:
        return _accused(found[0])[:-1] + (f"; then {_briefly(found[1])}." if len(found) > 1 else ".")
    if status == CLEAR:
        text = "No rank holds up the others" if report.job.ranks_analyzed > 1 else "This rank's host keeps up"
        text += " by much" if report.stragglers else ""
        if found:
            return f"What stands out all the same: {_briefly(found[0])}."
        largest = _largest(report)
        cost = f", and no pause, slow link or late rank is behind the largest cost, {largest}" if largest else ""
        return f"{text}{cost}."
    return _undecided(seen)


def _undecided(seen: Seen) -> str:
    report, found = seen.report, seen.found
    if not measured(report):
        return "Who and why can't be told either."
    beside = f"; what stands out all the same: {_briefly(found[0])}" if found else ""
    if edge_only(report):
        return (
            "Can't tell who or why: only steps at the edge of the recording were caught, whose start is not there"
            f"{beside}."
        )
    dark = dark_share(report)
    if dark > TOO_DARK:
        shares = {leaf: share for leaf, share in leaf_shares(report).items() if leaf.partition("/")[0] == "unexplained"}
        most = max(shares, key=lambda leaf: shares[leaf])
        return (
            f"Can't tell who or why: {share_text(dark)} of the step the device is idle and nothing recorded proves the "
            f"cause, most of it: {_title(most)}{beside}."
        )
    largest = max((one.share for one in found), default=0.0)
    if hidden_wait(report, seen.missed, largest):
        missing = missing_ranks(report)
        were = "rank {} was" if len(missing) == 1 else "ranks {} were" if missing else "some processes were"
        return (
            f"Can't tell who: {were.format(rank_list(missing))} not recorded, and waiting for a late one of them looks "
            f"like communication{beside}."
        )
    leaf = could_be_new(report)
    if leaf is not None and seen.baseline is None and seen.pace is None:
        cost = share_text(leaf_shares(report)[leaf])
        return (
            f"Can't tell if anything is wrong: {_title(leaf)} takes {cost} of the step and no rank stands out; "
            "whether that is new only --baseline REPORT tells."
        )
    if seen.baseline is None and seen.pace is not None:
        return "Can't tell why: the steps became longer, and no pause, slow link or late rank shows in these traces."
    return f"Can't tell why: no single cause grew by enough to be named{beside}."


def _accused(suspect: Suspect) -> str:
    cost = f"{time_text(suspect.cost_ns)} a step"
    name = who(suspect)
    who_capital = name[0].upper() + name[1:]
    if suspect.kind in ("straggler", "once", "unclear") and suspect.ranks:
        why = _WHY.get(suspect.cause, f"its time goes to {_title(f'host/{suspect.cause}')}")
        where = f", seen in {suspect.leaf}" if suspect.leaf and suspect.cause in ("slower kernels", "more work") else ""
        when = f" in {plural(len(suspect.steps), 'step')} of those" if suspect.kind == "once" else ""
        verb = "is" if len(suspect.ranks) == 1 else "are"
        return f"{who_capital} {verb} late{when}: {why}{where}; that costs each other rank {cost}."
    if suspect.kind == "jitter":
        those = f" ({name})" if suspect.ranks else ""
        return (
            f"A different rank is late each time{those}, because of {_cause(suspect)}; that costs each other rank "
            f"{cost}."
        )
    if suspect.kind == "group":
        return f"{who_capital} {'have' if len(suspect.ranks) > 1 else 'has'} a slow link between them: {cost}."
    if suspect.kind == "unclear":
        return f"Ranks wait for each other {cost}, and none of them is late again and again."
    if suspect.kind == "grown":
        return f"{who_capital}: {_title(suspect.leaf or suspect.cause)} takes {cost} more than in the baseline."
    verb = "loses" if len(suspect.ranks) == 1 else "lose"
    mean = "" if suspect.kind == "all ranks" else " in the mean of all ranks"
    return f"{who_capital} {verb} {cost}{mean} to {_title(suspect.leaf or suspect.cause)}."


def _briefly(suspect: Suspect) -> str:
    """A suspect in a few words: ``rank 11 on host a (slower kernels, 6.67 ms a step)``."""
    old = ", as in the baseline" if suspect.new_ns == 0 else ""
    return f"{who(suspect)} ({_cause(suspect)}, {time_text(suspect.cost_ns)} a step{old})"


def _cause(suspect: Suspect) -> str:
    known = suspect.leaf if suspect.kind == "grown" and suspect.leaf else f"host/{suspect.cause}"
    return _title(known) if known in _TITLES else suspect.cause


def _largest(report: Report) -> str | None:
    apart = ("productive", "stragglers", "unexplained")
    losses = {leaf: share for leaf, share in leaf_shares(report).items() if leaf.partition("/")[0] not in apart}
    if not losses:
        return None
    leaf = max(losses, key=lambda key: losses[key])
    return f"{_title(leaf)} with {share_text(losses[leaf])}"


def since_sentence(seen: Seen) -> str:
    """The third sentence: since when, only where something recorded tells it."""
    report, found, pace = seen.report, seen.found, seen.pace
    if pace is not None:
        change = f"the median step went from {time_text(pace.before_ns)} to {time_text(pace.after_ns)}"
        at = f" ({moment_text(pace.unix_ns)})" if pace.unix_ns is not None else ""
        return f"Since step {pace.step}{at}, by the hook's step times: {change}."
    steps = report.job.steps
    if found and found[0].since_step is not None:
        return f"Since step {found[0].since_step}{_by(report)}: the recorded steps before it were free of it."
    if found and found[0].steps and len(found[0].steps) < len(steps):
        each = time_text(found[0].cost_ns * len(steps) / len(found[0].steps))
        often = f"It was seen in {len(found[0].steps)} of {len(steps)} recorded steps, {each} in each"
        return f"{often}, first in step {found[0].steps[0]}{_by(report)}; since when these traces can't tell."
    if not steps:
        return "Since when these traces can't tell."
    if found:
        first = "" if _by(report) else f" ({steps[0]})"
        return f"Since when these traces can't tell: it is there from the first recorded step{first} on."
    if seen.baseline is not None:
        return "Since when these traces can't tell."
    return "When it was faster these traces can't tell: --baseline REPORT sets it against a healthy report."


def _by(report: Report) -> str:
    """Only the job's own marks carry the job's own step numbers."""
    return "" if "profilerstep marks" in report.job.step_source.lower().split("(no ")[0] else " of the recording"


def moment_text(unix_ns: int) -> str:
    """``2026-11-03 03:12:45 UTC``."""
    from datetime import datetime, timezone

    moment = datetime.fromtimestamp(unix_ns // 1_000_000_000, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _title(leaf: str) -> str:
    return f"{_TITLES.get(leaf, leaf)} ({leaf})"
