"""The three jobs of the OSDI'25 artifact against its published results: ``python -m tests.whatif.published``.

Run from the root of the checkout, it prints each published figure beside steptime's, how far all of them are apart at
most, and steptime's verdict beside the paper's; exit code 1 if one of them is missed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steptime.model.oplevel import Explained, OpLevelReport, Slowdown
from steptime.report.oplevel import verdict
from steptime.whatif.oplevel.analysis import analyze_oplevel

FOLDER = Path(__file__).parents[3] / "shared" / "public_traces" / "bytedance_whatif"

#: How far a figure may be off: as a share of the published one, and by itself near zero (issue 5).
RELATIVE, ABSOLUTE = 1e-3, 1e-3

#: What is wrong with each job by the artifact's authors, in the words of `OpLevelReport.cause`.
CAUSES = {"AR": "worker", "SE": "sequence_lengths", "ST": "stage"}


class Figure(NamedTuple):
    """One published figure: where it stands, and what steptime says."""

    name: str
    published: float
    steptime: float

    @property
    def off(self) -> float:
        """The difference as a share of the published figure, or by itself where that is below 1."""
        return abs(self.steptime - self.published) / max(abs(self.published), 1.0)

    @property
    def agrees(self) -> bool:
        """Whether the difference is within what issue 5 allows."""
        return abs(self.steptime - self.published) <= max(
            RELATIVE * abs(self.published), ABSOLUTE * (abs(self.published) < 1)
        )


def figures(name: str, report: OpLevelReport) -> list[Figure]:
    """Every number of result-NAME.json, ms-NAME.json and mw-NAME.json beside the report's."""
    result = _json(f"result-{name}.json")
    found = _steps(result, report)
    found.append(Figure("launch_slowdown", result["launch_slowdown"], report.launch_slowdown))
    found.append(Figure("blocking_slowdown", result["blocking_slowdown"], report.slowdown))
    for by, rows in (("optype", report.by_type), ("dp_rank", report.by_dp_rank), ("stage", report.by_stage)):
        found += _parts(f"blocking_decompose_by_{by}", result, rows, report)
    for file, which, field in (("ms", report.last_stage, "Ms"), ("mw", report.worst_workers, "Mw")):
        found += _explained(file, field, _json(f"{file}-{name}.json"), which, report)
    return found


def _steps(result: dict[str, Any], report: OpLevelReport) -> list[Figure]:
    ideal = [report.ideal_ns] * len(report.steps)
    found = []
    for field, ns in (
        ("step_t_base", report.recorded_ns),
        ("step_t_nodelay", report.replayed_ns),
        ("step_t_noblk", ideal),
    ):
        found += _per_step(field, result, report, [one / 1e9 for one in ns])
    ratios = (
        ("launch_step_slowdown", report.recorded_ns, report.replayed_ns),
        ("blocking_step_slowdown", report.replayed_ns, ideal),
    )
    for field, above, below in ratios:
        found += _per_step(field, result, report, [one / other for one, other in zip(above, below, strict=True)])
    return found


def _per_step(field: str, result: dict[str, Any], report: OpLevelReport, values: Sequence[float]) -> list[Figure]:
    assert result[field].keys() == {str(step) for step in report.steps}
    return [
        Figure(f"{field}[{step}]", result[field][str(step)], value)
        for step, value in zip(report.steps, values, strict=True)
    ]


def _parts(field: str, result: dict[str, Any], rows: Sequence[Slowdown], report: OpLevelReport) -> list[Figure]:
    assert result[field].keys() == {row.name for row in rows}
    found = [Figure(f"{field}[{row.name}]", result[field][row.name], row.slowdown) for row in rows]
    by_step = result[f"{field}_per_step"]
    assert by_step.keys() == {str(step) for step in report.steps}
    for row in rows:
        for step, ns in zip(report.steps, row.step_ns, strict=True):
            name = f"{field}_per_step[{step}][{row.name}]"
            found.append(Figure(name, by_step[str(step)][row.name], ns / report.ideal_ns))
    return found


def _explained(
    file: str, field: str, published: dict[str, float], which: Explained, report: OpLevelReport
) -> list[Figure]:
    assert which.share is not None
    assert which.share_alone is not None
    values = {
        "tori": sum(report.replayed_ns) / len(report.steps) / 1e9,
        "tideal": report.ideal_ns / 1e9,
        "trem": which.without_ns / 1e9,
        "tadd": which.only_ns / 1e9,
        "rem": which.share,
        "add": which.share_alone,
        field: which.share,
    }
    assert published.keys() == values.keys()
    return [Figure(f"{file}.{name}", published[name], value) for name, value in values.items()]


def _json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return content


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _shown(figure: Figure) -> bool:
    return "per_step" not in figure.name and "step_" not in figure.name


def main() -> int:
    """Print the comparison of all jobs."""
    missed = 0
    for name, cause in CAUSES.items():
        report = analyze_oplevel(FOLDER / f"trace-{name}.parquet")
        compared = figures(name, report)
        _say(f"{name}: {len(compared):,} published figures, at most {max(one.off for one in compared):.1e} off")
        for figure in filter(_shown, compared):
            _say(f"    {figure.name:55} published {figure.published:12.7f}  steptime {figure.steptime:12.7f}")
        agrees = report.cause == cause
        _say(f"    steptime's verdict: {verdict(report)}")
        _say(f"    the paper's: {cause}; steptime's: {report.cause}: {'agree' if agrees else 'DISAGREE'}")
        missed += sum(not one.agrees for one in compared) + (not agrees)
    _say(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
