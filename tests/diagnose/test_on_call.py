"""The verdict for someone on call, on jobs of the simulator whose fault is known, and on real traces.

Who is slow, and why, comes from the scenario that was simulated; the sentences themselves are fixed words.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import steptime
from steptime.diagnose.on_call import on_call
from steptime.model import Report
from steptime.model.on_call import CANNOT_TELL, CLEAR, SLOW, Missed, OnCall, Pace
from steptime.report.on_call import payload, render
from steptime.simulate import simulate
from steptime.simulate.scenario import Batch, Cluster, Fault, Layout, Model, Recording, Scenario

TRACES = Path(__file__).parents[3] / "shared" / "public_traces"
_MODEL = Model(layers=4, hidden=2048, heads=16, ffn=8192, vocab=32000)


def _job(*faults: Fault, **changes: object) -> Scenario:
    tables: dict[str, object] = {
        "seed": 1,
        "model": _MODEL,
        "layout": Layout(dp=4),
        "batch": Batch(micro_batch_size=4, seq_len=2048),
        "recording": Recording(steps=5),
        "fault": list(faults),
    }
    return Scenario(**(tables | changes))  # type: ignore[arg-type]


class _Jobs:
    """Reports of simulated jobs, each simulated once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Report] = {}

    def report(self, name: str, scenario: Scenario) -> Report:
        if name not in self._known:
            simulate(scenario, self.folder(name))
            self._known[name] = steptime.analyze(str(self.folder(name)))
        return self._known[name]

    def folder(self, name: str) -> Path:
        return self._folder / name

    def clean(self) -> Report:
        return self.report("clean", _job())

    def slow_gpu(self) -> Report:
        return self.report("slow_gpu", _job(Fault(kind="slow_gpu", ranks=[2], size=0.2)))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> _Jobs:
    return _Jobs(tmp_path_factory.mktemp("jobs"))


def _has_three_sentences(summary: OnCall) -> None:
    assert len(summary.verdict) == 3
    assert [text for text in summary.verdict if not text.endswith(".") or text[0] != text[0].upper()] == []


def test_a_clean_job_is_not_accused(jobs: _Jobs) -> None:
    summary = on_call(jobs.clean())
    assert (summary.status, summary.suspects, summary.actions) == (CLEAR, [], [])
    assert summary.verdict[0].startswith("Nothing is wrong with these steps: a step takes ")
    assert summary.verdict[1].startswith("No rank holds up the others")
    assert "--baseline" in summary.verdict[2]
    _has_three_sentences(summary)


def test_a_throttled_gpu_is_named_with_its_host_and_number(jobs: _Jobs) -> None:
    summary = on_call(jobs.slow_gpu())
    assert summary.status == SLOW
    assert "is spent waiting for a late rank" in summary.verdict[0]
    assert summary.verdict[1].startswith("Rank 2 on host host0 is late: its kernels run slower than the same kernels")
    assert "it is there from the first recorded step (11) on." in summary.verdict[2]
    (first, *_) = summary.suspects
    assert (first.ranks, first.host, first.cause, first.device) == ([2], "host0", "slower kernels", 2)
    assert summary.actions[0].ranks == [2]
    assert "rank 2 on host host0: nvidia-smi -i 2 -q" in summary.actions[0].text
    _has_three_sentences(summary)


def test_a_slow_loader_on_one_rank(jobs: _Jobs) -> None:
    report = jobs.report("loader", _job(Fault(kind="slow_loader", ranks=[1], size=60.0)))
    summary = on_call(report)
    assert summary.status == SLOW
    assert summary.verdict[1].startswith("Rank 1 on host host0 is late: its time goes to data loader")
    assert "data loader of rank 1 on host host0" in summary.actions[0].text
    # The rule's own advice comes after the first move.
    assert any(action.finding is not None and "num_workers" in action.text for action in summary.actions[1:])


def test_a_collection_on_another_rank_each_step(jobs: _Jobs) -> None:
    summary = on_call(jobs.report("gc", _job(Fault(kind="gc_pause", size=60.0))))
    assert summary.status == SLOW
    assert summary.verdict[1].startswith("A different rank is late each time")
    assert "host/python" in summary.verdict[1]
    assert any("stacks" in text and "steptime.watch" in text for text in summary.captures)


