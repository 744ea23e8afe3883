"""The checks that need the whole run: reports of `goodput` on logs with a known truth, and those of its verbs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.diagnose.findings import diagnose
from steptime.diagnose.run_reports import RunFacts, read_run_reports
from steptime.errors import ReportError
from steptime.goodput.assess import Options, assess
from steptime.goodput.lost_work import Rhythm
from steptime.model import ChecklistItem
from steptime.store import dumps
from tests.diagnose.situations import one_rank

FIT, FAILURES, NORMS = 0, 6, 7
S = 10**9
GIB = 2**30


def _items(*paths: Path) -> list[ChecklistItem]:
    return diagnose(one_rank({}), (), read_run_reports([str(path) for path in paths])).checklist


def _goodput(tmp_path: Path, text: str, suffix: str = "csv", options: Options = Options()) -> Path:  # noqa: B008
    log, saved = tmp_path / f"log.{suffix}", tmp_path / "goodput.json"
    log.write_text(text)
    saved.write_text(dumps(assess([str(log)], options)))
    return saved


#: Eight failures in 24 h: one every 3 h. Young's interval for a pause of 30 s is sqrt(2 * 30 * 10,800) = 805 s.
LOG = "time,cause,detected,resumed\n2024-05-01T00:00:00Z,start,,\n2024-05-02T00:00:00Z,end,,\n" + "".join(
    f"2024-05-01T{hour:02}:00:00Z,GPU,2024-05-01T{hour:02}:00:00Z,2024-05-01T{hour:02}:09:00Z\n"
    for hour in range(2, 24, 3)
)


@pytest.mark.parametrize(
    ("every_s", "status"), [(805, "pass"), (410, "pass"), (1_600, "pass"), (380, "fail"), (1_700, "fail")]
)
def test_failures_are_budgeted_if_the_interval_is_near_the_best(every_s: int, status: str, tmp_path: Path) -> None:
    saved = _goodput(tmp_path, LOG, options=Options(rhythm=Rhythm(every_s * S, 30 * S)))
    item = _items(saved)[FAILURES]
    assert item.status == status
    assert item.why.startswith("the run fails every 3.00 h (8 failures), it is not down 95.0 % of the time; it saves")
    assert item.why.endswith("Young's formula asks for 13.4 min")


def test_without_checkpoints_the_budget_can_t_be_told(tmp_path: Path) -> None:
    item = _items(_goodput(tmp_path, LOG))[FAILURES]
    assert item.status == "cannot tell"
    assert item.why.endswith("; how often it saves is not known")


def _metrics(*names: str) -> str:
    rows = [{"step": step, "timestamp": 1_714_521_600 + 10 * step, **dict.fromkeys(names, 1.0)} for step in range(9)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_norms_are_watched_if_the_run_logs_them(tmp_path: Path) -> None:
    item = _items(_goodput(tmp_path, _metrics("loss", "grad_norm"), "jsonl"))[NORMS]
    assert (item.status, item.why) == ("pass", "the run logs its gradient norm")
    item = _items(_goodput(tmp_path, _metrics("loss"), "jsonl"))[NORMS]
    assert (item.status, item.why) == ("fail", "the run's own log holds no gradient norm")
    # A log of interruptions says nothing of it, so the trace decides.
    assert _items(_goodput(tmp_path, LOG))[NORMS] == _items()[NORMS]


def _saved(tmp_path: Path, kind: str, **fields: object) -> Path:
    """The fields of a report that the checklist reads, as `goodput plan` and `goodput watch` write them."""
    path = tmp_path / f"{kind.split()[-1]}.json"
    path.write_text(json.dumps({"schema_version": 1, "kind": kind, "tool": {"version": "1"}, **fields}))
    return path


@pytest.mark.parametrize(("verdict", "status"), [("fits", "pass"), ("tight", "cannot tell"), ("does not fit", "fail")])
def test_fit_before_fast_is_the_plan_s_verdict(verdict: str, status: str, tmp_path: Path) -> None:
    fit = {"chosen": {"verdict": verdict, "total": 60 * GIB}, "memory_bytes": 80 * GIB}
    plan = _saved(
        tmp_path, "goodput plan", mtbf_job_s=10_800, ask={"interval_s": None}, best={"at": {"interval_s": 960}}, fit=fit
    )
    items = _items(plan)
    assert items[FIT].status == status
    assert items[FIT].why.startswith("the fullest rank needs 60.0 GiB of 80.0 GiB")
    assert (
        items[FAILURES].why
        == "the run fails every 3.00 h by the plan; how often it saves is not known; the plan asks for 16.0 min"
    )


def test_a_plan_decides_on_what_the_log_shows(tmp_path: Path) -> None:
    plan = _saved(
        tmp_path, "goodput plan", mtbf_job_s=9_000, ask={"interval_s": None}, best={"at": {"interval_s": 3_600}}
    )
    saved = _goodput(tmp_path, LOG, options=Options(rhythm=Rhythm(805 * S, 30 * S)))
    for order in ((plan, saved), (saved, plan)):
        item = _items(*order)[FAILURES]
        assert item.status == "fail"
        assert "fails every 3.00 h (8 failures)" in item.why
        assert item.why.endswith("it saves every 13.4 min, the plan asks for 60.0 min")


def test_a_plan_for_another_job_is_left_out(tmp_path: Path) -> None:
    plan = _saved(
        tmp_path, "goodput plan", mtbf_job_s=360_000, ask={"interval_s": None}, best={"at": {"interval_s": 3_600}}
    )
    saved = _goodput(tmp_path, LOG, options=Options(rhythm=Rhythm(805 * S, 30 * S)))
    item = _items(plan, saved)[FAILURES]
    assert item.status == "pass"
    assert item.why.endswith(
        "Young's formula asks for 13.4 min; the plan is for a failure every 4.17 days and left out"
    )


def test_a_watch_tells_how_often_and_of_spikes(tmp_path: Path) -> None:
    watch = _saved(
        tmp_path,
        "goodput watch",
        series=[{"what": "loss", "rows": 90}, {"what": "grad_norm", "rows": 80}],
        spikes=[{"what": "loss"}, {"what": "grad_norm"}, {"what": "grad_norm"}],
    )
    item = _items(watch)[NORMS]
    assert (item.status, item.why) == ("pass", "the run logs its gradient norm at 80 steps; 2 spikes in it")


def test_what_is_no_report_on_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"schema_version": 1, "tool": {"version": "1"}}')
    with pytest.raises(ReportError, match="not a report of `steptime goodput`"):
        read_run_reports([str(tmp_path / "other.json")])
    broken = _saved(tmp_path, "goodput plan", mtbf_job_s="often")
    with pytest.raises(ReportError, match="edited, or of another version"):
        read_run_reports([str(broken)])
    with pytest.raises(ReportError, match="no such file"):
        read_run_reports([str(tmp_path / "missing.json")])
    assert read_run_reports([]) == RunFacts()
