"""The goodput page in Chromium, from disk, with every request recorded and blocked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.goodput.assess import Options, assess
from steptime.model.goodput import GoodputReport
from steptime.report.goodput import FORMATS
from steptime.report.goodput_charts import COLOURS

CHROMIUM = "/usr/bin/chromium"
if not os.access(CHROMIUM, os.X_OK):
    pytest.skip(f"{CHROMIUM} is not installed", allow_module_level=True)
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Page, Route, sync_playwright  # noqa: E402

PHONE, DESK = 390, 1200
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def report(tmp_path: Path) -> GoodputReport:
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    return assess([str(log)], Options(gpus=1024))


def _open(browser: Browser, report: GoodputReport, tmp_path: Path, width: int = DESK, scheme: str = "light") -> Page:
    """The page once its charts are drawn, with no message, no error and no request but its own."""
    file = tmp_path / "report.html"
    file.write_text(FORMATS["html"].render(report), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    seen: list[str] = []

    def route(asked: Route) -> None:
        if asked.request.url == file.as_uri():
            asked.continue_()
        else:
            seen.append(asked.request.url)
            asked.abort()

    context.route("**/*", route)
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=30_000)
    assert seen == []
    return page


def _fills(page: Page) -> list[str]:
    strip = page.locator("#run svg g.mark-rect.role-mark").first.locator("path")
    fills: list[str] = strip.evaluate_all("all => all.map(one => one.getAttribute('fill'))")
    return fills


def test_the_run_is_drawn_part_by_part(browser: Browser, report: GoodputReport, tmp_path: Path) -> None:
    page = _open(browser, report, tmp_path)
    # In order of time; the checkpoint before the failure at 10:00 is the one that the log names, at 08:00.
    parts = ["productive", "checkpoint", "productive", "lost_work", "detection", "restart", "productive", "planned"]
    parts += ["productive", "lost_work", "unsplit", "productive"]
    assert _fills(page) == [COLOURS[part] for part in parts]
    ticks = page.locator("#run svg g.mark-rect.role-mark").nth(1).locator("path")
    assert [
        (tick.get_attribute("aria-label") or "").split("interrupted by: ")[1].split("; host")[0] for tick in ticks.all()
    ] == ["faulty GPU", "planned maintenance", HOSTILE]
    page.context.close()


def test_hovering_tells_what_and_how_long(browser: Browser, report: GoodputReport, tmp_path: Path) -> None:
    page = _open(browser, report, tmp_path)
    page.locator("#run svg g.mark-rect.role-mark path").nth(5).hover()
    tip = page.wait_for_selector("#vg-tooltip-element.visible")
    assert tip is not None
    assert "restart" in tip.inner_text()
    assert "90.0 min" in tip.inner_text()
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_down(browser: Browser, report: GoodputReport, tmp_path: Path, scheme: str) -> None:
    page = _open(browser, report, tmp_path, PHONE, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    for chart in ("run", "lost", "causes-bars"):
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE
        assert box["height"] > 40
    page.context.close()


def test_text_of_a_log_is_text(browser: Browser, report: GoodputReport, tmp_path: Path) -> None:
    page = _open(browser, report, tmp_path)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert HOSTILE in page.inner_text("#causes")
    assert "\x1b" not in FORMATS["terminal"].render(report)
    page.context.close()


def test_buttons_move_the_run(browser: Browser, report: GoodputReport, tmp_path: Path) -> None:
    page = _open(browser, report, tmp_path)
    labels = (
        "[...document.querySelectorAll('#run svg .role-axis-label text')].map(one => one.textContent).sort().join()"
    )
    whole = page.evaluate(labels)
    page.get_by_role("button", name="Zoom in").first.click()
    page.wait_for_function(f"whole => {labels} !== whole", arg=whole)
    page.get_by_role("button", name="Show the whole run").first.click()
    page.wait_for_function(f"whole => {labels} === whole", arg=whole)
    page.context.close()
