r"""Figures of the step in Prometheus' text format, for the textfile collector of its node exporter.

Format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats): a ``# HELP`` and a ``# TYPE`` line before the
samples of a name; in label values ``\``, ``"`` and the line feed are escaped; times in seconds, shares 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from steptime.model.on_call import CANNOT_TELL, CLEAR, SLOW, OnCall
from steptime.report.names import brief

_NAME = 200

_Sample = tuple[dict[str, str], float]


def render(summary: OnCall) -> str:
    """The metrics of one summary. What is not known has no sample, so that nobody reads it as zero."""
    job = {"job_name": brief(summary.job, _NAME)} if summary.job else {}
    spread = summary.step_time_ns
    known = summary.mean_step_ns > 0
    times = [("0.1", spread.p10), ("0.5", spread.median), ("0.9", spread.p90)]
    families: list[tuple[str, str, list[_Sample]]] = [
        (
            "steptime_step_time_seconds",
            "Length of a training step over the recorded ranks and steps, by quantile.",
            [(job | {"quantile": quantile}, ns / 1e9) for quantile, ns in times if known],
        ),
        (
            "steptime_step_time_mean_seconds",
            "Mean length of a training step; the leaf shares are of it.",
            [(job, summary.mean_step_ns / 1e9)] if known else [],
        ),
        (
            "steptime_mfu_ratio",
            "Model FLOPs utilization, 0 to 1; absent where it can't be told.",
            [(job, summary.mfu)] if summary.mfu is not None else [],
        ),
        (
            "steptime_leaf_share_ratio",
            "Share of the mean step that goes to a leaf, 0 to 1; with productive time they add up to 1.",
            [
                (job | {"slice": leaf.partition("/")[0], "leaf": leaf.partition("/")[2]}, share)
                for leaf, share in summary.shares.items()
            ],
        ),
        (
            "steptime_suspect_cost_seconds",
            "What each suspect costs in a mean step.",
            [
                (
                    job
                    | {
                        "at": str(at),
                        "cause": brief(one.cause, _NAME),
                        "ranks": ",".join(map(str, one.ranks[:64])),
                        "host": brief(one.host, _NAME) if one.host else "",
                    },
                    one.cost_ns / 1e9,
                )
                for at, one in enumerate(summary.suspects)
            ],
        ),
        (
            "steptime_status",
            "1 for the status that holds: slow, clear or cannot tell.",
            [(job | {"status": status}, float(status == summary.status)) for status in (SLOW, CLEAR, CANNOT_TELL)],
        ),
        ("steptime_ranks_analyzed", "Ranks whose traces were analysed.", [(job, float(summary.ranks_analyzed))]),
    ]
    return "".join(_family(name, about, samples) for name, about, samples in families if samples)


def _family(name: str, about: str, samples: Iterable[_Sample]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