def test_a_fault_that_began_during_the_recording_is_dated(jobs: _Jobs) -> None:
    fault = Fault(kind="slow_gpu", ranks=[2], size=0.3, steps=[14, 15, 16])
    report = jobs.report("late", _job(fault, recording=Recording(steps=7)))
    summary = on_call(report)
    assert summary.suspects[0].ranks == [2]
    assert summary.verdict[2] == "Since step 14: the recorded steps before it were free of it."


def test_the_hook_s_step_times_date_it(jobs: _Jobs) -> None:
    # 2026-11-03 03:12:45 UTC is 1793675565 s after 1970 (date -u -d @1793675565).
    pace = Pace(step=60, unix_ns=1_793_675_565 * 10**9, before_ns=100_000_000, after_ns=150_000_000, ranks=4)
    assert on_call(jobs.slow_gpu(), pace=pace).verdict[2] == (
        "Since step 60 (2026-11-03 03:12:45 UTC), by the hook's step times: the median step went from 100 ms to 150 ms."
    )


def test_the_baseline_says_how_much_is_new(jobs: _Jobs) -> None:
    before, after = jobs.clean(), jobs.slow_gpu()
    summary = on_call(after, baseline=before)
    assert summary.status == SLOW
    # The shares are of the two reports' own integers.
    longer = after.job.total_ns / after.job.rank_steps / (before.job.total_ns / before.job.rank_steps) - 1
    assert f"its mean is {longer * 100:.1f} % longer than the baseline's mean" in summary.verdict[0]
    assert summary.changes is not None
    assert summary.changes[0].leaf == "stragglers/wait_for_rank"
    moved = sum(one.after_ns - one.before_ns for one in summary.changes)
    assert abs(moved - (summary.mean_step_ns - (summary.baseline_mean_step_ns or 0))) < 100


def test_what_grew_on_all_ranks_alike_needs_a_baseline(jobs: _Jobs) -> None:
    """Links at a seventh of their rate: no rank is late, and only a healthy report shows that it is new."""
    after = jobs.report("links", _job(cluster=Cluster(link_share=0.1)))
    assert on_call(after).status == CANNOT_TELL
    assert "only --baseline REPORT tells" in on_call(after).verdict[1]
    summary = on_call(after, baseline=jobs.clean())
    assert summary.status == SLOW
    (first, *_) = summary.suspects
    assert (first.kind, first.leaf) == ("grown", "exposed_comm/allreduce")
    assert "All ranks: all-reduce (exposed_comm/allreduce) takes" in summary.verdict[1]
    assert "more than in the baseline" in summary.verdict[1]


def test_a_job_as_fast_as_its_baseline_is_not_slow(jobs: _Jobs) -> None:
    report = jobs.slow_gpu()
    summary = on_call(report, baseline=report)
    assert summary.status == CLEAR
    assert summary.verdict[0].startswith("This is not slower than the baseline: ")
    assert summary.verdict[1].startswith("What stands out all the same: rank 2 on host host0 (slower kernels")
    _has_three_sentences(summary)


def test_another_job_is_no_baseline(jobs: _Jobs) -> None:
    other = jobs.report("two", _job(layout=Layout(dp=2)))
    summary = on_call(jobs.slow_gpu(), baseline=other)
    assert (summary.status, summary.changes) == (SLOW, None)
    assert any("another number of ranks (then 2, now 4)" in text for text in summary.doubts)


def test_a_slow_rank_without_a_file_is_named_and_its_cause_is_not(jobs: _Jobs, tmp_path: Path) -> None:
    jobs.slow_gpu()
    for path in jobs.folder("slow_gpu").glob("rank*"):
        if not path.name.startswith("rank2."):
            shutil.copy(path, tmp_path)
    summary = on_call(steptime.analyze(str(tmp_path)))
    assert [one.ranks for one in summary.suspects] == [[2]]
    assert summary.verdict[1].startswith("Rank 2 is late: why is not known, because its own trace is not there")
    assert summary.captures == ["Capture rank 2 (--ranks 2): it is late, and it was not recorded."]
    assert "nvidia-smi" not in summary.actions[0].text
    assert any("1 rank of 4 not recorded (2)" in text for text in summary.doubts)


