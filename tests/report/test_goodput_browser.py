"""The goodput page in Chromium, from disk, with every request recorded and blocked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from steptime.goodput.assess import Options, assess
from steptime.model.goodput import GoodputReport
from steptime.report.goodput import FORMATS
from steptime.report.goodput_charts import COLOURS
from tests.chromium import DESK, PHONE

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "</script><script>alert(1)</script>"
LOG = (
    "time,cause,detected,resumed,last_checkpoint,host\n"
    "2024-05-01T00:00:00Z,start,,,,\n"
    "2024-05-01T02:00:00Z,checkpoint,,2024-05-01T02:10:00Z,,\n"
    "2024-05-01T10:00:00Z,Faulty GPU,2024-05-01T10:30:00Z,2024-05-01T12:00:00Z,2024-05-01T08:00:00Z,node1\n"
    "2024-05-02T10:00:00Z,firmware upgrade,,2024-05-02T12:00:00Z,2024-05-02T10:00:00Z,\n"
    f"2024-05-03T10:00:00Z,{HOSTILE},,2024-05-03T13:00:00Z,2024-05-03T09:00:00Z,<img src=x>\n"
    "2024-05-04T00:00:00Z,end,,,,\n"
)


@pytest.fixture
def report(tmp_path: Path) -> GoodputReport:
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    return assess([str(log)], Options(gpus=1024))


@pytest.fixture
def look(page_of: Callable[..., Page], report: GoodputReport) -> Callable[..., Page]:
    """A function that opens the report's page and waits for its charts."""
    return lambda width=DESK, scheme="light": page_of(FORMATS["html"].render(report), width, scheme)


def _fills(page: Page) -> list[str]:
    strip = page.locator("#run svg g.mark-rect.role-mark").first.locator("path")
    fills: list[str] = strip.evaluate_all("all => all.map(one => one.getAttribute('fill'))")
    return fills


def test_the_run_is_drawn_part_by_part(look: Callable[..., Page]) -> None:
    page = look()
    # In order of time; the checkpoint before the failure at 10:00 is the one that the log names, at 08:00.
    parts = ["productive", "checkpoint", "productive", "lost_work", "detection", "restart", "productive", "planned"]
    parts += ["productive", "lost_work", "unsplit", "productive"]
    assert _fills(page) == [COLOURS[part] for part in parts]
    ticks = page.locator("#run svg g.mark-rect.role-mark").nth(1).locator("path")
    assert [
        (tick.get_attribute("aria-label") or "").split("interrupted by: ")[1].split("; host")[0] for tick in ticks.all()
    ] == ["faulty GPU", "planned maintenance", HOSTILE]


def test_hovering_tells_what_and_how_long(look: Callable[..., Page]) -> None:
    page = look()
    page.locator("#run svg g.mark-rect.role-mark path").nth(5).hover()
    tip = page.wait_for_selector("#vg-tooltip-element.visible")
    assert tip is not None
    assert "restart" in tip.inner_text()
    assert "90.0 min" in tip.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_down(look: Callable[..., Page], scheme: str) -> None:
    page = look(PHONE, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    for chart in ("run", "lost", "causes-bars"):
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE
        assert box["height"] > 40


def test_text_of_a_log_is_text(look: Callable[..., Page], report: GoodputReport) -> None:
    page = look()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert HOSTILE in page.inner_text("#causes")
    assert "\x1b" not in FORMATS["terminal"].render(report)


def test_buttons_move_the_run(look: Callable[..., Page]) -> None:
    page = look()
    labels = (
        "[...document.querySelectorAll('#run svg .role-axis-label text')].map(one => one.textContent).sort().join()"
    )
    whole = page.evaluate(labels)
    page.get_by_role("button", name="Zoom in").first.click()
    page.wait_for_function(f"whole => {labels} !== whole", arg=whole)
    page.get_by_role("button", name="Show the whole run").first.click()
    page.wait_for_function(f"whole => {labels} === whole", arg=whole)
