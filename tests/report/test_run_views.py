"""Plans and watches as text: every view says the same, and no name from a log acts in any of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from steptime.errors import ReportError, UsageError
from steptime.model.plan import Plan
from steptime.model.watch import Watch
from steptime.report.goodput import FORMATS, format_for, terminal
from steptime.report.plan_page import plan_page
from steptime.report.watch_page import watch_page
from steptime.store import load_goodput, load_run
from tests.report.run_reports import HOSTILE, bare_plan, bare_watch, full_plan, full_watch

REPORTS: dict[str, Callable[[], Plan | Watch]] = {
    "full_plan": full_plan,
    "bare_plan": bare_plan,
    "full_watch": full_watch,
    "bare_watch": bare_watch,
}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("form", FORMATS)
def test_every_report_has_every_view(name: str, form: str) -> None:
    text = FORMATS[form].render(REPORTS[name]())
    assert text.endswith("\n")
    assert len(text) > 300
    said = text.split("<script")[0]
    assert not re.search(r"\bNone\b|\bnan\b|\binf\b", said)


def test_a_plan_is_no_account_of_logs(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(FORMATS["json"].render(bare_plan()))
    with pytest.raises(ReportError, match="a report of `steptime goodput plan`"):
        load_goodput(path)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [72, 100, 140])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = terminal(REPORTS[name](), width).split("\n")
    assert [line for line in lines if cell_len(line) > width] == []


@pytest.mark.parametrize("name", REPORTS)
def test_a_saved_report_is_the_report(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]()
    path = tmp_path / "report.json"
    path.write_text(FORMATS["json"].render(report))
    assert load_run(path) == report


def test_a_report_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(FORMATS["json"].render(msgspec.structs.replace(bare_plan(), schema_version=99)))
    with pytest.raises(ReportError, match="goodput plan report of schema version 99"):
        load_run(path)


def test_the_plan_says_its_figures() -> None:
    """Of the published job: 3.09 h, 14.3 min by Young, 13.9 by Daly; and what its rows mean."""
    text = terminal(bare_plan(), 100)
    for said in (
        "16,384 GPUs fail every 3.09 h",
        "Young           14.3 min",
        "Daly            13.9 min",
        "half the pause",
        "100,000 GPUs",
        "can't be told without the checkpoint's size",
    ):
        assert said in text
    assert "Does it fit?" not in text


def test_the_full_plan_compares_and_fits() -> None:
    text = terminal(full_plan(), 140)
    for said in ("today's 2.00 h", "written while training goes on", "waiting for a host", "ZeRO 3", "all states"):
        assert said in text
    assert any("fullest rank" in what for _, what in plan_page(full_plan()).figures)


def test_fit_comes_before_fast() -> None:
    """The rank of the full plan holds 30.0 GB, and a tenth of the memory is kept: 32 GB are tight, 20 too few."""
    fits = full_plan()
    assert fits.fit is not None
    assert terminal(fits).startswith("16,384 GPUs fail")
    for memory, said in ((32 * 10**9, "is a tight fit for 32.0 GB."), (20 * 10**9, "does not fit into 20.0 GB.")):
        verdict = "tight" if memory > fits.fit.chosen.total else "does not fit"
        chosen = msgspec.structs.replace(fits.fit.chosen, verdict=verdict)
        fit = msgspec.structs.replace(fits.fit, memory_bytes=memory, chosen=chosen)
        text = " ".join(terminal(msgspec.structs.replace(fits, fit=fit)).split())
        assert text.startswith(f"Fit before fast: 30.0 GB on the fullest rank {said}")
        assert "The least that fits in this layout is" in text


def test_the_watch_says_what_it_saw() -> None:
    report = full_watch()
    text = " ".join(terminal(report, 140).split())
    for said in (
        "of the loss",
        "the loss is no number from step 29,500 until the log ends, 2 drops of a rate, 1 plateau;",
        "rewind to step 29,000.",
        "loss is NaN until the log ends",
        "a step that was skipped",
        "the gradient norm gave an alert at step",
        "Plateaus",
        "29.9 %",
        "lines that could not be used: 1",
        "line 7: not JSON",
    ):
        assert said in text
    assert any(spike.rewind_step == 24_000 and spike.start_step == 25_000 for spike in report.spikes)


def test_a_short_log_says_what_it_can_not_tell() -> None:
    text = " ".join(terminal(bare_watch(), 100).split())
    assert "3 rows are too few to tell what is usual" in text
    assert "Not in this log: gradient norm, throughput, MFU, update-to-weight ratio" in text


@pytest.mark.parametrize("form", ["terminal", "markdown"])
@pytest.mark.parametrize("report", [full_plan(HOSTILE), full_watch(HOSTILE)], ids=["plan", "watch"])
def test_hostile_names_do_nothing(report: Plan | Watch, form: str) -> None:
    text = FORMATS[form].render(report)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert form == "terminal" or "<img" not in text


@pytest.mark.parametrize("name", REPORTS)
def test_every_id_of_a_page_is_there_once(name: str) -> None:
    """A chart that bears the id of its section would be drawn over all of it."""
    text = FORMATS["html"].render(REPORTS[name]())
    ids = re.findall(r'<(?:section|div)[^>]* id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 3


def test_equal_reports_give_equal_pages() -> None:
    assert FORMATS["html"].render(full_plan()) == FORMATS["html"].render(full_plan())


def test_only_the_page_is_drawn() -> None:
    assert [panel.charts for panel in watch_page(full_watch()).panels if panel.charts] == []
    assert sum(len(panel.charts) for panel in watch_page(full_watch(), drawn=True).panels) == 5


@pytest.mark.parametrize("name", ["report", "report.perfetto.json", "report.pdf", ".html"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no such format"):
        format_for(name)
