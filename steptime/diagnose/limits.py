"""What keeps a report from a verdict: steps that were not caught, ranks without a file, time without a cause."""

from __future__ import annotations

from steptime.diagnose.suspects import counted_steps, leaf_means_ns, mean_step_ns
from steptime.model import Report

#: Device idle without a proven cause, and communication that may hide a wait: from this share of the step on they
#: keep a job from being called clear.
TOO_DARK = 0.1
#: One leaf of communication or of the host with this share on all ranks alike may be how the job is built, or what is
#: wrong with it: only a baseline tells.
_COULD_BE_NEW = 0.2


def measured(*reports: Report) -> bool:
    """Whether each of them holds a step to judge."""
    return all(report.job.rank_steps > 0 and report.job.total_ns > 0 for report in reports)


def edge_only(report: Report) -> bool:
    """Whether all steps that the figures rest on are cut by the recording's edge."""
    return all(step.edge for steps in counted_steps(report).values() for step in steps)


def one_window(report: Report) -> bool:
    """Whether no step was marked, so that the whole recording is the one step."""
    return "whole recording" in report.job.step_source.lower()


def missing_ranks(report: Report) -> list[int]:
    """Ranks of the job without a trace; empty where the size of the job is not known."""
    return sorted(set(range(report.job.world_size or 0)) - {rank.rank for rank in report.ranks})


def leaf_shares(report: Report) -> dict[str, float]:
    """Every leaf as a share of the mean step, ``productive`` among them."""
    whole = mean_step_ns(report)
    return {leaf: ns / whole for leaf, ns in leaf_means_ns(report).items()} if whole else {}


def slower_by(report: Report, baseline: Report) -> float:
    """How much longer the mean step is than the baseline's, as a share of that."""
    before = mean_step_ns(baseline)
    return (mean_step_ns(report) - before) / before if before else 0.0


def dark_share(report: Report) -> float:
    """The share of the mean step that has no proven cause."""
    return sum(share for leaf, share in leaf_shares(report).items() if leaf.partition("/")[0] == "unexplained")


def hidden_wait(report: Report, missed: bool, largest: float = 0.0) -> bool:
    """Whether a good part of the step is communication in which waiting for a rank without a file may hide.

    missed: whether processes could not be traced; largest: share of the largest suspect, as a wait that may cost less
    is no reason to doubt it.
    """
    comm = sum(share for leaf, share in leaf_shares(report).items() if leaf.partition("/")[0] == "exposed_comm")
    return (missed or bool(missing_ranks(report))) and comm >= max(TOO_DARK, largest)


def could_be_new(report: Report) -> str | None:
    """The leaf that would be the answer if it were new, largest first."""
    shares = leaf_shares(report)
    leaves = [leaf for leaf, share in shares.items() if share >= _COULD_BE_NEW]
    leaves = [leaf for leaf in leaves if leaf.partition("/")[0] in ("exposed_comm", "pipeline_bubble", "host")]
    return max(leaves, key=lambda leaf: shares[leaf], default=None)
