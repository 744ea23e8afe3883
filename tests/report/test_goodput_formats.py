"""A goodput report in every format: bounded, escaped, the same figures, and words for what is not known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from steptime.errors import ReportError, UsageError
from steptime.goodput.assess import Options, assess
from steptime.goodput.costs import Money
from steptime.goodput.lost_work import Rhythm
from steptime.model.goodput import GoodputReport
from steptime.report.goodput import FORMATS, format_for, terminal
from steptime.report.goodput_page import goodput_page
from steptime.report.html import MAX_BYTES
from steptime.report.panels import Panel
from steptime.store import dumps, load, load_goodput

S = 10**9
T0 = 1_711_929_600  # 2024-04-01 00:00:00 UTC
HOSTILE = "</script>\x1b[31m<b>|`@all`"


def _assess(tmp_path: Path, text: str, options: Options = Options()) -> GoodputReport:  # noqa: B008 - frozen
    path = tmp_path / "log.csv"
    path.write_text(text)
    return assess([str(path)], options)


def _llama(tmp_path: Path) -> GoodputReport:
    """A run of the size of Llama 3 405B's: 54 days, 466 interruptions, checkpoints every 14 minutes."""
    rng = np.random.default_rng(3)
    begins = np.sort(rng.integers(0, 54 * 86_400, 466))
    rows = [f"{T0},start,,", f"{T0 + 54 * 86_400},end,,"]
    for at, begin in enumerate(begins.tolist()):
        cause = "maintenance" if at % 10 == 0 else ("Faulty GPU", "GPU HBM3 memory", "Software bug")[at % 3]
        rows.append(f"{T0 + begin},{cause},{T0 + begin + 60},{T0 + begin + 600}")
    text = "time,cause,detected,resumed\n" + "\n".join(rows) + "\n"
    rhythm = Rhythm(840 * S, 33 * S)
    return _assess(tmp_path, text, Options(gpus=16_384, rhythm=rhythm, money=Money(0.41, "given", 2.0)))


@pytest.mark.parametrize("name", FORMATS)
def test_a_long_run_stays_small_and_equal_reports_give_equal_bytes(name: str, tmp_path: Path) -> None:
    report = _llama(tmp_path)
    text = FORMATS[name].render(report)
    assert text.endswith("\n")
    assert len(text.encode()) < {"markdown": 60_000, "terminal": 30_000}.get(name, MAX_BYTES)
    assert FORMATS[name].render(report) == text
    if name != "json":
        shown = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
        assert "None" not in shown
        for said in ("54.0 days", "16,384", "466", "more than"):
            assert said in shown


@pytest.mark.parametrize("width", [72, 100, 140])
def test_no_line_of_the_terminal_is_too_long(width: int, tmp_path: Path) -> None:
    assert max(len(line) for line in terminal(_llama(tmp_path), width).splitlines()) <= width


def test_text_of_a_log_does_nothing(tmp_path: Path) -> None:
    rows = [f"{T0},start,,", f"{T0 + 50},{HOSTILE},{T0 + 60},{HOSTILE}", f"{T0 + 99},end,,", "\x1b]0;x,1"]
    report = _assess(tmp_path, "time,cause,resumed,host\n" + "\n".join(rows) + "\n")
    shown = {name: form.render(report) for name, form in FORMATS.items()}
    assert "\x1b" not in shown["terminal"] + shown["markdown"] + shown["html"]
    assert "\\x1b[31m" in shown["terminal"]
    assert "</script>\\x1b" not in shown["html"]
    assert "<b>" not in shown["markdown"]
    assert "@all" not in shown["markdown"]
    rows = [line for line in shown["markdown"].splitlines() if "31m" in line and line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8, 7}


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    report = _assess(tmp_path, f"time,cause,resumed\n{T0},GPU,{T0 + 600}\n")
    shown = terminal(report)
    assert shown.startswith("1 unexpected interruption; how much of the time the run trained can't be told")
    assert "no log says when the run began: give --since and ended: give --until" in " ".join(shown.split())
    for form in FORMATS.values():
        assert form.render(report)


def test_bounds_are_shown_as_bounds(tmp_path: Path) -> None:
    rows = [f"{T0},start,", f"{T0 + 100},GPU,", f"{T0 + 600},GPU,{T0 + 700}", f"{T0 + 1_000},end,"]
    shown = terminal(_assess(tmp_path, "time,cause,resumed\n" + "\n".join(rows) + "\n"))
    # Down for 100 s for certain, and for up to 500 s more.
    assert shown.startswith("The run was not down between 40.0 % and 90.0 % of")


def test_the_report_survives_its_file(tmp_path: Path) -> None:
    report = _llama(tmp_path)
    saved = tmp_path / "r.json"
    saved.write_text(dumps(report))
    assert load_goodput(saved) == report
    with pytest.raises(ReportError, match="not a steptime report|not a valid report"):
        load(saved)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"productive_ns": ', '"productive_ns": 1', "parts hold"),
        ('"schema_version": 1', '"schema_version": 99', "schema version 99"),
        ('"kind": "goodput"', '"kind": "other"', "not a report of `steptime goodput`"),
        ('"outages": ', '"outages": "many", "x": ', "edited or damaged"),
        ("{", "[", "not a report of `steptime goodput`"),
    ],
)
def test_an_edited_file_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    saved.write_text(dumps(_llama(tmp_path)).replace(before, after, 1))
    with pytest.raises(ReportError, match=said):
        load_goodput(saved)


def test_panels_of_others_have_a_place(tmp_path: Path) -> None:
    page = goodput_page(_llama(tmp_path), more=[Panel("watch", "Loss and spikes", lines=["none"])])
    ids = [panel.id for panel in page.shown]
    assert ids.index("watch") == ids.index("checkpoints") + 1


def test_suffixes() -> None:
    assert format_for("a/b/r.HTML") is FORMATS["html"]
    for name in ("r.csv", "r", "r.perfetto.json", ".json"):
        with pytest.raises(UsageError, match="no such format"):
            format_for(name)