def test_hostile_names_do_nothing(jobs: _Jobs) -> None:
    evil = "h\x1b[31m{who}\u202e<b>\n"
    report = jobs.slow_gpu()
    report = replace(
        report,
        stragglers=[replace(one, host=evil) for one in report.stragglers],
        ranks=[replace(rank, host=evil) for rank in report.ranks],
    )
    summary = on_call(report, missed=(Missed(who=evil, reason=evil, remedy=evil),), job=evil)
    text = render(summary, 100) + str(payload(summary))
    assert "h\\x1b[31m{who}\\u202e<b>\\n" in text.replace("\\\\", "\\")
    assert [char for char in text if char != "\n" and not char.isprintable()] == []
    assert render(summary, 100).count("h\\x1b[31m{who}") >= 3


def test_one_screen(jobs: _Jobs) -> None:
    text = render(on_call(jobs.slow_gpu(), baseline=jobs.clean()), 100)
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith("A step takes ")


#: Trace -> the status, and words of the second sentence; what is known of each is in the README beside the traces.
_PUBLIC = {
    "dlrm_v100_8ranks": (CANNOT_TELL, "only steps at the edge of the recording were caught"),
    "hta/negative_queue_length_values_check/rank0.json.gz": (CANNOT_TELL, "work was queued, the device did not start"),
    "tracelens/mi300/resnet_act_checkpoint.json.gz": (CANNOT_TELL, "ranks 1-7 were not recorded"),
    "resnet50_dataloader/num_workers_0/worker0.1623143089861.pt.trace.json.gz": (SLOW, "data loader"),
}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the checkout")
@pytest.mark.parametrize("name", _PUBLIC)
def test_real_traces(name: str) -> None:
    status, words = _PUBLIC[name]
    summary = on_call(steptime.analyze(str(TRACES / name)))
    assert summary.status == status
    assert words in summary.verdict[1]
    _has_three_sentences(summary)
    # A rank that was not proven late is never accused.
    assert [one for one in summary.suspects if one.kind == "straggler"] == []


def test_a_slow_down_that_the_traces_do_not_explain_is_not_cleared(jobs: _Jobs) -> None:
    pace = Pace(step=60, unix_ns=None, before_ns=20_000_000, after_ns=30_000_000, ranks=4)
    summary = on_call(jobs.clean(), pace=pace)
    assert summary.status == CANNOT_TELL
    assert summary.verdict[1].startswith("Can't tell why: the steps became longer")
    assert summary.verdict[2].startswith("Since step 60, by the hook's step times")


def test_one_missing_file_does_not_take_a_late_rank_back(jobs: _Jobs, tmp_path: Path) -> None:
    jobs.slow_gpu()
    for path in jobs.folder("slow_gpu").glob("rank*"):
        if not path.name.startswith("rank0."):
            shutil.copy(path, tmp_path)
    summary = on_call(steptime.analyze(str(tmp_path)))
    named = [one.ranks for one in summary.suspects]
    assert (summary.status, named) == (SLOW, [[2]])
    assert "its kernels run slower" in summary.verdict[1]
    assert any("1 rank of 4 not recorded (0)" in text for text in summary.doubts)


def test_what_was_there_in_the_baseline_is_not_what_is_new(jobs: _Jobs) -> None:
    """A throttled GPU before and after; since then the links are slow, too."""
    fault = Fault(kind="slow_gpu", ranks=[2], size=0.2)
    after = jobs.report("both", _job(fault, cluster=Cluster(link_share=0.3)))
    summary = on_call(after, baseline=jobs.slow_gpu())
    assert summary.status == SLOW
    assert summary.suspects[0].leaf == "exposed_comm/allreduce"
    assert "more than in the baseline" in summary.verdict[1]
    # The old trouble costs more than the new one, and is told after it.
    (old,) = summary.suspects[1:]
    assert (old.ranks, old.new_ns) == ([2], 0)
    assert old.cost_ns > summary.suspects[0].cost_ns
    assert "; then rank 2 on host host0 (slower kernels, " in summary.verdict[1]
    assert summary.verdict[1].endswith(" a step, as in the baseline).")
