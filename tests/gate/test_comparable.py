"""Runs that must not be compared: each mismatch gives exit code 2, its reason in the first line, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from steptime import store
from steptime.cli import main
from steptime.model import Collective, Input, Pipeline, Quality, Report
from tests.gate.runs import report, report_of
from tests.report.reports import quality

STEPS = 100e6 * np.ones(8)


def same(**job: Any) -> Report:
    return report(STEPS, ranks=2, **job)


def job(**changes: Any) -> Callable[[], Report]:
    return lambda: same(**changes)


def with_facts(tokens: float) -> Report:
    return replace(same(), facts={"job.tokens_per_step": tokens})


def with_group(members: int, name: str = "mesh_tp") -> Report:
    one = Collective(kind="all_reduce", group=name, count=1, dur_ns=1, exposed_ns=1, members=members)
    return replace(same(), collectives=[one])


def with_stages(*stages: list[int]) -> Report:
    return replace(
        same(),
        pipeline=Pipeline(
            stages=list(stages), schedule=None, chunks=1, micro_batches=4, forward_ns=[1, 1], backward_ns=[1, 1]
        ),
    )


def with_quality(**changes: Any) -> Report:
    found: Quality = quality(**changes)
    return replace(same(), inputs=[Input(path="rank0.json", rank=0, bytes=1, events=1000, quality=found)])


def with_edges() -> Report:
    found = same()
    ranks = [replace(rank, steps=[replace(step, edge=True) for step in rank.steps]) for rank in found.ranks]
    return replace(found, ranks=ranks)


def without_rank_1() -> Report:
    found = same()
    return replace(found, ranks=found.ranks[:1])


#: What is wrong -> candidate, baseline, words of the first line, words of the remedy.
CASES: dict[str, tuple[Callable[[], Report], Callable[[], Report], str, str]] = {
    "gpu": (job(device="NVIDIA A100-SXM4-80GB"), same, "another GPU: NVIDIA A100", "--update-baseline"),
    "world size": (job(world_size=16), job(world_size=8), "another world size: 16", "--update-baseline"),
    "model": (job(model_flops_per_step=2 * 10**12), same, "another model or batch", "--update-baseline"),
    "dtype": (job(reference_dtype="fp16"), same, "another reference dtype: fp16", "--update-baseline"),
    "batch": (lambda: with_facts(8192), lambda: with_facts(4096), "tokens of a step: 8,192", "--update-baseline"),
    "group size": (lambda: with_group(4), lambda: with_group(2), "size of the groups mesh_tp: 4", "--update-baseline"),
    "stages": (lambda: with_stages([0], [1]), lambda: with_stages([0, 1]), "another pipeline", "--update-baseline"),
    "steps": (lambda: report(STEPS[:3], ranks=2), same, "has 3 counted steps, 5 are needed", "record more steps"),
    "no steps": (lambda: report(STEPS[:0], ranks=2), same, "has 0 counted steps", "record more steps"),
    "step source": (job(step_source="whole recording"), same, "what tells the steps", "--update-baseline"),
    "ranks": (without_rank_1, same, "ranks missing", "the same ranks on both sides"),
    "edges": (with_edges, same, "only edge steps", "record at least two steps more"),
    "dropped": (
        lambda: with_quality(dropped={"events without a time": 40}),
        same,
        "40 of 1,000 events",
        "record again",
    ),
    "lost": (
        lambda: report_of([{"kernels/matmul": 90_000_000, "unexplained/events_missing": 10_000_000}] * 8, ranks=2),
        same,
        "the profiler lost device events",
        "record fewer steps",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_that_differ_are_not_judged(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    candidate, baseline, reason, remedy = CASES[name]
    store.save(candidate(), tmp_path / "new.json")
    store.save(baseline(), tmp_path / "base.json")
    code = main(["gate", str(tmp_path / "new.json"), "--baseline", str(tmp_path / "base.json")])
    text = " ".join(capsys.readouterr().out.split())
    assert code == 2
    assert text.startswith("cannot tell: not comparable: ")
    assert reason in text.partition("What to do:")[0]
    assert remedy in text.partition("What to do:")[2]


def test_the_same_again_is_judged(tmp_path: Path) -> None:
    store.save(same(), tmp_path / "new.json")
    assert main(["gate", str(tmp_path / "new.json"), "--baseline", str(tmp_path / "new.json")]) == 0


def on_ranks(work_ms: list[int]) -> Report:
    """A job whose ranks do so much useful work, of a peak that is known; each step has 100 ms."""
    found = report(STEPS, ranks=len(work_ms), model_flops_per_step=sum(work_ms) * 10**12)
    ranks = [
        replace(
            rank,
            steps=[
                replace(step, productive_ns=ms * 1_000_000, leaves_ns={"kernels/matmul": step.dur_ns - ms * 1_000_000})
                for step in rank.steps
            ],
        )
        for rank, ms in zip(found.ranks, work_ms, strict=True)
    ]
    work_ns, total_ns = sum(work_ms) * len(STEPS) * 1_000_000, found.job.total_ns
    slices = [
        replace(one, ns=total_ns - work_ns, leaves=[]) if one.id == "kernels" else one for one in found.job.slices
    ]
    return replace(found, ranks=ranks, job=replace(found.job, productive_ns=work_ns, slices=slices))


@pytest.mark.parametrize(
    ("work_ms", "code"),
    [([30, 30, 30, 45], 0), ([31, 31, 31, 31], 2), ([30, 30, 45, 45], 2), ([30, 30, 30, 30], 0)],
)
def test_more_work_on_one_rank_is_judged_and_more_on_all_is_another_job(
    work_ms: list[int], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.save(on_ranks(work_ms), tmp_path / "new.json")
    store.save(on_ranks([30, 30, 30, 30]), tmp_path / "base.json")
    assert main(["gate", str(tmp_path / "new.json"), "--baseline", str(tmp_path / "base.json")]) == code
    text = " ".join(capsys.readouterr().out.split())
    assert ("another model or batch" in text) == (code == 2)
    assert ("rank 3 1.50 times" in text) == (work_ms == [30, 30, 30, 45])


def _newer(path: Path) -> None:
    store.save(same(), path)
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 999'))


#: What is wrong with a baseline file -> how it is made, words of the first line.
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path, "no such file or folder: check the path"),
    "not json": (lambda path: path.write_text('{"schema_version": 1, "tool"'), "not valid JSON"),
    "newer schema": (_newer, "upgrade steptime"),
    "empty": (lambda path: path.write_text(""), ""),
    "edited": (lambda path: path.write_text(_edited()), "edited or damaged"),
}


def _edited() -> str:
    whole = json.loads(store.dumps(same()))
    whole["job"]["total_ns"] -= 5_000_000
    return json.dumps(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_baseline_that_can_t_be_read_is_no_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, reason = FILES[name]
    store.save(same(), tmp_path / "new.json")
    make(tmp_path / "base.json")
    code = main(["gate", str(tmp_path / "new.json"), "--baseline", str(tmp_path / "base.json"), "-q"])
    out = capsys.readouterr().out
    assert code == 2
    assert out.startswith("cannot tell: ")
    assert "base.json" in out
    assert reason in out


def test_no_baseline_at_all_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(same(), tmp_path / "new.json")
    assert main(["gate", str(tmp_path / "new.json"), "-q"]) == 2
    assert "no baseline was given: name one with --baseline" in capsys.readouterr().out
